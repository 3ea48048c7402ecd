"""Records to publish, and the interface through which they are published.

Pure: no clock, IO or logging. Producers, transactions and the topics of ``TestApp`` implement the interface.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Protocol, TypeAlias

import msgspec

from tailrace.records import TopicPartition

__all__ = ["Headers", "OutgoingRecord", "Published", "Publisher"]

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
    """Partition and offset of a record that was stored."""

    partition: TopicPartition
    offset: int
    """Offset of the record; -1 if the broker no longer knows it."""


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
