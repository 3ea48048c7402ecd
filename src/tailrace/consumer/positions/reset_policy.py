"""Where a partition begins of which nothing is committed, or whose log no longer has what was."""

from __future__ import annotations

from collections.abc import Container, Mapping
from uuid import UUID

from tailrace.config import OffsetReset
from tailrace.consumer.positions.start_points import start_by_policy
from tailrace.core.cluster_metadata import ClusterMetadata, TopicInfo
from tailrace.core.fetch.plan import is_other_log
from tailrace.core.positions.start_point import StartFrom, StartPoint
from tailrace.records import TopicPartition

__all__ = ["ResetPolicy"]

_EARLIEST = StartPoint(StartFrom.EARLIEST)


class ResetPolicy:
    """What ``auto_offset_reset`` says, and what it does not mean: what is added or made anew later is read whole.

    Args:
        reset: where to begin, by the option alone.
        whole: topics that it does not speak of: what a group sends to itself is read from the first record on.
    """

    def __init__(self, reset: StartPoint, whole: Container[str] = frozenset()) -> None:
        self.reset, self._whole = reset, whole
        self._seen: dict[str, tuple[UUID, int]] = {}
        """Of each topic, its id and how many partitions it had when it was subscribed to."""
        self._is_fixed = False

    @classmethod
    def of_option(cls, value: OffsetReset, whole: Container[str] = frozenset()) -> ResetPolicy:
        """By the option's value."""
        return cls(start_by_policy(value), whole)

    def saw(self, topics: Mapping[str, TopicInfo]) -> None:
        """At a subscription there are these topics."""
        self._is_fixed = True
        self._seen = {name: (one.topic_id, len(one.partitions)) for name, one in topics.items()} | self._seen

    def of(self, partition: TopicPartition, topology: ClusterMetadata) -> StartPoint:
        """Where ``partition`` begins."""
        if not self.speaks_of(partition):
            return _EARLIEST
        topic_id, count = self._seen.get(partition.topic, (None, 0))
        is_other = is_other_log(topic_id, partition, topology)
        is_added = self._is_fixed and (is_other or partition.partition >= count)
        return self.of_added(partition) if is_added else self.reset

    def of_added(self, partition: TopicPartition) -> StartPoint:
        """Where ``partition`` begins if it was not there when its topic was subscribed to."""
        return _EARLIEST if self.reset.whence is StartFrom.LATEST else self.again(partition)

    def speaks_of(self, partition: TopicPartition) -> bool:
        """Whether the option is meant for ``partition``, too."""
        return partition.topic not in self._whole

    def again(self, partition: TopicPartition) -> StartPoint:
        """Where ``partition`` goes on when its log no longer has the position."""
        return self.reset if self.speaks_of(partition) else _EARLIEST
