"""Records that a reader has delivered, and how they are finished.

A polling user's record or batch is finished by the next poll. With ``ack="manual"`` each record is finished by its own
acknowledgement, in any order. A sink (an App's handlers, streams, worker processes) takes a lease of each slice: an
object that tracks which of the slice's records are in flight. The sink finishes the records itself.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import repeat
from typing import TYPE_CHECKING, Protocol

from tailrace.awaitables import AutoResetEvent
from tailrace.batches.columns import ArrowBatch, offsets_of
from tailrace.consumer.delivery.buffered_batch import BufferedBatch
from tailrace.consumer.delivery.polled_records import PolledRecords
from tailrace.consumer.partition import AssignedPartitions, Partition
from tailrace.core.progress import Lease
from tailrace.records import Record, TopicPartition

if TYPE_CHECKING:
    from tailrace.batches.columns import ColumnBuilder

__all__ = ["DeliveryProgress", "PolledSink", "RecordSink", "RecordSlice"]


@dataclass(slots=True)
class RecordSlice:
    """Records of one partition that are decoded and delivered together."""

    partition: Partition
    records: Sequence[Record]
    end: int
    """Offset at which the partition continues after the slice."""
    leader_epoch: int
    buffered: BufferedBatch | None
    """Batch from which the last records were taken; None if it is used up and was removed from the buffer."""


class RecordSink(Protocol):
    """Destination of slices (records that are delivered together), which also finishes their records.

    A sink calls ``Reader.next_slice`` or ``next_slice_nowait`` for each slice; the reader calls only the methods below.
    Sinks are the handlers of an App (``GroupRuntime`` in ``app.dispatch.group_runtime``; with transactions, those of
    ``app.transactions`` between it and the reader), ``Consumer.streams`` (``Streams`` in ``consumer.delivery.streams``)
    and worker processes (``app.processes.reader_process``).
    """

    def halt(self, topic_partition: TopicPartition) -> None:
        """Start no more records of a partition, and leave its unstarted records to the next owner."""

    def drop(self, topic_partition: TopicPartition) -> None:
        """Forget a partition that was revoked, sought or reset."""


class PolledSink(Protocol):
    """Sink that the user polls, so that ``max_poll_interval_ms`` applies."""

    @property
    def poll_marker(self) -> object:
        """A value that changes whenever the user polls."""

    def awaits_poll(self, *, has_buffered: bool) -> bool:
        """Return True if the user has a record in flight or could poll one, and is not waiting in a poll."""


class DeliveryProgress:
    """Records that were delivered to the user or a sink, and which of them are finished.

    Attributes:
        has_manual_ack: True if each record is finished by its own acknowledgement (``ack="manual"``).
        polled: records of a polling user.
        sink: takes slices in place of a polling user; None without a sink.
        due_at: total number of finished records at which ``on_due`` is called (``auto_commit_every_records``); None for
            never, which is the default.
        on_due: called when ``due_at`` is reached; set by ``Committer.run_commits`` (``consumer.offsets.committer``),
            which commits after ``auto_commit_interval_ms``, too.
        next_poll: event that is set at each poll.
        progress_made: event that is set when records in flight may have been finished or dropped.
    """

    def __init__(self, partitions: AssignedPartitions, *, has_manual_ack: bool) -> None:
        self.polled = PolledRecords()
        self.sink: RecordSink | None = None
        self.due_at: int | None = None
        self.on_due: Callable[[], None] = lambda: None
        self._acknowledged = 0
        """Number of records that the user has acknowledged (``ack="manual"``)."""
        self._delivered_to_sink: int | None = None
        """Number of records delivered to a sink; None before the first delivery, and if the user polls."""
        self.next_poll = AutoResetEvent()
        self.progress_made = AutoResetEvent()
        self._partitions = partitions
        self._loop = asyncio.get_running_loop()
        self._current: RecordSlice | None = None
        """Current slice: the slice from which a polling user takes records."""
        self._columns: ColumnBuilder | None = None
        """Columns with the rows in flight of a polling user."""
        self.has_manual_ack = has_manual_ack
        self._poll_count = 0
        self._polled_sink: PolledSink | None = None

    @property
    def is_read_by_user(self) -> bool:
        """True if the consumer's user polls for records; False if an App or worker processes receive them."""
        return self.sink is None or self._polled_sink is not None

    # ---- delivery ----------------------------------------------------------------------------------------------

    def begin(self, record_slice: RecordSlice, columns: ColumnBuilder | None = None) -> None:
        """Deliver the records of a slice to a polling user, one by one or as a part of ``columns``."""
        partition = record_slice.partition
        # The slice keeps no reference to the records, so that they can be freed one by one.
        records, record_slice.records = record_slice.records, ()
        lease = partition.deliver(records, record_slice.end, record_slice.leader_epoch)
        if self.has_manual_ack:
            lease.start()
            offsets = (record.offset for record in records)
            # The record objects are kept because a seek may deliver the same offset again, as another object.
            partition.unacknowledged.update(zip(offsets, records if columns is None else repeat(columns), strict=False))
        self._current, self._columns = record_slice, columns
        if columns is None:
            self.polled.begin(lease)
        else:
            self.polled.begin_delivered(lease)

    @property
    def unacknowledged_count(self) -> int:
        """Number of delivered records that the user has not acknowledged (``ack="manual"``); 0 with ``ack="auto"``."""
        return sum(len(partition.unacknowledged) for partition in self._partitions) if self.has_manual_ack else 0

    @property
    def unacknowledged_records(self) -> list[Record]:
        """Delivered records that the user has not acknowledged, with ``ack="manual"``; without Arrow rows."""
        records = (record for partition in self._partitions for record in partition.unacknowledged.values())
        return [record for record in records if isinstance(record, Record)]

    def give_back(self) -> tuple[RecordSlice, list[Record]] | None:
        """Withdraw the untaken records of the current slice; return the slice and them, or None if there are none."""
        found, given_back = self._current, self.polled.give_back()
        if found is None or given_back is None:
            return None
        lease, rest = given_back
        if self.has_manual_ack:
            offsets = [record.offset for record in rest]
            lease.progress.unstart(offsets)
            for offset in offsets:
                del found.partition.unacknowledged[offset]
        return found, rest

    def attach_sink(self, sink: RecordSink, polled_sink: PolledSink | None) -> None:
        """Deliver only to ``sink`` from now on; ``polled_sink`` is the same object if the user polls it."""
        self.sink, self._polled_sink = sink, polled_sink

    def deliver_to_sink(self, record_slice: RecordSlice) -> Lease:
        self._delivered_to_sink = (self._delivered_to_sink or 0) + len(record_slice.records)
        return record_slice.partition.deliver(record_slice.records, record_slice.end, record_slice.leader_epoch)

    def slice_limit(self, size: int) -> int:
        """Return the maximum number of records in the next slice, at least 1.

        It is ``size``, or fewer if a commit is due before ``size`` more records are finished.
        """
        if self.due_at is None:
            return size
        return max(1, min(size, self.due_at - self.polled.count_taken - (self._delivered_to_sink or 0)))

    # ---- finishing ---------------------------------------------------------------------------------------------

    def finish(self) -> None:
        """Finish the records in flight, because the user polls; with ``ack="manual"``, only close used-up leases."""
        self.polled.finish()
        self._columns = None
        if self.sink is None:
            self._check_due()
        self.progress_made.set()
        self.note_poll()

    def note_poll(self) -> None:
        """Note a poll, for ``max_poll_interval_ms``."""
        self._poll_count += 1
        self.next_poll.set()

    def finish_partitions(self, partitions: Iterable[TopicPartition]) -> None:
        self.polled.finish_of(frozenset(partitions))

    def note_finished(self) -> None:
        """Note that a sink has finished records: call ``on_due`` if their number is reached, and wake ``drain``."""
        self._check_due()
        self.progress_made.set()

    def acknowledge(self, record: Record) -> bool:
        """Finish ``record`` and the records before it in its partition; return False if ``record`` is not in flight.

        With ``ack="manual"``, finish ``record`` alone.
        """
        was_in_flight = self._acknowledge_alone(record) if self.has_manual_ack else self.polled.acknowledge(record)
        if not was_in_flight:
            return False
        self._poll_count += 1
        self.progress_made.set()
        return True

    def acknowledge_batch(self, batch: ArrowBatch) -> bool:
        """Finish the records of an Arrow batch; return False if none of them is in flight.

        ``batch`` must be the delivered object, not a copy. With ``ack="manual"``, earlier batches can be acknowledged,
        too.
        """
        if not self.has_manual_ack:
            if self._columns is None or self._columns.batch is not batch or not self.polled.count_in_flight:
                return False
            self.polled.finish()
            self._columns = None
        elif not self._acknowledge_rows(batch):
            return False
        self._poll_count += 1
        self.progress_made.set()
        return True

    def _acknowledge_rows(self, batch: ArrowBatch) -> bool:
        count = 0
        for topic_partition, offsets in offsets_of(batch):
            partition = self._partitions.get(topic_partition)
            if partition is None or partition.progress is None:
                continue
            for offset in offsets:
                columns = partition.unacknowledged.get(offset)
                if columns is not None and not isinstance(columns, Record) and columns.batch is batch:
                    del partition.unacknowledged[offset]
                    partition.progress.finish(offset)
                    self._acknowledged += 1
                    count += 1
        self._check_due()
        return count > 0

    def _acknowledge_alone(self, record: Record) -> bool:
        partition = self._partitions.get(record.topic_partition)
        if partition is None or partition.unacknowledged.get(record.offset) is not record:
            return False
        assert partition.progress is not None
        del partition.unacknowledged[record.offset]
        partition.progress.finish(record.offset)
        self._acknowledged += 1
        self._check_due()
        return True

    # ---- releasing ---------------------------------------------------------------------------------------------

    def halt(self, partition: Partition) -> None:
        """Start no more records of a partition; records in flight stay in flight."""
        partition.is_halted = True
        if self.sink is not None:
            self.sink.halt(partition.topic_partition)

    def drop(self, partitions: Iterable[TopicPartition]) -> None:
        gone = frozenset(partitions)
        self.polled.drop(gone)
        for partition in self._partitions.of(gone):
            partition.unacknowledged = {}
        if self.sink is not None:
            for topic_partition in gone:
                self.sink.drop(topic_partition)
        self.progress_made.set()

    def close(self) -> None:
        """Deliver no more records; records in flight stay unfinished."""
        if self._polled_sink is not None:
            for partition in self._partitions:
                self.halt(partition)
        self.polled.close()

    async def drain(self, partitions: Iterable[TopicPartition], until: float) -> frozenset[TopicPartition]:
        """Wait until no record of ``partitions`` is in flight, and return the partitions that still have some."""
        wanted = frozenset(partitions)
        while True:
            held = frozenset(p.topic_partition for p in self._partitions.of(wanted) if p.has_in_flight)
            if not held or self._loop.time() >= until:
                return held
            await self.progress_made.wait(until)

    # ---- state -------------------------------------------------------------------------------------------------

    @property
    def finished(self) -> int:
        """Total number of finished records.

        With a sink, this is a lower bound, which leaves out all records after the lowest unfinished record of each
        partition.
        """
        if self._delivered_to_sink is not None:
            return self._delivered_to_sink - sum((one.delivered or 0) - (one.finished or 0) for one in self._partitions)
        return self._acknowledged if self.has_manual_ack else self.polled.count_taken - self.polled.count_in_flight

    def _check_due(self) -> None:
        if self.due_at is None or self.polled.count_added + (self._delivered_to_sink or 0) < self.due_at:
            return
        if self.due_at <= self.finished:
            self.on_due()

    @property
    def topic_partition(self) -> TopicPartition | None:
        """Partition of the current slice of a polling user; None without one."""
        return None if self.polled.current is None else self.polled.current.partition

    @property
    def poll_marker(self) -> object:
        return (
            self._poll_count,
            self.polled.count_taken,
            None if self._polled_sink is None else self._polled_sink.poll_marker,
        )

    def awaits_poll(self, *, has_buffered: bool) -> bool:
        """Return True if the user has a record in flight or could poll one; False if the user does not poll."""
        if self.sink is not None:
            return self._polled_sink is not None and self._polled_sink.awaits_poll(has_buffered=has_buffered)
        return has_buffered or self.polled.has_records
