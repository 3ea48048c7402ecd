"""Records that wait for a transaction of their own, and records of retry topics that wait until they are due."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import takewhile

from tailrace.app.failures.dead_letters import due_at
from tailrace.app.topics.delay_queue import wait_ms
from tailrace.app.topics.names import RetryTopic
from tailrace.app.transactions.window import DeferredOffsets
from tailrace.records import Record, TopicPartition

__all__ = ["DeferredRecords"]


class DeferredRecords:
    """Records of one group that must not join the open transaction.

    The due time of a record in a retry topic is set when the record is first read, on the clock of the event loop. If
    the wall clock is set back later, the record therefore does not wait longer than the delay of its topic.

    Args:
        retry_topics: retry topics of the group by name; their records are delivered when they are due.
        wall_clock: returns the seconds since the epoch, to compare with the due time in a record's headers.

    Attributes:
        deferred_offsets: offsets of the records that wait for a transaction of their own.
    """

    def __init__(self, retry_topics: Mapping[str, RetryTopic], wall_clock: Callable[[], float]) -> None:
        self._retry_topics, self._wall_clock = retry_topics, wall_clock
        self._due: dict[TopicPartition, dict[int, float]] = {}
        """Due times by offset of the uncommitted records that were read from retry topics."""
        self.deferred_offsets = DeferredOffsets()

    def note_read(self, records: Sequence[Record], now: float) -> None:
        """Set the due times of records that the consumer has returned; keep those of records that are read again.

        Args:
            records: records of one partition.
            now: event loop time.
        """
        partition = records[0].topic_partition
        if (retry := self._retry_topics.get(partition.topic)) is None:
            return
        due, now_ms = self._due.setdefault(partition, {}), int(self._wall_clock() * 1000)
        for record in records:
            if record.offset not in due:
                due[record.offset] = now + _wait_s(record, retry, now_ms)

    def forget(self, partition: TopicPartition) -> None:
        """Forget a partition that was revoked, lost, sought or reset."""
        self.deferred_offsets.remove(partition)
        self._due.pop(partition, None)

    def forget_committed(self, offsets: Mapping[TopicPartition, int]) -> None:
        """Forget the due times of records below these committed offsets."""
        for partition in offsets.keys() & self._due.keys():
            due, committed = self._due[partition], offsets[partition]
            self._due[partition] = {offset: time for offset, time in due.items() if offset >= committed}

    def may_hold_back(self, partition: TopicPartition) -> bool:
        """Return True if records of a partition may have to wait; ``first_of`` decides for each record."""
        return bool(self.deferred_offsets) or partition.topic in self._retry_topics

    def first_of(self, records: Sequence[Record], room: int, now: float) -> Sequence[Record]:
        """Return the first records of a partition that may be delivered now, at most ``room``; maybe none.

        A record that waits for a transaction of its own is delivered without other records.
        """
        partition = records[0].topic_partition
        if self.deferred_offsets.reaches(partition, records[0].offset):
            room = 1
        else:
            records = self.deferred_offsets.records_before(partition, records)
        taken = records[:room]
        if (due := self._due.get(partition)) is None:
            return taken
        return list(takewhile(lambda one: due.get(one.offset, now) <= now, taken))

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
        due += [self._due.get(record.topic_partition, {}).get(record.offset) for record in waiting]
        return min((one for one in due if one is not None and one > now), default=None)


def _wait_s(record: Record, retry: RetryTopic, now_ms: int) -> float:
    """Return the seconds until a record of a retry topic is due, at most the delay of the topic."""
    return wait_ms(due_at(record), written_at_ms=record.timestamp, delay_ms=retry.delay_ms, now_ms=now_ms) / 1000
