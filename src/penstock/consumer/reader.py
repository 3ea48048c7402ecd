"""The reading end: the buffer's batches, decoded in slices and handed out one record, or many, at a time.

Rule of this file: what runs for each record is ``next`` of a list. All else is done once a slice: finding whose turn
it is, decoding, the record keeping, and giving the event loop a turn. So positions are exact only after ``sync``,
which everybody calls who looks at them.

A record is *in hand* from when it is handed out until the same consumer is asked for the next one, which says that
it is done; other ways are ``consumer.hands``'s. Nothing leaves the buffer before the last ``await`` of a call, so a
call that is cancelled loses nothing.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from operator import length_hint

from penstock.consumer.amounts import Amounts
from penstock.consumer.chunk import Chunk
from penstock.consumer.gaps import Gaps
from penstock.consumer.hands import Hands, Taker
from penstock.consumer.map_watch import MapWatch
from penstock.consumer.supply import Slice, Supply
from penstock.consumer.tally import Tally
from penstock.consumer.wake import Wake
from penstock.core.buffer import Buffer
from penstock.core.positions import Position, Positions
from penstock.core.slices import FIRST_SLICE, is_too_long, next_slice
from penstock.errors import ConsumerStateError, PenstockError
from penstock.records import Record, TopicPartition

__all__ = ["Reader"]

TWO_READERS = (
    "two tasks, or two styles, read from this consumer at once - let one read and hand records to the other,"
    " or use streams() alone, one for each partition"
)


class Reader:
    """Hands out what was fetched.

    Attributes:
        slice: records that are decoded and not handed out; the consumer takes them one by one.
        hand: the last one it took.
        tally: how many were handed out and are done.
        maps: watches over what is finished out of order.
    """

    def __init__(  # noqa: PLR0913 - the sides of a reader
        self,
        positions: Positions,
        buffer: Buffer[Chunk],
        maps: MapWatch,
        *,
        is_acked_by_hand: bool,
        max_queued_records: int,
        on_room: Callable[[], None],
        gaps: Gaps | None = None,
    ) -> None:
        self.maps = maps
        self.slice: Iterator[Record] = iter(())
        self.hand: Record | None = None
        self._positions, self._buffer, self._on_room = positions, buffer, on_room
        self._hands = Hands(positions, is_acked_by_hand=is_acked_by_hand)
        self.tally = Tally(positions, self._hands.sync)
        self._supply = Supply(positions, buffer, maps, sync=self._hands.sync, on_room=on_room, gaps=gaps)
        self._amounts = Amounts(positions, buffer, self._supply)
        self.max_queued_records = max_queued_records
        self._loop = asyncio.get_running_loop()
        self._current: Slice | None = None
        """The slice as it was taken."""
        self._acknowledged: Record | None = None
        self._slice_size = FIRST_SLICE
        self._slice_began_at = self._turn_began_at = self._loop.time()
        self._news = Wake()
        self._progress = Wake()
        self.asked = Wake()
        """Somebody comes for the next record."""
        self._times_asked = 0
        self._dropped: Record | None = None
        """What was in hand when its partition went."""
        self._is_waiting = False
        self._errors: deque[PenstockError] = deque()
        self._end: PenstockError | None = None

    # ---- reading -----------------------------------------------------------------------------------------------

    async def next_record(self) -> Record:
        """The next record, when the slice is used up; what is in hand is done.

        Raises:
            ConsumerStateError: two tasks read at once, or the consumer was stopped.
            PenstockError: whatever has to be told.
        """
        await self._until_something_to_read()
        return self._first_of_slice()

    async def record_now(self) -> Record | None:
        """The next record if there is one, when others have had a turn; what is in hand is done.

        Raises:
            ConsumerStateError: two tasks read at once, or the consumer was stopped.
            PenstockError: whatever has to be told.
        """
        await self._come()
        return self._first_of_slice() if self._find_slice(self._next_size()) else None

    async def records_now(self, count: int) -> list[Record]:
        """At most ``count`` records of those that are there when others have had a turn; what is in hand is done.

        Raises:
            ConsumerStateError: two tasks read at once, or the consumer was stopped.
            PenstockError: whatever has to be told.
        """
        await self._come()
        return self.take_now(count)

    async def next_batch(self, count: int, wait_s: float) -> list[Record]:
        """At most ``count`` records, as many as have come so long after the first one.

        Raises:
            ConsumerStateError: two tasks read at once, or the consumer was stopped.
            PenstockError: whatever has to be told.
        """
        while True:
            await self.until_there_are(1)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(wait_s):
                    await self.until_there_are(count)
            if taken := self.take_now(count):
                return taken
            await self.wait_for_news()

    async def next_full(self, least: int, count: int) -> list[Record]:
        """At most ``count`` records, when ``least`` are there, or as many as there is room for.

        Raises:
            ConsumerStateError: two tasks read at once, or the consumer was stopped.
            PenstockError: whatever has to be told.
        """
        while True:
            await self.until_there_are(least)
            if taken := self.take_now(count):
                return taken
            await self.wait_for_news()

    async def until_there_are(self, count: int) -> None:
        """Wait until so many records may be handed out; what is in hand is done.

        Raises:
            ConsumerStateError: two tasks read at once, or the consumer was stopped.
            PenstockError: whatever has to be told.
        """
        self._be_the_only_one()
        try:
            self._finish()
            self._put_back_current()
            await self._give_a_turn()
            while not self._amounts.are_there(count):
                self._raise_what_has_to_be_told()
                await self.wait_for_news()
        finally:
            self._is_waiting = False

    async def next_records(self, count: int) -> list[Record]:
        """At most ``count`` records, at least one; what is in hand is done.

        Raises:
            ConsumerStateError: two tasks read at once, or the consumer was stopped.
            PenstockError: whatever has to be told.
        """
        self._finish()
        if not length_hint(self.slice):
            await self._until_something_to_read()
        return self.take_now(count)

    def take_now(self, count: int) -> list[Record]:
        """At most ``count`` records of those that are there; what is in hand is done."""
        self._finish()
        taken: list[Record] = []
        while len(taken) < count:
            wanted = count - len(taken)
            try:
                if not length_hint(self.slice) and not self._find_slice(wanted):
                    break
            except PenstockError as error:
                if not taken:
                    raise
                # What was taken is the answer to this call; the next one is told.
                self._errors.appendleft(error)
                break
            taken += self._whole_slice(wanted)
        return taken

    def hand_over_to(self, taker: Taker) -> None:
        """From now on ``taker`` takes slices, by ``next_slice``, and says what is done.

        Raises:
            ConsumerStateError: somebody waits for a record.
        """
        if self._is_waiting:
            raise ConsumerStateError(TWO_READERS)
        self._finish()
        self._put_back_current()
        self._hands.taker = taker

    async def next_slice(self, room_of: Callable[[TopicPartition], int]) -> tuple[Position, list[Record]]:
        """Records of one partition, as many as there is room for; at least one, and of one for which there is room.

        Raises:
            ConsumerStateError: the consumer was stopped.
            PenstockError: whatever has to be told.
        """
        while (found := self.take_slice(room_of)) is None:
            await self.wait_for_news()
        return found

    def take_slice(self, room_of: Callable[[TopicPartition], int]) -> tuple[Position, list[Record]] | None:
        """The same of what is there; None when there is nothing."""
        self._raise_what_has_to_be_told()
        found = self._next_slice(
            lambda partition: self._supply.is_readable(partition) and room_of(partition) > 0,
            lambda partition: self.tally.room(min(room_of(partition), self.max_queued_records), self.slice),
        )
        if found is None:
            return None
        found.position.delivered = found.behind
        self.tally.take(len(found.records))
        return found.position, found.records

    def progressed(self) -> None:
        """Something that was in hand is done, or more is wanted than before."""
        self.finished_some()
        self._news.set()

    def finished_some(self) -> None:
        """Something that was in hand is done."""
        self.tally.look()
        self._progress.set()

    async def _until_something_to_read(self) -> None:
        """Wait for a slice and find it; nothing is awaited after that."""
        self._be_the_only_one()
        try:
            self._finish()
            await self._give_a_turn()
            size = self._next_size()
            while not self._find_slice(size):
                await self.wait_for_news()
                self._turn_began_at = self._loop.time()
        finally:
            self._is_waiting = False

    async def _come(self) -> None:
        """Ask for what is there: a loop that does nothing else must not keep others from their turn."""
        self._be_the_only_one()
        try:
            self._finish()
            await asyncio.sleep(0)
            self._turn_began_at = self._loop.time()
        finally:
            self._is_waiting = False

    def _be_the_only_one(self) -> None:
        if self._is_waiting or self._hands.taker is not None:
            raise ConsumerStateError(TWO_READERS)
        self._is_waiting = True

    async def _give_a_turn(self) -> None:
        if is_too_long(self._loop.time() - self._turn_began_at):
            # Records have been handed out without a pause: heartbeats and fetches want a turn.
            await asyncio.sleep(0)
            self._turn_began_at = self._loop.time()

    def _next_size(self) -> int:
        took_s = self._loop.time() - self._slice_began_at
        self._slice_size = next_slice(self._slice_size, took_s, self.max_queued_records)
        return self.tally.room(self._slice_size, self.slice)

    def _find_slice(self, count: int) -> bool:
        """Decode the next slice of whichever partition has its turn; False when there is nothing to read."""
        self._raise_what_has_to_be_told()
        found = self._next_slice(self._supply.is_readable, lambda _: min(count, self.max_queued_records))
        if found is None:
            return False
        self._hands.begin(found.position, found.records, found.behind)
        self.tally.begin(self.slice, len(found.records))
        self._current, self.slice = found, iter(found.records)
        return True

    def _next_slice(
        self, is_wanted: Callable[[TopicPartition], bool], count_of: Callable[[TopicPartition], int]
    ) -> Slice | None:
        found = self._supply.next_slice(is_wanted, count_of)
        if self._supply.has_more:
            self._loop.call_soon(self._news.set)
        return found

    async def wait_for_news(self) -> None:
        """Wait until something may have changed; one at a time."""
        await self._news.wait(self.maps.look_again_at)

    def _first_of_slice(self) -> Record:
        self._slice_began_at = self._loop.time()
        for record in self.slice:
            self.hand = record
            return record
        raise AssertionError("a slice that was promised is empty")

    def _whole_slice(self, count: int) -> list[Record]:
        """Take from the slice for a batch, and keep the record of it at once."""
        current = self._current
        assert current is not None
        records = list(islice(self.slice, count))
        delivered = records[-1].offset + 1 if length_hint(self.slice) else current.behind
        self._hands.touch(current.position, records[0].offset, delivered)
        return records

    # ---- record keeping ----------------------------------------------------------------------------------------

    def sync(self) -> None:
        """Bring the positions up to what has been handed out."""
        record, current = self.hand, self._current
        if record is not None and current is not None:
            position = current.position
            is_last = self._hands.is_acked_by_hand and not length_hint(self.slice)
            position.delivered = current.behind if is_last else record.offset + 1
            position.done = record.offset + 1 if record is self._acknowledged else record.offset
            if not self._hands.is_acked_by_hand:
                self.tally.know(self.slice)
        for one in self._positions:
            self._hands.sync(one)

    def finish_all(self) -> None:
        """What is in hand is done, by the user's own word."""
        self._finish()

    def finish_of(self, partitions: Iterable[TopicPartition]) -> None:
        """The same of some partitions alone; of the others it stays in hand."""
        wanted = frozenset(partitions)
        if self.hand is not None and self.hand.topic_partition in wanted:
            self._acknowledged = self.hand
        self._hands.finish(wanted)
        self.sync()

    def acknowledge(self, record: Record) -> bool:
        """``record``, and what came before it in its partition, is done; False when it is not in hand any more.

        With ``ack="manual"``, it alone.
        """
        if record is self.hand and self._current is not None and not self._hands.is_acked_by_hand:
            self._acknowledged = record
        elif not self._hands.acknowledge(record):
            return False
        elif self._hands.is_acked_by_hand:
            self.tally.finish_one()
        self._times_asked += 1
        self._progress.set()
        if self.maps.is_holding:
            self._news.set()
        return True

    def _finish(self) -> None:
        """The next one is asked for, so that what is in hand is done, unless that is said of each by itself."""
        current = self._current
        if self.hand is not None and current is not None:
            is_last = not length_hint(self.slice)
            current.position.delivered = current.behind if is_last else self.hand.offset + 1
            self._hands.touched.add(current.position.partition)
        self.hand = None
        self._hands.release()
        if not self._hands.is_acked_by_hand and self._hands.taker is None:
            self.tally.finish(self.slice)
        self._progress.set()
        self._times_asked += 1
        self._dropped = None
        self.asked.set()

    # ---- what others do to it ----------------------------------------------------------------------------------

    def put(self, partition: TopicPartition, chunk: Chunk, size: int) -> None:
        """Something was fetched."""
        self._buffer.put(partition, chunk, size)
        self._news.set()

    def look_again(self) -> None:
        """A partition may be readable that was not."""
        self._news.set()

    def halt(self, partitions: Iterable[TopicPartition]) -> None:
        """Hand out nothing more of ``partitions``; what is in hand stays in hand."""
        self.sync()
        for position in self._positions.of(partitions):
            self._hands.halt(position)
        self._put_back_if_not_readable()

    def pause(self, partitions: Iterable[TopicPartition]) -> None:
        """Hand out nothing of ``partitions`` until they are resumed."""
        for position in self._positions.of(partitions):
            position.is_paused = True
        self._put_back_if_not_readable()

    def drop(self, partitions: Iterable[TopicPartition]) -> None:
        """Forget all that was fetched of ``partitions``, and what is in hand of them."""
        gone = set(partitions)
        if self._current is not None and self._current.position.partition in gone:
            self._dropped = self.hand or self._dropped
            self.tally.begin(self.slice, 0)
            self.slice, self.hand, self._current = iter(()), None, None
        self.maps.drop(gone)
        self._hands.drop(gone)
        for partition in gone:
            self._buffer.drop(partition)
        self._progress.set()
        self._on_room()

    async def drained(self, partitions: Iterable[TopicPartition], until: float) -> frozenset[TopicPartition]:
        """Wait until nothing of ``partitions`` is in hand, or it is ``until``; gives those of which something is."""
        wanted = frozenset(partitions)
        while True:
            self.sync()
            held = frozenset(p.partition for p in self._positions.of(wanted) if p.in_hand)
            if not held or self._loop.time() >= until:
                return held
            await self._progress.wait(until)

    def report(self, error: PenstockError) -> None:
        """Have ``error`` raised by the next call."""
        if str(error) not in map(str, self._errors):
            self._errors.append(error)
        self._put_back_current()
        self._news.set()

    def close(self, reason: PenstockError) -> None:
        """Have every call from now on raise ``reason``; what is in hand is not done."""
        self.sync()
        self._end = reason
        self.slice, self.hand = iter(()), None
        self._news.set()

    def holds(self, position: Position) -> bool:
        """Whether something of a partition is decoded or in hand."""
        is_mine = self._current is not None and position is self._current.position
        is_current = is_mine and (self.hand is not None or bool(length_hint(self.slice)))
        return is_current or self._hands.holds(position)

    # ---- for those who look ------------------------------------------------------------------------------------

    @property
    def progress(self) -> object:
        """Something that differs whenever the user has come for a record since."""
        record = self.hand or self._dropped
        return self._times_asked, None if record is None else (record.topic, record.partition, record.offset)

    @property
    def is_owed(self) -> bool:
        """Whether records wait for the user, or are in hand, while the user does not wait for any."""
        if self._is_waiting or self._hands.taker is not None:
            return False
        waits = any(self._buffer.holds(p.partition) and self._supply.is_readable(p.partition) for p in self._positions)
        return waits or self.hand is not None or bool(self._hands.touched) or bool(length_hint(self.slice))

    def is_over(self) -> bool:
        """Whether there is nothing to be read any more, since the consumer was stopped.

        Raises:
            PenstockError: what has ended it otherwise.
        """
        if self._end is not None and not isinstance(self._end, ConsumerStateError):
            raise self._end
        return self._end is not None

    @property
    def queued_records(self) -> int:
        """Records that are decoded and not handed out."""
        return length_hint(self.slice)

    @property
    def has_news(self) -> bool:
        """Whether ``take_now`` might give something."""
        return bool(length_hint(self.slice)) or bool(self._errors) or self._end is not None

    # ---- inside ------------------------------------------------------------------------------------------------

    def _put_back_if_not_readable(self) -> None:
        if self._current is not None and not self._supply.is_readable(self._current.position.partition):
            self._put_back_current()

    def _put_back_current(self) -> None:
        """Records that are decoded and not handed out go back to where they came from."""
        current, rest = self._current, list(self.slice)
        if current is None or not rest:
            return
        self.slice = iter(rest)
        self.tally.begin(self.slice, 0)
        self.sync()
        self._hands.take_back(current.position, rest)
        self._supply.put_back(current, rest)
        self.slice = iter(())

    def _raise_what_has_to_be_told(self) -> None:
        if self._errors:
            raise self._errors.popleft()
        if self._end is not None:
            raise self._end
