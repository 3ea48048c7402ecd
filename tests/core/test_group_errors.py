"""What each error code means to a member, by request."""

from __future__ import annotations

import pytest

from penstock.core.classic import ALIVE, TABLE, State
from penstock.core.group_errors import Asked, Reaction, error_of, event_of, reaction_to
from penstock.core.membership import (
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
    FencedMemberError,
    GroupAuthorizationFailedError,
    InvalidSessionTimeoutError,
    NoCommonAssignorError,
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
        (ErrorCode.UNSTABLE_OFFSET_COMMIT, Reaction.RETRY),
        (ErrorCode.INCONSISTENT_GROUP_PROTOCOL, Reaction.FAIL),
        (ErrorCode.INVALID_GROUP_ID, Reaction.FAIL),
        (ErrorCode.INVALID_SESSION_TIMEOUT, Reaction.FAIL),
        (ErrorCode.GROUP_AUTHORIZATION_FAILED, Reaction.FAIL),
        (ErrorCode.TOPIC_AUTHORIZATION_FAILED, Reaction.FAIL),
        (ErrorCode.FENCED_INSTANCE_ID, Reaction.FAIL),
        (ErrorCode.GROUP_MAX_SIZE_REACHED, Reaction.FAIL),
        (ErrorCode.OFFSET_METADATA_TOO_LARGE, Reaction.FAIL),
        (999, Reaction.FAIL),
    ],
)
def test_what_a_member_does_about_it(code, reaction):
    """The codes that groups live with, one by one; a number that nobody knows is told to the user."""
    assert {reaction_to(code, asked) for asked in Asked if asked is not Asked.JOIN} == {reaction}


def test_a_join_during_a_rebalance_is_the_same_join_again():
    """Between two generations the group wants the same join once more: nothing is given back for that."""
    assert reaction_to(ErrorCode.REBALANCE_IN_PROGRESS, Asked.JOIN) is Reaction.RETRY
    assert reaction_to(ErrorCode.REBALANCE_IN_PROGRESS, Asked.SYNC) is Reaction.REJOIN


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


@pytest.mark.parametrize("kind", EVENTS.values(), ids=lambda kind: kind.__name__)
def test_every_reaction_is_possible_where_it_may_come(kind: type[GroupEvent]):
    """Whatever a heartbeat, a join or a sync is answered with, the machine has a rule for it there."""
    assert all((state, kind) in TABLE for state in (*ALIVE, State.JOINING))


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
