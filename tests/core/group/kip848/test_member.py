"""The membership under KIP-848: the whole of its table, and what it does in the course of a life."""

from __future__ import annotations

import copy
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tailrace.core.group import events as membership_events
from tailrace.core.group.effects import (
    EmitGroupEvent,
    FailMembership,
    ForgetCoordinator,
    NameTopics,
    Release,
    SendGroupHeartbeat,
    SendLeave,
    TakeOver,
)
from tailrace.core.group.events import (
    Beat,
    CoordinatorGone,
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
    MembershipFailed,
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
    StartMembership,
    StopDue,
    StopMembership,
    Synced,
    TakenOver,
    TopicsNamed,
)
from tailrace.core.group.kip848.member import TABLE, Kip848Member
from tailrace.core.group.kip848.states import ALIVE, OVER, Kip848State
from tailrace.core.group.membership import MemberSettings
from tailrace.errors import FencedMemberError, RebalanceError
from tailrace.protocol.member_metadata import MemberAssignment
from tailrace.records import TopicPartition
from tests.support.simulation.driven_machine import NOW, check_events, effects_of, state_of, told

SESSION_S, INTERVAL_S = 45.0, 5.0
T, U, V = (UUID(int=n) for n in (1, 2, 3))
NAMES = {T: "t", U: "u"}
"""V has none: the picture does not know it."""
UNREAD = RebalanceError("the application does not poll")
FENCED = MembershipFailed(FencedMemberError("fenced"))

RECONCILING = (Kip848State.STABLE, Kip848State.RELEASING, Kip848State.TAKING_OVER)


def answer(epoch: int = 7, assigned: dict[UUID, tuple[int, ...]] | None = None, **changes) -> GroupHeartbeatAnswered:
    """What the group says to a heartbeat."""
    return GroupHeartbeatAnswered(
        **{"member_id": "me", "epoch": epoch, "interval_s": INTERVAL_S} | changes, assigned=assigned
    )


def parts(*names: str) -> frozenset[TopicPartition]:
    """``parts("t0", "u1")``."""
    return frozenset(TopicPartition(name[0], int(name[1:])) for name in names)


EVENTS: dict[type[GroupEvent], GroupEvent] = {
    type(one): one
    for one in (
        StartMembership(),
        Resubscribed(frozenset("u")),
        JoinDue(),
        MemberIdGiven("me"),
        JoinedAsFollower("me", 7, "range"),
        JoinedAsLeader("me", 7, "range", {}, {}),
        PartitionsFound({"t": 2}),
        Synced(MemberAssignment(())),
        TakenOver(),
        Released(),
        PartitionsChanged({"t": 2}),
        HeartbeatAnswered(),
        Beat(Identity("me", 7), HeartbeatAnswered()),
        answer(),
        InstanceReleased(),
        TopicsNamed({}),
        SessionKnown(30.0),
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
        StopMembership(),
        StopDue(),
    )
}


def member(**changes) -> Kip848Member:
    """One that has not started."""
    settings = {
        "group_id": "g",
        "topics": frozenset("t"),
        "session_timeout_s": SESSION_S,
        "heartbeat_interval_s": 3.0,
        "rebalance_timeout_s": 60.0,
        "request_timeout_s": 30.0,
        "retry_first_s": 0.1,
        "retry_longest_s": 1.0,
        "leaves_on_stop": True,
    }
    return Kip848Member(MemberSettings(**settings | changes), "me", lambda: 0.5)


def beat(one: Kip848Member, now: float = NOW) -> SendGroupHeartbeat:
    """The heartbeat that goes out at ``now``."""
    one.handle_timer(now)
    (sent,) = effects_of(one)
    assert isinstance(sent, SendGroupHeartbeat)
    return sent


def joining(**changes) -> Kip848Member:
    """One whose first heartbeat is under way."""
    one = member(**changes)
    told(one, StartMembership())
    beat(one)
    return one


def owning(*names: str, now: float = NOW, **changes) -> Kip848Member:
    """One that has taken these over and has nothing more to say."""
    one = joining(**changes)
    assign(one, *names, epoch=7)
    told(one, TopicsNamed(NAMES))
    told(one, TakenOver(), now=now)
    if names:
        beat(one, now)
        told(one, answer(), now=now)
    assert one.state is Kip848State.STABLE
    return one


def assign(one: Kip848Member, *names: str, epoch: int = 8, now: float = NOW) -> list[object]:
    """What it wants done when a target arrives; the names of ``names`` are the topics' first letters."""
    ids = {"t": T, "u": U, "v": V}
    assigned: dict[UUID, tuple[int, ...]] = {}
    for topic, n in sorted(parts(*names)):
        assigned[ids[topic]] = (*assigned.get(ids[topic], ()), n)
    return told(one, answer(epoch, assigned), now=now)


def asking(one: Kip848Member, now: float = NOW) -> Kip848Member:
    """The same, with a heartbeat under way."""
    if one.next_deadline() is not None:
        one.handle_timer(min(one.next_deadline(), now + INTERVAL_S))
        effects_of(one)
    return one


THEN: dict[Kip848State, list[GroupEvent]] = {
    Kip848State.LOSING: [MemberLost("late")],
    Kip848State.CLOSING: [StopMembership()],
    Kip848State.LEAVING: [StopMembership(), Released()],
    Kip848State.LEFT: [StopMembership(), Released(), LeaveAnswered()],
    Kip848State.FAILED: [FENCED],
}
"""What leads from an owner to the states in which there is nothing more to be owned."""


def not_read_from(*then: GroupEvent, **changes) -> Kip848Member:
    """One that steps out of the group, or has."""
    one = owning("t0", "t1", **changes)
    told(one, Stalled(UNREAD), *then)
    return one


