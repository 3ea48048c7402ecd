"""Slices of buffered batches: records of one partition that are decoded and delivered together.

Partitions take turns. Records that an earlier owner has finished are left out.
"""

from __future__ import annotations

import math
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Generic, Self, TypeAlias, TypeVar

from tailrace.consumer.delivery.buffered_batch import BufferedBatch
from tailrace.consumer.delivery.offset_map_watch import OffsetMapWatch
from tailrace.consumer.partition import AssignedPartitions, DecompressedBatches, FetchBuffer, Partition
from tailrace.core.progress import Lease
from tailrace.errors import OffsetGapError, TailraceError
from tailrace.records import Record, TopicPartition

if TYPE_CHECKING:
    from tailrace.batches.columns import ColumnBuilder

__all__ = [
    "FIRST_SLICE",
    "MAX_HOLD_S",
    "Batches",
    "OffsetGaps",
    "RecordSlice",
    "SliceReader",
    "is_too_long",
    "next_slice",
]

# ---- size of slices --------------------------------------------------------------------------------------------------

MAX_HOLD_S = 0.005
"""Target duration of a slice in seconds. After this time, a busy worker lets other tasks of the event loop run."""

FIRST_SLICE = 16
"""Number of records in the first slice, before any duration is known."""


def next_slice(size: int, took_s: float, longest: int) -> int:
    """Return the size of the next slice, at most ``longest``, after a slice of ``size`` records took ``took_s``."""
    fitting = size * MAX_HOLD_S / took_s if took_s > 0 else math.inf
    return max(1, min(int(min(fitting, size * 2)), longest))


def is_too_long(held_s: float) -> bool:
    """Return True if the event loop was blocked for so long (``held_s``) that other tasks should run next."""
    return held_s >= MAX_HOLD_S


# ---- detection of missing offsets (``allow_offset_gaps=False``) ------------------------------------------------------


class OffsetGaps:
    """Tracks the next expected offset of each partition; after a seek, the new position is expected."""

    def __init__(self) -> None:
        self._next: dict[TopicPartition, tuple[int, int]] = {}
        """Assignment epoch and next expected offset."""

    def check(self, position: Partition, records: Sequence[Record]) -> tuple[int, OffsetGapError | None]:
        """Return the number of ``records`` before the first gap, and the error to raise there; None without a gap."""
        epoch, expected = self._next.get(position.topic_partition, (-1, 0))
        if epoch != position.epoch:
            expected = position.delivered or 0
        for count, record in enumerate(records):
            if record.offset > expected:
                self._next[position.topic_partition] = (position.epoch, expected)
                return count, OffsetGapError(position.topic_partition, expected, record.offset)
            expected = record.offset + 1
        self._next[position.topic_partition] = (position.epoch, expected)
        return len(records), None


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


# ---- slices of buffered batches: records of one partition that are decoded and delivered together --------------------

PartitionPredicate: TypeAlias = Callable[[TopicPartition], bool]

_MAX_ATTEMPTS = 64
"""Number of attempts to take a slice with a deliverable record, after which other tasks may run."""


@dataclass(slots=True)
class RecordSlice:
    """Records of one partition that are decoded and delivered together."""

    position: Partition
    records: Sequence[Record]
    end: int
    """Offset at which the partition continues after the slice."""
    leader_epoch: int
    buffered: BufferedBatch | None
    """Buffer entry from which the records were taken; None if it is used up and was removed from the buffer."""

    def deliver(self) -> Lease:
        """Deliver the records and return their lease; drop the slice's references, so that records can be freed."""
        records, self.records = self.records, []
        return self.position.deliver(records, self.end, self.leader_epoch)


