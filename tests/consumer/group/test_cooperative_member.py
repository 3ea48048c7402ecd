"""Classic member that keeps its partitions through a rebalance (KIP-429): promises, and every transition."""

from __future__ import annotations

import pytest

from tailrace.consumer.group.classic import OVER, TABLE, ClassicMember, ClassicState
from tailrace.consumer.group.group_machine import (
    CoordinatorGone,
    FindPartitions,
    ForgetCoordinator,
    GenerationLost,
    GroupEvent,
    HeartbeatAnswered,
    HeartbeatOutcome,
    JoinDue,
    JoinedAsFollower,
    JoinedAsLeader,
    LeaveAnswered,
    MemberLost,
    MembershipFailed,
    MetadataRefreshed,
    PartitionsFound,
    PollingStalled,
    RebalanceCalled,
    Release,
    Released,
    ReportGroupError,
    Resubscribed,
    RetryLater,
    SendHeartbeat,
    SendJoin,
    SendLeave,
    SendSync,
    SessionOver,
    StartMembership,
    StopMembership,
    Synced,
    TakenOver,
    TakeOver,
)
from tailrace.core.group_requests import Identity
from tailrace.errors import RebalanceError
from tailrace.protocol.groups import MemberAssignment, MemberSubscription, OwnedPartitions
from tailrace.records import TopicPartition
from tests.support.simulation.classic_member import (
    ASSIGNMENT,
    EVENTS,
    FENCED,
    INTERVAL_S,
    ME,
    MINE,
    PATIENCE_S,
    REJOINING,
    SESSION_S,
    member,
)
from tests.support.simulation.driven_machine import NOW, effects_after, effects_of, state_of

COOPERATIVE = "cooperative-sticky"
NEXT = Identity("me", 8)
FAULT = MembershipFailed(RebalanceError("the callback raised"))
LOST = (GenerationLost("late"), MemberLost("late"), SessionOver("late"))
MOVING = [ClassicState.JOINING, ClassicState.LEADING, ClassicState.SYNCING]
"""States in which the group may accept no commits."""
PAID = StopMembership(may_commit=False)


def of(*partitions: int, topic: str = "t") -> frozenset[TopicPartition]:
    """Return partitions of one topic."""
    return frozenset(TopicPartition(topic, number) for number in partitions)


def given(*partitions: int) -> Synced:
    """Return a sync that assigns these partitions."""
    return Synced(MemberAssignment((OwnedPartitions("t", partitions),)))


LEADS = JoinedAsLeader("me", 8, COOPERATIVE, {"me": MemberSubscription(("t",))}, {})
FOLLOWS = JoinedAsFollower("me", 8, COOPERATIVE)

FROM: dict[ClassicState, tuple[ClassicState | None, GroupEvent | None]] = {
    ClassicState.WAITING: (None, RebalanceCalled()),
    ClassicState.JOINING: (ClassicState.WAITING, None),
    ClassicState.LEADING: (ClassicState.JOINING, LEADS),
    ClassicState.SYNCING: (ClassicState.JOINING, FOLLOWS),
    ClassicState.TAKING_OVER: (ClassicState.SYNCING, given(0, 1, 2)),
    ClassicState.RELEASING: (ClassicState.SYNCING, given(0)),
    ClassicState.STABLE: (ClassicState.TAKING_OVER, TakenOver()),
    ClassicState.STEPPING_AWAY: (ClassicState.STABLE, EVENTS[PollingStalled]),
    ClassicState.AWAY: (ClassicState.STEPPING_AWAY, Released()),
    ClassicState.CLOSING: (ClassicState.STABLE, StopMembership()),
    ClassicState.LEAVING: (ClassicState.CLOSING, Released()),
    ClassicState.LEFT: (ClassicState.LEAVING, LeaveAnswered()),
    ClassicState.FAILED: (ClassicState.STABLE, FENCED),
}
"""State and event (None for a timer call) before each state, from generation 7 to 8 and on."""

WITH_MINE = [*REJOINING, ClassicState.TAKING_OVER, ClassicState.STABLE, ClassicState.RELEASING]


def beginner(*strategies: str, assigned: MemberAssignment = ASSIGNMENT, **changes) -> tuple[ClassicMember, TakeOver]:
    """Return a member that is about to take over its assignment in generation 7."""
    one = member(*strategies or (COOPERATIVE,), **changes)
    one.receive(StartMembership(), NOW)
    one.handle_timer(NOW)
    take_over = effects_after(one, JoinedAsFollower("me", 7, COOPERATIVE), Synced(assigned))[-1]
    return one, take_over


