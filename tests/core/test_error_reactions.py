"""Reactions of a group member to error codes, by request."""

from __future__ import annotations

import pytest

from tailrace.consumer.group import classic, kip848
from tailrace.consumer.group import classic as classic_states
from tailrace.consumer.group import kip848 as kip848_states
from tailrace.consumer.group.group_machine import (
    CoordinatorGone,
    GenerationLost,
    GroupEvent,
    InstanceHeld,
    MemberLost,
    MembershipFailed,
    RebalanceCalled,
    RetryLater,
)
from tailrace.consumer.group.requests import event_of
from tailrace.core.group_requests import REACTIONS, GroupReaction, GroupRequestKind, error_of
from tailrace.error_codes import RETRIABLE, ErrorCode
from tailrace.errors import (
    BrokerError,
    ConfigurationError,
    FencedMemberError,
    GroupAuthorizationFailedError,
    InvalidSessionTimeoutError,
    NoCommonAssignorError,
    UnsupportedVersionError,
)

EVENTS = {
    GroupReaction.RETRY: RetryLater,
    GroupReaction.FIND_COORDINATOR: CoordinatorGone,
    GroupReaction.REJOIN: RebalanceCalled,
    GroupReaction.REJOIN_WITH_SAME_ID: GenerationLost,
    GroupReaction.REJOIN_AS_NEW: MemberLost,
    GroupReaction.FAIL: MembershipFailed,
}


@pytest.mark.parametrize(
    ("code", "reaction"),
    [
        (ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, GroupReaction.RETRY),
        (ErrorCode.COORDINATOR_NOT_AVAILABLE, GroupReaction.FIND_COORDINATOR),
        (ErrorCode.NOT_COORDINATOR, GroupReaction.FIND_COORDINATOR),
        (ErrorCode.REQUEST_TIMED_OUT, GroupReaction.FIND_COORDINATOR),
        (ErrorCode.ILLEGAL_GENERATION, GroupReaction.REJOIN_WITH_SAME_ID),
        (ErrorCode.UNKNOWN_MEMBER_ID, GroupReaction.REJOIN_AS_NEW),
        (ErrorCode.REBALANCE_IN_PROGRESS, GroupReaction.REJOIN),
        (ErrorCode.FENCED_MEMBER_EPOCH, GroupReaction.REJOIN_WITH_SAME_ID),
        (ErrorCode.STALE_MEMBER_EPOCH, GroupReaction.RETRY),
        (ErrorCode.UNSTABLE_OFFSET_COMMIT, GroupReaction.RETRY),
        (ErrorCode.INCONSISTENT_GROUP_PROTOCOL, GroupReaction.FAIL),
        (ErrorCode.INVALID_GROUP_ID, GroupReaction.FAIL),
        (ErrorCode.INVALID_SESSION_TIMEOUT, GroupReaction.FAIL),
        (ErrorCode.GROUP_AUTHORIZATION_FAILED, GroupReaction.FAIL),
        (ErrorCode.TOPIC_AUTHORIZATION_FAILED, GroupReaction.FAIL),
        (ErrorCode.FENCED_INSTANCE_ID, GroupReaction.FAIL),
        (ErrorCode.UNRELEASED_INSTANCE_ID, GroupReaction.FAIL),
        (ErrorCode.UNSUPPORTED_ASSIGNOR, GroupReaction.FAIL),
        (ErrorCode.INVALID_REGULAR_EXPRESSION, GroupReaction.FAIL),
        (ErrorCode.UNSUPPORTED_VERSION, GroupReaction.FAIL),
        (ErrorCode.GROUP_ID_NOT_FOUND, GroupReaction.FAIL),
        (ErrorCode.UNKNOWN_SERVER_ERROR, GroupReaction.RETRY),
        (ErrorCode.GROUP_MAX_SIZE_REACHED, GroupReaction.FAIL),
        (ErrorCode.OFFSET_METADATA_TOO_LARGE, GroupReaction.FAIL),
        (999, GroupReaction.FAIL),
    ],
)
def test_reaction_to_each_code(code, reaction):
    """Each error code of groups has a reaction, and an unknown code is raised to the application."""
    others = {
        ErrorCode.REBALANCE_IN_PROGRESS: {GroupRequestKind.JOIN, GroupRequestKind.COMMIT},
        ErrorCode.GROUP_ID_NOT_FOUND: {GroupRequestKind.GROUP_HEARTBEAT, GroupRequestKind.COMMIT},
    }.get(code, set())

    assert {REACTIONS.reaction_to(code, asked) for asked in GroupRequestKind if asked not in others} == {reaction}


@pytest.mark.parametrize("asked", [GroupRequestKind.GROUP_HEARTBEAT, GroupRequestKind.COMMIT])
def test_member_of_a_group_that_is_gone_joins_as_new(asked):
    """If the coordinator no longer knows the group, as after a loss of its storage, a member joins as a new one."""
    assert isinstance(event_of(ErrorCode.GROUP_ID_NOT_FOUND, asked), MemberLost)


def test_join_refused_by_a_rebalance_is_repeated():
    """A join that is refused during a rebalance is repeated, and nothing is released."""
    assert REACTIONS.reaction_to(ErrorCode.REBALANCE_IN_PROGRESS, GroupRequestKind.JOIN) is GroupReaction.RETRY
    assert REACTIONS.reaction_to(ErrorCode.REBALANCE_IN_PROGRESS, GroupRequestKind.SYNC) is GroupReaction.REJOIN


