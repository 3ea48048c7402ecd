"""Where a partition begins of which nothing is committed."""

from __future__ import annotations

from collections.abc import Mapping

from penstock.config import OffsetReset
from penstock.consumer.times import start_by_policy
from penstock.core.starts import Start, Whence
from penstock.records import TopicPartition

__all__ = ["Policy"]

_EARLIEST = Start(Whence.EARLIEST)


class Policy:
    """What ``auto_offset_reset`` says, and what it does not mean: a partition that is added later is read whole.

    Attributes:
        reset: where to begin, by the option alone.
    """

    def __init__(self, reset: Start) -> None:
        self.reset = reset
        self._partitions: dict[str, int] = {}
        """How many partitions each topic had when it was subscribed to."""
        self._is_fixed = False

    @classmethod
    def of_option(cls, value: OffsetReset) -> Policy:
        """By the option's value."""
        return cls(start_by_policy(value))

    def saw(self, partitions: Mapping[str, int]) -> None:
        """At a subscription there are these topics, with so many partitions each."""
        self._is_fixed = True
        self._partitions = {**partitions, **self._partitions}

    def of(self, partition: TopicPartition) -> Start:
        """Where ``partition`` begins."""
        is_added = self._is_fixed and partition.partition >= self._partitions.get(partition.topic, 0)
        return _EARLIEST if is_added and self.reset.whence is Whence.LATEST else self.reset
