"""Positions of the assigned partitions: progress of the current epoch, committed offset, and state of fetching.

Each assignment, seek and reset begins an epoch. Records that were fetched or delivered in an older epoch are ignored.
All epochs of an assignment share the committed offset.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from uuid import UUID

from tailrace.core.delivery.offset_map_size import OffsetMapSize
from tailrace.core.delivery.progress import InFlight, Lease, Progress
from tailrace.core.offset_map import OffsetMap
from tailrace.core.positions.start_point import StartPoint
from tailrace.protocol.message import NO_TOPIC_ID
from tailrace.records import Record, TopicPartition

__all__ = ["Position", "Positions"]

_EPOCHS_OF_ONE = 1 << 20
"""Maximum number of epochs within one assignment of a partition."""


@dataclass(slots=True)
class Position:
    """One assigned partition."""

    partition: TopicPartition
    epoch: int
    progress: Progress | None = None
    """Progress of the current epoch; None until the start offset is known."""
    committed: int | None = None
    """Committed offset that the broker last acknowledged; None if the group has no committed offset."""
    committed_metadata: str = ""
    """User's metadata of the committed offset."""
    committed_map: OffsetMap | None = None
    """Offset map of the same commit as ``committed``."""
    has_stale_commit: bool = True
    """True if the last commit is older than the epoch, so that a commit is due whatever the finished offset is."""
    map_fill: OffsetMapSize = field(default_factory=OffsetMapSize)
    """Share of the commit metadata that the offset map takes."""
    last_fetched_epoch: int = -1
    """Leader epoch of the last fetched batch (KIP-595)."""
    fetched_topic_id: UUID | None = None
    """Topic id of the last fetch in this epoch; a recreated topic has another id."""
    delivered_epoch: int = -1
    """Leader epoch of the last delivered batch, for commits."""
    reset_to: StartPoint | None = None
    """Start point to look up; None while the position is valid."""
    reset_from: int | None = None
    """Position that was out of range."""
    is_refused: bool = False
    """True if only a seek can set the position (``auto_offset_reset="none"``)."""
    is_fetchable: bool = False
    """True after the rebalance callbacks have returned and the positions that they chose are set."""
    is_halted: bool = False
    """True if the partition is about to be revoked, so that nothing more is delivered."""
    is_paused: bool = False
    """True if the user has paused the partition."""
    is_unsubscribed: bool = False
    """True if the topic is no longer subscribed to; the next rebalance revokes the partition."""
    high_watermark: int | None = None
    last_stable_offset: int | None = None
    """Last stable offset with ``read_committed``, else the high watermark."""
    log_start: int | None = None
    preferred_read_replica: int | None = None
    """Follower that the leader has named to fetch from (KIP-392)."""
    preferred_read_replica_until: float = 0.0
    failures: int = 0
    """Failed fetches in a row."""
    retry_at: float = 0.0

    @property
    def assignment(self) -> int:
        """Number of the assignment; seeks do not change it."""
        return self.epoch // _EPOCHS_OF_ONE

    @property
    def is_held_back(self) -> bool:
        """True if the user's pause or subscription keeps records from being delivered."""
        return self.is_paused or self.is_unsubscribed

    # ---- offsets -----------------------------------------------------------------------------------------------

    @property
    def fetched(self) -> int | None:
        """Next offset to fetch; None if nothing is to be fetched now."""
        return None if self.progress is None else self.progress.fetched

    @property
    def delivered(self) -> int | None:
        """Next offset to deliver; None until the start offset is known."""
        return None if self.progress is None else self.progress.delivered

    @property
    def next_offset(self) -> int | None:
        """Offset of the next record to start: the position, as users know it."""
        return None if self.progress is None else self.progress.next_offset

    @property
    def finished(self) -> int | None:
        """Offset to commit: the lowest unfinished offset."""
        return None if self.progress is None else self.progress.finished

    @property
    def has_in_flight(self) -> bool:
        """True if a delivered record is neither finished nor left to the partition's next owner."""
        return self.progress is not None and self.progress.has_in_flight

    @property
    def is_dirty(self) -> bool:
        """True if a commit is due; within an epoch, the offset to commit is never below the last committed one.

        A start offset that was never committed is due, too: after ``latest`` on an empty partition, records written
        while the consumer is down must not be skipped. After a seek to the committed offset a commit is due as well,
        because an older commit may still be on its way.
        """
        finished = self.finished
        if finished is None:
            return False
        return self.has_stale_commit or self.committed is None or finished > self.committed

    @property
    def offset_map(self) -> OffsetMap | None:
        """Offsets finished after ``finished``; None if there are none."""
        if self.progress is None or (found := self.progress.offset_map()) is None:
            return None
        if self.progress.known is None:
            found.bind_to_log(self.topic_id, self.delivered_epoch)
        return found

    @property
    def topic_id(self) -> UUID | None:
        """Id of the topic last fetched; None before the first fetch, and on brokers without topic ids."""
        return None if self.fetched_topic_id == NO_TOPIC_ID else self.fetched_topic_id

    # ---- where reading begins ----------------------------------------------------------------------------------

    def begin(self, offset: int, leader_epoch: int = -1, known: OffsetMap | None = None) -> None:
        """Begin an epoch at ``offset``; ``known`` is the offset map of an earlier owner."""
        self.end_epoch()
        self.progress, self.map_fill = Progress(self.partition, offset, known), OffsetMapSize()
        self.last_fetched_epoch = self.delivered_epoch = leader_epoch
        self.has_stale_commit = True
        self.reset_to = self.reset_from = self.fetched_topic_id = None
        self.is_refused = False
        self.failures, self.retry_at = 0, 0.0

    def reset(self, to: StartPoint, before: int | None) -> None:
        """Begin an epoch whose start has to be looked up; ``before`` is the position that was out of range, if any."""
        self.end_epoch()
        self.reset_to, self.reset_from, self.fetched_topic_id = to, before, None
        self.is_refused = False
        self.preferred_read_replica = None

    def end_epoch(self) -> None:
        """End the epoch; from now on its records in flight are ignored."""
        self.epoch += 1
        if self.progress is not None:
            self.progress.end()
        self.progress = None

    def refuse(self) -> None:
        """Leave the position unset until the user seeks, and look up no start offset."""
        self.reset_to, self.is_refused = None, True

    def diverged(self, end_offset: int) -> tuple[int, int]:
        """Return where to continue after the log was truncated to ``end_offset``, and the number of lost records.

        Records in flight and records that were only fetched are fetched again (KIP-320).
        """
        assert self.progress is not None
        return min(self.progress.finished, end_offset), max(0, self.progress.next_offset - end_offset)

    # ---- fetching and delivery ---------------------------------------------------------------------------------

    def fetched_to(self, offset: int, leader_epoch: int) -> None:
        """Set the next offset to fetch, and the leader epoch of the batch before it."""
        assert self.progress is not None
        self.progress.fetched_to(offset)
        self.last_fetched_epoch = leader_epoch

    def fetch_again(self) -> None:
        """Fetch all records again that were fetched but not delivered."""
        if self.progress is not None:
            self.fetched_to(self.progress.delivered, self.delivered_epoch)

    def stop_fetching(self) -> None:
        """Fetch nothing more until a seek, because an error follows the buffered batches."""
        if self.progress is not None:
            self.progress.fetched_to(None)

    def deliver(
        self, records: Sequence[Record], end: int, leader_epoch: int = -1, in_flight: InFlight = InFlight.NOTHING
    ) -> Lease:
        """Return a lease of the next records, after which the partition continues at ``end``."""
        assert self.progress is not None
        self.delivered_epoch = leader_epoch
        return self.progress.deliver(records, end, in_flight)

    def skip(self, to: int, leader_epoch: int) -> None:
        """Skip offsets below ``to`` that hold no deliverable record; records in flight stay in flight."""
        if self.progress is not None and to > self.progress.delivered:
            self.progress.skip(to)
            self.delivered_epoch = max(self.delivered_epoch, leader_epoch)

    def note_committed(self, offset: int, user_text: str = "", offset_map: OffsetMap | None = None) -> None:
        """Note an offset that the broker has stored in this epoch."""
        self.committed, self.committed_metadata, self.committed_map = offset, user_text, offset_map
        self.has_stale_commit = False

    def back_off(self, until: float) -> None:
        """Count a failed fetch, and fetch nothing before ``until``."""
        self.failures += 1
        self.retry_at = until