def owner(*, is_ready: bool = True, **changes) -> ClassicMember:
    """Return a member of generation 7 that has taken over MINE if it ``is_ready``."""
    one, _ = beginner(**changes)
    if is_ready:
        one.receive(TakenOver(), NOW)
    return one


def lead_to(one: ClassicMember, state: ClassicState) -> ClassicMember:
    """Lead the member to ``state`` and perform its effects."""
    before, step = FROM[state]
    if before is not None:
        lead_to(one, before)
    if step is None:
        one.handle_timer(NOW)
    else:
        one.receive(step, NOW)
    effects_of(one)
    assert one.state is state
    return one


def owner_in(state: ClassicState, *, is_ready: bool = True, **changes) -> ClassicMember:
    """Return an owner of MINE in ``state``."""
    return lead_to(owner(is_ready=is_ready, **changes), state)


def join_of(one: ClassicMember, now: float = NOW) -> SendJoin:
    """Return the join sent at the next timer call, the only effect."""
    one.handle_timer(now)
    (join,) = effects_of(one)
    return join


def claimed(join: SendJoin) -> tuple[frozenset[TopicPartition], int]:
    """Return the partitions that a join claims, and their generation."""
    ((name, subscription),) = join.subscriptions
    assert name == COOPERATIVE
    return frozenset(
        TopicPartition(o.topic, p) for o in subscription.owned_partitions for p in o.partitions
    ), subscription.generation_id


# ---- the table -------------------------------------------------------------------------------------------------

TOLD = EVENTS | {JoinedAsLeader: LEADS, JoinedAsFollower: FOLLOWS}

ELSEWHERE: dict[tuple[ClassicState, type[GroupEvent]], ClassicState] = {
    # The member releases nothing before it joins,
    **{(state, RebalanceCalled): ClassicState.WAITING for state in (ClassicState.TAKING_OVER, ClassicState.STABLE)},
    **{(state, JoinDue): ClassicState.WAITING for state in (ClassicState.TAKING_OVER, ClassicState.STABLE)},
    **{(state, Resubscribed): ClassicState.WAITING for state in (ClassicState.TAKING_OVER, ClassicState.STABLE)},
    # but has partitions to lose or release during the join.
    **{(state, type(lost)): ClassicState.RELEASING for state in REJOINING for lost in LOST},
    (ClassicState.WAITING, StopMembership): ClassicState.CLOSING,
}
"""Transitions of a member that owns partitions through a join that differ from those of one that does not."""


@pytest.mark.parametrize("is_ready", [True, False], ids=["ready", "taking over"])
@pytest.mark.parametrize("state", FROM)
def test_every_event_is_handled_in_every_state(state, is_ready):
    """An event has a transition, or raises and changes nothing; final states do not change."""
    for event in TOLD.values():
        check_event(state, event, is_ready)


def check_event(state, event, is_ready):
    one = owner_in(state, is_ready=is_ready)
    before = state_of(one)
    rule = TABLE.get((state, type(event)))

    if isinstance(event, HeartbeatOutcome) or state in OVER:
        assert effects_after(one, event) == []
        assert one.state is state
    elif isinstance(event, TakenOver) and state in REJOINING and is_ready:
        # Nothing is being taken over.
        with pytest.raises(AssertionError):
            one.receive(event, NOW)
        assert state_of(one) == before
    elif rule is None:
        with pytest.raises(ValueError, match=f"{type(event).__name__} cannot happen while {state}"):
            one.receive(event, NOW)
        assert state_of(one) == before
        assert effects_of(one) == []
    else:
        one.receive(event, NOW)
        assert one.state is ELSEWHERE.get((state, type(event)), rule.then)
        assert one.state in {rule.then, *rule.exceptions}
    assert one.owned >= {
        p for effect in effects_of(one) if isinstance(effect, TakeOver) for p in effect.added | effect.kept
    }


@pytest.mark.parametrize("is_ready", [True, False], ids=["ready", "taking over"])
@pytest.mark.parametrize("state", FROM)
def test_every_state_can_be_left(state, is_ready):
    """From each state, a stop and the outcomes of the effects in flight lead to a final state, and nothing is owned."""
    one = owner_in(state, is_ready=is_ready)

    effects_after(one, StopMembership())
    if one.state in MOVING:
        one.handle_timer(NOW + PATIENCE_S)
    if one.state is ClassicState.CLOSING:
        effects_after(one, Released())
    if one.state is ClassicState.LEAVING:
        effects_after(one, LeaveAnswered())

    assert one.state in OVER
    assert one.owned == frozenset()
    assert one.next_deadline() is None


