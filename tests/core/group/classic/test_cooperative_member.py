"""A classic member that keeps what it owns through a rebalance (KIP-429): rule by rule, and the whole of its table."""

from __future__ import annotations

import pytest

from tailrace.core.group.classic.member import TABLE, ClassicMember
from tailrace.core.group.classic.states import OVER, ClassicState
from tailrace.core.group.effects import (
    FailMembership,
    FindPartitions,
    ForgetCoordinator,
    Release,
    SendHeartbeat,
    SendJoin,
    SendLeave,
    SendSync,
    TakeOver,
)
from tailrace.core.group.events import (
    Beat,
    CoordinatorGone,
    GenerationLost,
    GroupEvent,
    HeartbeatAnswered,
    Identity,
    JoinedAsFollower,
    JoinedAsLeader,
    LeaveAnswered,
    MemberLost,
    MembershipFailed,
    NotNow,
    PartitionsChanged,
    PartitionsFound,
    RebalanceCalled,
    Released,
    Resubscribed,
    SessionOver,
    Stalled,
    StartMembership,
    StopMembership,
    Synced,
    TakenOver,
)
from tailrace.errors import RebalanceError
from tailrace.protocol.member_metadata import MemberAssignment, MemberSubscription, OwnedPartitions
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
from tests.support.simulation.driven_machine import NOW, effects_of, state_of, told

COOPERATIVE = "cooperative-sticky"
NEXT = Identity("me", 8)
FAULT = MembershipFailed(RebalanceError("the callback raised"))
LOST = (GenerationLost("late"), MemberLost("late"), SessionOver("late"))
MOVING = [ClassicState.JOINING, ClassicState.DEALING, ClassicState.SYNCING]
"""The states in which the group may take no commits."""
PAID = StopMembership(is_owing=False)


def of(*partitions: int, topic: str = "t") -> frozenset[TopicPartition]:
    """Partitions of one topic."""
    return frozenset(TopicPartition(topic, number) for number in partitions)


def given(*partitions: int) -> Synced:
    """These are dealt to the member."""
    return Synced(MemberAssignment((OwnedPartitions("t", partitions),)))


LEADS = JoinedAsLeader("me", 8, COOPERATIVE, {"me": MemberSubscription(("t",))}, {})
FOLLOWS = JoinedAsFollower("me", 8, COOPERATIVE)

FROM: dict[ClassicState, tuple[ClassicState | None, GroupEvent | None]] = {
    ClassicState.WAITING: (None, RebalanceCalled()),
    ClassicState.JOINING: (ClassicState.WAITING, None),
    ClassicState.DEALING: (ClassicState.JOINING, LEADS),
    ClassicState.SYNCING: (ClassicState.JOINING, FOLLOWS),
    ClassicState.TAKING_OVER: (ClassicState.SYNCING, given(0, 1, 2)),
    ClassicState.RELEASING: (ClassicState.SYNCING, given(0)),
    ClassicState.STABLE: (ClassicState.TAKING_OVER, TakenOver()),
    ClassicState.STEPPING_AWAY: (ClassicState.STABLE, EVENTS[Stalled]),
    ClassicState.AWAY: (ClassicState.STEPPING_AWAY, Released()),
    ClassicState.CLOSING: (ClassicState.STABLE, StopMembership()),
    ClassicState.LEAVING: (ClassicState.CLOSING, Released()),
    ClassicState.LEFT: (ClassicState.LEAVING, LeaveAnswered()),
    ClassicState.FAILED: (ClassicState.STABLE, FENCED),
}
"""On the way from generation 7 to 8 and on: from where a member comes to a state, and by what; None is the clock."""

WITH_MINE = [*REJOINING, ClassicState.TAKING_OVER, ClassicState.STABLE, ClassicState.RELEASING]


def beginner(*strategies: str, dealt: MemberAssignment = ASSIGNMENT, **changes) -> tuple[ClassicMember, TakeOver]:
    """One that is about to take over what it was dealt in generation 7."""
    one = member(*strategies or (COOPERATIVE,), **changes)
    one.receive(StartMembership(), NOW)
    one.handle_timer(NOW)
    take_over = told(one, JoinedAsFollower("me", 7, COOPERATIVE), Synced(dealt))[-1]
    return one, take_over


