"""What several processes read, as one stream: queues, what is in hand, what is done.

Rule of this file: pure, but for telling, at once, whoever sent records what has become of them. A lease is one
process's hold of one partition; what is said of a lease that is over counts for nothing. Slices are handed out in the
order in which they came, so each partition is in order.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import islice
from operator import length_hint
from typing import TypeAlias

from tailrace.records import Record, TopicPartition

__all__ = ["LeaseKey", "MergedStream", "PartitionLease"]

LeaseKey: TypeAlias = tuple[int, int]
"""Which start of a process it is, and its number there."""


@dataclass(slots=True, eq=False)
class PartitionLease:
    """One process's hold of one partition."""

    key: LeaseKey
    partition: TopicPartition
    received: int
    """The next offset to come."""
    delivered: int
    """The next offset to be handed out."""
    done: int
    """The next offset that is not done."""
    unreleased: int = 0
    """Records that have left the queue, of which the process was not told yet."""
    told: int = -1
    is_over: bool = False


class MergedStream:
    """One stream of many.

    Attributes:
        slice: records to be handed out next.
        in_flight_record: the last one that was.
    """

    def __init__(self, tell: Callable[[PartitionLease], None]) -> None:
        """``tell`` sends word of a lease's ``done`` and ``unreleased`` to its process."""
        self.slice: Iterator[Record] = iter(())
        self.in_flight_record: Record | None = None
        self._tell = tell
        self._leases: dict[LeaseKey, PartitionLease] = {}
        self._queue: deque[tuple[PartitionLease, int, list[Record]]] = deque()
        self._current: PartitionLease | None = None
        self._behind = 0
        self._touched: set[PartitionLease] = set()
        """Leases of which a batch is in hand."""
        self.queued_records = 0
        """Those in the queue, without the slice."""

    # ---- what comes --------------------------------------------------------------------------------------------

    def put(self, key: LeaseKey, partition: TopicPartition, behind: int, records: list[Record]) -> None:
        """A slice came."""
        lease = self.open(key, partition, records[0].offset)
        lease.received = behind
        self._queue.append((lease, behind, records))
        self.queued_records += len(records)

    def open(self, key: LeaseKey, partition: TopicPartition, offset: int) -> PartitionLease:
        """The lease of that key; a new one begins at ``offset``."""
        lease = self._leases.get(key)
        if lease is None:
            lease = self._leases[key] = PartitionLease(key, partition, offset, offset, offset)
        return lease

    def halt(self, key: LeaseKey) -> PartitionLease | None:
        """Hand out nothing more of a lease; what is in hand stays so. None when nothing of it ever came."""
        lease = self._leases.get(key)
        if lease is not None:
            self._sync()
            self._drop_queued(lease)
            lease.received = lease.delivered
        return lease

    def end(self, key: LeaseKey) -> PartitionLease | None:
        """A lease is over: nothing more of it is handed out, and what is in hand of it is nobody's."""
        lease = self.halt(key)
        if lease is not None:
            lease.is_over = True
            del self._leases[key]
        return lease

    def leases(self) -> list[PartitionLease]:
        """Those that are not over, with ``delivered`` as it is now."""
        self._sync()
        return list(self._leases.values())

    # ---- what goes ---------------------------------------------------------------------------------------------

    def finish(self) -> None:
        """What is in hand is done."""
        self._sync()
        if self._current is not None:
            self._current.done = self._current.delivered
            if not length_hint(self.slice):
                self._report(self._current)
                self._current = None
        self.in_flight_record = None
        for lease in self._touched:
            lease.done = lease.delivered
            self._report(lease)
        self._touched.clear()

    def next_slice(self) -> bool:
        """Begin the next slice, when the one before is used up and done; False when nothing is there."""
        if not self._queue:
            return False
        lease, behind, records = self._queue.popleft()
        self.queued_records -= len(records)
        lease.unreleased += len(records)
        self._current, self._behind, self.slice = lease, behind, iter(records)
        return True

    def take(self, count: int) -> list[Record]:
        """At most ``count`` records of those that are there; what was in hand is done, and all of these are."""
        self.finish()
        taken: list[Record] = []
        while len(taken) < count and (length_hint(self.slice) or self.next_slice()):
            part = list(islice(self.slice, count - len(taken)))
            lease = self._current
            assert lease is not None
            lease.delivered = part[-1].offset + 1 if length_hint(self.slice) else self._behind
            self._touched.add(lease)
            taken += part
        return taken

    def acknowledge(self, record: Record) -> bool:
        """A record in hand is done, and what came before it in its partition; False when it is not in hand."""
        self._sync()
        held = [
            *self._touched,
            *([self._current] if self._current is not None and self.in_flight_record is not None else []),
        ]
        for lease in held:
            if lease.is_over:
                continue
            if lease.partition == record.topic_partition and lease.done <= record.offset < lease.delivered:
                lease.done = lease.delivered if record.offset + 1 == lease.delivered else record.offset + 1
                if record is self.in_flight_record:
                    self.in_flight_record = None
                return True
        return False

    def tell_all(self) -> None:
        """Have every process know what is done."""
        self._sync()
        for lease in self._leases.values():
            self._report(lease)

    def close(self) -> None:
        """Hand out nothing more; what is in hand is not done."""
        self._sync()
        if self._current is not None:
            self._behind = self._current.delivered
        self.slice = iter(())

    # ---- inside ------------------------------------------------------------------------------------------------

    def _sync(self) -> None:
        """Bring the lease up to what was taken from the slice one by one: all before what is in hand is done."""
        lease = self._current
        if self.in_flight_record is not None and lease is not None:
            for before in self._touched - {lease}:
                before.done = before.delivered
            lease.delivered = self.in_flight_record.offset + 1 if length_hint(self.slice) else self._behind
            lease.done = max(lease.done, self.in_flight_record.offset)

    def _drop_queued(self, lease: PartitionLease) -> None:
        if self._current is lease:
            self.slice = iter(())
            self._behind = lease.delivered
            if self.in_flight_record is None and lease not in self._touched:
                self._current = None
        kept = [entry for entry in self._queue if entry[0] is not lease]
        dropped = sum(len(records) for one, _, records in self._queue if one is lease)
        self._queue = deque(kept)
        self.queued_records -= dropped
        lease.unreleased += dropped

    def _report(self, lease: PartitionLease) -> None:
        if not lease.is_over and (lease.unreleased or lease.done != lease.told):
            self._tell(lease)
            lease.told, lease.unreleased = lease.done, 0
