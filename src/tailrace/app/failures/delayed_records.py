"""Records of retry topics, delivered to their executor when they are due.

One small slice of each partition is held at a time. The next slice is read only after all records of the previous one
were delivered, so that most waiting records stay undecoded or on the broker. All partitions share one timer; no record
has its own task or timer.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping

from tailrace.app.failures.dead_letters import due_at
from tailrace.app.topics.retry_topics import RetryTopic
from tailrace.auto_reset_event import AutoResetEvent
from tailrace.core.delivery.progress import Lease
from tailrace.core.failures.delayed_records import DelayedRecords, wait_ms
from tailrace.records import Record, TopicPartition

__all__ = ["RetryTopicRecords"]

_MAX_SLICE_RECORDS = 32
"""Maximum number of records of a partition that are held."""


class RetryTopicRecords:
    """Records of retry topics that are held until they are due.

    An object is true while it holds records; ``topic in self`` is True for the retry topics of the group.

    Args:
        topics: retry topics of the group.
        deliver: receives the records that are due, in order.
        room_of: returns how many records of a partition ``deliver`` accepts now.
        on_empty: called when more records of a partition may be read.
        wall_clock: returns seconds since the epoch.
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

    def __contains__(self, topic: object) -> bool:
        return topic in self._topics

    def __bool__(self) -> bool:
        return bool(self._delayed)

    def delay_of(self, topic: str) -> int | None:
        """Return the delay of a retry topic in milliseconds; None for any other topic."""
        found = self._topics.get(topic)
        return None if found is None else found.delay_ms

    def limit(self, partition: TopicPartition, room: int) -> int:
        """Return how many records of a partition may be read now, at most ``room``."""
        if partition.topic not in self._topics:
            return room
        return 0 if partition in self._delayed else min(room, _MAX_SLICE_RECORDS)

    def hold(self, lease: Lease) -> None:
        """Hold the records of a lease until they are due; the caller has checked ``limit``."""
        delay_ms, now_ms, now = self._topics[lease.partition.topic].delay_ms, self._wall_clock() * 1000, self._now

        def due(record: Record) -> float:
            left_ms = wait_ms(due_at(record), written_at_ms=record.timestamp, delay_ms=delay_ms, now_ms=int(now_ms))
            return now + left_ms / 1000

        self._delayed.put(lease, map(due, lease.rest))
        self._wakeup.set()

    def halt(self, partition: TopicPartition) -> None:
        """Deliver no more records of a partition, and leave its undelivered records to the next owner."""
        if (lease := self._delayed.drop(partition)) is not None:
            lease.abandon_left()

    def drop(self, partition: TopicPartition) -> None:
        """Forget a partition and its undelivered records, because the partition has another owner now."""
        self._delayed.drop(partition)

    def room_changed(self) -> None:
        """Make ``run`` deliver records that are due, because the executors may have room again."""
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
            # Records that are due but have no room wait for room_changed(), not for the timer.
            await self._wakeup.wait(self._delayed.next_at(now))

    @property
    def _now(self) -> float:
        return self._loop.time()
