"""Records of retry topics, which wait in memory until they are due.

At most 32 records of a partition wait at a time. More records of the partition are read only after all of these were
delivered, so that most waiting records stay undecoded or on the broker. All partitions share one timer.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping

from tailrace.app.failures.dead_letters import due_at
from tailrace.app.topics.delay_queue import DelayedRecords, wait_ms
from tailrace.app.topics.names import RetryTopic
from tailrace.awaitables import AutoResetEvent
from tailrace.core.progress import Lease
from tailrace.records import Record, TopicPartition

__all__ = ["RetryTopicRecords"]

_MAX_WAITING = 32
"""Maximum number of waiting records of a partition."""


class RetryTopicRecords:
    """Delivers records of retry topics when they are due.

    ``bool(self)`` is True while records wait.

    Args:
        topics: retry topics of the group by name.
        deliver: called with a lease of records that are due; the records of a partition are delivered in order.
        room_of: returns how many records of a partition ``deliver`` accepts now.
        on_empty: called when all waiting records of a partition were delivered, so that more may be read.
        wall_clock: returns the time in seconds since the epoch.
    """

    def __init__(
        self,
        topics: Mapping[str, RetryTopic],
        *,
        deliver: Callable[[Lease], None],
        room_of: Callable[[TopicPartition], int],
        on_empty: Callable[[], None],
        wall_clock: Callable[[], float],
    ) -> None:
        self._topics, self._deliver, self._room_of, self._on_empty = topics, deliver, room_of, on_empty
        self._wall_clock, self._loop = wall_clock, asyncio.get_running_loop()
        self._delayed = DelayedRecords()
        self._wakeup = AutoResetEvent()

    def __bool__(self) -> bool:
        return bool(self._delayed)

    def delay_of(self, topic: str) -> int | None:
        """Return the delay of a retry topic in milliseconds; None for any other topic."""
        found = self._topics.get(topic)
        return None if found is None else found.delay_ms

    def limit(self, partition: TopicPartition, room: int) -> int:
        """Return how many records of a partition may be read now, at most ``room``; 0 while records of it wait."""
        return 0 if partition in self._delayed else min(room, _MAX_WAITING)

    def hold(self, lease: Lease) -> None:
        """Add a lease, whose records wait until they are due; no record of its partition may be waiting already."""
        delay_ms, now_ms, now = self._topics[lease.partition.topic].delay_ms, self._wall_clock() * 1000, self._now

        def due(record: Record) -> float:
            """Return the event loop time at which a record is due."""
            left_ms = wait_ms(due_at(record), written_at_ms=record.timestamp, delay_ms=delay_ms, now_ms=int(now_ms))
            return now + left_ms / 1000

        self._delayed.put(lease, map(due, lease.rest))
        self._wakeup.set()

    def halt(self, partition: TopicPartition) -> None:
        """Remove the waiting records of a partition that is about to be revoked, and leave them to the next owner."""
        if (lease := self._delayed.drop(partition)) is not None:
            lease.abandon()

    def drop(self, partition: TopicPartition) -> None:
        """Remove the waiting records of a partition that was revoked, sought or reset."""
        self._delayed.drop(partition)

    def room_changed(self) -> None:
        """Make ``run`` call ``room_of`` again, because ``deliver`` may accept more records."""
        if self._delayed:
            self._wakeup.set()

    async def run(self) -> None:
        """Deliver records as they become due, until canceled."""
        while True:
            now = self._now
            is_empty = False
            for partition in self._delayed.due_partitions(now):
                if (lease := self._delayed.take(partition, now, self._room_of(partition))) is not None:
                    self._deliver(lease)
                is_empty = is_empty or partition not in self._delayed
            if is_empty:
                self._on_empty()
            # If deliver() accepts no more records, records that are due wait for room_changed(), not for the timer.
            await self._wakeup.wait(self._delayed.next_at(now))

    @property
    def _now(self) -> float:
        return self._loop.time()
