"""Reactions of a group member to broker error codes.

After ``ILLEGAL_GENERATION`` a member joins again with the same member id, after ``UNKNOWN_MEMBER_ID`` without a member
id. Under KIP-848 members generate their ids and keep them in both cases.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum

from tailrace.core.error_reactions import ReactionTable
from tailrace.core.group.events import (
    CoordinatorGone,
    GenerationLost,
    GroupEvent,
    MemberLost,
    MembershipFailed,
    RebalanceCalled,
    RetryLater,
)
from tailrace.error_codes import ErrorCode, name_of
from tailrace.errors import (
    ConfigurationError,
    FencedMemberError,
    NoCommonAssignorError,
    TailraceError,
    UnsupportedVersionError,
    broker_error,
)

__all__ = ["NOT_HELD", "REACTIONS", "GroupReaction", "GroupRequestKind", "error_of", "event_of"]


class GroupRequestKind(StrEnum):
    """Group requests whose answers carry error codes."""

    JOIN = "JoinGroup"
    SYNC = "SyncGroup"
    HEARTBEAT = "Heartbeat"
    GROUP_HEARTBEAT = "ConsumerGroupHeartbeat"
    LEAVE = "LeaveGroup"
    COMMIT = "OffsetCommit"
    OFFSETS = "OffsetFetch"


class GroupReaction(StrEnum):
    """Reactions of a member to an error code."""

    RETRY = "repeat the request after a pause"
    FIND_COORDINATOR = "find the coordinator, then repeat the request"
    REJOIN = "join the new generation"
    REJOIN_WITH_SAME_ID = "give up the partitions and join again with the same member id"
    REJOIN_AS_NEW = "give up the partitions and join again as a new member"
    FAIL = "raise the error to the application"


_GENERAL: Mapping[int, GroupReaction] = {
    ErrorCode.COORDINATOR_LOAD_IN_PROGRESS: GroupReaction.RETRY,
    ErrorCode.COORDINATOR_NOT_AVAILABLE: GroupReaction.FIND_COORDINATOR,
    ErrorCode.NOT_COORDINATOR: GroupReaction.FIND_COORDINATOR,
    ErrorCode.REQUEST_TIMED_OUT: GroupReaction.FIND_COORDINATOR,
    ErrorCode.ILLEGAL_GENERATION: GroupReaction.REJOIN_WITH_SAME_ID,
    ErrorCode.UNKNOWN_MEMBER_ID: GroupReaction.REJOIN_AS_NEW,
    ErrorCode.REBALANCE_IN_PROGRESS: GroupReaction.REJOIN,
    ErrorCode.FENCED_MEMBER_EPOCH: GroupReaction.REJOIN_WITH_SAME_ID,
    # The group has a newer epoch for the member. After the answer to the next heartbeat, which contains the newer
    # epoch, the request can be repeated.
    ErrorCode.STALE_MEMBER_EPOCH: GroupReaction.RETRY,
}

_BY_REQUEST: Mapping[GroupRequestKind, Mapping[int, GroupReaction]] = {
    # The group is between two generations: the member has to repeat the same join.
    GroupRequestKind.JOIN: {ErrorCode.REBALANCE_IN_PROGRESS: GroupReaction.RETRY},
    # Partitions kept through a rebalance can be committed once the new generation is known (KIP-429).
    GroupRequestKind.COMMIT: {ErrorCode.REBALANCE_IN_PROGRESS: GroupReaction.RETRY},
}

REACTIONS = ReactionTable(_GENERAL, GroupReaction.RETRY, GroupReaction.FAIL, _BY_REQUEST)

NOT_HELD = frozenset(
    {
        ErrorCode.NONE,
        ErrorCode.UNKNOWN_MEMBER_ID,
        ErrorCode.GROUP_ID_NOT_FOUND,
        ErrorCode.FENCED_INSTANCE_ID,
    }
)
"""Answers to a static member's leave after which the member may join again.

The group has released the instance id, does not know the instance id, or has given it to another member. If the other
member is alive, the join is refused.
"""


def event_of(code: int, request: GroupRequestKind, overrides: Mapping[int, GroupReaction] | None = None) -> GroupEvent:
    """Return the event that reports ``code`` to the membership."""
    reason = f"{request}: {name_of(code)}"
    match REACTIONS.reaction_to(code, request, overrides):
        case GroupReaction.RETRY:
            return RetryLater(reason)
        case GroupReaction.FIND_COORDINATOR:
            return CoordinatorGone(reason)
        case GroupReaction.REJOIN:
            return RebalanceCalled()
        case GroupReaction.REJOIN_WITH_SAME_ID:
            return GenerationLost(reason)
        case GroupReaction.REJOIN_AS_NEW:
            return MemberLost(reason)
        case GroupReaction.FAIL:
            return MembershipFailed(error_of(code, request))


def error_of(code: int, request: GroupRequestKind) -> TailraceError:
    """Return the error that reports ``code`` to the application."""
    if request is GroupRequestKind.GROUP_HEARTBEAT and (error := _error_of_group_heartbeat(code)) is not None:
        return error
    if code == ErrorCode.FENCED_INSTANCE_ID:
        return FencedMemberError(
            f"another member has joined with the same group_instance_id and replaced this one {_shown(code)}"
            " - give each process its own group_instance_id"
        )
    if code == ErrorCode.INCONSISTENT_GROUP_PROTOCOL:
        return NoCommonAssignorError(
            f"the group's members have no assignment strategy in common, or it is not a consumer group {_shown(code)}"
            " - set partition_assignment_strategy to one that the others offer, such as ('range',) or ('roundrobin',)"
        )
    return broker_error(code, f"{request} was refused")


def _error_of_group_heartbeat(code: int) -> TailraceError | None:
    match code:
        case ErrorCode.UNRELEASED_INSTANCE_ID:
            return FencedMemberError(
                f"another live member of the group holds this group_instance_id {_shown(code)}"
                " - give each process its own group_instance_id, or wait until the other stops or its session expires"
            )
        # GROUP_ID_NOT_FOUND answers a join that may not convert the existing group to the consumer protocol.
        case ErrorCode.INCONSISTENT_GROUP_PROTOCOL | ErrorCode.GROUP_ID_NOT_FOUND:
            return NoCommonAssignorError(
                "the group does not use the consumer protocol and cannot be converted now: it has live members of the"
                f" classic protocol that the broker does not convert, or it is not a consumer group {_shown(code)}"
                " - set group_protocol='classic', stop those members first, or use another group_id"
            )
        case ErrorCode.UNSUPPORTED_ASSIGNOR:
            return ConfigurationError(
                f"the broker does not offer this assignor {_shown(code)}"
                " - set group_remote_assignor to one of its group.consumer.assignors"
                " (such as 'uniform' or 'range'), or leave it out"
            )
        case ErrorCode.INVALID_REGULAR_EXPRESSION:
            return ConfigurationError(
                f"the broker cannot compile pattern {_shown(code)}"
                " - write it as an RE2 regular expression, without look-around or back references"
            )
        case ErrorCode.UNSUPPORTED_VERSION:
            return UnsupportedVersionError(
                f"the broker does not support the consumer group protocol (KIP-848) or has it disabled {_shown(code)}"
                " - set group_protocol='classic'"
            )
        case _:
            return None


def _shown(code: int) -> str:
    return f"({name_of(code)}, code {code})"
