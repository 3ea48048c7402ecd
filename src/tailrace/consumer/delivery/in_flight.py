"""What is in hand of each partition, and what is done, in the three ways in which records are done.

Rule of this file: by itself, what was handed out is done when the next record is asked for. With ``ack="manual"`` it
is done when that is said of it. A taker, who works on many records at once, tells each position's tracker.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Protocol

from tailrace.consumer.delivery.manual_acks import ManualAcks
from tailrace.core.delivery.progress import Position, Positions
from tailrace.records import Record, TopicPartition

__all__ = ["InFlightRecords", "PolledSink", "RecordSink"]


class RecordSink(Protocol):
    """Whoever takes whole slices, works on many records at once, and tells each position's tracker what is done."""

    def next_of(self, position: Position) -> int | None:
        """The lowest offset that is handed out and neither begun with its tracker nor done; None without one."""

    def done_of(self, position: Position) -> int | None:
        """The lowest offset that is handed out and not done; None when there is none."""

    def halt(self, partition: TopicPartition) -> int | None:
        """Begin nothing more of a partition; the lowest offset that was not begun, None when there is none."""

    def drop(self, partition: TopicPartition) -> None:
        """Forget a partition: it is not ours any more, or is read from somewhere else."""


class PolledSink(Protocol):
    """A taker from which a user reads, who may stand still (``max_poll_interval_ms``)."""

    @property
    def progress(self) -> object:
        """Something that differs whenever somebody has come for a record since."""

    def is_owed(self, *, waits: bool) -> bool:
        """Whether something is in hand or to come for, and nobody waits; ``waits``: there is something more."""


class InFlightRecords:
    """What of all partitions is in hand.

    Attributes:
        sink: whoever takes whole slices; None when the user takes record after record.
        touched: partitions of which a batch is in hand.
    """

    def __init__(self, positions: Positions, *, is_acked_by_hand: bool) -> None:
        self.sink: RecordSink | None = None
        self.touched: set[TopicPartition] = set()
        self._positions = positions
        self._acks = ManualAcks() if is_acked_by_hand else None

    @property
    def is_acked_by_hand(self) -> bool:
        """Whether the user says of each record that it is done."""
        return self._acks is not None

    def sync(self, position: Position) -> None:
        """Have the tracker know how far all is begun, or the position how far all is done."""
        tracker, delivered = position.tracker, position.delivered
        if tracker is None or delivered is None or position.done is None:
            return
        if self.sink is not None:
            following = self.sink.next_of(position)
            tracker.advance(delivered if following is None else min(following, delivered))
        elif self._acks is None:
            tracker.advance(position.done)
            return
        else:
            tracker.advance(delivered)
        position.done = min(tracker.done, delivered)

    def begin(self, position: Position, records: Sequence[Record], behind: int) -> None:
        """A slice is to be handed out to the user, behind which the partition goes on at ``behind``."""
        if self._acks is not None:
            self._acks.begin(position, records, behind)

    def take_back(self, position: Position, records: Sequence[Record]) -> None:
        """The rest of the last slice is not handed out after all."""
        if self._acks is not None:
            self._acks.take_back(position, records)

    def touch(self, position: Position, first: int, delivered: int) -> None:
        """A batch is handed out, from ``first`` on."""
        if not position.has_in_flight:
            position.done = first
        position.delivered = delivered
        self.touched.add(position.partition)

    def release(self) -> None:
        """The next record is asked for, so that what is in hand is done, unless that is said of each by itself."""
        if self._acks is None:
            for touched in self._positions.of(self.touched):
                touched.done = touched.delivered
        self.touched.clear()

    def finish(self, partitions: frozenset[TopicPartition]) -> None:
        """What is in hand of a batch is done in these partitions, as if the next record were asked for."""
        if self._acks is None:
            for touched in self._positions.of(self.touched & partitions):
                touched.done = touched.delivered

    def acknowledge(self, record: Record) -> bool:
        """``record`` is done, and in a batch what came before it in its partition; False when it is not in hand."""
        position = self._positions.get(record.topic_partition)
        if position is None:
            return False
        if self._acks is not None:
            return self._acks.finish(position, record)
        if position.partition not in self.touched or position.done is None or position.delivered is None:
            return False
        if not position.done <= record.offset < position.delivered:
            return False
        position.done = record.offset + 1
        return True

    def halt(self, position: Position) -> None:
        """Begin nothing more of it; what is in hand stays in hand."""
        position.is_halted = True
        if self.sink is not None and (left := self.sink.halt(position.partition)) is not None:
            position.delivered = left

    def drop(self, partitions: Iterable[TopicPartition]) -> None:
        """Forget what is in hand of ``partitions``."""
        for partition in partitions:
            self.touched.discard(partition)
            if self._acks is not None:
                self._acks.drop(partition)
            if self.sink is not None:
                self.sink.drop(partition)

    def holds(self, position: Position) -> bool:
        """Whether something of a partition is in hand, beside what the user took last."""
        if self.sink is not None:
            return self.sink.done_of(position) is not None
        if self._acks is not None:
            return position.tracker is not None and position.tracker.unfinished > 0
        return position.partition in self.touched