# ---- kept partitions -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("is_ready", [True, False], ids=["ready", "taking over"])
def test_join_releases_nothing(is_ready):
    """A join releases no partition; it claims the owned partitions with their generation."""
    one = owner(is_ready=is_ready)

    assert effects_after(one, RebalanceCalled()) == []

    assert claimed(join_of(one)) == (MINE, 7)
    effects_after(one, JoinedAsFollower("me", 8, COOPERATIVE))
    assert one.owned == MINE
    assert one.identity == NEXT


@pytest.mark.parametrize(
    ("synced", "added"),
    [(given(0, 1), of()), (given(0, 1, 2, 5), of(2, 5))],
    ids=["the same", "more"],
)
def test_kept_partitions_are_not_taken_over_again(synced, added):
    """Only new partitions are taken over, and the callbacks are called for every generation."""
    one = owner_in(ClassicState.SYNCING)

    assert effects_after(one, synced) == [TakeOver(added, MINE, NEXT, COOPERATIVE, is_leader=False)]

    assert one.owned == MINE | added
    assert effects_after(one, TakenOver()) == []
    assert one.state is ClassicState.STABLE


def test_revoked_partitions_are_released_before_the_next_join():
    """Revoked partitions are owned until the release is complete; the next join does not claim them."""
    one = owner_in(ClassicState.SYNCING)

    (release,) = effects_after(one, given(0))
    assert release == Release(of(1), is_lost=False, is_last=False, reason="partitions were revoked")
    assert one.owned == MINE
    assert one.is_member

    assert effects_after(one, Released()) == []
    assert one.owned == of(0)
    join = join_of(one)
    assert claimed(join) == (of(0), 8)
    assert join.reason == "partitions were revoked"

    (take_over,) = effects_after(one, JoinedAsFollower("me", 9, COOPERATIVE), given(0))[1:]
    assert (take_over.added, take_over.kept) == (of(), of(0))


def test_partitions_added_beside_a_revocation_are_taken_over_in_the_next_generation():
    """Partitions added beside a revocation are claimed by the next join, so that no other member gets them."""
    one = owner_in(ClassicState.SYNCING)

    (release,) = effects_after(one, given(0, 2))
    assert release.partitions == of(1)
    assert one.owned == of(0, 1, 2)

    effects_after(one, Released())
    assert claimed(join_of(one)) == (of(0, 2), 8)
    (take_over,) = effects_after(one, JoinedAsFollower("me", 9, COOPERATIVE), given(0, 2))[1:]
    assert (take_over.added, take_over.kept) == (of(2), of(0))


def test_member_without_partitions_has_no_session_while_joining():
    """A member whose partitions were all revoked joins as one that owns nothing."""
    one = owner_in(ClassicState.SYNCING)

    (release,) = effects_after(one, Synced(MemberAssignment(())))
    assert release.partitions == MINE

    effects_after(one, Released())
    assert claimed(join_of(one)) == (frozenset(), 8)
    assert one.next_deadline() is None


def test_rebalance_during_a_rebalance_releases_nothing():
    """The member joins again at once with the same claim and generation."""
    one = owner_in(ClassicState.SYNCING)

    assert effects_after(one, RebalanceCalled()) == []

    assert claimed(join_of(one)) == (MINE, 8)


@pytest.mark.parametrize("state", [ClassicState.JOINING, ClassicState.LEADING, ClassicState.SYNCING])
@pytest.mark.parametrize("event", [RetryLater("loading"), CoordinatorGone("moved")])
def test_failed_join_releases_nothing(state, event):
    """A failed join is repeated after a pause with the same claim."""
    one = owner_in(state)
    generation = one.identity.generation

    effects_after(one, event)

    assert one.state is ClassicState.WAITING
    assert claimed(join_of(one, NOW + 0.1)) == (MINE, generation)


def test_leader_leaves_moving_partitions_unassigned():
    """The leader leaves moving partitions unassigned, until their owner has released them."""
    one = owner_in(ClassicState.JOINING)
    mine = MemberSubscription(("t",), owned_partitions=(OwnedPartitions("t", (0, 1)),), generation_id=7)
    news = MemberSubscription(("t",))

    effects_after(one, JoinedAsLeader("me", 8, COOPERATIVE, {"me": mine, "you": news}, {}))
    (sync,) = effects_after(one, PartitionsFound({"t": 2}))
    assert sync.assignments == {
        "me": MemberAssignment((OwnedPartitions("t", (0,)),)),
        "you": MemberAssignment(()),
    }

    effects_after(one, given(0), Released())
    left = MemberSubscription(("t",), owned_partitions=(OwnedPartitions("t", (0,)),), generation_id=8)
    join_of(one)
    effects_after(one, JoinedAsLeader("me", 9, COOPERATIVE, {"me": left, "you": news}, {}))
    (sync,) = effects_after(one, PartitionsFound({"t": 2}))
    assert sync.assignments["you"] == MemberAssignment((OwnedPartitions("t", (1,)),))


