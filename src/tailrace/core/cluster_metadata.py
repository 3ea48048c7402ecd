"""Cluster metadata: brokers, topics and their names, and partition leaders. Pure: no clock, IO or logging.

``ClusterMetadata`` is immutable; each Metadata response leads to a new object. A response from a broker with outdated
metadata never sets a partition back to an older leader epoch (KIP-320).
"""

from __future__ import annotations

import functools
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import NamedTuple, Protocol
from uuid import UUID

from tailrace.error_codes import ErrorCode
from tailrace.protocol.message import NO_TOPIC_ID
from tailrace.protocol.metadata import BrokerMetadata, MetadataResponse, PartitionMetadata, TopicMetadata
from tailrace.records import TopicPartition

__all__ = [
    "ILLEGAL_IN_TOPIC_NAME",
    "ClusterMetadata",
    "ExpectedBroker",
    "Leadership",
    "NamePattern",
    "TopicInfo",
    "is_other_log",
    "topic_name_fault",
]

# ---- Kafka's rule for topic names (``org.apache.kafka.common.internals.Topic``) --------------------------------------

ILLEGAL_IN_TOPIC_NAME = re.compile(r"[^a-zA-Z0-9._-]")
_MAX_LENGTH = 249


@functools.lru_cache(1024)
def topic_name_fault(name: object) -> str:
    """Return the rule that ``name`` breaks, as part of an error message; empty if the name is legal."""
    if not isinstance(name, str):
        return f"a topic name must be a string, not {type(name).__name__}"
    if illegal := ILLEGAL_IN_TOPIC_NAME.search(name):
        return f"a topic name may contain only a-z, A-Z, 0-9, '.', '_' and '-', not {illegal[0]!r}"
    if not name or name in {".", ".."} or len(name) > _MAX_LENGTH:
        return f"a topic name must have 1 to {_MAX_LENGTH} characters and must not be '.' or '..'"
    return ""


# ---- brokers, topics, and partition leaders --------------------------------------------------------------------------


class ExpectedBroker(NamedTuple):
    """Broker that a connection must reach."""

    cluster_id: str
    node_id: int
    """Node id; negative for an address of ``bootstrap_servers``, which any broker of the cluster may have."""

    def mismatch(self, cluster_id: str | None, brokers: Mapping[int, tuple[str, int]], address: tuple[str, int]) -> str:
        """Return the broker that has answered if it is another one; empty if it may be the expected one.

        The answer does not contain the node id of its sender. Another node answers if the cluster has another node, and
        not the expected one, at the address.

        Args:
            cluster_id: id of the cluster in the answer; None or empty if it has none.
            brokers: host and port of each node in the answer.
            address: host and port of the connection.
        """
        if cluster_id and cluster_id != self.cluster_id:
            return f"a broker of cluster {cluster_id}"
        at_address = sorted(node_id for node_id, one in brokers.items() if one == address)
        if self.node_id >= 0 and at_address and self.node_id not in at_address:
            return f"broker {at_address[0]}"
        return ""


class NamePattern(Protocol):
    """Pattern of topic names, such as ``re.Pattern``."""

    def fullmatch(self, name: str, /) -> object:
        """Return a true value if the whole name matches."""


@dataclass(frozen=True, slots=True)
class Leadership:
    """Leader and replicas of one partition, as node ids."""

    leader_id: int
    """-1 while the partition has no leader."""
    epoch: int
    """Leader epoch; -1 if the broker reports none."""
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
    """Error codes that the broker returned, by topic; topics without an error are left out."""
    cluster_id: str | None = None
    controller_id: int = -1
    hides_internal: bool = True
    """True if patterns do not match Kafka's internal topics."""

    def updated(self, answer: MetadataResponse) -> ClusterMetadata:
        """Return the metadata in ``answer``; partitions for which this object has a newer leader epoch are kept."""
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
            answer.cluster_id or self.cluster_id,
            answer.controller_id,
            self.hides_internal,
        )

    def leader(self, partition: TopicPartition) -> Leadership | None:
        """Return the leadership of a partition; None if the partition is unknown."""
        topic = self.topics.get(partition.topic)
        return topic.partitions.get(partition.partition) if topic is not None else None

    def partition_counts(self, topics: Iterable[str]) -> dict[str, int]:
        """Return the number of partitions of each known topic in ``topics``."""
        return {name: len(self.topics[name].partitions) for name in topics if name in self.topics}

    def racks_of(self, topics: Iterable[str]) -> dict[TopicPartition, frozenset[str]]:
        """Return, by partition of ``topics``, the racks of its replicas; an empty dict if no broker has a rack."""
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
        """Return the topics whose whole name matches ``pattern``, without internal topics if ``hides_internal``."""
        visible = (t for t in self.topics.values() if not (t.is_internal and self.hides_internal))
        return frozenset(t.name for t in visible if pattern.fullmatch(t.name))

    def topic_id(self, topic: str) -> UUID:
        """Return the id of a topic; all zeros if the topic is unknown or the broker has no topic ids."""
        info = self.topics.get(topic)
        return info.topic_id if info is not None else NO_TOPIC_ID

    def with_leader(self, partition: TopicPartition, leader_id: int, epoch: int) -> ClusterMetadata:
        """Return the metadata with the new leader of one partition that a broker's response has named (KIP-951).

        Return ``self`` if ``epoch`` is not newer than the known epoch, or the partition or the leader is unknown.
        """
        topic, known = self.topics.get(partition.topic), self.leader(partition)
        if topic is None or known is None or epoch <= known.epoch or leader_id not in self.brokers:
            return self
        newer = Leadership(leader_id, epoch, known.replicas, known.offline, known.in_sync)
        changed = replace(topic, partitions=MappingProxyType({**topic.partitions, partition.partition: newer}))
        topics = MappingProxyType({**self.topics, topic.name: changed})
        return replace(self, topics=topics)


def is_other_log(fetched_topic_id: UUID | None, partition: TopicPartition, topology: ClusterMetadata) -> bool:
    """Return True if the topic was recreated: its id differs from ``fetched_topic_id``, and both ids are known."""
    topic = topology.topics.get(partition.topic)
    # Comparing identity first is faster than comparing UUIDs, and this function is called for each partition of each
    # fetch.
    if topic is None or fetched_topic_id is None or fetched_topic_id is topic.topic_id:
        return False
    # The id is NO_TOPIC_ID if the broker is older than Kafka 2.8.
    return fetched_topic_id not in {NO_TOPIC_ID, topic.topic_id}


def _merged(before: TopicInfo | None, topic: TopicMetadata) -> TopicInfo:
    assert topic.name is not None
    # The leader epochs of a recreated topic start from zero again.
    same = before is not None and before.topic_id == topic.topic_id
    known = before.partitions if before is not None and same else {}
    partitions = {found.partition: _newer(known.get(found.partition), found) for found in topic.partitions}
    # Keep the known UUID object, so that ``is_other_log`` rarely has to compare two equal UUIDs.
    topic_id = before.topic_id if before is not None and same else topic.topic_id
    return TopicInfo(topic.name, topic_id, topic.is_internal, MappingProxyType(partitions))


def _newer(known: Leadership | None, found: PartitionMetadata) -> Leadership:
    if known is not None and 0 <= found.leader_epoch < known.epoch:
        return known
    leaderless = found.error_code == ErrorCode.LEADER_NOT_AVAILABLE
    leader_id = -1 if leaderless else found.leader_id
    return Leadership(leader_id, found.leader_epoch, found.replicas, found.offline_replicas, found.isr)
