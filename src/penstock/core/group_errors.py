"""What a broker's error code means to a member, by request: the one table.

Rule of this file: data. A code that is not listed means what Kafka says of it in general: another try, if it is
retriable; else the end. ``ILLEGAL_GENERATION`` leaves the member its id, ``UNKNOWN_MEMBER_ID`` does not.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum

from penstock.core.membership import (
    CoordinatorGone,
    Failed,
    GenerationLost,
    GroupEvent,
    MemberLost,
    NotNow,
    RebalanceCalled,
)
from penstock.error_codes import RETRIABLE, ErrorCode, name_of
from penstock.errors import FencedMemberError, NoCommonAssignorError, PenstockError, broker_error

__all__ = ["Asked", "Reaction", "error_of", "event_of", "reaction_to"]


class Asked(StrEnum):
    """Which request was answered with an error."""

    JOIN = "JoinGroup"
    SYNC = "SyncGroup"
    HEARTBEAT = "Heartbeat"
    LEAVE = "LeaveGroup"
    COMMIT = "OffsetCommit"
    OFFSETS = "OffsetFetch"


class Reaction(StrEnum):
    """What a member does about it."""

    RETRY = "ask again after a pause"
    FIND_COORDINATOR = "find the coordinator, then ask again"
    REJOIN = "join the new generation"
    REJOIN_WITH_SAME_ID = "give the partitions up and join again under the same id"
    REJOIN_AS_NEW = "give the partitions up and join again as a new member"
    FAIL = "tell the user"


_IN_GENERAL: Mapping[int, Reaction] = {
    ErrorCode.COORDINATOR_LOAD_IN_PROGRESS: Reaction.RETRY,
    ErrorCode.COORDINATOR_NOT_AVAILABLE: Reaction.FIND_COORDINATOR,
    ErrorCode.NOT_COORDINATOR: Reaction.FIND_COORDINATOR,
    ErrorCode.REQUEST_TIMED_OUT: Reaction.FIND_COORDINATOR,
    ErrorCode.ILLEGAL_GENERATION: Reaction.REJOIN_WITH_SAME_ID,
    ErrorCode.UNKNOWN_MEMBER_ID: Reaction.REJOIN_AS_NEW,
    ErrorCode.REBALANCE_IN_PROGRESS: Reaction.REJOIN,
}

_OF_REQUEST: Mapping[Asked, Mapping[int, Reaction]] = {
    # The group is between two generations while it answers a join so: it wants the same join again.
    Asked.JOIN: {ErrorCode.REBALANCE_IN_PROGRESS: Reaction.RETRY},
}


def reaction_to(code: int, asked: Asked, overrides: Mapping[int, Reaction] | None = None) -> Reaction:
    """What to do about ``code`` in the answer to ``asked``."""
    for table in (overrides or {}, _OF_REQUEST.get(asked, {}), _IN_GENERAL):
        if code in table:
            return table[code]
    return Reaction.RETRY if code in RETRIABLE else Reaction.FAIL


def event_of(code: int, asked: Asked, overrides: Mapping[int, Reaction] | None = None) -> GroupEvent:
    """The same as the event that a membership is told."""
    said = f"{asked}: {name_of(code)}"
    match reaction_to(code, asked, overrides):
        case Reaction.RETRY:
            return NotNow(said)
        case Reaction.FIND_COORDINATOR:
            return CoordinatorGone(said)
        case Reaction.REJOIN:
            return RebalanceCalled()
        case Reaction.REJOIN_WITH_SAME_ID:
            return GenerationLost(said)
        case Reaction.REJOIN_AS_NEW:
            return MemberLost(said)
        case Reaction.FAIL:
            return Failed(error_of(code, asked))


def error_of(code: int, asked: Asked) -> PenstockError:
    """What the user is told."""
    if code == ErrorCode.FENCED_INSTANCE_ID:
        return FencedMemberError(
            "another member has joined with the same group_instance_id and took this one's place"
            " - give each process a name of its own"
        )
    if code == ErrorCode.INCONSISTENT_GROUP_PROTOCOL:
        return NoCommonAssignorError(
            "the group's members share no assignment strategy, or it is no group of consumers"
            " - set partition_assignment_strategy to one that the others have, such as ('range',) or ('roundrobin',)"
        )
    return broker_error(code, f"{asked} was refused")
