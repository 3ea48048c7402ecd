"""How many records are there to be read, without decoding any: enough to know whether a batch is worth taking.

Rule of this file: the numbers come from the batches' offsets, so where a log has gaps fewer records are there than is
said. Nobody waits for what has no room, nor for what is behind an error: a buffer that takes no more counts as enough.
"""

from __future__ import annotations

from tailrace.consumer.delivery.buffered_batch import BufferedBatch
from tailrace.consumer.delivery.slices import SliceReader
from tailrace.core.delivery.positions import Positions
from tailrace.core.fetch.buffer import FetchBuffer

__all__ = ["BufferedCounts"]


class BufferedCounts:
    """Counts what waits in one consumer's buffer."""

    def __init__(self, positions: Positions, buffer: FetchBuffer[BufferedBatch], slice_reader: SliceReader) -> None:
        self._positions, self._buffer, self._slice_reader = positions, buffer, slice_reader

    def are_there(self, count: int, *, is_patient: bool = True) -> bool:
        """Whether so many records may be handed out now, or all that there is room for, or an error is to be told.

        Args:
            count: how many.
            is_patient: whether a partition that takes no more waits for the others, which may bring nothing.
        """
        self._slice_reader.pass_over_nothing()
        found, has_room, is_full = 0, False, False
        share = self._buffer.share_of(len(self._positions))
        for position in self._positions:
            if not self._slice_reader.is_readable(position.partition):
                continue
            for buffered in self._buffer.all_buffered(position.partition):
                found += buffered.expected(position.delivered or 0)
                if found >= count or buffered.has_error:
                    return True
            takes_more = self._buffer.room_of(position.partition, len(self._positions)) > share // 2
            has_room, is_full = has_room or takes_more, is_full or not takes_more
        # What a fetch under way has reserved is room: it may bring what is waited for.
        has_room = has_room and self._buffer.max_bytes - self._buffer.held_bytes > share // 2
        return found > 0 and (not has_room or (is_full and not is_patient))
