"""Records, partitions and offsets, as immutable values.

A Record is created in C (msgspec) about a million times a second. None of its fields is lazy, so it may outlive its
batch, its consumer and its process.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import msgspec

__all__ = ["OffsetAndMetadata", "OffsetAndTimestamp", "Record", "TopicPartition"]


class TopicPartition(NamedTuple):
    """Topic name and partition number."""

    topic: str
    partition: int

    def __str__(self) -> str:
        return f"{self.topic}[{self.partition}]"


class OffsetAndMetadata(NamedTuple):
    """Committed offset (the next one to read) with its metadata text and leader epoch."""

    offset: int
    metadata: str = ""
    leader_epoch: int | None = None


class OffsetAndTimestamp(NamedTuple):
    """Offset of the first record with at least the requested timestamp."""

    offset: int
    timestamp: int
    """Timestamp of the record, in milliseconds since the epoch."""
    leader_epoch: int | None = None


class Record(msgspec.Struct, frozen=True, gc=False):
    """Record as stored by the broker.

    Unpacks into its first five fields: ``topic, partition, offset, key, value = record``.
    """

    topic: str
    partition: int
    offset: int
    key: bytes | None
    """Key; None if the record has none, which differs from an empty key."""
    value: bytes | None
    """Value; None in a tombstone."""
    timestamp: int
    """Milliseconds since the epoch, set by the producer or the broker (``message.timestamp.type``)."""
    headers: Sequence[tuple[str, bytes | None]] = ()

    def __iter__(self) -> Iterator[object]:
        return iter((self.topic, self.partition, self.offset, self.key, self.value))

    @property
    def topic_partition(self) -> TopicPartition:
        """Topic and partition of the record."""
        return TopicPartition(self.topic, self.partition)
