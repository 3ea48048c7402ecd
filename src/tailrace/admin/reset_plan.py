"""Planning of an offset reset, without IO.

As in Kafka's tool, a target before the log is replaced by the first offset, and a target after the log by the end
offset. ``OffsetChange.note`` then contains the original target.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Self, TypeAlias, assert_never

from tailrace.admin.offsets import GroupOffset
from tailrace.errors import ConfigurationError
from tailrace.protocol.records import ListedOffset
from tailrace.records import TopicPartition

__all__ = [
    "OffsetChange",
    "ResetTarget",
    "ShiftBy",
    "ToEarliest",
    "ToLatest",
    "ToOffset",
    "ToTime",
    "change_of_missing_partition",
    "plan_change",
    "target_time_ms",
]

_MAX = (1 << 63) - 1


@dataclass(frozen=True, slots=True)
class ToEarliest:
    """Reset to the first offset of the log."""


@dataclass(frozen=True, slots=True)
class ToLatest:
    """Reset to the end of the log, so that the group skips all records in the log."""


@dataclass(frozen=True, slots=True)
class ToOffset:
    """Reset to the same offset in all partitions."""

    offset: int

    def __post_init__(self) -> None:
        if not 0 <= self.offset <= _MAX:
            raise ConfigurationError(f"offset must be from 0 to {_MAX}, not {self.offset}")


@dataclass(frozen=True, slots=True)
class ToTime:
    """Reset to the first record that is not older than a timestamp."""

    timestamp_ms: int
    """Timestamp in milliseconds since 1970."""

    def __post_init__(self) -> None:
        if not 0 <= self.timestamp_ms <= _MAX:
            raise ConfigurationError(f"timestamp_ms must be from 0 to {_MAX}, not {self.timestamp_ms}")

    @classmethod
    def ago(cls, seconds: float, *, now: float) -> Self:
        """Return the target that is ``seconds`` before ``now``; ``now`` is in seconds since 1970.

        Raises:
            ConfigurationError: ``seconds`` is negative, or greater than ``now``.
        """
        if not 0 <= seconds <= now:
            raise ConfigurationError(f"a duration must be from 0 to the time since 1970, not {seconds:g} seconds")
        return cls(int((now - seconds) * 1000))


@dataclass(frozen=True, slots=True)
class ShiftBy:
    """Move the committed offsets by a number of offsets, backward if the number is negative."""

    offsets: int

    def __post_init__(self) -> None:
        if not self.offsets or abs(self.offsets) > _MAX:
            raise ConfigurationError(f"a shift must be a number of offsets, such as -100 or 100, not {self.offsets}")


ResetTarget: TypeAlias = ToEarliest | ToLatest | ToOffset | ToTime | ShiftBy


@dataclass(frozen=True, slots=True)
class OffsetChange:
    """Change of the committed offset of one partition."""

    partition: TopicPartition
    old: int | None
    """Committed offset before the reset; None if there is none."""
    new: int | None
    """New offset; None if the reset does not change the partition, for the reason in ``note``."""
    note: str = ""
    """Explanation, for example that the target is outside the log; may be empty."""


def target_time_ms(target: ResetTarget) -> int | None:
    """Return the timestamp of ``target``, to look up with ``list_offsets``; None if the target is not a time."""
    return target.timestamp_ms if isinstance(target, ToTime) else None


def change_of_missing_partition(committed: GroupOffset) -> OffsetChange:
    """Return the entry of the plan for a partition that no longer exists; its committed offset remains."""
    return OffsetChange(
        committed.partition,
        committed.offset,
        None,
        "left out: the partition no longer exists; `tailrace offsets delete` deletes its offset",
    )


def plan_change(  # noqa: PLR0913, PLR0917 - pure function of all its arguments
    partition: TopicPartition,
    target: ResetTarget,
    committed: GroupOffset | None,
    begin: int,
    end: int,
    at_time: ListedOffset | None = None,
) -> OffsetChange:
    """Return the change of one partition.

    Args:
        partition: partition.
        target: target of the reset.
        committed: committed offset; None if there is none.
        begin: first offset of the log.
        end: end offset of the log.
        at_time: offset of the first record at or after the time of a ``ToTime``; None for other targets.
    """
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
    """Return a change; add a note about finished records that will be handled again.

    These are the records from the new offset on that the discarded offset map lists as finished.
    """
    notes = [note] if note else []
    discarded = committed.decoded_metadata.offset_map if committed is not None else None
    if discarded is not None and (repeated := discarded.from_offset(max(new, discarded.base))) is not None:
        notes.append(f"finished records from offset {repeated.base} on are handled again: {repeated.finished_count}")
    return OffsetChange(partition, committed.offset if committed is not None else None, new, "; ".join(notes))
