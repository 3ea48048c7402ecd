"""A reader in a process of its own: fetches and decodes, and hands slices of records to the process that wants them.

Rule of this file: it runs in the child. Nothing is done here: what is done, the parent says, and in a group this
process commits it, as only a member may. A record counts against the window from when it is sent until the parent says
that it has left the queue there, so a reader whose records nobody takes stops to read.
"""

from __future__ import annotations

import asyncio
import sys
from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any

import anyio

from tailrace.app.processes.child import pickled
from tailrace.app.processes.parent import Parent, failed
from tailrace.config import resolve
from tailrace.consumer.consumer import Consumer
from tailrace.consumer.record_sinks import attach_sink, topology_of
from tailrace.core.cluster_metadata import is_other_log
from tailrace.core.delivery.progress import Lease, Progress
from tailrace.core.processes.messages import (
    HEADER,
    CommitMessage,
    CommittedMessage,
    DoneMessage,
    FailedMessage,
    FromChild,
    GoneMessage,
    HaltedMessage,
    LeftMessage,
    ReadyMessage,
    StopMessage,
    decode_to_child,
    encode,
    length_of,
    slice_of,
)
from tailrace.errors import TailraceError
from tailrace.records import TopicPartition

__all__ = ["main"]

_PARTS = 4
"""A slice takes at most this part of the window, so that one is read while another is on its way."""


