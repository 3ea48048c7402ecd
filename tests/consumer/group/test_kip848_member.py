"""KIP-848 member: every transition, and the steps of a membership."""

from __future__ import annotations

import copy
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tailrace.consumer.group import group_machine as membership_events
from tailrace.consumer.group.group_machine import (
    CoordinatorGone,
    FindTopicNames,
    ForgetCoordinator,
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
    Release,
    Released,
    ReportGroupError,
    Resubscribed,
    RetryLater,
    SendGroupHeartbeat,
    SendLeave,
    SessionKnown,
    SessionOver,
    StartMembership,
    StopDue,
    StopMembership,
    Synced,
    TakenOver,
    TakeOver,
    TopicNamesFound,
)
from tailrace.consumer.group.kip848 import ALIVE, OVER, TABLE, Kip848Member, Kip848State
from tailrace.core.group_requests import Identity
from tailrace.errors import FencedMemberError, RebalanceError
from tailrace.protocol.groups import MemberAssignment
from tailrace.records import TopicPartition
from tests.support.simulation.driven_machine import NOW, check_events, effects_after, effects_of, state_of

SESSION_S, INTERVAL_S = 45.0, 5.0
T, U, V = (UUID(int=n) for n in (1, 2, 3))
NAMES = {T: "t", U: "u"}
"""V has no name: it is not in the cluster metadata."""
UNREAD = RebalanceError("the application does not poll")
FENCED = MembershipFailed(FencedMemberError("fenced"))

RECONCILING = (Kip848State.STABLE, Kip848State.RELEASING, Kip848State.TAKING_OVER)


def answer(epoch: int = 7, assigned: dict[UUID, tuple[int, ...]] | None = None, **changes) -> HeartbeatAnswered:
    """Return an acknowledged heartbeat."""
    return HeartbeatAnswered(**{"epoch": epoch, "interval_s": INTERVAL_S} | changes, assigned=assigned)


def parts(*names: str) -> frozenset[TopicPartition]:
    """Parse partitions: ``parts("t0", "u1")``."""
    return frozenset(TopicPartition(name[0], int(name[1:])) for name in names)


EVENTS: dict[type[GroupEvent], GroupEvent] = {
    type(one): one
    for one in (
        GroupDescribed(None),
        StartMembership(),
        Resubscribed(frozenset("u")),
        JoinDue(),
        MemberIdAssigned("me"),
        JoinedAsFollower("me", 7, "range"),
        JoinedAsLeader("me", 7, "range", {}, {}),
        PartitionsFound({"t": 2}),
        Synced(MemberAssignment(())),
        TakenOver(),
        Released(),
        MetadataRefreshed({"t": 2}),
        HeartbeatOutcome(Identity("me", 7), HeartbeatAnswered()),
        answer(),
        InstanceHeld(FencedMemberError("held")),
        InstanceReleased(),
        TopicNamesFound({}),
        SessionKnown(30.0),
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
    )
}


def member(**changes) -> Kip848Member:
    """Return a member that was not started."""
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
    """Return the heartbeat sent at ``now``."""
    one.handle_timer(now)
    (sent,) = effects_of(one)
    assert isinstance(sent, SendGroupHeartbeat)
    return sent


def joining(**changes) -> Kip848Member:
    """Return a member whose first heartbeat is in flight."""
    one = member(**changes)
    effects_after(one, StartMembership())
    beat(one)
    return one


def owning(*names: str, now: float = NOW, **changes) -> Kip848Member:
    """Return a stable member that owns these partitions and has reported them."""
    one = joining(**changes)
    assign(one, *names, epoch=7)
    effects_after(one, TopicNamesFound(NAMES))
    effects_after(one, TakenOver(), now=now)
    if names:
        beat(one, now)
        effects_after(one, answer(), now=now)
    assert one.state is Kip848State.STABLE
    return one


def assign(one: Kip848Member, *names: str, epoch: int = 8, now: float = NOW) -> list[object]:
    """Send a target assignment and return the effects; each name begins with the character of its topic."""
    ids = {"t": T, "u": U, "v": V}
    assigned: dict[UUID, tuple[int, ...]] = {}
    for topic, n in sorted(parts(*names)):
        assigned[ids[topic]] = (*assigned.get(ids[topic], ()), n)
    return effects_after(one, answer(epoch, assigned), now=now)


def asking(one: Kip848Member, now: float = NOW) -> Kip848Member:
    """Return the member with a heartbeat in flight."""
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
"""Events that lead from an owner to the states in which nothing is owned."""


def not_read_from(*then: GroupEvent, **changes) -> Kip848Member:
    """Return a member that leaves, or has left, because its application does not poll."""
    one = owning("t0", "t1", **changes)
    effects_after(one, PollingStalled(UNREAD), *then)
    return one


def member_in(state: Kip848State, **changes) -> Kip848Member:
    """Return a member in ``state`` that owns t0 and t1 if it may, with every possible request in flight."""
    if state is Kip848State.IDLE:
        return member(**changes)
    if state is Kip848State.JOINING:
        return joining(**changes)
    if state in {Kip848State.STEPPING_AWAY, Kip848State.AWAY}:
        return not_read_from(*[Released()] * (state is Kip848State.AWAY), **changes)
    if state is Kip848State.TAKING_OVER:
        one = joining(**changes)
        assign(one, "t0", "t1", "v0", epoch=7)
        effects_after(one, TopicNamesFound(NAMES))
        one.handle_timer(NOW + 0.1)
        effects_of(one)
    else:
        one = asking(owning("t0", "t1", **changes), NOW + INTERVAL_S)
        assign(one, *(("t0", "v0") if state is Kip848State.RELEASING else ("t0", "t1", "v0")), epoch=7)
    if one.state in RECONCILING:
        asking(one)
    effects_after(one, *THEN.get(state, ()))
    assert one.state is state
    return one


# ---- the table -------------------------------------------------------------------------------------------------


def test_examples_cover_every_event():
    check_events(membership_events, GroupEvent, TABLE, EVENTS)


@pytest.mark.parametrize("state", Kip848State)
def test_every_event_is_handled_in_every_state(state):
    """An event has a transition, or raises and changes nothing; final states do not change."""
    for event in EVENTS.values():
        check_event(state, event)


