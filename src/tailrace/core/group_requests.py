"""Reactions of a group member to broker error codes. Pure: no clock, IO or logging.

After ``ILLEGAL_GENERATION`` a member joins again with the same member id. After ``UNKNOWN_MEMBER_ID`` it joins without
a member id; under KIP-848, where members generate their ids, it keeps its id.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from enum import StrEnum

from tailrace.error_codes import ErrorCode, ReactionTable, name_of
from tailrace.errors import (
    ConfigurationError,
    FencedMemberError,
    NoCommonAssignorError,
    TailraceError,
    UnsupportedVersionError,
    broker_error,
)
from tailrace.user_exceptions import error_text
from tailrace.values import Value

__all__ = [
    "INSTANCE_RELEASED",
    "REACTIONS",
    "ErrorReactions",
    "GroupReaction",
    "GroupRequestKind",
    "Identity",
    "error_of",
]


class Identity(Value):
    """Identity of a member in its requests. The default is the identity of a consumer that is in no group."""

    member_id: str = ""
    generation: int = -1
    """Generation, or member epoch under KIP-848."""
    instance_id: str | None = None
    """``group_instance_id`` of a static member; None for other members."""


class GroupRequestKind(StrEnum):
    """Requests of a group member whose answers contain error codes."""

    JOIN = "JoinGroup"
    SYNC = "SyncGroup"
    HEARTBEAT = "Heartbeat"
    GROUP_JOIN = "ConsumerGroupHeartbeat that joins"
    """Heartbeat of a KIP-848 member that is not in the group yet."""
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
    # The group has a newer epoch for this member. The answer to the next heartbeat contains it; after that, the request
    # can be repeated.
    ErrorCode.STALE_MEMBER_EPOCH: GroupReaction.RETRY,
}

_BY_REQUEST: Mapping[GroupRequestKind, Mapping[int, GroupReaction]] = {
    # The group is between two generations, so the member has to repeat the join.
    GroupRequestKind.JOIN: {ErrorCode.REBALANCE_IN_PROGRESS: GroupReaction.RETRY},
    # The group was deleted, or its coordinator has lost its storage.
    GroupRequestKind.GROUP_HEARTBEAT: {ErrorCode.GROUP_ID_NOT_FOUND: GroupReaction.REJOIN_AS_NEW},
    GroupRequestKind.COMMIT: {
        # Offsets of partitions that the member keeps can be committed when it knows the new generation (KIP-429).
        ErrorCode.REBALANCE_IN_PROGRESS: GroupReaction.RETRY,
        ErrorCode.GROUP_ID_NOT_FOUND: GroupReaction.REJOIN_AS_NEW,
    },
}

_GROUP_HEARTBEATS = {GroupRequestKind.GROUP_JOIN, GroupRequestKind.GROUP_HEARTBEAT}

REACTIONS = ReactionTable(_GENERAL, GroupReaction.RETRY, GroupReaction.FAIL, _BY_REQUEST)

INSTANCE_RELEASED = frozenset(
    {
        ErrorCode.NONE,
        ErrorCode.UNKNOWN_MEMBER_ID,
        ErrorCode.GROUP_ID_NOT_FOUND,
        ErrorCode.FENCED_INSTANCE_ID,
    }
)
"""Error codes after which a static member may join again, in the answer to the heartbeat that releases its instance id.

