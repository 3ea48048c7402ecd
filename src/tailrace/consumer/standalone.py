"""Assignment of all partitions of the subscribed topics to a consumer without a group."""

from __future__ import annotations

import re

from tailrace.consumer.delivery.reader import Reader
from tailrace.consumer.positions.start_positions import StartPositions
from tailrace.consumer.topic_patterns import TopicPredicate
from tailrace.core.delivery.positions import Positions
from tailrace.net.cluster import Cluster
from tailrace.records import TopicPartition

__all__ = ["StandaloneAssignment"]


class StandaloneAssignment:
    """Assigns all partitions of the subscribed topics, including partitions created later."""

    def __init__(  # noqa: PLR0913, PLR0917 - the parts of the consumer that an assignment changes
        self,
        start_positions: StartPositions,
        cluster: Cluster,
        positions: Positions,
        reader: Reader,
        topics: frozenset[str],
        pattern: re.Pattern[str] | TopicPredicate | None,
    ) -> None:
        self._start_positions, self._cluster = start_positions, cluster
        self._positions, self._reader = positions, reader
        self.topics, self._pattern = topics, pattern

    def resubscribe(self, topics: frozenset[str], pattern: re.Pattern[str] | TopicPredicate | None) -> None:
        """Change the subscription; the positions of topics that stay subscribed are kept."""
        self.topics, self._pattern = topics, pattern
        self.metadata_changed()
        unsubscribed = {one for one in self._positions.partitions if one.topic not in self.topics}
        self._reader.drop(unsubscribed)
        self._positions.remove(unsubscribed)
        self._start_positions.on_changed()

    def metadata_changed(self) -> None:
        """Assign partitions that are new in the cluster's metadata."""
        topology = self._cluster.topology
        if self._pattern is not None:
            self.topics = topology.matching(self._pattern)
        existing = (
            TopicPartition(name, partition)
            for name in sorted(self.topics & topology.topics.keys())
            for partition in sorted(topology.topics[name].partitions)
        )
        for position in self._positions.add(existing):
            start = self._start_positions.policy.start_of_subscribed(position.partition, topology)
            self._start_positions.set_start(position, start)
            position.is_fetchable = True
        self._start_positions.on_changed()
