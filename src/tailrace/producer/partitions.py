"""Partitions of the records to publish: given by the caller, or chosen by the partitioner."""

from __future__ import annotations

import asyncio
import copy
import random
from collections.abc import Mapping

from tailrace.core.cluster_metadata import Leadership
from tailrace.error_codes import ErrorCode
from tailrace.errors import BrokerConnectionError, BrokerError, PublishError, TailraceError, broker_error
from tailrace.net.cluster import Cluster
from tailrace.producer.partitioner import Partitioner
from tailrace.records import TopicPartition

__all__ = ["PartitionResolver"]

_TOPIC_GRACE_S = 5.0
"""Default of ``PartitionResolver.timeout_s``."""


class PartitionResolver:
    """Resolver of the partitions of one producer's records, which looks up topics that are not in the metadata.

    Args:
        cluster: source of metadata.
        timeout_s: maximum time of a look-up in seconds; five seconds if None. A look-up waits for a topic that does not
            exist yet, but not for a partition.
    """

    def __init__(self, cluster: Cluster, timeout_s: float | None = None) -> None:
        self._cluster, self._timeout_s = cluster, timeout_s
        self._partitioner = Partitioner(random.random)
        self._topics: dict[str, _Partitions] = {}
        self._lookups: dict[str, _Lookup] = {}

    def resolve_known(self, topic: str, key: bytes | None, partition: int | None) -> TopicPartition | None:
        """Return the partition of a record; None if ``resolve`` must be called, because metadata is missing."""
        topic_partitions, known = self._topics.get(topic), self._cluster.topology.topics.get(topic)
        if topic_partitions is None or known is None or not known.partitions:
            return None
        if partition is None:
            return topic_partitions[self._partitioner.choose(topic, key, known.partitions)]
        return topic_partitions[partition] if partition in known.partitions else None

    async def resolve(self, topic: str, key: bytes | None, partition: int | None) -> TopicPartition:
        """Return the partition of a record: ``partition``, or if it is None, the choice of the partitioner.

        Raises:
            PublishError: the topic or partition does not exist.
        """
        if (topic_partition := self.resolve_known(topic, key, partition)) is not None:
            return topic_partition
        if topic not in self._topics:
            self._topics[topic] = _Partitions(topic)
            self._cluster.watch(self, self._topics)
        # A partition that is not in the metadata may have been added since the last refresh.
        partitions = await self._look_up(topic, partition)
        if partition is not None and partition not in partitions:
            raise PublishError(f"{topic} has no partition {partition} - its partitions are 0 to {len(partitions) - 1}")
        chosen = self._partitioner.choose(topic, key, partitions) if partition is None else partition
        return TopicPartition(topic, chosen)

    def change_partition(self, topic: str | None = None) -> None:
        """Let the next record without a key get another partition, in ``topic`` or in all topics if None."""
        self._partitioner.change_partition(topic)

    async def _look_up(self, topic: str, partition: int | None) -> Mapping[int, Leadership]:
        """Look up the partitions of a topic and return them; concurrent calls share one look-up.

        Raises:
            PublishError: the topic was not found in time.
        """
        while (lookup := self._lookups.get(topic)) is not None:
            await lookup.has_ended.wait()
            if lookup.error is not None:
                raise copy.copy(lookup.error)
            known = self._cluster.topology.topics.get(topic)
            if known is not None and known.partitions and (partition is None or partition in known.partitions):
                return known.partitions
        lookup = self._lookups[topic] = _Lookup()
        try:
            return await self._cluster.retrying(
                lambda: self._fetch_partitions(topic),
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
            lookup.has_ended.set()

    async def _fetch_partitions(self, topic: str) -> Mapping[int, Leadership]:
        await self._cluster.refresh()
        topology = self._cluster.topology
        known = topology.topics.get(topic)
        if known is None or not known.partitions:
            code = topology.errors.get(topic, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
            raise broker_error(code, topic, permission="WRITE")
        return known.partitions


class _Partitions(dict[int, TopicPartition]):
    """Partitions of one topic by number; each ``TopicPartition`` is created at its first use."""

    def __init__(self, topic: str) -> None:
        super().__init__()
        self._topic = topic

    def __missing__(self, partition: int) -> TopicPartition:
        created = self[partition] = TopicPartition(self._topic, partition)
        return created


class _Lookup:
    """Look-up in progress of a topic.

    Attributes:
        has_ended: event that is set at the end of the look-up.
        error: error of the look-up; None if it succeeds.
    """

    def __init__(self) -> None:
        self.has_ended = asyncio.Event()
        self.error: TailraceError | None = None