def test_leader_that_rebalances_for_a_topic_releases_nothing():
    """A leader that rebalances because a topic has changed keeps its partitions."""
    one = owner_in(ClassicState.LEADING)
    effects_after(one, PartitionsFound({"t": 2}), Synced(ASSIGNMENT), TakenOver())

    assert effects_after(one, MetadataRefreshed({"t": 3})) == []

    join = join_of(one)
    assert claimed(join) == (MINE, 8)
    assert join.reason == "partitions or topics were added or removed"


def test_one_eager_strategy_makes_the_member_eager():
    """A member with an eager strategy releases everything before a join, as the group's choice is unknown."""
    one, _ = beginner(COOPERATIVE, "range")
    effects_after(one, TakenOver())

    (release,) = effects_after(one, RebalanceCalled())
    assert release.partitions == MINE

    effects_after(one, Released())
    join = join_of(one)
    assert [(name, subscription.owned_partitions) for name, subscription in join.subscriptions] == [
        (COOPERATIVE, ()),
        ("range", ()),
    ]


# ---- takeovers during a rebalance ------------------------------------------------------------------------------


@pytest.mark.parametrize("state", REJOINING)
def test_takeover_continues_during_a_join(state):
    """A takeover continues during a join, and its partitions are kept by the next generation."""
    one, take_over = beginner()
    lead_to(one, state)
    assert one.awaits(take_over)

    assert effects_after(one, TakenOver()) == []

    assert one.state is state
    assert not one.awaits(take_over)
    one.handle_timer(NOW)
    if one.state is ClassicState.JOINING:
        effects_after(one, FOLLOWS)
    if one.state is ClassicState.LEADING:
        effects_after(one, PartitionsFound({"t": 2}))
    (again,) = effects_after(one, given(0, 1))
    assert (again.added, again.kept) == (of(), MINE)


def test_incomplete_takeover_is_repeated_in_the_next_generation():
    """The partitions of an incomplete takeover are new again in the next generation."""
    one, first = beginner()
    lead_to(one, ClassicState.SYNCING)

    (second,) = effects_after(one, given(0, 1, 2))

    assert (second.added, second.kept) == (of(0, 1, 2), of())
    assert (one.awaits(first), one.awaits(second)) == (False, True)


@pytest.mark.parametrize(
    ("state", "event", "is_lost"),
    [
        (ClassicState.SYNCING, given(0), False),
        (ClassicState.JOINING, MemberLost("late"), True),
        (ClassicState.JOINING, PAID, False),
        (ClassicState.WAITING, StopMembership(), False),
    ],
    ids=["taken away", "lost", "stop", "stop before the join"],
)
def test_release_or_loss_ends_a_takeover(state, event, is_lost):
    """After a release or a loss, the outcome of a takeover is not awaited."""
    one, take_over = beginner()
    lead_to(one, state)

    (release,) = effects_after(one, event)

    assert release.is_lost == is_lost
    assert (one.awaits(take_over), one.awaits(release)) == (False, True)


# ---- unsubscribed topics ---------------------------------------------------------------------------------------


BOTH = MemberAssignment((OwnedPartitions("t", (0, 1)), OwnedPartitions("u", (0,))))


def with_two_topics(*, is_ready: bool = True) -> ClassicMember:
    """Return an owner of partitions of two topics."""
    return owner(is_ready=is_ready, topics=frozenset("tu"), assigned=BOTH)


@pytest.mark.parametrize("is_ready", [True, False], ids=["ready", "taking over"])
def test_unsubscribed_topics_are_released_before_the_join(is_ready):
    """The join claims only partitions of subscribed topics."""
    one = with_two_topics(is_ready=is_ready)

    effects_after(one, Resubscribed(frozenset("t")))
    one.handle_timer(NOW)
    (release,) = effects_of(one)
    assert release == Release(of(0, topic="u"), is_lost=False, is_last=False, reason="the subscription changed")

    effects_after(one, Released())
    join = join_of(one)
    assert claimed(join) == (MINE, 7)
    assert join.subscriptions[0][1].topics == ("t",)