def check_event(state, event):
    one = member_in(state)
    before = state_of(one)

    if state in OVER:
        assert effects_after(one, event) == []
        assert one.state is state
    elif (rule := TABLE.get((state, type(event)))) is None:
        with pytest.raises(ValueError, match=f"{type(event).__name__} cannot happen while {state}"):
            one.receive(event, NOW)
        assert state_of(one) == before
        assert effects_of(one) == []
    else:
        effects_after(one, event)
        assert one.state in {rule.then, *rule.exceptions}


@given(st.lists(st.tuples(st.sampled_from(list(EVENTS)), st.floats(0, 20)), max_size=30))
def test_events_in_any_order_keep_the_invariants(sequence):
    """In any order and at any time, an event has a transition or raises and changes nothing; final states do not
    change.
    """
    one, now = member(), NOW
    effects_after(one, StartMembership())
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
            assert (state, kind) not in TABLE or kind in {HeartbeatAnswered, InstanceReleased, TopicNamesFound}
        assert state not in OVER or one.state is state
        assert not one.is_member or one.state in ALIVE
        assert one.owned == frozenset() or one.state in ALIVE


@pytest.mark.parametrize("event", [answer(), TopicNamesFound({})], ids=["heartbeat", "names"])
def test_unrequested_answer_raises(event):
    """An answer to a request that was not sent raises, even in a state in which one may be in flight."""
    one = owning("t0")
    before = state_of(one)

    with pytest.raises(ValueError, match=f"{type(event).__name__} cannot happen while stable"):
        one.receive(event, NOW)

    assert state_of(one) == before


@pytest.mark.parametrize("state", Kip848State)
def test_every_state_can_be_left(state):
    """From each state, a stop and the outcomes of the effects in flight lead to a final state."""
    one = member_in(state)

    effects_after(one, StopMembership())
    if one.state is Kip848State.CLOSING:
        effects_after(one, Released())
    if one.state is Kip848State.LEAVING:
        effects_after(one, LeaveAnswered())

    assert one.state in OVER
    assert one.is_over
    assert one.next_deadline() is None


@pytest.mark.parametrize("state", Kip848State)
def test_fatal_error_ends_the_membership_in_every_state(state):
    """The partitions are reported as lost, the error is raised to the application, and nothing follows."""
    one = member_in(state)
    owned = one.owned

    effects = effects_after(one, FENCED)

    if state in OVER:
        assert effects == []
    elif state is Kip848State.LEAVING:
        assert effects == [ReportGroupError(FENCED.error, is_fatal=True)]
    else:
        assert effects == [
            Release(owned, is_lost=True, is_last=True, reason="fenced"),
            ReportGroupError(FENCED.error, is_fatal=True),
        ]
        assert one.state is Kip848State.FAILED
    assert one.owned == frozenset()
    assert not one.is_member
    one.handle_timer(NOW + 1_000)
    assert effects_after(one, StopMembership(), now=NOW + 1_000) == []


def test_member_whose_application_does_not_poll_leaves():
    """The member leaves, loses its partitions, and joins again under its id when the application polls."""
    one = owning("t0", "t1")

    *telling, release = effects_after(one, PollingStalled(UNREAD))

    assert telling == [
        SendLeave(Identity("me", -1), "the application does not poll"),
        ReportGroupError(UNREAD, is_fatal=False),
    ]
    assert release == Release(parts("t0", "t1"), is_lost=True, is_last=False, reason="the application does not poll")
    assert effects_after(one, Released()) == []
    assert one.next_deadline() is None
    effects_after(one, PollingResumed())
    assert beat(one).identity == Identity("me", 0)


@pytest.mark.parametrize(("leaves_on_stop", "epoch"), [(True, -1), (False, -2)])
def test_static_member_whose_application_does_not_poll_leaves_as_at_a_stop(leaves_on_stop, epoch):
    """A static member keeps its partitions until its session ends, unless it leaves the group when it stops."""
    one = owning("t0", instance_id="i", leaves_on_stop=leaves_on_stop)

    leave, *_ = effects_after(one, PollingStalled(UNREAD))

    assert leave.identity.generation == epoch


def test_application_that_polls_during_the_loss_is_joined_at_once():
    """If the application polls while the loss is reported, the member joins right after the report."""
    one = owning("t0")
    effects_after(one, PollingStalled(UNREAD), PollingResumed(), Released())

    assert beat(one).identity == Identity("me", 0)


def test_member_that_fails_by_its_own_fault_leaves():
    """A member whose callback raises leaves at once, so that others get its partitions; later errors are reported."""
    one, error = member_in(Kip848State.TAKING_OVER), RebalanceError("the callback raised")

    release, fail, leave = effects_after(one, MembershipFailed(error))

    assert (release.partitions, release.is_lost, fail.error) == (parts("t0", "t1"), True, error)
    assert leave == SendLeave(Identity("me", -1), "the consumer failed")
    assert one.awaits(leave)
    assert not one.awaits(release)
    assert effects_after(one, MembershipFailed(error)) == [fail]
    effects_after(one, LeaveAnswered())
    assert one.state is Kip848State.LEFT


def test_member_that_fails_may_end_without_a_leave():
    """A member unknown to the group, or a static one that keeps its place, sends no leave."""
    for one in (member(), member_in(Kip848State.STABLE, leaves_on_stop=False, instance_id="i")):
        effects_after(one, MembershipFailed(RebalanceError("the callback raised")))

        assert one.state is Kip848State.FAILED


# ---- joining ---------------------------------------------------------------------------------------------------


def test_first_heartbeat_carries_every_field():
    """The first heartbeat has epoch 0, the subscription, the rebalance timeout and no owned partitions."""
    one = member(topics=frozenset("tu"), rack="r", remote_assignor="range", instance_id="i")

    assert effects_after(one, StartMembership()) == []
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