def owner(*, is_ready: bool = True, **changes) -> ClassicMember:
    """The same with MINE, which it has taken over if it ``is_ready``."""
    one, _ = beginner(**changes)
    if is_ready:
        one.receive(TakenOver(), NOW)
    return one


def lead_to(one: ClassicMember, state: ClassicState) -> ClassicMember:
    """It goes the way to ``state``, and what it wants done there is done."""
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
    """An owner of MINE that has come to ``state``."""
    return lead_to(owner(is_ready=is_ready, **changes), state)


def join_of(one: ClassicMember, now: float = NOW) -> SendJoin:
    """The join that it sends when it looks at the clock, and nothing else."""
    one.handle_timer(now)
    (join,) = effects_of(one)
    return join


def claimed(join: SendJoin) -> tuple[frozenset[TopicPartition], int]:
    """What a join says the member owns, and as of which generation."""
    ((name, said),) = join.subscriptions
    assert name == COOPERATIVE
    return frozenset(
        TopicPartition(o.topic, p) for o in said.owned_partitions for p in o.partitions
    ), said.generation_id


# ---- the table -------------------------------------------------------------------------------------------------

TOLD = EVENTS | {JoinedAsLeader: LEADS, JoinedAsFollower: FOLLOWS}

ELSEWHERE: dict[tuple[ClassicState, type[GroupEvent]], ClassicState] = {
    # It need not give anything back before it joins,
    **{(state, RebalanceCalled): ClassicState.WAITING for state in (ClassicState.TAKING_OVER, ClassicState.STABLE)},
    **{(state, Resubscribed): ClassicState.WAITING for state in (ClassicState.TAKING_OVER, ClassicState.STABLE)},
    # but it has something to lose, and to give back, while it does.
    **{(state, type(lost)): ClassicState.RELEASING for state in REJOINING for lost in LOST},
    (ClassicState.WAITING, StopMembership): ClassicState.CLOSING,
}
"""Where a member that owns something through a join goes elsewhere than one that does not."""


@pytest.mark.parametrize("is_ready", [True, False], ids=["ready", "taking over"])
@pytest.mark.parametrize("state", FROM)
def test_every_event_in_every_state(state, is_ready):
    """Either the table has a rule, or it raises and nothing has changed; what is over stays over."""
    for event in TOLD.values():
        check_event(state, event, is_ready)


def check_event(state, event, is_ready):
    one = owner_in(state, is_ready=is_ready)
    before = state_of(one)
    rule = TABLE.get((state, type(event)))

    if isinstance(event, Beat) or state in OVER:
        assert told(one, event) == []
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
    """From each state, Stop and the outcome of what is under way lead to the end, with nothing left behind."""
    one = owner_in(state, is_ready=is_ready)

    told(one, StopMembership())
    if one.state in MOVING:
        one.handle_timer(NOW + PATIENCE_S)
    if one.state is ClassicState.CLOSING:
        told(one, Released())
    if one.state is ClassicState.LEAVING:
        told(one, LeaveAnswered())

    assert one.state in OVER
    assert one.owned == frozenset()
    assert one.next_deadline() is None


# ---- what is kept ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("is_ready", [True, False], ids=["ready", "taking over"])
def test_a_join_gives_nothing_back(is_ready):
    """What is owned stays so through the join, which says what that is and as of which generation."""
    one = owner(is_ready=is_ready)

    assert told(one, RebalanceCalled()) == []

    assert claimed(join_of(one)) == (MINE, 7)
    told(one, JoinedAsFollower("me", 8, COOPERATIVE))
    assert one.owned == MINE
    assert one.identity == NEXT


@pytest.mark.parametrize(
    ("synced", "added"),
    [(given(0, 1), of()), (given(0, 1, 2, 5), of(2, 5))],
    ids=["the same", "more"],
)
def test_what_is_kept_is_not_taken_over_again(synced, added):
    """Only what is new is made ready; what is kept is told apart, and the user hears of the new generation anyway."""
    one = owner_in(ClassicState.SYNCING)

    assert told(one, synced) == [TakeOver(added, MINE, NEXT, COOPERATIVE, is_leader=False)]

    assert one.owned == MINE | added
    assert told(one, TakenOver()) == []
    assert one.state is ClassicState.STABLE


