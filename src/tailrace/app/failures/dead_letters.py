"""Headers of failed records in dead-letter topics, retry topics and replay topics.

A failed record keeps its key, value and headers. Added headers with the reserved prefix ``tailrace-`` describe the
failure. This module does no I/O.
"""

from __future__ import annotations

import re
import traceback
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple, TypeAlias

from tailrace.records import Record

__all__ = [
    "MAX_ADDED_BYTES",
    "PREFIX",
    "DeadLetter",
    "Failure",
    "ForwardedRecord",
    "Header",
    "Origin",
    "attempts_before",
    "dead_letter",
    "due_at",
    "first_read",
    "handler_of",
    "message_of",
    "origin_headers",
    "origin_of",
    "read_dead_letter",
    "replay_record",
    "retry_record",
    "without_tailrace_headers",
]

Header: TypeAlias = tuple[str, bytes | None]

PREFIX = "tailrace-"
"""Prefix of all headers that tailrace adds."""
MAX_ADDED_BYTES = 16_384
"""Maximum size of the headers that a dead letter adds to its record, in bytes."""

_ERROR_TYPE = PREFIX + "error-type"
_ERROR_MESSAGE = PREFIX + "error-message"
_ERROR_TRACEBACK = PREFIX + "error-traceback"
_ATTEMPTS = PREFIX + "attempts"
_HANDLER = PREFIX + "handler"
_GROUP = PREFIX + "group"
_FAILED_AT = PREFIX + "failed-at"
_DEATHS = PREFIX + "deaths"
_REPLAYS = PREFIX + "replays"
_DUE_AT = PREFIX + "due-at"
_ORIGIN = tuple(f"{PREFIX}origin-{part}" for part in ("topic", "partition", "offset", "timestamp"))

_MAX_NAME_BYTES = 512
_MAX_MESSAGE_BYTES = 4_096
_MAX_TRACEBACK_BYTES = 8_192
_BRIEF_BYTES = 200
"""Maximum size in bytes of the error type, and of the message, in a brief dead letter and in a retry topic."""

_NUMBER = re.compile(rb"-?[0-9]{1,18}")


# ---- failed records --------------------------------------------------------------------------------------------


class Origin(NamedTuple):
    """Position of a record in the topic that its handler reads, before any retry, dead letter or replay."""

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
    """Number of failed attempts, also of those before the record was sent to a retry topic."""
    handler: str
    """Name of the handler."""
    group_id: str
    at_ms: int
    """Time of the failure in milliseconds since the epoch."""