def test_topics_unsubscribed_during_a_pause_are_released_before_the_join():
    """A join that is repeated after a pause does not claim topics that were unsubscribed in the pause."""
    one = lead_to(with_two_topics(), ClassicState.JOINING)
    effects_after(one, RetryLater("loading"))

    effects_after(one, Resubscribed(frozenset("t")))
    assert one.next_deadline() == pytest.approx(NOW + 0.1)
    one.handle_timer(NOW + 0.1)

    (release,) = [effect for effect in effects_of(one) if isinstance(effect, Release)]
    assert release.partitions == of(0, topic="u")
    effects_after(one, Released(), now=NOW + 1)
    assert claimed(join_of(one, NOW + 1)) == (MINE, 7)


def test_topics_unsubscribed_during_a_release_are_released_after_it():
    """Topics that are unsubscribed during a release are released after it, before the join."""
    one = lead_to(with_two_topics(), ClassicState.SYNCING)
    (release,) = effects_after(one, Synced(MemberAssignment((OwnedPartitions("t", (0,)), OwnedPartitions("u", (0,))))))
    assert release.partitions == of(1)

    effects_after(one, Resubscribed(frozenset("t")), Released())
    one.handle_timer(NOW)
    (release,) = effects_of(one)
    assert release.partitions == of(0, topic="u")

    effects_after(one, Released())
    assert claimed(join_of(one)) == (of(0), 8)


@pytest.mark.parametrize("state", [ClassicState.JOINING, ClassicState.SYNCING])
def test_topics_unsubscribed_during_a_join_are_released_after_it(state):
    """The assignment for the old subscription is not taken over; the member joins again."""
    one = lead_to(with_two_topics(), state)
    assert effects_after(one, Resubscribed(frozenset("t"))) == []
    if state is ClassicState.JOINING:
        effects_after(one, FOLLOWS)

    both = MemberAssignment((OwnedPartitions("t", (0, 1)), OwnedPartitions("u", (0, 1))))
    (release,) = effects_after(one, Synced(both))
    assert release.partitions == of(0, topic="u")

    effects_after(one, Released())
    assert claimed(join_of(one)) == (MINE, 8)


def test_additional_topics_release_nothing():
    """The join carries the new subscription and claims the owned partitions."""
    one = owner()

    assert effects_after(one, Resubscribed(frozenset("tu"))) == []

    join = join_of(one)
    assert claimed(join) == (MINE, 7)
    assert join.subscriptions[0][1].topics == ("t", "u")


# ---- heartbeats during a join ----------------------------------------------------------------------------------


@pytest.mark.parametrize("state", ClassicState)
def test_heartbeats_continue_during_a_join_while_partitions_are_owned(state):
    """Heartbeats continue under the current identity, also while the coordinator holds the join."""
    one = owner_in(state) if state is not ClassicState.IDLE else member(COOPERATIVE)
    owned = one.owned

    one.handle_timer(NOW + INTERVAL_S)

    beats = [effect for effect in effects_of(one) if isinstance(effect, SendHeartbeat)]
    assert beats == ([SendHeartbeat(one.identity, SESSION_S / 3)] if owned else [])
    assert one.is_member == bool(owned)


@pytest.mark.parametrize("state", [ClassicState.WAITING, ClassicState.JOINING])
def test_joining_member_without_partitions_has_no_session(state):
    """A joining member without partitions has no session, as the coordinator may hold the join for long."""
    one, _ = beginner(assigned=MemberAssignment(()))
    lead_to(one, state)

    assert not one.is_member
    assert one.next_deadline() == (NOW if state is ClassicState.WAITING else None)


@pytest.mark.parametrize("outcome", [CoordinatorGone("moved"), RetryLater("loading")])
@pytest.mark.parametrize("state", [ClassicState.WAITING, ClassicState.JOINING])
def test_heartbeat_failed_during_a_join_is_repeated_soon(state, outcome):
    """A heartbeat that fails during a join is repeated soon; it affects neither the join nor the session."""
    one = owner_in(state)

    effects = effects_after(one, HeartbeatOutcome(one.identity, outcome), now=NOW + 1)

    assert effects == ([ForgetCoordinator("moved")] if isinstance(outcome, CoordinatorGone) else [])
    assert one.state is state
    one.handle_timer(NOW + 1.1)
    assert any(isinstance(effect, SendHeartbeat) for effect in effects_of(one))
    assert one.heartbeat_age_s(NOW + 5) == 5


