"""Membership of a group in the classic protocol."""

from __future__ import annotations

from tailrace.protocol.encoding.api import ApiLayout, api
from tailrace.protocol.encoding.primitives import BOOL, BYTES, INT16, INT32, STRING
from tailrace.protocol.encoding.schema import Array, Struct, field, only
from tailrace.protocol.messages import (
    HeartbeatRequest,
    HeartbeatResponse,
    JoinGroupMember,
    JoinGroupProtocol,
    JoinGroupRequest,
    JoinGroupResponse,
    LeaveGroupRequest,
    LeaveGroupResponse,
    LeavingMember,
    SyncGroupAssignment,
    SyncGroupRequest,
    SyncGroupResponse,
)

__all__ = ["HEARTBEAT", "JOIN_GROUP", "LEAVE_GROUP", "SYNC_GROUP"]

JOIN_GROUP = api(
    11,
    "JoinGroup",
    versions=(2, 9),
    flexible=6,
    message=JoinGroupRequest,
    request=Struct(
        JoinGroupRequest,
        field("group_id", STRING),
        field("session_timeout_ms", INT32),
        field("rebalance_timeout_ms", INT32, 1),
        field("member_id", STRING),
        field("group_instance_id", STRING, 5, nullable=5),
        field("protocol_type", STRING),
        field(
            "protocols",
            Array.of(JoinGroupProtocol, field("name", STRING), field("metadata", BYTES)),
        ),
        field("reason", STRING, 8, nullable=8, ignorable=True),
    ),
    response=Struct(
        JoinGroupResponse,
        field("throttle_time_ms", INT32, 2),
        field("error_code", INT16),
        field("generation_id", INT32),
        field("protocol_type", STRING, 7, nullable=7),
        field("protocol_name", STRING, nullable=7),
        field("leader", STRING),
        field("skip_assignment", BOOL, 9),
        field("member_id", STRING),
        field(
            "members",
            Array.of(
                JoinGroupMember,
                field("member_id", STRING),
                field("group_instance_id", STRING, 5, nullable=5),
                field("metadata", BYTES),
            ),
        ),
    ),
)

SYNC_GROUP = api(
    14,
    "SyncGroup",
    versions=(0, 5),
    flexible=4,
    message=SyncGroupRequest,
    request=Struct(
        SyncGroupRequest,
        field("group_id", STRING),
        field("generation_id", INT32),
        field("member_id", STRING),
        field("group_instance_id", STRING, 3, nullable=3),
        field("protocol_type", STRING, 5, nullable=5, ignorable=True),
        field("protocol_name", STRING, 5, nullable=5, ignorable=True),
        field(
            "assignments",
            Array.of(SyncGroupAssignment, field("member_id", STRING), field("assignment", BYTES)),
        ),
    ),
    response=Struct(
        SyncGroupResponse,
        field("throttle_time_ms", INT32, 1),
        field("error_code", INT16),
        field("protocol_type", STRING, 5, nullable=5),
        field("protocol_name", STRING, 5, nullable=5),
        field("assignment", BYTES),
    ),
)

HEARTBEAT = api(
    12,
    "Heartbeat",
    versions=(0, 4),
    flexible=4,
    message=HeartbeatRequest,
    request=Struct(
        HeartbeatRequest,
        field("group_id", STRING),
        field("generation_id", INT32),
        field("member_id", STRING),
        field("group_instance_id", STRING, 3, nullable=3),
    ),
    response=Struct(HeartbeatResponse, field("throttle_time_ms", INT32, 1), field("error_code", INT16)),
)


def _leave_alone(group_id: str, member_id: str) -> LeaveGroupRequest:
    return LeaveGroupRequest(group_id, LeavingMember(member_id))


def _leave_as_list(group_id: str, members: tuple[LeavingMember, ...]) -> LeaveGroupRequest:
    return LeaveGroupRequest(group_id, only(members))


LEAVE_GROUP = api(
    13,
    "LeaveGroup",
    versions=(0, 5),
    flexible=4,
    message=LeaveGroupRequest,
    request=(
        ApiLayout(0, Struct(_leave_alone, field("group_id", STRING), field("member_id", STRING, 0, 2))),
        ApiLayout(
            3,
            Struct(
                _leave_as_list,
                field("group_id", STRING),
                field(
                    "members",
                    Array.of(
                        LeavingMember,
                        field("member_id", STRING),
                        field("group_instance_id", STRING, nullable=3),
                        field("reason", STRING, 5, nullable=5, ignorable=True),
                    ),
                ),
            ),
        ),
    ),
    response=Struct(
        LeaveGroupResponse,
        field("throttle_time_ms", INT32, 1),
        field("error_code", INT16),
        field(
            "members",
            Array.of(
                LeavingMember,
                field("member_id", STRING),
                field("group_instance_id", STRING, nullable=3),
                field("error_code", INT16),
            ),
            3,
            ignorable=True,
        ),
    ),
)
