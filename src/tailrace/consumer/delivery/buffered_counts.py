"""Number of buffered records, estimated without decoding them.

The estimate is computed from the offsets of batches, so it is too high where a log has gaps. A wait for a number of
records also ends if the buffer has no room for more records, or if an error follows the buffered records.
"""

from __future__ import annotations

from tailrace.consumer.delivery.buffered_batch import BufferedBatch
from tailrace.consumer.delivery.slices import SliceReader
from tailrace.core.delivery.positions import Positions
from tailrace.core.fetch.buffer import FetchBuffer
from tailrace.records import TopicPartition

__all__ = ["BufferedCounts"]


class BufferedCounts:
    """Counts the records in one consumer's fetch buffer."""

    def __init__(self, positions: Positions, buffer: FetchBuffer[BufferedBatch], slice_reader: SliceReader) -> None:
        self._positions, self._buffer, self._slice_reader = positions, buffer, slice_reader

    def are_available(
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
        self._slice_reader.skip_empty()
        found, has_room, is_full = 0, False, False
        share = self._buffer.share_of(len(self._positions))
        for position in self._positions:
            is_wanted = partitions is None or position.partition in partitions
            if not is_wanted or not self._slice_reader.is_readable(position.partition):
                continue
            for buffered in self._buffer.all_buffered(position.partition):
                found += buffered.max_count_from(position.delivered or 0)
                if found >= count or buffered.has_error:
                    return True
            takes_more = share - self._buffer.bytes_of(position.partition) > share // 2
            has_room, is_full = has_room or takes_more, is_full or not takes_more
        # Bytes reserved by a fetch in flight count as room, because that fetch may bring the missing records.
        has_room = has_room and self._buffer.max_bytes - self._buffer.held_bytes > share // 2
        return found > 0 and (not has_room or (is_full and not is_patient))
