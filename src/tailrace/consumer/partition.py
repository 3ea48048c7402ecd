"""State of the assigned partitions: progress of the current epoch, committed offset, and state of fetching.

Pure: no clock, IO or logging.

Each assignment, seek and reset begins an epoch (an assignment epoch, not a leader epoch). Records that were fetched or
delivered in an older epoch are ignored. All epochs of an assignment share the committed offset.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import Generic, NamedTuple, Protocol, TypeVar
from uuid import UUID

from tailrace.core.offset_map import EncodedMetadata, OffsetMap, encode_metadata
from tailrace.core.progress import Lease, Progress
from tailrace.core.start_point import StartPoint
from tailrace.protocol.message import NO_TOPIC_ID
from tailrace.records import Record, TopicPartition

__all__ = [
    "AssignedPartitions",
    "DecompressedBatches",
    "FetchBuffer",
    "OffsetMapSize",
    "PackableBatch",
    "Partition",
    "UnreadableBatch",
]

# ---- bounded buffer between fetching and delivery --------------------------------------------------------------------

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


# ---- size of a partition's offset map in the commit metadata, estimated between commits ------------------------------

_PAUSE_S = 0.02
"""Pause before a map that was too large is measured again, because encoding a map may take a millisecond."""
_OVERHEAD = 73
"""Bytes of the commit metadata apart from the offset map, the writer's name and the user's text."""
_GAP_BYTES = 3
"""Bytes that encode a gap between two unfinished offsets if the gap is below two million."""


class OffsetMapSize:
    """Size of one partition's offset map in one assignment epoch.

    Attributes:
        fill: share of the available space that the map took at the last measurement.
        is_high: True if the map was so large at the last measurement that no more records should be started.
    """

    __slots__ = ("_again_at", "_measured_at", "_seen", "fill", "is_high")

    def __init__(self) -> None:
        self.fill = 0.0
        self.is_high = False
        self._measured_at = -1
        """``Progress.delivered`` at the last measurement or estimate; -1 before the first."""
        self._again_at = 0.0
        """Earliest time of the next measurement."""
        self._seen: tuple[int, int] | None = None
        """``Progress.finished`` and ``Progress.started`` at the last measurement; None before the first."""

    def is_due(self, progress: Progress, limit: int) -> bool:
        """Return True if ``measure`` should be called, because the map may be too large; otherwise note the estimate.

        ``limit`` is the maximum size of the commit metadata in bytes.
        """
        if self._measured_at < 0:
            self._measured_at = progress.delivered
        # ``delivered`` and ``finished`` are offsets; ``started`` is a number of records.
        if not progress.started or progress.delivered - self._measured_at < limit // 4:
            return False
        # A map is written as one bit for each offset from ``finished`` to ``delivered``, or as a few bytes for each gap
        # between records in flight, whichever is shorter. Base64 adds a third.
        most = min((progress.delivered - progress.finished) // 8, _GAP_BYTES * progress.started + 10) * 4 // 3
        if most + _OVERHEAD > limit // 2:
            return True
        self._measured_at = progress.delivered
        return False

    def measure(self, progress: Progress, limit: int, writer: str, now: float) -> None:
        """Encode the map to measure its size."""
        self.note_encoded(encode_metadata(progress.offset_map(), "", limit, writer=writer))
        self._measured_at, self._again_at = progress.delivered, now + _PAUSE_S
        self._seen = progress.finished, progress.started

    def note_encoded(self, envelope: EncodedMetadata) -> None:
        """Set ``fill`` and ``is_high`` from an encoded map."""
        self.fill, self.is_high = envelope.fill, envelope.is_high

    def again_at(self, progress: Progress, now: float) -> float | None:
        """Return the time of the next measurement after the map was too large; None if nothing has changed since."""
        if self._seen == (progress.finished, progress.started):
            return None
        return max(now, self._again_at)


# ---- state of the assigned partitions --------------------------------------------------------------------------------

_EPOCHS_PER_ASSIGNMENT = 1 << 20
"""Maximum number of epochs in one assignment of a partition."""


@dataclass(frozen=True, slots=True)
class UnreadableBatch:
    """Batch that cannot be delivered, at which a partition waits."""

    offset: int
    """First offset of the batch that is not delivered."""
    next_offset: int | None
    """Offset after the batch; None if it is unknown."""
    reason: str
    advice: str
    """Actions by which the partition can be read on."""
    attempts: int
    """Number of times that the batch was read in vain."""
    retry_at: float
    """Time of the next attempt to fetch the batch."""


@dataclass(slots=True)
class Partition:
    """State of one assigned partition; users see ``next_offset`` as its position."""

    topic_partition: TopicPartition
    epoch: int
    """Number of the current assignment epoch."""
    progress: Progress | None = None
    """Progress of the current epoch; None until the start offset is known."""
    committed: int | None = None
    """Committed offset that the broker last acknowledged; None if the group has no committed offset."""
    committed_metadata: str = ""
    """User's metadata in the same commit as ``committed``."""
    committed_map: OffsetMap | None = None
    """Offset map in the same commit as ``committed``."""
    has_stale_commit: bool = True
    """True if no offset was committed in the current epoch, so that a commit is due whatever ``finished`` is."""
    is_commit_chosen: bool = False
    """True if the user chose the offset ``committed`` during this assignment."""
    moves: int = 0
    """Number of calls of ``move`` in this assignment."""
    commit_base: int = 0
    """Value of ``finished`` at the last commit, or start of the epoch; an automatic commit is due only above it."""
    map_fill: OffsetMapSize = field(default_factory=OffsetMapSize)
    """Size of the offset map in the commit metadata."""
    last_fetched_epoch: int = -1
    """Leader epoch of the last fetched batch (KIP-595); -1 if unknown."""
    fetched_topic_id: UUID | None = None
    """Topic id of the last fetch in this epoch, or None; a recreated topic has another id."""
    assigned_topic_id: UUID | None = None
    """Id of the topic that the group has assigned (KIP-848); None if the topic is assigned by name.

    The group may assign the same partition of a recreated topic, which has another id, to another member.
    """
    delivered_epoch: int = -1
    """Leader epoch of the last delivered batch, for commits; -1 if unknown."""
    reset_to: StartPoint | None = None
    """Start point whose offset has to be looked up; None if no lookup is needed."""
    reset_from: int | None = None
    """Position that was out of range and led to the reset; None if there is none."""
    is_refused: bool = False
    """True if the partition has no position until a seek, because of ``auto_offset_reset="none"``."""
    is_fetchable: bool = False
    """True after the rebalance callbacks have returned and the positions that they chose are set."""
    is_halted: bool = False
    """True if the partition is about to be revoked, so that no more records are delivered."""
    is_paused: bool = False
    """True if the user has paused the partition."""
    is_unsubscribed: bool = False
    """True if the topic is no longer subscribed to; the next rebalance revokes the partition."""
    high_watermark: int | None = None
    last_stable_offset: int | None = None
    """Last stable offset with ``read_committed``, otherwise the high watermark."""
    log_start: int | None = None
    """Lowest offset of the log; None before the first fetch."""
    preferred_read_replica: int | None = None
    """Id of the follower from which the leader wants this consumer to fetch (KIP-392); None for the leader."""
    preferred_read_replica_until: float = 0.0
    """Time until which ``preferred_read_replica`` is used."""
    failures: int = 0
    """Number of fetches that failed since the last success."""
    retry_at: float = 0.0
    """Earliest time of the next fetch after a failure."""
    unreadable: UnreadableBatch | None = None
    """Batch at which the partition waits; None unless it cannot be delivered."""

    @property
    def assignment(self) -> int:
        """Number of the partition's assignment, which seeks and resets do not change."""
        return self.epoch // _EPOCHS_PER_ASSIGNMENT

    @property
    def is_held_back(self) -> bool:
        """True if no records are delivered because the user has paused the partition or unsubscribed from the topic."""
        return self.is_paused or self.is_unsubscribed

    # ---- offsets -----------------------------------------------------------------------------------------------

    @property
    def fetched(self) -> int | None:
        """Next offset to fetch; None until the start offset is known, and after ``stop_fetching``."""
        return None if self.progress is None else self.progress.fetched

    @property
    def offset_to_fetch(self) -> int | None:
        """``fetched``, or None while the partition must not be fetched, for example because it is paused."""
        if self.progress is None or not self.is_fetchable or self.is_paused or self.is_unsubscribed or self.is_halted:
            return None
        return self.progress.fetched

    @property
    def delivered(self) -> int | None:
        """Next offset to deliver; None until the start offset is known."""
        return None if self.progress is None else self.progress.delivered

    @property
    def next_offset(self) -> int | None:
        """Position as users see it: the offset of the next record to take; None until the start offset is known."""
        return None if self.progress is None else self.progress.next_offset

    @property
    def finished(self) -> int | None:
        """Offset to commit: the lowest unfinished offset; None until the start offset is known."""
        return None if self.progress is None else self.progress.finished

    @property
    def has_in_flight(self) -> bool:
        """True if a delivered record is in flight: neither finished nor left to the partition's next owner."""
        return self.progress is not None and self.progress.has_in_flight

    @property
    def is_commit_due(self) -> bool:
        """True if an automatic commit is due.

        A commit is due if ``finished`` has advanced since the last commit; it never goes back within an epoch. An
        offset that the user has committed stays until then, even if it is lower than ``finished``. A commit is also due
        for the first offset of each epoch, unless the user has committed another offset in that epoch:

        - The start offset of a partition without a committed offset has to be committed. Otherwise a consumer with
          ``latest`` would skip records that are written while it is down.
        - After a seek, even to the committed offset, a commit that was sent before may still arrive at the broker.
        """
        finished = self.finished
        return finished is not None and (self.has_stale_commit or finished > max(self.commit_base, self.committed or 0))

    @property
    def is_new_start(self) -> bool:
        """True if the partition has a start offset and the group has no committed offset."""
        return self.progress is not None and self.committed is None

    @property
    def is_uncommitted(self) -> bool:
        """True if ``finished`` is above the committed offset, or no offset was committed in the current epoch."""
        finished = self.finished
        return finished is not None and (self.has_stale_commit or finished > (self.committed or 0))

    @property
    def offset_map(self) -> OffsetMap | None:
        """Map of the offsets finished after the lowest unfinished offset, which is its base; None if there are none."""
        return None if self.progress is None else self.progress.offset_map(self.topic_id, self.delivered_epoch)

    def to_commit(self) -> tuple[int, OffsetMap | None]:
        """Return the lowest unfinished offset, and the offset map to commit with it."""
        assert self.progress is not None
        found = self.offset_map
        return (self.progress.lowest, None) if found is None else (found.base, found)

    @property
    def topic_id(self) -> UUID | None:
        """Id of the topic to which the offsets belong: of the last fetch in this epoch, otherwise of the assignment.

        None before the first fetch of a topic that is assigned by name, and with brokers without topic ids.
        """
        found = self.assigned_topic_id if self.fetched_topic_id is None else self.fetched_topic_id
        return None if found == NO_TOPIC_ID else found

    # ---- start of an epoch -------------------------------------------------------------------------------------

    @property
    def has_start(self) -> bool:
        """True if the partition has a start offset, has one looked up, or waits for a seek of the user."""
        return self.progress is not None or self.reset_to is not None or self.is_refused

    def begin(self, offset: int, leader_epoch: int = -1, known: OffsetMap | None = None) -> None:
        """Begin an epoch at ``offset``; ``known`` is the offset map of an earlier owner, if there is one."""
        self.end_epoch()
        self._set_start(offset, leader_epoch, known)

    def reset(self, to: StartPoint, before: int | None) -> None:
        """Begin an epoch whose start has to be looked up; ``before`` is the position if it was out of range."""
        self.end_epoch()
        self.reset_to, self.reset_from, self.fetched_topic_id = to, before, None
        self.is_refused = False
        self.preferred_read_replica = None

    def resolve(self, offset: int, leader_epoch: int = -1) -> None:
        """Set the start of the epoch that ``reset`` has begun.

        A commit of the user stays in force if records from the former position on were deleted, but not if the log ends
        before that position.
        """
        if self.reset_from is not None:
            self.has_stale_commit = not self.is_commit_chosen or self.reset_from >= offset
        self._set_start(offset, leader_epoch, None)

    def _set_start(self, offset: int, leader_epoch: int, known: OffsetMap | None) -> None:
        self.progress, self.map_fill = Progress(self.topic_partition, offset, known), OffsetMapSize()
        self.last_fetched_epoch = self.delivered_epoch = leader_epoch
        self.commit_base = offset
        self.reset_to = self.reset_from = self.fetched_topic_id = None
        self.is_refused = False
        self.failures, self.retry_at = 0, 0.0

    def end_epoch(self) -> None:
        """End the epoch: its records in flight are ignored, and the partition has no start."""
        self.epoch += 1
        self.has_stale_commit = self.has_stale_commit or self.has_start
        self.unreadable = None
        if self.progress is not None:
            self.progress.end()
        self.progress = self.reset_to = self.reset_from = None
        self.is_refused = False

    def move(self) -> None:
        """End the epoch, because the user chooses another start or the log was replaced or truncated.

        Commits that the user has sent before are no longer in force.
        """
        self.end_epoch()
        self.moves += 1
        self.has_stale_commit, self.is_commit_chosen = True, False

    def refuse(self) -> None:
        """Leave the position unset until the user seeks, and look up no start offset."""
        self.reset_to, self.is_refused = None, True

    def after_truncation(self, end_offset: int) -> tuple[int, int]:
        """Return the offset at which to continue after the log was truncated to ``end_offset`` (KIP-320).

        Also return the number of offsets that were lost after they had been taken. Records in flight, and records that
        were fetched but not taken, are fetched again.
        """
        assert self.progress is not None
        return min(self.progress.finished, end_offset), max(0, self.progress.next_offset - end_offset)

    # ---- fetching and delivery ---------------------------------------------------------------------------------

    def set_fetched(self, offset: int, leader_epoch: int) -> None:
        """Set the next offset to fetch, and the leader epoch of the batch before it."""
        assert self.progress is not None
        self.progress.set_fetched(offset)
        self.last_fetched_epoch = leader_epoch

    def fetch_again(self) -> None:
        """Set the next offset to fetch back to the next offset to deliver."""
        if self.progress is not None:
            self.set_fetched(self.progress.delivered, self.delivered_epoch)

    def stop_fetching(self) -> None:
        """Fetch nothing more until a seek, because an error will be raised after the buffered batches."""
        if self.progress is not None:
            self.progress.set_fetched(None)

    def wait_at(self, unreadable: UnreadableBatch) -> None:
        """Fetch nothing until ``fetch_again``, because the next batch cannot be delivered."""
        self.unreadable = unreadable
        self.stop_fetching()

    def skip_batch(self, to: int) -> None:
        """Continue at the offset ``to``, after a batch that cannot be delivered."""
        self.skip(to, self.delivered_epoch)
        self.set_fetched(to, self.delivered_epoch)

    def deliver(self, records: Sequence[Record], end: int, leader_epoch: int = -1) -> Lease:
        """Return a lease of the next records, after which the partition continues at ``end``."""
        assert self.progress is not None
        self.delivered_epoch = leader_epoch
        return self.progress.deliver(records, end)

    def skip(self, to: int, leader_epoch: int) -> None:
        """Skip offsets below ``to`` that hold no deliverable record; records in flight stay in flight."""
        if self.progress is not None and to > self.progress.delivered:
            self.progress.skip(to)
            self.delivered_epoch = max(self.delivered_epoch, leader_epoch)

    def note_committed(self, offset: int, user_text: str = "", offset_map: OffsetMap | None = None) -> None:
        """Note the offset, user text and offset map of a commit of finished records that was acknowledged."""
        self._note_commit(offset, user_text, offset_map)
        self.commit_base, self.is_commit_chosen = offset, False

    def note_chosen(self, offset: int, user_text: str, offset_map: OffsetMap | None, finished: int | None) -> None:
        """Note an acknowledged commit of an offset that the user has chosen.

        ``finished`` is the lowest unfinished offset at the time of the commit; None if there was no start offset.
        """
        self._note_commit(offset, user_text, offset_map)
        self.commit_base, self.is_commit_chosen = self.commit_base if finished is None else finished, True

    def _note_commit(self, offset: int, user_text: str, offset_map: OffsetMap | None) -> None:
        self.committed, self.committed_metadata, self.committed_map = offset, user_text, offset_map
        self.has_stale_commit = False

    def back_off(self, until: float) -> None:
        """Count a failed fetch, and fetch nothing before ``until``."""
        self.failures += 1
        self.retry_at = until


