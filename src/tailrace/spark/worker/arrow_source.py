"""Source of an app in a Spark worker, which delivers the records of one task."""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence

from tailrace.app.sources import HandlerGroup
from tailrace.core.delivery.positions import Position, UnreadableBatch
from tailrace.core.delivery.progress import Lease
from tailrace.records import Record, TopicPartition

__all__ = ["ArrowSource"]

_MAX_IN_FLIGHT = 20_000
"""Maximum number of delivered records that are not finished: two of Spark's Arrow batches."""


class ArrowSource:
    """Source that delivers the records of a task to one handler group.

    The source commits nothing, because the driver commits a batch when all its tasks have ended.
    """

    def __init__(self) -> None:
        self._positions: dict[TopicPartition, Position] = {}
        self._slices: deque[tuple[Position, Sequence[Record]]] = deque()
        """Queued records, at most one list for each partition."""
        self._handler_group: HandlerGroup | None = None
        self._epochs = 0
        """Number of assignment epochs so far; each partition of each task is one epoch."""
        self.changed = asyncio.Event()
        """Set when records were finished or delivered."""
        self._may_deliver = asyncio.Event()
        """Set when records were queued, or when the handler group may have room again."""
        self._is_halted = False

    @property
    def transactions(self) -> None:
        """None, because tasks of Spark do not run in transactions."""
        return

    # ---- interface of the handler group ------------------------------------------------------------------------

    async def start(self, sink: HandlerGroup) -> int:
        """Store the handler group, and return the maximum number of records in flight."""
        self._handler_group = sink
        return _MAX_IN_FLIGHT

    async def stop(self) -> None:
        """Do nothing: the source has no connections."""

    async def next_slice(self, room_of: Callable[[TopicPartition], int]) -> tuple[Position, Lease]:
        """Wait until records are queued of a partition with room, and deliver as many of them as ``room_of`` allows.

        Args:
            room_of: function that returns how many more records of a partition may be delivered; 0 for none.
        """
        while True:
            for index, (position, records) in enumerate(self._slices):
                if self._is_halted or not (room := room_of(position.partition)):
                    continue
                del self._slices[index]
                delivered = records[:room]
                if room < len(records):
                    self._slices.insert(index, (position, records[room:]))
                self.changed.set()
                return position, position.deliver(delivered, delivered[-1].offset + 1)
            self._may_deliver.clear()
            await self._may_deliver.wait()

    def progressed(self) -> None:
        """Wake ``next_slice``, and the ``AppRunner`` that waits for ``changed``."""
        self._may_deliver.set()
        self.changed.set()

    def halt(self) -> None:
        """Drop queued records and deliver no more."""
        self._is_halted = True
        self._slices.clear()

    def wall_clock(self) -> float:
        """Return the time of this machine in seconds since the epoch."""
        return time.time()

    async def wait_for_starts(self) -> None:
        """Do nothing, because Spark chooses the records."""

    @property
    def start_delays(self) -> str:
        """Empty, because Spark chooses the records."""
        return ""

    def statistics(self, started: Iterable[Record]) -> None:
        """Return None, because there is no consumer."""

    @property
    def unreadable_batches(self) -> Mapping[TopicPartition, UnreadableBatch]:
        """Always empty, because Spark reads the batches."""
        return {}

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
                # Only one list for each partition keeps its records in order.
                self._slices[index] = (position, [*earlier, *records])
                break
        else:
            self._slices.append((position, records))
        self._may_deliver.set()

    def end_task(self) -> None:
        """Forget all positions and queued records, because the next task may contain the same records."""
        for position in self._positions.values():
            if self._handler_group is not None:
                self._handler_group.drop(position.partition)
            position.end_epoch()
        self._positions.clear()
        self._slices.clear()
