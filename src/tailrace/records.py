"""The nouns of Kafka that everything else speaks of: records, partitions, offsets.

Rule of this file: plain values, immutable, cheap to make. A record is made a million times a second, by C
(msgspec), in one piece; nothing of it is lazy, so it may outlive its batch, its consumer and its process.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import msgspec

__all__ = ["OffsetAndMetadata", "OffsetAndTimestamp", "Record", "TopicPartition"]


class TopicPartition(NamedTuple):
    """One partition of one topic."""

    topic: str
    partition: int

    def __str__(self) -> str:
        return f"{self.topic}[{self.partition}]"


class OffsetAndMetadata(NamedTuple):
    """A committed offset: the next record to read, a text that went with it, the epoch of its leader then."""

    offset: int
    metadata: str = ""
    leader_epoch: int | None = None


class OffsetAndTimestamp(NamedTuple):
    """The first offset whose record is not older than a time that was asked for."""

    offset: int
    timestamp: int
    """Milliseconds since the epoch, as the record carries it."""
    leader_epoch: int | None = None


class Record(msgspec.Struct, frozen=True, gc=False):
    """One record, as the broker stored it.

    It unpacks as its first five fields: ``topic, partition, offset, key, value = record``.
    """

    topic: str
    partition: int
    offset: int
    key: bytes | None
    """None is kept apart from an empty key."""
    value: bytes | None
    """None is a tombstone."""
    timestamp: int
    """Milliseconds since the epoch: the producer's time or the broker's, as ``message.timestamp.type`` says."""
    headers: Sequence[tuple[str, bytes | None]] = ()

    def __iter__(self) -> Iterator[object]:
        return iter((self.topic, self.partition, self.offset, self.key, self.value))

    @property
    def topic_partition(self) -> TopicPartition:
        """Where the record came from."""
        return TopicPartition(self.topic, self.partition)
