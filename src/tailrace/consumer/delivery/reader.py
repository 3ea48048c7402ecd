"""Delivery of buffered records, one or many at a time.

Batches are decoded in slices: records of one partition that are decoded and delivered together. The only work per
record is ``next`` of a list iterator. Everything else is done once per slice: choosing the partition, decoding,
creating a lease (which tracks the records in flight, see ``core.progress``), and yielding to the event loop.
Nothing leaves the buffer before the last ``await`` of a call, so a canceled call loses no record.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
from collections import deque
from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Generic, Self, TypeAlias, TypeVar

from tailrace.awaitables import AutoResetEvent
from tailrace.batches.columns import ArrowBatch, ColumnBuilder
from tailrace.config import ConsumerConfig
from tailrace.consumer.delivery.buffered_batch import BufferedBatch
from tailrace.consumer.delivery.completion import DeliveryProgress, PolledSink, RecordSink, RecordSlice
from tailrace.consumer.delivery.offset_map_watch import OffsetMapWatch
from tailrace.consumer.delivery.unreadable_batches import UnreadableBatches
from tailrace.consumer.partition import Partition
from tailrace.consumer.parts import ConsumerParts
from tailrace.core.progress import Lease
from tailrace.errors import ConsumerStateError, ConsumerTimeoutError, TailraceError, UnreadableBatchError
from tailrace.records import AnyRecord, Record, TopicPartition

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = [
    "FIRST_SLICE",
    "MAX_HOLD_S",
    "Batches",
    "Reader",
    "adapted_slice_size",
    "is_too_long",
    "poll_or_stop",
    "poll_within",
    "poll_within_timeout",
]

# ---- size of slices --------------------------------------------------------------------------------------------------

MAX_HOLD_S = 0.005
"""Target duration of a slice in seconds. After this time, a busy worker lets other tasks of the event loop run."""

FIRST_SLICE = 16
"""Number of records in the first slice, before any duration is known."""


def adapted_slice_size(size: int, took_s: float, longest: int) -> int:
    """Return the size of the next slice, at most ``longest``, after a slice of ``size`` records took ``took_s``."""
    fitting = size * MAX_HOLD_S / took_s if took_s > 0 else math.inf
    return max(1, min(int(min(fitting, size * 2)), longest))


def is_too_long(held_s: float) -> bool:
    """Return True if the event loop was blocked for so long (``held_s``) that other tasks should run next."""
    return held_s >= MAX_HOLD_S


# ---- iterator of batches, for ``Consumer.batches`` and ``Consumer.arrow_batches`` ------------------------------------

BatchT_co = TypeVar("BatchT_co", covariant=True)


class Batches(Generic[BatchT_co]):
    """Iterator of batches; a batch is finished when the next one is polled.

    Args:
        next_batch: finishes the previous batch and returns the next one; raises StopAsyncIteration to end the loop.
    """

    def __init__(self, next_batch: Callable[[], Awaitable[BatchT_co]]) -> None:
        self._next_batch = next_batch

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> BatchT_co:
        return await self._next_batch()


# ---- timeouts of polls (``consumer_timeout_ms``, ``when_timed_out``) -------------------------------------------------

ResultT = TypeVar("ResultT")


async def poll_or_stop(
    work: Callable[[], Awaitable[ResultT]], config: ConsumerConfig | None, is_stopped: Callable[[], bool]
) -> ResultT:
    """Await ``work``, one poll of an ``async for`` loop, and return its result.

    Raises:
        StopAsyncIteration: the consumer was stopped, or timed out with ``when_timed_out="stop"``.
        ConsumerTimeoutError: no record arrived in time.
    """
    try:
        if config is None or config.consumer_timeout_ms is None:
            return await work()
        return await poll_within_timeout(work, config.consumer_timeout_ms)
    except ConsumerStateError:
        if is_stopped():
            raise StopAsyncIteration from None
        raise
    except ConsumerTimeoutError:
        if config is not None and config.when_timed_out == "stop":
            raise StopAsyncIteration from None
        raise


async def poll_within_timeout(work: Callable[[], Awaitable[ResultT]], limit_ms: int | None) -> ResultT:
    """Await ``work`` for ``limit_ms`` at most, or without a limit if it is None, and return the result.

    Raises:
        ConsumerTimeoutError: ``work`` took longer than ``limit_ms`` and was canceled; the consumer can be polled again.
    """
    if limit_ms is None:
        return await work()
    found = await poll_within(work, limit_ms)
    if found is None:
        raise ConsumerTimeoutError(
            f"no record arrived within consumer_timeout_ms={limit_ms} - poll again to keep waiting"
        )
    return found


async def poll_within(work: Callable[[], Awaitable[ResultT]], limit_ms: int | None) -> ResultT | None:
    """Await ``work`` and return its result; cancel it and return None if it takes longer than ``limit_ms``."""
    waiting = asyncio.timeout(None if limit_ms is None else limit_ms / 1000)
    try:
        async with waiting:
            return await work()
    except TimeoutError:
        if not waiting.expired():
            raise
        return None


# ---- delivery of buffered records, one or many at a time -------------------------------------------------------------

_MAX_ATTEMPTS = 64
"""Number of attempts to take a slice with a deliverable record, after which other tasks may run."""

RoomOf: TypeAlias = Callable[[TopicPartition], int]
"""Function that returns the maximum number of records to take of a partition; 0 to take none."""

PartitionFilter: TypeAlias = frozenset[TopicPartition] | None
"""Partitions to read from; None for all assigned partitions."""

TWO_READERS = (
    "two tasks, or two ways of reading, poll this consumer at once - let one task read and pass records to the others,"
    " or use only streams(), which has a stream for each partition"
)


class Reader:
    """Delivers fetched records, to a user who polls or to a sink (``RecordSink``), which takes whole slices.

    The slice from which a polling user takes records is the *current slice*. A poll finishes the records in flight,
    except with ``ack="manual"``, and raises errors that were given to ``report`` or ``close``. A poll raises
    ConsumerStateError if another task is waiting in a poll, or if there is a sink.

    Attributes:
        delivery: delivered records, and which of them are finished; the consumer takes records from
            ``delivery.polled``.
        next_poll: event that is set at each poll.
        maps: offset maps of the partitions.
        wakeup: event that is set when there may be records to deliver, or an error to raise.
        waiting_for_room: events of the fetches that wait for room in the buffer.
        on_change: called when a position may have changed.
        unreadable_batches: handles batches that cannot be read; None if ``next_slice_nowait`` raises their errors.
    """

    def __init__(self, parts: ConsumerParts) -> None:
        self._parts, self._partitions, self._space = parts, parts.partitions, parts.partitions.space
        self.maps = OffsetMapWatch(parts)
        self.delivery = DeliveryProgress(parts.partitions, has_manual_ack=parts.config.ack == "manual")
        self.next_poll = self.delivery.next_poll
        self.wakeup = AutoResetEvent()
        self.waiting_for_room: set[AutoResetEvent] = set()
        self._detects_gaps = not parts.config.allow_offset_gaps
        self._loop = asyncio.get_running_loop()
        self._slice_size = FIRST_SLICE
        self._slice_began_at = self._turn_began_at = self._loop.time()
        self._is_waiting = False
        self._has_skipped = False
        """True if the last ``_slice_in_turn`` skipped offsets that hold no deliverable record."""
        self._waits_for_ack = False
        """True if the maximum number of unacknowledged records (``ack="manual"``) is reached."""
        self._errors: deque[TailraceError] = deque()
        """Reported errors, each of which is raised once."""
        self._end: TailraceError | None = None
        """Error given to ``close``."""
        self.on_change: Callable[[], None] = lambda: None
        self.unreadable_batches: UnreadableBatches | None = None
        parts.wake_on_change(self.recheck)

    # ---- reading -----------------------------------------------------------------------------------------------

    async def next_record(self, partitions: PartitionFilter = None) -> AnyRecord:
        """Wait for the next record and return it, from the current slice or from a new one."""
        self._begin_poll()
        try:
            self.delivery.finish()
            self._put_back_unless_in(partitions)
            await self._yield_if_due()
            size = self._next_size()
            while not self.delivery.polled.count_left and not self._find_slice(size, partitions):
                await self.wait_for_wakeup()
                self._turn_began_at = self._loop.time()
        finally:
            self._is_waiting = False
        return self._first_of_slice()

    async def record_now(self, partitions: PartitionFilter = None) -> AnyRecord | None:
        """Yield to other tasks once, then return a buffered record; None if there is none."""
        await self._poll_and_yield()
        self._put_back_unless_in(partitions)
        if not self.delivery.polled.count_left and not self._find_slice(self._next_size(), partitions):
            return None
        return self._first_of_slice()

    async def records_now(self, count: int, partitions: PartitionFilter = None) -> list[AnyRecord]:
        """Yield to other tasks once, then return up to ``count`` buffered records."""
        await self._poll_and_yield()
        return self.take_now(count, partitions)

    async def next_batch(self, count: int, wait_s: float) -> list[AnyRecord]:
        """Wait for a record, then up to ``wait_s`` for more, and return up to ``count`` records."""
        while True:
            await self._wait_for_batch(count, wait_s)
            if taken := self.take_now(count):
                return taken
            await self.wait_for_wakeup()

    async def next_columns(self, count: int, wait_s: float) -> pa.RecordBatch:
        """Wait as ``next_batch`` does, and return up to ``count`` records as columns."""
        while True:
            await self._wait_for_batch(count, wait_s)
            if (taken := self._take_columns(count)) is not None:
                return taken
            await self.wait_for_wakeup()

    async def _wait_for_batch(self, count: int, wait_s: float) -> None:
        await self.wait_for_records(1)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(wait_s):
                await self.wait_for_records(count)

    async def next_at_least(self, min_count: int, count: int, partitions: PartitionFilter = None) -> list[AnyRecord]:
        """Wait for ``min_count`` records, or for a full buffer, and return up to ``count`` records."""
        while True:
            await self.wait_for_records(min_count, is_patient=False, partitions=partitions)
            if taken := self.take_now(count, partitions):
                return taken
            await self.wait_for_wakeup()

    async def wait_for_records(
        self, count: int, *, is_patient: bool = True, partitions: PartitionFilter = None
    ) -> None:
        """Wait until ``_are_available`` returns True for these arguments."""
        self._begin_poll()
        try:
            self.delivery.finish()
            self._put_back_current()
            await self._yield_if_due()
            while not self._are_available(count, is_patient=is_patient, partitions=partitions):
                self._check(partitions)
                await self.wait_for_wakeup()
        finally:
            self._is_waiting = False

    async def next_records(self, count: int, partitions: PartitionFilter = None) -> list[AnyRecord]:
        """Wait for at least one record and return up to ``count`` buffered records."""
        self._begin_poll()
        try:
            await self._yield_if_due()
            while not (taken := self.take_now(count, partitions)):
                await self.wait_for_wakeup()
                self._turn_began_at = self._loop.time()
        finally:
            self._is_waiting = False
        return taken

    def take_now(self, count: int, partitions: PartitionFilter = None) -> list[AnyRecord]:
        """Return up to ``count`` buffered records without awaiting anything."""
        self.delivery.finish()
        self._put_back_unless_in(partitions)
        taken: list[AnyRecord] = []
        while len(taken) < count:
            wanted = count - len(taken)
            try:
                if not self.delivery.polled.count_left and not self._find_slice(wanted, partitions):
                    break
            except TailraceError as error:
                if not taken:
                    raise
                # This call returns the records taken before the error; the next call raises it.
                self._errors.appendleft(error)
                break
            taken += self.delivery.polled.take(wanted)
        return taken

    def _take_columns(self, count: int) -> pa.RecordBatch | None:
        """Return up to ``count`` buffered records as columns, without awaiting anything; None if there are none."""
        self.delivery.finish()
        self._put_back_current()
        columns = ColumnBuilder()
        while columns.count < count and not columns.is_full:
            try:
                if not self._find_slice(count - columns.count, None, columns):
                    break
            except TailraceError as error:
                if not columns.count:
                    raise
                # The next call raises the error, as in ``take_now``.
                self._errors.appendleft(error)
                break
        if not columns.count:
            return None
        try:
            return columns.finish()
        except BaseException:
            # The user has not received these records, and the next poll must not finish them.
            self.close(
                ConsumerStateError(
                    "an Arrow batch could not be built, see the earlier error - stop this consumer and create a new one"
                )
            )
            raise

    def attach_sink(self, sink: RecordSink, polled_sink: PolledSink | None = None) -> None:
        """Deliver only to ``sink`` from now on, which takes slices by ``next_slice`` or ``next_slice_nowait``.

        Args:
            sink: takes the slices, and finishes their records.
            polled_sink: the same object if the user polls it; otherwise None.

        Raises:
            ConsumerStateError: a task is waiting in a poll.
        """
        if self._is_waiting:
            raise ConsumerStateError(TWO_READERS)
        self.delivery.finish()
        self._put_back_current()
        self.delivery.attach_sink(sink, polled_sink)

    async def next_slice(self, room_of: Callable[[TopicPartition], int]) -> tuple[Partition, Lease]:
        """Wait for the next slice, and return its partition and its lease to the sink, which is the caller."""
        while (found := self.next_slice_nowait(room_of)) is None:
            await self.wait_for_wakeup()
        return found

    def next_slice_nowait(self, room_of: Callable[[TopicPartition], int]) -> tuple[Partition, Lease] | None:
        """Return a slice as ``next_slice`` does, but without waiting; return None if there is none."""
        self.raise_failure()
        if (unreadable := self.unreadable_batches) is not None and unreadable.is_waiting:
            unreadable.update()
        most, limit = self._parts.config.max_queued_records, self.delivery.slice_limit

        def limited_room_of(topic_partition: TopicPartition) -> int:
            room = min(room_of(topic_partition), most)
            return limit(room) if room > 0 else 0

        try:
            found = self._slice_in_turn(most, limited_room_of)
        except UnreadableBatchError as error:
            if unreadable is None:
                raise
            unreadable.handle(error)
            # Other partitions may have records. Let other tasks run first, because many batches may be unreadable.
            self._loop.call_soon(self.wakeup.set)
            return None
        if self._has_skipped:
            self.on_change()
        if found is None:
            return None
        return found.partition, self.delivery.deliver_to_sink(found)

    def progressed(self) -> None:
        """Note that the sink has finished records, or has room for more records."""
        self.delivery.note_finished()
        self.wakeup.set()

    async def _poll_and_yield(self) -> None:
        """Begin a poll that does not wait, and yield to other tasks, which a loop of such polls would starve."""
        self._begin_poll()
        try:
            self.delivery.finish()
            await asyncio.sleep(0)
            self._turn_began_at = self._loop.time()
        finally:
            self._is_waiting = False

    def _begin_poll(self) -> None:
        if self._is_waiting or self.delivery.sink is not None:
            raise ConsumerStateError(TWO_READERS)
        self._is_waiting = True

    async def _yield_if_due(self) -> None:
        if is_too_long(self._loop.time() - self._turn_began_at):
            # Records were delivered for too long without a pause: let heartbeats and fetches run.
            await asyncio.sleep(0)
            self._turn_began_at = self._loop.time()

    def _next_size(self) -> int:
        took_s = self._loop.time() - self._slice_began_at
        self._slice_size = adapted_slice_size(self._slice_size, took_s, self._parts.config.max_queued_records)
        return self.delivery.slice_limit(self._slice_size)

    def _find_slice(self, count: int, partitions: PartitionFilter, columns: ColumnBuilder | None = None) -> bool:
        """Take the next slice from the buffer and make it the current one; return False if there is none.

        If ``columns`` are given, the records are added to them, and the slice has no records left to take.
        """
        if self._errors or self._end is not None or partitions is not None:
            self._check(partitions)
        room = self._parts.config.max_queued_records
        if self.delivery.has_manual_ack:
            left = self._parts.config.max_unacknowledged_records - self.delivery.unacknowledged_count
            self._waits_for_ack = left <= 0
            if self._waits_for_ack:
                return False
            room = min(room, left)
        count = min(count, room)
        room_of = None if partitions is None else lambda one: count if one in partitions else 0
        found = self._slice_in_turn(count, room_of, columns)
        if found is None:
            return False
        self.delivery.begin(found, columns)
        return True

    async def wait_for_wakeup(self) -> None:
        """Wait until there may be records to deliver or an error to raise; only one task may wait at a time."""
        # The next attempt to read sets ``recheck_at`` again.
        until, self.maps.recheck_at = self.maps.recheck_at, None
        unreadable = self.unreadable_batches
        if unreadable is not None and unreadable.is_waiting and (retry_at := unreadable.next_retry_at) is not None:
            until = retry_at if until is None else min(until, retry_at)
        await self.wakeup.wait(until)

    def _first_of_slice(self) -> AnyRecord:
        # Fewer records than wanted may have been buffered.
        self._slice_size = self.delivery.polled.count_left
        self._slice_began_at = self._loop.time()
        return next(self.delivery.polled.remaining)

    # ---- slices ------------------------------------------------------------------------------------------------

    def is_readable(self, partition: Partition) -> bool:
        """Return True if records of a partition, or an error in their place, may be delivered now.

        Nothing is delivered of an added partition until the rebalance callbacks have returned: with
        ``auto_offset_reset="none"``, a callback may still set its position. Kept partitions are delivered meanwhile.
        """
        if not partition.is_fetchable or partition.is_halted or partition.is_held_back:
            return False
        if not partition.map_fill.is_high and not self.maps.held_back:
            return True
        return not self.maps.holds_back(partition)

    def _slice_in_turn(
        self, count: int, room_of: RoomOf | None = None, columns: ColumnBuilder | None = None
    ) -> RecordSlice | None:
        """Take up to ``count`` records of the next partition in turn; return None if there are none.

        Batches without a deliverable record are skipped. If there are many, the reader is woken to go on later.

        Args:
            count: maximum number of records.
            room_of: limit of each partition; None for no other limit than ``count``.
            columns: columns to which the records are added; None for no columns.

        Raises:
            TailraceError: the partition has this error in place of records.
        """
        self.maps.recheck_at, self._has_skipped = None, False
        for _ in range(_MAX_ATTEMPTS):
            partition, limit = self._next_readable(count, room_of)
            if partition is None:
                return None
            progress, max_bytes = partition.progress, self.maps.max_bytes
            if max_bytes and progress is not None and partition.map_fill.is_due(progress, max_bytes):
                self.maps.measure(partition)
                if not self.is_readable(partition):
                    continue
            if (found := self._cut_slice(partition, limit, room_of, columns)) is not None:
                return found
        self._loop.call_soon(self.wakeup.set)
        return None

    def _next_readable(self, count: int, room_of: RoomOf | None) -> tuple[Partition | None, int]:
        """Return the next partition in turn with records that may be taken, and their maximum number."""
        for partition in self._space.in_turn():
            limit = count if room_of is None else room_of(partition.topic_partition)
            if limit <= 0 or not self.is_readable(partition):
                continue
            batch = partition.batches[0]
            if not batch.is_decompressing and (not batch.is_compressed or self._may_decompress(room_of)):
                return partition, limit
        return None, 0

    def _may_decompress(self, room_of: RoomOf | None) -> bool:
        return self._partitions.has_room_to_decompress(
            lambda one: (room_of is None or room_of(one.topic_partition) > 0) and self.is_readable(one)
        )

    def _cut_slice(
        self, partition: Partition, count: int, room_of: RoomOf | None, columns: ColumnBuilder | None
    ) -> RecordSlice | None:
        """Take up to ``count`` records of the first batch; return None if none of them is to be delivered."""
        batch = partition.batches[0]
        assert isinstance(batch, BufferedBatch)
        if batch.is_compressed and not self._decompress(partition, batch):
            return None
        # Some of the records may not be delivered, and the others are then added to the columns below.
        is_added = columns is not None and not partition.has_known_map and not self._detects_gaps
        records: Sequence[Record]
        if columns is not None and is_added:
            records = batch.take_into(columns, partition, count)
        else:
            records = batch.take(partition, count)
        # A batch whose last record was taken is removed at once: it would occupy the buffer and block a wait for many
        # records.
        is_used_up = not batch.is_blocked and (len(records) < count or records[-1].offset + 1 == batch.next_offset)
        if self._detects_gaps and records:
            count_before = self._count_before_gap(partition, batch, records)
            records, is_used_up = records[:count_before], is_used_up and count_before == len(records)
        if is_used_up:
            partition.remove_first()
            if self.waiting_for_room:
                self.note_room()
        end = batch.next_offset if is_used_up else records[-1].offset + 1
        if partition.has_known_map:
            records = self.maps.without_finished(partition, records)
        if not records:
            partition.skip(end, batch.leader_epoch)
            self._has_skipped = True
            return None
        if columns is not None and not is_added:
            columns.add_records(records)
        found = RecordSlice(partition, records, end, batch.leader_epoch, None if is_used_up else batch)
        if is_used_up and partition.batches and len(records) < count and columns is None and not self._detects_gaps:
            self._add_following(found, count, room_of)
        return found

    def _count_before_gap(self, partition: Partition, batch: BufferedBatch, records: Sequence[Record]) -> int:
        """Return the number of records before the first missing offset, and give the others back to the batch.

        Raises:
            OffsetGapError: an offset is missing before the first record.
        """
        count, gap = partition.gap_in(records)
        if gap is not None:
            batch.give_back(records[count:])
            if not count:
                raise gap
        return count

    def _add_following(self, found: RecordSlice, count: int, room_of: RoomOf | None) -> None:
        """Add records of the batches that follow the last batch of a slice, until it has ``count`` records.

        Each slice has a fixed cost. If producers send batches of few records, this would be a cost per record.
        """
        partition, added = found.partition, list[Record]()
        while found.buffered is None and (wanted := count - len(found.records) - len(added)) > 0 and partition.batches:
            following = partition.batches[0]
            assert isinstance(following, BufferedBatch)
            if not following.can_share_slice or following.leader_epoch != found.leader_epoch:
                break
            if following.is_compressed and not (
                self._may_decompress(room_of) and self._decompress(partition, following)
            ):
                break
            try:
                taken = following.take(partition, wanted)
            except TailraceError:
                break  # The next slice raises the error again.
            if not following.is_blocked and (len(taken) < wanted or taken[-1].offset + 1 == following.next_offset):
                partition.remove_first()
                if self.waiting_for_room:
                    self.note_room()
                found.end = following.next_offset
            else:
                found.buffered, found.end = following, taken[-1].offset + 1
            added += self.maps.without_finished(partition, taken) if partition.has_known_map else taken
        if added:
            found.records = [*found.records, *added]

    def _decompress(self, partition: Partition, batch: BufferedBatch) -> bool:
        """Decompress a batch and return True, or let a thread decompress it and return False."""
        space = self._space

        def decompressed() -> None:
            space.decompressing -= 1
            space.plain_bytes += batch.plain_bytes
            self.wakeup.set()

        is_ready = batch.prepare(partition, decompressed)
        partition.decompressed = batch
        space.plain_bytes += batch.plain_bytes
        space.decompressing += batch.is_decompressing
        return is_ready

    def _are_available(
        self, count: int, *, is_patient: bool = True, partitions: frozenset[TopicPartition] | None = None
    ) -> bool:
        """Skip offsets without records, and return True if a wait for ``count`` records should end.

        A wait ends if that many records are buffered, if at least one is buffered and there is no room for more, or if
        an error follows the buffered records.

        Args:
            count: number of records.
            is_patient: True to end the wait when no partition has room for more records; False to end it when one
                partition has no room, because the other partitions may never receive records.
            partitions: partitions to count; None counts all assigned partitions.
        """
        self._skip_empty()
        found, has_room, is_full = 0, False, False
        share = self._space.share_of(len(self._partitions))
        for partition in self._partitions:
            is_wanted = partitions is None or partition.topic_partition in partitions
            if not is_wanted or not self.is_readable(partition):
                continue
            for batch in partition.batches:
                found += batch.max_count_from(partition.delivered or 0)
                if found >= count or batch.has_error:
                    return True
            takes_more = share - partition.buffered_bytes > share // 2
            has_room, is_full = has_room or takes_more, is_full or not takes_more
        # Bytes reserved by a fetch in flight count as room, because that fetch may bring the missing records.
        has_room = has_room and self._space.max_bytes - self._space.held_bytes > share // 2
        return found > 0 and (not has_room or (is_full and not is_patient))

    def _skip_empty(self) -> None:
        """Skip entries without records at the head of each partition's queue.

        ``_slice_in_turn`` skips them, too, but is not called during a wait for many records.
        """
        for partition in self._partitions:
            while partition.batches and partition.batches[0].is_empty and self.is_readable(partition):
                batch = partition.batches[0]
                partition.remove_first()
                partition.skip(batch.next_offset, batch.leader_epoch)

    # ---- acknowledgement ---------------------------------------------------------------------------------------

    def acknowledge(self, delivered: AnyRecord | ArrowBatch) -> bool:
        if isinstance(delivered, Record):
            was_in_flight = self.delivery.acknowledge(delivered)
        else:
            was_in_flight = self.delivery.acknowledge_batch(delivered)
        if was_in_flight and (self.maps.held_back or self._waits_for_ack):
            self.wakeup.set()
        return was_in_flight

    # ---- for other parts of the consumer -----------------------------------------------------------------------

    def recheck(self) -> None:
        """Look for records again, because a partition may have become readable, or a position may have changed."""
        self.wakeup.set()
        self.on_change()

    def halt(self, partitions: Iterable[TopicPartition]) -> None:
        """Deliver no more records of ``partitions``; records in flight stay in flight."""
        for partition in self._partitions.of(partitions):
            self.delivery.halt(partition)
        self._put_back_if_not_readable()

    def pause(self, partitions: Iterable[TopicPartition]) -> None:
        for partition in self._partitions.of(partitions):
            partition.is_paused = True
        self._put_back_if_not_readable()
        # The buffered batches of paused partitions may be dropped now if other partitions have no room.
        self.note_room()

    def subscribe(self, is_subscribed: Callable[[str], object] | None) -> None:
        """Deliver only records of topics for which ``is_subscribed`` is true; None delivers those of all topics."""
        self._partitions.subscribe(is_subscribed)
        self._put_back_if_not_readable()
        self.recheck()

    def drop(self, partitions: Iterable[TopicPartition]) -> None:
        gone = set(partitions)
        self.delivery.drop(gone)
        for partition in self._partitions.of(gone):
            self.maps.drop(partition)
            partition.drop_batches()
        self.note_room()
        if self._waits_for_ack:
            self.wakeup.set()

    def note_room(self) -> None:
        """Wake the fetches that wait for room in the buffer."""
        for waiting in self.waiting_for_room:
            waiting.set()

    def report(self, error: TailraceError) -> None:
        """Raise ``error`` in the next polling call; ignore it if an error with the same text is still to be raised."""
        if str(error) not in map(str, self._errors):
            self._errors.append(error)
        self._put_back_current()
        self.wakeup.set()

    def close(self, reason: TailraceError) -> None:
        """Raise ``reason`` in every polling call from now on; records in flight stay unfinished."""
        self.delivery.close()
        self._end = reason
        self.wakeup.set()

    def raise_failure(self) -> None:
        """Raise the next reported error, or the reason given to ``close``, if there is one."""
        if self._errors:
            raise self._errors.popleft()
        if self._end is not None:
            raise self._end

    # ---- state -------------------------------------------------------------------------------------------------

    @property
    def poll_marker(self) -> object:
        return self.delivery.poll_marker

    @property
    def awaits_poll(self) -> bool:
        """True if it is the user's turn, so that ``max_poll_interval_ms`` applies.

        This is the case if the user could poll a record or was given one by the last poll, and no poll is waiting for
        records. A poll that waits for acknowledgements (``max_unacknowledged_records``) is not waiting for records.
        """
        if self._is_waiting and not self._waits_for_ack:
            return False
        has_buffered = any(map(self.is_readable, self._space.waiting))
        return self.delivery.awaits_poll(has_buffered=has_buffered)

    def is_over(self) -> bool:
        """Return True if the consumer was stopped.

        Raises:
            TailraceError: an error ended the consumer.
        """
        if self._end is not None and not isinstance(self._end, ConsumerStateError):
            raise self._end
        return self._end is not None

    @property
    def queued_records(self) -> int:
        return self.delivery.polled.count_left

    # ---- inside ------------------------------------------------------------------------------------------------

    def _check(self, partitions: PartitionFilter) -> None:
        self.raise_failure()
        if partitions is not None and not any(one in self._partitions for one in partitions):
            names = ", ".join(sorted(map(str, partitions)))
            raise ConsumerStateError(f"{names} is not assigned to this consumer - await assigned() before reading it")

    def _put_back_unless_in(self, partitions: PartitionFilter) -> None:
        if (
            partitions is not None
            and self.delivery.topic_partition is not None
            and self.delivery.topic_partition not in partitions
        ):
            self._put_back_current()

    def _put_back_if_not_readable(self) -> None:
        topic_partition = self.delivery.topic_partition
        partition = None if topic_partition is None else self._partitions.get(topic_partition)
        if topic_partition is not None and (partition is None or not self.is_readable(partition)):
            self._put_back_current()

    def _put_back_current(self) -> None:
        """Put the undelivered records of the current slice back into the buffer."""
        if (given_back := self.delivery.give_back()) is None:
            return
        found, rest = given_back
        if found.buffered is not None:
            found.buffered.give_back(rest)
        else:
            batch = BufferedBatch(found.end, leader_epoch=found.leader_epoch)
            batch.give_back(rest)
            found.partition.put_back(batch)
