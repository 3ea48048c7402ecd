"""Merged stream of the records that several processes read.

Each process has a lease of each of its partitions; messages about a lease that is over are ignored. Slices are
delivered in the order of their arrival, so the records of each partition stay in order.
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
"""Incarnation of a process, and the number of the lease within this incarnation."""


class PartitionLease(Progress):
    """Progress of one partition as one process reads it.

    Attributes:
        key: key of the lease.
        received: next offset expected from the process.
        unreleased: number of records that have left the queue since the last report to the process.
        reported: finished offset last reported to the process.
    """

    __slots__ = ("key", "received", "reported", "unreleased")

    def __init__(self, key: LeaseKey, partition: TopicPartition, offset: int) -> None:
        super().__init__(partition, offset)
        self.key, self.received = key, offset
        self.unreleased, self.reported = 0, -1


class MergedStream:
    """Merges slices of several processes.

    Args:
        report: called with a lease to report its ``finished`` and ``unreleased`` to its process.

    Attributes:
        polled: records that the user has in flight; the user takes further records from ``polled.remaining``.
        queued_records: number of records in the queue, without the current slice.
    """

    def __init__(self, report: Callable[[PartitionLease], None]) -> None:
        self.polled = PolledRecords()
        self._send_report = report
        self._leases: dict[LeaseKey, PartitionLease] = {}
        self._queue: deque[tuple[PartitionLease, int, list[Record]]] = deque()
        self.queued_records = 0

    # ---- from the processes ------------------------------------------------------------------------------------

    def put(self, key: LeaseKey, partition: TopicPartition, end: int, records: list[Record]) -> None:
        """Queue a slice."""
        lease = self.open(key, partition, records[0].offset)
        lease.received = end
        self._queue.append((lease, end, records))
        self.queued_records += len(records)

    def open(self, key: LeaseKey, partition: TopicPartition, offset: int) -> PartitionLease:
        """Return the lease of a key; a key without a lease gets one that begins at ``offset``."""
        lease = self._leases.get(key)
        if lease is None:
            lease = self._leases[key] = PartitionLease(key, partition, offset)
        return lease

    def halt(self, key: LeaseKey) -> PartitionLease | None:
        """Deliver no more records of a lease and return the lease; None if the key has none.

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
        lease, end, records = self._queue.popleft()
        self.queued_records -= len(records)
        lease.unreleased += len(records)
        self.polled.begin(lease.deliver(records, end, InFlight.LAST))
        return True

    def take(self, count: int) -> list[Record]:
        """Finish the records in flight and return up to ``count`` of the records that have arrived."""
        self.finish()
        taken: list[Record] = []
        while len(taken) < count and (self.polled.count_left or self.next_slice()):
            taken += self.polled.take(count - len(taken))
        return taken

    def acknowledge(self, record: Record) -> bool:
        """Finish ``record`` and all earlier records of its partition; return False if ``record`` is not in flight."""
        return self.polled.acknowledge(record)

    def report_all(self) -> None:
        """Report to every process which records are finished."""
        for lease in self._leases.values():
            self._report(lease)

    def _report(self, lease: PartitionLease) -> None:
        finished = lease.finished
        if not lease.is_over and (lease.unreleased or finished != lease.reported):
            self._send_report(lease)
            lease.reported, lease.unreleased = finished, 0

    def close(self) -> None:
        """Deliver no more records; records in flight stay unfinished."""
        self.polled.close()