def member_in(state: Kip848State, **changes) -> Kip848Member:
    """One that has come to ``state``, owns t0 and t1 where it may own, and has asked all that may be asked there."""
    if state is Kip848State.IDLE:
        return member(**changes)
    if state is Kip848State.JOINING:
        return joining(**changes)
    if state in {Kip848State.STEPPING_AWAY, Kip848State.AWAY}:
        return not_read_from(*[Released()] * (state is Kip848State.AWAY), **changes)
    if state is Kip848State.TAKING_OVER:
        one = joining(**changes)
        assign(one, "t0", "t1", "v0", epoch=7)
        told(one, TopicsNamed(NAMES))
        one.handle_timer(NOW + 0.1)
        effects_of(one)
    else:
        one = asking(owning("t0", "t1", **changes), NOW + INTERVAL_S)
        assign(one, *(("t0", "v0") if state is Kip848State.RELEASING else ("t0", "t1", "v0")), epoch=7)
    if one.state in RECONCILING:
        asking(one)
    told(one, *THEN.get(state, ()))
    assert one.state is state
    return one


# ---- the table -------------------------------------------------------------------------------------------------


def test_every_event_there_is_is_tried():
    """The examples of this file leave none out."""
    check_events(membership_events, GroupEvent, TABLE, EVENTS)


@pytest.mark.parametrize("state", Kip848State)
def test_every_event_in_every_state(state):
    """Either the table has a rule, or it raises and nothing has changed; what is over stays over."""
    for event in EVENTS.values():
        check_event(state, event)


def check_event(state, event):
    one = member_in(state)
    before = state_of(one)

    if state in OVER:
        assert told(one, event) == []
        assert one.state is state
    elif (rule := TABLE.get((state, type(event)))) is None:
        with pytest.raises(ValueError, match=f"{type(event).__name__} cannot happen while {state}"):
            one.receive(event, NOW)
        assert state_of(one) == before
        assert effects_of(one) == []
    else:
        told(one, event)
        assert one.state in {rule.then, *rule.exceptions}


@given(st.lists(st.tuples(st.sampled_from(list(EVENTS)), st.floats(0, 20)), max_size=30))
def test_whatever_comes_in_whatever_order(sequence):
    """A rule or an error, in every order and at every time; an error changes nothing, and what is over stays over."""
    one, now = member(), NOW
    told(one, StartMembership())
    for kind, later in sequence:
        now += later
        one.handle_timer(now)
        effects_of(one)
        before, state = state_of(one), one.state
        try:
            one.receive(EVENTS[kind], now)
            assert state in OVER or one.state in {TABLE[state, kind].then, *TABLE[state, kind].exceptions}
        except ValueError:
            assert state_of(one) == before
            assert (state, kind) not in TABLE or kind in {GroupHeartbeatAnswered, InstanceReleased, TopicsNamed}
        assert state not in OVER or one.state is state
        assert not one.is_member or one.state in ALIVE
        assert one.owned == frozenset() or one.state in ALIVE


@pytest.mark.parametrize("event", [answer(), TopicsNamed({})], ids=["heartbeat", "names"])
def test_nobody_is_told_what_was_not_asked(event):
    """An answer to no question raises, in a state too in which there may be one."""
    one = owning("t0")
    before = state_of(one)

    with pytest.raises(ValueError, match=f"{type(event).__name__} cannot happen while stable"):
        one.receive(event, NOW)

    assert state_of(one) == before


@pytest.mark.parametrize("state", Kip848State)
def test_every_state_can_be_left(state):
    """From each state, Stop and the outcome of what is under way lead to the end."""
    one = member_in(state)

    told(one, StopMembership())
    if one.state is Kip848State.CLOSING:
        told(one, Released())
    if one.state is Kip848State.LEAVING:
        told(one, LeaveAnswered())

    assert one.state in OVER
    assert one.is_over
    assert one.next_deadline() is None


@pytest.mark.parametrize("state", Kip848State)
def test_a_fatal_error_ends_it_from_every_state(state):
    """What it has is dropped, the user is told, and nothing follows."""
    one = member_in(state)
    owned = one.owned

    effects = told(one, FENCED)

    if state in OVER:
        assert effects == []
    elif state is Kip848State.LEAVING:
        assert effects == [FailMembership(FENCED.error)]
    else:
        assert effects == [Release(owned, is_lost=True, is_last=True, reason="fenced"), FailMembership(FENCED.error)]
        assert one.state is Kip848State.FAILED
    assert one.owned == frozenset()
    assert not one.is_member
    one.handle_timer(NOW + 1_000)
    assert told(one, StopMembership(), now=NOW + 1_000) == []


def test_who_is_not_read_from_steps_aside():
    """It says good-bye, drops what others will have, and joins again under its id when somebody reads."""
    one = owning("t0", "t1")

    *telling, release = told(one, Stalled(UNREAD))

    assert telling == [SendLeave(Identity("me", -1), "the application does not poll"), EmitGroupEvent(UNREAD)]
    assert release == Release(parts("t0", "t1"), is_lost=True, is_last=False, reason="the application does not poll")
    assert told(one, Released()) == []
    assert one.next_deadline() is None
    told(one, Returned())
    assert beat(one).identity == Identity("me", 0)


def test_who_comes_back_at_once_joins_at_once():
    """A reader that returns while the loss is being told is not forgotten."""
    one = owning("t0")
    told(one, Stalled(UNREAD), Returned(), Released())

    assert beat(one).identity == Identity("me", 0)