def test_what_was_taken_away_is_given_back_then_joined_again():
    """In order, as one's own until it is through; then another join says so, and the next generation deals it out."""
    one = owner_in(ClassicState.SYNCING)

    (release,) = told(one, given(0))
    assert release == Release(of(1), is_lost=False, is_last=False, reason="partitions were revoked")
    assert one.owned == MINE
    assert one.is_member

    assert told(one, Released()) == []
    assert one.owned == of(0)
    join = join_of(one)
    assert claimed(join) == (of(0), 8)
    assert join.reason == "partitions were revoked"

    (take_over,) = told(one, JoinedAsFollower("me", 9, COOPERATIVE), given(0))[1:]
    assert (take_over.added, take_over.kept) == (of(), of(0))


def test_what_comes_with_something_that_goes_is_taken_over_in_the_next_generation():
    """It is claimed by the join that follows, so nobody else gets it meanwhile."""
    one = owner_in(ClassicState.SYNCING)

    (release,) = told(one, given(0, 2))
    assert release.partitions == of(1)
    assert one.owned == of(0, 1, 2)

    told(one, Released())
    assert claimed(join_of(one)) == (of(0, 2), 8)
    (take_over,) = told(one, JoinedAsFollower("me", 9, COOPERATIVE), given(0, 2))[1:]
    assert (take_over.added, take_over.kept) == (of(2), of(0))


def test_all_that_is_owned_may_be_taken_away():
    """Then the member is one that owns nothing: it joins as such, with no session to keep while its join is held."""
    one = owner_in(ClassicState.SYNCING)

    (release,) = told(one, Synced(MemberAssignment(())))
    assert release.partitions == MINE

    told(one, Released())
    assert claimed(join_of(one)) == (frozenset(), 8)
    assert one.next_deadline() is None


def test_a_rebalance_during_a_rebalance_gives_nothing_back():
    """Somebody else came meanwhile: join again at once, with the same claim, as of the generation that was joined."""
    one = owner_in(ClassicState.SYNCING)

    assert told(one, RebalanceCalled()) == []

    assert claimed(join_of(one)) == (MINE, 8)


@pytest.mark.parametrize("state", [ClassicState.JOINING, ClassicState.DEALING, ClassicState.SYNCING])
@pytest.mark.parametrize("event", [NotNow("loading"), CoordinatorGone("moved")])
def test_a_join_that_fails_gives_nothing_back(state, event):
    """It is tried again after a pause, with the same claim."""
    one = owner_in(state)
    generation = one.identity.generation

    told(one, event)

    assert one.state is ClassicState.WAITING
    assert claimed(join_of(one, NOW + 0.1)) == (MINE, generation)


def test_a_leader_gives_what_moves_to_nobody():
    """Its owner lets go first: who is to have it gets it in the next generation, when nobody claims it any more."""
    one = owner_in(ClassicState.JOINING)
    mine = MemberSubscription(("t",), owned_partitions=(OwnedPartitions("t", (0, 1)),), generation_id=7)
    news = MemberSubscription(("t",))

    told(one, JoinedAsLeader("me", 8, COOPERATIVE, {"me": mine, "you": news}, {}))
    (sync,) = told(one, PartitionsFound({"t": 2}))
    assert sync.assignments == {
        "me": MemberAssignment((OwnedPartitions("t", (0,)),)),
        "you": MemberAssignment(()),
    }

    told(one, given(0), Released())
    left = MemberSubscription(("t",), owned_partitions=(OwnedPartitions("t", (0,)),), generation_id=8)
    join_of(one)
    told(one, JoinedAsLeader("me", 9, COOPERATIVE, {"me": left, "you": news}, {}))
    (sync,) = told(one, PartitionsFound({"t": 2}))
    assert sync.assignments["you"] == MemberAssignment((OwnedPartitions("t", (1,)),))


def test_a_leader_that_sees_a_topic_grow_gives_nothing_back():
    """It calls for the next generation by joining it, and keeps what it has."""
    one = owner_in(ClassicState.DEALING)
    told(one, PartitionsFound({"t": 2}), Synced(ASSIGNMENT), TakenOver())

    assert told(one, PartitionsChanged({"t": 3})) == []

    join = join_of(one)
    assert claimed(join) == (MINE, 8)
    assert join.reason == "partitions or topics were added or removed"


