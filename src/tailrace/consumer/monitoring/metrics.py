"""Metrics of one consumer, under the names of Kafka's Java consumer.

All counts and durations come from events, so that a user's hook can measure the same. Lag, lead (the distance from the
first offset of the log) and the number of assigned partitions are read when a snapshot is taken. Durations in a
snapshot are in milliseconds, as in Kafka.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from tailrace.core.delivery.positions import Position, Positions
from tailrace.core.metrics import DurationMeter, Meter, MetricName
from tailrace.observe.events import (
    CommitFailed,
    Event,
    FetchCompleted,
    GroupRequestCompleted,
    PartitionsAssigned,
    RebalanceStarted,
)

__all__ = ["ConsumerMetrics"]

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
        """Update the metrics after an event."""
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

    def snapshot(self, positions: Positions) -> dict[MetricName, float]:
        """Return the current value of each metric."""
        now = self._clock()
        group = dict(self._group_metrics(now))
        found = {MetricName(f"{self._prefix}-{_GROUP}", name, self._group_tags): value for name, value in group.items()}
        found[MetricName(f"{self._prefix}-{_GROUP}", "assigned-partitions", self._group_tags)] = float(len(positions))
        for name, value in self._fetch_metrics(now):
            found[MetricName(f"{self._prefix}-{_FETCH}", name, self._client_tags)] = value
        lags = {one.partition: lag for one in positions if (lag := _lag(one)) is not None}
        for partition, lag in lags.items():
            tags = (*self._client_tags, ("topic", partition.topic), ("partition", str(partition.partition)))
            found[MetricName(f"{self._prefix}-{_FETCH}", "records-lag", tags)] = float(lag)
        for position in positions:
            if position.next_offset is not None and position.log_start is not None:
                topic, number = position.partition
                tags = (*self._client_tags, ("topic", topic), ("partition", str(number)))
                lead = float(max(0, position.next_offset - position.log_start))
                found[MetricName(f"{self._prefix}-{_FETCH}", "records-lead", tags)] = lead
        if lags:
            found[MetricName(f"{self._prefix}-{_FETCH}", "records-lag-max", self._client_tags)] = float(
                max(lags.values())
            )
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


def _lag(position: Position) -> int | None:
    if position.next_offset is None or position.last_stable_offset is None:
        return None
    return max(0, position.last_stable_offset - position.next_offset)
