"""Where an app under test reads from: topics in memory, each partition assigned from the first moment on."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

from penstock.app.routes import Routes
from penstock.consumer.hands import Taker
from penstock.core.positions import Position, Positions
from penstock.observe.events import PartitionsAssigned
from penstock.observe.hooks import Observer
from penstock.records import Record, TopicPartition
from penstock.testing.log import Log

__all__ = ["LogSource"]

_WINDOW = 2_000
"""So many records may wait on the way, as ``max_queued_records`` has it."""


class LogSource:
    """One group's reading end of a log; what is done counts as committed at once."""

    def __init__(self, log: Log, routes: Routes, observer: Observer) -> None:
        self.group_id = routes.group_id
        self._log, self._routes, self._observer = log, routes, observer
        self._positions = Positions()
        self._taker: Taker | None = None
        self._news = asyncio.Event()
        self._watchers: list[Callable[[], None]] = []
        self._is_halted = False
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
        return [*self._routes.topics, *self._routes.patterns]

    def reads(self, topic: str) -> bool:
        """Whether a record of ``topic`` comes to one of its handlers."""
        return self._routes.reads(topic)

    # ---- as a group wants it -----------------------------------------------------------------------------------

    async def start(self, taker: Taker) -> int:
        """Everything is assigned at once."""
        self._taker = taker
        self._positions_of(*self._routes.topics, *self._routes.own)
        self._observer.tell(PartitionsAssigned(self.group_id, self._positions.partitions, frozenset()))
        return _WINDOW

    async def stop(self) -> None:
        """Nothing is left to do: what is done was committed when it was."""

    async def next_slice(self, room_of: Callable[[TopicPartition], int]) -> tuple[Position, Sequence[Record]]:
        """The next records for which there is room."""
        while True:
            for position in self._positions_of(*filter(self.reads, self._log.topics)):
                found = self._log.records(position.partition)[position.delivered or 0 :]
                if self._is_halted or not found or not (room := room_of(position.partition)):
                    continue
                taken = found[:room]
                position.delivered = taken[-1].offset + 1
                return position, taken
            self._news.clear()
            await self._news.wait()

    def progressed(self) -> None:
        """Look again, and tell who waits."""
        self._news.set()
        for watcher in self._watchers:
            watcher()

    def halt(self) -> None:
        """Hand out nothing more."""
        self._is_halted = True
        if self._taker is not None:
            for position in self._positions:
                if (left := self._taker.halt(position.partition)) is not None:
                    position.delivered = left

    # ---- for whoever looks -------------------------------------------------------------------------------------

    def committed(self, partition: TopicPartition) -> int:
        """The lowest offset that is not done."""
        (position,) = self._positions.of([partition]) or self._positions.add([partition])
        lowest = None if self._taker is None else self._taker.done_of(position)
        return (position.delivered or 0) if lowest is None else lowest

    def has_news(self, room_of: Callable[[TopicPartition], int]) -> bool:
        """Whether something is left that may be handed out now, or that is only not due yet."""
        return any(
            (position.delivered or 0) < len(self._log.records(position.partition))
            and (position.partition.topic in self._routes or room_of(position.partition) > 0)
            for position in self._positions_of(*filter(self.reads, self._log.topics))
        )

    def _positions_of(self, *topics: str) -> list[Position]:
        partitions = [partition for topic in dict.fromkeys(topics) for partition in self._log.partitions(topic)]
        for position in self._positions.add(partitions):
            position.begin(0)
        return self._positions.of(partitions)
