"""Brokers, topics, coordinators and controllers: Metadata, FindCoordinator, DescribeCluster and DescribeQuorum."""

from __future__ import annotations

from uuid import UUID

from tailrace.protocol.encoding.fields import NEVER, OneElement, by_topic, field
from tailrace.protocol.encoding.primitives import int8, int16, int32, int64
from tailrace.protocol.message import NO_TOPIC_ID, ApiMessage, Request

__all__ = [
    "METADATA_LOG",
    "OPERATIONS_NOT_REQUESTED",
    "BrokerMetadata",
    "DescribeClusterRequest",
    "DescribeClusterResponse",
    "DescribeQuorumRequest",
    "DescribeQuorumResponse",
    "DescribedBroker",
    "DescribedQuorum",
    "FindCoordinatorRequest",
    "FindCoordinatorResponse",
    "MetadataRequest",
    "MetadataResponse",
    "MetadataTopic",
    "PartitionMetadata",
    "QuorumPartition",
    "QuorumReplica",
    "TopicMetadata",
]

OPERATIONS_NOT_REQUESTED = -(1 << 31)
"""Value in place of authorized operations that were not requested."""


class BrokerMetadata(ApiMessage):
    node_id: int32
    host: str
    port: int32
    rack: str | None = None


class PartitionMetadata(ApiMessage):
    error_code: int16
    partition: int32 = field("partition_index")
    leader_id: int32
    leader_epoch: int32 = field(since=7, default=-1)
    replicas: tuple[int32, ...] = field("replica_nodes", default=())
    isr: tuple[int32, ...] = field("isr_nodes", default=())
    offline_replicas: tuple[int32, ...] = field(since=5, default=())


class TopicMetadata(ApiMessage):
    error_code: int16
    name: str | None = field(nullable_from=12)
    topic_id: UUID = field(since=10, default=NO_TOPIC_ID)
    is_internal: bool = False
    partitions: tuple[PartitionMetadata, ...] = ()
    authorized_operations: int32 = field(
        "topic_authorized_operations", since=8, ignorable=True, default=OPERATIONS_NOT_REQUESTED
    )


class MetadataResponse(ApiMessage):
    throttle_time_ms: int32 = field(default=0, kw_only=True)
    brokers: tuple[BrokerMetadata, ...]
    cluster_id: str | None = field(default=None, kw_only=True)
    controller_id: int32 = field(default=-1, kw_only=True)
    topics: tuple[TopicMetadata, ...]
    authorized_operations: int32 = field(
        "cluster_authorized_operations",
        since=8,
        until=10,
        ignorable=True,
        default=OPERATIONS_NOT_REQUESTED,
        kw_only=True,
    )
    error_code: int16 = field(since=13, default=0, kw_only=True)


class MetadataTopic(ApiMessage):
    topic_id: UUID = field(since=10, default=NO_TOPIC_ID, kw_only=True)
    name: str | None = field(nullable_from=10)
    """Name; None if the topic is identified only by its id, which requires version 12."""


# Before version 4, brokers always create missing topics, because the request has no allow_auto_topic_creation.
class MetadataRequest(Request[MetadataResponse], key=3, versions=(4, 13), flexible_from=9):
    topics: tuple[MetadataTopic, ...] | None
    """Requested topics; None for all topics, empty for no topics."""
    allow_auto_topic_creation: bool = False
    include_cluster_authorized_operations: bool = field(since=8, until=10, default=False)
    include_topic_authorized_operations: bool = field(since=8, default=False)


_COORDINATORS = OneElement("coordinators", since=4)


class FindCoordinatorResponse(ApiMessage):
    throttle_time_ms: int32 = field(since=1, default=0, kw_only=True)
    key: str | None = field(since=4, nullable_from=NEVER, inside=_COORDINATORS, default=None, kw_only=True)
    """Group or transactional id; None before version 4, whose responses do not contain the key."""
    error_code: int16 = field(inside=_COORDINATORS, after=(4, "port"), default=0, kw_only=True)
    error_message: str | None = field(
        since=1, inside=_COORDINATORS, after=(4, "error_code"), default=None, kw_only=True
    )
    node_id: int32 = field(inside=_COORDINATORS)
    host: str = field(inside=_COORDINATORS)
    port: int32 = field(inside=_COORDINATORS)


class FindCoordinatorRequest(Request[FindCoordinatorResponse], key=10, versions=(0, 6), flexible_from=3):
    key: str = field(inside=OneElement("coordinator_keys", since=4, bare=True), after=(4, "key_type"))
    key_type: int8 = field(since=1, default=0)
    """0 for a group, 1 for a transactional id."""


# ---- cluster and controllers -------------------------------------------------------------------------------------


class DescribedBroker(ApiMessage):
    broker_id: int32
    host: str
    port: int32
    rack: str | None = None
    is_fenced: bool = field(since=2, default=False)
    """True for a registered broker that is down or starting; MetadataResponse does not list fenced brokers."""


class DescribeClusterResponse(ApiMessage):
    throttle_time_ms: int32 = field(default=0, kw_only=True)
    error_code: int16
    error_message: str | None = None
    endpoint_type: int8 = field(since=1, default=1)
    cluster_id: str = ""
    controller_id: int32 = -1
    brokers: tuple[DescribedBroker, ...] = ()
    authorized_operations: int32 = field("cluster_authorized_operations", default=OPERATIONS_NOT_REQUESTED)


class DescribeClusterRequest(Request[DescribeClusterResponse], key=60, versions=(0, 2), flexible_from=0):
    include_cluster_authorized_operations: bool = False
    endpoint_type: int8 = field(since=1, default=1)
    """Kind of the nodes to describe: 1 for brokers, 2 for controllers."""
    include_fenced_brokers: bool = field(since=2, ignorable=True, default=False)


class QuorumPartition(ApiMessage):
    topic: str = field("topic_name", per_topic=True)
    partition: int32 = field("partition_index")


METADATA_LOG = QuorumPartition("__cluster_metadata", 0)
"""Partition of the controllers' log (KIP-595)."""


class QuorumReplica(ApiMessage):
    """Controller or broker that replicates the metadata log; times are measured by the leader's clock."""

    replica_id: int32
    log_end_offset: int64
    last_fetch_timestamp: int64 = field(since=1, ignorable=True, default=-1)
    """Time of the replica's last fetch; for the leader itself, the time of the response; -1 if unknown."""
    last_caught_up_timestamp: int64 = field(since=1, ignorable=True, default=-1)
    """Last time at which the replica had all records of the log; -1 if unknown."""


class DescribedQuorum(ApiMessage):
    topic: str = field("topic_name", per_topic=True)
    partition: int32 = field("partition_index")
    error_code: int16
    leader_id: int32 = -1
    leader_epoch: int32 = -1
    high_watermark: int64 = -1
    voters: tuple[QuorumReplica, ...] = field("current_voters", default=())
    observers: tuple[QuorumReplica, ...] = ()


class DescribeQuorumResponse(ApiMessage):
    error_code: int16
    partitions: tuple[DescribedQuorum, ...] = by_topic()


# Version 2 adds the addresses of controllers, which clients of the brokers usually cannot reach.
class DescribeQuorumRequest(Request[DescribeQuorumResponse], key=55, versions=(0, 1), flexible_from=0):
    partitions: tuple[QuorumPartition, ...] = by_topic()
