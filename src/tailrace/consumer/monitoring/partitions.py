"""Offsets, lag and age of the oldest unfinished record of each assigned partition."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from operator import attrgetter

from tailrace.core.delivery.positions import Position
from tailrace.observe.statistics import PartitionStatistics
from tailrace.records import AnyRecord, TopicPartition

__all__ = ["partition_statistics"]


def partition_statistics(
    positions: Iterable[Position],
    unfinished: Iterable[AnyRecord],
    next_timestamp: Callable[[TopicPartition], int | None],
    now_ms: int,
) -> tuple[PartitionStatistics, ...]:
    """Return the statistics of each partition, in order.

    Args:
        positions: positions of the partitions.
        unfinished: unfinished records that were delivered; those that ``Progress.record_at`` returns may be left out.
        next_timestamp: returns the timestamp of a partition's next buffered record; None if it is unknown.
        now_ms: present time in milliseconds since 1970.
    """
    timestamps = {(one.topic_partition, one.offset): one.timestamp for one in unfinished}
    return tuple(
        _statistics(position, timestamps, next_timestamp, now_ms)
        for position in sorted(positions, key=attrgetter("partition"))
    )


def _statistics(
    position: Position,
    timestamps: dict[tuple[TopicPartition, int], int],
    next_timestamp: Callable[[TopicPartition], int | None],
    now_ms: int,
) -> PartitionStatistics:
    (topic, number), progress, end = position.partition, position.progress, position.last_stable_offset
    lag = work_lag = lag_s = None
    if progress is not None and end is not None:
        # A seek changes the position but not the group's committed offset, from which Kafka's tools compute lag.
        committed = progress.finished if position.committed is None else position.committed
        lag = max(0, end - committed)
        work_lag = max(0, end - progress.lowest - progress.finished_after_lowest)
        lag_s = 0.0
        if progress.lowest < end:
            timestamp = _timestamp(position, timestamps, next_timestamp)
            lag_s = None if timestamp is None or timestamp < 0 else max(0.0, (now_ms - timestamp) / 1000)
    return PartitionStatistics(
        topic=topic,
        partition=number,
        position=position.next_offset,
        committed=position.committed,
        end=end,
        lag=lag,
        work_lag=work_lag,
        lag_s=lag_s,
        is_paused=position.is_paused,
        is_blocked=position.unreadable is not None,
    )


def _timestamp(
    position: Position,
    timestamps: dict[tuple[TopicPartition, int], int],
    next_timestamp: Callable[[TopicPartition], int | None],
) -> int | None:
    """Return the timestamp of the record at the lowest unfinished offset; None if it is unknown."""
    assert position.progress is not None
    lowest = position.progress.lowest
    if (timestamp := timestamps.get((position.partition, lowest))) is not None:
        return timestamp
    if (record := position.progress.record_at(lowest)) is not None:
        return record.timestamp
    return next_timestamp(position.partition) if lowest >= position.progress.delivered else None
