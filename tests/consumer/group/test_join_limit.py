"""Limit on failed joins in a row."""

from __future__ import annotations

import pytest

from tailrace.consumer.group.group_machine import (
    CoordinatorGone,
    JoinedAsFollower,
    LeaveAnswered,
    MembershipFailed,
    RebalanceCalled,
    RetryLater,
    SendJoin,
    SendLeave,
    SendSync,
    Synced,
)
from tailrace.consumer.group.requests import JoinLimit, ServerErrorLimit
from tailrace.core.group_requests import Identity
from tailrace.errors import BrokerError, RebalanceError
from tailrace.protocol.groups import MemberAssignment

JOIN, SYNC = SendJoin("", (), "", 1.0), SendSync(Identity(), "range", {}, 1.0)


def test_failures_beyond_the_limit_fail_the_membership():
    """With two retries, the third failure in a row is an error that names the option and the last reason."""
    limit = JoinLimit(2)
    first, second = limit.apply(JOIN, RetryLater("loading")), limit.apply(SYNC, CoordinatorGone("moved"))
    third = limit.apply(JOIN, RetryLater("loading still"))

    assert (first, second) == (RetryLater("loading"), CoordinatorGone("moved"))
    assert isinstance(third, MembershipFailed)
    with pytest.raises(RebalanceError, match=r"3 attempts.*loading still.*rebalance_max_retries"):
        raise third.error


def test_successful_round_resets_the_count():
    """The count of failures is reset by a sync with an assignment, and not by a join."""
    limit, joined, synced = JoinLimit(1), JoinedAsFollower("m", 1, "range"), Synced(MemberAssignment(()))
    limit.apply(JOIN, RetryLater("x"))
    assert limit.apply(JOIN, joined) is joined
    assert limit.apply(SYNC, synced) is synced
    assert limit.apply(SYNC, RetryLater("x")) == RetryLater("x")
    assert isinstance(limit.apply(SYNC, RetryLater("x")), MembershipFailed)


def test_repeated_rebalance_is_joined_after_a_pause():
    """A first rebalance is joined at once, and further ones after a pause, without a limit on their number."""
    limit = JoinLimit(None)

    assert limit.apply(SYNC, RebalanceCalled()) == RebalanceCalled()
    assert {type(limit.apply(SYNC, RebalanceCalled())) for _ in range(100)} == {RetryLater}


def test_other_requests_are_not_counted():
    """The outcome of a leave is not counted."""
    limit = JoinLimit(0)

    assert limit.apply(SendLeave(Identity(), ""), LeaveAnswered()) == LeaveAnswered()
    assert limit.apply(SendLeave(Identity(), ""), RetryLater("x")) == RetryLater("x")


FAILING = RetryLater("JoinGroup: UNKNOWN_SERVER_ERROR", BrokerError(-1))


def test_request_that_keeps_failing_in_the_broker_fails_the_membership():
    """A request that fails in the broker is repeated for the limit, counted from the first failure in a row."""
    limit = ServerErrorLimit(10.0)

    assert [limit.apply(JOIN, FAILING, now) for now in (100.0, 105.0, 109.9)] == [FAILING] * 3
    assert limit.apply(SYNC, FAILING, 109.9) == FAILING
    assert limit.apply(JOIN, FAILING, 110.0) == MembershipFailed(FAILING.error)


@pytest.mark.parametrize("event", [RetryLater("loading"), CoordinatorGone("moved"), JoinedAsFollower("m", 1, "range")])
def test_other_outcomes_reset_the_limit_of_failures_in_the_broker(event):
    """Any other outcome of the same request resets the limit."""
    limit = ServerErrorLimit(10.0)
    limit.apply(JOIN, FAILING, 100.0)

    assert limit.apply(JOIN, event, 105.0) == event
    assert limit.apply(JOIN, FAILING, 112.0) == FAILING
