"""Statistics of apps, their handlers and consumers: snapshots, as plain data.

``observe.metrics`` describes each number. Counters begin at 0 when the app or consumer is started.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import accumulate
from typing import Literal, TypeAlias

__all__ = [
    "DURATION_BOUNDS_S",
    "AppStatistics",
    "ConsumerStatistics",
    "Durations",
    "GroupStatistics",
    "HandlerStatistics",
    "PartitionStatistics",
    "PoolStatistics",
]

DURATION_BOUNDS_S = (
    *(0.00001, 0.0001, 0.001, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5),
    *(1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0),
)
"""Upper bounds of the buckets of all durations, in seconds; the last bucket has no bound."""

Decoder: TypeAlias = Literal["compiled", "python", "unknown"]
Checksum: TypeAlias = Literal["hardware", "software", "unknown"]


@dataclass(frozen=True, slots=True)
class Durations:
    """Histogram of durations in seconds."""

    sum_s: float = 0.0
    """Sum of all durations."""
    counts: tuple[int, ...] = (0,) * (len(DURATION_BOUNDS_S) + 1)
    """Number of durations in each bucket of ``DURATION_BOUNDS_S``, and above the last bound."""

    @property
    def count(self) -> int:
        """Number of durations."""
        return sum(self.counts)

    @property
    def mean_s(self) -> float | None:
        """Mean duration; None if there is none."""
        return self.sum_s / count if (count := self.count) else None

    def cumulative(self) -> tuple[int, ...]:
        """Return for each bucket the number of durations up to its upper bound."""
        return tuple(accumulate(self.counts))

    def __add__(self, other: Durations) -> Durations:
        return Durations(
            self.sum_s + other.sum_s, tuple(one + two for one, two in zip(self.counts, other.counts, strict=True))
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionStatistics:
    """Offsets and lag of an assigned partition; None for unknown values.

    End offset, and so lag, are as of the last fetch. While the partition is not fetched, for example because it is
    paused, they are as of at most five seconds after the statistics were read before.
    """

    topic: str
    partition: int
    position: int | None = None
    """Offset of the next record to start."""
    committed: int | None = None
    """Committed offset, as last acknowledged by the broker."""
    end: int | None = None
    """End offset of the log; with ``read_committed``, the last stable offset."""
    lag: int | None = None
    """Number of offsets from the committed offset to the end; without one, from the lowest unfinished offset."""
    work_lag: int | None = None
    """Number of offsets up to the end that are not finished, whether or not an earlier one holds up the commit."""
    lag_s: float | None = None
    """Age of the oldest unfinished record by its timestamp; 0 if all records are finished."""
    is_paused: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsumerStatistics:
    """Buffers, partitions and requests of a consumer."""

    client_id: str
    group_id: str | None
    queued_records: int
    """Number of records that are decoded but not yet delivered; at most ``max_queued_records``."""
    buffered_bytes: int
    """Number of bytes that are fetched but not yet decoded."""
    reserved_bytes: int
    """Number of bytes reserved for fetches in flight; at most ``max_buffered_bytes`` with ``buffered_bytes``."""
    ignored_maps: int
    """Number of commits whose metadata was foreign, unreadable or of another log; see ``OffsetMapIgnored``."""
    partitions: tuple[PartitionStatistics, ...] = ()
    """Assigned partitions, in order."""
    fetched_records: int = 0
    """Number of offsets in the fetched batches."""
    fetched_bytes: int = 0
    """Size of the fetched batches."""
    fetches: Durations = field(default_factory=Durations)
    """Durations of fetches, including the broker's wait for records of up to ``fetch_max_wait_ms``."""
    commits: Durations = field(default_factory=Durations)
    """Durations of commit requests until the broker's answer, refused ones included."""
    failed_commits: int = 0
    rebalances: Durations = field(default_factory=Durations)
    """Durations of rebalances, from the start of the member's join to its assignment."""
    heartbeat_age_s: float | None = None
    """Seconds since the last acknowledged heartbeat was sent; None without a group."""
    decoder: Decoder = "unknown"
    """Decoder of record batches in use; unknown until the consumer has connected."""
    checksum: Checksum = "unknown"
    """Implementation of CRC-32C in use."""

    @property
    def assigned_partitions(self) -> int:
        """Number of assigned partitions."""
        return len(self.partitions)

    @property
    def work_lag(self) -> int:
        """Sum of the known work lags of all partitions."""
        return sum(one.work_lag or 0 for one in self.partitions)

    @property
    def lag_s(self) -> float:
        """Age of the oldest unfinished record of all partitions; 0 if none is known."""
        return max((one.lag_s or 0.0 for one in self.partitions), default=0.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class HandlerStatistics:
    """Work of a handler."""

    group_id: str
    handler: str
    concurrency: int
    """Maximum number of records, or batches, that run at once."""
    records: int = 0
    """Number of records handled successfully."""
    batches: int | None = None
    """Number of batches that were handled without a failed record; None for a handler of single records."""
    calls: Durations = field(default_factory=Durations)
    """Durations of calls, failed calls included, each for one record or batch.

    Records of a handler that does not suspend are measured together, and counted with their mean.
    """
    in_flight: int = 0
    """Number of records that run or wait for their next attempt."""
    waiting: int = 0
    """Number of records that were read and have not started."""
    failures: int = 0
    """Number of failed attempts; each failed record of a batch counts."""
    retries: int = 0
    """Number of further attempts in place; each record of a batch counts."""
    delayed: int = 0
    """Number of failed records that were published to a retry topic."""
    dead_letters: int = 0
    """Number of failed records that were published to the dead-letter topic."""
    skipped: int = 0
    """Number of failed records that were skipped."""
    is_paused: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupStatistics:
    """Records of a group that no handler has finished."""

    group_id: str
    unmatched: int = 0
    """Number of records skipped because no handler's ``when=`` accepts them."""
    blocked: int = 0
    """Number of records that failed for good and block their lane, because no topic takes them."""
    stalled_s: float = 0.0
    """Seconds for which no transaction was committed although there are records; 0 below a limit."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AppStatistics:
    """Handlers, groups and event loop of an app."""

    is_live: bool = True
    is_ready: bool = False
    handlers: tuple[HandlerStatistics, ...] = ()
    groups: tuple[GroupStatistics, ...] = ()
    consumers: tuple[ConsumerStatistics, ...] = ()
    """Statistics of the consumer of each group; empty with a substitute for Kafka, as in tests."""
    loop_lag: Durations = field(default_factory=Durations)
    """Delays of timers by a busy event loop; sampled four times in ``heartbeat_interval_ms``."""
    loop_blocked_s: float = 0.0
    """Seconds for which the event loop has been blocked; 0 if it is not blocked for long."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolStatistics:
    """Statistics of the workers of a pool."""

    workers: Mapping[int, AppStatistics | None] = field(default_factory=dict)
    """Statistics of each worker; None for a worker that does not run or did not answer in time."""
    restarts: Mapping[int, int] = field(default_factory=dict)
    """Number of restarts of each worker."""