def test_pattern_is_sent_for_the_broker_to_resolve():
    """The pattern is sent instead of topics, and a change of the matching topics sends nothing."""
    one = member(pattern="t.*", topics=frozenset())
    effects_after(one, StartMembership())

    sent = beat(one)
    effects_after(one, answer(1, {}))
    effects_after(one, TakenOver())

    assert (sent.pattern, sent.topics) == ("t.*", frozenset())
    assert effects_after(one, Resubscribed(frozenset("tu"))) == []
    assert one.next_deadline() == NOW + INTERVAL_S


def test_first_assignment_is_taken_over():
    """The first assignment is reported as owned after its topic names were requested and it was taken over."""
    one = joining(instance_id="i", topics=frozenset("tu"))

    assert assign(one, "t0", "t1", "u0", epoch=3) == [FindTopicNames(frozenset({T, U}))]
    assert one.state is Kip848State.STABLE
    assert one.is_member
    me = Identity("me", 3, "i")
    assert one.is_current(me)

    mine = parts("t0", "t1", "u0")
    assert effects_after(one, TopicNamesFound(NAMES)) == [
        TakeOver(mine, frozenset(), me, "the broker's choice", is_leader=False, topic_ids={"t": T, "u": U})
    ]
    assert one.state is Kip848State.TAKING_OVER
    assert one.owned == mine
    assert one.next_deadline() == NOW + INTERVAL_S

    assert effects_after(one, TakenOver(), now=NOW + 1) == []
    assert one.state is Kip848State.STABLE
    assert beat(one, NOW + 1) == SendGroupHeartbeat(me, SESSION_S / 3, owned={T: (0, 1), U: (0,)})


def test_takeover_names_the_requested_assignor():
    """The takeover carries ``group_remote_assignor``."""
    one = joining(remote_assignor="range")

    (take_over,) = assign(one)

    assert take_over.protocol == "range"


def test_empty_assignment_is_taken_over_once():
    """The first assignment after a join is reported even if it is empty; the same one again is not."""
    one = joining()

    (take_over,) = assign(one, epoch=1)
    assert (take_over.added, take_over.kept) == (frozenset(), frozenset())
    assert effects_after(one, TakenOver()) == []

    beat(one, NOW + INTERVAL_S)
    assert assign(one, epoch=1, now=NOW + INTERVAL_S) == []
    assert one.state is Kip848State.STABLE
    assert one.next_deadline() == NOW + 2 * INTERVAL_S


def test_the_same_assignment_again_changes_nothing():
    """An assignment that a full heartbeat repeats changes nothing."""
    one = owning("t0")
    beat(one, NOW + INTERVAL_S)

    assert assign(one, "t0", epoch=9, now=NOW + INTERVAL_S) == []

    assert one.state is Kip848State.STABLE
    assert one.identity == Identity("me", 9)


# ---- failed joins ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("event", [RetryLater("loading"), CoordinatorGone("moved"), RebalanceCalled()])
def test_pauses_between_joins_grow(event):
    """Each pause is twice as long as the last, up to the limit, and each join carries every field."""
    one, pauses, now = joining(), [], NOW

    for _ in range(6):
        effects = effects_after(one, event, now=now)
        assert effects == ([ForgetCoordinator("moved")] if isinstance(event, CoordinatorGone) else [])
        pauses.append(one.next_deadline() - now)
        now = one.next_deadline()
        assert beat(one, now).owned == {}

    assert one.state is Kip848State.JOINING
    assert pauses == pytest.approx([0.1, 0.2, 0.4, 0.8, 1.0, 1.0])


def test_nothing_shortens_the_pause_before_a_join():
    """Neither an early timer call nor a new subscription sends a heartbeat."""
    one = joining()
    effects_after(one, RetryLater("loading"), Resubscribed(frozenset("u")))

    one.handle_timer(NOW + 0.09)

    assert effects_of(one) == []
    assert beat(one, NOW + 0.1).topics == frozenset("u")


@pytest.mark.parametrize("event", [GenerationLost("fenced"), MemberLost("unknown")])
def test_refused_join_is_repeated_after_a_pause(event):
    """A join that is refused until the former membership expires is repeated under the same id."""
    one = joining()

    assert effects_after(one, event) == []

    assert one.state is Kip848State.JOINING
    assert one.next_deadline() == pytest.approx(NOW + 0.1)
    assert beat(one, NOW + 0.1).identity == Identity("me", 0)


# ---- static members (KIP-345) ----------------------------------------------------------------------------------

BACK = Identity("me", -2, "i")


def test_static_member_joins_first_without_a_release():
    """A new member releases no instance id, not even after a refused join."""
    one = member(instance_id="i")
    effects_after(one, StartMembership())

    assert beat(one).identity == Identity("me", 0, "i")
    effects_after(one, GenerationLost("UNRELEASED_INSTANCE_ID, which the user wants to be tried again"))
    assert beat(one, NOW + 1).identity == Identity("me", 0, "i")


@pytest.mark.parametrize("event", [CoordinatorGone("cut"), RetryLater("loading")])
def test_static_member_releases_its_instance_id_after_an_unanswered_join(event):
    """After an unanswered join a static member releases its instance id with epoch -2, and then joins again."""
    one = joining(instance_id="i")
    effects_after(one, event)

    assert beat(one, NOW + 0.1) == SendGroupHeartbeat(BACK, SESSION_S / 3)
    effects_after(one, CoordinatorGone("cut"))
    assert beat(one, NOW + 1).identity == BACK
    assert effects_after(one, InstanceReleased(), now=NOW + 1) == []
    again = beat(one, NOW + 1)
    assert (again.identity, again.topics, again.owned) == (Identity("me", 0, "i"), frozenset("t"), {})


@pytest.mark.parametrize(
    ("event", "epoch"), [(GenerationLost("fenced"), -2), (SessionOver("silence"), -2), (MemberLost("unknown"), 0)]
)
def test_lost_static_member_releases_its_instance_id_unless_unknown(event, epoch):
    """A lost static member releases its instance id, unless the coordinator does not know the member."""
    one = owning("t0", instance_id="i")
    effects_after(one, event, Released())

    assert beat(one).identity == Identity("me", epoch, "i")


HELD = InstanceHeld(FencedMemberError("held"))


def refused(one: Kip848Member, now: float) -> list[object]:
    """Answer the join that is due at ``now`` with a refusal because of the instance id, and return the effects."""
    beat(one, now)
    return effects_after(one, HELD, now=now)