def test_one_eager_offer_makes_an_eager_member():
    """Which strategy the group will choose is not known before the join, so all is given back as ``range`` wants it."""
    one, _ = beginner(COOPERATIVE, "range")
    told(one, TakenOver())

    (release,) = told(one, RebalanceCalled())
    assert release.partitions == MINE

    told(one, Released())
    join = join_of(one)
    assert [(name, said.owned_partitions) for name, said in join.subscriptions] == [(COOPERATIVE, ()), ("range", ())]


# ---- a takeover that goes on while the group rebalances --------------------------------------------------------


@pytest.mark.parametrize("state", REJOINING)
def test_a_takeover_goes_on_through_a_join(state):
    """The callbacks run to their end; what they made ready is kept by the generation that follows."""
    one, take_over = beginner()
    lead_to(one, state)
    assert one.awaits(take_over)

    assert told(one, TakenOver()) == []

    assert one.state is state
    assert not one.awaits(take_over)
    one.handle_timer(NOW)
    if one.state is ClassicState.JOINING:
        told(one, FOLLOWS)
    if one.state is ClassicState.DEALING:
        told(one, PartitionsFound({"t": 2}))
    (again,) = told(one, given(0, 1))
    assert (again.added, again.kept) == (of(), MINE)


def test_a_takeover_that_is_not_through_is_begun_anew():
    """The next assignment comes before the callbacks' end: they are cut short, and what they began is new once more."""
    one, first = beginner()
    lead_to(one, ClassicState.SYNCING)

    (second,) = told(one, given(0, 1, 2))

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
def test_a_release_ends_a_takeover(state, event, is_lost):
    """What is given back or lost is not taken over any more; its outcome is nobody's concern."""
    one, take_over = beginner()
    lead_to(one, state)

    (release,) = told(one, event)

    assert release.is_lost == is_lost
    assert (one.awaits(take_over), one.awaits(release)) == (False, True)


# ---- topics that are not wanted any more -----------------------------------------------------------------------


BOTH = MemberAssignment((OwnedPartitions("t", (0, 1)), OwnedPartitions("u", (0,))))


def with_two_topics(*, is_ready: bool = True) -> ClassicMember:
    """One that owns something of two topics."""
    return owner(is_ready=is_ready, topics=frozenset("tu"), dealt=BOTH)


@pytest.mark.parametrize("is_ready", [True, False], ids=["ready", "taking over"])
def test_topics_that_are_not_subscribed_any_more_are_given_back_first(is_ready):
    """Then follows the join, which claims only what is still wanted."""
    one = with_two_topics(is_ready=is_ready)

    told(one, Resubscribed(frozenset("t")))
    one.handle_timer(NOW)
    (release,) = effects_of(one)
    assert release == Release(of(0, topic="u"), is_lost=False, is_last=False, reason="the subscription changed")

    told(one, Released())
    join = join_of(one)
    assert claimed(join) == (MINE, 7)
    assert join.subscriptions[0][1].topics == ("t",)


def test_so_are_those_that_are_dropped_while_a_join_is_put_off():
    """A join that failed is tried again after a pause; what is dropped in the pause is not claimed by it."""
    one = lead_to(with_two_topics(), ClassicState.JOINING)
    told(one, NotNow("loading"))

    told(one, Resubscribed(frozenset("t")))
    assert one.next_deadline() == pytest.approx(NOW + 0.1)
    one.handle_timer(NOW + 0.1)

    (release,) = [effect for effect in effects_of(one) if isinstance(effect, Release)]
    assert release.partitions == of(0, topic="u")
    told(one, Released(), now=NOW + 1)
    assert claimed(join_of(one, NOW + 1)) == (MINE, 7)


def test_so_are_those_that_are_dropped_while_something_else_is_given_back():
    """One release after the other, then the join."""
    one = lead_to(with_two_topics(), ClassicState.SYNCING)
    (release,) = told(one, Synced(MemberAssignment((OwnedPartitions("t", (0,)), OwnedPartitions("u", (0,))))))
    assert release.partitions == of(1)

    told(one, Resubscribed(frozenset("t")), Released())
    one.handle_timer(NOW)
    (release,) = effects_of(one)
    assert release.partitions == of(0, topic="u")

    told(one, Released())
    assert claimed(join_of(one)) == (of(0), 8)


