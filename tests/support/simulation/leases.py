"""Leases for tests of what is decided about them: each partition has a progress, and a new one with each epoch."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from tailrace.core.delivery.progress import Lease, Progress
from tailrace.records import Record, TopicPartition

__all__ = ["Leases"]


class Leases:
    """Delivers records, and remembers the leases."""

    def __init__(self) -> None:
        self._progress: dict[TopicPartition, Progress] = {}
        self._made: list[Lease] = []

    def of(self, records: Sequence[Record]) -> Lease:
        """A lease of records of one partition."""
        partition = records[0].topic_partition
        lease = self.progress(partition).deliver(records, records[-1].offset + 1)
        self._made.append(lease)
        return lease

    def progress(self, partition: TopicPartition) -> Progress:
        """The present epoch of a partition."""
        return self._progress.setdefault(partition, Progress(partition, 0))

    def begin(self, partition: TopicPartition, offset: int = 0) -> None:
        """Begin another epoch of a partition."""
        self.progress(partition).end()
        self._progress[partition] = Progress(partition, offset)

    def unstarted(self, partition: TopicPartition) -> Iterator[int]:
        """The offsets of the present epoch that were not taken."""
        now = self.progress(partition)
        return (record.offset for lease in self._made if lease.progress is now for record in lease.rest)
