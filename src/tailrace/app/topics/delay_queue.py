"""Records of retry topics that were fetched and are not due yet. Pure: no clock, IO or logging.

The writer of a record puts the due time into a header, and the reader compares it with the clock of its own host. A
record never waits longer than the delay of its topic, so a wrong clock cannot delay the record forever. The records of
a partition are delivered in order; all have the same delay, so normally the first record is due first.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from tailrace.core.progress import Lease
from tailrace.records import TopicPartition

__all__ = ["DelayedRecords", "delay_name", "retry_topic_index", "wait_ms"]

_UNITS = ((3_600_000, "h"), (60_000, "m"), (1_000, "s"), (1, "ms"))


def delay_name(delay_ms: int) -> str:
    """Return a delay as it appears in topic names, such as ``30s``, ``10m`` or ``1500ms``; unique for each delay."""
    size, unit = next((size, unit) for size, unit in _UNITS if delay_ms % size == 0)
    return f"{delay_ms // size}{unit}"


def wait_ms(due_at_ms: int | None, *, written_at_ms: int, delay_ms: int, now_ms: int) -> int:
    """Return how many milliseconds a record of a retry topic has to wait from now on, at most ``delay_ms``.

    ``due_at_ms`` is the due time in the record's header; None if the header is missing or invalid.
    """
    due = written_at_ms + delay_ms if due_at_ms is None else due_at_ms
    return min(max(due - now_ms, 0), delay_ms)


def retry_topic_index(delay_ms: int | None, topic_delays_ms: Sequence[int]) -> int | None:
    """Return the index of the retry topic that a record was read from; None for the original topic.

    If the handler no longer has a retry topic with the record's delay, return the index before that of the first topic
    with a longer delay, so that the record continues with that topic.

    Args:
        delay_ms: delay of the topic that the record was read from; None for the original topic.
        topic_delays_ms: delays of the handler's retry topics.
    """
    if delay_ms is None:
        return None
    if delay_ms in topic_delays_ms:
        return topic_delays_ms.index(delay_ms)
    longer = next((index for index, one in enumerate(topic_delays_ms) if one > delay_ms), len(topic_delays_ms))
    return longer - 1 if longer else None


class _DelayedLease(NamedTuple):
    lease: Lease
    due: deque[float]
    """Due time of each record."""


class DelayedRecords:
    """Fetched records of retry topics until they are due, at most one lease of each partition.

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
