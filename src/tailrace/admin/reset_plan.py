"""Plan of an offset reset, without IO.

As in Kafka's tool, a target outside the log is replaced by the log's first offset or its end, whichever is nearer.
``OffsetChange.note`` then names the target.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Self, TypeAlias, assert_never

from tailrace.admin.offsets import GroupOffset
from tailrace.errors import ConfigurationError
from tailrace.protocol.list_offsets import ListedOffset
from tailrace.records import TopicPartition

__all__ = [
    "OffsetChange",
    "ResetTarget",
    "ShiftBy",
    "ToEarliest",
    "ToLatest",
    "ToOffset",
    "ToTime",
    "left_out",
    "planned_change",
    "time_of",
]

_MAX = (1 << 63) - 1


@dataclass(frozen=True, slots=True)
class ToEarliest:
    """Reset to the first offset of the log."""


@dataclass(frozen=True, slots=True)
class ToLatest:
    """Reset to the end of the log, which skips all its records."""


@dataclass(frozen=True, slots=True)
class ToOffset:
    """Reset to one offset in all partitions."""

    offset: int

    def __post_init__(self) -> None:
        if not 0 <= self.offset <= _MAX:
            raise ConfigurationError(f"offset must be from 0 to {_MAX}, not {self.offset}")


@dataclass(frozen=True, slots=True)
class ToTime:
    """Reset to the first record with at least this timestamp."""

    timestamp_ms: int
    """Milliseconds since the epoch."""

    def __post_init__(self) -> None:
        if not 0 <= self.timestamp_ms <= _MAX:
            raise ConfigurationError(f"timestamp_ms must be from 0 to {_MAX}, not {self.timestamp_ms}")

    @classmethod
    def ago(cls, seconds: float, *, now: float) -> Self:
        """Return the time ``seconds`` before ``now``, which is in seconds since the epoch.

        Raises:
            ConfigurationError: the duration is invalid.
        """
        if not 0 <= seconds <= now:
            raise ConfigurationError(f"a duration must be from 0 to the time since 1970, not {seconds:g} seconds")
        return cls(int((now - seconds) * 1000))


@dataclass(frozen=True, slots=True)
class ShiftBy:
    """Move the committed offsets by a number of offsets, backwards if the number is negative."""

    offsets: int

    def __post_init__(self) -> None:
        if not self.offsets or abs(self.offsets) > _MAX:
            raise ConfigurationError(f"a shift must be a number of offsets such as -100 or 100, not {self.offsets}")


ResetTarget: TypeAlias = ToEarliest | ToLatest | ToOffset | ToTime | ShiftBy


@dataclass(frozen=True, slots=True)
class OffsetChange:
    """Change of the committed offset of one partition."""

    partition: TopicPartition
    old: int | None
    """Committed offset before the reset; None if there is none."""
    new: int | None
    """New offset; None if it is unchanged for the reason in ``note``."""
    note: str = ""
    """Remark, such as a target outside the log or records that will be handled again."""


def time_of(target: ResetTarget) -> int | None:
    """Return the timestamp to look up with ``list_offsets``; None if the target needs none."""
    return target.timestamp_ms if isinstance(target, ToTime) else None


def left_out(committed: GroupOffset) -> OffsetChange:
    """Return the unchanged offset of a partition that no longer exists."""
    return OffsetChange(
        committed.partition,
        committed.offset,
        None,
        "left out: the partition no longer exists; `tailrace offsets delete` deletes its offset",
    )


def planned_change(  # noqa: PLR0913, PLR0917 - pure function of all its arguments
    partition: TopicPartition,
    target: ResetTarget,
    committed: GroupOffset | None,
    begin: int,
    end: int,
    at_time: ListedOffset | None = None,
) -> OffsetChange:
    """Return the change that ``target`` makes in a partition whose log has offsets from ``begin`` to ``end``."""
    old = committed.offset if committed is not None else None
    match target:
        case ToEarliest():
            wanted = begin
        case ToLatest():
            wanted = end
        case ToOffset(offset):
            wanted = offset
        case ToTime():
            if at_time is None or at_time.offset < 0:
                return _change(partition, committed, end, "no record is that late; the end of the log is used")
            wanted = at_time.offset
        case ShiftBy(offsets):
            if old is None:
                return OffsetChange(partition, None, None, "left out: no committed offset to shift")
            wanted = old + offsets
        case _:
            assert_never(target)
    note = ""
    if wanted < begin:
        note = f"{wanted} is before the log; its first offset is used"
    elif wanted > end:
        note = f"{wanted} is after the log; its end is used"
    return _change(partition, committed, min(max(wanted, begin), end), note)


def _change(partition: TopicPartition, committed: GroupOffset | None, new: int, note: str) -> OffsetChange:
    """Return a change; its note counts the finished records of the discarded offset map that are handled again."""
    notes = [note] if note else []
    discarded = committed.decoded_metadata.offset_map if committed is not None else None
    if discarded is not None and (repeated := discarded.from_offset(max(new, discarded.base))) is not None:
        notes.append(f"finished records from offset {repeated.base} on are handled again: {repeated.finished_count}")
    return OffsetChange(partition, committed.offset if committed is not None else None, new, "; ".join(notes))
