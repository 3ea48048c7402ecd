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
    """Source of one handler group. It commits nothing: the driver commits a batch when Spark has finished the batch."""

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

    # ---- interface of the handler group ------------------------------------------------------------------------

    async def start(self, sink: HandlerGroup) -> int:
        """Keep the handler group and return the window; records come from ``put``."""
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
        """Wake up ``next_slice``, and the ``AppRunner`` that waits for ``changed``."""
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
        for index, (queued, earlier) in enumerate(self._slices):
            if queued is position:
                # A partition has at most one queued slice, so that its records stay in order.
                self._slices[index] = (position, [*earlier, *records])
                break
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
