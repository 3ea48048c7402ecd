"""Where a partition begins of which nothing is committed, or whose log no longer has what was."""

from __future__ import annotations

from collections.abc import Container, Mapping

from penstock.config import OffsetReset
from penstock.consumer.times import start_by_policy
from penstock.core.starts import Start, Whence
from penstock.records import TopicPartition

__all__ = ["Policy"]

_EARLIEST = Start(Whence.EARLIEST)


class Policy:
    """What ``auto_offset_reset`` says, and what it does not mean: a partition that is added later is read whole.

    Args:
        reset: where to begin, by the option alone.
        whole: topics that it does not speak of: what a group sends to itself is read from the first record on.
    """

    def __init__(self, reset: Start, whole: Container[str] = frozenset()) -> None:
        self.reset, self._whole = reset, whole
        self._partitions: dict[str, int] = {}
        """How many partitions each topic had when it was subscribed to."""
        self._is_fixed = False

    @classmethod
    def of_option(cls, value: OffsetReset, whole: Container[str] = frozenset()) -> Policy:
        """By the option's value."""
        return cls(start_by_policy(value), whole)

    def saw(self, partitions: Mapping[str, int]) -> None:
        """At a subscription there are these topics, with so many partitions each."""
        self._is_fixed = True
        self._partitions = {**partitions, **self._partitions}

    def of(self, partition: TopicPartition) -> Start:
        """Where ``partition`` begins."""
        if not self.speaks_of(partition):
            return _EARLIEST
        is_added = self._is_fixed and partition.partition >= self._partitions.get(partition.topic, 0)
        return _EARLIEST if is_added and self.reset.whence is Whence.LATEST else self.reset

    def speaks_of(self, partition: TopicPartition) -> bool:
        """Whether the option is meant for ``partition``, too."""
        return partition.topic not in self._whole

    def again(self, partition: TopicPartition) -> Start:
        """Where ``partition`` goes on when its log no longer has the position."""
        return self.reset if self.speaks_of(partition) else _EARLIEST
