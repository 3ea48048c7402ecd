"""Records that are acknowledged one by one, in any order: ``ack="manual"``.

Rule of this file: a record is begun with its slice and finished by its own acknowledgement. It is known by the object
that was handed out, not by its offset: after a rebalance or a seek the same offset may be handed out again, and an
acknowledgement of the record of before says nothing of that one.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from tailrace.core.delivery.offset_tracker import OffsetTracker
from tailrace.core.delivery.progress import Position
from tailrace.records import Record, TopicPartition

__all__ = ["ManualAcks"]


class _UnacknowledgedSlice(NamedTuple):
    tracker: OffsetTracker
    """Of the assignment in which they were handed out."""
    records: dict[int, Record]


class ManualAcks:
    """The records of all partitions that are decoded and not acknowledged."""

    def __init__(self) -> None:
        self._held: dict[TopicPartition, _UnacknowledgedSlice] = {}

    def begin(self, position: Position, records: Sequence[Record], behind: int) -> None:
        """A slice is to be handed out, behind which the partition goes on at ``behind``."""
        tracker = position.tracker
        assert tracker is not None
        held = self._held.get(position.partition)
        if held is None or held.tracker is not tracker:
            held = self._held[position.partition] = _UnacknowledgedSlice(tracker, {})
        offsets = [record.offset for record in records]
        tracker.begin_all(offsets)
        tracker.advance(behind)
        held.records.update(zip(offsets, records, strict=True))

    def take_back(self, position: Position, records: Sequence[Record]) -> None:
        """The rest of the last slice is not handed out after all."""
        held = self._held[position.partition]
        offsets = [record.offset for record in records]
        held.tracker.take_back(offsets)
        for offset in offsets:
            del held.records[offset]

    def finish(self, position: Position, record: Record) -> bool:
        """``record`` is done; False when it was before, or is of another assignment."""
        held = self._held.get(position.partition)
        if held is None or held.tracker is not position.tracker or held.records.get(record.offset) is not record:
            return False
        del held.records[record.offset]
        return held.tracker.finish(record.offset)

    def drop(self, partition: TopicPartition) -> None:
        """Forget all records of a partition."""
        self._held.pop(partition, None)
