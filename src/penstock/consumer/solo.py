"""Without a group: all partitions of the topics are this consumer's, and nobody else's business."""

from __future__ import annotations

import re
from collections.abc import Callable

from penstock.consumer.patterns import TopicChoice
from penstock.consumer.policy import Policy
from penstock.consumer.reader import Reader
from penstock.core.positions import Positions
from penstock.net.cluster import Cluster
from penstock.records import TopicPartition

__all__ = ["Solo"]


class Solo:
    """Follows the topics as they grow."""

    def __init__(  # noqa: PLR0913, PLR0917 - the rooms it stands between
        self,
        policy: Policy,
        cluster: Cluster,
        positions: Positions,
        reader: Reader,
        topics: frozenset[str],
        pattern: re.Pattern[str] | TopicChoice | None,
        on_taken: Callable[[], None],
    ) -> None:
        self._policy, self._cluster, self._positions, self._reader = policy, cluster, positions, reader
        self.topics, self._pattern, self._on_taken = topics, pattern, on_taken

    def resubscribe(self, topics: frozenset[str], pattern: re.Pattern[str] | TopicChoice | None) -> None:
        """Follow other topics; of those that stay nothing changes."""
        self.topics, self._pattern = topics, pattern
        self.picture_changed()
        gone = {one for one in self._positions.partitions if one.topic not in self.topics}
        self._reader.drop(gone)
        self._positions.remove(gone)
        self._on_taken()

    def picture_changed(self) -> None:
        """Take what is there and was not before."""
        topology = self._cluster.topology
        if self._pattern is not None:
            self.topics = topology.matching(self._pattern)
        there = (
            TopicPartition(name, partition)
            for name in sorted(self.topics & topology.topics.keys())
            for partition in sorted(topology.topics[name].partitions)
        )
        for position in self._positions.add(there):
            position.reset(self._policy.of(position.partition, topology), None)
            position.is_fetchable = True
        self._on_taken()
