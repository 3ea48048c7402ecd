"""Letters: records that failed, each with what happened to it, to be buried, tried later or replayed.

Rule of this file: pure. Key, value and headers of a record stay as they came; what is added stands in headers under
one prefix, ``tailrace-``. That prefix is reserved: headers of a record that begin with it are taken for ours.
"""

from __future__ import annotations

import re
import traceback
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple, TypeAlias

from tailrace.records import Record

__all__ = [
    "MOST_ADDED_BYTES",
    "PREFIX",
    "DeadLetter",
    "Failure",
    "Header",
    "Letter",
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
    "replay_letter",
    "retry_letter",
    "without_ours",
]

Header: TypeAlias = tuple[str, bytes | None]

PREFIX = "tailrace-"
"""Of every header that tailrace adds."""
MOST_ADDED_BYTES = 16_384
"""A dead letter is larger than its record by this much at most."""

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

_MOST_NAME_BYTES = 512
_MOST_MESSAGE_BYTES = 4_096
_MOST_TRACEBACK_BYTES = 8_192
_BRIEF_BYTES = 200
"""Of each text, where there is no room for more."""

_NUMBER = re.compile(rb"-?[0-9]{1,18}")


# ---- a letter --------------------------------------------------------------------------------------------------


class Origin(NamedTuple):
    """Where a record was read first, before any retry, death or replay."""

    topic: str
    partition: int
    offset: int
    timestamp: int
    """Milliseconds since the epoch, as the record carried it."""

    def __str__(self) -> str:
        return f"{self.topic}[{self.partition}]@{self.offset}"


@dataclass(frozen=True, slots=True)
class Failure:
    """Why a record is given up."""

    error: BaseException
    attempts: int
    """The first included."""
    handler: str
    group_id: str
    at_ms: int


