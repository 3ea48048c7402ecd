"""Topics in memory in place of a broker, and the source and transactions of an app that reads them.

The code that decides when to open, commit and abort transactions is that of production.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Self
from uuid import UUID

from tailrace.app.topics.routes import Routes
from tailrace.app.transactions.exactly_once import TransactionalSource
from tailrace.app.transactions.kafka_access import TransactionOptions
from tailrace.app.transactions.partitions import GroupView
from tailrace.consumer.delivery.completion import RecordSink
from tailrace.consumer.partition import AssignedPartitions, Partition
from tailrace.core.group_requests import Identity
from tailrace.core.offset_map import decode_metadata
from tailrace.core.progress import Lease
from tailrace.errors import PublishError, TailraceError
from tailrace.observe.events import PartitionsAssigned
from tailrace.observe.hooks import Observer
from tailrace.producer.partitioner import partition_of
from tailrace.producer.publisher import OutgoingRecord, Published
from tailrace.records import OffsetAndMetadata, Record, TopicPartition

__all__ = ["LogSource", "TopicLog", "transactional_source"]


class TopicLog:
    """Records of all topics and partitions, without gaps in the offsets.

    Args:
        partitions: number of partitions by topic; other topics have one partition.
        wall_clock: function that returns the time in seconds since the epoch.
    """

    def __init__(self, partitions: Mapping[str, int], wall_clock: Callable[[], float]) -> None:
        self._counts, self.wall_clock = partitions, wall_clock
        self._records: defaultdict[TopicPartition, list[Record]] = defaultdict(list)
        self._watchers: list[Callable[[], None]] = []

    def watch(self, watcher: Callable[[], None]) -> None:
        """Call ``watcher`` after a record is added."""
        self._watchers.append(watcher)

    def partitions(self, topic: str) -> list[TopicPartition]:
        """Return the partitions of a topic; a topic of any name exists."""
        return [TopicPartition(topic, number) for number in range(self._counts.get(topic, 1))]

    @property
    def topics(self) -> list[str]:
        """Topics with records."""
        return sorted({one.topic for one in self._records})

    def records(self, topic_partition: TopicPartition) -> Sequence[Record]:
        """Return the records of a partition; the index of a record is its offset."""
        return self._records[topic_partition]

    def records_of_topic(self, topic: str) -> list[Record]:
        """Return the records of a topic, ordered by partition and offset."""
        return [record for one in self.partitions(topic) for record in self._records[one]]

    def partition_for(self, topic: str, key: bytes | None, partition: int | None) -> TopicPartition:
        """Return the partition for a record: ``partition``, or the partition of ``key`` if ``partition`` is None.

        Raises:
            PublishError: the partition does not exist.
        """
        count = len(self.partitions(topic))
        chosen = (0 if key is None else partition_of(key, count)) if partition is None else partition
        if not 0 <= chosen < count:
            raise PublishError(
                f"{topic} has no partition {chosen}: the number of its partitions is {count} - set it with"
                " TestApp(partitions=...)"
            )
        return TopicPartition(topic, chosen)

    def add(self, outgoing: OutgoingRecord) -> Record:
        """Add a record and return it; without ``partition``, the key determines the partition as in Kafka's clients.

        Raises:
            PublishError: the partition does not exist.
        """
        chosen = self.partition_for(outgoing.topic, outgoing.key, outgoing.partition)
        record = Record(
            topic=outgoing.topic,
            partition=chosen.partition,
            offset=len(self._records[chosen]),
            timestamp=int(self.wall_clock() * 1000) if outgoing.timestamp_ms is None else outgoing.timestamp_ms,
            key=outgoing.key,
            value=outgoing.value,
            headers=tuple(outgoing.headers),
        )
        self._records[chosen].append(record)
        for watcher in self._watchers:
            watcher()
        return record

    async def publish(self, record: OutgoingRecord) -> Published:
        """Add a record, and return its partition and offset as a producer does.

        Raises:
            PublishError: the partition does not exist.
        """
        added = self.add(record)
        return Published(*added.topic_partition, added.offset, added.timestamp)


# ---- source of records -----------------------------------------------------------------------------------------------

_MAX_QUEUED_RECORDS = 2_000
"""Value in place of the option ``max_queued_records``."""


class LogSource:
    """Source of records for one group, in which finished records count as committed.

    Attributes:
        routes: topics of the group.
        partitions: state of the partitions, all of which are assigned.
    """

    def __init__(self, log: TopicLog, routes: Routes, observer: Observer) -> None:
        self.group_id = routes.group_id
        self._log, self.routes, self._observer = log, routes, observer
        self.partitions = AssignedPartitions()
        self._sink: RecordSink | None = None
        self._wakeup = asyncio.Event()
        self._watchers: list[Callable[[], None]] = []
        self._is_halted = self._is_waiting = False
        self.offsets: dict[TopicPartition, OffsetAndMetadata] = {}
        """Offsets committed by transactions."""
        log.watch(self._wakeup.set)

    @property
    def transactions(self) -> None:
        """None, because published records are readable immediately."""
        return

    def watch(self, watcher: Callable[[], None]) -> None:
        """Call ``watcher`` when a record is finished, and when ``next_slice`` starts to wait."""
        self._watchers.append(watcher)

    @property
    def subscription(self) -> Sequence[str]:
        """Topics and patterns of the handlers."""
        return [*self.routes.topics, *self.routes.patterns]

    def reads(self, topic: str) -> bool:
        """Return True if a handler reads ``topic``."""
        return self.routes.reads(topic)

    # ---- Source and SliceReader --------------------------------------------------------------------------------

    @property
    def reader(self) -> Self:
        """The source itself."""
        return self

    async def start(self, sink: RecordSink) -> int:
        """Assign all partitions to the group, and return the maximum number of queued records."""
        self._sink = sink
        self._add_partitions(*self.routes.topics, *self.routes.own_topics)
        self._observer.emit(PartitionsAssigned(self.group_id, self.partitions.topic_partitions, frozenset()))
        return _MAX_QUEUED_RECORDS

    async def stop(self) -> None:
        """Do nothing, because finished records count as committed."""

    async def next_slice(self, room_of: Callable[[TopicPartition], int]) -> tuple[Partition, Lease]:
        """Wait until a partition has undelivered records and room for them, and return its next records.

        ``room_of`` returns how many further records of a partition the app accepts now.
        """
        while True:
            for partition in self._add_partitions(*filter(self.reads, self._log.topics)):
                undelivered = self._log.records(partition.topic_partition)[partition.delivered or 0 :]
                if self._is_halted or not undelivered or not (room := room_of(partition.topic_partition)):
                    continue
                records = undelivered[:room]
                end, known = records[-1].offset + 1, partition.progress and partition.progress.known
                if known:
                    records = [one for one in records if not known.is_finished(one.offset)]
                if records:
                    return partition, partition.deliver(records, end)
                partition.skip(end, -1)
            self._wakeup.clear()
            self._is_waiting = True
            self._call_watchers()
            try:
                await self._wakeup.wait()
            finally:
                self._is_waiting = False

    def progressed(self) -> None:
        """Let ``next_slice`` check for records again, and call the watchers, because records are finished."""
        self._wakeup.set()
        self._call_watchers()

    def halt(self) -> None:
        """Deliver no more records, and tell the app to start none of the delivered ones."""
        self._is_halted = True
        if self._sink is not None:
            for partition in self.partitions:
                self._sink.halt(partition.topic_partition)

    def wall_clock(self) -> float:
        """Return the time of the topics in memory, in seconds since the epoch."""
        return self._log.wall_clock()

    consumer = None
    """None, because there is no broker."""

    # ---- transactions ------------------------------------------------------------------------------------------

    def group_view(self) -> GroupView:
        """Return a view of a group whose only member owns all partitions."""
        return _SoleMember(self)

    def commit(self, offsets: Mapping[TopicPartition, OffsetAndMetadata]) -> None:
        """Store the offsets of a committed transaction."""
        self.offsets.update(offsets)

    def read_again(self, partition: Partition, at: OffsetAndMetadata) -> None:
        """Continue a partition at a committed offset, without the finished records of the commit's offset map."""
        if self._sink is not None:
            self._sink.drop(partition.topic_partition)
        partition.begin(at.offset, known=decode_metadata(at.metadata, at.offset).offset_map)
        partition.note_committed(at.offset)
        self._wakeup.set()

    # ---- state -------------------------------------------------------------------------------------------------

    def committed(self, topic_partition: TopicPartition) -> int:
        """Return the offset of the lowest unfinished record."""
        partition = self.partitions.get(topic_partition)
        return 0 if partition is None or partition.finished is None else partition.finished

    @property
    def is_idle(self) -> bool:
        """True if the app waits for records and there are none to deliver."""
        return self._is_waiting and not self._wakeup.is_set()

    def _call_watchers(self) -> None:
        for watcher in self._watchers:
            watcher()

    def _add_partitions(self, *topics: str) -> list[Partition]:
        """Return all partitions of ``topics``; new partitions start at offset 0."""
        partitions = [one for topic in dict.fromkeys(topics) for one in self._log.partitions(topic)]
        for partition in self.partitions.add(partitions):
            partition.begin(0)
            partition.note_committed(0)
        return self.partitions.of(partitions)


