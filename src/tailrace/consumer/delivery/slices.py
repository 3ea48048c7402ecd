"""Slices of buffered batches: partitions take turns, and records that an earlier owner finished are left out."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

from tailrace.consumer.delivery.buffered_batch import BufferedBatch
from tailrace.consumer.delivery.offset_gaps import OffsetGaps
from tailrace.consumer.delivery.offset_map_watch import OffsetMapWatch
from tailrace.core.delivery.positions import Position, Positions
from tailrace.core.delivery.progress import InFlight, Lease
from tailrace.core.fetch.buffer import FetchBuffer
from tailrace.core.fetch.decompressed_batches import DecompressedBatches
from tailrace.records import Record, TopicPartition

if TYPE_CHECKING:
    from tailrace.batches.columns import ColumnBuilder

__all__ = ["RecordSlice", "SliceReader"]

Readable: TypeAlias = Callable[[TopicPartition], bool]

_EMPTY_IN_A_ROW = 64
"""Number of slices without a deliverable record after which other tasks have a turn."""


@dataclass(slots=True)
class RecordSlice:
    """Decoded records of one partition."""

    position: Position
    records: Sequence[Record]
    end: int
    """Offset at which the partition continues."""
    leader_epoch: int
    buffered: BufferedBatch | None
    """Batch of the records; None if the slice contains the batch's last record."""

    def deliver(self, in_flight: InFlight) -> Lease:
        """Return a lease of the records; the slice drops its references, so that the records can be freed."""
        records, self.records = self.records, []
        return self.position.deliver(records, self.end, self.leader_epoch, in_flight)


class SliceReader:
    """Takes slices from the fetch buffer.

    Args:
        on_room: called when the buffer has more room.
        on_prepared: called when a thread has decompressed a batch.
        gaps: detects missing offsets.
    """

    def __init__(  # noqa: PLR0913 - one argument for each part that a slice passes
        self,
        positions: Positions,
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
        if not position.map_fill.is_high and not self._maps.is_holding:
            return True
        return not self._maps.holds_back(position)

    def next_slice(
        self, is_wanted: Readable, count_of: Callable[[TopicPartition], int], columns: ColumnBuilder | None = None
    ) -> RecordSlice | None:
        """Return a slice of the next partition in turn for which ``is_wanted`` is true; None if there is none.

        With ``columns``, add the slice's records to them.

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

        for _ in range(_EMPTY_IN_A_ROW):
            partition = self._buffer.next_partition(is_ready)
            if partition is None:
                return None
            position = self._positions.get(partition)
            assert position is not None
            if self._maps.is_due(position):
                self._maps.look(position)
                if not self.is_readable(partition):
                    continue
            if (found := self._open(position, count_of(partition), columns)) is not None:
                return found
        self.has_more = True
        return None

    def _open(self, position: Position, count: int, columns: ColumnBuilder | None) -> RecordSlice | None:
        buffered = self._buffer.head(position.partition)
        assert buffered is not None
        if buffered.is_compressed and not self._prepare(position, buffered):
            return None
        records, added = self._take(buffered, position, count, columns)
        # A batch is removed as soon as its last record is taken. Otherwise it would take room and block a wait for many
        # records.
        is_at_end = len(records) < count or records[-1].offset + 1 == buffered.next_offset
        is_used_up = is_at_end and not buffered.is_blocked
        if self._gaps is not None and records:
            count_before, gap = self._gaps.check(position, records)
            if gap is not None:
                buffered.give_back(records[count_before:])
                if not count_before:
                    raise gap
                records, is_used_up = records[:count_before], False
        if is_used_up:
            self._buffer.pop(position.partition)
            self._on_room()
        end = buffered.next_offset if is_used_up else records[-1].offset + 1
        records = self._maps.unfinished_of(position, records)
        if not records:
            position.skip(end, buffered.leader_epoch)
            self.has_skipped = True
            return None
        if columns is not None and not added:
            columns.add_records(records)
        return RecordSlice(position, records, end, buffered.leader_epoch, None if is_used_up else buffered)

    def _take(
        self, buffered: BufferedBatch, position: Position, count: int, columns: ColumnBuilder | None
    ) -> tuple[Sequence[Record], bool]:
        """Return the next records, and True if they were added to ``columns``."""
        has_known = position.progress is not None and position.progress.known is not None
        if columns is None or has_known or self._gaps is not None:
            # Some of these records may not be delivered.
            return buffered.take(position, count), False
        return buffered.take_into(columns, position, count), True

    def _prepare(self, position: Position, buffered: BufferedBatch) -> bool:
        def prepared() -> None:
            self._decompressed.decompressed(buffered)
            self._on_prepared()

        is_prepared = buffered.prepare(position, prepared)
        self._decompressed.add(position.partition, buffered)
        return is_prepared

    def put(self, partition: TopicPartition, buffered: BufferedBatch, size: int) -> None:
        """Add a fetched entry; consecutive entries without records are merged."""
        last = self._buffer.last(partition)
        if last is None or not last.merge(buffered):
            self._buffer.put(partition, buffered, size)

    def skip_empty(self) -> None:
        """Skip leading offsets without records, because a wait for many records takes no slice that would skip them."""
        for position in self._positions:
            while (buffered := self._buffer.head(position.partition)) is not None and buffered.is_empty:
                if not self.is_readable(position.partition):
                    break
                self._buffer.pop(position.partition)
                position.skip(buffered.next_offset, buffered.leader_epoch)

    def put_back(self, one: RecordSlice, rest: Sequence[Record]) -> None:
        """Put the last records of a slice back into the buffer; they are the next to be delivered."""
        if one.buffered is not None:
            one.buffered.give_back(rest)
        else:
            returned = BufferedBatch(one.end, returned=rest, leader_epoch=one.leader_epoch)
            self._buffer.put_back(one.position.partition, returned)
