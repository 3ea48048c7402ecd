"""Where records go: to which partition of their topic, once it is known that there is one.

Rule of this file: it asks for topics and chooses partitions; of transactions it knows nothing.
"""

from __future__ import annotations

import random
from collections.abc import Mapping

from tailrace.core.cluster_metadata import Leadership
from tailrace.core.producer.partitioner import Partitioner
from tailrace.error_codes import ErrorCode
from tailrace.errors import BrokerConnectionError, BrokerError, PublishError, broker_error
from tailrace.net.cluster import Cluster
from tailrace.records import TopicPartition

__all__ = ["PartitionResolver"]

_TOPIC_GRACE_S = 5.0
"""How long a topic that nobody knows may take to appear; it may have been made just now."""


class PartitionResolver:
    """Those of one producer's records, in topics that it keeps in view.

    Args:
        cluster: knows topics.
    """

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._partitioner = Partitioner(random.random)
        self._topics: set[str] = set()

    def knows(self, topic: str) -> bool:
        """Whether a topic is in view already."""
        return topic in self._topics

    async def place_of(self, topic: str, key: bytes | None, partition: int | None) -> TopicPartition:
        """Where a record goes; without ``partition`` the key decides, as with Kafka's own clients.

        Raises:
            PublishError: the topic or partition does not exist.
        """
        partitions = await self._partitions_of(topic)
        if partition is not None and partition not in partitions:
            # It may have been added since the picture was taken.
            partitions = await self._found(topic)
        if partition is None:
            partition = self._partitioner.choose(topic, key, partitions)
        elif partition not in partitions:
            raise PublishError(f"{topic} has no partition {partition}; it has {len(partitions)}")
        return TopicPartition(topic, partition)

    def move_on(self, topic: str | None = None) -> None:
        """A batch is full, or all of them are: records without a key go elsewhere from now on."""
        self._partitioner.move_on(topic)

    def close(self) -> None:
        """Have nothing in view any more."""
        self._cluster.unwatch(self)

    async def _partitions_of(self, topic: str) -> Mapping[int, Leadership]:
        if topic not in self._topics:
            self._topics.add(topic)
            self._cluster.watch(self, self._topics)
        known = self._cluster.topology.topics.get(topic)
        if known is not None and known.partitions:
            return known.partitions
        return await self._found(topic)

    async def _found(self, topic: str) -> Mapping[int, Leadership]:
        try:
            return await self._cluster.retrying(
                lambda: self._look_for(topic), timeout_s=_TOPIC_GRACE_S, what=f"finding topic {topic!r}"
            )
        except (BrokerError, BrokerConnectionError) as error:
            self._topics.discard(topic)
            self._cluster.watch(self, self._topics)
            raise PublishError(str(error)) from error

    async def _look_for(self, topic: str) -> Mapping[int, Leadership]:
        await self._cluster.refresh()
        topology = self._cluster.topology
        known = topology.topics.get(topic)
        if known is None or not known.partitions:
            raise broker_error(topology.errors.get(topic, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION), topic)
        return known.partitions