def test_commit_refused_by_a_rebalance_is_repeated():
    """A commit that is refused during a rebalance is repeated in the next generation."""
    assert REACTIONS.reaction_to(ErrorCode.REBALANCE_IN_PROGRESS, GroupRequestKind.COMMIT) is GroupReaction.RETRY
    assert isinstance(event_of(ErrorCode.REBALANCE_IN_PROGRESS, GroupRequestKind.COMMIT), RetryLater)


@pytest.mark.parametrize("asked", GroupRequestKind)
def test_every_code_has_a_reaction_and_an_event(asked):
    """Each code has a reaction and an event, and no retriable code ends the membership."""
    for code in ErrorCode:
        if code is ErrorCode.NONE:
            continue
        reaction, event = REACTIONS.reaction_to(code, asked), event_of(code, asked)

        is_held = asked is GroupRequestKind.GROUP_JOIN and code is ErrorCode.UNRELEASED_INSTANCE_ID
        assert type(event) is (InstanceHeld if is_held else EVENTS[reaction])
        assert code not in RETRIABLE or reaction is not GroupReaction.FAIL
        if isinstance(event, MembershipFailed):
            assert code.name in str(event.error) or not isinstance(event.error, BrokerError)
        elif not isinstance(event, RebalanceCalled | InstanceHeld):
            assert event.reason == f"{asked}: {code.name}"


@pytest.mark.parametrize(
    ("table", "awaiting"),
    [
        (classic.TABLE, (*classic_states.ALIVE, classic_states.ClassicState.JOINING)),
        (kip848.TABLE, (*kip848_states.ALIVE, kip848_states.Kip848State.JOINING)),
    ],
    ids=["classic", "KIP-848"],
)
@pytest.mark.parametrize("kind", EVENTS.values(), ids=lambda kind: kind.__name__)
def test_members_handle_every_reaction(kind: type[GroupEvent], table, awaiting):
    """Both members have a transition for every reaction to a heartbeat, join or sync in the states concerned."""
    assert all((state, kind) in table for state in awaiting)


def test_overrides_come_first():
    """The user's table takes precedence over those of the request and of all requests."""
    overrides = {ErrorCode.REBALANCE_IN_PROGRESS: GroupReaction.FAIL, 999: GroupReaction.RETRY}

    assert (
        REACTIONS.reaction_to(ErrorCode.REBALANCE_IN_PROGRESS, GroupRequestKind.JOIN, overrides) is GroupReaction.FAIL
    )
    assert REACTIONS.reaction_to(999, GroupRequestKind.SYNC, overrides) is GroupReaction.RETRY
    assert isinstance(event_of(999, GroupRequestKind.SYNC, overrides), RetryLater)
    assert (
        REACTIONS.reaction_to(ErrorCode.NOT_COORDINATOR, GroupRequestKind.SYNC, overrides)
        is GroupReaction.FIND_COORDINATOR
    )


@pytest.mark.parametrize(
    ("code", "error", "words"),
    [
        (ErrorCode.FENCED_INSTANCE_ID, FencedMemberError, "group_instance_id"),
        (ErrorCode.INCONSISTENT_GROUP_PROTOCOL, NoCommonAssignorError, "partition_assignment_strategy"),
        (ErrorCode.GROUP_AUTHORIZATION_FAILED, GroupAuthorizationFailedError, "grant READ on the group"),
        (ErrorCode.INVALID_SESSION_TIMEOUT, InvalidSessionTimeoutError, "group.max.session.timeout.ms"),
        (ErrorCode.INVALID_GROUP_ID, BrokerError, "JoinGroup was refused .INVALID_GROUP_ID, code 24"),
        (999, BrokerError, "ERROR_999, code 999"),
    ],
)
def test_errors_name_code_and_remedy(code, error, words):
    """Each error has a class, the name and number of its code, and a remedy."""
    with pytest.raises(error, match=words):
        raise error_of(code, GroupRequestKind.JOIN)


@pytest.mark.parametrize(
    ("code", "error", "words"),
    [
        (ErrorCode.UNRELEASED_INSTANCE_ID, FencedMemberError, "another live member .* holds this group_instance_id"),
        (ErrorCode.FENCED_INSTANCE_ID, FencedMemberError, "group_instance_id"),
        (ErrorCode.UNSUPPORTED_ASSIGNOR, ConfigurationError, "set group_remote_assignor"),
        (ErrorCode.INVALID_REGULAR_EXPRESSION, ConfigurationError, "pattern .* RE2"),
        (ErrorCode.UNSUPPORTED_VERSION, UnsupportedVersionError, "set group_protocol='classic'"),
        (ErrorCode.INCONSISTENT_GROUP_PROTOCOL, NoCommonAssignorError, "live members of the classic protocol"),
        (ErrorCode.GROUP_ID_NOT_FOUND, NoCommonAssignorError, "use another group_id"),
        (
            ErrorCode.GROUP_MAX_SIZE_REACHED,
            BrokerError,
            "the group is full, .* raise the brokers' group.consumer.max.size",
        ),
    ],
)
def test_errors_of_group_heartbeats_name_the_option(code, error, words):
    """Under KIP-848 some codes have a meaning of their own, and the error names the option to change."""
    with pytest.raises(error, match=words):
        raise error_of(code, GroupRequestKind.GROUP_JOIN)