def test_who_fails_by_its_own_fault_says_good_bye():
    """A callback that raised ends the member, and the others have its partitions at once; what follows is told too."""
    one, error = member_in(Kip848State.TAKING_OVER), RebalanceError("the callback raised")

    release, fail, leave = told(one, MembershipFailed(error))

    assert (release.partitions, release.is_lost, fail.error) == (parts("t0", "t1"), True, error)
    assert leave == SendLeave(Identity("me", -1), "the consumer failed")
    assert one.awaits(leave)
    assert not one.awaits(release)
    assert told(one, MembershipFailed(error)) == [fail]
    told(one, LeaveAnswered())
    assert one.state is Kip848State.LEFT


def test_who_fails_and_does_not_leave_is_missed_in_the_end():
    """Nobody knows it, or it means to be back: it ends without a word."""
    for one in (member(), member_in(Kip848State.STABLE, leaves_on_stop=False, instance_id="i")):
        told(one, MembershipFailed(RebalanceError("the callback raised")))

        assert one.state is Kip848State.FAILED


# ---- becoming a member -----------------------------------------------------------------------------------------


def test_the_first_heartbeat_says_everything():
    """Epoch 0 joins: what is wanted, how long a rebalance may take, and that nothing is owned."""
    one = member(topics=frozenset("tu"), rack="r", remote_assignor="range", instance_id="i")

    assert told(one, StartMembership()) == []
    assert one.next_deadline() == NOW

    assert beat(one) == SendGroupHeartbeat(
        Identity("me", 0, "i"),
        timeout_s=SESSION_S / 3,
        topics=frozenset("tu"),
        assignor="range",
        rebalance_timeout_s=60.0,
        rack="r",
        owned={},
    )
    assert one.next_deadline() is None
    assert not one.is_member


def test_a_pattern_is_the_brokers_to_resolve():
    """It is sent instead of topics, whichever of them match at the moment."""
    one = member(pattern="t.*", topics=frozenset())
    told(one, StartMembership())

    sent = beat(one)
    told(one, answer(1, {}))
    told(one, TakenOver())

    assert (sent.pattern, sent.topics) == ("t.*", frozenset())
    assert told(one, Resubscribed(frozenset("tu"))) == []
    assert one.next_deadline() == NOW + INTERVAL_S


def test_the_first_assignment_is_taken_over():
    """Names are found out, the partitions made ready, and only then is the group told that they are owned."""
    one = joining(instance_id="i")

    assert assign(one, "t0", "t1", "u0", epoch=3) == [NameTopics(frozenset({T, U}))]
    assert one.state is Kip848State.STABLE
    assert one.is_member
    me = Identity("me", 3, "i")
    assert one.is_current(me)

    mine = parts("t0", "t1", "u0")
    assert told(one, TopicsNamed(NAMES)) == [TakeOver(mine, frozenset(), me, "the broker's choice", is_leader=False)]
    assert one.state is Kip848State.TAKING_OVER
    assert one.owned == mine
    assert one.next_deadline() == NOW + INTERVAL_S

    assert told(one, TakenOver(), now=NOW + 1) == []
    assert one.state is Kip848State.STABLE
    assert beat(one, NOW + 1) == SendGroupHeartbeat(me, SESSION_S / 3, owned={T: (0, 1), U: (0,)})


def test_the_assignor_that_was_asked_for_is_named():
    """Whoever watches is told which one deals."""
    one = joining(remote_assignor="range")

    (take_over,) = assign(one)

    assert take_over.protocol == "range"


def test_an_empty_assignment_is_heard_of_once():
    """The first after a join is told to the user, even if it gives nothing; the same again is no news."""
    one = joining()

    (take_over,) = assign(one, epoch=1)
    assert (take_over.added, take_over.kept) == (frozenset(), frozenset())
    assert told(one, TakenOver()) == []

    beat(one, NOW + INTERVAL_S)
    assert assign(one, epoch=1, now=NOW + INTERVAL_S) == []
    assert one.state is Kip848State.STABLE
    assert one.next_deadline() == NOW + 2 * INTERVAL_S


def test_the_same_assignment_again_changes_nothing():
    """A full heartbeat is answered with all that is ours, and we have that."""
    one = owning("t0")
    beat(one, NOW + INTERVAL_S)

    assert assign(one, "t0", epoch=9, now=NOW + INTERVAL_S) == []

    assert one.state is Kip848State.STABLE
    assert one.identity == Identity("me", 9)


# ---- a join that goes wrong ------------------------------------------------------------------------------------


@pytest.mark.parametrize("event", [NotNow("loading"), CoordinatorGone("moved"), RebalanceCalled()])
def test_pauses_between_joins_grow(event):
    """Asked again after a pause, twice as long each time, up to the longest, and everything is said again."""
    one, pauses, now = joining(), [], NOW

    for _ in range(6):
        effects = told(one, event, now=now)
        assert effects == ([ForgetCoordinator("moved")] if isinstance(event, CoordinatorGone) else [])
        pauses.append(one.next_deadline() - now)
        now = one.next_deadline()
        assert beat(one, now).owned == {}

    assert one.state is Kip848State.JOINING
    assert pauses == pytest.approx([0.1, 0.2, 0.4, 0.8, 1.0, 1.0])


def test_a_pause_is_kept():
    """Looking at the clock early sends nothing, and a new subscription is no reason to hurry."""
    one = joining()
    told(one, NotNow("loading"), Resubscribed(frozenset("u")))

    one.handle_timer(NOW + 0.09)

    assert effects_of(one) == []
    assert beat(one, NOW + 0.1).topics == frozenset("u")


@pytest.mark.parametrize("event", [GenerationLost("fenced"), MemberLost("unknown")])
def test_a_join_that_is_refused_is_tried_again_later(event):
    """A broker that still knows who we were refuses until it has forgotten: no hurry, and the same id."""
    one = joining()

    assert told(one, event) == []

    assert one.state is Kip848State.JOINING
    assert one.next_deadline() == pytest.approx(NOW + 0.1)
    assert beat(one, NOW + 0.1).identity == Identity("me", 0)


