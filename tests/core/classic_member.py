"""A member of a classic group in a test's hand: how to make one, all that it can be told, and what it wants done."""

from __future__ import annotations

import copy

from penstock.core.classic import ClassicMember
from penstock.core.classic_states import State
from penstock.core.classic_steps import ClassicSteps
from penstock.core.leading import Lead
from penstock.core.membership import MemberSettings
from penstock.core.membership_effects import Effect
from penstock.core.membership_events import (
    Beat,
    CoordinatorGone,
    Failed,
    GenerationLost,
    GroupEvent,
    GroupHeartbeatAnswered,
    HeartbeatAnswered,
    Identity,
    InstanceReleased,
    JoinDue,
    JoinedAsFollower,
    JoinedAsLeader,
    LeaveAnswered,
    MemberIdGiven,
    MemberLost,
    NotNow,
    PartitionsChanged,
    PartitionsFound,
    RebalanceCalled,
    Released,
    Resubscribed,
    Returned,
    SessionKnown,
    SessionOver,
    Stalled,
    Start,
    Stop,
    StopDue,
    Synced,
    TakenOver,
    TopicsNamed,
)
from penstock.core.strategies import UserAssignor, strategies_of
from penstock.errors import FencedMemberError, RebalanceError
from penstock.messages import MemberAssignment, MemberSubscription, OwnedPartitions
from penstock.records import TopicPartition

NOW = 1_000.0
SESSION_S, INTERVAL_S, PATIENCE_S = 10.0, 3.0, 5.0
MINE = frozenset({TopicPartition("t", 0), TopicPartition("t", 1)})
ASSIGNMENT = MemberAssignment((OwnedPartitions("t", (0, 1)),))
ME = Identity("me", 7)
UNREAD = RebalanceError("nobody reads")
FENCED = Failed(FencedMemberError("fenced"))

EVENTS: dict[type[GroupEvent], GroupEvent] = {
    type(one): one
    for one in (
        Start(),
        Resubscribed(frozenset("u")),
        JoinDue(),
        MemberIdGiven("me"),
        JoinedAsFollower("me", 7, "range"),
        JoinedAsLeader("me", 7, "range", {"me": MemberSubscription(("t",))}, {}),
        PartitionsFound({"t": 2}),
        Synced(ASSIGNMENT),
        TakenOver(),
        Released(),
        PartitionsChanged({"t": 2}),
        Beat(ME, HeartbeatAnswered()),
        HeartbeatAnswered(),
        LeaveAnswered(),
        RebalanceCalled(),
        NotNow("loading"),
        CoordinatorGone("gone"),
        GenerationLost("lost"),
        MemberLost("lost"),
        SessionOver("over"),
        FENCED,
        Stalled(UNREAD),
        Returned(),
        Stop(),
        StopDue(),
        # Of the other protocol.
        GroupHeartbeatAnswered("me", 7, 3.0),
        InstanceReleased(),
        SessionKnown(45.0),
        TopicsNamed({}),
    )
}

REJOINING = [State.WAITING, State.JOINING, State.DEALING, State.SYNCING]


def member(*strategies: str | UserAssignor, **changes) -> ClassicMember:
    """One that has not started."""
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
        "stop_patience_s": PATIENCE_S,
    }
    offered = strategies_of(strategies or ("range", "roundrobin"))
    return ClassicMember(MemberSettings(**settings | changes), offered, lambda: 0.5)


def done(one: ClassicMember) -> list[Effect]:
    """What it wants done now."""
    return list(one.effects())


def told(one: ClassicMember, *events: GroupEvent, now: float = NOW) -> list[Effect]:
    """What it wants done when it is told ``events``."""
    for event in events:
        one.receive(event, now)
    return done(one)


def picture(one: object) -> dict[str, object]:
    """All that it knows."""
    return {
        name: picture(value) if isinstance(value, ClassicSteps | Lead) else copy.copy(value)
        for name, value in vars(one).items()
    }
