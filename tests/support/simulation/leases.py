"""Leases for tests of ``tailrace.core``: each assignment epoch of a partition has its own progress."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from tailrace.core.progress import Lease, Progress
from tailrace.records import Record, TopicPartition

__all__ = ["Leases"]


class Leases:
    """Delivers records and keeps their leases."""

    def __init__(self) -> None:
        self._progress: dict[TopicPartition, Progress] = {}
        self._made: list[Lease] = []

    def of(self, records: Sequence[Record]) -> Lease:
        """Deliver records of a partition and return the lease."""
        partition = records[0].topic_partition
        lease = self.progress(partition).deliver(records, records[-1].offset + 1)
        self._made.append(lease)
        return lease

    def progress(self, partition: TopicPartition) -> Progress:
        """Return the progress of the current epoch of a partition."""
        return self._progress.setdefault(partition, Progress(partition, 0))

    def begin(self, partition: TopicPartition, offset: int = 0) -> None:
        """Begin another epoch of a partition."""
        self.progress(partition).end()
        self._progress[partition] = Progress(partition, offset)

    def unstarted(self, partition: TopicPartition) -> Iterator[int]:
        """Return the offsets of the current epoch that were not started."""
        now = self.progress(partition)
        return (record.offset for lease in self._made if lease.progress is now for record in lease.rest)
