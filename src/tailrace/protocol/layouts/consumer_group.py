"""Membership of a group under KIP-848: one request for all of it."""

from __future__ import annotations

from tailrace.protocol.encoding.api import api
from tailrace.protocol.encoding.primitives import INT16, INT32, STRING, UUIDS
from tailrace.protocol.encoding.schema import Array, Sole, Struct, field
from tailrace.protocol.messages import ConsumerGroupHeartbeatRequest, ConsumerGroupHeartbeatResponse, TopicIdPartitions

__all__ = ["CONSUMER_GROUP_HEARTBEAT"]

_PARTITIONS = Array.of(TopicIdPartitions, field("topic_id", UUIDS), field("partitions", Array(INT32)))

CONSUMER_GROUP_HEARTBEAT = api(
    68,
    "ConsumerGroupHeartbeat",
    versions=(0, 1),
    flexible=0,
    message=ConsumerGroupHeartbeatRequest,
    request=Struct(
        ConsumerGroupHeartbeatRequest,
        field("group_id", STRING),
        field("member_id", STRING),
        field("member_epoch", INT32),
        field("instance_id", STRING, nullable=0),
        field("rack_id", STRING, nullable=0),
        field("rebalance_timeout_ms", INT32),
        field("subscribed_topic_names", Array(STRING), nullable=0),
        field("subscribed_topic_regex", STRING, 1, nullable=1),
        field("server_assignor", STRING, nullable=0),
        field("topic_partitions", _PARTITIONS, nullable=0),
    ),
    response=Struct(
        ConsumerGroupHeartbeatResponse,
        field("throttle_time_ms", INT32),
        field("error_code", INT16),
        field("error_message", STRING, nullable=0),
        field("member_id", STRING, nullable=0),
        field("member_epoch", INT32),
        field("heartbeat_interval_ms", INT32),
        field("assignment", Sole(field("topic_partitions", _PARTITIONS)), nullable=0),
    ),
)
