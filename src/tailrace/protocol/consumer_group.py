"""Group membership under KIP-848, where the heartbeat is the whole protocol.

A field of the request that is None or -1 has not changed since the last one; nor has an answer's assignment of None.
"""

from __future__ import annotations

from uuid import UUID

from tailrace.protocol.encoding.fields import field
from tailrace.protocol.encoding.primitives import int16, int32
from tailrace.protocol.message import ApiMessage, Request

__all__ = ["ConsumerGroupHeartbeatRequest", "ConsumerGroupHeartbeatResponse", "TopicIdPartitions"]


class TopicIdPartitions(ApiMessage):
    topic_id: UUID
    partitions: tuple[int32, ...]


class ConsumerGroupHeartbeatResponse(ApiMessage):
    throttle_time_ms: int32 = field(default=0, kw_only=True)
    error_code: int16
    error_message: str | None = None
    member_id: str | None = None
    member_epoch: int32 = 0
    heartbeat_interval_ms: int32 = 0
    assignment: tuple[TopicIdPartitions, ...] | None = field(wrapping="topic_partitions", default=None)
    """None if it has not changed; an empty tuple if the member has no partitions."""


class ConsumerGroupHeartbeatRequest(Request[ConsumerGroupHeartbeatResponse], key=68, versions=(0, 1), flexible_from=0):
    group_id: str
    member_id: str
    """Made by the member, and the same for all its life; if it is empty in version 0, the broker makes it."""
    member_epoch: int32
    """0 joins, -1 leaves, -2 leaves as a static member that will be back."""
    instance_id: str | None = None
    rack_id: str | None = None
    rebalance_timeout_ms: int32 = -1
    subscribed_topic_names: tuple[str, ...] | None = None
    subscribed_topic_regex: str | None = field(since=1, default=None)
    """Pattern in the syntax of RE2, matched by the broker."""
    server_assignor: str | None = None
    topic_partitions: tuple[TopicIdPartitions, ...] | None = None
    """Partitions that the member owns, if that has changed."""
