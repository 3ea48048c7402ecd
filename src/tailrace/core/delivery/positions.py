"""Where each assigned partition stands: the present epoch's progress, what is committed, and what fetching knows.

Each assignment, seek and reset begins a new epoch; what was fetched or delivered under an older one counts for nothing
any more. An assignment's epochs share what the group has committed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from uuid import UUID

from tailrace.core.delivery.offset_map_size import OffsetMapSize
from tailrace.core.delivery.progress import InHand, Lease, Progress
from tailrace.core.offset_map import OffsetMap
from tailrace.core.positions.start_point import StartPoint
from tailrace.protocol.message import NO_TOPIC_ID
from tailrace.records import Record, TopicPartition

__all__ = ["Position", "Positions"]

_EPOCHS_OF_ONE = 1 << 20
"""The number of epochs that one assignment of a partition may have."""


@dataclass(slots=True)
class Position:
    """One assigned partition."""

    partition: TopicPartition
    epoch: int
    progress: Progress | None = None
    """The present epoch; None until it is known where to begin."""
    committed: int | None = None
    """As last acknowledged by the broker; None when the group has no offset of it."""
    committed_metadata: str = ""
    """The user's own text beside that offset."""
    committed_map: OffsetMap | None = None
    """What was said with that offset to be finished behind it."""
    is_anew: bool = True
    """Whether that is from before this beginning: a commit is due, wherever this is."""
    map_fill: OffsetMapSize = field(default_factory=OffsetMapSize)
    """How much of the commit metadata the offset map takes."""
    last_fetched_epoch: int = -1
    """The leader's epoch that the last fetched batch was written under (KIP-595)."""
    fetched_topic_id: UUID | None = None
    """The topic's id when it was last fetched in this epoch; a recreated topic has another, and other records."""
    delivered_epoch: int = -1
    """The leader's epoch of the last batch that was delivered; it goes with a commit."""
    reset_to: StartPoint | None = None
    """Where to look for a beginning; None while the position is good."""
    reset_from: int | None = None
    """The position that the log did not have."""
    is_refused: bool = False
    """Whether the user has to say where to begin."""
    is_fetchable: bool = False
    """Whether fetching has begun: not before callbacks have returned and overrides are applied."""
    is_halted: bool = False
    """Whether nothing more is delivered, because the partition is about to be released."""
    is_paused: bool = False
    """Whether the user has paused it."""
    is_unsubscribed: bool = False
    """Whether its topic is not subscribed to any more: the next rebalance revokes it."""
    high_watermark: int | None = None
    last_stable_offset: int | None = None
    """The same, or with ``read_committed`` where the first open transaction begins."""
    log_start: int | None = None
    preferred_read_replica: int | None = None
    """A nearer broker than the leader, as the leader has said (KIP-392)."""
    preferred_read_replica_until: float = 0.0
    failures: int = 0
    """Fetches of it that failed in a row."""
    retry_at: float = 0.0

    @property
    def assignment(self) -> int:
        """Which of this consumer's assignments of the partition it is; seeks do not change that."""
        return self.epoch // _EPOCHS_OF_ONE

    @property
    def is_held_back(self) -> bool:
        """Whether nothing is delivered for as long as the user's choice stands."""
        return self.is_paused or self.is_unsubscribed

    # ---- offsets -----------------------------------------------------------------------------------------------

    @property
    def fetched(self) -> int | None:
        """The next offset to fetch; None when nothing is to be fetched now."""
        return None if self.progress is None else self.progress.fetched

    @property
    def delivered(self) -> int | None:
        """The next offset to deliver; None until it is known where to begin."""
        return None if self.progress is None else self.progress.delivered

    @property
    def next_offset(self) -> int | None:
        """The offset of the next record to be handed out: the position, as users know it."""
        return None if self.progress is None else self.progress.next_offset

    @property
    def finished(self) -> int | None:
        """What may be committed: the lowest offset that is not finished."""
        return None if self.progress is None else self.progress.finished

    @property
    def has_in_flight(self) -> bool:
        """Whether a record is handed out and neither finished nor left to the next owner."""
        return self.progress is not None and self.progress.has_in_flight

    @property
    def is_dirty(self) -> bool:
        """Whether there is something to commit; nothing is below what was committed since the beginning.

        A beginning that was never committed counts: after ``latest`` on an empty partition, what comes while the
        consumer is down must not be skipped when it is back. After a seek to what is committed, a commit of before
        may be on its way.
        """
        finished = self.finished
        if finished is None:
            return False
        return self.is_anew or self.committed is None or finished > self.committed

    @property
    def offset_map(self) -> OffsetMap | None:
        """What goes with a commit of ``finished``: what is finished behind it; None when nothing is."""
        if self.progress is None or (found := self.progress.offset_map()) is None:
            return None
        if self.progress.known is None:
            found.of_log(self.topic_id, self.delivered_epoch)
        return found

    @property
    def topic_id(self) -> UUID | None:
        """Id of the topic that was fetched last; None before the first fetch, and on brokers without topic ids."""
        return None if self.fetched_topic_id == NO_TOPIC_ID else self.fetched_topic_id

    # ---- where reading begins ----------------------------------------------------------------------------------

    def begin(self, offset: int, leader_epoch: int = -1, known: OffsetMap | None = None) -> None:
        """Read from ``offset`` on; what ``known`` says is finished was finished by an earlier owner."""
        self.end_epoch()
        self.progress, self.map_fill = Progress(self.partition, offset, known), OffsetMapSize()
        self.last_fetched_epoch = self.delivered_epoch = leader_epoch
        self.is_anew = True
        self.reset_to = self.reset_from = self.fetched_topic_id = None
        self.is_refused = False
        self.failures, self.retry_at = 0, 0.0

    def reset(self, to: StartPoint, before: int | None) -> None:
        """The log has no ``before`` (or there never was a position): find a beginning at ``to``."""
        self.end_epoch()
        self.reset_to, self.reset_from, self.fetched_topic_id = to, before, None
        self.is_refused = False
        self.preferred_read_replica = None

    def end_epoch(self) -> None:
        """What is in flight counts for nothing any more."""
        self.epoch += 1
        if self.progress is not None:
            self.progress.end()
        self.progress = None

    def refuse(self) -> None:
        """No beginning is looked for: the user has to say where to begin."""
        self.reset_to, self.is_refused = None, True

    def diverged(self, end_offset: int) -> tuple[int, int]:
        """The log was cut and goes on in another way from ``end_offset`` on: where to go on, and how much is gone.

        What was delivered behind it was never to stay; what was only fetched is fetched again (KIP-320), and so is
        what is in flight: it counts for nothing from now on.
        """
        assert self.progress is not None
        return min(self.progress.finished, end_offset), max(0, self.progress.next_offset - end_offset)

    # ---- fetching and delivery ---------------------------------------------------------------------------------

    def fetched_to(self, offset: int, leader_epoch: int) -> None:
        """What is below ``offset`` is buffered, or was buffered and is forgotten again."""
        assert self.progress is not None
        self.progress.fetched_to(offset)
        self.last_fetched_epoch = leader_epoch

    def fetch_again(self) -> None:
        """What is buffered is forgotten, and will be fetched again."""
        if self.progress is not None:
            self.fetched_to(self.progress.delivered, self.delivered_epoch)

    def stop_fetching(self) -> None:
        """Fetch nothing behind what is buffered, until somebody seeks: an error stands there."""
        if self.progress is not None:
            self.progress.fetched_to(None)

    def deliver(
        self, records: Sequence[Record], end: int, leader_epoch: int = -1, in_hand: InHand = InHand.NOTHING
    ) -> Lease:
        """Records are handed over, behind which the partition goes on at ``end``."""
        assert self.progress is not None
        self.delivered_epoch = leader_epoch
        return self.progress.deliver(records, end, in_hand)

    def skip(self, to: int, leader_epoch: int) -> None:
        """There are no records to deliver below ``to``; what is in flight before it stays so."""
        if self.progress is not None and to > self.progress.delivered:
            self.progress.skip(to)
            self.delivered_epoch = max(self.delivered_epoch, leader_epoch)

    def note_committed(self, offset: int, user_text: str = "", offset_map: OffsetMap | None = None) -> None:
        """The group has this of it, since its beginning."""
        self.committed, self.committed_metadata, self.committed_map = offset, user_text, offset_map
        self.is_anew = False

    def back_off(self, until: float) -> None:
        """Do not ask the broker for it before ``until``."""
        self.failures += 1
        self.retry_at = until


