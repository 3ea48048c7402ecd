"""Partitions of records to publish, chosen by key or in turn. Each topic is looked up once."""

from __future__ import annotations

import asyncio
import copy
import random
from collections.abc import Mapping

from tailrace.core.cluster_metadata import Leadership
from tailrace.core.producer.partitioner import Partitioner
from tailrace.error_codes import ErrorCode
from tailrace.errors import BrokerConnectionError, BrokerError, PublishError, TailraceError, broker_error
from tailrace.net.cluster import Cluster
from tailrace.records import TopicPartition

__all__ = ["PartitionResolver"]

_TOPIC_GRACE_S = 5.0
"""Time that an unknown topic may take to appear, unless the resolver has a timeout of its own."""


class PartitionResolver:
    """Chooses the partitions of one producer's records.

    Args:
        cluster: source of metadata.
        timeout_s: time that an unknown topic may take to appear; five seconds if None.
    """

    def __init__(self, cluster: Cluster, timeout_s: float | None = None) -> None:
        self._cluster, self._timeout_s = cluster, timeout_s
        self._partitioner = Partitioner(random.random)
        self._topics: dict[str, _Partitions] = {}
        self._lookups: dict[str, _Lookup] = {}

    def known_place_of(self, topic: str, key: bytes | None, partition: int | None) -> TopicPartition | None:
        """Return the partition of a record; None if metadata has to be fetched first."""
        named, known = self._topics.get(topic), self._cluster.topology.topics.get(topic)
        if named is None or known is None or not known.partitions:
            return None
        if partition is None:
            return named[self._partitioner.choose(topic, key, known.partitions)]
        return named[partition] if partition in known.partitions else None

    async def place_of(self, topic: str, key: bytes | None, partition: int | None) -> TopicPartition:
        """Return the partition of a record: ``partition``, or if it is None, a partition chosen as Kafka's clients do.

        Raises:
            PublishError: the topic or partition does not exist.
        """
        if (place := self.known_place_of(topic, key, partition)) is not None:
            return place
        if topic not in self._topics:
            self._topics[topic] = _Partitions(topic)
            self._cluster.watch(self, self._topics)
        # A partition unknown here may have been added since the last refresh.
        partitions = await self._found(topic, partition)
        if partition is not None and partition not in partitions:
            raise PublishError(f"{topic} has no partition {partition}; it has {len(partitions)}")
        chosen = self._partitioner.choose(topic, key, partitions) if partition is None else partition
        return TopicPartition(topic, chosen)

    def move_on(self, topic: str | None = None) -> None:
        """Choose another partition for records without a key from now on; in all topics if ``topic`` is None."""
        self._partitioner.move_on(topic)

    async def _found(self, topic: str, partition: int | None) -> Mapping[int, Leadership]:
        """Look a topic up, once for all concurrent calls that wait for the topic."""
        while (lookup := self._lookups.get(topic)) is not None:
            await lookup.is_over.wait()
            if lookup.error is not None:
                raise copy.copy(lookup.error)
            known = self._cluster.topology.topics.get(topic)
            if known is not None and known.partitions and (partition is None or partition in known.partitions):
                return known.partitions
        lookup = self._lookups[topic] = _Lookup()
        try:
            return await self._cluster.retrying(
                lambda: self._look_for(topic),
                timeout_s=_TOPIC_GRACE_S if self._timeout_s is None else self._timeout_s,
                what=f"finding topic {topic!r}",
            )
        except (BrokerError, BrokerConnectionError) as error:
            self._topics.pop(topic, None)
            self._cluster.watch(self, self._topics)
            lookup.error = PublishError(str(error))
            raise lookup.error from error
        finally:
            del self._lookups[topic]
            lookup.is_over.set()

    async def _look_for(self, topic: str) -> Mapping[int, Leadership]:
        await self._cluster.refresh()
        topology = self._cluster.topology
        known = topology.topics.get(topic)
        if known is None or not known.partitions:
            raise broker_error(topology.errors.get(topic, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION), topic)
        return known.partitions


class _Partitions(dict[int, TopicPartition]):
    """Partitions of one topic by number; each ``TopicPartition`` is created once."""

    def __init__(self, topic: str) -> None:
        super().__init__()
        self._topic = topic

    def __missing__(self, partition: int) -> TopicPartition:
        made = self[partition] = TopicPartition(self._topic, partition)
        return made


class _Lookup:
    """One look-up of a topic, and the error if it has failed."""

    def __init__(self) -> None:
        self.is_over = asyncio.Event()
        self.error: TailraceError | None = None
