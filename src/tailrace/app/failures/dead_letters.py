"""Headers of failed records in dead-letter topics, retry topics and replay topics.

A failed record keeps its key, value and headers. Added headers, whose names begin with ``tailrace-``, describe the
failure. This module does no I/O.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from tailrace.app.added_headers import (
    DUE_AT,
    MAX_INT32,
    MAX_INT64,
    PREFIX,
    Header,
    added_headers,
    int_header,
    text_header,
    without_tailrace_headers,
)
from tailrace.app.publish.delays import destination_headers
from tailrace.core.cluster_metadata import topic_name_fault
from tailrace.records import Record
from tailrace.user_exceptions import message_of, traceback_of

__all__ = [
    "MAX_ADDED_BYTES",
    "DeadLetter",
    "Failure",
    "ForwardedRecord",
    "Origin",
    "as_first_read",
    "dead_letter",
    "due_at",
    "earlier_attempts",
    "handler_of",
    "origin_headers",
    "origin_of",
    "read_dead_letter",
    "replay_record",
    "retry_record",
]

MAX_ADDED_BYTES = 16_384
"""Maximum size in bytes of all headers that are added to a record for its dead letter."""

_ERROR_TYPE = PREFIX + "error-type"
_ERROR_MESSAGE = PREFIX + "error-message"
_ERROR_TRACEBACK = PREFIX + "error-traceback"
_ATTEMPTS = PREFIX + "attempts"
_HANDLER = PREFIX + "handler"
_GROUP = PREFIX + "group"
_FAILED_AT = PREFIX + "failed-at"
_DEATHS = PREFIX + "deaths"
_REPLAYS = PREFIX + "replays"
_ORIGIN = tuple(f"{PREFIX}origin-{part}" for part in ("topic", "partition", "offset", "timestamp"))

_MAX_NAME_BYTES = 512
_MAX_MESSAGE_BYTES = 4_096
_MAX_TRACEBACK_BYTES = 8_192
_BRIEF_BYTES = 200
"""Maximum size in bytes of the error type, and of the message, in a brief dead letter or a record of a retry topic."""


# ---- failed records --------------------------------------------------------------------------------------------


class Origin(NamedTuple):
    """Topic, partition, offset and timestamp of a record when a handler first received it.

    The origin stays the same when the record is written to retry, dead-letter and replay topics.
    """

    topic: str
    partition: int
    offset: int
    timestamp: int
    """Timestamp of the record, in milliseconds since the epoch."""

    def __str__(self) -> str:
        return f"{self.topic}[{self.partition}]@{self.offset}"


@dataclass(frozen=True, slots=True)
class Failure:
    """Last failure of a record."""

    error: BaseException
    attempts: int
    """Number of failed attempts, including those before the record was sent to a retry topic."""
    handler: str
    """Name of the handler."""
    group_id: str
    at_ms: int
    """Time of the failure in milliseconds since the epoch."""


class ForwardedRecord(NamedTuple):
    """Failed record to publish, with its own and the added headers."""

    key: bytes | None
    value: bytes | None
    headers: tuple[Header, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class DeadLetter:
    """Dead letter that was read from a dead-letter topic.

    A field whose header is missing or invalid is an empty string, 0 or None, unless its documentation names another
    value.
    """

    record: Record = field(repr=False)
    """Record as stored in the dead-letter topic."""
    error_type: str
    """Type of the error with its module, such as ``httpx.ConnectError``; builtin types are without module."""
    reason: str
    """Message of the error."""
    traceback: str = field(repr=False)
    attempts: int
    """Number of failed attempts, including those before the record was sent to a retry topic."""
    handler: str
    """Name of the handler."""
    group_id: str
    at_ms: int
    """Time of the failure in milliseconds since the epoch; without a valid header, the timestamp of the dead letter."""
    origin: Origin | None
    deaths: int
    """Number of times that the record has become a dead letter, including this one; 1 without a valid header."""
    replays: int
    """Number of times that the record was replayed before this failure."""
    headers: tuple[Header, ...] = field(repr=False)
    """Headers of the record without those that tailrace added."""

    @property
    def key(self) -> bytes | None:
        """Key of the record."""
        return self.record.key

    @property
    def value(self) -> bytes | None:
        """Value of the record."""
        return self.record.value


def dead_letter(record: Record, failure: Failure, *, is_brief: bool = False) -> ForwardedRecord:
    """Return the dead letter of a failed record.

    The dead letter has the record's origin, and its number of deaths is one more than in the record's headers. A brief
    dead letter has no traceback, and its error type and message are shortened.
    """
    earlier = added_headers(record.headers)
    added = _failure_headers(failure, _BRIEF_BYTES if is_brief else _MAX_MESSAGE_BYTES)
    if not is_brief:
        added[_ERROR_TRACEBACK] = _truncated(traceback_of(failure.error), _MAX_TRACEBACK_BYTES)
    added |= destination_headers(earlier)
    added[_DEATHS] = _encoded_count(_count_header(earlier, _DEATHS) + 1)
    if replays := _count_header(earlier, _REPLAYS):
        added[_REPLAYS] = _encoded_count(replays)
    return _with_headers(record, added)


def retry_record(record: Record, failure: Failure, due_at_ms: int) -> ForwardedRecord:
    """Return a failed record to publish to a retry topic.

    Added headers contain the time at which the record is due, the failure with a shortened message and without a
    traceback, and the origin.
    """
    earlier = added_headers(record.headers)
    added = _failure_headers(failure, _BRIEF_BYTES) | {DUE_AT: _encoded(due_at_ms)}
    added |= {name: _encoded_count(n) for name in (_DEATHS, _REPLAYS) if (n := _count_header(earlier, name))}
    return _with_headers(record, added)


def read_dead_letter(record: Record) -> DeadLetter | None:
    """Return the dead letter that a record contains.

    Return None if the record has no header with the error type, or has a due time, as records of retry topics have.
    """
    added = added_headers(record.headers)
    if _ERROR_TYPE not in added or DUE_AT in added:
        return None
    at_ms = int_header(added, _FAILED_AT, MAX_INT64)
    return DeadLetter(
        record=record,
        error_type=text_header(added, _ERROR_TYPE),
        reason=text_header(added, _ERROR_MESSAGE),
        traceback=text_header(added, _ERROR_TRACEBACK),
        attempts=_count_header(added, _ATTEMPTS),
        handler=text_header(added, _HANDLER),
        group_id=text_header(added, _GROUP),
        at_ms=record.timestamp if at_ms is None else at_ms,
        origin=_origin_in(added),
        deaths=max(_count_header(added, _DEATHS), 1),
        replays=_count_header(added, _REPLAYS),
        headers=without_tailrace_headers(record.headers),
    )


def replay_record(dead: DeadLetter, *, deaths: int = 0) -> ForwardedRecord:
    """Return the record of a dead letter, to publish to a replay topic.

    Added headers contain the origin if it is known, the number of deaths, at least ``deaths``, and the number of
    replays, including this replay.
    """
    added = {_DEATHS: _encoded_count(max(dead.deaths, deaths)), _REPLAYS: _encoded_count(dead.replays + 1)}
    added |= destination_headers(added_headers(dead.record.headers))
    origin = origin_headers(dead.origin) if dead.origin is not None else ()
    return ForwardedRecord(dead.key, dead.value, (*dead.headers, *added.items(), *origin))


def origin_of(record: Record) -> Origin:
    """Return the origin in a record's headers; without a valid one, the record's own topic, partition and offset."""
    origin = _origin_in(added_headers(record.headers))
    if origin is None or topic_name_fault(origin.topic):
        return Origin(record.topic, record.partition, record.offset, record.timestamp)
    return origin


def due_at(record: Record) -> int | None:
    """Return the due time in a record's headers, in milliseconds since the epoch; None without a valid header.

    Only records of retry topics and delayed messages have this header.
    """
    return int_header(added_headers(record.headers), DUE_AT, MAX_INT64)


def earlier_attempts(record: Record) -> int:
    """Return the number of failed attempts before a record was sent to a retry topic; 0 for records of other topics."""
    added = added_headers(record.headers)
    return _count_header(added, _ATTEMPTS) if DUE_AT in added else 0


def handler_of(record: Record) -> str:
    """Return the name of the handler in which a record of a retry topic failed; "" for records of other topics."""
    added = added_headers(record.headers)
    return text_header(added, _HANDLER) if DUE_AT in added else ""


def as_first_read(record: Record) -> Record:
    """Return a record with the topic, partition, offset and timestamp of its origin.

    The headers are unchanged. If the record was read from another place than its origin, the timestamp type is None,
    because no header contains it.
    """
    origin = origin_of(record)
    timestamp_type = record.timestamp_type if origin[:3] == tuple(record)[:3] else None
    return Record(*origin[:3], record.key, record.value, origin.timestamp, record.headers, timestamp_type)


def origin_headers(origin: Origin) -> tuple[Header, ...]:
    """Return the headers from which ``origin_of`` reads an origin."""
    return tuple((name, str(part).encode()) for name, part in zip(_ORIGIN, origin, strict=True))


# ---- headers ---------------------------------------------------------------------------------------------------


def _failure_headers(failure: Failure, max_message_bytes: int) -> dict[str, bytes]:
    """Return the headers that describe a failure; ``max_message_bytes`` limits the message and the error type."""
    max_name_bytes = min(_MAX_NAME_BYTES, max_message_bytes)
    return {
        _ERROR_TYPE: _truncated(_name_of(type(failure.error)), max_name_bytes),
        _ERROR_MESSAGE: _truncated(message_of(failure.error), max_message_bytes),
        _ATTEMPTS: _encoded_count(failure.attempts),
        _HANDLER: _truncated(failure.handler, _MAX_NAME_BYTES),
        _GROUP: _truncated(failure.group_id, _MAX_NAME_BYTES),
        _FAILED_AT: _encoded(failure.at_ms),
    }


def _with_headers(record: Record, added: Mapping[str, bytes]) -> ForwardedRecord:
    headers = (*without_tailrace_headers(record.headers), *added.items(), *origin_headers(origin_of(record)))
    return ForwardedRecord(record.key, record.value, headers)


def _origin_in(added: Mapping[str, bytes]) -> Origin | None:
    """Return the origin in the headers; None without a topic, a partition and an offset."""
    topic, partition = text_header(added, _ORIGIN[0]), int_header(added, _ORIGIN[1], MAX_INT32)
    offset, timestamp = (int_header(added, name, MAX_INT64) for name in _ORIGIN[2:])
    if not topic or partition is None or offset is None:
        return None
    return Origin(topic, partition, offset, -1 if timestamp is None else timestamp)


def _count_header(added: Mapping[str, bytes], name: str) -> int:
    """Return the count in a header; 0 if the header is missing or invalid."""
    return int_header(added, name, MAX_INT32) or 0


def _encoded_count(count: int) -> bytes:
    """Encode a count, which stops at its limit, so that it remains valid."""
    return _encoded(min(count, MAX_INT32))


def _encoded(number: int) -> bytes:
    return b"%d" % number


def _name_of(kind: type[BaseException]) -> str:
    return kind.__qualname__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__qualname__}"


def _truncated(text: str, max_bytes: int) -> bytes:
    """Encode a text in UTF-8; if it is longer than ``max_bytes``, omit its middle.

    The first and the last lines of a traceback are the important ones.
    """
    whole = text.encode("utf-8", "backslashreplace")
    if len(whole) <= max_bytes:
        return whole
    gap = f"\n... more than {len(whole) - max_bytes} bytes omitted ...\n".encode()
    first = max_bytes // 4
    last = max_bytes - first - len(gap)
    head, tail = (part.decode("utf-8", "ignore").encode() for part in (whole[:first], whole[-last:]))
    return head + gap + tail
