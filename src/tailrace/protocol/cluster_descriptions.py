"""State of a cluster: DescribeCluster and DescribeQuorum."""

from __future__ import annotations

from tailrace.protocol.encoding.fields import by_topic, field
from tailrace.protocol.encoding.primitives import int8, int16, int32, int64
from tailrace.protocol.message import ApiMessage, Request
from tailrace.protocol.metadata import NOT_ASKED_FOR

__all__ = [
    "METADATA_LOG",
    "DescribeClusterRequest",
    "DescribeClusterResponse",
    "DescribeQuorumRequest",
    "DescribeQuorumResponse",
    "DescribedBroker",
    "DescribedQuorum",
    "QuorumPartition",
    "QuorumReplica",
]


class DescribedBroker(ApiMessage):
    broker_id: int32
    host: str
    port: int32
    rack: str | None = None
    is_fenced: bool = field(since=2, default=False)
    """True for a registered broker that is down or starting; Metadata does not list such a broker."""


class DescribeClusterResponse(ApiMessage):
    throttle_time_ms: int32 = field(default=0, kw_only=True)
    error_code: int16
    error_message: str | None = None
    endpoint_type: int8 = field(since=1, default=1)
    cluster_id: str = ""
    controller_id: int32 = -1
    brokers: tuple[DescribedBroker, ...] = ()
    authorized_operations: int32 = field("cluster_authorized_operations", default=NOT_ASKED_FOR)


class DescribeClusterRequest(Request[DescribeClusterResponse], key=60, versions=(0, 2), flexible_from=0):
    include_cluster_authorized_operations: bool = False
    endpoint_type: int8 = field(since=1, default=1)
    """1 for brokers, 2 for controllers."""
    include_fenced_brokers: bool = field(since=2, ignorable=True, default=False)


class QuorumPartition(ApiMessage):
    topic: str = field("topic_name", per_topic=True)
    partition: int32 = field("partition_index")


METADATA_LOG = QuorumPartition("__cluster_metadata", 0)
"""Partition of the controllers' log (KIP-595)."""


class QuorumReplica(ApiMessage):
    """Controller or broker that replicates the metadata log; times are of the leader's clock."""

    replica_id: int32
    log_end_offset: int64
    last_fetch_timestamp: int64 = field(since=1, ignorable=True, default=-1)
    """Time of the replica's last fetch, for the leader itself the time of the response; -1 if unknown."""
    last_caught_up_timestamp: int64 = field(since=1, ignorable=True, default=-1)
    """Time at which the replica had last read to the end of the log; -1 if unknown."""


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


# Version 2 adds the addresses of controllers, which brokers' clients cannot reach in general.
class DescribeQuorumRequest(Request[DescribeQuorumResponse], key=55, versions=(0, 1), flexible_from=0):
    partitions: tuple[QuorumPartition, ...] = by_topic()
