"""Group membership in the classic protocol: JoinGroup, SyncGroup, Heartbeat and LeaveGroup."""

from __future__ import annotations

from tailrace.protocol.encoding.fields import OneElement, field
from tailrace.protocol.encoding.primitives import int16, int32
from tailrace.protocol.message import ApiMessage, Request

__all__ = [
    "HeartbeatRequest",
    "HeartbeatResponse",
    "JoinGroupMember",
    "JoinGroupProtocol",
    "JoinGroupRequest",
    "JoinGroupResponse",
    "LeaveGroupRequest",
    "LeaveGroupResponse",
    "LeavingMember",
    "SyncGroupAssignment",
    "SyncGroupRequest",
    "SyncGroupResponse",
]


class JoinGroupProtocol(ApiMessage):
    name: str
    metadata: bytes


class JoinGroupMember(ApiMessage):
    member_id: str
    group_instance_id: str | None = field(since=5, default=None)
    metadata: bytes = b""


class JoinGroupResponse(ApiMessage):
    throttle_time_ms: int32 = field(default=0, kw_only=True)
    error_code: int16
    generation_id: int32 = -1
    protocol_type: str | None = field(since=7, default=None)
    protocol_name: str | None = field(nullable_from=7, default=None)
    leader: str = ""
    skip_assignment: bool = field(since=9, default=False)
    member_id: str = ""
    members: tuple[JoinGroupMember, ...] = ()


class JoinGroupRequest(Request[JoinGroupResponse], key=11, versions=(2, 9), flexible_from=6):
    group_id: str
    session_timeout_ms: int32
    rebalance_timeout_ms: int32
    member_id: str
    group_instance_id: str | None = field(since=5, default=None, kw_only=True)
    protocol_type: str
    protocols: tuple[JoinGroupProtocol, ...]
    reason: str | None = field(since=8, ignorable=True, default=None)


class SyncGroupAssignment(ApiMessage):
    member_id: str
    assignment: bytes


class SyncGroupResponse(ApiMessage):
    throttle_time_ms: int32 = field(since=1, default=0, kw_only=True)
    error_code: int16
    protocol_type: str | None = field(since=5, default=None, kw_only=True)
    protocol_name: str | None = field(since=5, default=None, kw_only=True)
    assignment: bytes


class SyncGroupRequest(Request[SyncGroupResponse], key=14, versions=(0, 5), flexible_from=4):
    group_id: str
    generation_id: int32
    member_id: str
    group_instance_id: str | None = field(since=3, default=None)
    protocol_type: str | None = field(since=5, ignorable=True, default=None)
    protocol_name: str | None = field(since=5, ignorable=True, default=None)
    assignments: tuple[SyncGroupAssignment, ...] = ()
    """Assignments of all members in the leader's request; empty in the requests of the other members."""


class HeartbeatResponse(ApiMessage):
    throttle_time_ms: int32 = field(since=1, default=0, kw_only=True)
    error_code: int16


class HeartbeatRequest(Request[HeartbeatResponse], key=12, versions=(0, 4), flexible_from=4):
    group_id: str
    generation_id: int32
    member_id: str
    group_instance_id: str | None = field(since=3, default=None)


class LeavingMember(ApiMessage):
    member_id: str
    group_instance_id: str | None = None
    error_code: int16 = 0


class LeaveGroupResponse(ApiMessage):
    throttle_time_ms: int32 = field(since=1, default=0, kw_only=True)
    error_code: int16
    members: tuple[LeavingMember, ...] = field(since=3, ignorable=True, default=())


_MEMBERS = OneElement("members", since=3)


class LeaveGroupRequest(Request[LeaveGroupResponse], key=13, versions=(0, 5), flexible_from=4):
    group_id: str
    member_id: str = field(inside=_MEMBERS)
    group_instance_id: str | None = field(since=3, inside=_MEMBERS, default=None)
    reason: str | None = field(since=5, ignorable=True, inside=_MEMBERS, default=None)
