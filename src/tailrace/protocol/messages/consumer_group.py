"""Group membership under KIP-848, where one heartbeat says and hears everything.

A field of the request that is None or -1 says "as before"; so does an answer's assignment that is None.
"""

from __future__ import annotations

from dataclasses import dataclass
from uuid import UUID

from tailrace.protocol.messages.request import Request

__all__ = ["ConsumerGroupHeartbeatRequest", "ConsumerGroupHeartbeatResponse", "TopicIdPartitions"]


@dataclass(frozen=True, slots=True)
class TopicIdPartitions:
    topic_id: UUID
    partitions: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class ConsumerGroupHeartbeatResponse:
    error_code: int
    error_message: str | None = None
    member_id: str | None = None
    member_epoch: int = 0
    heartbeat_interval_ms: int = 0
    assignment: tuple[TopicIdPartitions, ...] | None = None
    """None is as before; an empty tuple is nothing."""
    throttle_time_ms: int = 0


@dataclass(frozen=True, slots=True)
class ConsumerGroupHeartbeatRequest(Request[ConsumerGroupHeartbeatResponse]):
    group_id: str
    member_id: str
    """Made by the member, and the same for all its life; empty in version 0 lets the broker make it."""
    member_epoch: int
    """0 joins, -1 leaves, -2 leaves as a static member that will be back."""
    instance_id: str | None = None
    rack_id: str | None = None
    rebalance_timeout_ms: int = -1
    subscribed_topic_names: tuple[str, ...] | None = None
    subscribed_topic_regex: str | None = None
    """As RE2 of the broker reads it, from version 1 on."""
    server_assignor: str | None = None
    topic_partitions: tuple[TopicIdPartitions, ...] | None = None
    """What the member owns, when that changed."""
