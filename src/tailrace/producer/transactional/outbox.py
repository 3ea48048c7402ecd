"""Records on their way out: an open batch for each partition, and the closed ones behind each other.

Rule of this file: a batch is turned into bytes once, when it is first sent, so that a second try sends the same bytes.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence

from tailrace.batches.batch_writer import BatchWriter
from tailrace.core.producer.events import Filled, ProducerBatch, ProducerId
from tailrace.records import TopicPartition

__all__ = ["Outbox"]


class Outbox:
    """What one transaction has not written yet.

    Attributes:
        closed_bytes: the size of the closed batches, before compression.
    """

    def __init__(self, max_batch_bytes: int, compression: str) -> None:
        self._max_batch_bytes, self._compression = max_batch_bytes, compression
        self._open: dict[TopicPartition, BatchWriter] = {}
        self._closed: dict[TopicPartition, deque[BatchWriter]] = {}
        self.closed_bytes = 0

    def add(
        self,
        partition: TopicPartition,
        key: bytes | None,
        value: bytes | None,
        headers: Sequence[tuple[str, bytes | None]],
        timestamp_ms: int | None,
    ) -> Filled | None:
        """Take a record; the batch before, if it was full and is closed now.

        Raises:
            MalformedMessageError: it cannot be written; nothing was taken.
        """
        batch = self._open.get(partition)
        if batch is not None and batch.append(key, value, headers, timestamp_ms):
            return None
        fresh = BatchWriter(self._max_batch_bytes, self._compression)
        fresh.append(key, value, headers, timestamp_ms)
        filled = None if batch is None else self._close(partition, batch)
        self._open[partition] = fresh
        return filled

    def close_all(self) -> list[Filled]:
        """Close every batch as it is."""
        filled = [self._close(partition, batch) for partition, batch in self._open.items()]
        self._open.clear()
        return filled

    def content(self, producer: ProducerId, batch: ProducerBatch) -> memoryview:
        """Return the bytes of a partition's first closed batch."""
        return self._closed[batch.partition][0].written(*producer, batch.sequence)

    def written(self, partitions: Iterable[TopicPartition]) -> None:
        """The first closed batch of each of these has arrived."""
        for partition in partitions:
            waiting = self._closed[partition]
            self.closed_bytes -= waiting.popleft().size
            if not waiting:
                del self._closed[partition]

    def clear(self) -> None:
        """Nothing of it is wanted any more."""
        self._open.clear()
        self._closed.clear()
        self.closed_bytes = 0

    def _close(self, partition: TopicPartition, batch: BatchWriter) -> Filled:
        self._closed.setdefault(partition, deque()).append(batch)
        self.closed_bytes += batch.size
        return Filled(partition, batch.count)
