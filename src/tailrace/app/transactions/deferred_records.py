"""Records that wait for a transaction of their own, and records of retry topics that wait until they are due."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import takewhile

from tailrace.app.failures.dead_letters import due_at
from tailrace.app.topics.retry_topics import RetryTopic
from tailrace.core.failures.delayed_records import wait_ms
from tailrace.core.transactions.window import DeferredOffsets
from tailrace.records import Record, TopicPartition

__all__ = ["DeferredRecords"]


class DeferredRecords:
    """Records of one group that must not join the open transaction.

    Args:
        retry_topics: retry topics of the group by name; their records are delivered when they are due.
        wall_clock: returns the seconds since the epoch, to compare with the due time in a record's headers.

    Attributes:
        deferred_offsets: offsets of the records that wait for a transaction of their own.
    """

    def __init__(self, retry_topics: Mapping[str, RetryTopic], wall_clock: Callable[[], float]) -> None:
        self._retry_topics, self._wall_clock = retry_topics, wall_clock
        self.deferred_offsets = DeferredOffsets()

    def may_hold_back(self, partition: TopicPartition) -> bool:
        """Return True if records of a partition may have to wait; ``first_of`` decides for each record."""
        return bool(self.deferred_offsets) or partition.topic in self._retry_topics

    def first_of(self, records: Sequence[Record], room: int) -> Sequence[Record]:
        """Return the first records of a partition that may be delivered now, at most ``room``; maybe none.

        A record that waits for a transaction of its own is delivered without other records.
        """
        partition = records[0].topic_partition
        if self.deferred_offsets.reaches(partition, records[0].offset):
            room = 1
        else:
            records = self.deferred_offsets.records_before(partition, records)
        taken = records[:room]
        if partition.topic not in self._retry_topics:
            return taken
        return list(takewhile(lambda one: not self._wait_s(one), taken))

    def next_due_at(
        self, now: float, delivered: Mapping[TopicPartition, int | None], waiting: Iterable[Record]
    ) -> float | None:
        """Return the event loop time at which the next waiting record is due; None if no record has a due time.

        Args:
            now: event loop time.
            delivered: next offset to deliver of each partition.
            waiting: first waiting record of each partition.
        """
        due = [self.deferred_offsets.next_due_at(now, delivered)] if self.deferred_offsets else []
        due += [now + wait_s for record in waiting if (wait_s := self._wait_s(record))]
        return min((one for one in due if one is not None), default=None)

    def _wait_s(self, record: Record) -> float:
        """Return the seconds until a record of a retry topic is due; 0 for a record of any other topic."""
        retry = self._retry_topics.get(record.topic)
        if retry is None:
            return 0.0
        due, now_ms = due_at(record), int(self._wall_clock() * 1000)
        return wait_ms(due, written_at_ms=record.timestamp, delay_ms=retry.delay_ms, now_ms=now_ms) / 1000