class ForwardedRecord(NamedTuple):
    """Failed record to publish; its headers include the added ones."""

    key: bytes | None
    value: bytes | None
    headers: tuple[Header, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class DeadLetter:
    """Dead letter read from its topic.

    If the header of a field is missing or invalid, the field is an empty string, 0 or None, or has the value that its
    documentation names.
    """

    record: Record = field(repr=False)
    """Record as stored in the dead-letter topic."""
    error_type: str
    """Type of the error with its module, such as ``httpx.ConnectError``; of a builtin type, only the name."""
    reason: str
    """Message of the error."""
    traceback: str = field(repr=False)
    attempts: int
    """Number of failed attempts, also of those before the record was sent to a retry topic."""
    handler: str
    """Name of the handler."""
    group_id: str
    at_ms: int
    """Time of the failure in milliseconds since the epoch; the dead letter's timestamp if the header is missing."""
    origin: Origin | None
    deaths: int
    """Number of times that the record became a dead letter, including this time; 1 without a valid header."""
    replays: int
    """Number of times that the record was replayed before this failure."""
    headers: tuple[Header, ...] = field(repr=False)
    """Original headers of the record."""

    @property
    def key(self) -> bytes | None:
        """Key of the record."""
        return self.record.key

    @property
    def value(self) -> bytes | None:
        """Value of the record."""
        return self.record.value


def dead_letter(record: Record, failure: Failure, *, is_brief: bool = False) -> ForwardedRecord:
    """Return the dead letter of a record.

    The number of deaths is one more than in the record's headers. The origin is kept over retries and replays. A brief
    dead letter has no traceback, and its error type and message are shortened.
    """
    known = _tailrace_headers(record.headers)
    added = _failure_headers(failure, _BRIEF_BYTES if is_brief else _MAX_MESSAGE_BYTES)
    if not is_brief:
        trace = "".join(traceback.format_exception(failure.error))
        added[_ERROR_TRACEBACK] = _truncated(trace, _MAX_TRACEBACK_BYTES)
    added[_DEATHS] = _encoded(_int_header(known, _DEATHS) + 1)
    if replays := _int_header(known, _REPLAYS):
        added[_REPLAYS] = _encoded(replays)
    return _with_headers(record, added)


def retry_record(record: Record, failure: Failure, due_at_ms: int) -> ForwardedRecord:
    """Return a record for a retry topic, with a brief description of its failure and the time at which it is due."""
    known = _tailrace_headers(record.headers)
    added = _failure_headers(failure, _BRIEF_BYTES) | {_DUE_AT: _encoded(due_at_ms)}
    added |= {name: known[name] for name in (_DEATHS, _REPLAYS) if name in known}
    return _with_headers(record, added)


def read_dead_letter(record: Record) -> DeadLetter | None:
    """Parse a record of a dead-letter topic; return None for a record of a retry topic, or without an error type.

    Headers with invalid numbers count as missing.
    """
    found = _tailrace_headers(record.headers)
    if _ERROR_TYPE not in found or _DUE_AT in found:
        return None
    at_ms = _int_header(found, _FAILED_AT, -1)
    return DeadLetter(
        record=record,
        error_type=_text_header(found, _ERROR_TYPE),
        reason=_text_header(found, _ERROR_MESSAGE),
        traceback=_text_header(found, _ERROR_TRACEBACK),
        attempts=_int_header(found, _ATTEMPTS),
        handler=_text_header(found, _HANDLER),
        group_id=_text_header(found, _GROUP),
        at_ms=at_ms if at_ms >= 0 else record.timestamp,
        origin=_origin_in(found),
        deaths=max(_int_header(found, _DEATHS), 1),
        replays=_int_header(found, _REPLAYS),
        headers=without_tailrace_headers(record.headers),
    )


def replay_record(dead: DeadLetter) -> ForwardedRecord:
    """Return the original record of a dead letter, to publish to a replay topic.

    Added headers contain the origin, the number of deaths, and the number of replays, including this replay.
    """
    added = {_DEATHS: _encoded(dead.deaths), _REPLAYS: _encoded(dead.replays + 1)}
    origin = origin_headers(dead.origin) if dead.origin is not None else ()
    return ForwardedRecord(dead.key, dead.value, (*dead.headers, *added.items(), *origin))


def origin_of(record: Record) -> Origin:
    """Return the origin of a record from its headers; without such headers, return the position of the record."""
    known = _origin_in(_tailrace_headers(record.headers))
    return known or Origin(record.topic, record.partition, record.offset, record.timestamp)


def due_at(record: Record) -> int | None:
    """Return the due time of a record of a retry topic in milliseconds since the epoch; None without a valid header."""
    found = _int_header(_tailrace_headers(record.headers), _DUE_AT, -1)
    return None if found < 0 else found


def attempts_before(record: Record) -> int:
    """Return the number of failed attempts before a record was sent to a retry topic; 0 for records of other topics."""
    found = _tailrace_headers(record.headers)
    return max(_int_header(found, _ATTEMPTS), 0) if _DUE_AT in found else 0


def handler_of(record: Record) -> str:
    """Return the name of the handler that failed, for a record of a retry topic; empty for other records."""
    found = _tailrace_headers(record.headers)
    return _text_header(found, _HANDLER) if _DUE_AT in found else ""


def first_read(record: Record) -> Record:
    """Return a record as it was first read: with the topic, partition, offset and timestamp of its origin.

    The headers are not changed. The timestamp type is None unless the record is still at its origin.
    """
    origin = origin_of(record)
    kind = record.timestamp_type if origin[:3] == tuple(record)[:3] else None
    return Record(*origin[:3], record.key, record.value, origin.timestamp, record.headers, kind)


def origin_headers(origin: Origin) -> tuple[Header, ...]:
    """Return the headers from which ``origin_of`` reads an origin."""
    return tuple((name, str(part).encode()) for name, part in zip(_ORIGIN, origin, strict=True))


def without_tailrace_headers(headers: Iterable[Header]) -> tuple[Header, ...]:
    """Return the headers that tailrace did not add."""
    return tuple((name, value) for name, value in headers if not name.startswith(PREFIX))


# ---- headers ---------------------------------------------------------------------------------------------------


def _failure_headers(failure: Failure, max_message_bytes: int) -> dict[str, bytes]:
    max_name_bytes = min(_MAX_NAME_BYTES, max_message_bytes)
    return {
        _ERROR_TYPE: _truncated(_name_of(type(failure.error)), max_name_bytes),
        _ERROR_MESSAGE: _truncated(message_of(failure.error), max_message_bytes),
        _ATTEMPTS: _encoded(failure.attempts),
        _HANDLER: _truncated(failure.handler, _MAX_NAME_BYTES),
        _GROUP: _truncated(failure.group_id, _MAX_NAME_BYTES),
        _FAILED_AT: _encoded(failure.at_ms),
    }


def _with_headers(record: Record, added: Mapping[str, bytes]) -> ForwardedRecord:
    headers = (*without_tailrace_headers(record.headers), *added.items(), *origin_headers(origin_of(record)))
    return ForwardedRecord(record.key, record.value, headers)


def _tailrace_headers(headers: Iterable[Header]) -> dict[str, bytes]:
    return {name: value for name, value in headers if value is not None and name.startswith(PREFIX)}


def _origin_in(found: Mapping[str, bytes]) -> Origin | None:
    topic, (partition, offset, timestamp) = (
        _text_header(found, _ORIGIN[0]),
        (_int_header(found, name, -1) for name in _ORIGIN[1:]),
    )
    return Origin(topic, partition, offset, timestamp) if topic and partition >= 0 and offset >= 0 else None


def _text_header(found: Mapping[str, bytes], name: str) -> str:
    return found.get(name, b"").decode("utf-8", "replace")


def _int_header(found: Mapping[str, bytes], name: str, otherwise: int = 0) -> int:
    digits = found.get(name, b"")
    return int(digits) if _NUMBER.fullmatch(digits) else otherwise


def _encoded(number: int) -> bytes:
    return b"%d" % number


def _name_of(kind: type[BaseException]) -> str:
    return kind.__qualname__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__qualname__}"


def message_of(error: BaseException) -> str:
    """Return the message of an error, or a placeholder if its ``__str__`` raises."""
    try:
        return str(error)
    except Exception as broken:  # noqa: BLE001 - an error in the user's __str__ must not prevent the dead letter
        return f"(no message: __str__ raised {type(broken).__name__})"


def _truncated(text: str, max_bytes: int) -> bytes:
    """Encode a text in UTF-8, and omit its middle if it is longer than ``max_bytes``.

    The middle is omitted because both the first and the last lines of a traceback are needed.
    """
    whole = text.encode("utf-8", "backslashreplace")
    if len(whole) <= max_bytes:
        return whole
    gap = f"\n... more than {len(whole) - max_bytes} bytes omitted ...\n".encode()
    first = max_bytes // 4
    last = max_bytes - first - len(gap)
    head, tail = (part.decode("utf-8", "ignore").encode() for part in (whole[:first], whole[-last:]))
    return head + gap + tail
