"""Group membership in the classic protocol: join, sync, heartbeat, leave."""

from __future__ import annotations

from dataclasses import dataclass

from tailrace.protocol.messages.request import Request

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


@dataclass(frozen=True, slots=True)
class JoinGroupProtocol:
    name: str
    metadata: bytes


@dataclass(frozen=True, slots=True)
class JoinGroupMember:
    member_id: str
    group_instance_id: str | None = None
    metadata: bytes = b""


@dataclass(frozen=True, slots=True)
class JoinGroupResponse:
    error_code: int
    generation_id: int = -1
    protocol_type: str | None = None
    protocol_name: str | None = None
    leader: str = ""
    skip_assignment: bool = False
    member_id: str = ""
    members: tuple[JoinGroupMember, ...] = ()
    throttle_time_ms: int = 0


@dataclass(frozen=True, slots=True)
class JoinGroupRequest(Request[JoinGroupResponse]):
    group_id: str
    session_timeout_ms: int
    rebalance_timeout_ms: int
    member_id: str
    protocol_type: str
    protocols: tuple[JoinGroupProtocol, ...]
    group_instance_id: str | None = None
    reason: str | None = None


@dataclass(frozen=True, slots=True)
class SyncGroupAssignment:
    member_id: str
    assignment: bytes


@dataclass(frozen=True, slots=True)
class SyncGroupResponse:
    error_code: int
    assignment: bytes
    protocol_type: str | None = None
    protocol_name: str | None = None
    throttle_time_ms: int = 0


@dataclass(frozen=True, slots=True)
class SyncGroupRequest(Request[SyncGroupResponse]):
    group_id: str
    generation_id: int
    member_id: str
    group_instance_id: str | None = None
    protocol_type: str | None = None
    protocol_name: str | None = None
    assignments: tuple[SyncGroupAssignment, ...] = ()
    """Of every member when this one leads, else empty."""


@dataclass(frozen=True, slots=True)
class HeartbeatResponse:
    error_code: int
    throttle_time_ms: int = 0


@dataclass(frozen=True, slots=True)
class HeartbeatRequest(Request[HeartbeatResponse]):
    group_id: str
    generation_id: int
    member_id: str
    group_instance_id: str | None = None


@dataclass(frozen=True, slots=True)
class LeavingMember:
    member_id: str
    group_instance_id: str | None = None
    reason: str | None = None
    error_code: int = 0


@dataclass(frozen=True, slots=True)
class LeaveGroupResponse:
    error_code: int
    members: tuple[LeavingMember, ...] = ()
    throttle_time_ms: int = 0


@dataclass(frozen=True, slots=True)
class LeaveGroupRequest(Request[LeaveGroupResponse]):
    group_id: str
    member: LeavingMember

    @property
    def member_id(self) -> str:
        """The same in the shape of the versions that take one."""
        return self.member.member_id

    @property
    def members(self) -> tuple[LeavingMember]:
        """The same in the shape of the versions that take several."""
        return (self.member,)
