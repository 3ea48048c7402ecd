"""Records of retry topics, handed on when they are due.

Rule of this file: of each partition one small slice is read and no more until its first record is due, so what waits
stays undecoded, or with the broker. One timer for all of them; nothing runs and nothing sleeps for a single record.
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

_SLICE = 32
"""So many records are read at once of a partition of a retry topic."""


class RetryTopicRecords:
    """Keeps records of retry topics until they are due.

    Args:
        topics: the group's retry topics.
        hand_on: given what is due, in order.
        room_of: how many records of a partition may be handed on now.
        on_empty: told when a partition may be read on.
        wall_clock: seconds since the epoch.
    """

    def __init__(
        self,
        topics: Mapping[str, RetryTopic],
        *,
        hand_on: Callable[[Lease], None],
        room_of: Callable[[TopicPartition], int],
        on_empty: Callable[[], None],
        wall_clock: Callable[[], float],
    ) -> None:
        self._topics, self._hand_on, self._room_of, self._on_empty = topics, hand_on, room_of, on_empty
        self._wall_clock, self._loop = wall_clock, asyncio.get_running_loop()
        self._shelf = DelayedRecords()
        self._news = AutoResetEvent()

    def __contains__(self, topic: object) -> bool:
        return topic in self._topics

    def __bool__(self) -> bool:
        return bool(self._shelf)

    def delay_of(self, topic: str) -> int | None:
        """The delay of a retry topic in milliseconds; None of any other topic."""
        found = self._topics.get(topic)
        return None if found is None else found.delay_ms

    def limit(self, partition: TopicPartition, room: int) -> int:
        """How many records of a partition may be read, of so many that there is room for."""
        if partition.topic not in self._topics:
            return room
        return 0 if partition in self._shelf else min(room, _SLICE)

    def hold(self, lease: Lease) -> None:
        """Keep these until they are due, and hand on what is."""
        delay_ms, now_ms, now = self._topics[lease.partition.topic].delay_ms, self._wall_clock() * 1000, self._now

        def due(record: Record) -> float:
            left_ms = wait_ms(due_at(record), written_at_ms=record.timestamp, delay_ms=delay_ms, now_ms=int(now_ms))
            return now + left_ms / 1000

        self._shelf.put(lease, map(due, lease.rest))
        self._news.set()

    def halt(self, partition: TopicPartition) -> None:
        """Hand on nothing more of a partition: its next owner waits for its records instead."""
        if (lease := self._shelf.drop(partition)) is not None:
            lease.abandon_left()

    def drop(self, partition: TopicPartition) -> None:
        """Forget a partition."""
        self._shelf.drop(partition)

    def look_again(self) -> None:
        """There may be room where there was none."""
        if self._shelf:
            self._news.set()

    async def run(self) -> None:
        """Hand on what becomes due, until cancelled."""
        while True:
            now = self._now
            is_empty = False
            for partition in self._shelf.due(now):
                if (lease := self._shelf.take(partition, now, self._room_of(partition))) is not None:
                    self._hand_on(lease)
                is_empty = is_empty or partition not in self._shelf
            if is_empty:
                self._on_empty()
            # What is due and has no room comes when there is: nobody waits for a time that is over.
            await self._news.wait(self._shelf.next_at(now))

    @property
    def _now(self) -> float:
        return self._loop.time()
