"""Interfaces through which a transactional source uses a consumer and a producer; ``TestApp`` implements them, too."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Protocol
from uuid import UUID

from tailrace.app.sources import Source
from tailrace.consumer.delivery.completion import RecordSink
from tailrace.core.delivery.positions import Position
from tailrace.core.group_requests import Identity
from tailrace.errors import TailraceError
from tailrace.records import OffsetAndMetadata, TopicPartition

__all__ = ["GroupSource", "GroupView", "TransactionCommitter"]


class GroupView(Protocol):
    """Membership, positions and committed offsets of a consumer; see ``consumer.member_view``."""

    group_id: str

    @property
    def identity(self) -> Identity | None:
        """Identity to commit with; None while the member is in no generation of the group."""

    def next_offsets(self) -> Mapping[TopicPartition, int | None]:
        """Return the next offset to deliver of each assigned partition; None while the partition's start is unknown."""

    def uncommitted_starts(self) -> Sequence[Position]:
        """Return the positions whose start offset is not committed yet."""

    def advanced_positions(self) -> Sequence[Position]:
        """Return the positions that are above their committed offset, even if only gaps lie between."""

    def watch(self, on_change: Callable[[], None]) -> None:
        """Call ``on_change`` when a position may have changed."""

    def is_ours(self, position: Position) -> bool:
        """Return True if a position belongs to the current assignment of its partition."""

    async def committed_offsets(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, OffsetAndMetadata]:
        """Return the committed offsets, after pending transactions that may change them have ended."""

    def read_again(self, position: Position, at: OffsetAndMetadata) -> None:
        """Continue to read at a committed offset; if the topic was recreated, at ``auto_offset_reset``."""


class GroupSource(Source, Protocol):
    """Source of a group's records that commits no offsets."""

    async def start(self, sink: RecordSink) -> int:
        """Start to read for ``sink``; return the maximum number of records that may wait for one handler."""

    def group_view(self) -> GroupView:
        """Return the interface to the consumer's membership and positions; the source must be started."""


class TransactionCommitter(Protocol):
    """Producer of one group's transactions; see ``app.transactions.renewing_producer.RenewingProducer``."""

    async def start(self) -> None:
        """Initialize the producer id (KIP-98)."""

    async def close(self, timeout_s: float | None = None) -> None:
        """Abort an open transaction and close the producer; see ``TransactionalProducer.close``."""

    async def begin(self) -> None:
        """Begin a transaction unless one is open."""

    @property
    def is_open(self) -> bool:
        """True if records may be sent."""

    async def check(self, topic: str, partition: int | None) -> None:
        """Check that a topic and, unless it is None, the partition exist."""

    async def send(  # noqa: PLR0913 - fields of a record
        self,
        topic: str,
        value: bytes | None,
        *,
        key: bytes | None,
        headers: Sequence[tuple[str, bytes | None]],
        partition: int | None,
        timestamp_ms: int | None,
    ) -> None:
        """Add a record to the transaction."""

    async def commit(
        self,
        offsets: Mapping[TopicPartition, OffsetAndMetadata],
        identity: Identity,
        topic_ids: Mapping[TopicPartition, UUID],
        current_identity: Callable[[], Identity | None],
    ) -> None:
        """Commit the transaction with the offsets; see ``TransactionalProducer.commit``."""

    async def abort(self, cause: TailraceError, *, is_timed_out: bool) -> None:
        """Abort the transaction because of ``cause``; ``is_timed_out`` is True if the broker may have aborted it."""
