"""The bounded buffer between fetching and reading: one FIFO per partition, taken in turn.

It holds chunks of any kind with a size in bytes and knows two bounds: what all partitions may hold together, and each
one's share of that, so that a paused or slow partition uses up its own share and nobody else's. Room is reserved
before it is filled. The overrun is what the protocol forces: one batch larger than what was asked for, per broker.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Hashable, Iterator
from itertools import islice
from typing import Generic, NamedTuple, TypeVar

from tailrace.records import TopicPartition

__all__ = ["FetchBuffer"]

ChunkT = TypeVar("ChunkT")


class _PartitionQueue(NamedTuple, Generic[ChunkT]):
    buffered: ChunkT
    size: int


class FetchBuffer(Generic[ChunkT]):
    """Chunks of partitions, first in, first out; ``max_bytes`` in all."""

    def __init__(self, max_bytes: int) -> None:
        self.max_bytes = max_bytes
        self.held_bytes = 0
        """What is held."""
        self.reserved_bytes = 0
        """What is reserved for fetches under way."""
        self.taken_bytes = 0
        """What was taken out since the beginning: it grows while somebody reads."""
        self._queues: dict[TopicPartition, deque[_PartitionQueue[ChunkT]]] = {}
        self._bytes: dict[TopicPartition, int] = {}
        self._reserved: dict[Hashable, int] = {}
        self._turn: deque[TopicPartition] = deque()
        """Partitions that hold something, the next one first."""

    @property
    def free_bytes(self) -> int:
        """What can still be reserved."""
        return max(0, self.max_bytes - self.held_bytes - self.reserved_bytes)

    def bytes_of(self, partition: TopicPartition) -> int:
        """What one partition holds."""
        return self._bytes.get(partition, 0)

    def room_of(self, partition: TopicPartition, partitions: int) -> int:
        """What one of so many partitions has left of its share."""
        return max(0, self.share_of(partitions) - self.bytes_of(partition))

    def share_of(self, partitions: int) -> int:
        """What each of so many partitions may hold."""
        return self.max_bytes // max(partitions, 1)

    def reserve(self, fetch: Hashable, size: int) -> None:
        """Keep room for what a fetch may bring; it ends with ``unreserve``, whatever comes of the fetch."""
        self.unreserve(fetch)
        self._reserved[fetch] = size
        self.reserved_bytes += size

    def unreserve(self, fetch: Hashable) -> None:
        """The fetch is over."""
        self.reserved_bytes -= self._reserved.pop(fetch, 0)

    def put(self, partition: TopicPartition, buffered: ChunkT, size: int) -> None:
        """Append a chunk."""
        self._queue_of(partition).append(_PartitionQueue(buffered, size))
        self._bytes[partition] = self.bytes_of(partition) + size
        self.held_bytes += size

    def put_back(self, partition: TopicPartition, buffered: ChunkT) -> None:
        """What was taken and not used comes first again; its bytes are accounted for elsewhere."""
        self._queue_of(partition).appendleft(_PartitionQueue(buffered, 0))

    def head(self, partition: TopicPartition) -> ChunkT | None:
        """The oldest chunk of a partition."""
        queue = self._queues.get(partition)
        return queue[0].buffered if queue else None

    def last(self, partition: TopicPartition) -> ChunkT | None:
        """The newest one."""
        queue = self._queues.get(partition)
        return queue[-1].buffered if queue else None

    def all_buffered(self, partition: TopicPartition) -> Iterator[ChunkT]:
        """All that a partition holds, the oldest first."""
        for held in self._queues.get(partition, ()):
            yield held.buffered

    def pop(self, partition: TopicPartition) -> None:
        """The oldest chunk is used up; its bytes are free."""
        queue = self._queues[partition]
        size = queue.popleft().size
        self._bytes[partition] = self.bytes_of(partition) - size
        self.held_bytes -= size
        self.taken_bytes += size
        if not queue:
            self.drop(partition)

    def cut(self, partition: TopicPartition, most: int, least: int = 0) -> ChunkT | None:
        """Forget the newest chunks of a partition that holds more than ``most`` bytes, but never the oldest one.

        Nor are fewer than ``least`` bytes left. Gives the last chunk that is left; None when nothing was forgotten.
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
        return queue[-1].buffered

    def drop(self, partition: TopicPartition) -> None:
        """Forget all that a partition holds."""
        if self._queues.pop(partition, None) is not None:
            self._turn.remove(partition)
        self.held_bytes -= self._bytes.pop(partition, 0)

    def next_partition(self, is_readable: Callable[[TopicPartition], bool]) -> TopicPartition | None:
        """The partition whose turn it is, of those that hold something and may be read; it goes to the end."""
        for _ in range(len(self._turn)):
            partition = self._turn[0]
            self._turn.rotate(-1)
            if is_readable(partition):
                return partition
        return None

    def holds(self, partition: TopicPartition) -> bool:
        """Whether a partition has a chunk."""
        return partition in self._queues

    def _queue_of(self, partition: TopicPartition) -> deque[_PartitionQueue[ChunkT]]:
        if partition not in self._queues:
            self._queues[partition] = deque()
            self._turn.append(partition)
        return self._queues[partition]
