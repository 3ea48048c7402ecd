"""Merged stream of the records that several processes read. Pure: no clock, IO or logging.

A process reads each of its partitions under a *lease* (``PartitionLease``), which ends when the partition is revoked or
read from another position. The process sends *slices*: consecutive records of one partition. Slices are delivered in
the order of their arrival, so the records of each partition stay in order.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import TypeAlias
from uuid import UUID

from tailrace.consumer.delivery.polled_records import PolledRecords
from tailrace.core.progress import Progress
from tailrace.records import Record, TopicPartition

__all__ = ["LeaseKey", "MergedStream", "PartitionLease"]

LeaseKey: TypeAlias = tuple[int, int]
"""Number that stands for a process from its start to its end, and number of the lease within the process.

If the parent assigns the partitions, a lease keeps its key when its process is restarted; the first number is then the
same for all leases.
"""


class PartitionLease(Progress):
    """Progress of one partition as one process reads it.

    Attributes:
        key: process and number of the lease.
        received: next offset expected from the process.
        unreleased: number of records that have left the queue since the last report to the process.
        reported: finished offset in the last report to the process; -1 before the first report.
        route: number of the process start, and number of the lease in that process; None before the first slice.
        topic_id: id of the topic from which the records were read; None if unknown.
    """

    __slots__ = ("key", "received", "reported", "route", "topic_id", "unreleased")

    def __init__(self, key: LeaseKey, partition: TopicPartition, offset: int) -> None:
        super().__init__(partition, offset)
        self.key, self.received = key, offset
        self.unreleased, self.reported = 0, -1
        self.route: tuple[int, int] | None = None
        self.topic_id: UUID | None = None


class MergedStream:
    """Merges slices of several processes for one user.

    Attributes:
        polled: current slice and records in flight; the user takes records from ``polled.remaining``.
        queued_records: number of records in the queued slices, without the current slice.
    """

    def __init__(self) -> None:
        self.polled = PolledRecords()
        self.on_progress: Callable[[PartitionLease], None] = lambda _lease: None
        """Called with a lease when ``finished`` or ``unreleased`` of the lease should be sent to its process."""
        self._leases: dict[LeaseKey, PartitionLease] = {}
        self._queue: deque[tuple[PartitionLease, int, list[Record]]] = deque()
        self.queued_records = 0

    # ---- from the processes ------------------------------------------------------------------------------------

    def put(self, key: LeaseKey, partition: TopicPartition, end: int, records: list[Record]) -> PartitionLease:
        """Queue a slice and return its lease, which is opened if necessary.

        ``end`` is the offset at which the partition continues.
        """
        lease = self.open(key, partition, records[0].offset)
        lease.received = end
        self._queue.append((lease, end, records))
        self.queued_records += len(records)
        return lease

    def open(self, key: LeaseKey, partition: TopicPartition, offset: int) -> PartitionLease:
        """Return the lease of a key; if there is none, open a lease that begins at ``offset``."""
        lease = self._leases.get(key)
        if lease is None:
            lease = self._leases[key] = PartitionLease(key, partition, offset)
        return lease

    def halt(self, key: LeaseKey) -> PartitionLease | None:
        """Drop the records of a lease that the user has not taken, and return the lease; None if the key has no lease.

        Records in flight stay in flight.
        """
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
        """End a lease, drop all its records, including those in flight, and return it; None if the key has no lease."""
        lease = self.halt(key)
        if lease is not None:
            lease.end()
            self.polled.drop_epoch(lease)
            del self._leases[key]
        return lease

    def leases(self) -> list[PartitionLease]:
        """Return the open leases."""
        return list(self._leases.values())

    # ---- to the user -------------------------------------------------------------------------------------------

    def finish(self) -> None:
        """Finish the records in flight, and report that to their processes."""
        for lease in self.polled.finish():
            if isinstance(lease.progress, PartitionLease):
                self._report(lease.progress)

    def next_slice(self) -> bool:
        """Make the next queued slice the current slice; return False if none is queued."""
        if not self._queue:
            return False
        lease, end, records = self._queue.popleft()
        self.queued_records -= len(records)
        lease.unreleased += len(records)
        self.polled.begin(lease.deliver(records, end))
        return True

    def take(self, count: int) -> list[Record]:
        """Finish the records in flight and deliver up to ``count`` records that have arrived."""
        self.finish()
        taken: list[Record] = []
        while len(taken) < count and (self.polled.count_left or self.next_slice()):
            taken += self.polled.take(count - len(taken))
        return taken

    def acknowledge(self, record: Record) -> bool:
        """Finish ``record`` and all earlier records of its partition; return False if ``record`` is not in flight."""
        return self.polled.acknowledge(record)

    def report_all(self) -> None:
        """Report the progress of all leases that have changed since their last report."""
        for lease in self._leases.values():
            self._report(lease)

    def _report(self, lease: PartitionLease) -> None:
        finished = lease.finished
        if not lease.is_over and (lease.unreleased or finished != lease.reported):
            self.on_progress(lease)
            lease.reported, lease.unreleased = finished, 0

    def close(self) -> None:
        """Deliver no more records; records in flight stay unfinished."""
        self.polled.close()
