"""Marks in a dead-letter topic: which dead letters were replayed, and which replays run.

A mark is a record of the dead-letter topic. It is in the partition of its dead letter, behind it, so that retention
deletes the dead letter first, and a recreated topic has neither. Its key is its own, so that compaction keeps it.
Marks are readable by every operator, and no other topic or permission is needed than those of the dead-letter topic.
"""

from __future__ import annotations

import hashlib
from typing import Final, Literal, NamedTuple

import msgspec

from tailrace.app.failures.dead_letters import PREFIX, DeadLetter, ForwardedRecord
from tailrace.cli.dead_letters.selection import position_of
from tailrace.producer.publisher import Published
from tailrace.records import Record

__all__ = ["ACTIVE_MS", "CLAIM_PARTITION", "ReplayMark", "ReplayMarks", "RunMark", "record_id", "replay_mark"]

CLAIM_PARTITION: Final = 0
"""Partition of the marks of runs: its log decides which of two replays was first."""

_HEADER = PREFIX + "replay-mark"
ACTIVE_MS: Final = 120_000
"""Milliseconds after its last mark for which a replay without an end counts as running."""
_TRACE_HEADERS = frozenset(
    {
        "traceparent",
        "tracestate",
        "baggage",
        "b3",
        *(f"x-b3-{name}" for name in ("traceid", "spanid", "parentspanid", "sampled", "flags")),
        "uber-trace-id",
        "x-amzn-trace-id",
    }
)
"""Lowercase names of headers that an app replaces in a dead letter by the trace of the failed attempt."""


def record_id(letter: DeadLetter) -> str:
    """Return a digest of the group, the origin, and the key, value and own headers of a dead letter's record.

    Trace headers do not count, because each failure of a record has its own.
    """
    headers = [one for one in letter.headers if one[0].lower() not in _TRACE_HEADERS]
    content = (letter.group_id, letter.origin, letter.key, letter.value, headers)
    return hashlib.sha256(msgspec.msgpack.encode(content)).hexdigest()


class ReplayMark(msgspec.Struct, frozen=True, tag="replayed", tag_field="kind"):
    """Dead letter whose record was sent, and acknowledged by the brokers."""

    run: str
    """Replay that sent the record."""
    letter: str
    """Position of the dead letter."""
    record: str
    """``record_id`` of the dead letter."""
    deaths: int
    """Number of deaths of the dead letter; dead letters of the same record with fewer deaths count as replayed."""
    to: str
    partition: int
    offset: int
    at_ms: int

    @property
    def target(self) -> str:
        """Topic, partition and offset of the sent record."""
        return f"{self.to}[{self.partition}]@{self.offset}"

    def as_record(self) -> ForwardedRecord:
        """Return the record to publish to the partition of the dead letter."""
        return _as_record(f"{PREFIX}replayed-{self.record}", self)


class RunMark(msgspec.Struct, frozen=True, tag="run", tag_field="kind"):
    """Start or end of a replay."""

    run: str
    state: Literal["started", "ended"]
    client: str
    """Host and process of the replay."""

    def as_record(self) -> ForwardedRecord:
        """Return the record to publish to ``CLAIM_PARTITION``."""
        return _as_record(f"{PREFIX}replay-{self.run}", self)


class _Run(NamedTuple):
    client: str
    started_at: int
    """Offset of its first mark."""
    ended_at: int | None


class ReplayMarks:
    """Marks that were read from a dead-letter topic."""

    def __init__(self) -> None:
        self._replayed: dict[str, ReplayMark] = {}
        self._runs: dict[str, _Run] = {}
        self._last_ms: dict[str, int] = {}

    def add(self, record: Record) -> bool:
        """Add the mark that a record contains; return False if it contains none."""
        if not any(name == _HEADER for name, _ in record.headers):
            return False
        try:
            mark = msgspec.json.decode(record.value or b"", type=ReplayMark | RunMark)
        except msgspec.MsgspecError:  # Any client that may write to the topic can write any record.
            return False
        self._last_ms[mark.run] = max(self._last_ms.get(mark.run, 0), record.timestamp)
        if isinstance(mark, ReplayMark):
            known = self._replayed.get(mark.record)
            if known is None or mark.deaths >= known.deaths:
                self._replayed[mark.record] = mark
        elif record.partition == CLAIM_PARTITION:
            started = self._runs.get(mark.run) or _Run(mark.client, record.offset, None)
            ended_at = record.offset if mark.state == "ended" else None
            self._runs[mark.run] = started._replace(ended_at=ended_at)
        return True

    def of(self, letter: DeadLetter) -> ReplayMark | None:
        """Return the mark of a dead letter that was replayed, itself or by a later dead letter of the same record."""
        return self.of_record(record_id(letter), letter.deaths)

    def of_record(self, record: str, deaths: int) -> ReplayMark | None:
        """Return the mark that covers a dead letter with this ``record_id`` and number of deaths."""
        mark = self._replayed.get(record)
        return mark if mark is not None and mark.deaths >= deaths else None

    def deaths(self, letter: DeadLetter) -> int:
        """Return the number of deaths to send with a dead letter, so that a later death exceeds that of every mark."""
        mark = self._replayed.get(record_id(letter))
        return letter.deaths if mark is None else max(letter.deaths, mark.deaths)

    def other_run(self, run: str) -> tuple[str, int] | None:
        """Return the client of a replay that was first and has not ended, and the time when it counts as ended.

        ``run`` is this replay, whose start must have been read. A replay that ended before this start does not count:
        all its marks were acknowledged, and therefore read. A replay that was killed counts until it has written no
        mark for two minutes.
        """
        own = self._runs[run]
        for name, other in self._runs.items():
            is_first = name != run and other.started_at < own.started_at
            if is_first and (other.ended_at is None or other.ended_at > own.started_at):
                until_ms = self._last_ms[name] + ACTIVE_MS
                if until_ms > self._last_ms[run]:
                    return other.client, until_ms
        return None


def replay_mark(run: str, letter: DeadLetter, published: Published, at_ms: int) -> ReplayMark:
    """Return the mark of a dead letter whose record was acknowledged."""
    topic, partition = published.partition
    return ReplayMark(
        run, str(position_of(letter)), record_id(letter), letter.deaths, topic, partition, published.offset, at_ms
    )


def _as_record(key: str, mark: ReplayMark | RunMark) -> ForwardedRecord:
    return ForwardedRecord(key.encode(), msgspec.json.encode(mark), ((_HEADER, b"1"),))
