"""Cluster metadata: brokers, topics, and partition leaders.

``ClusterMetadata`` is immutable; each answer gives a new object. An answer from a broker with outdated metadata never
sets a partition back to an older leader epoch (KIP-320).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Protocol
from uuid import UUID

from tailrace.error_codes import ErrorCode
from tailrace.protocol.message import NO_TOPIC_ID
from tailrace.protocol.metadata import BrokerMetadata, MetadataResponse, PartitionMetadata, TopicMetadata
from tailrace.records import TopicPartition

__all__ = ["ClusterMetadata", "Leadership", "NamePattern", "TopicInfo", "is_other_log"]


class NamePattern(Protocol):
    """Pattern of topic names, such as ``re.Pattern``."""

    def fullmatch(self, name: str, /) -> object:
        """Return a true value if the whole name matches."""


@dataclass(frozen=True, slots=True)
class Leadership:
    """Leader and replicas of one partition."""

    leader_id: int
    """-1 while the partition has no leader."""
    epoch: int
    replicas: tuple[int, ...] = ()
    offline: tuple[int, ...] = ()
    in_sync: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class TopicInfo:
    """Metadata of one topic."""

    name: str
    topic_id: UUID
    is_internal: bool
    partitions: Mapping[int, Leadership]


@dataclass(frozen=True, slots=True)
class ClusterMetadata:
    """Metadata of the cluster."""

    brokers: Mapping[int, BrokerMetadata] = field(default_factory=lambda: MappingProxyType({}))
    topics: Mapping[str, TopicInfo] = field(default_factory=lambda: MappingProxyType({}))
    errors: Mapping[str, int] = field(default_factory=lambda: MappingProxyType({}))
    """Error codes of requested topics, as returned by the broker."""
    cluster_id: str | None = None
    controller_id: int = -1
    hides_internal: bool = True
    """True if patterns do not match Kafka's internal topics."""

    def updated(self, answer: MetadataResponse) -> ClusterMetadata:
        """Return the metadata after ``answer``; topics that are not in ``answer`` are dropped."""
        topics, errors = {}, {}
        for topic in answer.topics:
            if topic.name is None:
                continue
            if topic.error_code:
                errors[topic.name] = topic.error_code
            before = self.topics.get(topic.name)
            if topic.partitions or not topic.error_code:
                topics[topic.name] = _merged(before, topic)
        return ClusterMetadata(
            MappingProxyType({broker.node_id: broker for broker in answer.brokers}),
            MappingProxyType(topics),
            MappingProxyType(errors),
            answer.cluster_id,
            answer.controller_id,
            self.hides_internal,
        )

    def leader(self, partition: TopicPartition) -> Leadership | None:
        """Return the leadership of a partition; None if the partition is unknown."""
        topic = self.topics.get(partition.topic)
        return topic.partitions.get(partition.partition) if topic is not None else None

    def partitions_of(self, topics: Iterable[str]) -> dict[str, int]:
        """Return the partition count of each of ``topics``; unknown topics are left out."""
        return {name: len(self.topics[name].partitions) for name in topics if name in self.topics}

    def racks_of(self, topics: Iterable[str]) -> dict[TopicPartition, frozenset[str]]:
        """Return the racks of the replicas of each partition of ``topics``; empty if no broker has a rack."""
        racks = {node_id: broker.rack for node_id, broker in self.brokers.items() if broker.rack}
        if not racks:
            return {}
        return {
            TopicPartition(name, partition): frozenset(racks[node] for node in leadership.replicas if node in racks)
            for name in topics
            if name in self.topics
            for partition, leadership in self.topics[name].partitions.items()
        }

    def matching(self, pattern: NamePattern) -> frozenset[str]:
        """Return the topics whose whole name ``pattern`` matches, without internal topics if ``hides_internal``."""
        seen = (t for t in self.topics.values() if not (t.is_internal and self.hides_internal))
        return frozenset(t.name for t in seen if pattern.fullmatch(t.name))

    def topic_id(self, topic: str) -> UUID:
        """Return the id of a topic; all zeros if the topic is unknown or the broker has no topic ids."""
        info = self.topics.get(topic)
        return info.topic_id if info is not None else NO_TOPIC_ID

    def with_leader(self, partition: TopicPartition, leader_id: int, epoch: int) -> ClusterMetadata:
        """Return the metadata with a newer leader of one partition (KIP-951); ``self`` if the leader is not newer."""
        topic, known = self.topics.get(partition.topic), self.leader(partition)
        if topic is None or known is None or epoch <= known.epoch or leader_id not in self.brokers:
            return self
        newer = Leadership(leader_id, epoch, known.replicas, known.offline, known.in_sync)
        changed = replace(topic, partitions=MappingProxyType({**topic.partitions, partition.partition: newer}))
        topics = MappingProxyType({**self.topics, topic.name: changed})
        return replace(self, topics=topics)


def is_other_log(fetched_topic_id: UUID | None, partition: TopicPartition, topology: ClusterMetadata) -> bool:
    """Return True if the partition's topic is known to have another id than ``fetched_topic_id``."""
    topic = topology.topics.get(partition.topic)
    # The comparison of two UUIDs is slow, and this function is called for each partition of each fetch.
    if topic is None or fetched_topic_id is None or fetched_topic_id is topic.topic_id:
        return False
    # Brokers before Kafka 2.8 have no topic ids.
    return fetched_topic_id not in {NO_TOPIC_ID, topic.topic_id}


def _merged(before: TopicInfo | None, topic: TopicMetadata) -> TopicInfo:
    assert topic.name is not None
    # A recreated topic's leader epochs start from zero again.
    same = before is not None and before.topic_id == topic.topic_id
    known = before.partitions if before is not None and same else {}
    partitions = {found.partition: _newer(known.get(found.partition), found) for found in topic.partitions}
    # The same object as before, so that ``is_other_log`` rarely compares ids.
    topic_id = before.topic_id if before is not None and same else topic.topic_id
    return TopicInfo(topic.name, topic_id, topic.is_internal, MappingProxyType(partitions))


def _newer(known: Leadership | None, found: PartitionMetadata) -> Leadership:
    if known is not None and 0 <= found.leader_epoch < known.epoch:
        return known
    leaderless = found.error_code == ErrorCode.LEADER_NOT_AVAILABLE
    leader_id = -1 if leaderless else found.leader_id
    return Leadership(leader_id, found.leader_epoch, found.replicas, found.offline_replicas, found.isr)