# ---- a name of its own (KIP-345) -------------------------------------------------------------------------------

BACK = Identity("me", -2, "i")


def test_the_first_join_of_a_static_member_asks_plainly():
    """A newcomer lets go of nobody's name, and one that was refused as its name is held goes on asking so."""
    one = member(instance_id="i")
    told(one, StartMembership())

    assert beat(one).identity == Identity("me", 0, "i")
    told(one, GenerationLost("UNRELEASED_INSTANCE_ID, which the user wants to be tried again"))
    assert beat(one, NOW + 1).identity == Identity("me", 0, "i")


@pytest.mark.parametrize("event", [CoordinatorGone("cut"), NotNow("loading")])
def test_a_static_member_whose_join_may_have_counted_lets_go_of_its_name_first(event):
    """After the usual pause it says -2 and nothing else until the group has let go; then it joins at once."""
    one = joining(instance_id="i")
    told(one, event)

    assert beat(one, NOW + 0.1) == SendGroupHeartbeat(BACK, SESSION_S / 3)
    told(one, CoordinatorGone("cut"))
    assert beat(one, NOW + 1).identity == BACK
    assert told(one, InstanceReleased(), now=NOW + 1) == []
    again = beat(one, NOW + 1)
    assert (again.identity, again.topics, again.owned) == (Identity("me", 0, "i"), frozenset("t"), {})


@pytest.mark.parametrize(
    ("event", "epoch"), [(GenerationLost("fenced"), -2), (SessionOver("silence"), -2), (MemberLost("unknown"), 0)]
)
def test_a_static_member_that_is_lost_lets_go_of_its_name_unless_it_is_unknown(event, epoch):
    """What was too long a silence for us may not have been one for the broker that came after."""
    one = owning("t0", instance_id="i")
    told(one, event, Released())

    assert beat(one).identity == Identity("me", epoch, "i")


def test_a_static_member_that_was_let_in_after_all_does_not_let_go():
    """The answer that was given up comes before the next word: it counts."""
    one = joining(instance_id="i")
    told(one, NotNow("a commit was refused"), answer(3, {}), TakenOver())

    assert beat(one, NOW + INTERVAL_S).identity == Identity("me", 3, "i")


@pytest.mark.parametrize("then", [[], [InstanceReleased()]])
def test_a_static_member_that_has_let_go_still_leaves_for_good(then):
    """Its place is kept by the group until it is given up, which leave_on_stop promises."""
    one = joining(instance_id="i")
    told(one, CoordinatorGone("cut"))
    beat(one, NOW + 1)

    left = told(one, *then, StopMembership())

    assert left == [SendLeave(Identity("me", -1, "i"), "the consumer stops")]


def test_an_answer_forgets_the_failures():
    """The next trouble begins with a short pause again."""
    one = joining()
    for _ in range(3):
        told(one, NotNow("loading"))
        beat(one, NOW + 100)
    told(one, answer(1, {}), TakenOver(), now=NOW + 100)
    beat(one, NOW + 105)

    told(one, NotNow("loading"), now=NOW + 105)

    assert one.next_deadline() == pytest.approx(NOW + 105.1)


# ---- living ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("state", Kip848State)
def test_heartbeats_go_out_while_the_group_counts_us(state):
    """From the join on, through callbacks, drain and the last commit; not while a loss is being told."""
    one = member_in(state)
    speaks = state in ALIVE or state is Kip848State.JOINING
    if speaks:
        told(one, NotNow("loading"))

    one.handle_timer(NOW + INTERVAL_S + 1)

    beats = [effect.identity.generation for effect in effects_of(one) if isinstance(effect, SendGroupHeartbeat)]
    assert beats == ([0 if state is Kip848State.JOINING else 7] if speaks else [])


def test_heartbeats_keep_the_interval_that_the_broker_says():
    """Each an interval after the answer to the one before, and they say only that we live."""
    one = owning("t0")
    now, times = NOW, []

    for interval_s in (5.0, 5.0, 1.0, 1.0, 5.0):
        now = one.next_deadline()
        times.append(now - NOW)
        assert beat(one, now) == SendGroupHeartbeat(Identity("me", 7), SESSION_S / 3)
        told(one, answer(interval_s=interval_s), now=now + 0.5)

    assert times == [5.0, 10.5, 16.0, 17.5, 19.0]


def test_no_heartbeat_before_the_answer_to_the_last():
    """What is due then waits; the session does not."""
    one = owning("t0")
    beat(one, NOW + 5)

    told(one, Resubscribed(frozenset("u")), now=NOW + 6)
    one.handle_timer(NOW + 20)

    assert effects_of(one) == []
    assert one.next_deadline() == NOW + SESSION_S
    told(one, answer(), now=NOW + 21)
    assert beat(one, NOW + 21).topics == frozenset("u")


@pytest.mark.parametrize("event", [NotNow("loading"), CoordinatorGone("moved")])
@pytest.mark.parametrize("state", sorted(ALIVE))
def test_after_a_heartbeat_that_failed_the_next_says_everything(state, event):
    """Nobody knows what arrived; the membership is none the worse for it, and the session goes on counting."""
    one = member_in(state)
    age_s = one.heartbeat_age_s(NOW + 5)

    effects = told(one, event, now=NOW + 5)

    assert effects == ([ForgetCoordinator("moved")] if isinstance(event, CoordinatorGone) else [])
    assert one.state is state
    assert one.next_deadline() == pytest.approx(NOW + 5.1)
    one.handle_timer(NOW + 5.1)
    sent = next(effect for effect in effects_of(one) if isinstance(effect, SendGroupHeartbeat))
    assert sent == SendGroupHeartbeat(
        Identity("me", 7), SESSION_S / 3, topics=frozenset("t"), rebalance_timeout_s=60.0, owned={T: (0, 1)}
    )
    assert one.heartbeat_age_s(NOW + 5) == age_s


