"""Members of a classic group for tests: construction, all events, and their effects."""

from __future__ import annotations

from tailrace.consumer.group.assignors import UserAssignor, strategies_of
from tailrace.consumer.group.classic import ClassicMember, ClassicState
from tailrace.consumer.group.group_machine import (
    CoordinatorGone,
    GenerationLost,
    GroupDescribed,
    GroupEvent,
    HeartbeatAnswered,
    HeartbeatOutcome,
    InstanceHeld,
    InstanceReleased,
    JoinDue,
    JoinedAsFollower,
    JoinedAsLeader,
    LeaveAnswered,
    MemberIdAssigned,
    MemberLost,
    MemberSettings,
    MembershipFailed,
    MetadataRefreshed,
    PartitionsFound,
    PollingResumed,
    PollingStalled,
    RebalanceCalled,
    Released,
    Resubscribed,
    RetryLater,
    SessionKnown,
    SessionOver,
    StartMembership,
    StopDue,
    StopMembership,
    Synced,
    TakenOver,
    TopicNamesFound,
)
from tailrace.core.group_requests import Identity
from tailrace.errors import FencedMemberError, RebalanceError
from tailrace.protocol.groups import MemberAssignment, MemberSubscription, OwnedPartitions
from tailrace.records import TopicPartition

SESSION_S, INTERVAL_S, PATIENCE_S = 10.0, 3.0, 5.0
MINE = frozenset({TopicPartition("t", 0), TopicPartition("t", 1)})
ASSIGNMENT = MemberAssignment((OwnedPartitions("t", (0, 1)),))
ME = Identity("me", 7)
UNREAD = RebalanceError("the application does not poll")
FENCED = MembershipFailed(FencedMemberError("fenced"))

EVENTS: dict[type[GroupEvent], GroupEvent] = {
    type(one): one
    for one in (
        StartMembership(),
        Resubscribed(frozenset("u")),
        JoinDue(),
        MemberIdAssigned("me"),
        JoinedAsFollower("me", 7, "range"),
        JoinedAsLeader("me", 7, "range", {"me": MemberSubscription(("t",))}, {}),
        PartitionsFound({"t": 2}),
        Synced(ASSIGNMENT),
        GroupDescribed(None),
        TakenOver(),
        Released(),
        MetadataRefreshed({"t": 2}),
        HeartbeatOutcome(ME, HeartbeatAnswered()),
        HeartbeatAnswered(),
        LeaveAnswered(),
        RebalanceCalled(),
        RetryLater("loading"),
        CoordinatorGone("gone"),
        GenerationLost("lost"),
        MemberLost("lost"),
        SessionOver("over"),
        FENCED,
        PollingStalled(UNREAD),
        PollingResumed(),
        StopMembership(),
        StopDue(),
        # Events of the other protocol.
        InstanceHeld(FencedMemberError("held")),
        InstanceReleased(),
        SessionKnown(45.0),
        TopicNamesFound({}),
    )
}

REJOINING = [ClassicState.WAITING, ClassicState.JOINING, ClassicState.LEADING, ClassicState.SYNCING]


def member(*strategies: str | UserAssignor, **changes) -> ClassicMember:
    """Return a member that has not started."""
    settings = {
        "group_id": "g",
        "topics": frozenset("t"),
        "session_timeout_s": SESSION_S,
        "heartbeat_interval_s": INTERVAL_S,
        "rebalance_timeout_s": 60.0,
        "request_timeout_s": 30.0,
        "retry_first_s": 0.1,
        "retry_longest_s": 1.0,
        "leaves_on_stop": True,
        "stop_max_wait_s": PATIENCE_S,
    }
    offered = strategies_of(strategies or ("range", "roundrobin"))
    return ClassicMember(MemberSettings(**settings | changes), offered, lambda: 0.5)