class Letter(NamedTuple):
    """A record to be published."""

    key: bytes | None
    value: bytes | None
    headers: tuple[Header, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class DeadLetter:
    """A dead letter as it was read; what its headers do not say is empty."""

    record: Record = field(repr=False)
    """As it stands in the dead-letter topic."""
    error_type: str
    """With its module, such as ``httpx.ConnectError``; builtins without."""
    reason: str
    """The error's message."""
    traceback: str = field(repr=False)
    attempts: int
    handler: str
    group_id: str
    at_ms: int
    """When it failed; when the letter was written, if it does not say."""
    origin: Origin | None
    deaths: int
    """How often it died, this time included."""
    replays: int
    """How often it had been replayed before."""
    headers: tuple[Header, ...] = field(repr=False)
    """Those that the record came with."""

    @property
    def key(self) -> bytes | None:
        """The record's key."""
        return self.record.key

    @property
    def value(self) -> bytes | None:
        """The record's value."""
        return self.record.value


def dead_letter(record: Record, failure: Failure, *, is_brief: bool = False) -> Letter:
    """The dead letter of a record; one that died before keeps its first origin, and its deaths are counted.

    A brief one says no more than where the record came from and what the error was, in few words.
    """
    before = _ours(record.headers)
    added = _failure_headers(failure, _BRIEF_BYTES if is_brief else _MOST_MESSAGE_BYTES)
    if not is_brief:
        trace = "".join(traceback.format_exception(failure.error))
        added[_ERROR_TRACEBACK] = _cut(trace, _MOST_TRACEBACK_BYTES)
    added[_DEATHS] = _digits(_number(before, _DEATHS) + 1)
    if replays := _number(before, _REPLAYS):
        added[_REPLAYS] = _digits(replays)
    return _with(record, added)


def retry_letter(record: Record, failure: Failure, due_at_ms: int) -> Letter:
    """A record on its way to a retry topic: with its failure in few words, and when it may be handled again."""
    before = _ours(record.headers)
    added = _failure_headers(failure, _BRIEF_BYTES) | {_DUE_AT: _digits(due_at_ms)}
    added |= {name: before[name] for name in (_DEATHS, _REPLAYS) if name in before}
    return _with(record, added)


def read_dead_letter(record: Record) -> DeadLetter | None:
    """What a record of a dead-letter topic says; None when it is no dead letter. No header is too broken to be read."""
    found = _ours(record.headers)
    if _ERROR_TYPE not in found or _DUE_AT in found:
        return None
    at_ms = _number(found, _FAILED_AT, -1)
    return DeadLetter(
        record=record,
        error_type=_text(found, _ERROR_TYPE),
        reason=_text(found, _ERROR_MESSAGE),
        traceback=_text(found, _ERROR_TRACEBACK),
        attempts=_number(found, _ATTEMPTS),
        handler=_text(found, _HANDLER),
        group_id=_text(found, _GROUP),
        at_ms=at_ms if at_ms >= 0 else record.timestamp,
        origin=_origin_in(found),
        deaths=max(_number(found, _DEATHS), 1),
        replays=_number(found, _REPLAYS),
        headers=without_ours(record.headers),
    )


def replay_letter(dead: DeadLetter) -> Letter:
    """The record once more, as it came; of ours it has its origin, its deaths and its replays, this one included."""
    added = {_DEATHS: _digits(dead.deaths), _REPLAYS: _digits(dead.replays + 1)}
    origin = origin_headers(dead.origin) if dead.origin is not None else ()
    return Letter(dead.key, dead.value, (*dead.headers, *added.items(), *origin))


def origin_of(record: Record) -> Origin:
    """Where a record was read first: as its headers say, or else where it stands."""
    known = _origin_in(_ours(record.headers))
    return known or Origin(record.topic, record.partition, record.offset, record.timestamp)


def due_at(record: Record) -> int | None:
    """When a record of a retry topic may be handled, in milliseconds since the epoch; None when it does not say."""
    found = _number(_ours(record.headers), _DUE_AT, -1)
    return None if found < 0 else found


def attempts_before(record: Record) -> int:
    """How often a record was tried before it went through the retry topic that it comes from."""
    found = _ours(record.headers)
    return max(_number(found, _ATTEMPTS), 0) if _DUE_AT in found else 0


def handler_of(record: Record) -> str:
    """The handler that sent a record to a retry topic; empty when none did."""
    found = _ours(record.headers)
    return _text(found, _HANDLER) if _DUE_AT in found else ""


def first_read(record: Record) -> Record:
    """The record as a handler saw it first: with the topic, partition, offset and timestamp of its origin."""
    return Record(*origin_of(record)[:3], record.key, record.value, origin_of(record).timestamp, record.headers)


def origin_headers(origin: Origin) -> tuple[Header, ...]:
    """The headers that a record takes along to another topic, so that ``origin_of`` knows it there."""
    return tuple((name, str(part).encode()) for name, part in zip(_ORIGIN, origin, strict=True))


def without_ours(headers: Iterable[Header]) -> tuple[Header, ...]:
    """The headers that tailrace did not add."""
    return tuple((name, value) for name, value in headers if not name.startswith(PREFIX))


# ---- headers ---------------------------------------------------------------------------------------------------


def _failure_headers(failure: Failure, most_message_bytes: int) -> dict[str, bytes]:
    most_name_bytes = min(_MOST_NAME_BYTES, most_message_bytes)
    return {
        _ERROR_TYPE: _cut(_name_of(type(failure.error)), most_name_bytes),
        _ERROR_MESSAGE: _cut(message_of(failure.error), most_message_bytes),
        _ATTEMPTS: _digits(failure.attempts),
        _HANDLER: _cut(failure.handler, _MOST_NAME_BYTES),
        _GROUP: _cut(failure.group_id, _MOST_NAME_BYTES),
        _FAILED_AT: _digits(failure.at_ms),
    }


def _with(record: Record, added: Mapping[str, bytes]) -> Letter:
    headers = (*without_ours(record.headers), *added.items(), *origin_headers(origin_of(record)))
    return Letter(record.key, record.value, headers)


def _ours(headers: Iterable[Header]) -> dict[str, bytes]:
    return {name: value for name, value in headers if value is not None and name.startswith(PREFIX)}


def _origin_in(found: Mapping[str, bytes]) -> Origin | None:
    topic, (partition, offset, timestamp) = _text(found, _ORIGIN[0]), (_number(found, name, -1) for name in _ORIGIN[1:])
    return Origin(topic, partition, offset, timestamp) if topic and partition >= 0 and offset >= 0 else None


def _text(found: Mapping[str, bytes], name: str) -> str:
    return found.get(name, b"").decode("utf-8", "replace")


def _number(found: Mapping[str, bytes], name: str, otherwise: int = 0) -> int:
    digits = found.get(name, b"")
    return int(digits) if _NUMBER.fullmatch(digits) else otherwise


def _digits(number: int) -> bytes:
    return b"%d" % number


def _name_of(kind: type[BaseException]) -> str:
    return kind.__qualname__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__qualname__}"


def message_of(error: BaseException) -> str:
    """What an error says, whatever it does when it is asked."""
    try:
        return str(error)
    except Exception as broken:  # noqa: BLE001 - the user's own __str__; the letter is written whatever it does
        return f"(its text cannot be made: {type(broken).__name__})"


def _cut(text: str, most: int) -> bytes:
    """In UTF-8, without its middle where it is too long: a traceback begins at the handler and ends at the error."""
    whole = text.encode("utf-8", "backslashreplace")
    if len(whole) <= most:
        return whole
    gap = f"\n... {len(whole) - most} bytes and more are left out ...\n".encode()
    first = most // 4
    last = most - first - len(gap)
    head, tail = (part.decode("utf-8", "ignore").encode() for part in (whole[:first], whole[-last:]))
    return head + gap + tail
