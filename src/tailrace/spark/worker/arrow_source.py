"""Where an app in a Spark worker reads from: the slices of one task, each handed in when the last one was taken."""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Callable, Sequence

from tailrace.app.sources import HandlerGroup
from tailrace.core.delivery.positions import Position
from tailrace.core.delivery.progress import Lease
from tailrace.records import Record, TopicPartition

__all__ = ["ArrowSource"]

_WINDOW = 20_000
"""So many records may wait on the way: two of Spark's Arrow batches."""


class ArrowSource:
    """One group's reading end. What is done of a task is Spark's to say, and the driver's to commit."""

    def __init__(self) -> None:
        self._positions: dict[TopicPartition, Position] = {}
        self._slices: deque[tuple[Position, Sequence[Record]]] = deque()
        self._sink: HandlerGroup | None = None
        self._epochs = 0
        self.news = asyncio.Event()
        """Set when something was done, or handed in."""
        self._waiting = asyncio.Event()
        self._is_halted = False

    @property
    def transactions(self) -> None:
        """None: Spark's tasks are handled at least once."""
        return

    # ---- as a group wants it -----------------------------------------------------------------------------------

    async def start(self, sink: HandlerGroup) -> int:
        """Nothing is read by itself."""
        self._sink = sink
        return _WINDOW

    async def stop(self) -> None:
        """Nothing is left to do."""

    async def next_slice(self, room_of: Callable[[TopicPartition], int]) -> tuple[Position, Lease]:
        """The next records for which there is room."""
        while True:
            for place, (position, records) in enumerate(self._slices):
                if self._is_halted or not (room := room_of(position.partition)):
                    continue
                del self._slices[place]
                taken = records[:room]
                if room < len(records):
                    self._slices.insert(place, (position, records[room:]))
                self.news.set()
                return position, position.deliver(taken, taken[-1].offset + 1)
            self._waiting.clear()
            await self._waiting.wait()

    def progressed(self) -> None:
        """Look again, and tell who waits."""
        self._waiting.set()
        self.news.set()

    def halt(self) -> None:
        """Hand out nothing more."""
        self._is_halted = True
        self._slices.clear()

    def wall_clock(self) -> float:
        """That of this machine."""
        return time.time()

    # ---- as a task wants it ------------------------------------------------------------------------------------

    @property
    def is_empty(self) -> bool:
        """Whether all that was handed in is taken."""
        return not self._slices

    @property
    def positions(self) -> list[Position]:
        """The partitions of the task."""
        return list(self._positions.values())

    def put(self, partition: TopicPartition, records: Sequence[Record]) -> None:
        """Hand in the next records of a partition."""
        position = self._positions.get(partition)
        if position is None:
            self._epochs += 1
            position = self._positions[partition] = Position(partition, self._epochs)
            position.begin(records[0].offset)
        if any(one is position for one, _ in self._slices):
            # One slice of a partition at a time, so that its order is kept.
            place = max(n for n, (one, _) in enumerate(self._slices) if one is position)
            self._slices[place] = (position, [*self._slices[place][1], *records])
        else:
            self._slices.append((position, records))
        self._waiting.set()

    def end_task(self) -> None:
        """What comes next is of another task, and may be the same once more."""
        for position in self._positions.values():
            if self._sink is not None:
                self._sink.drop(position.partition)
            position.end_epoch()
        self._positions.clear()
        self._slices.clear()