def test_a_commit_of_an_old_epoch_asks_for_the_new_one():
    """The group has gone on to another epoch: a heartbeat soon brings it, and has nothing to repeat."""
    one = owning("t0")

    assert told(one, NotNow("OffsetCommit: STALE_MEMBER_EPOCH")) == []

    assert one.next_deadline() == pytest.approx(NOW + 0.1)
    assert beat(one, NOW + 0.1) == SendGroupHeartbeat(Identity("me", 7), SESSION_S / 3)


def test_a_heartbeat_in_flight_may_still_be_answered():
    """The trouble may have been a commit's: an answer that comes before the next heartbeat goes out is a good one."""
    one = owning("t0")
    sent = beat(one, NOW + 5)
    told(one, NotNow("OffsetCommit: STALE_MEMBER_EPOCH"), now=NOW + 5)

    assert one.awaits(sent)
    told(one, answer(8), now=NOW + 5.05)

    assert one.identity == Identity("me", 8)
    assert beat(one, NOW + 10.05) == SendGroupHeartbeat(Identity("me", 8), SESSION_S / 3)


def test_a_new_subscription_is_said_at_once():
    """What comes of it the group decides: nothing is given back before it says so."""
    one = owning("t0")

    assert told(one, Resubscribed(frozenset("uv"))) == []

    assert beat(one) == SendGroupHeartbeat(Identity("me", 7), SESSION_S / 3, topics=frozenset("uv"))
    told(one, answer(), Resubscribed(frozenset("uv")))
    assert one.next_deadline() == NOW + INTERVAL_S


def test_a_subscription_that_changes_during_a_join_follows_it():
    """The next heartbeat goes out as soon as the join is answered."""
    one = joining()
    told(one, Resubscribed(frozenset("u")))

    assign(one, epoch=1)

    assert beat(one).topics == frozenset("u")


def test_the_session_is_the_brokers():
    """Until it has said how long it waits, the option is the guess."""
    one = owning("t0")
    assert one.next_deadline() == NOW + INTERVAL_S
    beat(one, NOW + 5)
    assert one.next_deadline() == NOW + SESSION_S

    told(one, SessionKnown(12.0))

    assert one.next_deadline() == NOW + 12
    told(one, NotNow("loading"), now=NOW + 6)
    assert beat(one, NOW + 6.1).timeout_s == 4.0


def test_the_session_counts_from_the_sending_of_the_last_good_heartbeat():
    """The broker heard it later than that, so we never outlive what it knows of us."""
    one = owning("t0")
    beat(one, NOW + 5)
    told(one, answer(), now=NOW + 9)
    beat(one, NOW + 14)

    assert one.heartbeat_age_s(NOW + 14) == 9
    one.handle_timer(NOW + 5 + SESSION_S - 0.1)
    assert one.state is Kip848State.STABLE
    one.handle_timer(NOW + 5 + SESSION_S)
    assert one.state is Kip848State.LOSING


# ---- names -----------------------------------------------------------------------------------------------------


def test_what_has_no_name_yet_is_left_for_later():
    """The rest is taken over; what is missing is asked for again after a pause that grows."""
    one = joining()
    assign(one, "t0", "v0", epoch=1)

    (take_over,) = told(one, TopicsNamed({T: "t"}))
    assert take_over.added == parts("t0")
    told(one, TakenOver())
    beat(one)
    told(one, answer())

    pauses, now = [], NOW
    for _ in range(5):
        pauses.append(one.next_deadline() - now)
        now = one.next_deadline()
        one.handle_timer(now)
        assert effects_of(one) == [NameTopics(frozenset({V}))]
        assert told(one, TopicsNamed({}), now=now) == []
    assert pauses == pytest.approx([0.1, 0.2, 0.4, 0.8, 1.0])


def test_a_newer_picture_may_know_the_name():
    """It is asked at once, and what has a name then is taken over beside what is kept."""
    one = owning("t0")
    beat(one, NOW + 5)
    assert assign(one, "t0", "v0") == [NameTopics(frozenset({V}))]
    assert told(one, TopicsNamed({})) == []

    assert told(one, PartitionsChanged({"t": 1, "v": 1})) == [NameTopics(frozenset({V}))]
    assert told(one, PartitionsChanged({"t": 1, "v": 1})) == []
    (take_over,) = told(one, TopicsNamed({V: "v"}))

    assert (take_over.added, take_over.kept) == (parts("v0"), parts("t0"))
    assert told(one, PartitionsChanged({"t": 1, "v": 1})) == []


def test_a_name_that_is_known_is_not_asked_for():
    """Not even when the topic has been somebody else's meanwhile."""
    one = owning("t0")
    beat(one, NOW + 5)
    assign(one)
    told(one, Released(), TakenOver())
    beat(one, NOW + 6)

    (take_over,) = assign(one, "t1")

    assert take_over.added == parts("t1")


def test_other_unknown_topics_are_asked_for_at_once():
    """The pause is for those that were asked for in vain."""
    one = joining()
    assign(one, "v0", epoch=1)
    told(one, TopicsNamed({}), TakenOver())
    one.handle_timer(NOW + 5)
    effects_of(one)
    told(one, TopicsNamed({}), now=NOW + 5)

    assert assign(one, "v0", "u0", now=NOW + 5.05) == [NameTopics(frozenset({U, V}))]


