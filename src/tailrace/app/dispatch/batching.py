"""Assembly and order of the batches of batch handlers. Pure: no clock, IO or logging.

A batch is due when it is full (``max_records`` or ``max_bytes``), when its first record has waited for ``max_wait_ms``,
or when no more records can be added or are expected. ``order_by`` decides which records a batch may contain, and when
the next batch may start:

| ``order_by``  | records of a batch | the next batch may start                                 |
|---------------|--------------------|----------------------------------------------------------|
| ``partition`` | one partition      | when the previous batch of its partition is finished     |
| ``key``       | one partition      | at once, without records whose key is in a running batch |
| ``none``      | all partitions     | at once                                                  |

Records without a key count as records of one key, as in ``app.dispatch.lanes``. A key is *busy* while a batch with a
record of this key runs. Records are processed one by one only if bytes are counted or keys are looked up; otherwise the
cost is per slice.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Collection, Iterable, Sequence
from heapq import heapify, heappop, heappush
from itertools import count
from typing import TypeAlias

from tailrace.app.policies import Batch, OrderBy
from tailrace.core.progress import Lease
from tailrace.records import Record, TopicPartition

__all__ = ["BatchAssembler", "HandlerBatch", "size_of"]

Key: TypeAlias = bytes | None

_STALE_ALLOWED = 64
"""Number of outdated entries that the heap of due times may always have, even if there are few partitions."""


class HandlerBatch:
    """Records to be handled together.

    Attributes:
        pool: pool that the records were taken from.
        records: records that are not finished, in the order in which they were added.
        leases: leases of these records. A lease has one partition; a partition may have several leases.
        is_shrunk: True if only some records are not finished; these were started by offset.
        failing: number of records that will be retried, by partition; empty unless the batch failed.
        keys: keys of the records with ``order_by="key"``, otherwise empty.
    """

    __slots__ = ("failing", "is_shrunk", "keys", "leases", "pool", "records")

    def __init__(self, pool: _Pool) -> None:
        self.pool = pool
        self.records: list[Record] = []
        self.leases: list[Lease] = []
        self.failing: Counter[TopicPartition] = Counter()
        self.keys: frozenset[Key] = frozenset()
        self.is_shrunk = False


class _BatchSlice:
    """Lease whose untaken records wait for a batch, and the time at which it was added."""

    __slots__ = ("lease", "since")

    def __init__(self, lease: Lease, since: float) -> None:
        self.lease, self.since = lease, since


class _Pool:
    """Waiting records that may form a batch together: those of one partition, or of all with ``order_by="none"``."""

    __slots__ = ("blocked", "busy_keys", "count", "due", "is_busy", "is_ready", "size", "slices")

    def __init__(self) -> None:
        self.slices: deque[_BatchSlice] = deque()
        self.count = self.size = 0
        """Number of waiting records, and their size in bytes if ``max_bytes`` is set."""
        self.is_busy = False
        """True while a batch runs, with ``order_by="partition"``: no other batch of the pool may start."""
        self.busy_keys: set[Key] = set()
        self.blocked = 0
        """Number of waiting records whose key is busy, at the last count."""
        self.is_ready = False
        """True if a batch is due and may start now."""
        self.due: float | None = None
        """Time at which the next batch is due; None if it is due now, or if no waiting record may run."""


class BatchAssembler:
    """Queue of the records of one batch handler, which are taken as batches.

    Args:
        order_by: order in which records are handled.
        limits: limits of a batch.
        window: maximum number of records that wait in this queue or for their next attempt; raised to ``max_records``
            if lower.
        ahead: with ``order_by="partition"``, maximum number of additional records that may wait until the running batch
            of their partition is finished.
        on_full: called when a partition accepts no more records, because too many of its records have failed or wait
            for a busy key. The arguments are a failed record and the number of these records.

    Attributes:
        waiting: number of records that wait in this queue.
        failing: number of records in failed batches that will be retried; always 0 with ``order_by="partition"``.
    """

    def __init__(
        self,
        order_by: OrderBy,
        limits: Batch,
        *,
        window: int,
        ahead: int,
        on_full: Callable[[Record, int], object] = lambda _record, _stuck: None,
    ) -> None:
        self.limits, self.window = limits, max(window, limits.max_records)
        self.waiting = self.failing = 0
        self._on_full, self._failing_of = on_full, Counter[TopicPartition]()
        self._wait_s = limits.max_wait_ms / 1000
        self._is_by_partition, self._is_by_key = order_by == "partition", order_by == "key"
        self._pools: dict[TopicPartition | None, _Pool] = {}
        self._most_ahead, self._ahead = ahead, 0
        """Maximum and present number of records that wait until the running batch of their partition is finished."""
        self._ready: deque[_Pool] = deque()
        """Pools with ``is_ready`` set, the next to run first."""
        self._dues: list[tuple[float, int, _Pool]] = []
        """Heap of due times, serial numbers and pools. An entry is outdated if its pool has another due time."""
        self._numbers = count()
        self._is_hurried = False
        """True from ``hurry`` to the next ``add``."""

    # ---- adding ------------------------------------------------------------------------------------------------

    def add(self, lease: Lease, now: float) -> None:
        """Add the next records of a partition, at most ``room_of``."""
        self._is_hurried = False
        key = self._pool_key(lease.partition)
        pool = self._pools.get(key)
        if pool is None:
            pool = self._pools[key] = _Pool()
        pool.slices.append(_BatchSlice(lease, now))
        self._change_counts(pool, lease.count, 0 if self.limits.max_bytes is None else self._size(lease.rest))
        self._schedule(pool)

    def hurry(self) -> None:
        """Make all batches due, because no more records are expected until the waiting records are finished.

        A record that has to wait until a running batch is finished is due then.
        """
        if not self._is_hurried:
            self._is_hurried = True
            for pool in self._pools.values():
                self._schedule(pool)

    def room_of(self, partition: TopicPartition) -> int:
        """Return how many records of a partition may be added now.

        With ``order_by="key"`` or ``"none"``, a partition may have up to twice as many records that failed or wait for
        a busy key as there are free places; see ``app.dispatch.lanes.Lanes.room_of``. A partition without waiting or
        failed records always has room for one record.
        """
        pool = self._pools.get(self._pool_key(partition))
        most = self.limits.max_records
        left = self.window - self.waiting + self._ahead - self.failing
        if not self._is_by_partition:
            stuck = self._stuck_of(partition)
            is_held = stuck or (pool is not None and pool.count)
            return max(0 if is_held else 1, min(most, (2 * left - stuck + 2) // 3))
        if pool is None:
            return max(0, min(most, left))
        if self.limits.max_bytes is not None and pool.size >= self.limits.max_bytes:
            return 0
        return max(0, min(most - pool.count, self._most_ahead - self._ahead if pool.is_busy else left))

    # ---- batches -----------------------------------------------------------------------------------------------

    def take(self, now: float) -> HandlerBatch | None:
        """Take the next batch that is due and return it; None if no batch is due and may start."""
        while (due := self._next_due()) is not None:
            if due[0] > now and (self._ready or not self._is_window_full):
                break
            heappop(self._dues)
            self._make_ready(due[2])
        while self._ready:
            pool = self._ready.popleft()
            pool.is_ready = False
            if pool.slices:
                return self._take_from(pool)
        return None

    @property
    def due_at(self) -> float | None:
        """Time at which the next batch is due; 0 if a batch is due now, None if no waiting record may run."""
        if self._ready:
            return 0.0
        due = self._next_due()
        return None if due is None else due[0]

    def failed(self, batch: HandlerBatch) -> None:
        """Count the records of a batch as failing until they are finished, because they will be retried.

        With ``order_by="partition"``, do nothing: no later records of the partition are handled before the batch.
        """
        if self._is_by_partition:
            return
        self._count_failing(batch, batch.records)
        blocked = sum(pool.blocked for pool in self._pools.values())
        for partition in batch.failing:
            stuck = self._stuck_of(partition)
            if stuck >= 2 * (self.window - blocked - self.failing):
                self._on_full(next(one for one in batch.records if one.topic_partition == partition), stuck)

    def shrink(self, batch: HandlerBatch, records: list[Record]) -> None:
        """Finish the records of a running batch except ``records``, which stay in flight."""
        if len(records) == len(batch.records):
            return
        if not batch.is_shrunk:
            batch.is_shrunk = True
            for lease in batch.leases:
                lease.start()
                lease.finish()
        self._finish_records(batch, records)
        self._keep(batch, records)

    def _finish_records(self, batch: HandlerBatch, kept: Collection[Record]) -> None:
        """Finish the records of a shrunk batch except ``kept``."""
        kept_ids, progress_of = {id(record) for record in kept}, {one.partition: one.progress for one in batch.leases}
        for record in batch.records:
            if id(record) not in kept_ids:
                progress_of[record.topic_partition].finish(record.offset)

    def abandon(self, batch: HandlerBatch, partition: TopicPartition) -> None:
        """Leave the records of a partition, which are part of a running batch, to the partition's next owner."""
        left_leases = [lease for lease in batch.leases if lease.partition == partition]
        for lease in left_leases:
            lease.finish()
        kept: list[Record] = []
        for record in batch.records:
            if record.topic_partition == partition:
                left_leases[0].progress.abandon(record.offset)
            else:
                kept.append(record)
        batch.leases = [lease for lease in batch.leases if lease.partition != partition]
        self._keep(batch, kept)

    def _keep(self, batch: HandlerBatch, records: list[Record]) -> None:
        batch.records = records
        if batch.failing:
            self._count_failing(batch, records)
        if self._is_by_key:
            keys = frozenset(record.key for record in records)
            batch.pool.busy_keys -= batch.keys - keys
            batch.keys = keys
            self._schedule(batch.pool)

    def finish(self, batch: HandlerBatch) -> None:
        """Finish a batch, whatever its outcome. This must be called for batches of dropped partitions, too."""
        for lease in batch.leases:
            lease.finish()
        if batch.is_shrunk:
            self._finish_records(batch, ())
        pool = batch.pool
        if batch.failing:
            self._count_failing(batch, ())
        if self._is_by_partition:
            pool.is_busy = False
            self._ahead -= pool.count
        pool.busy_keys -= batch.keys
        self._schedule(pool)

    # ---- dropping ----------------------------------------------------------------------------------------------

    def drop(self, partition: TopicPartition) -> list[Lease]:
        """Forget the waiting records of a partition and return their leases; a running batch continues."""
        pool = self._pools.get(self._pool_key(partition))
        if pool is None:
            return []
        dropped = [one for one in pool.slices if one.lease.partition == partition]
        for one in dropped:
            self._change_counts(pool, -one.lease.count, -self._size(one.lease.rest))
        pool.slices = deque(one for one in pool.slices if one.lease.partition != partition)
        self._schedule(pool)
        return [one.lease for one in dropped]

    # ---- inside ------------------------------------------------------------------------------------------------

    def _pool_key(self, partition: TopicPartition) -> TopicPartition | None:
        return partition if self._is_by_partition or self._is_by_key else None

    @property
    def _is_window_full(self) -> bool:
        return self.waiting - self._ahead + self.failing >= self.window

    def _stuck_of(self, partition: TopicPartition) -> int:
        """Return how many records of a partition failed or wait for a busy key."""
        pool = self._pools.get(partition)
        return self._failing_of[partition] + (0 if pool is None else pool.blocked)

    def _count_failing(self, batch: HandlerBatch, records: Iterable[Record]) -> None:
        self._failing_of.subtract(batch.failing)
        self.failing -= batch.failing.total()
        batch.failing = Counter(record.topic_partition for record in records)
        self._failing_of.update(batch.failing)
        self.failing += batch.failing.total()

    def _change_counts(self, pool: _Pool, records: int, size: int) -> None:
        pool.count += records
        pool.size += size
        self.waiting += records
        if pool.is_busy:
            self._ahead += records

    def _size(self, records: Iterable[Record]) -> int:
        return 0 if self.limits.max_bytes is None else sum(map(size_of, records))

    def _schedule(self, pool: _Pool) -> None:
        """Set the time at which the next batch of ``pool`` is due, or make the pool ready if a batch is due now."""
        before, pool.due = pool.due, None
        if pool.is_busy or pool.is_ready or not pool.slices:
            return
        records, size, since = self._runnable(pool)
        most_bytes = self.limits.max_bytes
        is_full = records >= self.limits.max_records or (most_bytes is not None and size >= most_bytes)
        if is_full or (records and self._is_hurried):
            self._make_ready(pool)
        elif records:
            pool.due = since + self._wait_s
            if pool.due != before:
                heappush(self._dues, (pool.due, next(self._numbers), pool))
                self._tidy()

    def _make_ready(self, pool: _Pool) -> None:
        pool.due, pool.is_ready = None, True
        self._ready.append(pool)

    def _runnable(self, pool: _Pool) -> tuple[int, int, float]:
        """Return count and bytes of the records whose key is not busy, and the time at which the first was added."""
        if not pool.busy_keys:
            pool.blocked = 0
            return pool.count, pool.size, pool.slices[0].since
        records, size, since = 0, 0, 0.0
        for one in pool.slices:
            free = [record for record in one.lease.rest if record.key not in pool.busy_keys]
            if free and not records:
                since = one.since
            records += len(free)
            size += self._size(free)
        pool.blocked = pool.count - records
        return records, size, since

    def _tidy(self) -> None:
        """Remove outdated entries, which pile up in the heap while batches are full long before they are due."""
        if len(self._dues) > 2 * len(self._pools) + _STALE_ALLOWED:
            pools = self._pools.values()
            self._dues = [(pool.due, next(self._numbers), pool) for pool in pools if pool.due is not None]
            heapify(self._dues)

    def _next_due(self) -> tuple[float, int, _Pool] | None:
        while self._dues:
            if self._dues[0][2].due == self._dues[0][0]:
                return self._dues[0]
            heappop(self._dues)
        return None

    def _take_from(self, pool: _Pool) -> HandlerBatch:
        """Remove the records of the next batch from ``pool``, and return the batch."""
        batch = HandlerBatch(pool)
        remaining: list[_BatchSlice] = []
        wanted, room = self.limits.max_records, self.limits.max_bytes
        while wanted and pool.slices:
            one = pool.slices.popleft()
            rest = one.lease.rest
            taken, left, is_full = _split(rest, wanted, room, pool.busy_keys, is_first=not batch.records)
            if taken:
                part = one.lease.split([taken], left)[0] if left else one.lease
                part.take()
                batch.leases.append(part)
                # The first list is not copied: no list of records is changed after its creation.
                batch.records = taken if not batch.records and isinstance(taken, list) else [*batch.records, *taken]
                wanted -= len(taken)
                room = None if room is None else room - self._size(taken)
            if left:
                remaining.append(one)
            if is_full:
                break
        pool.slices.extendleft(reversed(remaining))
        self._change_counts(pool, -len(batch.records), -self._size(batch.records))
        if self._is_by_partition:
            pool.is_busy = True
            self._ahead += pool.count
        elif self._is_by_key:
            batch.keys = frozenset(record.key for record in batch.records)
            pool.busy_keys |= batch.keys
        self._schedule(pool)
        return batch


