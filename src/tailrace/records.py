"""Immutable values: records, partitions, offsets.

msgspec constructs records in C, because a consumer constructs up to a million per second. No field is computed on
access, so a record can be used after its batch is discarded or its consumer is stopped, and in another process.
Construct records with ``Record(...)``, not with ``Record[K, V](...)``, which takes ten times as long.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Generic, Literal, NamedTuple, TypeAlias

import msgspec
from typing_extensions import TypeVar

__all__ = [
    "AnyRecord",
    "KeyT_co",
    "OffsetAndMetadata",
    "OffsetAndTimestamp",
    "Record",
    "TimestampType",
    "TopicPartition",
    "ValueT_co",
]

KeyT_co = TypeVar("KeyT_co", covariant=True, default=bytes)
"""Type of a record's key unless the key is null."""
ValueT_co = TypeVar("ValueT_co", covariant=True, default=bytes)
"""Type of a record's value unless the value is null."""

TimestampType: TypeAlias = Literal["CreateTime", "LogAppendTime"]


class TopicPartition(NamedTuple):
    """Partition of a topic."""

    topic: str
    partition: int

    def __str__(self) -> str:
        return f"{self.topic}[{self.partition}]"


class OffsetAndMetadata(NamedTuple):
    """Committed offset with its metadata, and the leader epoch of the record before the offset, if it is known."""

    offset: int
    metadata: str = ""
    leader_epoch: int | None = None


class OffsetAndTimestamp(NamedTuple):
    """Offset of the first record that is not older than a given time."""

    offset: int
    timestamp: int
    """Timestamp of the record, in milliseconds since 1970."""
    leader_epoch: int | None = None


class Record(msgspec.Struct, Generic[KeyT_co, ValueT_co], frozen=True, gc=False):
    """Record of a partition.

    Without deserializers, key and value are the bytes that the broker stores. A consumer whose deserializers return
    ``str`` keys and ``Order`` values delivers ``Record[str, Order]``. A record can be unpacked into its first five
    fields: ``topic, partition, offset, key, value = record``.
    """

    topic: str
    partition: int
    offset: int
    key: KeyT_co | None
    """None if the key is null; an empty key is ``b""``."""
    value: ValueT_co | None
    """None if the value is null: a tombstone."""
    timestamp: int
    """Milliseconds since 1970."""
    headers: Sequence[tuple[str, bytes | None]] = ()
    """Names and values, in order: a tuple, unless the record was constructed with another sequence.

    Bytes of a name that are not UTF-8 are read as U+FFFD, as by Java's client.
    """
    timestamp_type: TimestampType | None = "CreateTime"
    """Origin of the timestamp: the producer ("CreateTime") or the broker ("LogAppendTime"), depending on the topic's
    ``message.timestamp.type``. None if the origin is unknown: on Spark, from a retry topic, or in message format 0."""

    def __iter__(self) -> Iterator[str | int | KeyT_co | ValueT_co | None]:
        return iter((self.topic, self.partition, self.offset, self.key, self.value))

    @property
    def topic_partition(self) -> TopicPartition:
        """Partition of the record."""
        return TopicPartition(self.topic, self.partition)


AnyRecord: TypeAlias = Record[Any, Any]
"""Record with keys and values of any type."""
