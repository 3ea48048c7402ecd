"""Offsets of a consumer that a transaction of a producer commits. Pure: no clock, IO or logging."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Protocol
from uuid import UUID

from tailrace.core.group_requests import Identity
from tailrace.records import OffsetAndMetadata, TopicPartition
from tailrace.values import Value

__all__ = ["OffsetSource", "TransactionOffsets"]


class TransactionOffsets(Value):
    """Offsets to commit, and the member of the group that commits them."""

    group_id: str
    offsets: Mapping[TopicPartition, OffsetAndMetadata]
    identity: Identity
    topic_ids: Mapping[TopicPartition, UUID]
    """Ids of the topics that the records were read from, as far as they are known."""
    current_identity: Callable[[], Identity | None]
    """Returns the identity of the member now; None if it no longer owns all partitions of ``offsets``."""


class OffsetSource(Protocol):
    """Consumer whose offsets a transaction commits."""

    def transaction_offsets(self, offsets: Mapping[TopicPartition, Any] | None = None, /) -> TransactionOffsets: ...