class _SoleMember:
    """View of a group whose only member owns all partitions."""

    identity = Identity("test", 1)

    def __init__(self, source: LogSource) -> None:
        self._source, self.group_id = source, source.group_id

    def delivered_offsets(self) -> Mapping[TopicPartition, int | None]:
        """Return the next offset to deliver in each partition."""
        return {partition.topic_partition: partition.delivered for partition in self._source.partitions}

    def uncommitted_starts(self) -> Sequence[Partition]:
        """Return no partitions, because the start offset of each partition counts as committed."""
        return ()

    def advanced_partitions(self) -> Sequence[Partition]:
        """Return no partitions, because there are no control records to skip."""
        return ()

    def watch(self, on_change: Callable[[], None]) -> None:
        """Do nothing, because partitions never have start offsets to commit or gaps to skip."""

    def is_ours(self, partition: Partition) -> bool:
        """Return True if this state of a partition is current."""
        return self._source.partitions.get(partition.topic_partition) is partition

    async def committed_offsets(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, OffsetAndMetadata]:
        """Return the offsets committed by transactions."""
        return {one: self._source.offsets[one] for one in partitions if one in self._source.offsets}

    def read_again(self, partition: Partition, at: OffsetAndMetadata) -> None:
        """Continue a partition at a committed offset."""
        self._source.read_again(partition, at)


