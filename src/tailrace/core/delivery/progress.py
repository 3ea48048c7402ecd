"""Where each assigned partition stands: what is fetched, handed out, done, committed.

Four offsets, all of the *next* record: ``done <= delivered <= fetched`` always, and ``committed <= done`` within one
epoch unless the user has chosen what to commit. ``delivered`` is what the user calls the position. Each assignment,
seek and reset begins a new epoch; what was fetched, handed out or acknowledged under an older one counts for nothing
any more. With each beginning comes a tracker of its own, for what is finished out of order.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from uuid import UUID

from tailrace.core.delivery.offset_map_size import OffsetMapSize
from tailrace.core.delivery.offset_tracker import OffsetTracker
from tailrace.core.offset_map import OffsetMap
from tailrace.core.positions.start_point import StartPoint
from tailrace.protocol.messages import NO_TOPIC_ID
from tailrace.records import TopicPartition

__all__ = ["Position", "Positions"]


_EPOCHS_OF_ONE = 1 << 20
"""So many epochs has one assignment of a partition."""


@dataclass(slots=True)
class Position:
    """One assigned partition."""

    partition: TopicPartition
    epoch: int
    fetched: int | None = None
    """None until it is known where to begin."""
    delivered: int | None = None
    done: int | None = None
    committed: int | None = None
    """As last acknowledged by the broker; None when the group has no offset of it."""
    committed_metadata: str = ""
    """The user's own text beside that offset."""
    committed_map: OffsetMap | None = None
    """What was said with that offset to be finished behind it."""
    is_anew: bool = True
    """Whether that is from before this beginning: a commit is due, wherever this is."""
    tracker: OffsetTracker | None = None
    """What is finished out of order since the last beginning; None until it is known where to begin."""
    map_fill: OffsetMapSize = field(default_factory=OffsetMapSize)
    """How much of the commit metadata that takes."""
    last_fetched_epoch: int = -1
    """The leader's epoch that the last fetched batch was written under (KIP-595)."""
    fetched_topic_id: UUID | None = None
    """The topic's id when it was last fetched, since this beginning: made anew, it has another, and other records."""
    delivered_epoch: int = -1
    """The same of the last batch that was handed out; it goes with a commit."""
    reset_to: StartPoint | None = None
    """The place where a beginning has to be found; None while the position is good."""
    reset_from: int | None = None
    """The position that the log did not have."""
    is_refused: bool = False
    """Whether none is looked for: the user has to say where to begin."""
    is_fetchable: bool = False
    """Whether fetching has begun: not before callbacks and overrides are through."""
    is_halted: bool = False
    """Whether nothing more is handed out: it is about to be released."""
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

    @property
    def has_in_flight(self) -> bool:
        """Whether a record is handed out and not done."""
        return self.done != self.delivered or (self.tracker is not None and self.tracker.unfinished > 0)

    @property
    def is_dirty(self) -> bool:
        """Whether there is something to commit; nothing is below what was committed since the beginning.

        A beginning that was never committed counts: after ``latest`` on an empty partition, what comes while the
        consumer is down must not be skipped when it is back. After a seek to what is committed, a commit of before
        may be on its way.
        """
        if self.done is None:
            return False
        return self.is_anew or self.committed is None or self.done > self.committed

    @property
    def offset_map(self) -> OffsetMap | None:
        """What goes with a commit of ``done``: what is finished behind it; None when nothing is."""
        if self.tracker is None or (found := self.tracker.offset_map()) is None or found.base != self.done:
            return None
        if self.tracker.known is None:
            found.of_log(self.topic_id, self.delivered_epoch)
        return found

    @property
    def topic_id(self) -> UUID | None:
        """Id of the topic that was fetched last; None before the first fetch, and on brokers without topic ids."""
        return None if self.fetched_topic_id == NO_TOPIC_ID else self.fetched_topic_id

    def begin(self, offset: int, leader_epoch: int = -1, known: OffsetMap | None = None) -> None:
        """Read from ``offset`` on; what ``known`` says is finished was finished by somebody else."""
        self.epoch += 1
        self.tracker, self.map_fill = OffsetTracker(offset, known), OffsetMapSize()
        self.fetched = self.delivered = self.done = offset
        self.last_fetched_epoch = self.delivered_epoch = leader_epoch
        self.is_anew = True
        self.reset_to = self.reset_from = self.fetched_topic_id = None
        self.is_refused = False
        self.failures, self.retry_at = 0, 0.0

    def note_committed(self, offset: int, user_text: str = "", offset_map: OffsetMap | None = None) -> None:
        """The group has this of it, since its beginning."""
        self.committed, self.committed_metadata, self.committed_map = offset, user_text, offset_map
        self.is_anew = False

    def reset(self, to: StartPoint, before: int | None) -> None:
        """The log has no ``before`` (or there never was a position): find a beginning at ``to``."""
        self.epoch += 1
        self.fetched = self.delivered = self.done = self.tracker = None
        self.reset_to, self.reset_from, self.fetched_topic_id = to, before, None
        self.is_refused = False
        self.preferred_read_replica = None

    def refuse(self) -> None:
        """No beginning is to be found for it but by the user's word."""
        self.reset_to, self.is_refused = None, True

    def diverged(self, end_offset: int) -> tuple[int, int]:
        """The log was cut and goes on in another way from ``end_offset`` on: where to go on, and how much is gone.

        What was handed out behind it was never to stay; what was only fetched is fetched again (KIP-320), and so is
        what is in hand: it counts for nothing from now on.
        """
        assert self.fetched is not None
        read = self.fetched if self.delivered is None else self.delivered
        return min(read if self.done is None else self.done, end_offset), max(0, read - end_offset)

    def pass_over(self, to: int, leader_epoch: int) -> None:
        """There are no records to hand out below ``to``; what is in hand before it stays so."""
        if self.delivered is None or to <= self.delivered:
            return
        if not self.has_in_flight:
            self.done = to
        self.delivered = to
        self.delivered_epoch = max(self.delivered_epoch, leader_epoch)

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
            self._all.pop(partition, None)

    def of(self, partitions: Iterable[TopicPartition]) -> list[Position]:
        """The positions of those of ``partitions`` that are assigned."""
        return [self._all[partition] for partition in partitions if partition in self._all]