@pytest.mark.parametrize("outcome", [HeartbeatAnswered(), RebalanceCalled()])
def test_rebalance_answer_during_a_join_extends_the_session(outcome):
    """A heartbeat response during a join extends the session also if it reports a rebalance."""
    one = owner_in(ClassicState.JOINING)
    one.handle_timer(NOW + 3)
    effects_of(one)

    assert effects_after(one, HeartbeatOutcome(ME, outcome), now=NOW + 4) == []

    assert one.state is ClassicState.JOINING
    assert one.heartbeat_age_s(NOW + 5) == 2


@pytest.mark.parametrize(
    "outcome", [GenerationLost("late"), MemberLost("late"), FENCED], ids=lambda o: type(o).__name__
)
def test_membership_errors_of_a_heartbeat_are_left_to_the_join(outcome):
    """During a join, a membership error of a heartbeat has no effect, except that the session is not extended."""
    one = owner_in(ClassicState.JOINING)
    one.handle_timer(NOW + 3)
    effects_of(one)

    assert effects_after(one, HeartbeatOutcome(ME, outcome), now=NOW + 4) == []

    assert one.state is ClassicState.JOINING
    assert one.owned == MINE
    assert one.heartbeat_age_s(NOW + 5) == 5
    assert one.next_deadline() == NOW + 7
    one.handle_timer(NOW + 7)
    assert effects_of(one) == [SendHeartbeat(ME, SESSION_S / 3)]


def test_late_answer_to_a_join_does_not_extend_the_session():
    """A late join response does not extend the session, as the group may have reassigned the partitions."""
    one = owner_in(ClassicState.JOINING)
    one.handle_timer(NOW + 3)
    effects_after(one, HeartbeatOutcome(ME, RebalanceCalled()), now=NOW + 4)

    effects_after(one, JoinedAsFollower("me", 8, COOPERATIVE), now=NOW + 12)
    assert one.heartbeat_age_s(NOW + 12) == 9
    one.handle_timer(NOW + 12)
    assert effects_of(one) == [SendHeartbeat(NEXT, SESSION_S / 3)]

    one.handle_timer(NOW + 13)
    (release,) = effects_of(one)
    assert release.is_lost
    assert one.owned == frozenset()


def test_heartbeat_of_the_previous_generation_is_ignored():
    """A heartbeat response of the previous generation, received after that of the join, is ignored."""
    one = owner_in(ClassicState.JOINING)
    one.handle_timer(NOW + 3)
    effects_after(one, JoinedAsFollower("me", 8, COOPERATIVE), now=NOW + 3.5)
    before = state_of(one)

    for outcome in (HeartbeatAnswered(), *LOST, FENCED, CoordinatorGone("moved")):
        assert effects_after(one, HeartbeatOutcome(ME, outcome), now=NOW + 4) == []

    assert state_of(one) == before


@pytest.mark.parametrize("state", WITH_MINE)
def test_session_expired_during_a_join_loses_the_partitions(state):
    """The loss is reported once; then the member joins and claims nothing."""
    one = owner_in(state)
    owned = one.owned

    one.handle_timer(NOW + SESSION_S)

    (release,) = effects_of(one)
    assert release == Release(owned, is_lost=True, is_last=False, reason="no heartbeat was acknowledged for 10.0 s")
    assert one.owned == frozenset()
    assert not one.is_member
    assert one.next_deadline() is None
    effects_after(one, Released(), now=NOW + 11)
    assert claimed(join_of(one, NOW + 11)) == (frozenset(), -1)


@pytest.mark.parametrize("lost", LOST, ids=lambda one: type(one).__name__)
@pytest.mark.parametrize("state", WITH_MINE)
def test_membership_lost_during_a_join_is_reported_once(state, lost):
    """Partitions are reported as lost; then the member joins again, under its id if that is still known."""
    one = owner_in(state)
    me, owned = one.identity, one.owned

    (release,) = effects_after(one, lost)
    assert release == Release(owned, is_lost=True, is_last=False, reason="late")
    assert not one.is_current(me)
    assert effects_after(one, HeartbeatOutcome(me, lost)) == []

    effects_after(one, Released())
    join = join_of(one)
    assert claimed(join) == (frozenset(), -1)
    assert join.member_id == ("" if isinstance(lost, MemberLost) else "me")


@pytest.mark.parametrize("state", ClassicState)
def test_identity_is_current_unless_a_join_is_in_flight(state):
    """Kept partitions may be committed through a rebalance; errors count in the current generation."""
    one = owner_in(state) if state is not ClassicState.IDLE else member(COOPERATIVE)

    assert one.is_member == (state in {*WITH_MINE, ClassicState.CLOSING})
    assert one.is_current(one.identity) == (one.is_member and state is not ClassicState.JOINING)
    assert not one.is_current(Identity("me", 6))


