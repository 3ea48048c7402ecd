"""Group membership under KIP-848: ConsumerGroupHeartbeat.

In a request, None or -1 stands for a field that has not changed since the last request. In a response, None stands for
an assignment that has not changed.
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
    """Assignment; None if the assignment has not changed, empty if the member has no partitions."""


class ConsumerGroupHeartbeatRequest(Request[ConsumerGroupHeartbeatResponse], key=68, versions=(0, 1), flexible_from=0):
    group_id: str
    member_id: str
    """Id that the member generates and keeps for its lifetime; in version 0, the broker replaces an empty id."""
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
    """Owned partitions; None if the owned partitions have not changed."""
