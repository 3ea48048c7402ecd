"""What an open transaction has of each partition, as the consumer is told of it.

To the consumer, what a transaction has is in flight until it is committed, finished or not (``Progress.hold``). So a
partition that has to be given back waits for the commit, and one that goes sooner takes the transaction's end with it.
A transaction that is cut commits what is finished: the lowest offset that is not, and beside it the offset map. What
has not started is part of the next transaction.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from uuid import UUID

from tailrace.app.sources import HandlerGroup
from tailrace.app.transactions.interfaces import GroupView
from tailrace.core.delivery.positions import Position
from tailrace.core.delivery.progress import Lease, Progress
from tailrace.core.offset_map import encode_metadata
from tailrace.errors import PublishError
from tailrace.records import OffsetAndMetadata, Record, TopicPartition

__all__ = ["TransactionPartition", "TransactionPartitions", "UndeliveredRecords"]

_FULL = 0.75
"""Of the commit metadata: of a partition whose offset map takes more no further records are handed out."""


@dataclass(slots=True, eq=False)
class TransactionPartition:
    """What it has of one partition."""

    position: Position
    progress: Progress
    following: int
    """The offset behind all that it has."""
    leader_epoch: int
    topic_id: UUID | None
    """Id of the topic its records were read from; None if no id is known."""
    metadata: str | None = None
    """Text of the last commit, by which it had not finished all; None before that."""
    map_fill: float = 0.0
    """How much of the room for it the last offset map took; above 1 it did not fit."""

    @property
    def is_current(self) -> bool:
        """Whether the partition is still read from where it was."""
        return not self.progress.is_over

    @property
    def has_records(self) -> bool:
        """Whether something was handed out of it that is not committed."""
        return self.progress.held_from is not None and self.following > self.progress.held_from


@dataclass(slots=True, eq=False)
class UndeliveredRecords:
    """Records that came with others and may not be handed out yet."""

    position: Position
    lease: Lease

    @property
    def first(self) -> Record:
        """The first of them."""
        return self.lease.rest[0]

    @property
    def may_go(self) -> bool:
        """Whether the partition is still read from where it was, and now, and the group knows of that place."""
        at = self.position
        return self.lease.is_current and not (at.is_halted or at.is_paused or at.is_anew)


class TransactionPartitions:
    """The sink of a consumer whose records are handled in transactions.

    Args:
        handler_group: who handles the records.
        on_halt: told of a partition that has to be given back, of which something is not committed.
        on_loss: told of a partition that went, or is read from elsewhere, before it was.
        metadata_bytes: most bytes of an offset map.

    Attributes:
        rests: what came too early, by partition.
    """

    def __init__(
        self,
        handler_group: HandlerGroup,
        *,
        on_halt: Callable[[], None],
        on_loss: Callable[[TopicPartition, bool], None],
        metadata_bytes: int,
    ) -> None:
        self._handler_group, self._on_halt, self._on_loss = handler_group, on_halt, on_loss
        self._metadata_bytes = metadata_bytes
        self._partitions: dict[TopicPartition, TransactionPartition] = {}
        self._passed: list[TransactionPartition] = []
        self._is_reading_again = False
        self.rests: dict[TopicPartition, UndeliveredRecords] = {}

    def __iter__(self) -> Iterator[TransactionPartition]:
        return iter(list(self._partitions.values()))

    def __len__(self) -> int:
        return len(self._partitions)

    # ---- as a consumer wants it --------------------------------------------------------------------------------

    def halt(self, partition: TopicPartition) -> None:
        """A partition has to be given back; what runs of it is finished first, as all of the transaction."""
        if (rest := self.rests.pop(partition, None)) is not None:
            rest.lease.abandon_left()
        if partition in self._partitions:
            self._handler_group.halt(partition)
            self._on_halt()

    def drop(self, partition: TopicPartition) -> None:
        """A partition is not ours any more, or is read from elsewhere."""
        self.rests.pop(partition, None)
        self._handler_group.drop(partition)
        if not self._is_reading_again:
            self._on_loss(partition, self._partitions.pop(partition, None) is not None)

    # ---- as transactions want it -------------------------------------------------------------------------------

    def begin(self, positions: Iterable[Position]) -> None:
        """It is about where these have begun, of which nothing is handed out."""
        for at in positions:
            assert at.progress is not None
            at.progress.hold()
            self._partitions[at.partition] = _partition_of(at, at.progress, at.progress.finished)

    def passed(self, positions: Iterable[Position]) -> None:
        """It is also about how far these have come past what is no record: of such, nothing is ever taken back."""
        self._passed.clear()
        for at in positions:
            if at.partition in self.rests or at.progress is None:
                continue
            share = self._partitions.get(at.partition)
            if share is None:
                self._passed.append(_partition_of(at, at.progress, at.progress.delivered))
            elif share.is_current:
                share.following, share.leader_epoch = at.progress.delivered, at.delivered_epoch

    def took(self, position: Position, lease: Lease) -> None:
        """Records are handed out."""
        share = self._partitions.get(position.partition)
        if share is not None and share.is_current:
            share.following, share.leader_epoch = lease.end, position.delivered_epoch
            share.topic_id = position.topic_id
            return
        lease.progress.hold()
        self._partitions[position.partition] = _partition_of(position, lease.progress, lease.end)

    def next_rest(self, take: Callable[[Sequence[Record]], int]) -> tuple[Position, Lease] | None:
        """As many as ``take`` says of what came too early of one partition; None when nothing may go."""
        for partition, rest in self.rests.items():
            if not rest.may_go or not (count := take(rest.lease.rest)):
                continue
            taken = rest.lease.split(count)
            if not rest.lease.count:
                del self.rests[partition]
            return rest.position, taken
        return None

    @property
    def are_done(self) -> bool:
        """Whether all that was handed out is finished."""
        return all(not share.is_current or share.progress.lowest >= share.following for share in self)

    @property
    def run(self) -> bool:
        """Whether something that was handed out runs."""
        return self._handler_group.runs_ours

    @property
    def are_held_back(self) -> bool:
        """Whether the rest of it waits for somebody who may be away for long."""
        return self._handler_group.is_held_back

    @property
    def are_gathering(self) -> bool:
        """Whether some of it waits for others, to be handled with them."""
        return self._handler_group.gathers

    def hurry(self) -> None:
        """There will be no others."""
        self._handler_group.hurry()

    def offsets(self) -> dict[TopicPartition, OffsetAndMetadata]:
        """What to commit, when nothing runs.

        Raises:
            PublishError: it cannot be said of a partition what is finished.
        """
        offsets = {share.position.partition: self._offset(share) for share in (*self, *self._passed)}
        if (full := next((share for share in self if share.map_fill > 1), None)) is not None:
            raise PublishError(
                f"{full.position.partition}: the offset map does not fit into"
                f" offset_metadata_max_bytes={self._metadata_bytes}"
            )
        return offsets

    def topic_ids(self) -> dict[TopicPartition, UUID]:
        """Return the ids of the topics that ``offsets`` belong to, where they are known."""
        shares = (*self, *self._passed)
        return {one.position.partition: one.topic_id for one in shares if one.topic_id is not None}

    def have_changed(self, offsets: Mapping[TopicPartition, OffsetAndMetadata]) -> bool:
        """Whether something of this is not committed."""
        return bool(self._passed) or any(
            share.position.is_anew
            or share.position.committed != offsets[share.position.partition].offset
            or (share.metadata or "") != offsets[share.position.partition].metadata
            for share in self
        )

    def committed(self, offsets: Mapping[TopicPartition, OffsetAndMetadata]) -> None:
        """It is; what has not started stays for the next transaction."""
        shares, self._partitions = (*self, *self._passed), {}
        for share in shares:
            if not share.is_current:
                continue
            at = offsets[share.position.partition]
            share.position.note_committed(at.offset)
            share.progress.release()
            if at.offset < share.following and not share.position.is_halted:
                share.progress.hold(at.offset)
                share.metadata = at.metadata
                self._partitions[share.position.partition] = share

    def is_full(self, partition: TopicPartition) -> bool:
        """Whether records of a partition may not be handed out before more of those that were are finished."""
        share = self._partitions.get(partition)
        return share is not None and share.map_fill > _FULL

    def leave(self) -> None:
        """What has not started is read again by whoever has the partitions next."""
        for share in self:
            self._handler_group.halt(share.position.partition)
            share.progress.release()
        self._partitions.clear()

    def read_again(self, group_view: GroupView, committed: Mapping[TopicPartition, OffsetAndMetadata]) -> None:
        """Go back to what is committed, of all of them."""
        self._is_reading_again = True
        try:
            for share in self:
                # Where nothing was handed out, it stands where it is to begin.
                if group_view.is_ours(share.position) and share.is_current and share.has_records:
                    at = committed.get(share.position.partition) or OffsetAndMetadata(share.progress.finished)
                    group_view.read_again(share.position, at)
        finally:
            self._is_reading_again = False
            self._partitions.clear()

    def partitions(self) -> list[TopicPartition]:
        """Which there are."""
        return list(self._partitions)

    def _offset(self, share: TransactionPartition) -> OffsetAndMetadata:
        """The lowest offset that is not finished, with what is finished behind it, here or by an owner before us."""
        offset, metadata = share.following, ""
        if share.is_current:
            offset, offset_map = share.progress.lowest, share.progress.offset_map()
            if offset_map is not None:
                offset_map = offset_map.of_log(share.position.topic_id, share.position.delivered_epoch)
            encoded = encode_metadata(offset_map, "", self._metadata_bytes)
            metadata, share.map_fill = encoded.text, encoded.fill
        return OffsetAndMetadata(offset, metadata, None if share.leader_epoch < 0 else share.leader_epoch)


def _partition_of(position: Position, progress: Progress, following: int) -> TransactionPartition:
    return TransactionPartition(position, progress, following, position.delivered_epoch, position.topic_id)
