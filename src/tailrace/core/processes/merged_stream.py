"""One stream of the records that several processes read.

Each process has a lease of each of its partitions; messages about a lease that is over are ignored. Slices are
delivered in the order of their arrival, so each partition is in order.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import TypeAlias

from tailrace.core.delivery.polled_records import PolledRecords
from tailrace.core.delivery.progress import InFlight, Progress
from tailrace.records import Record, TopicPartition

__all__ = ["LeaseKey", "MergedStream", "PartitionLease"]

LeaseKey: TypeAlias = tuple[int, int]
"""Which start of a process it is, and its number there."""


class PartitionLease(Progress):
    """Progress of one partition as one process reads it.

    Attributes:
        key: the process's.
        received: the next offset to come.
        unreleased: records that have left the queue, of which the process was not told yet.
        told: what it was told last to be done.
    """

    __slots__ = ("key", "received", "told", "unreleased")

    def __init__(self, key: LeaseKey, partition: TopicPartition, offset: int) -> None:
        super().__init__(partition, offset)
        self.key, self.received = key, offset
        self.unreleased, self.told = 0, -1


class MergedStream:
    """Merges slices of several processes.

    Args:
        tell: sends word of a lease's ``finished`` and ``unreleased`` to its process.

    Attributes:
        polled: what the user has; records are taken from its slice.
        queued_records: those in the queue, without the slice.
    """

    def __init__(self, tell: Callable[[PartitionLease], None]) -> None:
        self.polled = PolledRecords()
        self._tell = tell
        self._leases: dict[LeaseKey, PartitionLease] = {}
        self._queue: deque[tuple[PartitionLease, int, list[Record]]] = deque()
        self.queued_records = 0

    # ---- from the processes ------------------------------------------------------------------------------------

    def put(self, key: LeaseKey, partition: TopicPartition, behind: int, records: list[Record]) -> None:
        """Queue a slice."""
        lease = self.open(key, partition, records[0].offset)
        lease.received = behind
        self._queue.append((lease, behind, records))
        self.queued_records += len(records)

    def open(self, key: LeaseKey, partition: TopicPartition, offset: int) -> PartitionLease:
        """Return the lease of a key; a new one begins at ``offset``."""
        lease = self._leases.get(key)
        if lease is None:
            lease = self._leases[key] = PartitionLease(key, partition, offset)
        return lease

    def halt(self, key: LeaseKey) -> PartitionLease | None:
        """Deliver no more records of a lease and return it; None if it never had any. Records in flight stay so."""
        lease = self._leases.get(key)
        if lease is not None:
            if self.polled.current is not None and self.polled.current.progress is lease:
                self.polled.give_back()
            dropped = sum(len(records) for one, _, records in self._queue if one is lease)
            self._queue = deque(entry for entry in self._queue if entry[0] is not lease)
            self.queued_records -= dropped
            lease.unreleased += dropped
            lease.received = lease.next_offset
        return lease

    def end(self, key: LeaseKey) -> PartitionLease | None:
        """End a lease: its records in flight are ignored from now on."""
        lease = self.halt(key)
        if lease is not None:
            lease.end()
            self.polled.drop_epoch(lease)
            del self._leases[key]
        return lease

    def leases(self) -> list[PartitionLease]:
        """Return the leases that are not over."""
        return list(self._leases.values())

    # ---- to the user -------------------------------------------------------------------------------------------

    def finish(self) -> None:
        """Finish the records in flight."""
        for used in self.polled.finish():
            if isinstance(used.progress, PartitionLease):
                self._report(used.progress)

    def next_slice(self) -> bool:
        """Begin the next slice; return False if none has arrived."""
        if not self._queue:
            return False
        lease, behind, records = self._queue.popleft()
        self.queued_records -= len(records)
        lease.unreleased += len(records)
        self.polled.begin(lease.deliver(records, behind, InFlight.LAST))
        return True

    def take(self, count: int) -> list[Record]:
        """Finish the records in flight and return up to ``count`` records of those that have arrived."""
        self.finish()
        taken: list[Record] = []
        while len(taken) < count and (self.polled.left or self.next_slice()):
            taken += self.polled.take(count - len(taken))
        return taken

    def acknowledge(self, record: Record) -> bool:
        """Finish ``record`` and those before it in its partition; return False if it is not in flight."""
        return self.polled.acknowledge(record)

    def tell_all(self) -> None:
        """Report to every process which records are finished."""
        for lease in self._leases.values():
            self._report(lease)

    def _report(self, lease: PartitionLease) -> None:
        finished = lease.finished
        if not lease.is_over and (lease.unreleased or finished != lease.told):
            self._tell(lease)
            lease.told, lease.unreleased = finished, 0

    def close(self) -> None:
        """Deliver no more records; those in flight stay unfinished."""
        self.polled.close()