@dataclass
class Positions:
    """The assigned partitions."""

    _all: dict[TopicPartition, Position] = field(default_factory=dict)
    _epoch: int = 0
    _is_subscribed: Callable[[str], object] | None = None
    """Predicate of topic names; None if each assigned partition is read."""

    def __contains__(self, partition: object) -> bool:
        return partition in self._all

    def __iter__(self) -> Iterator[Position]:
        return iter(self._all.values())

    def __len__(self) -> int:
        return len(self._all)

    def get(self, partition: TopicPartition) -> Position | None:
        """The position of a partition; None when it is not assigned."""
        return self._all.get(partition)

    @property
    def partitions(self) -> frozenset[TopicPartition]:
        """What is assigned."""
        return frozenset(self._all)

    def add(self, partitions: Iterable[TopicPartition]) -> list[Position]:
        """New partitions, with nothing known of them yet; those that are there are left as they are."""
        added = []
        for partition in partitions:
            if partition not in self._all:
                # No two assignments share an epoch: begin() adds ones, assignments add millions.
                self._epoch += _EPOCHS_OF_ONE
                self._all[partition] = Position(partition, self._epoch)
                added.append(self._all[partition])
        self._mark(added)
        return added

    def subscribe(self, is_subscribed: Callable[[str], object] | None) -> None:
        """Read only partitions of topics for which ``is_subscribed`` is true, those assigned later included."""
        self._is_subscribed = is_subscribed
        self._mark(self)

    def _mark(self, positions: Iterable[Position]) -> None:
        is_subscribed = self._is_subscribed
        for position in positions:
            position.is_unsubscribed = is_subscribed is not None and not is_subscribed(position.partition.topic)

    def remove(self, partitions: Iterable[TopicPartition]) -> None:
        """They are not ours any more."""
        for partition in partitions:
            if (position := self._all.pop(partition, None)) is not None:
                position.end_epoch()

    def of(self, partitions: Iterable[TopicPartition]) -> list[Position]:
        """The positions of those of ``partitions`` that are assigned."""
        return [self._all[partition] for partition in partitions if partition in self._all]