def test_static_member_waits_for_its_instance_id_for_a_session():
    """While the group holds the instance id, a static member joins again after pauses; after a session, it fails."""
    one = joining(instance_id="i")
    effects_after(one, SessionKnown(10.0), HELD)

    assert refused(one, NOW + 6) == refused(one, NOW + 11.9) == []
    assert one.state is Kip848State.JOINING
    assert beat(one, NOW + 12.9).identity == Identity("me", 0, "i")
    assert ReportGroupError(HELD.error, is_fatal=True) in effects_after(one, HELD, now=NOW + 12.9)
    assert one.state is Kip848State.FAILED


def test_static_member_waits_longer_if_the_session_is_unknown():
    """A member that may not read the group's session timeout waits for the longest session of a broker's defaults."""
    one = joining(instance_id="i", session_timeout_s=6.0)
    effects_after(one, HELD)

    assert refused(one, NOW + 61) == []
    assert ReportGroupError(HELD.error, is_fatal=True) in refused(one, NOW + 63)


def test_static_member_waits_for_another_session_after_a_failover():
    """Another coordinator restarts all sessions, so the wait for the instance id begins again, too."""
    one = joining(instance_id="i")
    effects_after(one, SessionKnown(10.0), HELD)
    beat(one, NOW + 9)
    effects_after(one, CoordinatorGone("moved"), now=NOW + 9)
    beat(one, NOW + 10)
    effects_after(one, InstanceReleased(), now=NOW + 10)

    assert refused(one, NOW + 11) == refused(one, NOW + 20) == []
    assert ReportGroupError(HELD.error, is_fatal=True) in refused(one, NOW + 24)


def test_static_member_that_waits_for_its_instance_id_stops_without_a_leave():
    """The group does not contain a member that waits for its instance id, so its stop sends no leave."""
    one = joining(instance_id="i")

    assert effects_after(one, HELD, StopMembership()) == []
    assert one.state is Kip848State.LEFT


def test_late_answer_to_a_static_join_still_counts():
    """A join response that arrives before the next heartbeat is accepted, so that no release is sent."""
    one = joining(instance_id="i")
    effects_after(one, RetryLater("a commit was refused"), answer(3, {}), TakenOver())

    assert beat(one, NOW + INTERVAL_S).identity == Identity("me", 3, "i")


@pytest.mark.parametrize("then", [[], [InstanceReleased()]])
def test_static_member_leaves_after_releasing_its_instance_id(then):
    """A static member that stops after releasing its instance id leaves, as ``leave_on_stop`` promises."""
    one = joining(instance_id="i")
    effects_after(one, CoordinatorGone("cut"))
    beat(one, NOW + 1)

    left = effects_after(one, *then, StopMembership())

    assert left == [SendLeave(Identity("me", -1, "i"), "the consumer stops")]


def test_answer_resets_the_backoff():
    """After a response, the next pause is the first one again."""
    one = joining()
    for _ in range(3):
        effects_after(one, RetryLater("loading"))
        beat(one, NOW + 100)
    effects_after(one, answer(1, {}), TakenOver(), now=NOW + 100)
    beat(one, NOW + 105)

    effects_after(one, RetryLater("loading"), now=NOW + 105)

    assert one.next_deadline() == pytest.approx(NOW + 105.1)


# ---- heartbeats and session ------------------------------------------------------------------------------------


@pytest.mark.parametrize("state", Kip848State)
def test_heartbeats_are_sent_while_the_group_counts_the_member(state):
    """Heartbeats are sent from the join to the last commit, and not while a loss is being reported."""
    one = member_in(state)
    speaks = state in ALIVE or state is Kip848State.JOINING
    if speaks:
        effects_after(one, RetryLater("loading"))

    one.handle_timer(NOW + INTERVAL_S + 1)

    beats = [effect.identity.generation for effect in effects_of(one) if isinstance(effect, SendGroupHeartbeat)]
    assert beats == ([0 if state is Kip848State.JOINING else 7] if speaks else [])


def test_heartbeats_follow_the_brokers_interval():
    """A heartbeat follows an interval after the last response, and has no unchanged field."""
    one = owning("t0")
    now, times = NOW, []

    for interval_s in (5.0, 5.0, 1.0, 1.0, 5.0):
        now = one.next_deadline()
        times.append(now - NOW)
        assert beat(one, now) == SendGroupHeartbeat(Identity("me", 7), SESSION_S / 3)
        effects_after(one, answer(interval_s=interval_s), now=now + 0.5)

    assert times == [5.0, 10.5, 16.0, 17.5, 19.0]


def test_only_one_heartbeat_is_in_flight():
    """A due heartbeat waits for the response to the last one, while the session continues."""
    one = owning("t0")
    beat(one, NOW + 5)

    effects_after(one, Resubscribed(frozenset("u")), now=NOW + 6)
    one.handle_timer(NOW + 20)

    assert effects_of(one) == []
    assert one.next_deadline() == NOW + SESSION_S
    effects_after(one, answer(), now=NOW + 21)
    assert beat(one, NOW + 21).topics == frozenset("u")


@pytest.mark.parametrize("event", [RetryLater("loading"), CoordinatorGone("moved")])
@pytest.mark.parametrize("state", sorted(ALIVE))
def test_heartbeat_after_a_failure_carries_every_field(state, event):
    """The heartbeat after a failed one has every field; the membership and the session are not affected."""
    one = member_in(state)
    age_s = one.heartbeat_age_s(NOW + 5)

    effects = effects_after(one, event, now=NOW + 5)

    assert effects == ([ForgetCoordinator("moved")] if isinstance(event, CoordinatorGone) else [])
    assert one.state is state
    assert one.next_deadline() == pytest.approx(NOW + 5.1)
    one.handle_timer(NOW + 5.1)
    sent = next(effect for effect in effects_of(one) if isinstance(effect, SendGroupHeartbeat))
    assert sent == SendGroupHeartbeat(
        Identity("me", 7), SESSION_S / 3, topics=frozenset("t"), rebalance_timeout_s=60.0, owned={T: (0, 1)}
    )
    assert one.heartbeat_age_s(NOW + 5) == age_s


