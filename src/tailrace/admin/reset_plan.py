"""What a reset of offsets would do, decided without asking anybody.

Rule of this file: pure. A target outside of the log is taken back to its nearer end, as Kafka's own tool does, and the
change says so; nothing is committed that a reader could not read from.
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

_MOST = (1 << 63) - 1


@dataclass(frozen=True, slots=True)
class ToEarliest:
    """To the first record that the log holds."""


@dataclass(frozen=True, slots=True)
class ToLatest:
    """To the end: what is there is passed over."""


@dataclass(frozen=True, slots=True)
class ToOffset:
    """To one offset, in every partition."""

    offset: int

    def __post_init__(self) -> None:
        if not 0 <= self.offset <= _MOST:
            raise ConfigurationError(f"offset {self.offset} will not do: it has to be a whole number, 0 or more")


@dataclass(frozen=True, slots=True)
class ToTime:
    """To the first record that is not older than a time, by the records' own timestamps."""

    timestamp_ms: int
    """Since the epoch."""

    def __post_init__(self) -> None:
        if not 0 <= self.timestamp_ms <= _MOST:
            raise ConfigurationError(f"time {self.timestamp_ms} will not do: it has to be 1970 or later")

    @classmethod
    def ago(cls, seconds: float, *, now: float) -> Self:
        """To what is at most so old; ``now`` is in seconds since the epoch, as ``time.time()`` says it.

        Raises:
            ConfigurationError: it is no duration.
        """
        if not 0 <= seconds <= now:
            raise ConfigurationError(
                f"a duration of {seconds:g} seconds will not do: it has to end after 1970, before now"
            )
        return cls(int((now - seconds) * 1000))


@dataclass(frozen=True, slots=True)
class ShiftBy:
    """By so many offsets from what is committed; backwards below 0."""

    offsets: int

    def __post_init__(self) -> None:
        if not self.offsets or abs(self.offsets) > _MOST:
            raise ConfigurationError(f"a shift by {self.offsets} will not do: say how many offsets, -100 or 100")


ResetTarget: TypeAlias = ToEarliest | ToLatest | ToOffset | ToTime | ShiftBy


@dataclass(frozen=True, slots=True)
class OffsetChange:
    """What a reset does to one partition."""

    partition: TopicPartition
    old: int | None
    """None where nothing is committed."""
    new: int | None
    """None where it stays as it is; ``note`` says why."""
    note: str = ""
    """What is worth knowing: that a target was outside of the log, or what will be handled again."""


def time_of(target: ResetTarget) -> int | None:
    """What to ask ``list_offsets`` for, besides the two ends."""
    return target.timestamp_ms if isinstance(target, ToTime) else None


def left_out(committed: GroupOffset) -> OffsetChange:
    """What is committed of a partition that no longer exists stays as it is."""
    return OffsetChange(
        committed.partition,
        committed.offset,
        None,
        "left out: it no longer exists; `tailrace offsets delete` forgets it",
    )


def planned_change(  # noqa: PLR0913, PLR0917 - all that it depends on
    partition: TopicPartition,
    target: ResetTarget,
    committed: GroupOffset | None,
    begin: int,
    end: int,
    at_time: ListedOffset | None = None,
) -> OffsetChange:
    """Where ``target`` is in a partition whose log goes from ``begin`` to ``end``."""
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
                return _noting(partition, committed, end, "no record is so late: the end")
            wanted = at_time.offset
        case ShiftBy(offsets):
            if old is None:
                return OffsetChange(partition, None, None, "left out: nothing is committed to shift from")
            wanted = old + offsets
        case _:
            assert_never(target)
    note = ""
    if wanted < begin:
        note = f"{wanted} is before the log: its beginning"
    elif wanted > end:
        note = f"{wanted} is behind the log: its end"
    return _noting(partition, committed, min(max(wanted, begin), end), note)


def _noting(partition: TopicPartition, committed: GroupOffset | None, new: int, note: str) -> OffsetChange:
    """A map of what is finished beyond the old offset is not kept: to reset is to begin from there."""
    forgotten = committed.finished_beyond if committed is not None else 0
    said = [note] if note else []
    if committed is not None and forgotten and new <= committed.offset:
        said.append(f"{forgotten} finished beyond {committed.offset} are handled again")
    return OffsetChange(partition, committed.offset if committed is not None else None, new, "; ".join(said))