Each of these codes means that the group does not hold the instance id for this member: the id is released, unknown, or
held for another member. If that other member is alive, the join is refused.
"""


def error_of(code: int, request: GroupRequestKind, assignor: str = "") -> TailraceError:
    """Return the error that reports ``code`` to the application.

    ``assignor`` is the assignor that the group uses; empty if it is unknown.
    """
    if request in _GROUP_HEARTBEATS and (error := _error_of_group_heartbeat(code)) is not None:
        return error
    if code == ErrorCode.FENCED_INSTANCE_ID:
        return FencedMemberError(
            f"another member has joined with the same group_instance_id and replaced this member {_code_text(code)}"
            " - give each process its own group_instance_id"
        )
    if code == ErrorCode.INCONSISTENT_GROUP_PROTOCOL:
        return NoCommonAssignorError(
            "the group's members have no assignment strategy in common, or it is not a consumer group"
            f" {_code_text(code)}"
            f" - set partition_assignment_strategy to {_common_strategy(assignor)}, or use another group_id"
        )
    if code == ErrorCode.GROUP_MAX_SIZE_REACHED:
        option = "group.consumer.max.size" if request in _GROUP_HEARTBEATS else "group.max.size"
        detail = f"{request} was refused: the group is full, so stop another member, or raise the brokers' {option}"
        return broker_error(code, detail)
    return broker_error(code, f"{request} was refused")


def _common_strategy(assignor: str) -> str:
    if assignor:
        return f"({assignor!r},), which the group uses now"
    return (
        "a strategy that all members offer (`tailrace groups show GROUP` shows the group's assignor; by default,"
        " aiokafka offers 'roundrobin', other clients 'range')"
    )


def _error_of_group_heartbeat(code: int) -> TailraceError | None:
    match code:
        case ErrorCode.UNRELEASED_INSTANCE_ID:
            return FencedMemberError(
                f"another live member of the group holds this group_instance_id {_code_text(code)}"
                " - give each process its own group_instance_id, or stop the other member first"
            )
        # The broker answers a join with GROUP_ID_NOT_FOUND if a group exists that it must not convert to the consumer
        # protocol.
        case ErrorCode.INCONSISTENT_GROUP_PROTOCOL | ErrorCode.GROUP_ID_NOT_FOUND:
            return NoCommonAssignorError(
                "the group does not use the consumer protocol and cannot be converted now: it has live members of the"
                f" classic protocol that the broker does not convert, or it is not a consumer group {_code_text(code)}"
                " - set group_protocol='classic', stop the members of the classic protocol, or use another group_id"
            )
        case ErrorCode.UNSUPPORTED_ASSIGNOR:
            return ConfigurationError(
                f"the broker does not offer the assignor of group_remote_assignor {_code_text(code)}"
                " - set group_remote_assignor to an assignor that the broker's group.consumer.assignors lists"
                " (such as 'uniform' or 'range'), or leave the option out"
            )
        case ErrorCode.INVALID_REGULAR_EXPRESSION:
            return ConfigurationError(
                f"the broker cannot compile the topic pattern {_code_text(code)}"
                " - write the pattern as an RE2 regular expression, without look-around or back references"
            )
        case ErrorCode.UNSUPPORTED_VERSION:
            return UnsupportedVersionError(
                "the broker does not support the consumer group protocol (KIP-848) or has it disabled"
                f" {_code_text(code)}"
                " - set group_protocol='classic'"
            )
        case _:
            return None


def _code_text(code: int) -> str:
    return f"({name_of(code)}, code {code})"


# ---- reactions to group error codes: the defaults and the user's ``group_error_reactions`` ---------------------------


class ErrorReactions:
    """Reactions of ``core.group_requests``, some of them overridden by ``group_error_reactions``."""

    def __init__(self, configured: Mapping[int, str | Callable[[int], str]] | None) -> None:
        self._reactions = configured or {}

    def reaction_to(self, code: int, request: GroupRequestKind) -> GroupReaction:
        """Return the reaction to ``code`` in the response to ``request``.

        Raises:
            ConfigurationError: the user's function raised, or returned something other than a reaction.
        """
        return REACTIONS.reaction_to(code, request, self.overrides(code))

    def overrides(self, code: int) -> dict[int, GroupReaction]:
        """Return the configured reaction to ``code``; raise the same error as ``reaction_to``."""
        configured = self._reactions.get(code)
        if configured is None:
            return {}
        try:
            name = configured(code) if callable(configured) else configured
        except Exception as error:
            raise ConfigurationError(
                f"group_error_reactions: the function for code {code} raised {error_text(error)}"
            ) from error
        reaction = GroupReaction.__members__.get(str(name).upper())
        if reaction is None:
            known = ", ".join(one.lower() for one in GroupReaction.__members__)
            raise ConfigurationError(
                f"group_error_reactions: the reaction to code {code} must be one of {known}, not {name!r}"
            )
        return {code: reaction}
