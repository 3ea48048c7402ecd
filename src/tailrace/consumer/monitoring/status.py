"""Health, offsets and lag of a consumer at one point in time. Unknown values are left out."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from operator import attrgetter
from typing import Literal, NamedTuple, TypeAlias

from tailrace.core.delivery.positions import Position
from tailrace.errors import ConfigurationError, TailraceError
from tailrace.installation import COMPILED
from tailrace.observe.events import (
    AssignmentFaultFound,
    AssignmentFaultResolved,
    ConnectionOpened,
    CoordinatorFound,
    CoordinatorLost,
    Event,
    GroupJoined,
    MetadataRefreshFailed,
    PartitionsAssigned,
    RebalanceStarted,
)
from tailrace.observe.statistics import PartitionStatistics
from tailrace.records import AnyRecord, TopicPartition

__all__ = [
    "ConsumerHealth",
    "ConsumerOffsets",
    "HealthTracker",
    "Kind",
    "Lag",
    "checksum_in_use",
    "decoder_in_use",
    "describe_delays",
    "offsets_of",
    "offsets_of_kind",
    "partition_statistics",
]

# ---- offsets, lag and age of the oldest unfinished record of each assigned partition ---------------------------------


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


# ---- implementations that decode record batches and compute checksums ------------------------------------------------


def decoder_in_use() -> Literal["compiled", "python"]:
    """Return the decoder of record batches."""
    return "compiled" if COMPILED else "python"


def checksum_in_use() -> Literal["hardware", "software", "unknown"]:
    """Return the implementation of CRC-32C; "unknown" before the first connection, which imports it."""
    is_hardware = getattr(sys.modules.get("tailrace.batches.checksum"), "HARDWARE", None)
    return "unknown" if is_hardware is None else "hardware" if is_hardware else "software"


# ---- health, offsets and lag of a consumer at one point in time. Unknown values are left out -------------------------

Kind: TypeAlias = Literal["fetch", "highwater", "commit", "done"]
HealthStatus: TypeAlias = Literal["starting", "ok", "degraded", "failed"]


class ConsumerOffsets(NamedTuple):
    """Offsets of each assigned partition."""

    fetch: dict[TopicPartition, int]
    """Positions: the offset of the next record to deliver."""
    highwater: dict[TopicPartition, int]
    """High watermarks as of the last fetch: the offset after the last record."""
    commit: dict[TopicPartition, int]
    """Committed offsets, as last acknowledged by the broker: the offset of the next record after a restart."""
    done: dict[TopicPartition, int]
    """Lowest unfinished offsets, which the next commit contains."""


class Lag(NamedTuple):
    """Number of offsets from the position to the end of the log."""

    partitions: dict[TopicPartition, int]
    """Lag of each partition."""
    total: int
    """Sum of the lags of all partitions."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsumerHealth:
    """Health of a consumer.

    Attributes:
        status: "starting" before the group's first assignment; "degraded" while the cluster or the group's coordinator
            cannot be reached, the group rebalances, or the start offset of a partition is unknown for long
            (``StartOffsetDelayed``); "failed" once an error has ended the consumer; otherwise "ok".
        detail: reason why the status is not "ok".
        partitions: number of assigned partitions.
        heartbeat_age_s: seconds since the last acknowledged heartbeat was sent; None without a group.
    """

    status: HealthStatus
    detail: str = ""
    partitions: int = 0
    heartbeat_age_s: float | None = None

    @property
    def is_live(self) -> bool:
        """False if only a restart can help."""
        return self.status != "failed"

    @property
    def is_ready(self) -> bool:
        """False before the group's first assignment, and once an error has ended the consumer."""
        return self.status in {"ok", "degraded"}


def offsets_of(positions: Iterable[Position]) -> ConsumerOffsets:
    """Return all kinds of offsets of the positions."""
    listed = list(positions)

    def every(get: Callable[[Position], int | None]) -> dict[TopicPartition, int]:
        return {one.partition: offset for one in listed if (offset := get(one)) is not None}

    return ConsumerOffsets(
        every(lambda one: one.next_offset),
        every(lambda one: one.high_watermark),
        every(lambda one: one.committed),
        every(lambda one: one.finished),
    )


def offsets_of_kind(offsets: ConsumerOffsets, kind: str) -> dict[TopicPartition, int]:
    """Return the offsets of one kind.

    Raises:
        ConfigurationError: ``kind`` is unknown.
    """
    if kind not in ConsumerOffsets._fields:
        raise ConfigurationError(f"kind must be one of {', '.join(ConsumerOffsets._fields)}, not {kind!r}")
    found: dict[TopicPartition, int] = getattr(offsets, kind)
    return found


# ---- health of one consumer, derived from its events -----------------------------------------------------------------


def describe_delays(delays: Mapping[TopicPartition, str]) -> str:
    """Return a sentence about partitions without a start offset; an empty text if there are none."""
    for partition, reason in sorted(delays.items()):
        others = f" ({len(delays) - 1} more partitions wait, too)" if len(delays) > 1 else ""
        return f"{partition} is not read, because its start offset is unknown{others}: {reason}"
    return ""


class HealthTracker:
    """Hook that receives every event of one consumer and keeps the consumer's latest state."""

    def __init__(self) -> None:
        self._unreachable_reason = self._coordinator_lost_reason = self._assignment_fault = ""
        self._was_assigned = self._is_rebalancing = False

    def on_event(self, event: Event) -> None:
        """Update the state."""
        match event:
            case PartitionsAssigned():
                self._was_assigned, self._is_rebalancing = True, False
            case RebalanceStarted():
                self._is_rebalancing = True
            case GroupJoined():
                self._is_rebalancing = False
            case AssignmentFaultFound(reason=reason):
                self._assignment_fault = reason
            case AssignmentFaultResolved():
                self._assignment_fault = ""
            case MetadataRefreshFailed(reason=reason):
                self._unreachable_reason = reason
            case ConnectionOpened():
                self._unreachable_reason = ""
            case CoordinatorLost(reason=reason):
                self._coordinator_lost_reason = reason
            case CoordinatorFound():
                self._coordinator_lost_reason = ""
            case _:
                pass

    def health(
        self,
        failure: TailraceError | None,
        partitions: int,
        heartbeat_age_s: float | None,
        delays: Mapping[TopicPartition, str],
        *,
        is_member: bool,
    ) -> ConsumerHealth:
        """Return the consumer's health; ``delays`` are partitions without a start offset, with the reason."""
        if failure is not None:
            return ConsumerHealth(status="failed", detail=str(failure))
        trouble = self._trouble or self._assignment_fault
        if is_member and not self._was_assigned:
            return ConsumerHealth(status="starting", detail=trouble or "joining the group")
        rebalancing = "the group is rebalancing" if is_member and self._is_rebalancing else ""
        detail = trouble or rebalancing or describe_delays(delays)
        return ConsumerHealth(
            status="degraded" if detail else "ok",
            detail=detail,
            partitions=partitions,
            heartbeat_age_s=heartbeat_age_s,
        )

    @property
    def _trouble(self) -> str:
        if self._unreachable_reason or not self._coordinator_lost_reason:
            return self._unreachable_reason
        return f"group coordinator lost: {self._coordinator_lost_reason}"
