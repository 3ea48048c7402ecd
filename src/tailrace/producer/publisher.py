"""Records to publish, and the interface through which they are published.

Pure: no clock, IO or logging. Producers, transactions and the topics of ``TestApp`` implement the interface.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import NamedTuple, Protocol, TypeAlias

import msgspec

from tailrace.errors import PublishError
from tailrace.records import TopicPartition

__all__ = ["Headers", "OutgoingRecord", "Published", "Publisher", "error_of_several"]

Headers: TypeAlias = Sequence[tuple[str, bytes | None]]


class OutgoingRecord(msgspec.Struct, frozen=True, gc=False):
    """Encoded record to publish."""

    topic: str
    value: bytes | None
    key: bytes | None = None
    headers: Headers = ()
    partition: int | None = None
    """Number of the partition; None to select it by key, as Kafka's own clients do."""
    timestamp_ms: int | None = None
    """Timestamp; None for the current time."""


class Published(NamedTuple):
    """Place of a record that was stored."""

    topic: str
    partition: int
    """Number of the partition."""
    offset: int
    """Offset of the record; -1 with ``acks=0``, and if the broker no longer knows the offset."""
    timestamp: int = -1
    """Time in milliseconds since 1970 of the record; the broker's time if the topic has ``LogAppendTime``."""

    @property
    def topic_partition(self) -> TopicPartition:
        """Topic and number of the partition."""
        return TopicPartition(self.topic, self.partition)


class Publisher(Protocol):
    """Publisher of encoded records."""

    async def publish(self, record: OutgoingRecord) -> Published | None:
        """Publish one record.

        When the call returns, the record is stored, or it is part of an open transaction, which also commits the offset
        of the record that is being handled.

        Returns:
            Partition and offset; None if the record is part of an open transaction.

        Raises:
            PublishError: the record was refused, or not acknowledged in time.
        """


def error_of_several(first: BaseException, count: int, of: int) -> BaseException:
    """Return the first of several errors, with their number in its message."""
    if of == 1 or not isinstance(first, PublishError):
        return first
    error = copy.copy(first)
    error.args = (f"{count} of {of} records were not published; the first: {first}",)
    error.__cause__ = first
    return error