def size_of(record: Record) -> int:
    """Return the size of a record's key, value and headers in bytes, for ``max_bytes``."""
    size = len(record.key or b"") + len(record.value or b"")
    return size + sum(len(name) + len(data or b"") for name, data in record.headers) if record.headers else size


def _split(
    records: Sequence[Record], wanted: int, room: int | None, busy: Collection[Key], *, is_first: bool
) -> tuple[Sequence[Record], Sequence[Record], bool]:
    """Return the records for the batch, the other records, and True if the batch is full.

    Args:
        records: waiting records of one lease.
        wanted: number of records that still fit into the batch.
        room: number of bytes that still fit into the batch; None without a limit.
        busy: keys whose records have to wait.
        is_first: True if the batch has no record yet, so that its first record may be larger than ``room``.
    """
    if room is None and not busy:
        if len(records) <= wanted:
            return records, (), False
        return records[:wanted], records[wanted:], False
    taken: list[Record] = []
    left: list[Record] = []
    for number, record in enumerate(records):
        if record.key in busy:
            left.append(record)
            continue
        size = 0 if room is None else size_of(record)
        if len(taken) == wanted or (room is not None and size > room and (taken or not is_first)):
            return taken, [*left, *records[number:]], True
        room = None if room is None else room - size
        taken.append(record)
    return taken, left, False
