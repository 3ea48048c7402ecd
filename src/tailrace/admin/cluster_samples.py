"""Samples of a cluster's topics and consumer groups, with the metric names and labels of kafka_exporter.

Pure: no clock, IO or logging.

https://github.com/danielqsj/kafka_exporter
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from tailrace.records import TopicPartition

__all__ = [
    "CLUSTER_METRICS",
    "ClusterSample",
    "ClusterSnapshot",
    "GroupSnapshot",
    "PartitionSnapshot",
    "cluster_samples",
]

CLUSTER_METRICS = {
    "kafka_brokers": "Number of brokers in the cluster",
    "kafka_broker_info": "1 for each broker, with its id and address",
    "kafka_topic_partitions": "Number of partitions of the topic",
    "kafka_topic_partition_current_offset": "End offset of the partition",
    "kafka_topic_partition_oldest_offset": "First offset of the partition",
    "kafka_topic_partition_leader": "Id of the broker that leads the partition",
    "kafka_topic_partition_replicas": "Number of replicas of the partition",
    "kafka_topic_partition_in_sync_replica": "Number of in-sync replicas of the partition",
    "kafka_topic_partition_leader_is_preferred": "1 if the leader is the preferred replica, otherwise 0",
    "kafka_topic_partition_under_replicated_partition": "1 if a replica is not in sync, otherwise 0",
    "kafka_consumergroup_members": "Number of live members of the group",
    "kafka_consumergroup_current_offset": "Committed offset of the group in the partition, -1 if there is none",
    "kafka_consumergroup_current_offset_sum": "Sum of the committed offsets of the group in the topic",
    "kafka_consumergroup_lag": "End offset minus committed offset, -1 without a committed offset",
    "kafka_consumergroup_lag_sum": "Sum of the known lags of the group in the topic",
    "tailrace_exporter_failures": "Number of failures of this collection, because of which some series are missing",
}
"""Descriptions of all metrics by name; all are gauges."""

NO_OFFSET = -1
"""Value of both the committed offset and the lag in a partition without a committed offset."""


@dataclass(frozen=True, slots=True)
class PartitionSnapshot:
    """State of a partition."""

    leader_id: int
    """-1 while the partition has no leader."""
    replicas: tuple[int, ...]
    in_sync: tuple[int, ...]
    begin: int | None = None
    """First offset of the log; None if unknown."""
    end: int | None = None
    """End offset of the log; None if unknown."""


@dataclass(frozen=True, slots=True)
class GroupSnapshot:
    """State of a group."""

    members: int | None = None
    """Number of live members; None if unknown."""
    committed: Mapping[TopicPartition, int] | None = None
    """Committed offsets by partition; None if unknown."""


@dataclass(frozen=True, slots=True)
class ClusterSnapshot:
    """State of a cluster."""

    brokers: Mapping[int, str]
    """Addresses by node id."""
    partitions: Mapping[TopicPartition, PartitionSnapshot]
    groups: Mapping[str, GroupSnapshot]
    failures: tuple[str, ...] = field(default=())
    """Reasons why values of the snapshot are unknown, without duplicates."""


class ClusterSample(NamedTuple):
    """Value of one metric with its labels."""

    metric: str
    labels: Mapping[str, str]
    value: float


def cluster_samples(snapshot: ClusterSnapshot) -> Iterator[ClusterSample]:
    """Yield the samples of a snapshot; an unknown value has no sample.

    If a group has a committed offset in a topic, it has samples for all partitions of the topic. In a partition without
    a committed offset, the samples of the committed offset and of the lag are -1, and the sums leave the partition out.
    Offsets in deleted topics have no samples.
    """
    yield ClusterSample("kafka_brokers", {}, len(snapshot.brokers))
    for node_id, address in snapshot.brokers.items():
        yield ClusterSample("kafka_broker_info", {"id": str(node_id), "address": address}, 1)
    topics: dict[str, dict[int, PartitionSnapshot]] = defaultdict(dict)
    for (topic, number), partition in sorted(snapshot.partitions.items()):
        topics[topic][number] = partition
    for topic, partitions in topics.items():
        yield ClusterSample("kafka_topic_partitions", {"topic": topic}, len(partitions))
        for number, partition in partitions.items():
            yield from _partition_samples({"topic": topic, "partition": str(number)}, partition)
    for group_id, group in sorted(snapshot.groups.items()):
        if group.members is not None:
            yield ClusterSample("kafka_consumergroup_members", {"consumergroup": group_id}, group.members)
        for topic in sorted({one.topic for one in group.committed or ()} & topics.keys()):
            yield from _group_samples(group_id, topic, group.committed or {}, topics[topic])
    yield ClusterSample("tailrace_exporter_failures", {}, len(snapshot.failures))


def _partition_samples(labels: Mapping[str, str], partition: PartitionSnapshot) -> Iterator[ClusterSample]:
    replicas, in_sync = partition.replicas, partition.in_sync
    if partition.end is not None:
        yield ClusterSample("kafka_topic_partition_current_offset", labels, partition.end)
    if partition.begin is not None:
        yield ClusterSample("kafka_topic_partition_oldest_offset", labels, partition.begin)
    if partition.leader_id >= 0:
        yield ClusterSample("kafka_topic_partition_leader", labels, partition.leader_id)
    yield ClusterSample("kafka_topic_partition_replicas", labels, len(replicas))
    yield ClusterSample("kafka_topic_partition_in_sync_replica", labels, len(in_sync))
    # The first replica of the list is the preferred leader.
    is_preferred = replicas[:1] == (partition.leader_id,)
    yield ClusterSample("kafka_topic_partition_leader_is_preferred", labels, is_preferred)
    yield ClusterSample("kafka_topic_partition_under_replicated_partition", labels, len(in_sync) < len(replicas))


def _group_samples(
    group_id: str, topic: str, committed: Mapping[TopicPartition, int], partitions: Mapping[int, PartitionSnapshot]
) -> Iterator[ClusterSample]:
    topic_labels = {"consumergroup": group_id, "topic": topic}
    offset_sum = lag_sum = 0
    for number, partition in partitions.items():
        labels = {**topic_labels, "partition": str(number)}
        offset = committed.get(TopicPartition(topic, number))
        if offset is None:
            yield ClusterSample("kafka_consumergroup_current_offset", labels, NO_OFFSET)
            yield ClusterSample("kafka_consumergroup_lag", labels, NO_OFFSET)
            continue
        offset_sum += offset
        yield ClusterSample("kafka_consumergroup_current_offset", labels, offset)
        if partition.end is not None:
            lag = max(0, partition.end - offset)
            lag_sum += lag
            yield ClusterSample("kafka_consumergroup_lag", labels, lag)
    yield ClusterSample("kafka_consumergroup_current_offset_sum", topic_labels, offset_sum)
    yield ClusterSample("kafka_consumergroup_lag_sum", topic_labels, lag_sum)
