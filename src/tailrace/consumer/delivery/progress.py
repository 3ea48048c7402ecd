"""The record keeping of a reader: the slice that is taken from, what of it is in hand, and what is done.

Rule of this file: it waits for nothing but what is in hand, and touches no buffer. Who takes a record puts it into
``in_flight_record``, and that is all that is noted. What it means for the positions is worked out by ``sync``, so
everybody who looks at them calls that first.

A record is *in hand* from when it is handed out until the same consumer is asked for the next one, which says that
it is done; other ways are ``consumer.delivery.in_flight``'s.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Iterator
from itertools import islice
from operator import length_hint

from tailrace.auto_reset_event import AutoResetEvent
from tailrace.consumer.delivery.finished_counter import FinishedCounter
from tailrace.consumer.delivery.in_flight import InFlightRecords, PolledSink, RecordSink
from tailrace.consumer.delivery.slices import RecordSlice
from tailrace.core.delivery.progress import Position, Positions
from tailrace.records import Record, TopicPartition

__all__ = ["DeliveryProgress"]


class DeliveryProgress:
    """Knows what its user has and what of it is done.

    Attributes:
        slice: records that are decoded and not handed out; the consumer takes them one by one.
        in_flight_record: the last one it took.
        in_flight: what is in hand of each partition beside that.
        finished_counter: how many were handed out and are done.
        asked: somebody comes for the next record.
        progressed: something that was in hand is done, or its partition is gone.
    """

    def __init__(self, positions: Positions, *, is_acked_by_hand: bool) -> None:
        self.slice: Iterator[Record] = iter(())
        self.in_flight_record: Record | None = None
        self.in_flight = InFlightRecords(positions, is_acked_by_hand=is_acked_by_hand)
        self.finished_counter = FinishedCounter(positions, self.in_flight.sync)
        self.asked = AutoResetEvent()
        self.progressed = AutoResetEvent()
        self._positions = positions
        self._loop = asyncio.get_running_loop()
        self._current: RecordSlice | None = None
        """The slice as it was taken."""
        self._acknowledged: Record | None = None
        self._times_asked = 0
        self._dropped: Record | None = None
        """What was in hand when its partition went."""
        self._watched: PolledSink | None = None

    @property
    def is_read_by_user(self) -> bool:
        """Whether the consumer's user takes the records, not an App or worker processes."""
        return self.in_flight.sink is None or self._watched is not None

    @property
    def left(self) -> int:
        """Records that are decoded and not handed out."""
        return length_hint(self.slice)

    # ---- handing out -------------------------------------------------------------------------------------------

    def begin(self, found: RecordSlice) -> None:
        """Hand these out from now on."""
        self.in_flight.begin(found.position, found.records, found.behind)
        self.finished_counter.begin(self.slice, len(found.records))
        self._current, self.slice = found, iter(found.records)
        # The slice alone has them: used up, it gives their memory to the next one.
        found.records = []

    def first(self) -> Record:
        """The first record of a slice that was just begun."""
        for record in self.slice:
            self.in_flight_record = record
            return record
        raise AssertionError("a slice that was promised is empty")

    def take(self, count: int) -> list[Record]:
        """Take from the slice for a batch, and keep the record of it at once."""
        current = self._current
        assert current is not None
        records = list(islice(self.slice, count))
        delivered = records[-1].offset + 1 if self.left else current.behind
        self.in_flight.touch(current.position, records[0].offset, delivered)
        return records

    def hand_over_to(self, sink: RecordSink, watched: PolledSink | None) -> None:
        """From now on ``sink`` has whole slices; who reads from it may be ``watched``."""
        self.in_flight.sink, self._watched = sink, watched

    def took(self, found: RecordSlice) -> None:
        """The taker has a slice."""
        found.position.delivered = found.behind
        self.finished_counter.take(len(found.records))

    def take_back(self) -> tuple[RecordSlice, list[Record]] | None:
        """Have the records that were not handed out come again: of which slice, and which; None when there are none."""
        current, rest = self._current, list(self.slice)
        if current is None or not rest:
            return None
        self.slice = iter(rest)
        self.finished_counter.begin(self.slice, 0)
        self.sync()
        self.in_flight.take_back(current.position, rest)
        self.slice = iter(())
        return current, rest

    # ---- what is done ------------------------------------------------------------------------------------------

    def sync(self) -> None:
        """Bring the positions up to what has been handed out."""
        record, current = self.in_flight_record, self._current
        if record is not None and current is not None:
            position = current.position
            is_last = self.in_flight.is_acked_by_hand and not self.left
            position.delivered = current.behind if is_last else record.offset + 1
            position.done = record.offset + 1 if record is self._acknowledged else record.offset
            if not self.in_flight.is_acked_by_hand:
                self.finished_counter.know(self.slice)
        for one in self._positions:
            self.in_flight.sync(one)

    def finish(self) -> None:
        """The next one is asked for, so that what is in hand is done, unless that is said of each by itself."""
        current = self._current
        if self.in_flight_record is not None and current is not None:
            current.position.delivered = self.in_flight_record.offset + 1 if self.left else current.behind
            self.in_flight.touched.add(current.position.partition)
        self.in_flight_record = None
        self.in_flight.release()
        if not self.in_flight.is_acked_by_hand and self.in_flight.sink is None:
            self.finished_counter.finish(self.slice)
        self.progressed.set()
        self.come()
        self._dropped = None

    def come(self) -> None:
        """Somebody comes for the next record."""
        self._times_asked += 1
        self.asked.set()

    def finish_of(self, partitions: Iterable[TopicPartition]) -> None:
        """What is in hand of some partitions is done; of the others it stays in hand."""
        wanted = frozenset(partitions)
        if self.in_flight_record is not None and self.in_flight_record.topic_partition in wanted:
            self._acknowledged = self.in_flight_record
        self.in_flight.finish(wanted)
        self.sync()

    def finished_some(self) -> None:
        """Something that a taker had in hand is done."""
        self.finished_counter.look()
        self.progressed.set()

    def acknowledge(self, record: Record) -> bool:
        """``record``, and what came before it in its partition, is done; False when it is not in hand any more.

        With ``ack="manual"``, it alone.
        """
        if record is self.in_flight_record and self._current is not None and not self.in_flight.is_acked_by_hand:
            self._acknowledged = record
        elif not self.in_flight.acknowledge(record):
            return False
        elif self.in_flight.is_acked_by_hand:
            self.finished_counter.finish_one()
        self._times_asked += 1
        self.progressed.set()
        return True

    # ---- what goes ---------------------------------------------------------------------------------------------

    @property
    def partition(self) -> TopicPartition | None:
        """Whose the slice is."""
        return None if self._current is None else self._current.position.partition

    def drop(self, partitions: Iterable[TopicPartition]) -> None:
        """Forget what is in hand of partitions, and what was to be."""
        gone = frozenset(partitions)
        if self.partition in gone:
            self._dropped = self.in_flight_record or self._dropped
            self.finished_counter.begin(self.slice, 0)
            self.slice, self.in_flight_record, self._current = iter(()), None, None
        self.in_flight.drop(gone)
        self.progressed.set()

    def close(self) -> None:
        """Nothing is handed out any more, and what is in hand is not done."""
        self.sync()
        if self._watched is not None:
            for position in self._positions:
                self.in_flight.halt(position)
        self.slice, self.in_flight_record = iter(()), None

    async def drained(self, partitions: Iterable[TopicPartition], until: float) -> frozenset[TopicPartition]:
        """Wait until nothing of ``partitions`` is in hand, or it is ``until``; gives those of which something is."""
        wanted = frozenset(partitions)
        while True:
            self.sync()
            held = frozenset(p.partition for p in self._positions.of(wanted) if p.has_in_flight)
            if not held or self._loop.time() >= until:
                return held
            await self.progressed.wait(until)

    def holds(self, position: Position) -> bool:
        """Whether something of a partition is decoded or in hand."""
        is_mine = self._current is not None and position is self._current.position
        return (is_mine and (self.in_flight_record is not None or self.left > 0)) or self.in_flight.holds(position)

    # ---- for those who look ------------------------------------------------------------------------------------

    @property
    def progress(self) -> object:
        """Something that differs whenever the user has come for a record since."""
        record = self.in_flight_record or self._dropped
        place = None if record is None else (record.topic, record.partition, record.offset)
        return self._times_asked, place, None if self._watched is None else self._watched.progress

    def is_owed(self, *, waits: bool) -> bool:
        """Whether the user has something in hand or to come for; ``waits``: there is something in the buffer."""
        if self.in_flight.sink is not None:
            return self._watched is not None and self._watched.is_owed(waits=waits)
        return waits or self.in_flight_record is not None or bool(self.in_flight.touched) or self.left > 0