def test_commit_of_a_stale_epoch_hastens_the_heartbeat():
    """A commit refused for its stale epoch hastens the next heartbeat, whose response has the new epoch."""
    one = owning("t0")

    assert effects_after(one, RetryLater("OffsetCommit: STALE_MEMBER_EPOCH")) == []

    assert one.next_deadline() == pytest.approx(NOW + 0.1)
    assert beat(one, NOW + 0.1) == SendGroupHeartbeat(Identity("me", 7), SESSION_S / 3)


def test_answer_after_a_failed_commit_still_counts():
    """A response after a failure, which may have been that of a commit, is accepted until the next heartbeat."""
    one = owning("t0")
    sent = beat(one, NOW + 5)
    effects_after(one, RetryLater("OffsetCommit: STALE_MEMBER_EPOCH"), now=NOW + 5)

    assert one.awaits(sent)
    effects_after(one, answer(8), now=NOW + 5.05)

    assert one.identity == Identity("me", 8)
    assert beat(one, NOW + 10.05) == SendGroupHeartbeat(Identity("me", 8), SESSION_S / 3)


def test_new_subscription_is_reported_at_once():
    """A new subscription is sent at once, and nothing is released before the group's response."""
    one = owning("t0")

    assert effects_after(one, Resubscribed(frozenset("uv"))) == []

    assert beat(one) == SendGroupHeartbeat(Identity("me", 7), SESSION_S / 3, topics=frozenset("uv"))
    effects_after(one, answer(), Resubscribed(frozenset("uv")))
    assert one.next_deadline() == NOW + INTERVAL_S


def test_subscription_changed_during_a_join_is_reported_after_it():
    """The next heartbeat is sent as soon as the join is answered."""
    one = joining()
    effects_after(one, Resubscribed(frozenset("u")))

    assign(one, epoch=1)

    assert beat(one).topics == frozenset("u")


def test_session_timeout_is_the_brokers():
    """The broker's session timeout replaces that of the option."""
    one = owning("t0")
    assert one.next_deadline() == NOW + INTERVAL_S
    beat(one, NOW + 5)
    assert one.next_deadline() == NOW + SESSION_S

    effects_after(one, SessionKnown(12.0))

    assert one.next_deadline() == NOW + 12
    effects_after(one, RetryLater("loading"), now=NOW + 6)
    assert beat(one, NOW + 6.1).timeout_s == 4.0


def test_session_counts_from_sending_the_last_acknowledged_heartbeat():
    """The session starts when the last acknowledged heartbeat was sent, so that it ends no later than the broker's."""
    one = owning("t0")
    beat(one, NOW + 5)
    effects_after(one, answer(), now=NOW + 9)
    beat(one, NOW + 14)

    assert one.heartbeat_age_s(NOW + 14) == 9
    one.handle_timer(NOW + 5 + SESSION_S - 0.1)
    assert one.state is Kip848State.STABLE
    one.handle_timer(NOW + 5 + SESSION_S)
    assert one.state is Kip848State.LOSING


# ---- topic names -----------------------------------------------------------------------------------------------


def test_partitions_without_a_topic_name_are_taken_over_later():
    """Partitions without a topic name are taken over when the name is known; it is requested after growing pauses."""
    one = joining()
    assign(one, "t0", "v0", epoch=1)

    (take_over,) = effects_after(one, TopicNamesFound({T: "t"}))
    assert take_over.added == parts("t0")
    effects_after(one, TakenOver())
    beat(one)
    effects_after(one, answer())

    pauses, now = [], NOW
    for _ in range(5):
        pauses.append(one.next_deadline() - now)
        now = one.next_deadline()
        one.handle_timer(now)
        assert effects_of(one) == [FindTopicNames(frozenset({V}))]
        assert effects_after(one, TopicNamesFound({}), now=now) == []
    assert pauses == pytest.approx([0.1, 0.2, 0.4, 0.8, 1.0])


def test_refreshed_metadata_hasten_the_request_for_names():
    """When metadata is refreshed, missing names are requested at once, and their partitions are taken over."""
    one = owning("t0", topics=frozenset("tv"))
    beat(one, NOW + 5)
    assert assign(one, "t0", "v0") == [FindTopicNames(frozenset({V}))]
    assert effects_after(one, TopicNamesFound({})) == []

    assert effects_after(one, MetadataRefreshed({"t": 1, "v": 1})) == [FindTopicNames(frozenset({V}))]
    assert effects_after(one, MetadataRefreshed({"t": 1, "v": 1})) == []
    (take_over,) = effects_after(one, TopicNamesFound({V: "v"}))

    assert (take_over.added, take_over.kept) == (parts("v0"), parts("t0"))
    assert effects_after(one, MetadataRefreshed({"t": 1, "v": 1})) == []


def test_partitions_of_other_topics_are_not_taken_over():
    """Partitions of a topic outside the subscription are taken over once the member subscribes to the topic."""
    one = owning("t0")
    beat(one, NOW + 5)

    assert assign(one, "t0", "u0", now=NOW + 5) == []
    assert one.owned == parts("t0")

    effects_after(one, Resubscribed(frozenset("tu")), now=NOW + 6)
    assert beat(one, NOW + 6).topics == frozenset("tu")
    (take_over,) = effects_after(one, answer(9), now=NOW + 6)
    assert (take_over.added, take_over.kept) == (parts("u0"), parts("t0"))


def test_topics_of_a_pattern_are_the_brokers_choice():
    """With a pattern that the broker resolves, partitions of every topic are taken over."""
    one = owning("t0", topics=frozenset(), pattern="t|u")
    beat(one, NOW + 5)

    (take_over,) = assign(one, "t0", "u0", now=NOW + 5)
    assert take_over.added == parts("u0")


def test_known_name_is_not_requested_again():
    """A known name is kept while nothing of its topic is assigned."""
    one = owning("t0")
    beat(one, NOW + 5)
    assign(one)
    effects_after(one, Released(), TakenOver())
    beat(one, NOW + 6)

    (take_over,) = assign(one, "t1")

    assert take_over.added == parts("t1")


