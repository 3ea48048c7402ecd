"""Reader process of a ProcessPoolConsumer: it fetches and decodes records, and sends slices of them to its parent.

This module runs in the child. The parent reports which records are finished. In a group, the child commits their
offsets, because only a member may commit. The window is the maximum number of records that were sent and have not left
the parent's queue, so reading stops while the parent delivers no records.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import anyio

from tailrace.app.processes.messages import (
    CommitMessage,
    CommittedMessage,
    FailedMessage,
    FromChild,
    HaltRequest,
    HaltResponse,
    LeaseEndedMessage,
    ProgressMessage,
    ReadyMessage,
    StopMessage,
    decode_to_child,
    encode,
    slice_of,
)
from tailrace.app.processes.supervised_process import Parent, failure_message, next_body, pickled
from tailrace.config import resolve
from tailrace.consumer.sink_consumer import SinkConsumer
from tailrace.core.cluster_metadata import is_other_log
from tailrace.core.progress import Lease, Progress
from tailrace.errors import TailraceError
from tailrace.records import TopicPartition

__all__ = ["main"]

_SLICES_PER_WINDOW = 4
"""Number of slices in a window. With several slices, one can be read while another is sent."""


@dataclass(slots=True)
class _SentLease:
    """Records of one assignment epoch of a partition that were sent to the parent."""

    number: int
    """Number that identifies the epoch in messages."""
    progress: Progress
    outstanding: int = 0
    """Number of records that were sent and have not left the parent's queue."""
    is_halted: bool = False