@pytest.mark.parametrize("state", [ClassicState.JOINING, ClassicState.SYNCING])
def test_those_that_are_dropped_during_a_join_are_given_back_after_it(state):
    """What was dealt for the old subscription is not taken over; the member joins again with the new one."""
    one = lead_to(with_two_topics(), state)
    assert told(one, Resubscribed(frozenset("t"))) == []
    if state is ClassicState.JOINING:
        told(one, FOLLOWS)

    told(one, Synced(MemberAssignment((OwnedPartitions("t", (0, 1)), OwnedPartitions("u", (0, 1))))))
    one.handle_timer(NOW)
    (release,) = effects_of(one)
    assert release.partitions == of(0, 1, topic="u")

    told(one, Released())
    assert claimed(join_of(one)) == (MINE, 8)


def test_more_topics_give_nothing_back():
    """The join says what is wanted now, and claims what is owned."""
    one = owner()

    assert told(one, Resubscribed(frozenset("tu"))) == []

    join = join_of(one)
    assert claimed(join) == (MINE, 7)
    assert join.subscriptions[0][1].topics == ("t", "u")


# ---- living through a join -------------------------------------------------------------------------------------


@pytest.mark.parametrize("state", ClassicState)
def test_heartbeats_go_on_while_something_is_owned(state):
    """Also while a join waits and is held, which takes as long as the slowest member; under the name that counts."""
    one = owner_in(state) if state is not ClassicState.IDLE else member(COOPERATIVE)
    owned = one.owned

    one.handle_timer(NOW + INTERVAL_S)

    beats = [effect for effect in effects_of(one) if isinstance(effect, SendHeartbeat)]
    assert beats == ([SendHeartbeat(one.identity, SESSION_S / 3)] if owned else [])
    assert one.is_member == bool(owned)


@pytest.mark.parametrize("state", [ClassicState.WAITING, ClassicState.JOINING])
def test_a_member_that_owns_nothing_has_no_session_while_it_joins(state):
    """There is nothing to lose, and the coordinator holds its join for as long as it likes."""
    one, _ = beginner(dealt=MemberAssignment(()))
    lead_to(one, state)

    assert not one.is_member
    assert one.next_deadline() == (NOW if state is ClassicState.WAITING else None)


@pytest.mark.parametrize("outcome", [CoordinatorGone("moved"), NotNow("loading")])
@pytest.mark.parametrize("state", [ClassicState.WAITING, ClassicState.JOINING])
def test_a_heartbeat_that_failed_during_a_join_is_tried_again_soon(state, outcome):
    """The join goes on as if nothing had happened, and the session goes on counting."""
    one = owner_in(state)

    effects = told(one, Beat(one.identity, outcome), now=NOW + 1)

    assert effects == ([ForgetCoordinator("moved")] if isinstance(outcome, CoordinatorGone) else [])
    assert one.state is state
    one.handle_timer(NOW + 1.1)
    assert any(isinstance(effect, SendHeartbeat) for effect in effects_of(one))
    assert one.heartbeat_age_s(NOW + 5) == 5


@pytest.mark.parametrize("outcome", [HeartbeatAnswered(), RebalanceCalled()])
def test_an_answer_during_a_join_prolongs_the_session(outcome):
    """That the group rebalances is known; that it says so shows that it knows us."""
    one = owner_in(ClassicState.JOINING)
    one.handle_timer(NOW + 3)
    effects_of(one)

    assert told(one, Beat(ME, outcome), now=NOW + 4) == []

    assert one.state is ClassicState.JOINING
    assert one.heartbeat_age_s(NOW + 5) == 2