@dataclass
class AssignedPartitions:
    """State of the assigned partitions."""

    _all: dict[TopicPartition, Partition] = field(default_factory=dict)
    _epoch: int = 0
    """First epoch of the last assignment."""
    version: int = 0
    """Number that rises whenever partitions are added or removed."""
    _is_subscribed: Callable[[str], object] | None = None
    """Returns True for the name of a subscribed topic; None if every assigned partition is read."""

    def __contains__(self, partition: object) -> bool:
        return partition in self._all

    def __iter__(self) -> Iterator[Partition]:
        return iter(self._all.values())

    def __len__(self) -> int:
        return len(self._all)

    def get(self, partition: TopicPartition) -> Partition | None:
        """Return the state of a partition; None if the partition is not assigned."""
        return self._all.get(partition)

    @property
    def partitions(self) -> frozenset[TopicPartition]:
        """The assigned partitions."""
        return frozenset(self._all)

    def add(self, partitions: Iterable[TopicPartition]) -> list[Partition]:
        """Add partitions and return their state; partitions that are already assigned stay unchanged."""
        added = []
        for partition in partitions:
            if partition not in self._all:
                # Within an assignment, the epoch rises by 1. The next assignment begins 2**20 higher, so that no epoch
                # is used twice.
                self._epoch += _EPOCHS_PER_ASSIGNMENT
                self._all[partition] = Partition(partition, self._epoch)
                added.append(self._all[partition])
                self.version += 1
        self._mark_unsubscribed(added)
        return added

    def subscribe(self, is_subscribed: Callable[[str], object] | None) -> None:
        """Mark partitions, also those assigned later, as unsubscribed if ``is_subscribed`` is false for their topic."""
        self._is_subscribed = is_subscribed
        self._mark_unsubscribed(self)

    def _mark_unsubscribed(self, positions: Iterable[Partition]) -> None:
        is_subscribed = self._is_subscribed
        for position in positions:
            position.is_unsubscribed = is_subscribed is not None and not is_subscribed(position.topic_partition.topic)

    def remove(self, partitions: Iterable[TopicPartition]) -> None:
        """Remove partitions that were revoked or lost."""
        for partition in partitions:
            if (position := self._all.pop(partition, None)) is not None:
                position.end_epoch()
                self.version += 1

    def of(self, partitions: Iterable[TopicPartition]) -> list[Partition]:
        """Return the state of each of ``partitions`` that is assigned."""
        return [self._all[partition] for partition in partitions if partition in self._all]
