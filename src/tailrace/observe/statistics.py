"""Statistics of apps, handlers, consumers, producers and worker pools, as immutable snapshots.

The fields are also metrics; see ``observe.metrics``. Counters begin at 0 when the app or consumer is started.
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
    "ProducerStatistics",
]

DURATION_BOUNDS_S = (
    *(0.00001, 0.0001, 0.001, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5),
    *(1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0),
)
"""Upper bounds of the buckets of all histograms, in seconds; one more bucket has no upper bound."""

Decoder: TypeAlias = Literal["compiled", "python", "unknown"]
Checksum: TypeAlias = Literal["hardware", "software", "unknown"]


@dataclass(frozen=True, slots=True)
class Durations:
    """Histogram of durations in seconds."""

    sum_s: float = 0.0
    """Sum of all durations."""
    counts: tuple[int, ...] = (0,) * (len(DURATION_BOUNDS_S) + 1)
    """Number of durations in each bucket; the last bucket is for those longer than all of ``DURATION_BOUNDS_S``."""

    @property
    def count(self) -> int:
        """Number of durations."""
        return sum(self.counts)

    @property
    def mean_s(self) -> float | None:
        """Mean duration in seconds; None if there are no durations."""
        return self.sum_s / count if (count := self.count) else None

    def cumulative(self) -> tuple[int, ...]:
        """Return the number of durations up to the upper bound of each bucket."""
        return tuple(accumulate(self.counts))

    def __add__(self, other: Durations) -> Durations:
        return Durations(
            self.sum_s + other.sum_s, tuple(one + two for one, two in zip(self.counts, other.counts, strict=True))
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionStatistics:
    """Offsets and lag of an assigned partition; unknown values are None.

    The end offset is the one in the last fetch response. For a partition that is not fetched, such as a paused one, a
    call of ``statistics()`` causes a request for the end offset within five seconds.
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
    """End offset minus committed offset; without a committed offset, end offset minus lowest unfinished offset."""
    work_lag: int | None = None
    """Number of unfinished offsets before the end offset; finished offsets that are not committed do not count."""
    lag_s: float | None = None
    """Age in seconds of the oldest unfinished record, by its timestamp; 0 if all records are finished."""
    is_paused: bool = False
    is_blocked: bool = False
    """True if the partition waits at a batch that cannot be read (``on_corrupt_batch="pause"``)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ProducerStatistics:
    """Buffer, records and requests of a producer."""

    client_id: str
    buffered_records: int
    """Number of records that are not acknowledged."""
    buffered_bytes: int
    """Size of these records before compression; from ``buffer_memory`` on, calls wait."""
    waiting_records: int
    """Number of records that wait for memory."""
    requests_in_flight: int
    buffer_memory: int
    """Option ``buffer_memory``: maximum of ``buffered_bytes``."""
    published_records: int = 0
    """Number of acknowledged records; with ``acks=0``, of records that were sent."""
    published_bytes: int = 0
    """Size of the batches of these records, after compression."""
    uncompressed_bytes: int = 0
    """Size of these batches before compression."""
    published_batches: int = 0
    """Number of these batches."""
    failed_records: int = 0
    """Number of records that were added to a batch, and refused or not acknowledged in time."""
    retried_batches: int = 0
    """Number of repeated attempts to send a batch."""
    requests: Durations = field(default_factory=Durations)
    """Durations of Produce requests until the broker's answer."""
    queue_times: Durations = field(default_factory=Durations)
    """Durations from the first record of a batch until the batch is sent for the first time."""
    throttled_s: float = 0.0
    """Seconds for which brokers have throttled this producer because of a quota."""


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
    """Number of bytes reserved for fetches in flight; with ``buffered_bytes``, at most ``max_buffered_bytes``."""
    ignored_maps: int
    """Number of commits of assigned partitions whose metadata is not a usable offset map.

    It is from the user or another client (``ForeignMetadataFound``), or it is unreadable or lists records that the
    log does not contain (``OffsetMapIgnored``).
    """
    partitions: tuple[PartitionStatistics, ...] = ()
    """Assigned partitions, in order."""
    fetched_records: int = 0
    """Number of offsets in the fetched batches; where the log has gaps, there are fewer records."""
    fetched_bytes: int = 0
    """Size of the fetched batches, in bytes."""
    fetches: Durations = field(default_factory=Durations)
    """Durations of fetches, including the broker's wait for records of up to ``fetch_max_wait_ms``."""
    commits: Durations = field(default_factory=Durations)
    """Durations of commit requests until the broker's answer, including refused ones."""
    failed_commits: int = 0
    """Number of commits that were refused or not answered."""
    skipped_batches: int = 0
    """Number of batches that could not be read and were skipped (``on_corrupt_batch="skip"``)."""
    rebalances: Durations = field(default_factory=Durations)
    """Durations of rebalances, from the member's revocation or join to its assignment."""
    heartbeat_age_s: float | None = None
    """Seconds since the last acknowledged heartbeat was sent; None without a group."""
    decoder: Decoder = "unknown"
    """Decoder of record batches in use; "unknown" until the consumer has connected."""
    checksum: Checksum = "unknown"
    """Implementation of CRC-32C in use; "unknown" until the consumer has connected."""

    @property
    def assigned_partitions(self) -> int:
        """Number of assigned partitions."""
        return len(self.partitions)

    @property
    def work_lag(self) -> int:
        """Sum of the known values of ``work_lag`` of all partitions."""
        return sum(one.work_lag or 0 for one in self.partitions)

    @property
    def lag_s(self) -> float:
        """Age in seconds of the oldest unfinished record of all partitions; 0 if no age is known."""
        return max((one.lag_s or 0.0 for one in self.partitions), default=0.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class HandlerStatistics:
    """Records and calls of a handler."""

    group_id: str
    handler: str
    concurrency: int
    """Maximum number of calls at the same time, each for one record or one batch."""
    records: int = 0
    """Number of records handled successfully."""
    batches: int | None = None
    """Number of batches that were handled without a failed record; None for a handler of single records."""
    calls: Durations = field(default_factory=Durations)
    """Durations of calls, including failed ones; a call handles one record or one batch.

    Calls that do not suspend are measured together, and each is counted with their mean duration.
    """
    in_flight: int = 0
    """Number of records whose handler runs, or that wait for their next attempt."""
    waiting: int = 0
    """Number of records that were delivered to the app and whose handler is not called yet."""
    failures: int = 0
    """Number of failed attempts to handle a record; in a batch, each failed record counts."""
    retries: int = 0
    """Number of repeated attempts to handle a record, except those from a retry topic.

    In a batch, each record counts.
    """
    delayed: int = 0
    """Number of failed records that were published to a retry topic."""
    dead_letters: int = 0
    """Number of failed records that were published to the dead-letter topic."""
    skipped: int = 0
    """Number of failed records that were skipped."""
    is_paused: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupStatistics:
    """Records of a group that are skipped or block their lane, and time without a committed transaction."""

    group_id: str
    unmatched: int = 0
    """Number of records skipped because no handler's ``when=`` accepts them."""
    blocked: int = 0
    """Number of records that failed for good and block their lane.

    These records have no dead-letter topic, or could not be published to it or to a retry topic.
    """
    stalled_s: float = 0.0
    """Seconds for which the group has had records but committed no transaction.

    0 for the first three transaction timeouts.
    """


@dataclass(frozen=True, slots=True, kw_only=True)
class AppStatistics:
    """Handlers, groups and event loop of an app."""

    is_live: bool = True
    """False if the app needs a restart."""
    is_ready: bool = False
    handlers: tuple[HandlerStatistics, ...] = ()
    groups: tuple[GroupStatistics, ...] = ()
    consumers: tuple[ConsumerStatistics, ...] = ()
    """Statistics of the consumer of each group; empty in a ``TestApp``, which has no consumers."""
    producers: tuple[ProducerStatistics, ...] = ()
    """Statistics of the app's producer, and with exactly_once, of the transactional producer of each group.

    Empty in a ``TestApp``, which has no producers.
    """
    loop_lag: Durations = field(default_factory=Durations)
    """Delays with which the event loop calls a timer, measured four times per ``heartbeat_interval_ms``."""
    loop_blocked_s: float = 0.0
    """Seconds for which the event loop has been blocked; 0 until ``heartbeat_interval_ms`` has passed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolStatistics:
    """Statistics of the workers of a pool."""

    workers: Mapping[int, AppStatistics | None] = field(default_factory=dict)
    """Statistics of each worker, by its number; None if the worker does not run or did not answer in time."""
    restarts: Mapping[int, int] = field(default_factory=dict)
    """Number of restarts of each worker, by the number of the worker."""
