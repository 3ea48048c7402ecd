"""What a transactional source stands on, so that a test can put other things there: records, and who commits.

Rule of this file: promises alone.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Protocol
from uuid import UUID

from tailrace.app.sources import Source
from tailrace.consumer.delivery.progress import RecordSink
from tailrace.core.delivery.positions import Position
from tailrace.core.group.events import Identity
from tailrace.errors import TailraceError
from tailrace.records import OffsetAndMetadata, TopicPartition

__all__ = ["GroupSource", "GroupView", "TransactionCommitter"]


class GroupView(Protocol):
    """Where a member of a group stands: as ``consumer.member_view`` has it."""

    group_id: str

    @property
    def identity(self) -> Identity | None:
        """As whom to commit; None while the group counts us in no generation."""

    def delivered(self) -> Mapping[TopicPartition, int | None]:
        """The next offset to be handed out of each partition that is assigned."""

    def begun(self) -> Sequence[Position]:
        """Those that are good, and of which the group does not know yet where they have begun."""

    def passed(self) -> Sequence[Position]:
        """Those that stand further than the group knows; where nothing was handed out, markers were passed over."""

    def watch(self, told: Callable[[], None]) -> None:
        """Have ``told`` called when a partition may stand elsewhere."""

    def is_ours(self, position: Position) -> bool:
        """Whether a position is still that of its partition, and not of an assignment that is over."""

    async def committed(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, OffsetAndMetadata]:
        """What the group has committed, when no open transaction may change it any more."""

    def read_again(self, position: Position, at: OffsetAndMetadata) -> None:
        """Read from a committed offset on; a recreated topic as the reset policy has it."""


class GroupSource(Source, Protocol):
    """Records of a group of which it commits nothing by itself."""

    async def start(self, sink: RecordSink) -> int:
        """Begin; gives how many records may wait on the way."""

    def group_view(self) -> GroupView:
        """Where it stands; once it is started."""


class TransactionCommitter(Protocol):
    """Begins, fills and ends the transactions of one group: as ``app.transactions.renewing_producer`` has it."""

    async def start(self) -> None:
        """Be ready to begin."""

    async def close(self, timeout_s: float | None = None) -> None:
        """Abort what is open."""

    async def begin(self) -> None:
        """Begin a transaction, unless one is begun."""

    @property
    def is_open(self) -> bool:
        """Whether records may be sent."""

    async def check(self, topic: str, partition: int | None) -> None:
        """See that a record would have a place."""

    async def send(  # noqa: PLR0913 - what a record has
        self,
        topic: str,
        value: bytes | None,
        *,
        key: bytes | None,
        headers: Sequence[tuple[str, bytes | None]],
        partition: int | None,
        timestamp_ms: int | None,
    ) -> None:
        """Put a record into the transaction."""

    async def commit(
        self,
        offsets: Mapping[TopicPartition, OffsetAndMetadata],
        identity: Identity,
        topic_ids: Mapping[TopicPartition, UUID],
        current_identity: Callable[[], Identity | None],
    ) -> None:
        """Commit it."""

    async def abort(self, cause: TailraceError, *, is_timed_out: bool) -> None:
        """Take it back."""
