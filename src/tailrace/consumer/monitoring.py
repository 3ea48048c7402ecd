"""Health, metrics, offsets and lag of a consumer. Unknown values are left out."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from operator import attrgetter
from typing import Literal, NamedTuple, TypeAlias

from tailrace.consumer.partition import AssignedPartitions, Partition
from tailrace.core.metrics import DurationMeter, Meter, MetricName
from tailrace.errors import ConfigurationError, TailraceError
from tailrace.installation import COMPILED
from tailrace.observe.events import (
    AssignmentFaultFound,
    AssignmentFaultResolved,
    CommitFailed,
    ConnectionOpened,
    CoordinatorFound,
    CoordinatorLost,
    Event,
    FetchCompleted,
    GroupJoined,
    GroupRequestCompleted,
    MetadataRefreshFailed,
    PartitionsAssigned,
    RebalanceStarted,
)
from tailrace.observe.statistics import PartitionStatistics
from tailrace.records import AnyRecord, TopicPartition

__all__ = [
    "ConsumerHealth",
    "ConsumerMetrics",
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

# ---- metrics of one consumer, under the names of Kafka's Java consumer -----------------------------------------------

_GROUP, _FETCH = "coordinator-metrics", "fetch-manager-metrics"


class ConsumerMetrics:
    """Hook that receives every event of one consumer and updates the metrics.

    Args:
        prefix: prefix of the metric groups (``metric_group_prefix``).
        client_id: tag of every metric.
        group_id: tag of the group's metrics; None without a group.
        clock: returns the time in seconds.

    Attributes:
        failed_commits: number of ``CommitFailed`` events: automatic commits that failed.
        fetch_durations: durations of fetch requests, in seconds.
        commit_durations: durations of answered commit requests, refused requests included, in seconds.
        rebalance_durations: durations from the start of a rebalance to the assignment, in seconds.
    """

    def __init__(self, prefix: str, client_id: str, group_id: str | None, clock: Callable[[], float]) -> None:
        self._prefix, self._clock = prefix, clock
        self._client_tags: tuple[tuple[str, str], ...] = (("client-id", client_id),)
        self._group_tags = self._client_tags if group_id is None else (*self._client_tags, ("group-id", group_id))
        now = clock()
        self._heartbeats, self._joins, self._syncs, self._commits = Meter(now), Meter(now), Meter(now), Meter(now)
        self._fetches, self._bytes, self._records = Meter(now), Meter(now), Meter(now)
        self._throttled, self._rebalances = Meter(now), Meter(now)
        self._by_request = {
            "Heartbeat": self._heartbeats,
            "GroupHeartbeat": self._heartbeats,
            "Join": self._joins,
            "Sync": self._syncs,
            "Commit": self._commits,
        }
        self.failed_commits = 0
        self.fetch_durations, self.commit_durations, self.rebalance_durations = (
            DurationMeter(),
            DurationMeter(),
            DurationMeter(),
        )
        self._rebalance_began_at: float | None = None

    def on_event(self, event: Event) -> None:
        now = self._clock()
        match event:
            case FetchCompleted():
                self._fetches.note(now, event.took_s * 1000)
                self.fetch_durations.note(event.took_s)
                self._bytes.note(now, event.size)
                self._records.note(now, event.records)
                self._throttled.note(now, event.throttled_s * 1000)
            case GroupRequestCompleted() if event.request in self._by_request:
                self._by_request[event.request].note(now, event.took_s * 1000)
                if event.request == "Commit":
                    self.commit_durations.note(event.took_s)
            case CommitFailed():
                self.failed_commits += 1
            case RebalanceStarted():
                self._rebalance_began_at = now
            case PartitionsAssigned() if self._rebalance_began_at is not None:
                self._rebalances.note(now, (now - self._rebalance_began_at) * 1000)
                self.rebalance_durations.note(now - self._rebalance_began_at)
                self._rebalance_began_at = None
            case _:
                pass

    @property
    def fetched_records(self) -> int:
        """Number of fetched records, counted by the offsets of their batches."""
        return int(self._records.sum)

    @property
    def fetched_bytes(self) -> int:
        """Size in bytes of the fetched batches."""
        return int(self._bytes.sum)

    def snapshot(self, partitions: AssignedPartitions) -> dict[MetricName, float]:
        now = self._clock()
        group, fetch = f"{self._prefix}-{_GROUP}", f"{self._prefix}-{_FETCH}"
        found = {MetricName(group, name, self._group_tags): value for name, value in self._group_metrics(now)}
        found[MetricName(group, "assigned-partitions", self._group_tags)] = float(len(partitions))
        found |= {MetricName(fetch, name, self._client_tags): value for name, value in self._fetch_metrics(now)}
        lags: list[float] = []
        for partition in partitions:
            topic, number = partition.topic_partition
            tags = (*self._client_tags, ("topic", topic), ("partition", str(number)))
            if (at := partition.next_offset) is None:
                continue
            if partition.last_stable_offset is not None:
                lags.append(float(max(0, partition.last_stable_offset - at)))
                found[MetricName(fetch, "records-lag", tags)] = lags[-1]
            if partition.log_start is not None:
                found[MetricName(fetch, "records-lead", tags)] = float(max(0, at - partition.log_start))
        if lags:
            found[MetricName(fetch, "records-lag-max", self._client_tags)] = max(lags)
        return found

    def _group_metrics(self, now: float) -> Iterator[tuple[str, float]]:
        yield "heartbeat-rate", self._heartbeats.rate(now)
        yield "heartbeat-total", float(self._heartbeats.count)
        yield "heartbeat-response-time-max", self._heartbeats.max(now)
        last_at = self._heartbeats.last_at
        yield "last-heartbeat-seconds-ago", -1.0 if last_at is None else now - last_at
        for name, meter in (("join", self._joins), ("sync", self._syncs)):
            yield f"{name}-rate", meter.rate(now)
            yield f"{name}-total", float(meter.count)
            yield f"{name}-time-avg", meter.mean(now)
            yield f"{name}-time-max", meter.max(now)
        yield "commit-rate", self._commits.rate(now)
        yield "commit-total", float(self._commits.count)
        yield "commit-latency-avg", self._commits.mean(now)
        yield "commit-latency-max", self._commits.max(now)
        yield "failed-commit-total", float(self.failed_commits)
        yield "rebalance-total", float(self._rebalances.count)
        yield "rebalance-latency-avg", self._rebalances.mean(now)
        yield "rebalance-latency-max", self._rebalances.max(now)
        yield "rebalance-latency-total", self._rebalances.sum

    def _fetch_metrics(self, now: float) -> Iterator[tuple[str, float]]:
        yield "fetch-rate", self._fetches.rate(now)
        yield "fetch-total", float(self._fetches.count)
        yield "fetch-latency-avg", self._fetches.mean(now)
        yield "fetch-latency-max", self._fetches.max(now)
        yield "fetch-size-avg", self._bytes.mean(now)
        yield "fetch-size-max", self._bytes.max(now)
        yield "fetch-throttle-time-avg", self._throttled.mean(now)
        yield "fetch-throttle-time-max", self._throttled.max(now)
        yield "bytes-consumed-rate", self._bytes.sum_rate(now)
        yield "bytes-consumed-total", self._bytes.sum
        yield "records-consumed-rate", self._records.sum_rate(now)
        yield "records-consumed-total", self._records.sum
        yield "records-per-request-avg", self._records.mean(now)


# ---- offsets, lag and age of the oldest unfinished record of each assigned partition ---------------------------------


def partition_statistics(
    partitions: Iterable[Partition],
    unfinished: Iterable[AnyRecord],
    next_timestamp: Callable[[TopicPartition], int | None],
    now_ms: int,
) -> tuple[PartitionStatistics, ...]:
    """Return the statistics of each partition, in order.

    Args:
        partitions: state of the partitions.
        unfinished: unfinished records that were delivered; those that ``Progress.record_at`` returns may be left out.
        next_timestamp: returns the timestamp of a partition's next buffered record; None if it is unknown.
        now_ms: present time in milliseconds since 1970.
    """
    timestamps = {(one.topic_partition, one.offset): one.timestamp for one in unfinished}
    return tuple(
        _statistics(partition, timestamps, next_timestamp, now_ms)
        for partition in sorted(partitions, key=attrgetter("topic_partition"))
    )


def _statistics(
    partition: Partition,
    timestamps: dict[tuple[TopicPartition, int], int],
    next_timestamp: Callable[[TopicPartition], int | None],
    now_ms: int,
) -> PartitionStatistics:
    (topic, number), progress, end = partition.topic_partition, partition.progress, partition.last_stable_offset
    lag = work_lag = lag_s = None
    if progress is not None and end is not None:
        # A seek changes the position but not the group's committed offset, from which Kafka's tools compute lag.
        committed = progress.finished if partition.committed is None else partition.committed
        lag = max(0, end - committed)
        work_lag = max(0, end - progress.lowest - progress.finished_after_lowest)
        lag_s = 0.0
        if progress.lowest < end:
            timestamp = _timestamp(partition, timestamps, next_timestamp)
            lag_s = None if timestamp is None or timestamp < 0 else max(0.0, (now_ms - timestamp) / 1000)
    return PartitionStatistics(
        topic=topic,
        partition=number,
        position=partition.next_offset,
        committed=partition.committed,
        end=end,
        lag=lag,
        work_lag=work_lag,
        lag_s=lag_s,
        is_paused=partition.is_paused,
        is_blocked=partition.unreadable is not None,
    )


def _timestamp(
    partition: Partition,
    timestamps: dict[tuple[TopicPartition, int], int],
    next_timestamp: Callable[[TopicPartition], int | None],
) -> int | None:
    """Return the timestamp of the record at the lowest unfinished offset; None if it is unknown."""
    assert partition.progress is not None
    lowest = partition.progress.lowest
    if (timestamp := timestamps.get((partition.topic_partition, lowest))) is not None:
        return timestamp
    if (record := partition.progress.record_at(lowest)) is not None:
        return record.timestamp
    return next_timestamp(partition.topic_partition) if lowest >= partition.progress.delivered else None


# ---- implementations that decode record batches and compute checksums ------------------------------------------------


def decoder_in_use() -> Literal["compiled", "python"]:
    return "compiled" if COMPILED else "python"


def checksum_in_use() -> Literal["hardware", "software", "unknown"]:
    """Return the implementation of CRC-32C; "unknown" before the first connection, which imports it."""
    is_hardware = getattr(sys.modules.get("tailrace.batches.record_batch"), "HARDWARE", None)
    return "unknown" if is_hardware is None else "hardware" if is_hardware else "software"


# ---- health, offsets and lag of a consumer at one point in time. Unknown values are left out -------------------------

Kind: TypeAlias = Literal["fetch", "highwater", "commit", "done"]
HealthStatus: TypeAlias = Literal["starting", "ok", "degraded", "failed"]


class ConsumerOffsets(NamedTuple):
    """Offsets of each assigned partition."""

    fetch: dict[TopicPartition, int]
    """Partitions: the offset of the next record to deliver."""
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


def offsets_of(partitions: Iterable[Partition]) -> ConsumerOffsets:
    listed = list(partitions)

    def every(get: Callable[[Partition], int | None]) -> dict[TopicPartition, int]:
        return {one.topic_partition: offset for one in listed if (offset := get(one)) is not None}

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
    for topic_partition, reason in sorted(delays.items()):
        others = f" ({len(delays) - 1} more partitions wait, too)" if len(delays) > 1 else ""
        return f"{topic_partition} is not read, because its start offset is unknown{others}: {reason}"
    return ""


class HealthTracker:
    """Hook that receives every event of one consumer and keeps the consumer's latest state."""

    def __init__(self) -> None:
        self._unreachable_reason = self._coordinator_lost_reason = self._assignment_fault = ""
        self._was_assigned = self._is_rebalancing = False

    def on_event(self, event: Event) -> None:
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
