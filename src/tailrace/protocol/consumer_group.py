"""Group membership under KIP-848: ConsumerGroupHeartbeat.

In a request, an optional field is None or -1 if its value has not changed since the last request.
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
    assignment: tuple[TopicIdPartitions, ...] | None = field(only_field="topic_partitions", default=None)
    """Partitions that the member is to own; None if they have not changed, empty if there are none."""


class ConsumerGroupHeartbeatRequest(Request[ConsumerGroupHeartbeatResponse], key=68, versions=(0, 1), flexible_from=0):
    group_id: str
    member_id: str
    """Id that the member generates and keeps for its lifetime; empty in version 0 to get an id from the broker."""
    member_epoch: int32
    """Member epoch; 0 to join, -1 to leave, -2 to leave temporarily as a static member."""
    instance_id: str | None = None
    rack_id: str | None = None
    rebalance_timeout_ms: int32 = -1
    subscribed_topic_names: tuple[str, ...] | None = None
    subscribed_topic_regex: str | None = field(since=1, default=None)
    """Regular expression in RE2 syntax, evaluated by the broker."""
    server_assignor: str | None = None
    topic_partitions: tuple[TopicIdPartitions, ...] | None = None
    """Partitions that the member owns; None if they have not changed."""