def test_nothing_is_told_before_names_were_asked_for():
    """A first assignment whose topics are not known yet is no empty one."""
    one = joining()

    assert assign(one, "v0", epoch=1) == [NameTopics(frozenset({V}))]

    (take_over,) = told(one, TopicsNamed({}))
    assert take_over.added == frozenset()


def test_a_question_that_failed_is_asked_again():
    """Whatever it was that had no answer: names are asked for again after a pause."""
    one = joining()
    (question,) = assign(one, "t0", epoch=1)

    told(one, CoordinatorGone("the connection broke"))

    assert not one.awaits(question)
    one.handle_timer(NOW + 0.1)
    assert NameTopics(frozenset({T})) in effects_of(one)


def test_a_topic_that_was_made_again_is_another_one():
    """Its name is the same and its records are not: given back, and taken over from where the new one begins."""
    one = owning("t0")
    beat(one, NOW + 5)

    release, question = sorted(told(one, answer(8, {V: (0,)})), key=lambda effect: isinstance(effect, NameTopics))
    assert (release.partitions, question) == (parts("t0"), NameTopics(frozenset({V})))
    told(one, TopicsNamed({V: "t"}))
    (take_over,) = told(one, Released())

    assert (take_over.added, take_over.kept) == (parts("t0"), frozenset())
    assert beat(one).owned == {V: (0,)}


# ---- towards the target ----------------------------------------------------------------------------------------


def test_what_is_added_is_taken_over_at_once():
    """What is kept stays as it is, and the group is told when the rest is ready."""
    one = owning("t0")
    beat(one, NOW + 5)

    (take_over,) = assign(one, "t0", "t1", now=NOW + 5)

    assert take_over == TakeOver(parts("t1"), parts("t0"), Identity("me", 8), "the broker's choice", is_leader=False)
    assert one.next_deadline() == NOW + 5 + INTERVAL_S
    told(one, TakenOver(), now=NOW + 6)
    assert beat(one, NOW + 6) == SendGroupHeartbeat(Identity("me", 8), SESSION_S / 3, owned={T: (0, 1)})


def test_what_is_revoked_is_given_back_before_anything_is_taken():
    """Drain, commit, callbacks; then the group is told, and what is new is taken over at the same time."""
    one = owning("t0", "t1")
    beat(one, NOW + 5)

    (release,) = assign(one, "t0", "u0", now=NOW + 5)
    assert release == Release(
        parts("t1"), is_lost=False, is_last=False, reason="the group assigns the partitions to other members"
    )
    assert one.state is Kip848State.RELEASING
    assert one.owned == parts("t0", "t1")
    assert one.is_current(one.identity)

    (take_over,) = told(one, Released(), now=NOW + 7)
    assert (take_over.added, take_over.kept) == (parts("u0"), parts("t0"))
    assert one.owned == parts("t0", "u0")
    assert beat(one, NOW + 7).owned == {T: (0,), U: (0,)}


def test_after_a_release_the_user_hears_what_is_left():
    """The callbacks run once after every rebalance, also after one that only took something away."""
    one = owning("t0", "t1")
    beat(one, NOW + 5)
    assign(one, "t0", now=NOW + 5)

    (take_over,) = told(one, Released(), now=NOW + 6)

    assert (take_over.added, take_over.kept) == (parts(), parts("t0"))
    assert beat(one, NOW + 6).owned == {T: (0,)}
    assert told(one, TakenOver(), answer(), now=NOW + 7) == []
    assert one.state is Kip848State.STABLE


def test_heartbeats_go_on_during_both():
    """At their interval, and they say nothing of what is owned before it has changed."""
    for state in (Kip848State.RELEASING, Kip848State.TAKING_OVER):
        one = member_in(state)
        told(one, answer(), now=NOW + 6)

        assert one.next_deadline() == NOW + 6 + INTERVAL_S
        assert beat(one, NOW + 11) == SendGroupHeartbeat(Identity("me", 7), SESSION_S / 3)
        assert one.state is state


def test_another_target_during_a_release_is_gone_to_after_it():
    """The newest counts, whatever there was between."""
    one = owning("t0", "t1", "t2")
    beat(one, NOW + 5)
    assign(one, "t0", "t1", now=NOW + 5)
    beat(one, NOW + 10)

    assert assign(one, "t0", "u0", epoch=9, now=NOW + 10) == []
    assert one.state is Kip848State.RELEASING

    (release,) = told(one, Released(), now=NOW + 11)
    assert release.partitions == parts("t1")
    assert one.owned == parts("t0", "t1")
    (take_over,) = told(one, Released(), now=NOW + 11)
    assert (take_over.added, take_over.kept) == (parts("u0"), parts("t0"))


def test_what_is_wanted_back_during_a_release_is_taken_over_after_it():
    """It is drained and committed already: that is not undone."""
    one = owning("t0", "t1")
    beat(one, NOW + 5)
    assign(one, "t0", now=NOW + 5)
    beat(one, NOW + 10)

    assert assign(one, "t0", "t1", now=NOW + 10) == []
    (take_over,) = told(one, Released(), now=NOW + 11)

    assert (take_over.added, take_over.kept) == (parts("t1"), parts("t0"))


def test_a_target_that_adds_waits_for_a_takeover():
    """What is being made ready is not disturbed."""
    one = member_in(Kip848State.TAKING_OVER)

    assert told(one, answer(8, {T: (0, 1, 2)}), now=NOW + 5) == []

    (take_over,) = told(one, TakenOver(), now=NOW + 6)
    assert (take_over.added, take_over.kept) == (parts("t2"), parts("t0", "t1"))
    assert one.state is Kip848State.TAKING_OVER


