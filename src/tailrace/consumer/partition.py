"""Assigned partitions: everything that a consumer keeps for one partition, and for all of them together.

Pure: no clock, IO or logging.

Each assignment, seek and reset begins an epoch (an assignment epoch, not a leader epoch). Records that were fetched or
delivered in an older epoch are ignored. All epochs of an assignment share the committed offset.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import Any, Protocol, Self
from uuid import UUID

from tailrace.core.offset_map import EncodedMetadata, OffsetMap, encode_metadata
from tailrace.core.progress import Lease, Progress
from tailrace.core.start_point import StartPoint
from tailrace.errors import OffsetGapError
from tailrace.protocol.message import NO_TOPIC_ID
from tailrace.records import Record, TopicPartition

__all__ = [
    "AssignedPartitions",
    "BufferSpace",
    "OffsetMapSize",
    "Partition",
    "QueuedBatch",
    "StartWait",
    "UnreadableBatch",
]


class QueuedBatch(Protocol):
    """Batch in the queue of a partition: a ``BufferedBatch``, as far as code needs it that decodes no records."""

    next_offset: int
    leader_epoch: int
    size: int
    is_decompressing: bool

    @property
    def has_error(self) -> bool: ...

    @property
    def is_compressed(self) -> bool: ...

    @property
    def is_empty(self) -> bool: ...

    @property
    def next_timestamp(self) -> int | None: ...

    @property
    def plain_bytes(self) -> int: ...

    def max_count_from(self, offset: int) -> int: ...

    def merge(self, following: Self, /) -> bool: ...

    def pack(self) -> None: ...


# ---- space that the buffered batches of all partitions take together -------------------------------------------------

_MOST_IN_FLIGHT = 2
"""Maximum number of batches that threads decompress at a time; low, because decompressed sizes are not known before."""


class BufferSpace:
    """Space for fetched batches, which the partitions of one consumer share.

    Each partition has an equal share, so that a paused or slow partition uses only its own share. Before a fetch is
    sent, space for its answer is reserved. The limit may be exceeded by one batch per broker, because a broker sends a
    first batch even if it is larger than requested.

    Attributes:
        max_bytes: limit of the bytes of all batches.
        held_bytes: bytes of all batches.
        reserved_bytes: bytes reserved for fetches in flight.
        taken_bytes: bytes of all batches removed by ``Partition.remove_first``; they grow while records are delivered.
        largest_bytes: size of the largest batch so far.
        waiting: partitions with a batch, in the order in which they are read.
        decompressing: number of batches that threads are decompressing.
        plain_bytes: bytes of all decompressed batches, including those consumed since the last count.
    """

    def __init__(self, max_bytes: int = 0) -> None:
        self.max_bytes = max_bytes
        self.held_bytes = self.reserved_bytes = self.taken_bytes = self.largest_bytes = 0
        self.waiting: OrderedDict[Partition, None] = OrderedDict()
        self.decompressing = self.plain_bytes = 0

    @property
    def free_bytes(self) -> int:
        return max(0, self.max_bytes - self.held_bytes - self.reserved_bytes)

    def share_of(self, partitions: int) -> int:
        return self.max_bytes // max(partitions, 1)

    def in_turn(self) -> Iterator[Partition]:
        """Yield each partition that has a batch once; a partition that was yielded becomes the last in turn."""
        for _ in range(len(self.waiting)):
            partition = next(iter(self.waiting))
            self.waiting.move_to_end(partition)
            yield partition


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
        self.note_encoded(encode_metadata(progress.offset_map(), "", limit, writer=writer))
        self._measured_at, self._again_at = progress.delivered, now + _PAUSE_S
        self._seen = progress.finished, progress.started

    def note_encoded(self, envelope: EncodedMetadata) -> None:
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
class StartWait:
    """Wait of a partition for its start offset, through any number of look-ups."""

    since: float
    """Time at which the wait began."""
    reason: str = "its leader has not answered yet"
    """Reason why the last look-up did not return the offset."""
    is_refused: bool = False
    """True if the leader has refused the last look-up with an error that a retry does not resolve."""
    is_reported: bool = False
    """True once ``StartOffsetDelayed`` was emitted."""


@dataclass(slots=True, eq=False)
class Partition:
    """State of one assigned partition; users see ``next_offset`` as its position."""

    topic_partition: TopicPartition
    epoch: int
    """Number of the current assignment epoch."""
    space: BufferSpace = field(default_factory=BufferSpace)
    """Space of the buffered batches of all partitions."""
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
    has_known_map: bool = False
    """True if the offset map of an earlier owner may apply to the records that are read next."""
    is_map_full: bool = False
    """True from the event OffsetMapFull to OffsetMapRecovered; ``OffsetMapWatch.holds_back`` stops the records."""
    skipped_finished: int = 0
    """Number of skipped records, finished by an earlier owner, that no event has reported yet."""
    next_expected: int | None = None
    """Offset of the next record if none is missing (``allow_offset_gaps=False``); None at the start of an epoch."""
    fetched: int | None = None
    """Next offset to fetch; None until the start offset is known, and after an error that ends the buffered batches."""
    batches: deque[QueuedBatch] = field(default_factory=deque)
    """Fetched batches whose records are not delivered, oldest first."""
    buffered_bytes: int = 0
    """Bytes of ``batches``."""
    decompressed: QueuedBatch | None = None
    """Batch that is decompressed, or that a thread is decompressing; None without one."""
    corrupt: tuple[int, int] = (-1, 0)
    """Offset of the last corrupt batch, and the number of times that it was fetched."""
    unacknowledged: dict[int, Any] = field(default_factory=dict)
    """Records delivered in the current epoch that the user has not acknowledged (``ack="manual"``), by offset."""
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
    start_wait: StartWait | None = None
    """Wait for the start offset; None without one."""
    reset_from: int | None = None
    """Position that was out of range and led to the reset; None if there is none."""
    is_refused: bool = False
    """True if the partition has no position until a seek, because of ``auto_offset_reset="none"``."""
    is_fetchable: bool = False
    """True once the rebalance callbacks after the assignment have returned and the positions that they chose are set.

    It stays True in later rebalances, during whose callbacks a kept partition is fetched and delivered.
    """
    is_halted: bool = False
    """True if the partition is about to be revoked, or the consumer ends, so that no more records are delivered."""
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
    def offset_to_fetch(self) -> int | None:
        """``fetched``, or None while the partition must not be fetched, for example because it is paused."""
        if self.is_fetchable and not (self.is_held_back or self.is_halted):
            return self.fetched
        return None

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
        """Lowest offset that is unfinished or held for a transaction; None until the start offset is known.

        ``to_commit`` returns what is committed.
        """
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
        self.fetched, self.has_known_map = offset, known is not None
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
        self.progress = self.fetched = self.reset_to = self.reset_from = self.next_expected = None
        self.unacknowledged = {}
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

    # ---- buffered batches --------------------------------------------------------------------------------------

    def put(self, batch: QueuedBatch) -> None:
        """Append a fetched batch, offsets without records, or an error, and fetch the offsets after it."""
        if not self.batches:
            self.space.waiting[self] = None
        if not self.batches or not self.batches[-1].merge(batch):
            self.batches.append(batch)
            self.enlarge_last(batch.size)
        if batch.has_error:
            self.fetched = None
        else:
            self.fetched, self.last_fetched_epoch, self.corrupt = batch.next_offset, batch.leader_epoch, (-1, 0)

    def enlarge_last(self, size: int) -> None:
        """Count ``size`` more bytes for the newest batch, and fetch the offsets after it."""
        newest, space = self.batches[-1], self.space
        self.fetched = newest.next_offset
        self.buffered_bytes += size
        space.held_bytes += size
        space.largest_bytes = max(space.largest_bytes, newest.size)

    def put_back(self, batch: QueuedBatch) -> None:
        """Prepend a batch of records that were taken but not delivered; it takes no space."""
        if not self.batches:
            self.space.waiting[self] = None
        self.batches.appendleft(batch)

    def remove_first(self) -> None:
        """Remove the oldest batch, all of whose records were taken."""
        size = self.batches.popleft().size
        self.buffered_bytes -= size
        self.space.held_bytes -= size
        self.space.taken_bytes += size
        if not self.batches:
            del self.space.waiting[self]

    def drop_batches(self) -> None:
        self.space.held_bytes -= self.buffered_bytes
        self.space.waiting.pop(self, None)
        self.buffered_bytes = 0
        self.batches.clear()

    def cut(self, most: int, least: int = 0) -> bool:
        """Drop newest batches while there are more than ``most`` bytes, to be fetched again; return True if any were.

        A batch is not dropped if it is the oldest, or if fewer than ``least`` bytes would be left.
        """
        count = dropped = 0
        for batch in islice(reversed(self.batches), max(0, len(self.batches) - 1)):
            left = self.buffered_bytes - dropped
            if left <= most or left - batch.size < least:
                break
            count, dropped = count + 1, dropped + batch.size
        if not dropped:
            return False
        for _ in range(count):
            self.batches.pop()
        self.buffered_bytes -= dropped
        self.space.held_bytes -= dropped
        self.fetched, self.last_fetched_epoch = self.batches[-1].next_offset, self.batches[-1].leader_epoch
        return True

    def gap_in(self, records: Sequence[Record]) -> tuple[int, OffsetGapError | None]:
        """Return the number of ``records`` before the first missing offset, and its error; None without a gap."""
        expected = self.next_expected if self.next_expected is not None else self.delivered or 0
        for count, record in enumerate(records):
            if record.offset > expected:
                self.next_expected = expected
                return count, OffsetGapError(self.topic_partition, expected, record.offset)
            expected = record.offset + 1
        self.next_expected = expected
        return len(records), None

    # ---- fetching and delivery ---------------------------------------------------------------------------------

    def fetch_again(self) -> None:
        """Set the next offset to fetch back to the next offset to deliver."""
        if self.progress is not None:
            self.fetched, self.last_fetched_epoch = self.progress.delivered, self.delivered_epoch

    def wait_at(self, unreadable: UnreadableBatch) -> None:
        """Fetch nothing until ``fetch_again``, because the next batch cannot be delivered."""
        self.unreadable, self.fetched = unreadable, None

    def skip_batch(self, to: int) -> None:
        """Continue at the offset ``to``, after a batch that cannot be delivered."""
        self.skip(to, self.delivered_epoch)
        self.fetched, self.last_fetched_epoch = to, self.delivered_epoch

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
        """Note offset, user text and offset map of a commit of finished records, acknowledged or found at the start."""
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
        self.failures += 1
        self.retry_at = until


@dataclass
class AssignedPartitions:
    """State of the assigned partitions."""

    space: BufferSpace = field(default_factory=BufferSpace)
    """Space of the buffered batches."""
    _all: dict[TopicPartition, Partition] = field(default_factory=dict)
    _epoch: int = 0
    """First epoch of the last assignment."""
    version: int = 0
    """Number that rises whenever partitions are added or removed."""
    _is_subscribed: Callable[[str], object] | None = None
    """Returns True for the name of a subscribed topic; None if every assigned partition is read."""

    def __contains__(self, topic_partition: object) -> bool:
        return topic_partition in self._all

    def __iter__(self) -> Iterator[Partition]:
        return iter(self._all.values())

    def __len__(self) -> int:
        return len(self._all)

    def get(self, topic_partition: TopicPartition) -> Partition | None:
        return self._all.get(topic_partition)

    @property
    def topic_partitions(self) -> frozenset[TopicPartition]:
        return frozenset(self._all)

    def add(self, partitions: Iterable[TopicPartition]) -> list[Partition]:
        """Add partitions and return their state; partitions that are already assigned stay unchanged."""
        added = []
        for topic_partition in partitions:
            if topic_partition not in self._all:
                # Within an assignment, the epoch rises by 1. The next assignment begins 2**20 higher, so that no epoch
                # is used twice.
                self._epoch += _EPOCHS_PER_ASSIGNMENT
                self._all[topic_partition] = Partition(topic_partition, self._epoch, self.space)
                added.append(self._all[topic_partition])
                self.version += 1
        self._mark_unsubscribed(added)
        return added

    def subscribe(self, is_subscribed: Callable[[str], object] | None) -> None:
        """Mark partitions, also those assigned later, as unsubscribed if ``is_subscribed`` is false for their topic."""
        self._is_subscribed = is_subscribed
        self._mark_unsubscribed(self)

    def _mark_unsubscribed(self, partitions: Iterable[Partition]) -> None:
        is_subscribed = self._is_subscribed
        for partition in partitions:
            partition.is_unsubscribed = is_subscribed is not None and not is_subscribed(partition.topic_partition.topic)

    def remove(self, partitions: Iterable[TopicPartition]) -> None:
        for topic_partition in partitions:
            if (partition := self._all.pop(topic_partition, None)) is not None:
                partition.end_epoch()
                partition.drop_batches()
                self.version += 1

    def of(self, partitions: Iterable[TopicPartition]) -> list[Partition]:
        return [self._all[one] for one in partitions if one in self._all]

    # ---- decompressed batches ----------------------------------------------------------------------------------

    def has_room_to_decompress(self, is_read: Callable[[Partition], bool]) -> bool:
        """Return True if another batch may be decompressed; if necessary, pack batches of partitions not being read."""
        space = self.space
        if space.decompressing >= _MOST_IN_FLIGHT:
            return False
        if space.plain_bytes < space.max_bytes:
            return True
        held = self._decompressed()
        if space.plain_bytes < space.max_bytes:
            return True
        if any(batch.is_decompressing or is_read(one) for one, batch in held):
            return False
        # No partition with a decompressed batch is read, so the batches may be packed in any order.
        for partition, batch in held:
            if space.plain_bytes < space.max_bytes:
                break
            space.plain_bytes -= batch.plain_bytes
            batch.pack()
            partition.decompressed = None
        return True

    def _decompressed(self) -> list[tuple[Partition, QueuedBatch]]:
        """Return the partitions that hold a decompressed batch, with the batches, and count the bytes of these."""
        held = []
        for partition in self:
            batch = partition.decompressed
            if batch is None:
                continue
            if batch.has_error:
                # No more records are taken from a batch with an error, so its decompressed form is not needed.
                batch.pack()
            # Records that were put back may be before the batch in the queue.
            is_buffered = any(one is batch for one in islice(partition.batches, 2))
            if is_buffered and (batch.plain_bytes or batch.is_decompressing):
                held.append((partition, batch))
            else:
                partition.decompressed = None
        self.space.plain_bytes = sum(batch.plain_bytes for _, batch in held)
        return held
