"""Limit of the memory that the decompressed batches of all partitions take together.

The limit is ``FetchBuffer.max_bytes``. While the decompressed batches have this many bytes or more, no further batch is
decompressed until one of them is consumed. If all partitions with a decompressed batch are paused or cannot be read for
another reason, their batches are packed (replaced by their compressed form), so that no other partition waits for them.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import islice
from typing import Generic, Protocol, TypeVar

from tailrace.core.fetch.buffer import FetchBuffer
from tailrace.records import TopicPartition

__all__ = ["DecompressedBatches", "PackableBatch"]

_MOST_IN_FLIGHT = 2
"""Maximum number of batches that threads decompress at a time; low, because decompressed sizes are not known before."""


class PackableBatch(Protocol):
    """Buffered batch that can be decompressed, and packed again."""

    @property
    def has_error(self) -> bool: ...

    @property
    def is_decompressing(self) -> bool: ...

    @property
    def plain_bytes(self) -> int: ...

    def pack(self) -> None: ...


BatchT = TypeVar("BatchT", bound=PackableBatch)


class DecompressedBatches(Generic[BatchT]):
    """Decompressed batches in ``buffer``, at most one per partition."""

    def __init__(self, buffer: FetchBuffer[BatchT]) -> None:
        self._buffer = buffer
        self._held: dict[TopicPartition, BatchT] = {}
        self._in_flight = 0
        self._most_bytes = 0
        """Bytes of all decompressed batches, including those that were consumed since the last ``_count``."""

    def add(self, partition: TopicPartition, batch: BatchT) -> None:
        """Add a batch that is decompressed, or that a thread is decompressing."""
        self._held[partition] = batch
        self._most_bytes += batch.plain_bytes
        self._in_flight += batch.is_decompressing

    def note_decompressed(self, batch: BatchT) -> None:
        """Add the bytes of a batch that a thread has decompressed, even if the batch is no longer buffered."""
        self._most_bytes += batch.plain_bytes
        self._in_flight -= 1

    def has_room(self, is_read: Callable[[TopicPartition], bool]) -> bool:
        """Return True if another batch may be decompressed; if necessary, pack batches of partitions that are not read.

        Args:
            is_read: returns True for a partition whose records may be taken now.
        """
        if self._in_flight >= _MOST_IN_FLIGHT:
            return False
        if self._most_bytes < self._buffer.max_bytes:
            return True
        self._count()
        if self._most_bytes < self._buffer.max_bytes:
            return True
        if any(one.is_decompressing or is_read(partition) for partition, one in self._held.items()):
            return False
        # No partition with a decompressed batch is read, so the batches may be packed in any order.
        while self._held and self._most_bytes >= self._buffer.max_bytes:
            batch = self._held.pop(next(iter(self._held)))
            self._most_bytes -= batch.plain_bytes
            batch.pack()
        return True

    def _count(self) -> None:
        for partition, batch in [*self._held.items()]:
            if batch.has_error:
                # No more records are taken from a batch with an error, so its decompressed form is not needed.
                batch.pack()
            # A chunk of records that were put back may be before the batch in the queue.
            is_buffered = any(one is batch for one in islice(self._buffer.all_buffered(partition), 2))
            if not is_buffered or not (batch.plain_bytes or batch.is_decompressing):
                del self._held[partition]
        self._most_bytes = sum(one.plain_bytes for one in self._held.values())
