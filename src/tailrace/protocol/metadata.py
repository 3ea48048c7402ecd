"""Cluster metadata and coordinators: Metadata and FindCoordinator."""

from __future__ import annotations

from uuid import UUID

from tailrace.protocol.encoding.fields import NEVER, OneElement, field
from tailrace.protocol.encoding.primitives import int8, int16, int32
from tailrace.protocol.message import NO_TOPIC_ID, ApiMessage, Request

__all__ = [
    "NOT_ASKED_FOR",
    "BrokerMetadata",
    "FindCoordinatorRequest",
    "FindCoordinatorResponse",
    "MetadataRequest",
    "MetadataResponse",
    "MetadataTopic",
    "PartitionMetadata",
    "TopicMetadata",
]

NOT_ASKED_FOR = -(1 << 31)
"""Value of the authorized operations in a response if the request did not ask for them."""


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
    authorized_operations: int32 = field("topic_authorized_operations", since=8, ignorable=True, default=NOT_ASKED_FOR)


class MetadataResponse(ApiMessage):
    throttle_time_ms: int32 = field(default=0, kw_only=True)
    brokers: tuple[BrokerMetadata, ...]
    cluster_id: str | None = field(default=None, kw_only=True)
    controller_id: int32 = field(default=-1, kw_only=True)
    topics: tuple[TopicMetadata, ...]
    authorized_operations: int32 = field(
        "cluster_authorized_operations", since=8, until=10, ignorable=True, default=NOT_ASKED_FOR, kw_only=True
    )
    error_code: int16 = field(since=13, default=0, kw_only=True)


class MetadataTopic(ApiMessage):
    topic_id: UUID = field(since=10, default=NO_TOPIC_ID, kw_only=True)
    name: str | None = field(nullable_from=10)
    """Name; None to identify the topic by its id alone, which brokers support from version 12 on."""


# Before version 4, a request creates the topics that it names.
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
    """Group or transactional id; None before version 4, in which responses do not repeat the key."""
    error_code: int16 = field(inside=_COORDINATORS, behind=(4, "port"), default=0, kw_only=True)
    error_message: str | None = field(
        since=1, inside=_COORDINATORS, behind=(4, "error_code"), default=None, kw_only=True
    )
    node_id: int32 = field(inside=_COORDINATORS)
    host: str = field(inside=_COORDINATORS)
    port: int32 = field(inside=_COORDINATORS)


class FindCoordinatorRequest(Request[FindCoordinatorResponse], key=10, versions=(0, 6), flexible_from=3):
    key: str = field(inside=OneElement("coordinator_keys", since=4, bare=True), behind=(4, "key_type"))
    key_type: int8 = field(since=1, default=0)
    """0 for a group, 1 for a transactional id."""
