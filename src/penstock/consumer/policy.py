"""Where a partition begins of which nothing is committed, or whose log no longer has what was."""

from __future__ import annotations

from collections.abc import Container, Mapping
from uuid import UUID

from penstock.config import OffsetReset
from penstock.consumer.times import start_by_policy
from penstock.core.fetch_plan import is_other_log
from penstock.core.starts import Start, Whence
from penstock.core.topology import TopicInfo, Topology
from penstock.records import TopicPartition

__all__ = ["Policy"]

_EARLIEST = Start(Whence.EARLIEST)


class Policy:
    """What ``auto_offset_reset`` says, and what it does not mean: what is added or made anew later is read whole.

    Args:
        reset: where to begin, by the option alone.
        whole: topics that it does not speak of: what a group sends to itself is read from the first record on.
    """

    def __init__(self, reset: Start, whole: Container[str] = frozenset()) -> None:
        self.reset, self._whole = reset, whole
        self._seen: dict[str, tuple[UUID, int]] = {}
        """Of each topic, its id and how many partitions it had when it was subscribed to."""
        self._is_fixed = False

    @classmethod
    def of_option(cls, value: OffsetReset, whole: Container[str] = frozenset()) -> Policy:
        """By the option's value."""
        return cls(start_by_policy(value), whole)

    def saw(self, topics: Mapping[str, TopicInfo]) -> None:
        """At a subscription there are these topics."""
        self._is_fixed = True
        self._seen = {name: (one.topic_id, len(one.partitions)) for name, one in topics.items()} | self._seen

    def of(self, partition: TopicPartition, topology: Topology) -> Start:
        """Where ``partition`` begins."""
        if not self.speaks_of(partition):
            return _EARLIEST
        topic_id, count = self._seen.get(partition.topic, (None, 0))
        is_other = is_other_log(topic_id, partition, topology)
        is_added = self._is_fixed and (is_other or partition.partition >= count)
        return self.of_added(partition) if is_added else self.reset

    def of_added(self, partition: TopicPartition) -> Start:
        """Where ``partition`` begins if it was not there when its topic was subscribed to."""
        return _EARLIEST if self.reset.whence is Whence.LATEST else self.again(partition)

    def speaks_of(self, partition: TopicPartition) -> bool:
        """Whether the option is meant for ``partition``, too."""
        return partition.topic not in self._whole

    def again(self, partition: TopicPartition) -> Start:
        """Where ``partition`` goes on when its log no longer has the position."""
        return self.reset if self.speaks_of(partition) else _EARLIEST