class SliceReader:
    """Takes slices from the fetch buffer.

    Args:
        positions: the assigned partitions.
        buffer: fetch buffer.
        maps: offset maps of the partitions.
        on_room: called when the buffer has more room.
        on_prepared: called when a thread has decompressed a batch.
        gaps: detects missing offsets; None if gaps are accepted.
    """

    def __init__(  # noqa: PLR0913 - one argument for each part that a slice passes
        self,
        positions: AssignedPartitions,
        buffer: FetchBuffer[BufferedBatch],
        maps: OffsetMapWatch,
        *,
        on_room: Callable[[], None],
        on_prepared: Callable[[], None],
        gaps: OffsetGaps | None = None,
    ) -> None:
        self._gaps = gaps
        self._positions, self._buffer, self._maps = positions, buffer, maps
        self._decompressed = DecompressedBatches(buffer)
        self._on_room, self._on_prepared = on_room, on_prepared
        self.has_more = False
        """True if the last ``next_slice`` returned early without a slice and should be called again soon."""
        self.has_skipped = False
        """True if the last ``next_slice`` skipped offsets that hold no deliverable record."""

    def is_readable(self, partition: TopicPartition) -> bool:
        """Return True if records of a partition, or an error in their place, may be delivered now.

        Nothing is delivered while rebalance callbacks run: with ``auto_offset_reset="none"``, a callback may still set
        the position of a partition that has none.
        """
        position = self._positions.get(partition)
        if position is None or position.is_halted or position.is_held_back or not position.is_fetchable:
            return False
        if not position.map_fill.is_high and not self._maps.holds_any:
            return True
        return not self._maps.holds_back(position)

    def next_slice(
        self,
        is_wanted: PartitionPredicate,
        count_of: Callable[[TopicPartition], int],
        columns: ColumnBuilder | None = None,
    ) -> RecordSlice | None:
        """Take a slice of the next partition in turn and return it; None if there is none.

        Args:
            is_wanted: returns True for the partitions to take from.
            count_of: returns the maximum number of records of a partition.
            columns: columns to which the records are added; None for no columns.

        Raises:
            TailraceError: the partition has this error in place of records.
        """
        self._maps.recheck_at, self.has_more, self.has_skipped = None, False, False

        def is_ready(partition: TopicPartition) -> bool:
            if not is_wanted(partition):
                return False
            buffered = self._buffer.head(partition)
            if buffered is None or buffered.is_decompressing:
                return False
            return not buffered.is_compressed or self._decompressed.has_room(is_wanted)

        for _ in range(_MAX_ATTEMPTS):
            partition = self._buffer.next_partition(is_ready)
            if partition is None:
                return None
            position = self._positions.get(partition)
            assert position is not None
            if self._maps.is_due(position):
                self._maps.measure(position)
                if not self.is_readable(partition):
                    continue
            if (found := self._take_slice(position, count_of(partition), columns, is_wanted)) is not None:
                return found
        self.has_more = True
        return None

    def _take_slice(
        self, position: Partition, count: int, columns: ColumnBuilder | None, is_wanted: PartitionPredicate
    ) -> RecordSlice | None:
        buffered = self._buffer.head(position.topic_partition)
        assert buffered is not None
        if buffered.is_compressed and not self._prepare(position, buffered):
            return None
        records, added = self._take_records(buffered, position, count, columns)
        is_used_up = _is_used_up(buffered, records, count)
        if self._gaps is not None and records:
            count_before, gap = self._gaps.check(position, records)
            if gap is not None:
                buffered.give_back(records[count_before:])
                if not count_before:
                    raise gap
                records, is_used_up = records[:count_before], False
        if is_used_up:
            self._remove_first_batch(position.topic_partition)
        end = buffered.next_offset if is_used_up else records[-1].offset + 1
        records = self._maps.without_finished(position, records)
        if not records:
            position.skip(end, buffered.leader_epoch)
            self.has_skipped = True
            return None
        if columns is not None and not added:
            columns.add_records(records)
        found = RecordSlice(position, records, end, buffered.leader_epoch, None if is_used_up else buffered)
        if is_used_up and columns is None and self._gaps is None:
            self._add_following(found, count, is_wanted)
        return found

    def _add_following(self, found: RecordSlice, count: int, is_wanted: PartitionPredicate) -> None:
        """Add records of the batches that follow the last batch of a slice, until it has ``count`` records.

        Each slice has a fixed cost. If producers send batches of few records, this would be a cost per record.
        """
        position, added = found.position, list[Record]()
        while (
            found.buffered is None
            and (wanted := count - len(found.records) - len(added)) > 0
            and (following := self._buffer.head(position.topic_partition)) is not None
            and following.can_share_slice
            and following.leader_epoch == found.leader_epoch
        ):
            if following.is_compressed and not (
                self._decompressed.has_room(is_wanted) and self._prepare(position, following)
            ):
                break
            try:
                taken = following.take(position, wanted)
            except TailraceError:
                break  # The next slice raises the error again.
            if _is_used_up(following, taken, wanted):
                self._remove_first_batch(position.topic_partition)
                found.end = following.next_offset
            else:
                found.buffered, found.end = following, taken[-1].offset + 1
            added += self._maps.without_finished(position, taken)
        if added:
            found.records = [*found.records, *added]

    def _remove_first_batch(self, partition: TopicPartition) -> None:
        self._buffer.pop(partition)
        self._on_room()

    def _take_records(
        self, buffered: BufferedBatch, position: Partition, count: int, columns: ColumnBuilder | None
    ) -> tuple[Sequence[Record], bool]:
        """Take and return the next records; also return True if they were added to ``columns``, otherwise False."""
        has_known = position.progress is not None and position.progress.has_known_ahead
        if columns is None or has_known or self._gaps is not None:
            # Some of these records may not be delivered, so the caller adds the others to the columns.
            return buffered.take(position, count), False
        return buffered.take_into(columns, position, count), True

    def _prepare(self, position: Partition, buffered: BufferedBatch) -> bool:
        def prepared() -> None:
            self._decompressed.note_decompressed(buffered)
            self._on_prepared()

        is_prepared = buffered.prepare(position, prepared)
        self._decompressed.add(position.topic_partition, buffered)
        return is_prepared

    def put(self, partition: TopicPartition, buffered: BufferedBatch, size: int) -> None:
        """Add an entry to the buffer; consecutive entries without records are merged."""
        last = self._buffer.last(partition)
        if last is None or not last.merge(buffered):
            self._buffer.put(partition, buffered, size)

    def skip_empty(self) -> None:
        """Skip entries without records at the head of each partition's queue.

        ``next_slice`` skips them, too, but is not called during a wait for many records.
        """
        for position in self._positions:
            while (buffered := self._buffer.head(position.topic_partition)) is not None and buffered.is_empty:
                if not self.is_readable(position.topic_partition):
                    break
                self._buffer.pop(position.topic_partition)
                position.skip(buffered.next_offset, buffered.leader_epoch)

    def put_back(self, record_slice: RecordSlice, rest: Sequence[Record]) -> None:
        """Put the last records of a slice, ``rest``, back into the buffer; they are delivered next."""
        if record_slice.buffered is not None:
            record_slice.buffered.give_back(rest)
        else:
            returned = BufferedBatch(record_slice.end, returned=rest, leader_epoch=record_slice.leader_epoch)
            self._buffer.put_back(record_slice.position.topic_partition, returned)


def _is_used_up(buffered: BufferedBatch, taken: Sequence[Record], wanted: int) -> bool:
    """Return True if the last record of a batch was taken, so that the batch can be removed from the buffer.

    Otherwise, the batch would occupy the buffer and block a wait for many records.
    """
    is_at_end = len(taken) < wanted or taken[-1].offset + 1 == buffered.next_offset
    return is_at_end and not buffered.is_blocked