def test_newly_assigned_unknown_topics_are_requested_at_once():
    """The name of a newly assigned topic is requested at once, also during the pause for other names."""
    one = joining()
    assign(one, "v0", epoch=1)
    effects_after(one, TopicNamesFound({}), TakenOver())
    one.handle_timer(NOW + 5)
    effects_of(one)
    effects_after(one, TopicNamesFound({}), now=NOW + 5)

    assert assign(one, "v0", "u0", now=NOW + 5.05) == [FindTopicNames(frozenset({U, V}))]


def test_first_assignment_waits_for_names():
    """A first assignment with unknown topics is not reported as an empty one."""
    one = joining()

    assert assign(one, "v0", epoch=1) == [FindTopicNames(frozenset({V}))]

    (take_over,) = effects_after(one, TopicNamesFound({}))
    assert take_over.added == frozenset()


def test_failed_request_for_names_is_repeated():
    """Names whose request failed are requested again after a pause."""
    one = joining()
    (question,) = assign(one, "t0", epoch=1)

    effects_after(one, CoordinatorGone("the connection broke"))

    assert not one.awaits(question)
    one.handle_timer(NOW + 0.1)
    assert FindTopicNames(frozenset({T})) in effects_of(one)


def test_recreated_topic_is_another_topic():
    """A partition of a recreated topic is released, and then taken over as one of the new topic."""
    one = owning("t0")
    beat(one, NOW + 5)

    release, question = sorted(
        effects_after(one, answer(8, {V: (0,)})), key=lambda effect: isinstance(effect, FindTopicNames)
    )
    assert (release.partitions, question) == (parts("t0"), FindTopicNames(frozenset({V})))
    effects_after(one, TopicNamesFound({V: "t"}))
    (take_over,) = effects_after(one, Released())

    assert (take_over.added, take_over.kept) == (parts("t0"), frozenset())
    assert beat(one).owned == {V: (0,)}


# ---- reconciliation --------------------------------------------------------------------------------------------


def test_added_partitions_are_taken_over_at_once():
    """Added partitions are taken over at once, and reported as owned afterwards; kept partitions do not change."""
    one = owning("t0")
    beat(one, NOW + 5)

    (take_over,) = assign(one, "t0", "t1", now=NOW + 5)

    assert take_over == TakeOver(
        parts("t1"), parts("t0"), Identity("me", 8), "the broker's choice", is_leader=False, topic_ids={"t": T}
    )
    assert one.next_deadline() == NOW + 5 + INTERVAL_S
    effects_after(one, TakenOver(), now=NOW + 6)
    assert beat(one, NOW + 6) == SendGroupHeartbeat(Identity("me", 8), SESSION_S / 3, owned={T: (0, 1)})


def test_revoked_partitions_are_released_before_others_are_taken_over():
    """The release of revoked partitions is reported while the new ones are taken over."""
    one = owning("t0", "t1", topics=frozenset("tu"))
    beat(one, NOW + 5)

    (release,) = assign(one, "t0", "u0", now=NOW + 5)
    assert release == Release(
        parts("t1"), is_lost=False, is_last=False, reason="the group assigns the partitions to other members"
    )
    assert one.state is Kip848State.RELEASING
    assert one.owned == parts("t0", "t1")
    assert one.is_current(one.identity)

    (take_over,) = effects_after(one, Released(), now=NOW + 7)
    assert (take_over.added, take_over.kept) == (parts("u0"), parts("t0"))
    assert one.owned == parts("t0", "u0")
    assert beat(one, NOW + 7).owned == {T: (0,), U: (0,)}


def test_release_is_followed_by_a_takeover_of_the_rest():
    """Every rebalance ends with a takeover, and thus its callback, even if partitions were only revoked."""
    one = owning("t0", "t1")
    beat(one, NOW + 5)
    assign(one, "t0", now=NOW + 5)

    (take_over,) = effects_after(one, Released(), now=NOW + 6)

    assert (take_over.added, take_over.kept) == (parts(), parts("t0"))
    assert beat(one, NOW + 6).owned == {T: (0,)}
    assert effects_after(one, TakenOver(), answer(), now=NOW + 7) == []
    assert one.state is Kip848State.STABLE


def test_heartbeats_continue_during_releases_and_takeovers():
    """Heartbeats keep their interval, and report owned partitions only after these have changed."""
    for state in (Kip848State.RELEASING, Kip848State.TAKING_OVER):
        one = member_in(state)
        effects_after(one, answer(), now=NOW + 6)

        assert one.next_deadline() == NOW + 6 + INTERVAL_S
        assert beat(one, NOW + 11) == SendGroupHeartbeat(Identity("me", 7), SESSION_S / 3)
        assert one.state is state


def test_new_target_during_a_release_is_reconciled_after_it():
    """A target assignment that arrives during a release is applied after it."""
    one = owning("t0", "t1", "t2", topics=frozenset("tu"))
    beat(one, NOW + 5)
    assign(one, "t0", "t1", now=NOW + 5)
    beat(one, NOW + 10)

    assert assign(one, "t0", "u0", epoch=9, now=NOW + 10) == []
    assert one.state is Kip848State.RELEASING

    (release,) = effects_after(one, Released(), now=NOW + 11)
    assert release.partitions == parts("t1")
    assert one.owned == parts("t0", "t1")
    (take_over,) = effects_after(one, Released(), now=NOW + 11)
    assert (take_over.added, take_over.kept) == (parts("u0"), parts("t0"))


def test_partition_reassigned_during_its_release_is_taken_over_again():
    """A partition that is assigned again during its release is released and then taken over."""
    one = owning("t0", "t1")
    beat(one, NOW + 5)
    assign(one, "t0", now=NOW + 5)
    beat(one, NOW + 10)

    assert assign(one, "t0", "t1", now=NOW + 10) == []
    (take_over,) = effects_after(one, Released(), now=NOW + 11)

    assert (take_over.added, take_over.kept) == (parts("t1"), parts("t0"))


def test_added_partitions_wait_for_the_takeover_in_progress():
    """Added partitions are taken over after the takeover in progress."""
    one = member_in(Kip848State.TAKING_OVER)

    assert effects_after(one, answer(8, {T: (0, 1, 2)}), now=NOW + 5) == []

    (take_over,) = effects_after(one, TakenOver(), now=NOW + 6)
    assert (take_over.added, take_over.kept) == (parts("t2"), parts("t0", "t1"))
    assert one.state is Kip848State.TAKING_OVER