@pytest.mark.parametrize(
    "outcome", [GenerationLost("late"), MemberLost("late"), FENCED], ids=lambda o: type(o).__name__
)
def test_what_a_heartbeat_hears_of_the_membership_during_a_join_is_the_joins_to_say(outcome):
    """The answer to the join is under way and knows better. Until it comes, nobody has said that we live."""
    one = owner_in(ClassicState.JOINING)
    one.handle_timer(NOW + 3)
    effects_of(one)

    assert told(one, Beat(ME, outcome), now=NOW + 4) == []

    assert one.state is ClassicState.JOINING
    assert one.owned == MINE
    assert one.heartbeat_age_s(NOW + 5) == 5
    assert one.next_deadline() == NOW + 7
    one.handle_timer(NOW + 7)
    assert effects_of(one) == [SendHeartbeat(ME, SESSION_S / 3)]


def test_a_join_whose_answer_is_late_does_not_prolong_the_session():
    """The group counts it from when the answer was sent: it may have given our partitions away by now."""
    one = owner_in(ClassicState.JOINING)
    one.handle_timer(NOW + 3)
    told(one, Beat(ME, RebalanceCalled()), now=NOW + 4)

    told(one, JoinedAsFollower("me", 8, COOPERATIVE), now=NOW + 12)
    assert one.heartbeat_age_s(NOW + 12) == 9
    one.handle_timer(NOW + 12)
    assert effects_of(one) == [SendHeartbeat(NEXT, SESSION_S / 3)]

    one.handle_timer(NOW + 13)
    (release,) = effects_of(one)
    assert release.is_lost
    assert one.owned == frozenset()


def test_a_heartbeat_of_the_generation_before_counts_for_nothing():
    """Its answer comes after that to the join, which it knows nothing of."""
    one = owner_in(ClassicState.JOINING)
    one.handle_timer(NOW + 3)
    told(one, JoinedAsFollower("me", 8, COOPERATIVE), now=NOW + 3.5)
    before = state_of(one)

    for outcome in (HeartbeatAnswered(), *LOST, FENCED, CoordinatorGone("moved")):
        assert told(one, Beat(ME, outcome), now=NOW + 4) == []

    assert state_of(one) == before


@pytest.mark.parametrize("state", WITH_MINE)
def test_a_session_that_ends_during_a_join_loses_what_is_owned(state):
    """At once, and once: another member may have it by now. Then the member joins, and claims nothing."""
    one = owner_in(state)
    owned = one.owned

    one.handle_timer(NOW + SESSION_S)

    (release,) = effects_of(one)
    assert release == Release(owned, is_lost=True, is_last=False, reason="no heartbeat was acknowledged for 10.0 s")
    assert one.owned == frozenset()
    assert not one.is_member
    assert one.next_deadline() is None
    told(one, Released(), now=NOW + 11)
    assert claimed(join_of(one, NOW + 11)) == (frozenset(), -1)


@pytest.mark.parametrize("lost", LOST, ids=lambda one: type(one).__name__)
@pytest.mark.parametrize("state", WITH_MINE)
def test_a_membership_that_is_lost_during_a_join_is_lost_once(state, lost):
    """The group went on without us: all is dropped, then joined anew, as the same member or as a new one."""
    one = owner_in(state)
    me, owned = one.identity, one.owned

    (release,) = told(one, lost)
    assert release == Release(owned, is_lost=True, is_last=False, reason="late")
    assert not one.is_current(me)
    assert told(one, Beat(me, lost)) == []

    told(one, Released())
    join = join_of(one)
    assert claimed(join) == (frozenset(), -1)
    assert join.member_id == ("" if isinstance(lost, MemberLost) else "me")


@pytest.mark.parametrize("state", ClassicState)
def test_who_we_are_matters_unless_a_join_is_in_flight(state):
    """What is kept may be committed through a rebalance; an error counts when it is of the current generation."""
    one = owner_in(state) if state is not ClassicState.IDLE else member(COOPERATIVE)

    assert one.is_member == (state in {*WITH_MINE, ClassicState.CLOSING})
    assert one.is_current(one.identity) == (one.is_member and state is not ClassicState.JOINING)
    assert not one.is_current(Identity("me", 6))


