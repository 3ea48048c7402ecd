"""Partitions and offsets of the open transaction.

For the consumer, all records of a transaction, even finished ones, are in flight until the commit (``Progress.hold``).
Therefore the revocation of a partition waits for the commit, and the loss of a partition aborts the transaction. If a
transaction is committed before all its records have started, it commits the lowest unfinished offset of each partition
with an offset map, and the records that have not started move to the next transaction.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol
from uuid import UUID

from tailrace.app.sources import HandlerGroup, Source
from tailrace.app.topics.routes import Routes
from tailrace.consumer.delivery.completion import RecordSink
from tailrace.consumer.partition import Partition
from tailrace.core.group_requests import Identity
from tailrace.core.offset_map import encode_metadata
from tailrace.core.progress import Lease, Progress
from tailrace.errors import PublishError, TailraceError
from tailrace.producer.publisher import OutgoingRecord
from tailrace.records import OffsetAndMetadata, Record, TopicPartition

__all__ = [
    "GroupSource",
    "GroupView",
    "TransactionCommitter",
    "TransactionPartition",
    "TransactionPartitions",
    "UndeliveredRecords",
]

# ---- interfaces through which a transactional source uses a consumer and a producer ----------------------------------


class GroupView(Protocol):
    """Membership, positions and committed offsets of a consumer; see ``consumer.sink_consumer.MemberView``."""

    group_id: str

    @property
    def identity(self) -> Identity | None:
        """Identity to commit with; None while the member is in no generation of the group."""

    def delivered_offsets(self) -> Mapping[TopicPartition, int | None]:
        """Return the next offset to deliver of each assigned partition; None while the partition's start is unknown."""

    def uncommitted_starts(self) -> Sequence[Partition]:
        """Return the partitions whose start offset is not committed yet."""

    def advanced_partitions(self) -> Sequence[Partition]:
        """Return the partitions whose position is above their committed offset, even if only gaps lie between."""

    def watch(self, on_change: Callable[[], None]) -> None:
        """Call ``on_change`` when a position may have changed."""

    def is_ours(self, partition: Partition) -> bool:
        """Return True if ``partition`` belongs to the current assignment."""

    async def committed_offsets(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, OffsetAndMetadata]:
        """Return the committed offsets, after pending transactions that may change them have ended."""

    def read_again(self, partition: Partition, at: OffsetAndMetadata) -> None:
        """Continue to read at a committed offset; if the topic was recreated, at ``auto_offset_reset``."""


class GroupSource(Source, Protocol):
    """Source of a group's records that commits no offsets."""

    routes: Routes
    """Topics of the group."""

    async def start(self, sink: RecordSink) -> int:
        """Start to read for ``sink``; return the maximum number of records that may wait for one handler."""

    def group_view(self) -> GroupView:
        """Return the interface to the consumer's membership and positions; the source must be started."""


class TransactionCommitter(Protocol):
    """Producer of one group's transactions; see ``app.transactions.renewing_producer.RenewingProducer``."""

    max_metadata_bytes: int
    """Maximum size of commit metadata, which contains the offset map."""

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

    async def send(self, record: OutgoingRecord) -> None:
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


# ---- partitions and offsets of the open transaction ------------------------------------------------------------------

_MAX_MAP_FILL = 0.75
"""Share of ``metadata_bytes`` above which the offset map stops the delivery of its partition."""


@dataclass(slots=True, eq=False)
class TransactionPartition:
    """Records of one partition in the transaction."""

    partition: Partition
    progress: Progress
    end_offset: int
    """Offset after the last record in the transaction."""
    leader_epoch: int
    topic_id: UUID | None
    """Id of the topic that the records were read from; None if unknown."""
    metadata: str | None = None
    """Metadata of the last commit, if that commit left records unfinished; otherwise None."""
    map_fill: float = 0.0
    """Size of the last offset map as a share of ``metadata_bytes``; above 1, the map did not fit."""

    @property
    def is_current(self) -> bool:
        """True if the partition was not reassigned, sought or reset since its records were delivered."""
        return not self.progress.is_over

    @property
    def has_records(self) -> bool:
        """True if the transaction contains records of the partition, not only a start offset."""
        return self.progress.held_from is not None and self.end_offset > self.progress.held_from


@dataclass(slots=True, eq=False)
class UndeliveredRecords:
    """Records of one partition that the consumer has returned and that are not delivered to the handlers yet."""

    partition: Partition
    lease: Lease

    @property
    def first(self) -> Record:
        """First undelivered record."""
        return self.lease.records[-self.lease.count]

    @property
    def may_be_delivered(self) -> bool:
        """True unless the partition is halted, paused or dropped, or its start offset is not committed yet."""
        partition = self.partition
        is_held = partition.is_halted or partition.is_paused or partition.has_stale_commit
        return not (self.lease.progress.is_over or is_held)


