"""Without a group: all partitions of the topics are this consumer's, and nobody else's business."""

from __future__ import annotations

import re
from collections.abc import Callable

from penstock.config import ConsumerConfig
from penstock.core.positions import Positions
from penstock.net.cluster import Cluster
from penstock.records import TopicPartition

__all__ = ["Solo"]


class Solo:
    """Follows the topics as they grow."""

    def __init__(  # noqa: PLR0913, PLR0917 - the rooms it stands between
        self,
        config: ConsumerConfig,
        cluster: Cluster,
        positions: Positions,
        topics: frozenset[str],
        pattern: re.Pattern[str] | None,
        on_taken: Callable[[], None],
    ) -> None:
        self._config, self._cluster, self._positions = config, cluster, positions
        self.topics, self._pattern, self._on_taken = topics, pattern, on_taken
        self._is_first = True

    def picture_changed(self) -> None:
        """Take what is there and was not before: from where the options say, or, if it was added later, all of it."""
        policy = self._config.offset_reset if self._is_first else "earliest"
        self._is_first = False
        topology = self._cluster.topology
        if self._pattern is not None:
            self.topics = topology.matching(self._pattern)
        there = (
            TopicPartition(name, partition)
            for name in sorted(self.topics & topology.topics.keys())
            for partition in sorted(topology.topics[name].partitions)
        )
        for position in self._positions.add(there):
            position.reset(policy, None)
            position.is_fetchable = True
        self._on_taken()