# ---- going -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("state", "stop"),
    [*((state, StopMembership()) for state in WITH_MINE if state not in MOVING), *((s, PAID) for s in MOVING)],
)
def test_a_stop_gives_back_then_leaves(state, stop):
    """At once where the group takes commits or none are owed: commit, good-bye, and only then is it nobody."""
    one = owner_in(state)
    me, owned = one.identity, one.owned

    assert told(one, stop) == [Release(owned, is_lost=False, is_last=True, reason="the consumer stops")]
    assert one.owned == owned
    assert one.is_member

    assert told(one, Released()) == [SendLeave(me, "the consumer stops")]
    assert one.owned == frozenset()
    assert told(one, LeaveAnswered()) == []
    assert one.state is ClassicState.LEFT


def test_a_join_that_is_answered_after_a_stop_is_nothing_to_us():
    """The group waits in vain in a generation that we know nothing of; it is told good-bye as soon as we hear of it."""
    one = owner_in(ClassicState.WAITING)
    join = join_of(one)
    told(one, PAID)
    assert not one.awaits(join)

    one.handle_timer(NOW + 3)
    assert effects_of(one) == [SendHeartbeat(ME, SESSION_S / 3)]
    (release,) = told(one, Beat(ME, GenerationLost("late")), now=NOW + 3)
    assert release == Release(MINE, is_lost=True, is_last=True, reason="the membership was lost")

    assert told(one, Released()) == [SendLeave(Identity("me", -1), "the consumer stops")]


LAST = Release(MINE, is_lost=False, is_last=True, reason="the consumer stops")


def stopping_in(state: ClassicState, **changes) -> ClassicMember:
    """One that is to stop in the middle of a rebalance, and has yet to commit."""
    one = owner_in(state, **changes)
    assert told(one, StopMembership()) == []
    assert one.state is state
    return one


@pytest.mark.parametrize("given_now", [given(0, 1), given(0), given(0, 1, 2), given()], ids=str)
@pytest.mark.parametrize("is_ready", [True, False], ids=["ready", "taking over"])
@pytest.mark.parametrize("leads", [True, False], ids=["leader", "follower"])
def test_a_stop_in_the_middle_of_a_rebalance_commits_in_the_generation_that_follows(leads, is_ready, given_now):
    """Before that the group takes no commits: it plays its part to the end, takes nothing over, and gives all back."""
    one = stopping_in(ClassicState.JOINING, is_ready=is_ready)

    if leads:
        assert isinstance(told(one, LEADS)[0], FindPartitions)
        (sync,) = told(one, PartitionsFound({"t": 2}))
    else:
        (sync,) = told(one, FOLLOWS)
    assert isinstance(sync, SendSync)
    assert told(one, given_now) == [LAST]

    assert (one.identity, one.is_member, one.owned) == (NEXT, True, MINE)
    one.handle_timer(NOW + PATIENCE_S)
    assert told(one, Released()) == [SendHeartbeat(NEXT, SESSION_S / 3), SendLeave(NEXT, "the consumer stops")]


@pytest.mark.parametrize("state", MOVING)
def test_a_stop_waits_so_long_for_a_rebalance_and_no_longer(state):
    """It gives back then, as who it is: a group that still gathers takes the commit. Meanwhile it lives."""
    one = stopping_in(state)
    me = one.identity
    assert one.next_deadline() == NOW + INTERVAL_S

    one.handle_timer(NOW + INTERVAL_S)
    assert effects_of(one) == [SendHeartbeat(me, SESSION_S / 3)]
    assert told(one, Beat(me, HeartbeatAnswered()), now=NOW + INTERVAL_S) == []
    assert one.next_deadline() == NOW + PATIENCE_S
    one.handle_timer(NOW + PATIENCE_S)

    assert effects_of(one) == [LAST]
    assert (one.state, one.identity) == (ClassicState.CLOSING, me)
    assert one.next_deadline() > NOW + PATIENCE_S


@pytest.mark.parametrize("state", [*MOVING])
@pytest.mark.parametrize("event", [NotNow("loading"), CoordinatorGone("moved"), RebalanceCalled()], ids=str)
def test_who_is_to_stop_joins_no_more(state, event):
    """When the rebalance has failed or begins anew, the group takes commits again as far as anybody can tell."""
    one = stopping_in(state)

    effects = told(one, event)

    assert effects == [*([ForgetCoordinator("moved")] if isinstance(event, CoordinatorGone) else []), LAST]
    assert one.state is ClassicState.CLOSING


