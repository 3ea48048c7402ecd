"""Streams of records, one for each assigned partition, which may be polled by different tasks.

A stream that is polled and has no records left takes a slice of its partition: records that are decoded and delivered
together. If several streams wait for records, one of them waits on the reader and wakes the others. The next poll of a
stream finishes its record in flight. ``max_poll_interval_ms`` is exceeded if no stream is polled for that long although
a stream has a record.
"""

from __future__ import annotations

import asyncio
from typing import Protocol, Self

from tailrace.consumer.delivery.reader import Reader, poll_or_stop
from tailrace.consumer.partition import Partition
from tailrace.consumer.parts import ConsumerParts
from tailrace.core.progress import Lease
from tailrace.errors import ConsumerStateError
from tailrace.records import AnyRecord, KeyT_co, Record, TopicPartition, ValueT_co

__all__ = ["PartitionStream", "RecordStream", "Streams"]


class RecordStream(Protocol[KeyT_co, ValueT_co]):
    """Records of one partition while it is assigned; the iteration ends when the partition is revoked."""

    @property
    def partition(self) -> TopicPartition:
        """Partition of the stream."""

    def __aiter__(self) -> Self: ...

    async def __anext__(self) -> Record[KeyT_co, ValueT_co]: ...

    def ack(self, record: AnyRecord) -> bool:
        """Finish the record in flight without polling the next one; return False if ``record`` is not in flight."""


class PartitionStream:
    """Records of one partition while it is assigned; see ``RecordStream``."""

    def __init__(self, streams: Streams, assigned: Partition, size: int) -> None:
        self._partition = assigned.topic_partition
        self._streams, self._assigned, self._size = streams, assigned, size
        self._parts, self._reader = streams.parts, streams.reader
        self._lease: Lease | None = None
        """Lease of the current slice."""
        self._count_taken_before = 0
        """Number of records taken from earlier leases."""
        self.is_waiting = False
        """True while the next record is awaited."""

    @property
    def partition(self) -> TopicPartition:
        return self._partition

    def __repr__(self) -> str:
        return f"<PartitionStream {self.partition}>"

    def __aiter__(self) -> PartitionStream:
        return self

    async def __anext__(self) -> AnyRecord:
        if (record := self._take()) is not None:
            return record
        if self.is_waiting:
            raise ConsumerStateError(
                f"two tasks read the stream of {self.partition} at once - let only one task read it"
            )
        self.is_waiting = True
        try:
            return await poll_or_stop(self._next_record, self._parts.config, self._reader.is_over)
        finally:
            self.is_waiting = False

    def ack(self, record: AnyRecord) -> bool:
        if self._lease is None or not self._lease.finish(record):
            return False
        self._reader.delivery.note_finished()
        return True

    async def _next_record(self) -> AnyRecord:
        if self._lease is not None:
            self._lease.finish()
        self._reader.delivery.note_poll()
        self._reader.delivery.note_finished()
        # Let other streams run before this one takes a new slice.
        await asyncio.sleep(0)
        while True:
            if self._reader.is_over():
                raise StopAsyncIteration
            if self._parts.partitions.get(self.partition) is not self._assigned:
                self._reader.raise_failure()
                raise StopAsyncIteration
            if not self._count_left:
                self._count_taken_before = self.count_taken
                found = self._reader.next_slice_nowait(lambda one: self._size if one == self.partition else 0)
                self._lease = None if found is None else found[1]
            if (record := self._take()) is not None:
                return record
            await self._streams.wait_for_wakeup()

    def _take(self) -> AnyRecord | None:
        """Take the next record of the lease and return it; None if there is none, or delivery is paused."""
        if self._lease is None or self._assigned.is_held_back:
            return None
        return next(self._lease.left, None)

    @property
    def _count_left(self) -> int:
        return 0 if self._lease is None else self._lease.count

    # ---- for Streams -------------------------------------------------------------------------------------------

    @property
    def count_taken(self) -> int:
        return self._count_taken_before + (0 if self._lease is None else len(self._lease.records) - self._lease.count)

    @property
    def awaits_poll(self) -> bool:
        """True if a record is in flight, or can be polled without waiting."""
        if self._lease is None:
            return False
        return self._lease.count_in_flight > 0 or (self._count_left > 0 and not self._assigned.is_held_back)

    def halt(self) -> None:
        """Deliver no more records, and leave the undelivered records to the partition's next owner."""
        if self._lease is not None:
            self._lease.abandon()

    def drop(self) -> None:
        """Forget all records, because the partition was sought, reset or revoked."""
        self._count_taken_before = self.count_taken
        self._lease = None


class Streams:
    """``async for partition, stream in consumer.streams()``: one stream for each partition that is assigned.

    The object is also the reader's ``RecordSink`` and ``PolledSink``.
    """

    def __init__(self, parts: ConsumerParts, reader: Reader) -> None:
        self.parts, self._partitions, self.reader = parts, parts.partitions, reader
        self._streams: dict[TopicPartition, PartitionStream] = {}
        self._opened_assignments: set[int] = set()
        """Assignment numbers (``Partition.assignment``) that have a stream."""
        self._is_waiting_on_reader = False
        """True while a task waits on the reader."""
        self._shared_wakeup = asyncio.Event()
        """Event that wakes all other waiting tasks; it is replaced by a new one each time that it is set."""

    def __aiter__(self) -> Streams:
        return self

    async def __anext__(self) -> tuple[TopicPartition, PartitionStream]:
        while True:
            if self.reader.is_over():
                raise StopAsyncIteration
            for assigned in self._partitions:
                if assigned.assignment not in self._opened_assignments:
                    return assigned.topic_partition, self._open_stream(assigned)
            await self.wait_for_wakeup()

    def _open_stream(self, assigned: Partition) -> PartitionStream:
        self._opened_assignments = {one.assignment for one in self._partitions} & self._opened_assignments | {
            assigned.assignment
        }
        size = max(1, min(500, self.parts.config.max_queued_records // max(1, len(self._partitions))))
        stream = self._streams[assigned.topic_partition] = PartitionStream(self, assigned, size)
        return stream

    # ---- for the streams ---------------------------------------------------------------------------------------

    async def wait_for_wakeup(self) -> None:
        """Wait until records may have arrived; one task waits on the reader and wakes all others."""
        if self._is_waiting_on_reader:
            await self._shared_wakeup.wait()
            return
        self._is_waiting_on_reader = True
        try:
            await self.reader.wait_for_wakeup()
        finally:
            self._is_waiting_on_reader = False
            self._shared_wakeup.set()
            self._shared_wakeup = asyncio.Event()

    # ---- for the reader ----------------------------------------------------------------------------------------

    @property
    def poll_marker(self) -> object:
        """Number of records that the streams have delivered; it changes whenever a record is polled."""
        return sum(stream.count_taken for stream in self._streams.values())

    def awaits_poll(self, *, has_buffered: bool) -> bool:
        """Return True if a record is in flight or can be polled, and no stream waits in a poll."""
        streams = self._streams.values()
        return not any(one.is_waiting for one in streams) and (has_buffered or any(one.awaits_poll for one in streams))

    def halt(self, topic_partition: TopicPartition) -> None:
        if (stream := self._streams.get(topic_partition)) is not None:
            stream.halt()

    def drop(self, topic_partition: TopicPartition) -> None:
        if (stream := self._streams.get(topic_partition)) is not None:
            stream.drop()

    def acknowledge(self, record: AnyRecord) -> bool:
        stream = self._streams.get(record.topic_partition)
        return stream is not None and stream.ack(record)
