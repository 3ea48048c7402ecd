"""Records in flight of a reader, finished by the next poll, by ``ack()`` or by a sink.

A polling user's record or batch is finished by the next poll. With ``ack="manual"`` each record is finished by its own
acknowledgement, in any order. A sink (an App's handlers, streams, worker processes) has its own leases and finishes
their records.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from itertools import repeat
from typing import TYPE_CHECKING, Protocol, TypeAlias

from tailrace.auto_reset_event import AutoResetEvent
from tailrace.batches.columns import ArrowBatch, offsets_of
from tailrace.consumer.delivery.finished_counter import FinishedCounter
from tailrace.consumer.delivery.slices import RecordSlice
from tailrace.core.delivery.polled_records import PolledRecords
from tailrace.core.delivery.positions import Position, Positions
from tailrace.core.delivery.progress import InFlight, Lease, Progress
from tailrace.records import Record, TopicPartition

if TYPE_CHECKING:
    from tailrace.batches.columns import ColumnBuilder

__all__ = ["DeliveryProgress", "PolledSink", "RecordSink"]

_Unacknowledged: TypeAlias = "dict[TopicPartition, tuple[Progress, dict[int, Record | ColumnBuilder]]]"
"""Offsets that are not acknowledged, with the delivered record or the columns that contain it."""


class RecordSink(Protocol):
    """Receiver of whole slices in place of a polling user; the sink finishes the records of its leases."""

    def halt(self, partition: TopicPartition) -> None:
        """Start no more records of a partition; leave its unstarted records to the next owner."""

    def drop(self, partition: TopicPartition) -> None:
        """Forget a partition that was revoked, sought or reset."""


class PolledSink(Protocol):
    """Sink that the user polls, so that ``max_poll_interval_ms`` applies."""

    @property
    def progress(self) -> object:
        """A value that changes whenever the user polls."""

    def awaits_poll(self, *, waits: bool) -> bool:
        """Return True if the user has a record in flight or could poll one, and is not waiting in a poll.

        Args:
            waits: True if buffered records are waiting to be polled.
        """


class DeliveryProgress:
    """Records that were delivered to the user or a sink, and which of them are finished.

    Attributes:
        polled: records of a polling user.
        sink: receiver of whole slices instead of the user; None if the user polls.
        finished_counter: number of finished records.
        next_poll: set when the next record is polled.
        progressed: set when a record in flight is finished, or its partition is dropped.
    """

    def __init__(self, positions: Positions, *, has_manual_ack: bool) -> None:
        self.polled = PolledRecords()
        self.sink: RecordSink | None = None
        self.finished_counter = FinishedCounter(positions, self.polled, has_manual_ack=has_manual_ack)
        self.next_poll = AutoResetEvent()
        self.progressed = AutoResetEvent()
        self._positions = positions
        self._loop = asyncio.get_running_loop()
        self._current: RecordSlice | None = None
        self._columns: ColumnBuilder | None = None
        self._unacknowledged: _Unacknowledged | None = {} if has_manual_ack else None
        self._poll_count = 0
        self._watched: PolledSink | None = None

    @property
    def is_read_by_user(self) -> bool:
        """True if the consumer's user takes the records, not an App or worker processes."""
        return self.sink is None or self._watched is not None

    # ---- delivery ----------------------------------------------------------------------------------------------

    def begin(self, found: RecordSlice, columns: ColumnBuilder | None = None) -> None:
        """Deliver the records of a slice to a polling user, one by one or as a part of ``columns``."""
        in_flight = InFlight.LAST if self._unacknowledged is None else InFlight.NOTHING
        lease = found.deliver(in_flight)
        if self._unacknowledged is not None:
            self._start_all(self._unacknowledged, lease, columns)
        self._current, self._columns = found, columns
        if columns is None:
            self.polled.begin(lease)
        else:
            self.polled.begin_delivered(lease)

    def _start_all(self, unacknowledged: _Unacknowledged, lease: Lease, columns: ColumnBuilder | None) -> None:
        progress, records = unacknowledged.get(lease.partition, (None, {}))
        if progress is not lease.progress:
            records = {}
            unacknowledged[lease.partition] = lease.progress, records
        offsets = [record.offset for record in lease.records]
        lease.progress.start_all(offsets)
        # The record objects are kept because a seek may deliver the same offset again, as another object.
        records.update(zip(offsets, lease.records if columns is None else repeat(columns), strict=False))

    @property
    def unacknowledged(self) -> int:
        """Number of delivered records that the user has not acknowledged (``ack="manual"``); 0 with ``ack="auto"``."""
        held = () if self._unacknowledged is None else self._unacknowledged.values()
        return sum(len(records) for progress, records in held if not progress.is_over)

    @property
    def unacknowledged_records(self) -> list[Record]:
        """Delivered records that the user has not acknowledged, with ``ack="manual"``; without Arrow rows."""
        held = () if self._unacknowledged is None else self._unacknowledged.values()
        records = (record for progress, found in held if not progress.is_over for record in found.values())
        return [record for record in records if isinstance(record, Record)]

    def give_back(self) -> tuple[RecordSlice, list[Record]] | None:
        """Return the current slice and its untaken records, which are to be delivered again; None if there are none."""
        found, given_back = self._current, self.polled.give_back()
        if found is None or given_back is None:
            return None
        lease, rest = given_back
        if self._unacknowledged is not None:
            offsets = [record.offset for record in rest]
            lease.progress.unstart(offsets)
            for offset in offsets:
                del self._unacknowledged[lease.partition][1][offset]
        return found, rest

    def attach_sink(self, sink: RecordSink, watched: PolledSink | None) -> None:
        """Deliver whole slices to ``sink`` from now on; ``watched`` is the same sink if a user polls it."""
        self.sink, self._watched = sink, watched

    def deliver_to_sink(self, found: RecordSlice, in_flight: InFlight) -> Lease:
        """Return the lease of a slice, for the sink."""
        self.finished_counter.deliver_to_sink(len(found.records))
        return found.deliver(in_flight)

    # ---- finishing ---------------------------------------------------------------------------------------------

    def finish(self) -> None:
        """Finish the records in flight, because the next one is polled; with ``ack="manual"``, finish none."""
        self.polled.finish()
        self._columns = None
        if self.sink is None:
            self.finished_counter.look()
        self.progressed.set()
        self.note_poll()

    def note_poll(self) -> None:
        """Note that the next record is polled."""
        self._poll_count += 1
        self.next_poll.set()

    def finish_of(self, partitions: Iterable[TopicPartition]) -> None:
        """Finish the records in flight of some partitions."""
        self.polled.finish_of(frozenset(partitions))

    def note_finished(self) -> None:
        """Note that a sink has finished a record."""
        self.finished_counter.look()
        self.progressed.set()

    def acknowledge(self, record: Record) -> bool:
        """Finish ``record`` and the records before it in its partition; return False if ``record`` is not in flight.

        With ``ack="manual"``, finish ``record`` alone.
        """
        if self._unacknowledged is None:
            if not self.polled.acknowledge(record):
                return False
        elif not self._acknowledge_alone(self._unacknowledged, record):
            return False
        self._poll_count += 1
        self.progressed.set()
        return True

    def acknowledge_batch(self, batch: ArrowBatch) -> bool:
        """Finish the records of an Arrow batch; return False if it is not the delivered object, or none is in flight.

        With ``ack="manual"``, earlier batches may be acknowledged as well.
        """
        if self._unacknowledged is None:
            if self._columns is None or self._columns.batch is not batch or not self.polled.count_in_flight:
                return False
            self.polled.finish()
            self._columns = None
        elif not self._acknowledge_rows(self._unacknowledged, batch):
            return False
        self._poll_count += 1
        self.progressed.set()
        return True

    def _acknowledge_rows(self, unacknowledged: _Unacknowledged, batch: ArrowBatch) -> bool:
        count = 0
        for partition, offsets in offsets_of(batch):
            progress, records = unacknowledged.get(partition, (None, {}))
            if progress is None or progress.is_over:
                continue
            for offset in offsets:
                columns = records.get(offset)
                if columns is not None and not isinstance(columns, Record) and columns.batch is batch:
                    del records[offset]
                    progress.finish(offset)
                    self.finished_counter.acknowledge()
                    count += 1
        self.finished_counter.look()
        return count > 0

    def _acknowledge_alone(self, unacknowledged: _Unacknowledged, record: Record) -> bool:
        progress, records = unacknowledged.get(record.topic_partition, (None, {}))
        if progress is None or progress.is_over or records.get(record.offset) is not record:
            return False
        del records[record.offset]
        progress.finish(record.offset)
        self.finished_counter.acknowledge()
        self.finished_counter.look()
        return True

    # ---- releasing ---------------------------------------------------------------------------------------------

    def halt(self, position: Position) -> None:
        """Start no more records of a partition; records in flight stay in flight."""
        position.is_halted = True
        if self.sink is not None:
            self.sink.halt(position.partition)

    def drop(self, partitions: Iterable[TopicPartition]) -> None:
        """Forget the records of partitions, in flight or not taken."""
        gone = frozenset(partitions)
        self.polled.drop(gone)
        for partition in gone:
            if self._unacknowledged is not None:
                self._unacknowledged.pop(partition, None)
            if self.sink is not None:
                self.sink.drop(partition)
        self.progressed.set()

    def close(self) -> None:
        """Deliver no more records; records in flight stay unfinished."""
        if self._watched is not None:
            for position in self._positions:
                self.halt(position)
        self.polled.close()

    async def drained(self, partitions: Iterable[TopicPartition], until: float) -> frozenset[TopicPartition]:
        """Wait, at most until the time ``until``, for records in flight; return partitions that still have some."""
        wanted = frozenset(partitions)
        while True:
            held = frozenset(p.partition for p in self._positions.of(wanted) if p.has_in_flight)
            if not held or self._loop.time() >= until:
                return held
            await self.progressed.wait(until)

    # ---- state -------------------------------------------------------------------------------------------------

    @property
    def partition(self) -> TopicPartition | None:
        """Partition of the current slice."""
        return None if self.polled.current is None else self.polled.current.partition

    @property
    def progress(self) -> object:
        """A value that changes whenever the user polls."""
        return self._poll_count, self.polled.count_taken, None if self._watched is None else self._watched.progress

    def awaits_poll(self, *, waits: bool) -> bool:
        """Return True if the user has a record in flight or could poll one; see ``PolledSink.awaits_poll``."""
        if self.sink is not None:
            return self._watched is not None and self._watched.awaits_poll(waits=waits)
        return waits or self.polled.has_records
