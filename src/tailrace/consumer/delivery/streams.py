"""One stream for each partition, each read by whom it likes and as fast as that one can.

Rule of this file: no task and no queue. A stream takes a slice of its own partition when it is asked for a record and
has none; of those that wait, one listens for news and wakes the others. What is in hand of a stream is one record,
which is done when the same stream is asked for the next. A member is stuck when nobody waits at any of its streams
while one of them has a record, and nobody comes for the next of any (``max_poll_interval_ms``).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Protocol, Self

from tailrace.config import ConsumerConfig
from tailrace.consumer.delivery.poll_timer import or_stop
from tailrace.consumer.delivery.reader import Reader
from tailrace.core.delivery.positions import Position, Positions
from tailrace.core.delivery.progress import InFlight, Lease
from tailrace.errors import ConsumerStateError
from tailrace.records import Record, TopicPartition

__all__ = ["PartitionStream", "RecordStream", "Streams"]


class RecordStream(Protocol):
    """The records of one partition, for as long as it is ours; the loop ends when it is given back."""

    @property
    def partition(self) -> TopicPartition:
        """Which one."""

    def __aiter__(self) -> Self: ...

    async def __anext__(self) -> Record: ...

    def ack(self, record: Record) -> bool:
        """Say that the record in hand is done without asking for the next one; False when it is not in hand."""


class PartitionStream:
    """The records of one partition, for as long as it is ours; see ``RecordStream``."""

    def __init__(self, streams: Streams, position: Position, size: int) -> None:
        self._partition = position.partition
        self._streams, self._position, self._size = streams, position, size
        self._lease: Lease | None = None
        self._taken = 0
        """Records of leases before the present one."""
        self._is_waiting = False

    @property
    def partition(self) -> TopicPartition:
        """Which one."""
        return self._partition

    def __repr__(self) -> str:
        return f"<PartitionStream {self.partition}>"

    def __aiter__(self) -> PartitionStream:
        return self

    async def __anext__(self) -> Record:
        if (record := self._take()) is not None:
            return record
        if self._is_waiting:
            raise ConsumerStateError(f"two tasks read the stream of {self.partition} at once - let one read it")
        self._is_waiting = True
        try:
            return await or_stop(self._next_record, self._streams.config, self._streams.is_over)
        finally:
            self._is_waiting = False

    def ack(self, record: Record) -> bool:
        """``record``, which is in hand, is done; False when it is not in hand any more."""
        if self._lease is None or not self._lease.holds(record):
            return False
        self._lease.finish_taken()
        self._streams.progressed()
        return True

    async def _next_record(self) -> Record:
        if self._lease is not None:
            self._lease.finish_taken()
        self._streams.come()
        await asyncio.sleep(0)  # many streams: each new slice gives the others a turn
        while True:
            if not self._streams.is_ours(self._position):
                self._streams.raise_failure()
                raise StopAsyncIteration
            if not self._left:
                self._taken = self.taken
                self._lease = self._streams.take(self.partition, self._size)
            if (record := self._take()) is not None:
                return record
            await self._streams.news()

    def _take(self) -> Record | None:
        """The next record of the lease; None when there is none, or the partition is paused."""
        if self._lease is None or self._position.is_held_back:
            return None
        return next(self._lease.left, None)

    @property
    def _left(self) -> int:
        return 0 if self._lease is None else self._lease.count

    # ---- for the reader ----------------------------------------------------------------------------------------

    @property
    def taken(self) -> int:
        """The number of records that its reader has come for."""
        return self._taken + (0 if self._lease is None else self._lease.taken)

    @property
    def is_waiting(self) -> bool:
        """Whether somebody waits for a record."""
        return self._is_waiting

    @property
    def is_owed(self) -> bool:
        """Whether somebody has a record in hand, or one to come for."""
        if self._lease is None:
            return False
        return self._lease.lowest_in_flight is not None or (self._left > 0 and not self._position.is_held_back)

    def halt(self) -> None:
        """Hand out nothing more; what was not handed out is left to the next owner."""
        if self._lease is not None:
            self._lease.abandon_left()

    def drop(self) -> None:
        """The partition is read from somewhere else, or by somebody else."""
        self._taken = self.taken
        self._lease = None


class Streams:
    """``async for partition, stream in consumer.streams()``: a stream whenever a partition becomes ours.

    It is the reader's sink, and its user is watched there (``consumer.delivery.progress.PolledSink``).

    Args:
        config: gives the options as they are now.
    """

    def __init__(self, positions: Positions, reader: Reader, config: Callable[[], ConsumerConfig]) -> None:
        self._positions, self._reader, self._config = positions, reader, config
        self._streams: dict[TopicPartition, PartitionStream] = {}
        self._known: set[int] = set()
        """Of each assignment that has a stream, its number."""
        self._is_listening = False
        self._round = asyncio.Event()

    def __aiter__(self) -> Streams:
        return self

    async def __anext__(self) -> tuple[TopicPartition, PartitionStream]:
        while True:
            if self._reader.is_over():
                raise StopAsyncIteration
            for position in self._positions:
                if position.assignment not in self._known:
                    return position.partition, self._begin(position)
            await self.news()

    def _begin(self, position: Position) -> PartitionStream:
        self._known = {one.assignment for one in self._positions} & self._known | {position.assignment}
        size = max(1, min(500, self.config.max_queued_records // max(1, len(self._positions))))
        stream = self._streams[position.partition] = PartitionStream(self, position, size)
        return stream

    # ---- for the streams ---------------------------------------------------------------------------------------

    @property
    def config(self) -> ConsumerConfig:
        """The options as they are now."""
        return self._config()

    def is_over(self) -> bool:
        """Whether nothing comes any more, since the consumer was stopped."""
        return self._reader.is_over()

    def take(self, partition: TopicPartition, size: int) -> Lease | None:
        """A lease of some records of one partition, if there are any."""
        found = self._reader.take_slice(lambda one: size if one == partition else 0, InFlight.LAST)
        return None if found is None else found[1]

    def is_ours(self, position: Position) -> bool:
        """Whether an assignment is not over."""
        return self._positions.get(position.partition) is position and not self._reader.is_over()

    def progressed(self) -> None:
        """Something is done: whoever waits to give a partition back wants to know."""
        self._reader.kept.finished_some()

    def come(self) -> None:
        """Somebody comes for the next record, and the one before is done."""
        self._reader.kept.come()
        self.progressed()

    def raise_failure(self) -> None:
        """Say why a partition went, if there is something to be said.

        Raises:
            TailraceError: whatever has to be told.
        """
        if not self._reader.is_over():
            self._reader.raise_failure()

    async def news(self) -> None:
        """Wait until something may have changed; one of those who wait listens for all."""
        if self._is_listening:
            await self._round.wait()
            return
        self._is_listening = True
        try:
            await self._reader.wait_for_news()
        finally:
            self._is_listening = False
            self._round.set()
            self._round = asyncio.Event()

    # ---- for the reader ----------------------------------------------------------------------------------------

    @property
    def progress(self) -> object:
        """A value that differs whenever a stream was asked for the next record, and not because a partition went."""
        return sum(stream.taken for stream in self._streams.values())

    def is_owed(self, *, waits: bool) -> bool:
        """Whether there is a record for somebody and nobody waits; ``waits``: there is one in the buffer."""
        streams = self._streams.values()
        return not any(one.is_waiting for one in streams) and (waits or any(one.is_owed for one in streams))

    def halt(self, partition: TopicPartition) -> None:
        """Hand out nothing more of a partition."""
        if (stream := self._streams.get(partition)) is not None:
            stream.halt()

    def drop(self, partition: TopicPartition) -> None:
        """Forget a partition."""
        if (stream := self._streams.get(partition)) is not None:
            stream.drop()

    def acknowledge(self, record: Record) -> bool:
        """``record`` is done; False when it is not in hand."""
        stream = self._streams.get(record.topic_partition)
        return stream is not None and stream.ack(record)