def test_a_target_that_takes_away_ends_a_takeover():
    """What is gone is given back at once; what was being taken over and is still wanted is taken over anew."""
    one = owning("u0")
    beat(one, NOW + 5)
    (first,) = assign(one, "u0", "t0", "t1", now=NOW + 5)
    beat(one, NOW + 10)

    (release,) = assign(one, "u0", "t0", epoch=9, now=NOW + 10)
    assert release.partitions == parts("t1")
    assert (one.awaits(first), one.awaits(release)) == (False, True)
    assert one.owned == parts("u0", "t0", "t1")

    (again,) = told(one, Released(), now=NOW + 11)
    assert (again.added, again.kept) == (parts("t0"), parts("u0"))
    assert beat(one, NOW + 11).owned == {T: (0,), U: (0,)}


def test_what_was_ready_may_be_taken_away_during_a_takeover():
    """The new owner is not kept waiting for callbacks about something else."""
    one = owning("u0")
    beat(one, NOW + 5)
    assign(one, "u0", "t0", now=NOW + 5)
    beat(one, NOW + 10)

    (release,) = assign(one, "t0", epoch=9, now=NOW + 10)
    (again,) = told(one, Released(), now=NOW + 11)

    assert release.partitions == parts("u0")
    assert (again.added, again.kept) == (parts("t0"), frozenset())


def test_what_was_never_taken_over_is_given_back_too():
    """It had no name yet when it was taken away again: the group waits all the same to hear that it is not ours."""
    one = owning("t0")
    beat(one, NOW + 5)
    assign(one, "t0", "v0", now=NOW + 5)
    told(one, TopicsNamed({}), now=NOW + 5)
    one.handle_timer(NOW + 10)
    effects_of(one)

    assert assign(one, "t0", epoch=9, now=NOW + 10) == []

    assert beat(one, NOW + 10).owned == {T: (0,)}


def test_what_is_being_taken_over_is_said_to_be_owned():
    """A heartbeat that names all we own and leaves it out would let the group give it to somebody else meanwhile."""
    one = owning("t0")
    beat(one, NOW + 5)
    assign(one, "t0", "t1", now=NOW + 5)
    beat(one, NOW + 10)

    told(one, NotNow("loading"), now=NOW + 10)

    assert beat(one, NOW + 10.1).owned == {T: (0, 1)}


def test_nothing_is_taken_over_while_the_group_may_think_that_we_disown_it():
    """A heartbeat under way says what we own; whatever it does not name is not ours to take before its answer."""
    one = owning("t0")
    beat(one, NOW + 5)
    assign(one, "t0", "v0", now=NOW + 5)
    beat(one, NOW + 10)
    told(one, NotNow("loading"), now=NOW + 10)
    one.handle_timer(NOW + 10.1)
    question, sent = effects_of(one)
    assert (question, sent.owned) == (NameTopics(frozenset({V})), {T: (0,)})

    assert told(one, TopicsNamed({V: "v"}), now=NOW + 10.2) == []
    assert one.owned == parts("t0")

    (take_over,) = told(one, answer(8, {T: (0,), V: (0,)}), now=NOW + 10.3)
    assert take_over.added == parts("v0")


# ---- losing ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("state", RECONCILING)
@pytest.mark.parametrize("event", [GenerationLost("late"), MemberLost("late")])
def test_a_membership_that_is_lost_is_lost_once(state, event):
    """All is dropped at once and the user told; then it joins again, under the same id."""
    one = member_in(state)
    me = one.identity

    assert told(one, event) == [Release(parts("t0", "t1"), is_lost=True, is_last=False, reason="late")]

    assert one.state is Kip848State.LOSING
    assert one.owned == frozenset()
    assert not one.is_member
    assert not one.is_current(me)
    assert not one.is_current(one.identity)
    one.handle_timer(NOW + 100)
    assert effects_of(one) == []
    assert one.next_deadline() is None

    assert told(one, Released(), now=NOW + 100) == []
    sent = beat(one, NOW + 100)
    assert (sent.identity, sent.topics, sent.owned) == (Identity("me", 0), frozenset("t"), {})


@pytest.mark.parametrize("state", RECONCILING)
def test_a_session_that_is_over_is_lost_once(state):
    """Nothing was acknowledged for so long that the group has given us up: we stop in time."""
    one = member_in(state)
    at = NOW + 5 + SESSION_S

    one.handle_timer(at)

    release = next(effect for effect in effects_of(one) if isinstance(effect, Release))
    assert (release.partitions, release.is_lost, release.is_last) == (parts("t0", "t1"), True, False)
    assert release.reason.startswith("no heartbeat was acknowledged for ")
    told(one, Released(), now=at + 1)
    assert beat(one, at + 1).identity == Identity("me", 0)


def test_who_owns_nothing_joins_again_at_once():
    """There is nothing to tell the user."""
    one = joining()
    assign(one, epoch=1)
    told(one, TakenOver())

    assert told(one, MemberLost("late")) == []

    assert one.state is Kip848State.JOINING
    assert beat(one).identity == Identity("me", 0)


def test_every_join_is_heard_of():
    """After a loss the first assignment is told again, even if it is empty."""
    one = owning("t0")
    told(one, MemberLost("late"), Released())
    beat(one)

    (take_over,) = assign(one)

    assert (take_over.added, take_over.kept) == (frozenset(), frozenset())


# ---- what still matters ----------------------------------------------------------------------------------------


def test_only_the_last_heartbeat_counts():
    """A later one makes the one before moot, and so does the loss of the membership."""
    one = owning("t0")
    first = beat(one, NOW + 5)
    assert one.awaits(first)
    assert not one.awaits(copy.copy(first))

    told(one, CoordinatorGone("moved"), now=NOW + 6)
    second = beat(one, NOW + 7)
    assert (one.awaits(first), one.awaits(second)) == (False, True)

    told(one, MemberLost("late"))
    assert not one.awaits(second)


