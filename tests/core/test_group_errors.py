"""What each error code means to a member, by request."""

from __future__ import annotations

import pytest

from penstock.core import classic, classic_states, reconciling, reconciling_states
from penstock.core.group_errors import Asked, Reaction, error_of, event_of, reaction_to
from penstock.core.membership_events import (
    CoordinatorGone,
    Failed,
    GenerationLost,
    GroupEvent,
    MemberLost,
    NotNow,
    RebalanceCalled,
)
from penstock.error_codes import RETRIABLE, ErrorCode
from penstock.errors import (
    BrokerError,
    ConfigurationError,
    FencedMemberError,
    GroupAuthorizationFailedError,
    InvalidSessionTimeoutError,
    NoCommonAssignorError,
    UnsupportedVersionError,
)

EVENTS = {
    Reaction.RETRY: NotNow,
    Reaction.FIND_COORDINATOR: CoordinatorGone,
    Reaction.REJOIN: RebalanceCalled,
    Reaction.REJOIN_WITH_SAME_ID: GenerationLost,
    Reaction.REJOIN_AS_NEW: MemberLost,
    Reaction.FAIL: Failed,
}


@pytest.mark.parametrize(
    ("code", "reaction"),
    [
        (ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, Reaction.RETRY),
        (ErrorCode.COORDINATOR_NOT_AVAILABLE, Reaction.FIND_COORDINATOR),
        (ErrorCode.NOT_COORDINATOR, Reaction.FIND_COORDINATOR),
        (ErrorCode.REQUEST_TIMED_OUT, Reaction.FIND_COORDINATOR),
        (ErrorCode.ILLEGAL_GENERATION, Reaction.REJOIN_WITH_SAME_ID),
        (ErrorCode.UNKNOWN_MEMBER_ID, Reaction.REJOIN_AS_NEW),
        (ErrorCode.REBALANCE_IN_PROGRESS, Reaction.REJOIN),
        (ErrorCode.FENCED_MEMBER_EPOCH, Reaction.REJOIN_WITH_SAME_ID),
        (ErrorCode.STALE_MEMBER_EPOCH, Reaction.RETRY),
        (ErrorCode.UNSTABLE_OFFSET_COMMIT, Reaction.RETRY),
        (ErrorCode.INCONSISTENT_GROUP_PROTOCOL, Reaction.FAIL),
        (ErrorCode.INVALID_GROUP_ID, Reaction.FAIL),
        (ErrorCode.INVALID_SESSION_TIMEOUT, Reaction.FAIL),
        (ErrorCode.GROUP_AUTHORIZATION_FAILED, Reaction.FAIL),
        (ErrorCode.TOPIC_AUTHORIZATION_FAILED, Reaction.FAIL),
        (ErrorCode.FENCED_INSTANCE_ID, Reaction.FAIL),
        (ErrorCode.UNRELEASED_INSTANCE_ID, Reaction.FAIL),
        (ErrorCode.UNSUPPORTED_ASSIGNOR, Reaction.FAIL),
        (ErrorCode.INVALID_REGULAR_EXPRESSION, Reaction.FAIL),
        (ErrorCode.UNSUPPORTED_VERSION, Reaction.FAIL),
        (ErrorCode.GROUP_ID_NOT_FOUND, Reaction.FAIL),
        (ErrorCode.GROUP_MAX_SIZE_REACHED, Reaction.FAIL),
        (ErrorCode.OFFSET_METADATA_TOO_LARGE, Reaction.FAIL),
        (999, Reaction.FAIL),
    ],
)
def test_what_a_member_does_about_it(code, reaction):
    """The codes that groups live with, one by one; a number that nobody knows is told to the user."""
    of_some = {Asked.JOIN, Asked.COMMIT} if code == ErrorCode.REBALANCE_IN_PROGRESS else set()

    assert {reaction_to(code, asked) for asked in Asked if asked not in of_some} == {reaction}


def test_a_join_during_a_rebalance_is_the_same_join_again():
    """Between two generations the group wants the same join once more: nothing is given back for that."""
    assert reaction_to(ErrorCode.REBALANCE_IN_PROGRESS, Asked.JOIN) is Reaction.RETRY
    assert reaction_to(ErrorCode.REBALANCE_IN_PROGRESS, Asked.SYNC) is Reaction.REJOIN


def test_a_commit_during_a_rebalance_waits_for_its_end():
    """What is kept through a rebalance is still ours to commit, in the generation that comes of it."""
    assert reaction_to(ErrorCode.REBALANCE_IN_PROGRESS, Asked.COMMIT) is Reaction.RETRY
    assert isinstance(event_of(ErrorCode.REBALANCE_IN_PROGRESS, Asked.COMMIT), NotNow)


@pytest.mark.parametrize("asked", Asked)
def test_every_code_has_a_reaction_and_its_event(asked):
    """No answer leaves a member without knowing what to do; what Kafka calls retriable is never the end."""
    for code in ErrorCode:
        if code is ErrorCode.NONE:
            continue
        reaction, event = reaction_to(code, asked), event_of(code, asked)

        assert type(event) is EVENTS[reaction]
        assert code not in RETRIABLE or reaction is not Reaction.FAIL
        if isinstance(event, Failed):
            assert code.name in str(event.error) or not isinstance(event.error, BrokerError)
        elif not isinstance(event, RebalanceCalled):
            assert event.reason == f"{asked}: {code.name}"


@pytest.mark.parametrize(
    ("machine", "states"),
    [(classic, classic_states), (reconciling, reconciling_states)],
    ids=["classic", "KIP-848"],
)
@pytest.mark.parametrize("kind", EVENTS.values(), ids=lambda kind: kind.__name__)
def test_every_reaction_is_possible_where_it_may_come(kind: type[GroupEvent], machine, states):
    """Whatever a heartbeat, a join or a sync is answered with, each machine has a rule for it there."""
    assert all((state, kind) in machine.TABLE for state in (*states.ALIVE, states.State.JOINING))


def test_the_user_may_override_an_entry():
    """A table of one's own comes first, before a request's and the general one."""
    overrides = {ErrorCode.REBALANCE_IN_PROGRESS: Reaction.FAIL, 999: Reaction.RETRY}

    assert reaction_to(ErrorCode.REBALANCE_IN_PROGRESS, Asked.JOIN, overrides) is Reaction.FAIL
    assert reaction_to(999, Asked.SYNC, overrides) is Reaction.RETRY
    assert isinstance(event_of(999, Asked.SYNC, overrides), NotNow)
    assert reaction_to(ErrorCode.NOT_COORDINATOR, Asked.SYNC, overrides) is Reaction.FIND_COORDINATOR


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
def test_what_the_user_is_told(code, error, words):
    """A class for what may be caught, the code's name and number, and what to do about it."""
    with pytest.raises(error, match=words):
        raise error_of(code, Asked.JOIN)


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
        (ErrorCode.GROUP_MAX_SIZE_REACHED, BrokerError, "ConsumerGroupHeartbeat was refused"),
    ],
)
def test_what_the_user_is_told_of_a_group_heartbeat(code, error, words):
    """Under KIP-848 some codes mean something of their own, and the error names the option to change."""
    with pytest.raises(error, match=words):
        raise error_of(code, Asked.GROUP_HEARTBEAT)