class _SentRecords:
    """Records that were sent to the parent, as a sink of the consumer, which calls ``halt`` and ``drop``."""

    def __init__(self, window: int) -> None:
        self.window = window
        self.queued: list[FromChild] = []
        """Messages to send to the parent."""
        self.has_queued = asyncio.Event()
        self._leases: dict[TopicPartition, _SentLease] = {}
        self._by_number: dict[int, _SentLease] = {}
        self._last_number = 0

    def room(self) -> int:
        """Return how many records may be sent now."""
        outstanding = sum(one.outstanding for one in self._leases.values())
        return min(self.window - outstanding, max(1, self.window // _SLICES_PER_WINDOW))

    def mark_sent(self, lease: Lease) -> int:
        """Mark the records of ``lease`` as sent to the parent; return their lease number for messages."""
        sent = self._leases.get(lease.partition)
        if sent is None or sent.progress is not lease.progress:
            # A new epoch has begun, so the parent must drop the records of the previous epoch.
            self.drop(lease.partition)
            self._last_number += 1
            sent = self._leases[lease.partition] = _SentLease(self._last_number, lease.progress)
            self._by_number[sent.number] = sent
        sent.outstanding += lease.count
        lease.progress.move_to_process(lease)
        return sent.number

    def finish(self, message: ProgressMessage) -> None:
        """Finish the records that the parent has finished, and make room for as many as have left its queue."""
        if (sent := self._by_number.get(message.lease)) is not None:
            sent.progress.finish_through(message.offset)
            # ``message.released`` may count records of the previous process, which has died.
            sent.outstanding = max(0, sent.outstanding - message.released)

    def drop_undelivered(self, message: HaltResponse) -> None:
        """Note that the parent has dropped records from its queue, so that they are read again."""
        if (sent := self._by_number.get(message.lease)) is not None and sent.is_halted:
            sent.progress.cut(message.offset)

    def halt(self, topic_partition: TopicPartition) -> None:
        """Ask the parent to deliver no more records of a partition; the parent answers with HaltResponse."""
        if (sent := self._leases.get(topic_partition)) is not None:
            sent.is_halted = True
            self._queue(HaltRequest(sent.number))

    def drop(self, topic_partition: TopicPartition) -> None:
        """Forget a partition, and tell the parent to do so."""
        if (sent := self._leases.pop(topic_partition, None)) is not None:
            del self._by_number[sent.number]
            self._queue(LeaseEndedMessage(sent.number))

    def _queue(self, message: FromChild) -> None:
        self.queued.append(message)
        self.has_queued.set()


class _ReaderProcess:
    def __init__(self, parent: Parent, spec: Mapping[str, Any]) -> None:
        self._parent, self._spec = parent, spec
        self._is_assigned: Callable[[TopicPartition], bool] = lambda _partition: True
        self._has_assignment = asyncio.Event()
        """Set at the first assignment by the group; never set if the parent assigns the partitions."""

    async def run(self) -> int:
        """Read until the parent stops this process or ends; return the exit code, and send an error to the parent."""
        reader, self._writer = await self._parent.streams()
        try:
            await self._read(reader)
        except Exception as error:  # noqa: BLE001 - sent to the parent, which raises it
            await self._send(failure_message(error))
            return 1
        finally:
            self._writer.close()
        return 0

    async def _read(self, reader: asyncio.StreamReader) -> None:
        options = dict(self._spec["options"])
        if self._spec["partitions"] is None:
            options["post_rebalance_callback"] = self._on_rebalance
        self._consumer = consumer = SinkConsumer(*self._spec["topics"], **options)
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(self._listen, reader, tasks)
            async with consumer:
                self._sent_records = _SentRecords(self._spec["window"])
                self._reader, _ = consumer.attach_sink(self._sent_records)
                await self._start_reading(consumer, options)
                tasks.start_soon(self._run_sends)
                await self._send_slices()

    def _on_rebalance(
        self, consumer: SinkConsumer, _old: object, new: Mapping[TopicPartition, int | None]
    ) -> dict[TopicPartition, int]:
        """Return the start offsets of assigned partitions that do not start at their committed offset."""
        self._has_assignment.set()
        overrides = _offsets_after_commit(self._spec["overrides"], new)
        # A recreated topic is read from the group's committed offset or, without one, from offset 0.
        return {
            topic_partition: new[topic_partition] or 0 if self._is_recreated(consumer, topic_partition) else offset
            for topic_partition, offset in overrides.items()
        }

    def _is_recreated(self, consumer: SinkConsumer, topic_partition: TopicPartition) -> bool:
        """Return True if the parent's offset of the partition belongs to a deleted topic of the same name."""
        return is_other_log(self._spec["topic_ids"].get(topic_partition), topic_partition, consumer.topology)

    async def _start_reading(self, consumer: SinkConsumer, options: Mapping[str, Any]) -> None:
        assigned: Mapping[TopicPartition, int | None] | None = self._spec["partitions"]
        start_offsets = []
        if assigned is not None:
            assigned_at_start: frozenset[TopicPartition] = self._spec["assigned_at_start"]
            self._is_assigned = lambda topic_partition: (
                topic_partition in assigned
                or (topic_partition not in assigned_at_start and self._reads_added_partition(topic_partition))
            )
            if not_assigned := [one for one in consumer.assignment() if not self._is_assigned(one)]:
                consumer.pause(*not_assigned)
            for topic_partition in filter(self._is_assigned, consumer.assignment()):
                # A partition that was added after the parent had assigned the partitions is read from offset 0.
                if (offset := assigned.get(topic_partition, 0)) is not None:
                    await consumer.seek(topic_partition, 0 if self._is_recreated(consumer, topic_partition) else offset)
            start_offsets = [(*one, await consumer.position(one)) for one in assigned]
        await self._send(ReadyMessage(resolve(options).stop_timeout_ms / 1000, start_offsets, "ok"))

    def _reads_added_partition(self, topic_partition: TopicPartition) -> bool:
        """Return True if this reader reads the partition, which was added after the start; readers take turns."""
        reader: int
        reader_count: int
        reader, reader_count = self._spec["round_robin"]
        return topic_partition.partition % reader_count == reader

    async def _send_slices(self) -> None:
        sent_records, reader = self._sent_records, self._reader

        def room_of(topic_partition: TopicPartition) -> int:
            return sent_records.room() if self._is_assigned(topic_partition) else 0

        while True:
            partition, lease = await reader.next_slice(room_of)
            records = lease.records
            # The slice must be written before any later message with its lease number, so nothing is awaited first.
            number = sent_records.mark_sent(lease)
            self._write_queued()
            await self._send(slice_of(number, lease.partition, lease.end, records, partition.topic_id))

    async def _run_sends(self) -> None:
        while True:
            await self._sent_records.has_queued.wait()
            self._write_queued()
            await self._writer.drain()

    def _write_queued(self) -> None:
        self._sent_records.has_queued.clear()
        queued, self._sent_records.queued = self._sent_records.queued, []
        for message in queued:
            self._writer.write(encode(message))

    async def _send(self, message: FromChild) -> None:
        self._writer.write(encode(message))
        try:
            await self._writer.drain()
        except ConnectionError:
            if not isinstance(message, FailedMessage):
                raise

    async def _listen(self, reader: asyncio.StreamReader, tasks: anyio.abc.TaskGroup) -> None:
        """Process the messages of the parent until ``StopMessage`` or the end of the connection."""
        while True:
            body = await next_body(reader)
            match StopMessage() if body is None else decode_to_child(body):
                case StopMessage():
                    tasks.cancel_scope.cancel()
                    return
                case ProgressMessage() as message:
                    self._sent_records.finish(message)
                    self._reader.progressed()
                case HaltResponse() as message:
                    self._sent_records.drop_undelivered(message)
                    self._reader.progressed()
                case CommitMessage(number=number):
                    tasks.start_soon(self._commit, number)
                case _:
                    pass

    async def _commit(self, number: int) -> None:
        error: bytes | None = None
        # A restarted reader may have to commit offsets of its previous process, which needs an assignment.
        await self._has_assignment.wait()
        try:
            await self._consumer.commit()
        except TailraceError as failure:
            error = pickled(failure)
        await self._send(CommittedMessage(number, error))


def _offsets_after_commit(
    overrides: dict[TopicPartition, int], new: Mapping[TopicPartition, int | None]
) -> dict[TopicPartition, int]:
    """Remove assigned partitions from ``overrides``; return their overrides that are after the committed offset.

    Args:
        overrides: first unfinished offset of each partition when the previous process died.
        new: assigned partitions with their committed offsets.
    """
    removed = {one: overrides.pop(one) for one in overrides.keys() & new.keys()}
    return {one: offset for one, offset in removed.items() if offset > (new[one] or 0)}


def main() -> None:
    """Run a reader; the only command-line argument is the file descriptor of the socket."""
    parent = Parent(int(sys.argv[1]))
    raise SystemExit(asyncio.run(_ReaderProcess(parent, parent.receive_spec()).run()))


if __name__ == "__main__":
    main()
