"""Records of retry topics that were fetched and are not due yet.

The writer of a record puts the due time into a header; this host's clock decides when that time has come. A record
never waits longer than its topic's delay, so that a wrong clock cannot hold it forever. Records of one partition leave
in order: all records of a topic have the same delay, so the first record is due first.
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
    """Return a delay as it appears in topic names, such as ``30s``, ``10m`` or ``1500ms``; unique for each delay."""
    size, unit = next((size, unit) for size, unit in _UNITS if delay_ms % size == 0)
    return f"{delay_ms // size}{unit}"


def wait_ms(due_at_ms: int | None, *, written_at_ms: int, delay_ms: int, now_ms: int) -> int:
    """Return how long a record of a retry topic has to wait from now on.

    Args:
        due_at_ms: due time in the record's header; None if it cannot be read.
        written_at_ms: the record's timestamp.
        delay_ms: delay of the topic.
        now_ms: current time of this host.
    """
    due = written_at_ms + delay_ms if due_at_ms is None else due_at_ms
    return min(max(due - now_ms, 0), delay_ms)


def hop_of(delay_ms: int | None, retry_topics: Sequence[int]) -> int | None:
    """Return the index of the retry topic that a record came from; None if its next retry topic is the first one.

    If the handler no longer has a retry topic with the delay ``delay_ms``, the record counts as from the topic before
    the first one with a longer delay.
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
    """Due time of each record."""


class DelayedRecords:
    """Records that are not due yet, at most one slice of each partition."""

    def __init__(self) -> None:
        self._held: dict[TopicPartition, _DelayedSlice] = {}

    def __contains__(self, partition: object) -> bool:
        return partition in self._held

    def __len__(self) -> int:
        return len(self._held)

    def put(self, lease: Lease, due: Iterable[float]) -> None:
        """Add a slice of a partition that holds no slice; ``due`` are the due times of the records."""
        assert lease.partition not in self._held, "a partition was read although it holds records that are not due"
        self._held[lease.partition] = _DelayedSlice(lease, deque(due))

    def next_at(self, now: float) -> float | None:
        """Return the earliest future due time among the first records of the partitions; None if there is none."""
        return min((head for one in self._held.values() if (head := one.due[0]) > now), default=None)

    def due(self, now: float) -> list[TopicPartition]:
        """Return the partitions whose first record is due."""
        return [partition for partition, one in self._held.items() if one.due[0] <= now]

    def take(self, partition: TopicPartition, now: float, room: int) -> Lease | None:
        """Return a lease of up to ``room`` due records of a partition, in order; None if no record is due."""
        lease, due = self._held[partition]
        count = 0
        while due and count < room and due[0] <= now:
            due.popleft()
            count += 1
        if not due:
            del self._held[partition]
        return lease.split(count) if count else None

    def drop(self, partition: TopicPartition) -> Lease | None:
        """Forget a partition and return the lease of its records."""
        held = self._held.pop(partition, None)
        return None if held is None else held.lease