def test_heartbeats_names_and_work_do_not_disturb_each_other():
    """Each is awaited for itself."""
    one = joining()
    (question,) = assign(one, "t0", "v0", epoch=1)
    (take_over,) = told(one, TopicsNamed({T: "t"}))
    one.handle_timer(NOW + 0.1)
    (again,) = effects_of(one)
    sent = beat(one, NOW + 5)

    assert [one.awaits(effect) for effect in (question, take_over, again, sent)] == [False, True, True, True]
    told(one, answer(), now=NOW + 5)
    assert [one.awaits(effect) for effect in (take_over, again, sent)] == [True, True, False]
    told(one, TakenOver(), now=NOW + 5)
    assert [one.awaits(effect) for effect in (take_over, again)] == [False, True]


@pytest.mark.parametrize("state", Kip848State)
def test_who_we_are_matters_while_we_are_a_member(state):
    """A commit's error counts for the epoch it was sent in, and only while that is ours."""
    one = member_in(state)

    assert one.is_member == (state in ALIVE)
    assert one.is_current(one.identity) == (state in ALIVE)
    assert not one.is_current(Identity("me", 6))
    assert not one.is_current(Identity("you", 7))


# ---- going -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("state", RECONCILING)
def test_a_member_gives_back_then_leaves_then_is_gone(state):
    """In this order, and with heartbeats and its identity to the last."""
    one = member_in(state)

    assert told(one, StopMembership()) == [
        Release(parts("t0", "t1"), is_lost=False, is_last=True, reason="the consumer stops")
    ]
    assert one.is_current(Identity("me", 7))
    assert told(one, answer(8, {T: (5,)}), now=NOW + 5) == []
    assert one.identity == Identity("me", 8)
    assert isinstance(beat(one, NOW + 10), SendGroupHeartbeat)

    assert told(one, Released()) == [SendLeave(Identity("me", -1), "the consumer stops")]
    assert one.owned == frozenset()
    assert not one.is_member
    assert told(one, LeaveAnswered()) == []
    assert one.state is Kip848State.LEFT


def test_the_last_commit_meets_a_newer_epoch():
    """While closing, a commit that was refused as of an old epoch has the next heartbeat sent at once."""
    one = member_in(Kip848State.CLOSING)

    assert told(one, NotNow("OffsetCommit: STALE_MEMBER_EPOCH"), now=NOW + 1) == []
    assert one.next_deadline() == pytest.approx(NOW + 1.1)
    assert isinstance(beat(one, NOW + 1.1), SendGroupHeartbeat)
    assert told(one, answer(8, {T: (5,)}), now=NOW + 1.2) == []

    assert one.identity == Identity("me", 8)
    assert one.is_current(one.identity)
    assert one.state is Kip848State.CLOSING


@pytest.mark.parametrize(
    ("leaves_on_stop", "instance_id", "epoch"),
    [(True, None, -1), (True, "i", -1), (False, "i", -2), (False, None, None)],
    ids=["dynamic", "static, for good", "static, to be back", "dynamic, silently"],
)
@pytest.mark.parametrize("state", [Kip848State.JOINING, Kip848State.STABLE])
def test_the_epoch_says_how_one_leaves(state, leaves_on_stop, instance_id, epoch):
    """-1 for good, -2 to be back (a static member's place is kept), and who does not leave is missed in the end."""
    one = member_in(state, leaves_on_stop=leaves_on_stop, instance_id=instance_id)

    effects = told(one, StopMembership())
    if state is not Kip848State.JOINING:
        effects = told(one, Released())

    if epoch is None:
        assert (effects, one.state) == ([], Kip848State.LEFT)
    else:
        assert effects == [SendLeave(Identity("me", epoch, instance_id), "the consumer stops")]
        assert one.awaits(effects[0])


def test_who_has_said_nothing_has_nobody_to_leave():
    """Before the first heartbeat went out, and after the group said that it does not know us."""
    one = member()
    told(one, StartMembership())
    assert told(one, StopMembership()) == []
    assert one.state is Kip848State.LEFT

    one = joining()
    told(one, MemberLost("unknown"))
    assert told(one, StopMembership()) == []
    assert one.state is Kip848State.LEFT


@pytest.mark.parametrize(
    ("event", "leaves"), [(GenerationLost("late"), True), (SessionOver("late"), True), (MemberLost("late"), False)]
)
def test_who_is_lost_while_closing_commits_nothing(event, leaves):
    """The partitions are somebody else's; a group that may still know our id is told that we are gone."""
    one = member_in(Kip848State.CLOSING)

    (release,) = told(one, event)

    assert release == Release(parts("t0", "t1"), is_lost=True, is_last=True, reason="the membership was lost")
    assert one.next_deadline() is None
    assert bool(told(one, Released())) == leaves
    assert one.state is (Kip848State.LEAVING if leaves else Kip848State.LEFT)


def test_a_stop_waits_until_the_loss_is_told():
    """The user hears of what was lost; there is nothing more to give back."""
    one = member_in(Kip848State.LOSING)

    assert told(one, StopMembership()) == []
    assert one.state is Kip848State.CLOSING
    one.handle_timer(NOW + 100)
    assert effects_of(one) == []
    told(one, Released())

    assert one.state is Kip848State.LEFT


def test_a_loss_is_not_lost_again():
    """While the last of a lost membership is told, a late error about it changes nothing."""
    one = member_in(Kip848State.LOSING)
    told(one, StopMembership())

    assert told(one, GenerationLost("late"), SessionOver("late")) == []

    assert one.state is Kip848State.CLOSING


def test_it_says_what_it_is():
    """Its name, group and state, for whoever looks at it in a debugger or a log."""
    assert repr(member_in(Kip848State.STABLE)) == "<Kip848Member me of g stable>"
