"""Where an app under test reads from: topics in memory, each partition assigned from the first moment on."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping, Sequence

from tailrace.app.topics.routes import Routes
from tailrace.app.transactions.interfaces import GroupView
from tailrace.consumer.delivery.progress import RecordSink
from tailrace.core.delivery.positions import Position, Positions
from tailrace.core.delivery.progress import Lease
from tailrace.core.group.events import Identity
from tailrace.core.offset_map import decode_metadata
from tailrace.observe.events import PartitionsAssigned
from tailrace.observe.hooks import Observer
from tailrace.records import OffsetAndMetadata, TopicPartition
from tailrace.testing.topic_log import TopicLog

__all__ = ["LogSource"]

_WINDOW = 2_000
"""So many records may wait on the way, as ``max_queued_records`` has it."""


class LogSource:
    """One group's reading end of a log; what is done counts as committed at once."""

    def __init__(self, log: TopicLog, routes: Routes, observer: Observer) -> None:
        self.group_id = routes.group_id
        self._log, self.routes, self._observer = log, routes, observer
        self.positions = Positions()
        self._sink: RecordSink | None = None
        self._news = asyncio.Event()
        self._watchers: list[Callable[[], None]] = []
        self._is_halted = self._is_waited_for = False
        self.offsets: dict[TopicPartition, OffsetAndMetadata] = {}
        """What transactions have committed."""
        log.watch(self._news.set)

    @property
    def transactions(self) -> None:
        """None: here, what is published is there at once."""
        return

    def watch(self, watcher: Callable[[], None]) -> None:
        """Have ``watcher`` called when something is done."""
        self._watchers.append(watcher)

    @property
    def said(self) -> Sequence[str]:
        """The topics and patterns that its handlers name."""
        return [*self.routes.topics, *self.routes.patterns]

    def reads(self, topic: str) -> bool:
        """Whether a record of ``topic`` comes to one of its handlers."""
        return self.routes.reads(topic)

    # ---- as a group wants it -----------------------------------------------------------------------------------

    async def start(self, sink: RecordSink) -> int:
        """Everything is assigned at once."""
        self._sink = sink
        self._positions_of(*self.routes.topics, *self.routes.own)
        self._observer.emit(PartitionsAssigned(self.group_id, self.positions.partitions, frozenset()))
        return _WINDOW

    async def stop(self) -> None:
        """Nothing is left to do: what is done was committed when it was."""

    async def next_slice(self, room_of: Callable[[TopicPartition], int]) -> tuple[Position, Lease]:
        """The next records for which there is room."""
        while True:
            for position in self._positions_of(*filter(self.reads, self._log.topics)):
                found = self._log.records(position.partition)[position.delivered or 0 :]
                if self._is_halted or not found or not (room := room_of(position.partition)):
                    continue
                taken = found[:room]
                end, known = taken[-1].offset + 1, position.progress and position.progress.known
                if known:
                    taken = [one for one in taken if not known.is_finished(one.offset)]
                if taken:
                    return position, position.deliver(taken, end)
                position.skip(end, -1)
            self._news.clear()
            self._is_waited_for = True
            self._tell()
            try:
                await self._news.wait()
            finally:
                self._is_waited_for = False

    def progressed(self) -> None:
        """Look again, and tell who waits."""
        self._news.set()
        self._tell()

    def halt(self) -> None:
        """Hand out nothing more."""
        self._is_halted = True
        if self._sink is not None:
            for position in self.positions:
                self._sink.halt(position.partition)

    def wall_clock(self) -> float:
        """The log's."""
        return self._log.wall_clock()

    # ---- as transactions want it -------------------------------------------------------------------------------

    def group_view(self) -> GroupView:
        """All partitions are ours."""
        return _SoleMember(self)

    def commit(self, offsets: Mapping[TopicPartition, OffsetAndMetadata]) -> None:
        """A transaction is committed."""
        self.offsets.update(offsets)

    def read_again(self, position: Position, at: OffsetAndMetadata) -> None:
        """Go back to a committed offset, without what is said beside it to be finished."""
        if self._sink is not None:
            self._sink.drop(position.partition)
        position.begin(at.offset, known=decode_metadata(at.metadata, at.offset).offset_map)
        position.note_committed(at.offset)
        self._news.set()

    # ---- for whoever looks -------------------------------------------------------------------------------------

    def committed(self, partition: TopicPartition) -> int:
        """The lowest offset that is not done."""
        position = self.positions.get(partition)
        return 0 if position is None or position.finished is None else position.finished

    @property
    def is_idle(self) -> bool:
        """Whether there is nothing that may be handed out now."""
        return self._is_waited_for and not self._news.is_set()

    def _tell(self) -> None:
        for watcher in self._watchers:
            watcher()

    def _positions_of(self, *topics: str) -> list[Position]:
        partitions = [partition for topic in dict.fromkeys(topics) for partition in self._log.partitions(topic)]
        for position in self.positions.add(partitions):
            position.begin(0)
            position.note_committed(0)
        return self.positions.of(partitions)


class _SoleMember:
    """The only member of a group."""

    identity = Identity("test", 1)

    def __init__(self, source: LogSource) -> None:
        self._source, self.group_id = source, source.group_id

    def delivered(self) -> Mapping[TopicPartition, int | None]:
        """The next offset to be handed out of each partition."""
        return {position.partition: position.delivered for position in self._source.positions}

    def begun(self) -> Sequence[Position]:
        """None: that all begin at the first record is known."""
        return ()

    def passed(self) -> Sequence[Position]:
        """None: here are no markers."""
        return ()

    def watch(self, told: Callable[[], None]) -> None:
        """They stand nowhere else but by ``read_again``."""

    def is_ours(self, position: Position) -> bool:
        """Whether it is one of these."""
        return self._source.positions.get(position.partition) is position

    async def committed(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, OffsetAndMetadata]:
        """What transactions have committed."""
        return {one: self._source.offsets[one] for one in partitions if one in self._source.offsets}

    def read_again(self, position: Position, at: OffsetAndMetadata) -> None:
        """Go back to what is committed."""
        self._source.read_again(position, at)