class TransactionPartitions:
    """Partitions of the open transaction.

    The consumer calls ``halt`` before it revokes a partition, and ``drop`` when the partition was revoked, lost, sought
    or reset.

    Args:
        handler_group: handlers of the records.
        metadata_bytes: maximum size of commit metadata, which contains the offset map.

    Attributes:
        handler_group: handlers of the records.
        on_halt: called by ``halt`` for a partition of the transaction.
        on_drop: called by ``drop``, except during ``read_again``, with the partition and True if it was part of the
            transaction. While the consumer starts, there is no transaction, so nothing is called.
        undelivered: records that the consumer has returned and that are not delivered yet, by partition.
    """

    def __init__(self, handler_group: HandlerGroup, metadata_bytes: int) -> None:
        self.handler_group, self._metadata_bytes = handler_group, metadata_bytes
        self.on_halt: Callable[[], None] = lambda: None
        self.on_drop: Callable[[TopicPartition, bool], None] = lambda _partition, _was_in_transaction: None
        self._partitions: dict[TopicPartition, TransactionPartition] = {}
        self._advanced: list[TransactionPartition] = []
        self._is_reading_again = False
        self.undelivered: dict[TopicPartition, UndeliveredRecords] = {}

    def __iter__(self) -> Iterator[TransactionPartition]:
        return iter(list(self._partitions.values()))

    def __len__(self) -> int:
        return len(self._partitions)

    # ---- called by the consumer --------------------------------------------------------------------------------

    def halt(self, topic_partition: TopicPartition) -> None:
        """Start no more records of a partition; leave its unstarted records to the partition's next owner."""
        if (waiting := self.undelivered.pop(topic_partition, None)) is not None:
            waiting.lease.abandon()
        if topic_partition in self._partitions:
            self.handler_group.halt(topic_partition)
            self.on_halt()

    def drop(self, topic_partition: TopicPartition) -> None:
        """Forget a partition that was revoked, lost, sought or reset."""
        self.undelivered.pop(topic_partition, None)
        self.handler_group.drop(topic_partition)
        if not self._is_reading_again:
            self.on_drop(topic_partition, self._partitions.pop(topic_partition, None) is not None)

    # ---- for the transaction -----------------------------------------------------------------------------------

    def add_start_offsets(self, partitions: Iterable[Partition]) -> None:
        """Add partitions whose start offset must be committed before their first record is delivered."""
        for partition in partitions:
            assert partition.progress is not None
            partition.progress.hold()
            self._partitions[partition.topic_partition] = _new_partition(
                partition, partition.progress, partition.progress.finished
            )

    def add_advanced(self, partitions: Iterable[Partition]) -> None:
        """Note how far partitions have advanced past control records and gaps; replaces the previous call's notes."""
        self._advanced.clear()
        for partition in partitions:
            progress = partition.progress
            if partition.topic_partition in self.undelivered or progress is None:
                continue
            entry = self._partitions.get(partition.topic_partition)
            if entry is None:
                self._advanced.append(_new_partition(partition, progress, progress.delivered))
            elif entry.is_current:
                entry.end_offset, entry.leader_epoch = progress.delivered, partition.delivered_epoch

    def add_delivered(self, partition: Partition, lease: Lease) -> None:
        """Add records that were delivered to the handlers."""
        entry = self._partitions.get(partition.topic_partition)
        if entry is not None and entry.is_current:
            entry.end_offset, entry.leader_epoch = lease.end, partition.delivered_epoch
            entry.topic_id = partition.topic_id
            return
        lease.progress.hold()
        self._partitions[partition.topic_partition] = _new_partition(partition, lease.progress, lease.end)

    def take_undelivered(self, count_of: Callable[[Sequence[Record]], int]) -> tuple[Partition, Lease] | None:
        """Remove the first undelivered records that may be delivered now, and return them; None if there are none.

        Args:
            count_of: returns how many of one partition's undelivered records may be delivered now.
        """
        for topic_partition, waiting in self.undelivered.items():
            rest = waiting.lease.rest
            if not waiting.may_be_delivered or not (count := count_of(rest)):
                continue
            (taken,) = waiting.lease.split([rest[:count]], rest[count:])
            if not waiting.lease.count:
                del self.undelivered[topic_partition]
            return waiting.partition, taken
        return None

    def are_owned(self, group_view: GroupView) -> bool:
        """Return True if no partition of ``offsets`` was reassigned, sought or reset since it was added."""
        entries = (*self, *self._advanced)
        return all(entry.is_current and group_view.is_ours(entry.partition) for entry in entries)

    @property
    def are_finished(self) -> bool:
        """True if all records of the transaction are finished, except in reassigned, sought or reset partitions."""
        return all(not entry.is_current or entry.progress.lowest >= entry.end_offset for entry in self)

    @property
    def are_running(self) -> bool:
        """True if a record that has started is unfinished, unless its partition was dropped meanwhile."""
        return self.handler_group.runs_current_records

    @property
    def waits_for_paused_handler(self) -> bool:
        """True if no record runs and records wait for a paused handler."""
        return self.handler_group.waits_for_paused_handler

    @property
    def are_gathering(self) -> bool:
        """True while an incomplete batch waits for more records."""
        return self.handler_group.is_gathering

    def hurry(self) -> None:
        """Start incomplete batches."""
        self.handler_group.hurry()

    def offsets(self) -> dict[TopicPartition, OffsetAndMetadata]:
        """Return the offsets to commit, and update each ``map_fill``; must not be called while a handler runs.

        Raises:
            PublishError: an offset map does not fit into ``offset_metadata_max_bytes``.
        """
        offsets = {entry.partition.topic_partition: self._offset(entry) for entry in (*self, *self._advanced)}
        if (full := next((entry for entry in self if entry.map_fill > 1), None)) is not None:
            raise PublishError(
                f"{full.partition.topic_partition}: the offset map does not fit into"
                f" offset_metadata_max_bytes={self._metadata_bytes} - raise it, up to the broker's"
                " offset.metadata.max.bytes"
            )
        return offsets

    def topic_ids(self) -> dict[TopicPartition, UUID]:
        """Return the known topic ids of the partitions in ``offsets``."""
        entries = (*self, *self._advanced)
        return {entry.partition.topic_partition: entry.topic_id for entry in entries if entry.topic_id is not None}

    def have_changed(self, offsets: Mapping[TopicPartition, OffsetAndMetadata]) -> bool:
        """Return True if a commit of ``offsets`` would change the committed offsets or metadata."""
        return bool(self._advanced) or any(
            entry.partition.has_stale_commit
            or entry.partition.committed != offsets[entry.partition.topic_partition].offset
            or (entry.metadata or "") != offsets[entry.partition.topic_partition].metadata
            for entry in self
        )

    def note_committed(self, offsets: Mapping[TopicPartition, OffsetAndMetadata]) -> None:
        """Note that ``offsets`` were committed; unfinished records become part of the next transaction."""
        entries, self._partitions = (*self, *self._advanced), {}
        for entry in entries:
            if not entry.is_current:
                continue
            committed = offsets[entry.partition.topic_partition]
            entry.partition.note_committed(committed.offset)
            entry.progress.release()
            if committed.offset < entry.end_offset and not entry.partition.is_halted:
                entry.progress.hold(committed.offset)
                entry.metadata = committed.metadata
                self._partitions[entry.partition.topic_partition] = entry

    def is_full(self, topic_partition: TopicPartition) -> bool:
        """Return True if no more records of a partition may be delivered, because its offset map is nearly full."""
        entry = self._partitions.get(topic_partition)
        return entry is not None and entry.map_fill > _MAX_MAP_FILL

    def leave_unstarted(self) -> None:
        """Leave the unstarted records to the next owners of their partitions, and forget all partitions."""
        for entry in self:
            self.handler_group.halt(entry.partition.topic_partition)
            entry.progress.release()
        self._partitions.clear()

    def read_again(self, group_view: GroupView, committed: Mapping[TopicPartition, OffsetAndMetadata]) -> None:
        """Have the records of the transaction read again, and forget all partitions.

        Each partition continues at its offset in ``committed``, or at its first record in the transaction.
        """
        self._is_reading_again = True
        try:
            for entry in self:
                # A partition without records in the transaction is at its start offset already.
                if group_view.is_ours(entry.partition) and entry.is_current and entry.has_records:
                    target = committed.get(entry.partition.topic_partition) or OffsetAndMetadata(
                        entry.progress.finished
                    )
                    group_view.read_again(entry.partition, target)
        finally:
            self._is_reading_again = False
            self._partitions.clear()

    def partitions(self) -> list[TopicPartition]:
        """Return the partitions of the transaction."""
        return list(self._partitions)

    def _offset(self, entry: TransactionPartition) -> OffsetAndMetadata:
        """Return the offset to commit with the offset map as its metadata, and update ``map_fill``."""
        offset, metadata = entry.end_offset, ""
        if entry.is_current:
            offset, offset_map = entry.partition.to_commit()
            encoded = encode_metadata(offset_map, "", self._metadata_bytes)
            metadata, entry.map_fill = encoded.text, encoded.fill
        return OffsetAndMetadata(offset, metadata, None if entry.leader_epoch < 0 else entry.leader_epoch)


def _new_partition(partition: Partition, progress: Progress, end_offset: int) -> TransactionPartition:
    return TransactionPartition(partition, progress, end_offset, partition.delivered_epoch, partition.topic_id)
