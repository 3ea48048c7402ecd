"""Reactions of a group member to broker error codes.

``ILLEGAL_GENERATION`` leaves the member its id; ``UNKNOWN_MEMBER_ID`` does not, except under KIP-848, where a member
makes its id itself.
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
    NotNow,
    RebalanceCalled,
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
    """Which request was answered with an error."""

    JOIN = "JoinGroup"
    SYNC = "SyncGroup"
    HEARTBEAT = "Heartbeat"
    GROUP_HEARTBEAT = "ConsumerGroupHeartbeat"
    LEAVE = "LeaveGroup"
    COMMIT = "OffsetCommit"
    OFFSETS = "OffsetFetch"


class GroupReaction(StrEnum):
    """What a member does about it."""

    RETRY = "ask again after a pause"
    FIND_COORDINATOR = "find the coordinator, then ask again"
    REJOIN = "join the new generation"
    REJOIN_WITH_SAME_ID = "give the partitions up and join again under the same id"
    REJOIN_AS_NEW = "give the partitions up and join again as a new member"
    FAIL = "tell the user"


_GENERAL: Mapping[int, GroupReaction] = {
    ErrorCode.COORDINATOR_LOAD_IN_PROGRESS: GroupReaction.RETRY,
    ErrorCode.COORDINATOR_NOT_AVAILABLE: GroupReaction.FIND_COORDINATOR,
    ErrorCode.NOT_COORDINATOR: GroupReaction.FIND_COORDINATOR,
    ErrorCode.REQUEST_TIMED_OUT: GroupReaction.FIND_COORDINATOR,
    ErrorCode.ILLEGAL_GENERATION: GroupReaction.REJOIN_WITH_SAME_ID,
    ErrorCode.UNKNOWN_MEMBER_ID: GroupReaction.REJOIN_AS_NEW,
    ErrorCode.REBALANCE_IN_PROGRESS: GroupReaction.REJOIN,
    ErrorCode.FENCED_MEMBER_EPOCH: GroupReaction.REJOIN_WITH_SAME_ID,
    # The member has a newer epoch and will hear of it with its next heartbeat; then the same may be asked again.
    ErrorCode.STALE_MEMBER_EPOCH: GroupReaction.RETRY,
}

_BY_REQUEST: Mapping[GroupRequestKind, Mapping[int, GroupReaction]] = {
    # The group is between two generations while it answers a join so: it wants the same join again.
    GroupRequestKind.JOIN: {ErrorCode.REBALANCE_IN_PROGRESS: GroupReaction.RETRY},
    # What is kept through a rebalance may be committed when the new generation is known (KIP-429).
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
"""What says to a static member that is to join again, and lets go of its name for that, that the group has let go too:
done, nobody has it, or another member does. Whether that other one still lives, the join is told."""


def event_of(code: int, asked: GroupRequestKind, overrides: Mapping[int, GroupReaction] | None = None) -> GroupEvent:
    """The same as the event that a membership is told."""
    said = f"{asked}: {name_of(code)}"
    match REACTIONS.reaction_to(code, asked, overrides):
        case GroupReaction.RETRY:
            return NotNow(said)
        case GroupReaction.FIND_COORDINATOR:
            return CoordinatorGone(said)
        case GroupReaction.REJOIN:
            return RebalanceCalled()
        case GroupReaction.REJOIN_WITH_SAME_ID:
            return GenerationLost(said)
        case GroupReaction.REJOIN_AS_NEW:
            return MemberLost(said)
        case GroupReaction.FAIL:
            return MembershipFailed(error_of(code, asked))


def error_of(code: int, asked: GroupRequestKind) -> TailraceError:
    """What the user is told."""
    if asked is GroupRequestKind.GROUP_HEARTBEAT and (error := _error_of_group_heartbeat(code)) is not None:
        return error
    if code == ErrorCode.FENCED_INSTANCE_ID:
        return FencedMemberError(
            f"another member has joined with the same group_instance_id and took this one's place {_shown(code)}"
            " - give each process a name of its own"
        )
    if code == ErrorCode.INCONSISTENT_GROUP_PROTOCOL:
        return NoCommonAssignorError(
            f"the group's members share no assignment strategy, or it is no group of consumers {_shown(code)}"
            " - set partition_assignment_strategy to one that the others have, such as ('range',) or ('roundrobin',)"
        )
    return broker_error(code, f"{asked} was refused")


def _error_of_group_heartbeat(code: int) -> TailraceError | None:
    match code:
        case ErrorCode.UNRELEASED_INSTANCE_ID:
            return FencedMemberError(
                f"another live member of the group holds this group_instance_id {_shown(code)}"
                " - give each process a name of its own, or wait until the other has stopped or its session is over"
            )
        # The second is a broker's answer to a join that may not change the protocol of the group that there is.
        case ErrorCode.INCONSISTENT_GROUP_PROTOCOL | ErrorCode.GROUP_ID_NOT_FOUND:
            return NoCommonAssignorError(
                "the group is not one of the consumer protocol and cannot become one now: it has live members of the"
                f" classic protocol that the broker does not take along, or is no group of consumers {_shown(code)}"
                " - set group_protocol='classic', stop the others first, or use another group_id"
            )
        case ErrorCode.UNSUPPORTED_ASSIGNOR:
            return ConfigurationError(
                f"the broker has no such assignor {_shown(code)}"
                " - set group_remote_assignor to one of its group.consumer.assignors"
                " (such as 'uniform' or 'range'), or leave it out"
            )
        case ErrorCode.INVALID_REGULAR_EXPRESSION:
            return ConfigurationError(
                f"the broker cannot read pattern {_shown(code)}"
                " - write it as a regular expression of RE2, without look-around and back references"
            )
        case ErrorCode.UNSUPPORTED_VERSION:
            return UnsupportedVersionError(
                f"this broker lacks the consumer group protocol (KIP-848), or it is switched off there {_shown(code)}"
                " - set group_protocol='classic'"
            )
        case _:
            return None


def _shown(code: int) -> str:
    return f"({name_of(code)}, code {code})"
