"""Records of retry topics, and delayed messages, which wait in memory until they are due.

The writer of a record puts the due time into a header, and the reader compares it with the clock of its own host. A
record never waits longer than the delay of its topic, so a wrong clock cannot delay the record forever. The records of
a partition are delivered in order; normally all have the same delay, so the first record is due first.

At most 32 records of a partition wait at a time. More records of the partition are read only after all of these were
delivered, so that most waiting records stay undecoded or on the broker. All partitions share one timer.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from typing import NamedTuple

from tailrace.app.failures.dead_letters import due_at
from tailrace.awaitables import AutoResetEvent
from tailrace.core.progress import Lease
from tailrace.records import Record, TopicPartition

__all__ = ["DelayedDelivery", "DelayedRecords", "wait_ms"]

# ---- fetched records that are not due yet, by the clock of the caller ------------------------------------------------


def wait_ms(due_at_ms: int | None, *, written_at_ms: int, delay_ms: int, now_ms: int) -> int:
    """Return how many milliseconds a record has to wait from now on, at most one more than ``delay_ms``.

    The due time is rounded up and ``now_ms`` is rounded down, so that no record is early.

    Args:
        due_at_ms: due time in the record's header; None if the header is missing or invalid.
        written_at_ms: timestamp of the record.
        delay_ms: delay of the record's topic.
        now_ms: current time.
    """
    due = written_at_ms + delay_ms if due_at_ms is None else due_at_ms
    return min(max(due - now_ms, 0), delay_ms + 1)


class _DelayedLease(NamedTuple):
    lease: Lease
    due: deque[float]
    """Due time of each record."""


class DelayedRecords:
    """Fetched records until they are due, at most one lease of each partition.

    All times are of one clock.
    """

    def __init__(self) -> None:
        self._held: dict[TopicPartition, _DelayedLease] = {}

    def __contains__(self, partition: object) -> bool:
        return partition in self._held

    def __len__(self) -> int:
        return len(self._held)

    def put(self, lease: Lease, due: Iterable[float]) -> None:
        """Add a lease of a partition that has none here; ``due`` are the due times of its records, in order."""
        assert lease.partition not in self._held, "a partition was read although its earlier records are not due yet"
        self._held[lease.partition] = _DelayedLease(lease, deque(due))

    def next_at(self, now: float) -> float | None:
        """Return the earliest due time after ``now`` of any partition's first record; None if there is none."""
        return min((head for one in self._held.values() if (head := one.due[0]) > now), default=None)

    def due_partitions(self, now: float) -> list[TopicPartition]:
        """Return the partitions whose first record is due."""
        return [partition for partition, one in self._held.items() if one.due[0] <= now]

    def take(self, partition: TopicPartition, now: float, room: int) -> Lease | None:
        """Remove up to ``room`` due records of a partition; return their lease, or None if there are none."""
        lease, due = self._held[partition]
        count = 0
        while due and count < room and due[0] <= now:
            due.popleft()
            count += 1
        if not due:
            del self._held[partition]
        if not count:
            return None
        rest = lease.rest
        return lease.split([rest[:count]], rest[count:])[0]

    def drop(self, partition: TopicPartition) -> Lease | None:
        """Remove all records of a partition; return their lease, or None if there are none."""
        held = self._held.pop(partition, None)
        return None if held is None else held.lease


# ---- delivery of records when they are due ---------------------------------------------------------------------------

_MAX_WAITING = 32
"""Maximum number of waiting records of a partition."""


class DelayedDelivery:
    """Delivers records of retry topics, and delayed messages, when they are due.

    ``bool(self)`` is True while records wait.

    Args:
        delays_ms: delays in milliseconds of the topics whose records wait, by name.
        deliver: called with a lease of records that are due; the records of a partition are delivered in order.
        room_of: returns how many records of a partition ``deliver`` accepts now.
        on_empty: called when all waiting records of a partition were delivered, so that more may be read.
        wall_clock: returns the time in seconds since the epoch.
    """

    def __init__(
        self,
        delays_ms: Mapping[str, int],
        *,
        deliver: Callable[[Lease], None],
        room_of: Callable[[TopicPartition], int],
        on_empty: Callable[[], None],
        wall_clock: Callable[[], float],
    ) -> None:
        self._delays_ms, self._deliver, self._room_of, self._on_empty = delays_ms, deliver, room_of, on_empty
        self._wall_clock, self._loop = wall_clock, asyncio.get_running_loop()
        self._delayed = DelayedRecords()
        self._wakeup = AutoResetEvent()

    def __bool__(self) -> bool:
        return bool(self._delayed)

    def delay_of(self, topic: str) -> int | None:
        """Return the delay in milliseconds of a topic whose records wait; None for any other topic."""
        return self._delays_ms.get(topic)

    def limit(self, partition: TopicPartition, room: int) -> int:
        """Return how many records of a partition may be read now, at most ``room``; 0 while records of it wait."""
        return 0 if partition in self._delayed else min(room, _MAX_WAITING)

    def hold(self, lease: Lease) -> None:
        """Add a lease, whose records wait until they are due; no record of its partition may be waiting already."""
        delay_ms, now_ms, now = self._delays_ms[lease.partition.topic], self._wall_clock() * 1000, self._now

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