# ---- stopping --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("state", "stop"),
    [*((state, StopMembership()) for state in WITH_MINE if state not in MOVING), *((s, PAID) for s in MOVING)],
)
def test_stop_releases_then_leaves(state, stop):
    """If the group accepts commits or none are due, a stop commits, leaves and ends at once."""
    one = owner_in(state)
    me, owned = one.identity, one.owned

    assert effects_after(one, stop) == [Release(owned, is_lost=False, is_last=True, reason="the consumer stops")]
    assert one.owned == owned
    assert one.is_member

    assert effects_after(one, Released()) == [SendLeave(me, "the consumer stops")]
    assert one.owned == frozenset()
    assert effects_after(one, LeaveAnswered()) == []
    assert one.state is ClassicState.LEFT


def test_join_answered_after_a_stop_is_left():
    """A member whose join is answered after a stop leaves, so that the group does not wait for it."""
    one = owner_in(ClassicState.WAITING)
    join = join_of(one)
    effects_after(one, PAID)
    assert not one.awaits(join)

    one.handle_timer(NOW + 3)
    assert effects_of(one) == [SendHeartbeat(ME, SESSION_S / 3)]
    (release,) = effects_after(one, HeartbeatOutcome(ME, GenerationLost("late")), now=NOW + 3)
    assert release == Release(MINE, is_lost=True, is_last=True, reason="the membership was lost")

    assert effects_after(one, Released()) == [SendLeave(Identity("me", -1), "the consumer stops")]


LAST = Release(MINE, is_lost=False, is_last=True, reason="the consumer stops")


def stopping_in(state: ClassicState, **changes) -> ClassicMember:
    """Return a member that stops in the middle of a rebalance and has offsets to commit."""
    one = owner_in(state, **changes)
    assert effects_after(one, StopMembership()) == []
    assert one.state is state
    return one


@pytest.mark.parametrize("given_now", [given(0, 1), given(0), given(0, 1, 2), given()], ids=str)
@pytest.mark.parametrize("is_ready", [True, False], ids=["ready", "taking over"])
@pytest.mark.parametrize("leads", [True, False], ids=["leader", "follower"])
def test_stop_during_a_rebalance_commits_in_the_next_generation(leads, is_ready, given_now):
    """A member that stops during a rebalance completes it, takes nothing over, commits and releases all partitions."""
    one = stopping_in(ClassicState.JOINING, is_ready=is_ready)

    if leads:
        assert isinstance(effects_after(one, LEADS)[0], FindPartitions)
        (sync,) = effects_after(one, PartitionsFound({"t": 2}))
    else:
        (sync,) = effects_after(one, FOLLOWS)
    assert isinstance(sync, SendSync)
    assert effects_after(one, given_now) == [LAST]

    assert (one.identity, one.is_member, one.owned) == (NEXT, True, MINE)
    one.handle_timer(NOW + PATIENCE_S)
    assert effects_after(one, Released()) == [SendHeartbeat(NEXT, SESSION_S / 3), SendLeave(NEXT, "the consumer stops")]


@pytest.mark.parametrize("state", MOVING)
def test_stop_waits_for_a_rebalance_only_until_the_limit(state):
    """After the limit, a member that stops during a rebalance releases its partitions under its current identity."""
    one = stopping_in(state)
    me = one.identity
    assert one.next_deadline() == NOW + INTERVAL_S

    one.handle_timer(NOW + INTERVAL_S)
    assert effects_of(one) == [SendHeartbeat(me, SESSION_S / 3)]
    assert effects_after(one, HeartbeatOutcome(me, HeartbeatAnswered()), now=NOW + INTERVAL_S) == []
    assert one.next_deadline() == NOW + PATIENCE_S
    one.handle_timer(NOW + PATIENCE_S)

    assert effects_of(one) == [LAST]
    assert (one.state, one.identity) == (ClassicState.CLOSING, me)
    assert one.next_deadline() > NOW + PATIENCE_S


@pytest.mark.parametrize("state", [*MOVING])
@pytest.mark.parametrize("event", [RetryLater("loading"), CoordinatorGone("moved"), RebalanceCalled()], ids=str)
def test_stopping_member_does_not_join_again(state, event):
    """A stopping member whose rebalance fails or starts again releases its partitions instead of joining."""
    one = stopping_in(state)

    effects = effects_after(one, event)

    assert effects == [*([ForgetCoordinator("moved")] if isinstance(event, CoordinatorGone) else []), LAST]
    assert one.state is ClassicState.CLOSING


