"""Records of retry topics: how long each has to wait, and those that are read and not due yet.

Rule of this file: a record waits until the wall clock of whoever wrote it said, read on the wall clock of whoever has
it; never longer than its topic's delay, so that no clock that is wrong can hold a record for ever. Records of one
partition leave in the order in which they stand there: all of a topic have the same delay, so the first is due first.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from tailrace.core.delivery.progress import Lease
from tailrace.records import TopicPartition

__all__ = ["DelayedRecords", "delay_name", "hop_of", "wait_ms"]

_UNITS = ((3_600_000, "h"), (60_000, "m"), (1_000, "s"), (1, "ms"))


def delay_name(delay_ms: int) -> str:
    """A delay as names of topics have it, such as ``30s``, ``10m`` or ``1500ms``; two delays never share one."""
    size, unit = next((size, unit) for size, unit in _UNITS if delay_ms % size == 0)
    return f"{delay_ms // size}{unit}"


def wait_ms(due_at_ms: int | None, *, written_at_ms: int, delay_ms: int, now_ms: int) -> int:
    """How long a record of a retry topic has to wait from now on.

    Args:
        due_at_ms: as whoever wrote it said; None when that cannot be read.
        written_at_ms: the record's timestamp.
        delay_ms: the topic's.
        now_ms: the wall clock here.
    """
    due = written_at_ms + delay_ms if due_at_ms is None else due_at_ms
    return min(max(due - now_ms, 0), delay_ms)


def hop_of(delay_ms: int | None, retry_topics: Sequence[int]) -> int | None:
    """Which of a handler's retry topics a record came by; None when it came by none.

    One that came by a delay that the handler has no more goes on with the first that is longer.
    """
    if delay_ms is None:
        return None
    if delay_ms in retry_topics:
        return retry_topics.index(delay_ms)
    longer = next((at for at, one in enumerate(retry_topics) if one > delay_ms), len(retry_topics))
    return longer - 1 if longer else None


class _DelayedSlice(NamedTuple):
    lease: Lease
    due: deque[float]
    """When each of its records may be handled."""


class DelayedRecords:
    """What was read of retry topics and is not handled yet: of each partition one slice at most."""

    def __init__(self) -> None:
        self._held: dict[TopicPartition, _DelayedSlice] = {}

    def __contains__(self, partition: object) -> bool:
        return partition in self._held

    def __len__(self) -> int:
        return len(self._held)

    def put(self, lease: Lease, due: Iterable[float]) -> None:
        """A slice of a partition of which nothing is here, and when each of its records is due."""
        assert lease.partition not in self._held, "a partition is read whose records are not due"
        self._held[lease.partition] = _DelayedSlice(lease, deque(due))

    def next_at(self, now: float) -> float | None:
        """When the next record becomes due of those that are first of their partition; None when no other will."""
        return min((head for one in self._held.values() if (head := one.due[0]) > now), default=None)

    def due(self, now: float) -> list[TopicPartition]:
        """The partitions whose first record is due."""
        return [partition for partition, one in self._held.items() if one.due[0] <= now]

    def take(self, partition: TopicPartition, now: float, room: int) -> Lease | None:
        """A lease of what is due of a partition, in order, as much as there is room for; None when nothing is."""
        lease, due = self._held[partition]
        count = 0
        while due and count < room and due[0] <= now:
            due.popleft()
            count += 1
        if not due:
            del self._held[partition]
        return lease.split(count) if count else None

    def drop(self, partition: TopicPartition) -> Lease | None:
        """Forget a partition; the lease of what was held of it."""
        held = self._held.pop(partition, None)
        return None if held is None else held.lease