class _Leases:
    """What the parent has: the reader's sink. Each epoch of a partition has a number that the parent knows it by."""

    def __init__(self, window: int) -> None:
        self.window = window
        self.told: list[FromChild] = []
        """What the parent has to know soon."""
        self.news = asyncio.Event()
        self._numbers: dict[TopicPartition, int] = {}
        self._progress: dict[int, Progress] = {}
        self._outstanding: Counter[int] = Counter()
        self._halted: set[int] = set()
        self._next_number = 0

    def room(self) -> int:
        """How many records may be sent at once."""
        return min(self.window - self._outstanding.total(), max(1, self.window // _PARTS))

    def sent(self, lease: Lease) -> int:
        """The records of ``lease`` go to the parent; gives the number of their epoch."""
        number = self._numbers.get(lease.partition)
        if number is None or self._progress[number] is not lease.progress:
            # What was read elsewhere before counts for nothing any more.
            self.drop(lease.partition)
            self._next_number += 1
            number = self._numbers[lease.partition] = self._next_number
            self._progress[number] = lease.progress
        self._outstanding[number] += lease.count
        lease.send_away()
        return number

    def done(self, message: DoneMessage) -> None:
        """The parent says how far an epoch is done, and how many of its records have left the queue."""
        if (progress := self._progress.get(message.lease)) is not None:
            progress.finish_through(message.offset)
            # What a process that has died before us had sent is told to us, too.
            self._outstanding[message.lease] = max(0, self._outstanding[message.lease] - message.released)

    def left(self, message: LeftMessage) -> None:
        """The parent hands out nothing more: what it had left is not handed out by anybody."""
        if message.lease in self._halted:
            self._progress[message.lease].cut(message.offset)

    def halt(self, partition: TopicPartition) -> None:
        """Ask the parent to hand out nothing more; what was left is known when it answers."""
        if (number := self._numbers.get(partition)) is not None:
            self._halted.add(number)
            self._tell(HaltedMessage(number))

    def drop(self, partition: TopicPartition) -> None:
        """Forget a partition, and have the parent forget it."""
        if (number := self._numbers.pop(partition, None)) is not None:
            del self._progress[number]
            del self._outstanding[number]
            self._halted.discard(number)
            self._tell(GoneMessage(number))

    def _tell(self, message: FromChild) -> None:
        self.told.append(message)
        self.news.set()


class _ReaderProcess:
    def __init__(self, parent: Parent, spec: Mapping[str, Any]) -> None:
        self._parent, self._spec = parent, spec
        self._is_mine: Callable[[TopicPartition], bool] = lambda _partition: True
        self._has_share = asyncio.Event()
        """In a group: set from the first assignment on."""

    async def run(self) -> int:
        """Read until the parent says so, is gone, or something fails; gives the exit code."""
        reader, self._writer = await self._parent.streams()
        try:
            await self._read(reader)
        except Exception as error:  # noqa: BLE001 - whatever it is, the parent is told, and raises it
            await self._say(failed(error))
            return 1
        finally:
            self._writer.close()
        return 0

    async def _read(self, reader: asyncio.StreamReader) -> None:
        options = dict(self._spec["options"])
        if self._spec["partitions"] is None:
            options["post_rebalance_callback"] = self._take_share
        self._consumer = consumer = Consumer(*self._spec["topics"], **options)
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(self._listen, reader, tasks)
            async with consumer:
                self._leases = _Leases(self._spec["window"])
                self._reader, _ = attach_sink(consumer, self._leases)
                await self._begin(consumer, options)
                tasks.start_soon(self._say_news)
                await self._pump()

    def _take_share(
        self, consumer: Consumer, _old: object, new: Mapping[TopicPartition, int | None]
    ) -> dict[TopicPartition, int]:
        self._has_share.set()
        found = _ahead(self._spec["overrides"], new)
        # Of a recreated topic the group's offset counts, or its first record.
        return {
            partition: new[partition] or 0 if self._is_recreated(consumer, partition) else offset
            for partition, offset in found.items()
        }

    def _is_recreated(self, consumer: Consumer, partition: TopicPartition) -> bool:
        """Return True if the offset that the parent has of ``partition`` is of a deleted topic of that name."""
        return is_other_log(self._spec["topic_ids"].get(partition), partition, topology_of(consumer))

    async def _begin(self, consumer: Consumer, options: Mapping[str, Any]) -> None:
        mine: Mapping[TopicPartition, int | None] | None = self._spec["partitions"]
        begins = []
        if mine is not None:
            dealt: frozenset[TopicPartition] = self._spec["dealt"]
            self._is_mine = lambda one: one in mine or (one not in dealt and self._falls_to_me(one))
            if others := [one for one in consumer.assignment() if not self._is_mine(one)]:
                consumer.pause(*others)
            for partition in filter(self._is_mine, consumer.assignment()):
                # One that was added since is read from its beginning.
                if (offset := mine.get(partition, 0)) is not None:
                    await consumer.seek(partition, 0 if self._is_recreated(consumer, partition) else offset)
            begins = [(*partition, await consumer.position(partition)) for partition in mine]
        await self._say(ReadyMessage(resolve(options).stop_timeout_ms / 1000, begins, "ok"))

    def _falls_to_me(self, partition: TopicPartition) -> bool:
        """Of partitions that were added later each reader takes those that come to its turn."""
        number: int
        readers: int
        number, readers = self._spec["turn"]
        return partition.partition % readers == number

    async def _pump(self) -> None:
        leases, reader = self._leases, self._reader

        def room_of(partition: TopicPartition) -> int:
            return leases.room() if self._is_mine(partition) else 0

        while True:
            position, lease = await reader.next_slice(room_of)
            records = lease.records
            # Nothing is awaited from taking it to writing it: what is said of the lease later has to come later.
            number = leases.sent(lease)
            self._write_news()
            await self._say(slice_of(number, lease.partition, lease.end, records, position.topic_id))

    async def _say_news(self) -> None:
        while True:
            await self._leases.news.wait()
            self._write_news()
            await self._writer.drain()

    def _write_news(self) -> None:
        self._leases.news.clear()
        told, self._leases.told = self._leases.told, []
        for message in told:
            self._writer.write(encode(message))

    async def _say(self, message: FromChild) -> None:
        self._writer.write(encode(message))
        try:
            await self._writer.drain()
        except ConnectionError:
            if not isinstance(message, FailedMessage):
                raise

    async def _listen(self, reader: asyncio.StreamReader, tasks: anyio.abc.TaskGroup) -> None:
        """Do as the parent says; its end is as good as ``StopMessage``."""
        while True:
            try:
                size = length_of(await reader.readexactly(HEADER))
                message = decode_to_child(await reader.readexactly(size))
            except (asyncio.IncompleteReadError, ConnectionError):
                message = StopMessage()
            match message:
                case StopMessage():
                    tasks.cancel_scope.cancel()
                    return
                case DoneMessage():
                    self._leases.done(message)
                    self._reader.progressed()
                case LeftMessage():
                    self._leases.left(message)
                    self._reader.progressed()
                case CommitMessage():
                    tasks.start_soon(self._commit, message.number)
                case _:
                    pass

    async def _commit(self, number: int) -> None:
        error: bytes | None = None
        # Who has just been started has nothing of its own yet, but what the process before it had left to commit.
        await self._has_share.wait()
        try:
            await self._consumer.commit()
        except TailraceError as refused:
            error = pickled(refused)
        await self._say(CommittedMessage(number, error))


def _ahead(overrides: dict[TopicPartition, int], new: Mapping[TopicPartition, int | None]) -> dict[TopicPartition, int]:
    """Where to go on further than was committed: with what was done when the process before this one died."""
    ours = overrides.keys() & new.keys()
    found = {partition: overrides.pop(partition) for partition in ours}
    return {partition: offset for partition, offset in found.items() if offset > (new[partition] or 0)}


def main() -> None:
    """Be a reader; the socket's number is the one argument."""
    parent = Parent(int(sys.argv[1]))
    raise SystemExit(asyncio.run(_ReaderProcess(parent, parent.begin()).run()))


if __name__ == "__main__":
    main()