# ---- transactions ----------------------------------------------------------------------------------------------------


def transactional_source(
    source: LogSource, log: TopicLog, options: TransactionOptions, observer: Observer
) -> TransactionalSource:
    """Return a source that delivers the records of ``source`` within transactions."""
    return TransactionalSource(
        source, _LogProducer(source, log), options.window_settings(source.routes.handlers), observer
    )


class _LogProducer:
    """Transactional producer that writes to a TopicLog, and stores offsets in a LogSource."""

    def __init__(self, source: LogSource, log: TopicLog) -> None:
        self._source, self._log = source, log
        self._pending: list[OutgoingRecord] = []
        self.is_open = False
        self.max_metadata_bytes = 4_096

    async def start(self) -> None:
        """Do nothing, because there is no broker to connect to."""

    async def close(self, timeout_s: float | None = None) -> None:  # noqa: ARG002 - closing takes no time
        """Drop the open transaction."""
        self._end()

    async def begin(self) -> None:
        """Begin a transaction unless a transaction is open."""
        self.is_open = True

    async def check(self, topic: str, partition: int | None) -> None:
        """Check that the partition exists.

        Raises:
            PublishError: the partition does not exist.
        """
        self._log.partition_for(topic, None, partition)

    async def send(self, record: OutgoingRecord) -> None:
        """Keep a record until the transaction is committed."""
        await self.check(record.topic, record.partition)
        self._pending.append(record)

    async def commit(
        self,
        offsets: Mapping[TopicPartition, OffsetAndMetadata],
        identity: Identity,  # noqa: ARG002 - there are no other members
        topic_ids: Mapping[TopicPartition, UUID],  # noqa: ARG002 - no topic is deleted
        current_identity: Callable[[], Identity | None],  # noqa: ARG002 - there are no rebalances
    ) -> None:
        """Store the offsets, and add the records of the transaction to the log."""
        pending = list(self._pending)
        self._end()
        self._source.commit(offsets)
        for record in pending:
            self._log.add(record)

    async def abort(self, cause: TailraceError, *, is_timed_out: bool) -> None:  # noqa: ARG002 - same for all causes
        """Drop the records of the transaction."""
        self._end()

    def _end(self) -> None:
        self.is_open = False
        self._pending.clear()
