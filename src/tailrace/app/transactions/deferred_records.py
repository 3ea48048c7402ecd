"""Records that may not be in the open transaction: those that were set aside, and those of retry topics not due yet.

Rule of this file: it says what may go and when the rest may; who holds the records, and hands them out, is elsewhere.
"""

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
    """What has to wait of one group's records.

    Args:
        retry_topics: those whose records are not handed out before they are due.
        wall_clock: seconds since the epoch; when a record is due is written on it.

    Attributes:
        deferred_offsets: records that were set aside.
    """

    def __init__(self, retry_topics: Mapping[str, RetryTopic], wall_clock: Callable[[], float]) -> None:
        self._retry_topics, self._wall_clock = retry_topics, wall_clock
        self.deferred_offsets = DeferredOffsets()

    def may_hold_back(self, partition: TopicPartition) -> bool:
        """Whether records that come of a partition have to be looked at."""
        return bool(self.deferred_offsets) or partition.topic in self._retry_topics

    def first_of(self, records: Sequence[Record], room: int) -> Sequence[Record]:
        """Of one partition's next records those that may go now; of the one that was set aside, it alone."""
        partition = records[0].topic_partition
        if self.deferred_offsets.is_stopped_at(partition, records[0].offset):
            room = 1
        else:
            records = self.deferred_offsets.before(partition, records)
        taken = records[:room]
        if partition.topic not in self._retry_topics:
            return taken
        return list(takewhile(lambda one: not self._wait_s(one), taken))

    def next_due_at(
        self, now: float, delivered: Mapping[TopicPartition, int | None], waiting: Iterable[Record]
    ) -> float | None:
        """When something may go that may not now; what is due already goes when its turn is."""
        due = [self.deferred_offsets.next_due_at(now, delivered)] if self.deferred_offsets else []
        due += [now + wait_s for record in waiting if (wait_s := self._wait_s(record))]
        return min((one for one in due if one is not None), default=None)

    def _wait_s(self, record: Record) -> float:
        """In how long a record may be handled, if it is of a retry topic."""
        retry = self._retry_topics.get(record.topic)
        if retry is None:
            return 0.0
        due, now_ms = due_at(record), int(self._wall_clock() * 1000)
        return wait_ms(due, written_at_ms=record.timestamp, delay_ms=retry.delay_ms, now_ms=now_ms) / 1000
