"""Detection of missing offsets (``allow_offset_gaps=False``)."""

from __future__ import annotations

from collections.abc import Sequence

from tailrace.core.delivery.positions import Position
from tailrace.errors import OffsetGapError
from tailrace.records import Record, TopicPartition

__all__ = ["OffsetGaps"]


class OffsetGaps:
    """Tracks the next expected offset of each partition; after a seek, the new position is expected."""

    def __init__(self) -> None:
        self._next: dict[TopicPartition, tuple[int, int]] = {}
        """Assignment epoch and next expected offset."""

    def check(self, position: Position, records: Sequence[Record]) -> tuple[int, OffsetGapError | None]:
        """Return the number of ``records`` before the first gap, and the error to raise there; None without a gap."""
        epoch, expected = self._next.get(position.partition, (-1, 0))
        if epoch != position.epoch:
            expected = position.delivered or 0
        for count, record in enumerate(records):
            if record.offset > expected:
                self._next[position.partition] = (position.epoch, expected)
                return count, OffsetGapError(position.partition, expected, record.offset)
            expected = record.offset + 1
        self._next[position.partition] = (position.epoch, expected)
        return len(records), None