@dataclass
class Positions:
    """The assigned partitions."""

    _all: dict[TopicPartition, Position] = field(default_factory=dict)
    _epoch: int = 0
    _is_subscribed: Callable[[str], object] | None = None
    """Predicate that selects topics by name; None if every assigned partition is read."""

    def __contains__(self, partition: object) -> bool:
        return partition in self._all

    def __iter__(self) -> Iterator[Position]:
        return iter(self._all.values())

    def __len__(self) -> int:
        return len(self._all)

    def get(self, partition: TopicPartition) -> Position | None:
        """Return the position of a partition; None if it is not assigned."""
        return self._all.get(partition)

    @property
    def partitions(self) -> frozenset[TopicPartition]:
        """The assigned partitions."""
        return frozenset(self._all)

    def add(self, partitions: Iterable[TopicPartition]) -> list[Position]:
        """Add partitions and return the new positions; partitions that are already assigned stay unchanged."""
        added = []
        for partition in partitions:
            if partition not in self._all:
                # Epochs of one assignment rise by 1, those of the next begin 2**20 higher, so none is used twice.
                self._epoch += _EPOCHS_OF_ONE
                self._all[partition] = Position(partition, self._epoch)
                added.append(self._all[partition])
        self._mark(added)
        return added

    def subscribe(self, is_subscribed: Callable[[str], object] | None) -> None:
        """Read only partitions of topics for which ``is_subscribed`` is true, including partitions assigned later."""
        self._is_subscribed = is_subscribed
        self._mark(self)

    def _mark(self, positions: Iterable[Position]) -> None:
        is_subscribed = self._is_subscribed
        for position in positions:
            position.is_unsubscribed = is_subscribed is not None and not is_subscribed(position.partition.topic)

    def remove(self, partitions: Iterable[TopicPartition]) -> None:
        """Remove partitions that were revoked or lost."""
        for partition in partitions:
            if (position := self._all.pop(partition, None)) is not None:
                position.end_epoch()

    def of(self, partitions: Iterable[TopicPartition]) -> list[Position]:
        """Return the positions of the assigned ones among ``partitions``."""
        return [self._all[partition] for partition in partitions if partition in self._all]