@pytest.mark.parametrize("lost", LOST, ids=lambda one: type(one).__name__)
@pytest.mark.parametrize("state", MOVING)
def test_a_membership_that_is_lost_while_a_stop_waits_is_lost_for_good(state, lost):
    """There is nothing to commit for any more, and nothing to join: the user is told, and that is the end."""
    one = stopping_in(state)

    (release,) = told(one, lost)

    assert release == Release(MINE, is_lost=True, is_last=True, reason="late")
    assert not one.is_member
    assert one.next_deadline() is None
    told(one, Released(), LeaveAnswered()) if not isinstance(lost, MemberLost) else told(one, Released())
    assert one.state is ClassicState.LEFT


@pytest.mark.parametrize("state", MOVING)
def test_a_static_member_that_stops_in_a_rebalance_commits_too(state):
    """It keeps its place without a word, and what it has done is committed all the same."""
    one = stopping_in(state, instance_id="i", leaves_on_stop=False)
    one.handle_timer(NOW + PATIENCE_S)
    assert [effect for effect in effects_of(one) if isinstance(effect, Release)] == [LAST]

    assert told(one, Released()) == []
    assert one.state is ClassicState.LEFT


@pytest.mark.parametrize("state", MOVING)
def test_what_fails_while_a_stop_waits_ends_it(state):
    """The wait is over with it, and no timer is left behind."""
    one = stopping_in(state)

    told(one, FAULT)

    one.handle_timer(NOW + PATIENCE_S)
    told(one, LeaveAnswered())
    assert one.is_over


@pytest.mark.parametrize("state", REJOINING)
def test_a_takeover_of_nothing_does_not_outlast_a_stop(state):
    """Callbacks run for an empty assignment too; nobody waits for their end when the member leaves."""
    one, take_over = beginner(dealt=MemberAssignment(()))
    lead_to(one, state)
    assert one.awaits(take_over)

    (leave,) = told(one, StopMembership())

    assert isinstance(leave, SendLeave)
    assert not one.awaits(take_over)


# ---- a fault of the user's ------------------------------------------------------------------------------------


def deals_badly(_members, _partitions):
    """An assignor that fails."""
    raise KeyError("oh")


@pytest.mark.parametrize("is_cooperative", [True, False], ids=["cooperative", "eager"])
def test_an_assignor_that_fails_fails_its_member_alone(is_cooperative, monkeypatch):
    """It tells its user and leaves, so that the others need not wait for its session to end."""
    monkeypatch.setattr(deals_badly, "is_cooperative", is_cooperative, raising=False)
    one = member(deals_badly)
    told(one, StartMembership())
    one.handle_timer(NOW)
    told(one, JoinedAsLeader("me", 7, "deals_badly", {"me": MemberSubscription(("t",))}, {}))

    release, fail, leave = told(one, PartitionsFound({"t": 2}))

    assert (release.is_lost, release.is_last) == (True, True)
    assert isinstance(fail, FailMembership)
    assert isinstance(fail.error, RebalanceError)
    assert "deals_badly" in str(fail.error)
    assert leave == SendLeave(Identity("me", 7), "the consumer failed")
    assert told(one, LeaveAnswered()) == []
    assert one.is_over


@pytest.mark.parametrize("state", [*WITH_MINE, ClassicState.CLOSING])
def test_a_callback_that_fails_fails_its_member_alone(state):
    """Whenever it does: what is owned is dropped, the user is told, and the group is left."""
    one = owner_in(state)
    me, owned = one.identity, one.owned

    assert told(one, FAULT) == [
        Release(owned, is_lost=True, is_last=True, reason="the callback raised"),
        FailMembership(FAULT.error),
        SendLeave(me, "the consumer failed"),
    ]

    assert one.owned == frozenset()
    assert not one.is_member
    assert one.state is ClassicState.LEAVING
    told(one, LeaveAnswered())
    assert one.state is ClassicState.LEFT


def test_a_static_member_that_fails_keeps_its_place():
    """It means to be back, so its partitions wait for it as long as its session would."""
    one = owner(instance_id="i", leaves_on_stop=False)

    release, fail = told(one, FAULT)

    assert release.is_lost
    assert isinstance(fail, FailMembership)
    assert one.state is ClassicState.FAILED
