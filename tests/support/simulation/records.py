"""Records without values, for tests of decisions about offsets."""

from __future__ import annotations

from collections.abc import Iterable

from tailrace.records import Record, TopicPartition

__all__ = ["records_at"]

_PARTITION = TopicPartition("t", 0)


def records_at(offsets: Iterable[int], partition: TopicPartition = _PARTITION) -> list[Record]:
    """Return a record at each of these offsets."""
    return [Record(*partition, offset, None, b"", 0) for offset in offsets]