def test_revocation_ends_the_takeover_in_progress():
    """The revoked partition is released at once; the others of the takeover are taken over again."""
    one = owning("u0", topics=frozenset("tu"))
    beat(one, NOW + 5)
    (first,) = assign(one, "u0", "t0", "t1", now=NOW + 5)
    beat(one, NOW + 10)

    (release,) = assign(one, "u0", "t0", epoch=9, now=NOW + 10)
    assert release.partitions == parts("t1")
    assert (one.awaits(first), one.awaits(release)) == (False, True)
    assert one.owned == parts("u0", "t0", "t1")

    (again,) = effects_after(one, Released(), now=NOW + 11)
    assert (again.added, again.kept) == (parts("t0"), parts("u0"))
    assert beat(one, NOW + 11).owned == {T: (0,), U: (0,)}


def test_ready_partition_is_released_during_a_takeover():
    """A partition that is ready is released during the takeover of others, for which its new owner does not wait."""
    one = owning("u0", topics=frozenset("tu"))
    beat(one, NOW + 5)
    assign(one, "u0", "t0", now=NOW + 5)
    beat(one, NOW + 10)

    (release,) = assign(one, "t0", epoch=9, now=NOW + 10)
    (again,) = effects_after(one, Released(), now=NOW + 11)

    assert release.partitions == parts("u0")
    assert (again.added, again.kept) == (parts("t0"), frozenset())


def test_partition_revoked_before_its_takeover_is_reported():
    """A partition that is revoked before its takeover is reported as not owned, although its topic name is unknown."""
    one = owning("t0")
    beat(one, NOW + 5)
    assign(one, "t0", "v0", now=NOW + 5)
    effects_after(one, TopicNamesFound({}), now=NOW + 5)
    one.handle_timer(NOW + 10)
    effects_of(one)

    assert assign(one, "t0", epoch=9, now=NOW + 10) == []

    assert beat(one, NOW + 10).owned == {T: (0,)}


def test_partitions_being_taken_over_are_reported_as_owned():
    """A full heartbeat reports partitions that are being taken over, so that the group does not reassign them."""
    one = owning("t0")
    beat(one, NOW + 5)
    assign(one, "t0", "t1", now=NOW + 5)
    beat(one, NOW + 10)

    effects_after(one, RetryLater("loading"), now=NOW + 10)

    assert beat(one, NOW + 10.1).owned == {T: (0, 1)}


def test_no_takeover_of_partitions_missing_in_an_unanswered_report():
    """Partitions that the heartbeat in flight does not report may be reassigned, and are not taken over meanwhile."""
    one = owning("t0", topics=frozenset("tv"))
    beat(one, NOW + 5)
    assign(one, "t0", "v0", now=NOW + 5)
    beat(one, NOW + 10)
    effects_after(one, RetryLater("loading"), now=NOW + 10)
    one.handle_timer(NOW + 10.1)
    question, sent = effects_of(one)
    assert (question, sent.owned) == (FindTopicNames(frozenset({V})), {T: (0,)})

    assert effects_after(one, TopicNamesFound({V: "v"}), now=NOW + 10.2) == []
    assert one.owned == parts("t0")

    (take_over,) = effects_after(one, answer(8, {T: (0,), V: (0,)}), now=NOW + 10.3)
    assert take_over.added == parts("v0")


# ---- losses ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("state", RECONCILING)
@pytest.mark.parametrize("event", [GenerationLost("late"), MemberLost("late")])
def test_lost_membership_is_reported_once(state, event):
    """After a lost membership all partitions are reported as lost once, and then the member joins under the same id."""
    one = member_in(state)
    me = one.identity

    assert effects_after(one, event) == [Release(parts("t0", "t1"), is_lost=True, is_last=False, reason="late")]

    assert one.state is Kip848State.LOSING
    assert one.owned == frozenset()
    assert not one.is_member
    assert not one.is_current(me)
    assert not one.is_current(one.identity)
    one.handle_timer(NOW + 100)
    assert effects_of(one) == []
    assert one.next_deadline() is None

    assert effects_after(one, Released(), now=NOW + 100) == []
    sent = beat(one, NOW + 100)
    assert (sent.identity, sent.topics, sent.owned) == (Identity("me", 0), frozenset("t"), {})


@pytest.mark.parametrize("state", RECONCILING)
def test_expired_session_is_reported_once(state):
    """After an expired session all partitions are reported as lost once."""
    one = member_in(state)
    at = NOW + 5 + SESSION_S

    one.handle_timer(at)

    release = next(effect for effect in effects_of(one) if isinstance(effect, Release))
    assert (release.partitions, release.is_lost, release.is_last) == (parts("t0", "t1"), True, False)
    assert release.reason.startswith("no heartbeat was acknowledged for ")
    effects_after(one, Released(), now=at + 1)
    assert beat(one, at + 1).identity == Identity("me", 0)


def test_lost_member_without_partitions_joins_at_once():
    """A lost member without partitions reports nothing to the application and joins at once."""
    one = joining()
    assign(one, epoch=1)
    effects_after(one, TakenOver())

    assert effects_after(one, MemberLost("late")) == []

    assert one.state is Kip848State.JOINING
    assert beat(one).identity == Identity("me", 0)


def test_first_assignment_after_every_join_is_reported():
    """The first assignment after every join is reported, even if it is empty."""
    one = owning("t0")
    effects_after(one, MemberLost("late"), Released())
    beat(one)

    (take_over,) = assign(one)

    assert (take_over.added, take_over.kept) == (frozenset(), frozenset())


# ---- current effects and identity ------------------------------------------------------------------------------


def test_only_the_last_heartbeat_is_awaited():
    """The outcome of a heartbeat is not awaited after a later one or the loss of the membership."""
    one = owning("t0")
    first = beat(one, NOW + 5)
    assert one.awaits(first)
    assert not one.awaits(copy.copy(first))

    effects_after(one, CoordinatorGone("moved"), now=NOW + 6)
    second = beat(one, NOW + 7)
    assert (one.awaits(first), one.awaits(second)) == (False, True)

    effects_after(one, MemberLost("late"))
    assert not one.awaits(second)


