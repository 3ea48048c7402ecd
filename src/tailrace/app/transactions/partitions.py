"""Partitions and offsets of the open transaction.

To the consumer, all records of a transaction are in flight until the commit, even finished ones (``Progress.hold``).
Revoking a partition therefore waits for the commit, and losing one aborts the transaction. A transaction that is cut
commits the lowest unfinished offset with the offset map; records that have not started move to the next transaction.
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
"""Fill ratio of the commit metadata above which no more records of the partition are delivered."""


@dataclass(slots=True, eq=False)
class TransactionPartition:
    """Records of one partition in the transaction."""

    position: Position
    progress: Progress
    following: int
    """End offset of the records in the transaction, exclusive."""
    leader_epoch: int
    topic_id: UUID | None
    """Id of the topic that the records were read from; None if unknown."""
    metadata: str | None = None
    """Metadata of the last commit that left records unfinished; None if there was none."""
    map_fill: float = 0.0
    """Fill ratio of the commit metadata with the last offset map; above 1, the map did not fit."""

    @property
    def is_current(self) -> bool:
        """True if the partition was not reassigned, sought or reset since its records were delivered."""
        return not self.progress.is_over

    @property
    def has_records(self) -> bool:
        """True if delivered records are not committed yet."""
        return self.progress.held_from is not None and self.following > self.progress.held_from


@dataclass(slots=True, eq=False)
class UndeliveredRecords:
    """Fetched records of a partition that must not be delivered yet."""

    position: Position
    lease: Lease

    @property
    def first(self) -> Record:
        """First undelivered record."""
        record = self.lease.next_record
        assert record is not None
        return record

    @property
    def may_be_delivered(self) -> bool:
        """True if the partition is not halted, paused or dropped, and its start offset is committed."""
        at = self.position
        return self.lease.is_current and not (at.is_halted or at.is_paused or at.has_stale_commit)


class TransactionPartitions:
    """Sink of a consumer whose records are handled in transactions.

    Args:
        handler_group: handlers of the records.
        on_halt: called when a partition with uncommitted records is being revoked.
        on_loss: called when a partition was lost, sought or reset, with True if it was part of the transaction.
        metadata_bytes: largest size of an offset map.

    Attributes:
        undelivered: fetched records that must not be delivered yet, by partition.
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
        self.undelivered: dict[TopicPartition, UndeliveredRecords] = {}

    def __iter__(self) -> Iterator[TransactionPartition]:
        return iter(list(self._partitions.values()))

    def __len__(self) -> int:
        return len(self._partitions)

    # ---- for the consumer --------------------------------------------------------------------------------------

    def halt(self, partition: TopicPartition) -> None:
        """Start no more records of a partition about to be revoked; commit when the running handlers have finished."""
        if (waiting := self.undelivered.pop(partition, None)) is not None:
            waiting.lease.abandon_left()
        if partition in self._partitions:
            self._handler_group.halt(partition)
            self._on_halt()

    def drop(self, partition: TopicPartition) -> None:
        """Forget a partition that was revoked, lost, sought or reset."""
        self.undelivered.pop(partition, None)
        self._handler_group.drop(partition)
        if not self._is_reading_again:
            self._on_loss(partition, self._partitions.pop(partition, None) is not None)

    # ---- for transactions --------------------------------------------------------------------------------------

    def begin(self, positions: Iterable[Position]) -> None:
        """Add start offsets to commit before any record of their partitions is delivered."""
        for at in positions:
            assert at.progress is not None
            at.progress.hold()
            self._partitions[at.partition] = _partition_of(at, at.progress, at.progress.finished)

    def passed(self, positions: Iterable[Position]) -> None:
        """Add positions that moved past control records and gaps since the last commit."""
        self._passed.clear()
        for at in positions:
            if at.partition in self.undelivered or at.progress is None:
                continue
            entry = self._partitions.get(at.partition)
            if entry is None:
                self._passed.append(_partition_of(at, at.progress, at.progress.delivered))
            elif entry.is_current:
                entry.following, entry.leader_epoch = at.progress.delivered, at.delivered_epoch

    def took(self, position: Position, lease: Lease) -> None:
        """Add delivered records."""
        entry = self._partitions.get(position.partition)
        if entry is not None and entry.is_current:
            entry.following, entry.leader_epoch = lease.end, position.delivered_epoch
            entry.topic_id = position.topic_id
            return
        lease.progress.hold()
        self._partitions[position.partition] = _partition_of(position, lease.progress, lease.end)

    def next_undelivered(self, take: Callable[[Sequence[Record]], int]) -> tuple[Position, Lease] | None:
        """Return a lease of waiting records that may be delivered now; None if there are none.

        Args:
            take: returns how many of a partition's waiting records may be delivered now.
        """
        for partition, waiting in self.undelivered.items():
            if not waiting.may_be_delivered or not (count := take(waiting.lease.rest)):
                continue
            taken = waiting.lease.split(count)
            if not waiting.lease.count:
                del self.undelivered[partition]
            return waiting.position, taken
        return None

    def are_owned(self, group_view: GroupView) -> bool:
        """Return True if this member still owns all partitions of ``offsets``, by the same assignment."""
        entries = (*self, *self._passed)
        return all(entry.is_current and group_view.is_ours(entry.position) for entry in entries)

    @property
    def are_done(self) -> bool:
        """True if all delivered records are finished."""
        return all(not entry.is_current or entry.progress.lowest >= entry.following for entry in self)

    @property
    def are_running(self) -> bool:
        """True if a record runs or waits for its next attempt; records of partitions dropped since do not count."""
        return self._handler_group.runs_current_records

    @property
    def are_held_back(self) -> bool:
        """True if records wait for a paused handler."""
        return self._handler_group.waits_for_paused_handler

    @property
    def are_gathering(self) -> bool:
        """True if records wait for others of their batch."""
        return self._handler_group.is_gathering

    def hurry(self) -> None:
        """Start batches that wait for more records, as they are."""
        self._handler_group.hurry()

    def offsets(self) -> dict[TopicPartition, OffsetAndMetadata]:
        """Return the offsets to commit, while no handler runs.

        Raises:
            PublishError: an offset map is larger than ``offset_metadata_max_bytes``.
        """
        offsets = {entry.position.partition: self._offset(entry) for entry in (*self, *self._passed)}
        if (full := next((entry for entry in self if entry.map_fill > 1), None)) is not None:
            raise PublishError(
                f"{full.position.partition}: the offset map does not fit into"
                f" offset_metadata_max_bytes={self._metadata_bytes}"
            )
        return offsets

    def topic_ids(self) -> dict[TopicPartition, UUID]:
        """Return the known topic ids of the partitions in ``offsets``."""
        entries = (*self, *self._passed)
        return {one.position.partition: one.topic_id for one in entries if one.topic_id is not None}

    def have_changed(self, offsets: Mapping[TopicPartition, OffsetAndMetadata]) -> bool:
        """Return True if a commit of ``offsets`` would change the committed offsets or metadata."""
        return bool(self._passed) or any(
            entry.position.has_stale_commit
            or entry.position.committed != offsets[entry.position.partition].offset
            or (entry.metadata or "") != offsets[entry.position.partition].metadata
            for entry in self
        )

    def committed(self, offsets: Mapping[TopicPartition, OffsetAndMetadata]) -> None:
        """Record that ``offsets`` were committed; records that have not started remain, for the next transaction."""
        entries, self._partitions = (*self, *self._passed), {}
        for entry in entries:
            if not entry.is_current:
                continue
            at = offsets[entry.position.partition]
            entry.position.note_committed(at.offset)
            entry.progress.release()
            if at.offset < entry.following and not entry.position.is_halted:
                entry.progress.hold(at.offset)
                entry.metadata = at.metadata
                self._partitions[entry.position.partition] = entry

    def is_full(self, partition: TopicPartition) -> bool:
        """Return True if the offset map of a partition is nearly full, which stops its delivery."""
        entry = self._partitions.get(partition)
        return entry is not None and entry.map_fill > _FULL

    def leave(self) -> None:
        """Leave records that have not started to the next owners of the partitions."""
        for entry in self:
            self._handler_group.halt(entry.position.partition)
            entry.progress.release()
        self._partitions.clear()

    def read_again(self, group_view: GroupView, committed: Mapping[TopicPartition, OffsetAndMetadata]) -> None:
        """Read all partitions of the transaction again, from their committed offsets."""
        self._is_reading_again = True
        try:
            for entry in self:
                # A partition without delivered records is at its start offset already.
                if group_view.is_ours(entry.position) and entry.is_current and entry.has_records:
                    at = committed.get(entry.position.partition) or OffsetAndMetadata(entry.progress.finished)
                    group_view.read_again(entry.position, at)
        finally:
            self._is_reading_again = False
            self._partitions.clear()

    def partitions(self) -> list[TopicPartition]:
        """Return the partitions of the transaction."""
        return list(self._partitions)

    def _offset(self, entry: TransactionPartition) -> OffsetAndMetadata:
        """Return the offset to commit, with the offset map as its metadata."""
        offset, metadata = entry.following, ""
        if entry.is_current:
            offset, offset_map = entry.progress.lowest, entry.progress.offset_map()
            if offset_map is not None:
                offset_map = offset_map.bind_to_log(entry.position.topic_id, entry.position.delivered_epoch)
            encoded = encode_metadata(offset_map, "", self._metadata_bytes)
            metadata, entry.map_fill = encoded.text, encoded.fill
        return OffsetAndMetadata(offset, metadata, None if entry.leader_epoch < 0 else entry.leader_epoch)


def _partition_of(position: Position, progress: Progress, following: int) -> TransactionPartition:
    return TransactionPartition(position, progress, following, position.delivered_epoch, position.topic_id)
