"""Source of an app in a Spark worker: slices of records of one task."""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence

from tailrace.app.sources import HandlerGroup
from tailrace.core.delivery.positions import Position
from tailrace.core.delivery.progress import Lease
from tailrace.records import Record, TopicPartition

__all__ = ["ArrowSource"]

_WINDOW = 20_000
"""Maximum number of records delivered and not finished: two of Spark's Arrow batches."""


class ArrowSource:
    """Source of one group that commits nothing: Spark decides when a batch is finished, and the driver commits."""

    def __init__(self) -> None:
        self._positions: dict[TopicPartition, Position] = {}
        self._slices: deque[tuple[Position, Sequence[Record]]] = deque()
        self._sink: HandlerGroup | None = None
        self._epochs = 0
        self.changed = asyncio.Event()
        """Set when records were finished or delivered."""
        self._may_deliver = asyncio.Event()
        self._is_halted = False

    @property
    def transactions(self) -> None:
        """None: Spark's tasks are handled at least once."""
        return

    # ---- interface of the group --------------------------------------------------------------------------------

    async def start(self, sink: HandlerGroup) -> int:
        """Keep the group and return the window; records come from ``put``."""
        self._sink = sink
        return _WINDOW

    async def stop(self) -> None:
        """Do nothing."""

    async def next_slice(self, room_of: Callable[[TopicPartition], int]) -> tuple[Position, Lease]:
        """Deliver the next records of a partition for which there is room."""
        while True:
            for index, (position, records) in enumerate(self._slices):
                if self._is_halted or not (room := room_of(position.partition)):
                    continue
                del self._slices[index]
                taken = records[:room]
                if room < len(records):
                    self._slices.insert(index, (position, records[room:]))
                self.changed.set()
                return position, position.deliver(taken, taken[-1].offset + 1)
            self._may_deliver.clear()
            await self._may_deliver.wait()

    def progressed(self) -> None:
        """Wake up ``next_slice`` and the waiting task."""
        self._may_deliver.set()
        self.changed.set()

    def halt(self) -> None:
        """Drop queued records and deliver no more."""
        self._is_halted = True
        self._slices.clear()

    def wall_clock(self) -> float:
        """Return the time of this machine in seconds since the epoch."""
        return time.time()

    def statistics(self, started: Iterable[Record]) -> None:
        """Return None, because there is no consumer."""

    # ---- interface of the task ---------------------------------------------------------------------------------

    @property
    def is_empty(self) -> bool:
        """True if all queued records are delivered."""
        return not self._slices

    @property
    def positions(self) -> list[Position]:
        """Positions of the partitions of the task."""
        return list(self._positions.values())

    def put(self, partition: TopicPartition, records: Sequence[Record]) -> None:
        """Queue the next records of a partition."""
        position = self._positions.get(partition)
        if position is None:
            self._epochs += 1
            position = self._positions[partition] = Position(partition, self._epochs)
            position.begin(records[0].offset)
        if any(one is position for one, _ in self._slices):
            # One slice per partition, so that its order is kept.
            index = max(n for n, (one, _) in enumerate(self._slices) if one is position)
            self._slices[index] = (position, [*self._slices[index][1], *records])
        else:
            self._slices.append((position, records))
        self._may_deliver.set()

    def end_task(self) -> None:
        """Reset all positions: the next task may have the same records again."""
        for position in self._positions.values():
            if self._sink is not None:
                self._sink.drop(position.partition)
            position.end_epoch()
        self._positions.clear()
        self._slices.clear()
