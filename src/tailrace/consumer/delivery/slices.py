"""Slices of the buffered batches: the partition whose turn it is, decoded, without what an earlier owner finished."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from tailrace.consumer.delivery.buffered_batch import BufferedBatch
from tailrace.consumer.delivery.offset_gaps import OffsetGaps
from tailrace.consumer.delivery.offset_map_watch import OffsetMapWatch
from tailrace.core.delivery.positions import Position, Positions
from tailrace.core.delivery.progress import InFlight, Lease
from tailrace.core.fetch.buffer import FetchBuffer
from tailrace.core.fetch.decompressed_batches import DecompressedBatches
from tailrace.records import Record, TopicPartition

__all__ = ["RecordSlice", "SliceReader"]

Readable: TypeAlias = Callable[[TopicPartition], bool]

_EMPTY_IN_A_ROW = 64
"""After so many slices without a record to hand out, others have a turn."""


@dataclass(slots=True)
class RecordSlice:
    """Some decoded records of one partition."""

    position: Position
    records: list[Record]
    end: int
    """The offset at which the partition goes on."""
    leader_epoch: int
    buffered: BufferedBatch | None
    """Where it came from, if there is more there."""

    def deliver(self, in_flight: InFlight) -> Lease:
        """Hand the records over; used up, the lease alone has them."""
        records, self.records = self.records, []
        return self.position.deliver(records, self.end, self.leader_epoch, in_flight)


class SliceReader:
    """Takes slices.

    Args:
        on_room: told when there is room to fetch.
        on_prepared: called when a batch that was not ready to be read is.
        gaps: tells of offsets that are missing.
    """

    def __init__(  # noqa: PLR0913 - the rooms it stands between
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
        """Whether the last ``next_slice`` found nothing, and should be asked again soon."""
        self.has_passed = False
        """Whether it came past offsets without a record to hand out."""

    def is_readable(self, partition: TopicPartition) -> bool:
        """Whether records of a partition may be handed out now, or what stands in their place be told.

        While callbacks run it is not told yet that nobody has said where to begin: they may still say so.
        """
        position = self._positions.get(partition)
        if position is None or position.is_halted or position.is_held_back or not position.is_fetchable:
            return False
        if not position.map_fill.is_high and not self._maps.is_holding:
            return True
        return not self._maps.holds_back(position)

    def next_slice(self, is_wanted: Readable, count_of: Callable[[TopicPartition], int]) -> RecordSlice | None:
        """Records of the partition whose turn it is, of those that are wanted; None when there is nothing to read.

        Raises:
            TailraceError: what stands in place of its records.
        """
        self._maps.look_again_at, self.has_more, self.has_passed = None, False, False

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
            if (found := self._open(position, count_of(partition))) is not None:
                return found
        self.has_more = True
        return None

    def _open(self, position: Position, count: int) -> RecordSlice | None:
        buffered = self._buffer.head(position.partition)
        assert buffered is not None
        if buffered.is_compressed and not self._prepare(position, buffered):
            return None
        records = buffered.take(position, count)
        # With the last record of a batch, too: it would take room, and who waits for many records would not see that.
        is_at_end = len(records) < count or records[-1].offset + 1 == buffered.next_offset
        is_used_up = is_at_end and not buffered.is_blocked
        if self._gaps is not None and records:
            good, gap = self._gaps.sound(position, records)
            if gap is not None:
                buffered.give_back(records[good:])
                if not good:
                    raise gap
                records, is_used_up = records[:good], False
        if is_used_up:
            self._buffer.pop(position.partition)
            self._on_room()
        end = buffered.next_offset if is_used_up else records[-1].offset + 1
        records = self._maps.unfinished_of(position, records)
        if not records:
            position.skip(end, buffered.leader_epoch)
            self.has_passed = True
            return None
        return RecordSlice(position, records, end, buffered.leader_epoch, None if is_used_up else buffered)

    def _prepare(self, position: Position, buffered: BufferedBatch) -> bool:
        def prepared() -> None:
            self._decompressed.decompressed(buffered)
            self._on_prepared()

        is_prepared = buffered.prepare(position, prepared)
        self._decompressed.add(position.partition, buffered)
        return is_prepared

    def put(self, partition: TopicPartition, buffered: BufferedBatch, size: int) -> None:
        """Something was fetched; of what is no record there is one chunk in a row, however long that row is."""
        last = self._buffer.last(partition)
        if last is None or not last.takes_in(buffered):
            self._buffer.put(partition, buffered, size)

    def pass_over_nothing(self) -> None:
        """Take away what is no record, where it comes first: whoever waits for many records would not come to it."""
        for position in self._positions:
            while (buffered := self._buffer.head(position.partition)) is not None and buffered.is_nothing:
                if not self.is_readable(position.partition):
                    break
                self._buffer.pop(position.partition)
                position.skip(buffered.next_offset, buffered.leader_epoch)

    def put_back(self, one: RecordSlice, rest: Sequence[Record]) -> None:
        """The last records of a slice go back to where they came from; they come first again."""
        if one.buffered is not None:
            one.buffered.give_back(rest)
        else:
            returned = BufferedBatch(one.end, returned=rest, leader_epoch=one.leader_epoch)
            self._buffer.put_back(one.position.partition, returned)
