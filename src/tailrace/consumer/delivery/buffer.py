"""Bounded buffer between fetching and delivery: one FIFO queue per partition; partitions are read in turn.

Pure: no clock, IO or logging.

The buffer holds chunks of any type, each with a size in bytes. The size of all chunks is limited, and each partition
has an equal share of the limit, so that a paused or slow partition uses only its own share. Before a fetch is sent,
space for its answer is reserved. The limit may be exceeded by one batch per broker, because a broker sends a first
batch even if it is larger than requested.

``DecompressedBatches`` limits the memory that decompressed batches take.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Callable, Hashable, Iterator
from itertools import islice
from typing import Generic, NamedTuple, Protocol, TypeVar

from tailrace.records import TopicPartition

__all__ = ["DecompressedBatches", "FetchBuffer", "PackableBatch"]

ChunkT = TypeVar("ChunkT")


class _SizedChunk(NamedTuple, Generic[ChunkT]):
    chunk: ChunkT
    size: int
    """Bytes that count for the chunk; 0 for a chunk that was put back."""


class FetchBuffer(Generic[ChunkT]):
    """FIFO queues of chunks by partition, with ``max_bytes`` in total."""

    def __init__(self, max_bytes: int) -> None:
        self.max_bytes = max_bytes
        self.held_bytes = 0
        """Bytes of all chunks in the buffer."""
        self.reserved_bytes = 0
        """Bytes reserved for fetches in flight."""
        self.taken_bytes = 0
        """Bytes of all chunks that ``pop`` has removed so far; the number grows while records are delivered."""
        self.largest_bytes = 0
        """Size of the largest chunk so far."""
        self._queues: dict[TopicPartition, deque[_SizedChunk[ChunkT]]] = {}
        self._bytes: dict[TopicPartition, int] = {}
        self._reserved: dict[Hashable, int] = {}
        self._turn: OrderedDict[TopicPartition, None] = OrderedDict()
        """Partitions with a chunk, in the order in which they are read."""

    @property
    def free_bytes(self) -> int:
        """Bytes that can still be reserved."""
        return max(0, self.max_bytes - self.held_bytes - self.reserved_bytes)

    def bytes_of(self, partition: TopicPartition) -> int:
        """Return the bytes of the chunks of a partition."""
        return self._bytes.get(partition, 0)

    def share_of(self, partitions: int) -> int:
        """Return the share of each partition in bytes if there are ``partitions`` partitions."""
        return self.max_bytes // max(partitions, 1)

    def reserve(self, fetch: Hashable, size: int) -> None:
        """Reserve ``size`` bytes for a fetch until ``unreserve``, which must follow in any case."""
        self.unreserve(fetch)
        self._reserved[fetch] = size
        self.reserved_bytes += size

    def unreserve(self, fetch: Hashable) -> None:
        """Release the space that is reserved for a fetch."""
        self.reserved_bytes -= self._reserved.pop(fetch, 0)

    def put(self, partition: TopicPartition, chunk: ChunkT, size: int) -> None:
        """Append a chunk of ``size`` bytes to the queue of a partition."""
        self._queue_of(partition).append(_SizedChunk(chunk, size))
        self._bytes[partition] = self.bytes_of(partition) + size
        self.held_bytes += size
        self.largest_bytes = max(self.largest_bytes, size)

    def enlarge_last(self, partition: TopicPartition, size: int) -> None:
        """Count ``size`` more bytes for the newest chunk of a partition, to which data was added."""
        queue = self._queues[partition]
        queue[-1] = last = _SizedChunk(queue[-1].chunk, queue[-1].size + size)
        self._bytes[partition] += size
        self.held_bytes += size
        self.largest_bytes = max(self.largest_bytes, last.size)

    def put_back(self, partition: TopicPartition, chunk: ChunkT) -> None:
        """Prepend a chunk that was removed but not used up; its bytes, which ``pop`` has freed, do not count again."""
        self._queue_of(partition).appendleft(_SizedChunk(chunk, 0))

    def head(self, partition: TopicPartition) -> ChunkT | None:
        """Return the oldest chunk of a partition; None if it has none."""
        queue = self._queues.get(partition)
        return queue[0].chunk if queue else None

    def last(self, partition: TopicPartition) -> ChunkT | None:
        """Return the newest chunk of a partition; None if it has none."""
        queue = self._queues.get(partition)
        return queue[-1].chunk if queue else None

    def all_buffered(self, partition: TopicPartition) -> Iterator[ChunkT]:
        """Yield the chunks of a partition, oldest first."""
        for held in self._queues.get(partition, ()):
            yield held.chunk

    def pop(self, partition: TopicPartition) -> None:
        """Remove the oldest chunk of a partition and free its bytes."""
        queue = self._queues[partition]
        size = queue.popleft().size
        self._bytes[partition] = self.bytes_of(partition) - size
        self.held_bytes -= size
        self.taken_bytes += size
        if not queue:
            self.drop(partition)

    def cut(self, partition: TopicPartition, most: int, least: int = 0) -> ChunkT | None:
        """Drop newest chunks of a partition while it has more than ``most`` bytes; return the newest chunk left.

        A chunk is not dropped if it is the oldest, or if fewer than ``least`` bytes would be left. Return None if no
        chunk was dropped.
        """
        queue, left = self._queues.get(partition, deque()), self.bytes_of(partition)
        count = forgotten = 0
        for held in islice(reversed(queue), len(queue) - 1 if queue else 0):
            if left - forgotten <= most or left - forgotten - held.size < least:
                break
            count, forgotten = count + 1, forgotten + held.size
        if not forgotten:
            return None
        for _ in range(count):
            queue.pop()
        self._bytes[partition] -= forgotten
        self.held_bytes -= forgotten
        return queue[-1].chunk

    def drop(self, partition: TopicPartition) -> None:
        """Drop all chunks of a partition."""
        if self._queues.pop(partition, None) is not None:
            del self._turn[partition]
        self.held_bytes -= self._bytes.pop(partition, 0)

    def next_partition(self, is_readable: Callable[[TopicPartition], bool]) -> TopicPartition | None:
        """Return the next partition that has a chunk and is readable, or None; the partition becomes the last."""
        for _ in range(len(self._turn)):
            partition = next(iter(self._turn))
            self._turn.move_to_end(partition)
            if is_readable(partition):
                return partition
        return None

    def holds(self, partition: TopicPartition) -> bool:
        """Return True if a partition has a chunk."""
        return partition in self._queues

    def _queue_of(self, partition: TopicPartition) -> deque[_SizedChunk[ChunkT]]:
        if partition not in self._queues:
            self._queues[partition] = deque()
            self._turn[partition] = None
        return self._queues[partition]


# ---- limit of the memory that the decompressed batches of all partitions take together -------------------------------

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