def test_heartbeats_names_and_partitions_are_awaited_independently():
    """The outcome of a heartbeat, a takeover or a request for names does not end the wait for the others."""
    one = joining()
    (question,) = assign(one, "t0", "v0", epoch=1)
    (take_over,) = effects_after(one, TopicNamesFound({T: "t"}))
    one.handle_timer(NOW + 0.1)
    (again,) = effects_of(one)
    sent = beat(one, NOW + 5)

    assert [one.awaits(effect) for effect in (question, take_over, again, sent)] == [False, True, True, True]
    effects_after(one, answer(), now=NOW + 5)
    assert [one.awaits(effect) for effect in (take_over, again, sent)] == [True, True, False]
    effects_after(one, TakenOver(), now=NOW + 5)
    assert [one.awaits(effect) for effect in (take_over, again)] == [False, True]


@pytest.mark.parametrize("state", Kip848State)
def test_identity_is_current_only_while_a_member(state):
    """The identity of a member is current only in its epoch, so that errors of earlier commits are ignored."""
    one = member_in(state)

    assert one.is_member == (state in ALIVE)
    assert one.is_current(one.identity) == (state in ALIVE)
    assert not one.is_current(Identity("me", 6))
    assert not one.is_current(Identity("you", 7))


# ---- stopping --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("state", RECONCILING)
def test_stop_releases_then_leaves(state):
    """A stop releases the partitions and then leaves; until then the member keeps its identity and heartbeats."""
    one = member_in(state)

    assert effects_after(one, StopMembership()) == [
        Release(parts("t0", "t1"), is_lost=False, is_last=True, reason="the consumer stops")
    ]
    assert one.is_current(Identity("me", 7))
    assert effects_after(one, answer(8, {T: (5,)}), now=NOW + 5) == []
    assert one.identity == Identity("me", 8)
    assert isinstance(beat(one, NOW + 10), SendGroupHeartbeat)

    assert effects_after(one, Released()) == [SendLeave(Identity("me", -1), "the consumer stops")]
    assert one.owned == frozenset()
    assert not one.is_member
    assert effects_after(one, LeaveAnswered()) == []
    assert one.state is Kip848State.LEFT


def test_last_commit_refused_as_stale_hastens_the_heartbeat():
    """While a member closes, a commit refused for its stale epoch hastens the heartbeat that brings the new one."""
    one = member_in(Kip848State.CLOSING)

    assert effects_after(one, RetryLater("OffsetCommit: STALE_MEMBER_EPOCH"), now=NOW + 1) == []
    assert one.next_deadline() == pytest.approx(NOW + 1.1)
    assert isinstance(beat(one, NOW + 1.1), SendGroupHeartbeat)
    assert effects_after(one, answer(8, {T: (5,)}), now=NOW + 1.2) == []

    assert one.identity == Identity("me", 8)
    assert one.is_current(one.identity)
    assert one.state is Kip848State.CLOSING


@pytest.mark.parametrize(
    ("leaves_on_stop", "instance_id", "epoch"),
    [(True, None, -1), (True, "i", -1), (False, "i", -2), (False, None, None)],
    ids=["dynamic", "static, for good", "static, to be back", "dynamic, silently"],
)
@pytest.mark.parametrize("state", [Kip848State.JOINING, Kip848State.STABLE])
def test_leave_epoch_tells_whether_the_place_is_kept(state, leaves_on_stop, instance_id, epoch):
    """A leave has epoch -1, or -2 for a static member that keeps its place; a dynamic member may send none."""
    one = member_in(state, leaves_on_stop=leaves_on_stop, instance_id=instance_id)

    effects = effects_after(one, StopMembership())
    if state is not Kip848State.JOINING:
        effects = effects_after(one, Released())

    if epoch is None:
        assert (effects, one.state) == ([], Kip848State.LEFT)
    else:
        assert effects == [SendLeave(Identity("me", epoch, instance_id), "the consumer stops")]
        assert one.awaits(effects[0])


def test_unknown_member_sends_no_leave():
    """A member sends no leave before its first heartbeat, or after the group does not know it."""
    one = member()
    effects_after(one, StartMembership())
    assert effects_after(one, StopMembership()) == []
    assert one.state is Kip848State.LEFT

    one = joining()
    effects_after(one, MemberLost("unknown"))
    assert effects_after(one, StopMembership()) == []
    assert one.state is Kip848State.LEFT


@pytest.mark.parametrize(
    ("event", "leaves"), [(GenerationLost("late"), True), (SessionOver("late"), True), (MemberLost("late"), False)]
)
def test_member_lost_while_closing_reports_the_loss(event, leaves):
    """A closing member that is lost reports its partitions as lost, and leaves if the group may still know it."""
    one = member_in(Kip848State.CLOSING)

    (release,) = effects_after(one, event)

    assert release == Release(parts("t0", "t1"), is_lost=True, is_last=True, reason="the membership was lost")
    assert one.next_deadline() is None
    assert bool(effects_after(one, Released())) == leaves
    assert one.state is (Kip848State.LEAVING if leaves else Kip848State.LEFT)


def test_stop_waits_until_the_loss_is_reported():
    """A stop waits until a loss is reported, and releases nothing more."""
    one = member_in(Kip848State.LOSING)

    assert effects_after(one, StopMembership()) == []
    assert one.state is Kip848State.CLOSING
    one.handle_timer(NOW + 100)
    assert effects_of(one) == []
    effects_after(one, Released())

    assert one.state is Kip848State.LEFT


def test_loss_is_reported_once_while_stopping():
    """While a lost member stops, late errors change nothing."""
    one = member_in(Kip848State.LOSING)
    effects_after(one, StopMembership())

    assert effects_after(one, GenerationLost("late"), SessionOver("late")) == []

    assert one.state is Kip848State.CLOSING


def test_repr_shows_member_group_and_state():
    assert repr(member_in(Kip848State.STABLE)) == "<Kip848Member me of g stable>"