@pytest.mark.parametrize("lost", LOST, ids=lambda one: type(one).__name__)
@pytest.mark.parametrize("state", MOVING)
def test_membership_lost_while_a_stop_waits_ends(state, lost):
    """A member that is lost while its stop waits reports the loss, and ends without commit or join."""
    one = stopping_in(state)

    (release,) = effects_after(one, lost)

    assert release == Release(MINE, is_lost=True, is_last=True, reason="late")
    assert not one.is_member
    assert one.next_deadline() is None
    effects_after(one, Released(), LeaveAnswered()) if not isinstance(lost, MemberLost) else effects_after(
        one, Released()
    )
    assert one.state is ClassicState.LEFT


@pytest.mark.parametrize("state", MOVING)
def test_static_member_that_stops_during_a_rebalance_commits(state):
    """A static member that stops during a rebalance commits, and keeps its place without a leave."""
    one = stopping_in(state, instance_id="i", leaves_on_stop=False)
    one.handle_timer(NOW + PATIENCE_S)
    assert [effect for effect in effects_of(one) if isinstance(effect, Release)] == [LAST]

    assert effects_after(one, Released()) == []
    assert one.state is ClassicState.LEFT


@pytest.mark.parametrize("state", MOVING)
def test_failure_while_a_stop_waits_ends_the_wait(state):
    """A failure ends the wait of a stop, and leaves no timer."""
    one = stopping_in(state)

    effects_after(one, FAULT)

    one.handle_timer(NOW + PATIENCE_S)
    effects_after(one, LeaveAnswered())
    assert one.is_over


@pytest.mark.parametrize("state", REJOINING)
def test_stop_does_not_wait_for_an_empty_takeover(state):
    """A leave does not wait for the callbacks of an empty assignment."""
    one, take_over = beginner(assigned=MemberAssignment(()))
    lead_to(one, state)
    assert one.awaits(take_over)

    (leave,) = effects_after(one, StopMembership())

    assert isinstance(leave, SendLeave)
    assert not one.awaits(take_over)


# ---- errors of the user's code ---------------------------------------------------------------------------------


def failing_assignor(_members, _partitions):
    """Assignor that fails."""
    raise KeyError("oh")


@pytest.mark.parametrize("is_cooperative", [True, False], ids=["cooperative", "eager"])
def test_failing_assignor_fails_only_its_member(is_cooperative, monkeypatch):
    """A member whose assignor fails leaves and raises the error, and others need not wait for its session."""
    monkeypatch.setattr(failing_assignor, "is_cooperative", is_cooperative, raising=False)
    one = member(failing_assignor)
    effects_after(one, StartMembership())
    one.handle_timer(NOW)
    effects_after(one, JoinedAsLeader("me", 7, "failing_assignor", {"me": MemberSubscription(("t",))}, {}))

    release, fail, leave = effects_after(one, PartitionsFound({"t": 2}))

    assert (release.is_lost, release.is_last) == (True, True)
    assert isinstance(fail, ReportGroupError)
    assert fail.is_fatal
    assert isinstance(fail.error, RebalanceError)
    assert "failing_assignor" in str(fail.error)
    assert leave == SendLeave(Identity("me", 7), "the consumer failed")
    assert effects_after(one, LeaveAnswered()) == []
    assert one.is_over


@pytest.mark.parametrize("state", [*WITH_MINE, ClassicState.CLOSING])
def test_failing_callback_fails_only_its_member(state):
    """In every state, a member whose callback fails loses its partitions, leaves and raises the error."""
    one = owner_in(state)
    me, owned = one.identity, one.owned

    assert effects_after(one, FAULT) == [
        Release(owned, is_lost=True, is_last=True, reason="the callback raised"),
        ReportGroupError(FAULT.error, is_fatal=True),
        SendLeave(me, "the consumer failed"),
    ]

    assert one.owned == frozenset()
    assert not one.is_member
    assert one.state is ClassicState.LEAVING
    effects_after(one, LeaveAnswered())
    assert one.state is ClassicState.LEFT


def test_failing_static_member_keeps_its_place():
    """A static member that fails keeps its place, so that its partitions wait until its session expires."""
    one = owner(instance_id="i", leaves_on_stop=False)

    release, fail = effects_after(one, FAULT)

    assert release.is_lost
    assert isinstance(fail, ReportGroupError)
    assert fail.is_fatal
    assert one.state is ClassicState.FAILED
