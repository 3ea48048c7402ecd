"""Classic member: every transition, and the steps of a membership."""

from __future__ import annotations

import itertools

import pytest

from tailrace.consumer.group import group_machine as membership_events
from tailrace.consumer.group.classic import ALIVE, OVER, TABLE, ClassicMember, ClassicState
from tailrace.consumer.group.group_machine import (
    CoordinatorGone,
    FindPartitions,
    ForgetCoordinator,
    GenerationLost,
    GroupEvent,
    HeartbeatAnswered,
    HeartbeatOutcome,
    JoinedAsFollower,
    JoinedAsLeader,
    LeaveAnswered,
    MemberIdAssigned,
    MemberLost,
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
from tailrace.protocol.groups import MemberAssignment, MemberSubscription, OwnedPartitions
from tests.support.simulation.classic_member import (
    ASSIGNMENT,
    EVENTS,
    FENCED,
    INTERVAL_S,
    ME,
    MINE,
    REJOINING,
    SESSION_S,
    UNREAD,
    member,
)
from tests.support.simulation.driven_machine import NOW, check_events, effects_after, effects_of, state_of

WAY: list[tuple[ClassicState, tuple[GroupEvent, ...]]] = [
    (ClassicState.IDLE, ()),
    (ClassicState.WAITING, (StartMembership(),)),
    (ClassicState.JOINING, ()),
    (ClassicState.SYNCING, (JoinedAsFollower("me", 7, "range"),)),
    (ClassicState.TAKING_OVER, (Synced(ASSIGNMENT),)),
    (ClassicState.STABLE, (TakenOver(),)),
    (ClassicState.RELEASING, (RebalanceCalled(),)),
    (ClassicState.CLOSING, (StopMembership(),)),
    (ClassicState.LEAVING, (Released(),)),
    (ClassicState.LEFT, (LeaveAnswered(),)),
]
"""States of a follower in order, with the events that lead to each."""


def member_in(state: ClassicState, **changes) -> ClassicMember:
    """Return a member that reached ``state`` at NOW and whose effects so far were performed."""
    one = member(**changes)
    if state is ClassicState.FAILED:
        one.receive(FENCED, NOW)
    elif state is ClassicState.LEADING:
        one = member_in(ClassicState.JOINING, **changes)
        one.receive(EVENTS[JoinedAsLeader], NOW)
    elif state in {ClassicState.STEPPING_AWAY, ClassicState.AWAY}:
        one = member_in(ClassicState.STABLE, **changes)
        one.receive(EVENTS[PollingStalled], NOW)
        if state is ClassicState.AWAY:
            one.receive(Released(), NOW)
    else:
        for there, events in WAY:
            for event in events:
                one.receive(event, NOW)
            if there is ClassicState.JOINING:
                one.handle_timer(NOW)
            if there is state:
                break
    effects_of(one)
    assert one.state is state
    return one


# ---- the table -------------------------------------------------------------------------------------------------


def test_examples_cover_every_event():
    check_events(membership_events, GroupEvent, TABLE, EVENTS)


@pytest.mark.parametrize("state", ClassicState)
def test_every_event_is_handled_in_every_state(state):
    """An event has a transition, or raises and changes nothing; final states do not change."""
    for event in EVENTS.values():
        check_event(state, event)


def check_event(state, event):
    one = member_in(state)
    before = state_of(one)

    if isinstance(event, HeartbeatOutcome) or state in OVER:
        assert effects_after(one, event) == []
        assert one.state is state
    elif isinstance(event, TakenOver) and state in REJOINING:
        # An eager member has released the partitions of the takeover, so none can be complete.
        with pytest.raises(AssertionError):
            one.receive(event, NOW)
        assert state_of(one) == before
    elif (rule := TABLE.get((state, type(event)))) is None:
        with pytest.raises(ValueError, match=f"{type(event).__name__} cannot happen while {state}"):
            one.receive(event, NOW)
        assert state_of(one) == before
        assert effects_of(one) == []
    else:
        one.receive(event, NOW)
        effects_of(one)
        # The last step may have no leave to send, and a dynamic member may be unknown to the group.
        assert one.state in {rule.then, *rule.exceptions}


@pytest.mark.parametrize("state", ClassicState)
def test_every_state_can_be_left(state):
    """From each state, a stop and the outcomes of the effects in flight lead to a final state."""
    one = member_in(state)

    effects = effects_after(one, StopMembership())
    for _ in range(3):
        if any(isinstance(effect, Release) for effect in effects) or one.state is ClassicState.CLOSING:
            effects = effects_after(one, Released())
        elif one.state is ClassicState.LEAVING:
            effects = effects_after(one, LeaveAnswered())
        elif one.state is ClassicState.JOINING:
            effects = effects_after(one, MemberIdAssigned("late"))

    assert one.state in OVER
    assert one.is_over
    assert one.next_deadline() is None


@pytest.mark.parametrize("state", ClassicState)
def test_fatal_error_ends_the_membership_in_every_state(state):
    """The partitions are reported as lost, the error is raised to the application, and nothing follows."""
    one = member_in(state)
    owned = one.owned

    effects = effects_after(one, FENCED)

    if state in OVER:
        assert effects == []
    elif state is ClassicState.LEAVING:
        assert effects == [ReportGroupError(FENCED.error, is_fatal=True)]
        effects_after(one, LeaveAnswered())
    else:
        assert effects == [
            Release(owned, is_lost=True, is_last=True, reason="fenced"),
            ReportGroupError(FENCED.error, is_fatal=True),
        ]
        assert one.state is ClassicState.FAILED
    assert one.is_over
    assert one.owned == frozenset()
    one.handle_timer(NOW + 1_000)
    assert effects_after(one, StopMembership(), now=NOW + 1_000) == []


# ---- joining ---------------------------------------------------------------------------------------------------


def test_first_join_offers_all_strategies():
    """The first join offers every strategy, most preferred first, without a member id."""
    one = member(topics=frozenset("tu"), rack="r")

    assert effects_after(one, StartMembership()) == []
    assert one.next_deadline() == NOW
    one.handle_timer(NOW)

    subscription = MemberSubscription(("t", "u"), generation_id=-1, rack_id="r")
    assert effects_of(one) == [
        SendJoin("", (("range", subscription), ("roundrobin", subscription)), "the consumer starts", timeout_s=65.0)
    ]
    assert one.next_deadline() is None


def test_join_timeout_is_at_least_the_request_timeout():
    """The timeout of a join is at least the request timeout, even if the rebalance timeout is shorter."""
    one = member(rebalance_timeout_s=6.0)
    one.receive(StartMembership(), NOW)
    one.handle_timer(NOW)

    (join,) = effects_of(one)

    assert join.timeout_s == 30.0


def test_member_joins_at_once_with_the_id_it_was_given():
    """A member that is assigned an id joins again at once with this id (KIP-394)."""
    one = member_in(ClassicState.JOINING)

    (join,) = effects_after(one, MemberIdAssigned("me"))

    assert join.member_id == "me"
    assert one.state is ClassicState.JOINING
    assert one.identity == Identity("me", -1)


def test_follower_takes_over_its_assignment():
    """A follower computes no assignment, and is stable after the takeover."""
    one = member_in(ClassicState.JOINING, instance_id="i")

    (sync,) = effects_after(one, JoinedAsFollower("me", 7, "range"))
    assert sync == SendSync(Identity("me", 7, "i"), "range", {}, timeout_s=65.0)

    (take_over,) = effects_after(one, Synced(ASSIGNMENT))
    assert take_over == TakeOver(MINE, frozenset(), Identity("me", 7, "i"), "range", is_leader=False)
    assert one.owned == MINE

    assert effects_after(one, TakenOver()) == []
    assert one.state is ClassicState.STABLE


TWO = {"me": MemberSubscription(("t",)), "you": MemberSubscription(("t", "u"))}


def test_leader_assigns_to_all_members():
    """The leader requests partition counts of all members' topics and assigns to each member, itself included."""
    one = member_in(ClassicState.JOINING)

    assert effects_after(one, JoinedAsLeader("me", 7, "range", TWO, {})) == [FindPartitions(frozenset("tu"))]
    (sync,) = effects_after(one, PartitionsFound({"t": 3, "u": 1}))

    assert sync.assignments == {
        "me": MemberAssignment((OwnedPartitions("t", (0, 1)),)),
        "you": MemberAssignment((OwnedPartitions("t", (2,)), OwnedPartitions("u", (0,)))),
    }


def test_leader_takes_over_the_assignment_in_the_response():
    """The leader takes over the assignment in its sync response, not the one that it has computed."""
    one = member_in(ClassicState.LEADING)
    effects_after(one, PartitionsFound({"t": 5}))

    (take_over,) = effects_after(one, Synced(ASSIGNMENT))

    assert take_over.added == MINE
    assert take_over.is_leader


def test_instance_ids_reach_the_assignor():
    """The assignor receives instance ids, by which it ranks static members first."""
    one = member_in(ClassicState.JOINING)
    effects_after(one, JoinedAsLeader("a", 7, "range", {"a": TWO["me"], "z": TWO["me"]}, {"z": "i"}))

    (sync,) = effects_after(one, PartitionsFound({"t": 1}))

    assert sync.assignments["z"].assigned_partitions == (OwnedPartitions("t", (0,)),)
    assert sync.assignments["a"].assigned_partitions == ()


def test_strategy_chosen_by_the_coordinator_is_used():
    """The leader uses the strategy that the coordinator has chosen."""
    one = member_in(ClassicState.JOINING)
    effects_after(one, JoinedAsLeader("me", 7, "roundrobin", TWO, {}))

    (sync,) = effects_after(one, PartitionsFound({"t": 3}))

    assert sync.protocol == "roundrobin"
    assert sync.assignments["me"].assigned_partitions == (OwnedPartitions("t", (0, 2)),)


def test_leader_told_to_skip_the_assignment_assigns_nothing():
    """A static leader that returns and must skip the assignment keeps it, and watches partition counts (KIP-814)."""
    one = member_in(ClassicState.JOINING)
    effects_after(one, JoinedAsLeader("me", 7, "range", TWO, {}, skip_assignment=True))

    (sync,) = effects_after(one, PartitionsFound({"t": 3}))

    assert sync.assignments == {}
    effects_after(one, Synced(ASSIGNMENT), TakenOver())
    assert one.state is ClassicState.STABLE
    effects_after(one, MetadataRefreshed({"t": 4}))
    assert one.state is ClassicState.RELEASING


# ---- failed joins ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("state", [ClassicState.JOINING, ClassicState.LEADING, ClassicState.SYNCING])
def test_pauses_between_joins_grow(state):
    """Each pause is twice as long as the last, up to the limit."""
    one = member_in(state)
    pauses = []

    for _ in range(6):
        assert effects_after(one, RetryLater("loading")) == []
        assert one.state is ClassicState.WAITING
        pauses.append(one.next_deadline() - NOW)
        one.handle_timer(one.next_deadline())
        assert isinstance(effects_of(one)[0], SendJoin)

    assert pauses == pytest.approx([0.1, 0.2, 0.4, 0.8, 1.0, 1.0])


def test_early_timer_call_sends_no_join():
    """An early timer call does not shorten the pause before a join."""
    one = member_in(ClassicState.JOINING)
    effects_after(one, RetryLater("loading"))

    one.handle_timer(NOW + 0.09)

    assert effects_of(one) == []
    assert one.state is ClassicState.WAITING


def test_successful_join_resets_the_backoff():
    """After a successful join, the next pause is the first one again."""
    one = member_in(ClassicState.JOINING)
    for _ in range(3):
        effects_after(one, RetryLater("loading"))
        one.handle_timer(NOW + 100)
        effects_of(one)
    effects_after(
        one, JoinedAsFollower("me", 7, "range"), Synced(ASSIGNMENT), TakenOver(), RebalanceCalled(), Released()
    )
    one.handle_timer(NOW)
    effects_of(one)

    effects_after(one, RetryLater("loading"))

    assert one.next_deadline() == pytest.approx(NOW + 0.1)


@pytest.mark.parametrize("state", [ClassicState.JOINING, ClassicState.LEADING, ClassicState.SYNCING])
def test_moved_coordinator_is_found_again(state):
    """A member whose coordinator has moved looks it up again, and repeats the join after a pause."""
    one = member_in(state)

    assert effects_after(one, CoordinatorGone("moved")) == [ForgetCoordinator("moved")]

    assert one.state is ClassicState.WAITING
    assert one.next_deadline() > NOW


@pytest.mark.parametrize(
    ("event", "member_id"), [(GenerationLost("x"), "me"), (SessionOver("x"), "me"), (MemberLost("x"), "")]
)
def test_loss_without_partitions_releases_nothing(event, member_id):
    """A member without partitions that is lost joins again at once, under its id if that is still known."""
    one = member_in(ClassicState.SYNCING)

    assert effects_after(one, event) == []

    assert one.next_deadline() == NOW
    one.handle_timer(NOW)
    (join,) = effects_of(one)
    assert join.member_id == member_id
    assert join.subscriptions[0][1].generation_id == -1


@pytest.mark.parametrize("state", [ClassicState.LEADING, ClassicState.SYNCING])
def test_a_rebalance_during_a_rebalance_is_joined_at_once(state):
    """A rebalance during a rebalance causes a join at once, under the same id."""
    one = member_in(state)

    assert effects_after(one, RebalanceCalled()) == []

    assert one.next_deadline() == NOW
    one.handle_timer(NOW)
    assert effects_of(one)[0].member_id == "me"


# ---- heartbeats and session ------------------------------------------------------------------------------------


@pytest.mark.parametrize("state", ClassicState)
def test_heartbeats_are_sent_while_the_group_counts_the_member(state):
    """Heartbeats are sent from the join response to the last commit, and not while a join is in flight."""
    one = member_in(state)
    one.handle_timer(NOW + INTERVAL_S)

    beats = [effect for effect in effects_of(one) if isinstance(effect, SendHeartbeat)]

    assert beats == ([SendHeartbeat(Identity("me", 7), SESSION_S / 3)] if state in ALIVE else [])


def test_heartbeats_keep_the_interval():
    """Heartbeats are an interval apart, from one sending to the next."""
    one = member_in(ClassicState.STABLE)
    sent_at = []

    now = NOW
    while now < NOW + 20:
        now = one.next_deadline()
        one.handle_timer(now)
        assert isinstance(effects_of(one)[0], SendHeartbeat)
        sent_at.append(now - NOW)
        one.receive(HeartbeatOutcome(ME, HeartbeatAnswered()), now + 0.5)

    assert sent_at == [3, 6, 9, 12, 15, 18, 21]


def test_only_one_heartbeat_is_in_flight():
    """A due heartbeat waits for the response to the last one, while the session continues."""
    one = member_in(ClassicState.STABLE)
    one.handle_timer(NOW + 3)
    effects_of(one)

    one.handle_timer(NOW + 7)

    assert effects_of(one) == []
    assert one.next_deadline() == NOW + SESSION_S


@pytest.mark.parametrize("event", [RetryLater("loading"), CoordinatorGone("moved")])
@pytest.mark.parametrize(
    "state", [ClassicState.TAKING_OVER, ClassicState.STABLE, ClassicState.RELEASING, ClassicState.CLOSING]
)
def test_failed_heartbeat_is_repeated_soon(state, event):
    """A failed heartbeat is repeated soon, and affects neither the membership nor the session."""
    one = member_in(state)
    one.handle_timer(NOW + 3)
    effects_of(one)

    effects = effects_after(one, HeartbeatOutcome(ME, event), now=NOW + 4)

    assert effects == ([ForgetCoordinator("moved")] if isinstance(event, CoordinatorGone) else [])
    assert one.state is state
    assert one.next_deadline() == pytest.approx(NOW + 4.1)
    one.handle_timer(NOW + 4.1)
    assert isinstance(effects_of(one)[0], SendHeartbeat)
    assert one.heartbeat_age_s(NOW + 5) == 5


def test_pauses_between_failed_heartbeats_grow():
    """The pauses between failed heartbeats double up to the longest backoff; an acknowledged heartbeat resets them."""
    one, now, pauses = member_in(ClassicState.STABLE), NOW + 3, []
    for outcome in [CoordinatorGone("refused")] * 5 + [HeartbeatAnswered(), CoordinatorGone("refused")]:
        one.handle_timer(now)
        effects_after(one, HeartbeatOutcome(ME, outcome), now=now)
        pauses.append(one.next_deadline() - now)
        now = one.next_deadline()

    assert pauses[:5] == pytest.approx([0.1, 0.2, 0.4, 0.8, 1.0])
    assert pauses[-1] == pytest.approx(0.1)


@pytest.mark.parametrize("state", [ClassicState.TAKING_OVER, ClassicState.STABLE, ClassicState.RELEASING])
def test_expired_session_is_reported_once(state):
    """After an expired session the partitions are reported as lost once, and then the member joins."""
    one = member_in(state)

    one.handle_timer(NOW + SESSION_S)
    (release,) = effects_of(one)
    assert release == Release(MINE, is_lost=True, is_last=False, reason="no heartbeat was acknowledged for 10.0 s")
    assert one.owned == frozenset()
    assert one.identity == Identity("me", -1)

    assert one.next_deadline() is None
    one.handle_timer(NOW + 100)
    assert effects_of(one) == []
    assert one.awaits(release)

    assert effects_after(one, Released(), now=NOW + 100) == []
    one.handle_timer(NOW + 100)
    assert effects_of(one)[0].member_id == "me"


def test_session_counts_from_sending_the_last_acknowledged_heartbeat():
    """The session starts when the last acknowledged heartbeat was sent, so that it ends no later than the broker's."""
    one = member_in(ClassicState.STABLE)
    one.handle_timer(NOW + 3)
    one.receive(HeartbeatOutcome(ME, HeartbeatAnswered()), NOW + 5)
    one.handle_timer(NOW + 6)
    effects_of(one)

    assert one.next_deadline() == NOW + 3 + SESSION_S
    one.handle_timer(NOW + 12.9)
    assert one.state is ClassicState.STABLE
    one.handle_timer(NOW + 13)
    assert one.state is ClassicState.RELEASING


@pytest.mark.parametrize("state", [ClassicState.LEADING, ClassicState.SYNCING])
def test_session_may_expire_before_an_assignment(state):
    """A member whose assignment or sync takes longer than its session joins again."""
    one = member_in(state)

    one.handle_timer(NOW + SESSION_S)

    assert effects_of(one) == []
    assert one.state is ClassicState.WAITING


@pytest.mark.parametrize("state", [ClassicState.TAKING_OVER, ClassicState.STABLE, ClassicState.RELEASING])
@pytest.mark.parametrize(("event", "member_id"), [(GenerationLost("late"), "me"), (MemberLost("late"), "")])
def test_lost_membership_is_reported_once(state, event, member_id):
    """Partitions are reported as lost; then the member joins again, under its id if that is still known."""
    one = member_in(state)
    me = one.identity

    (release,) = effects_after(one, event)

    assert release == Release(MINE, is_lost=True, is_last=False, reason="late")
    assert not one.is_current(me)
    assert not one.is_current(one.identity)
    assert one.next_deadline() is None
    effects_after(one, Released())
    one.handle_timer(NOW)
    assert effects_of(one)[0].member_id == member_id


# ---- rebalancing -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("state", [ClassicState.TAKING_OVER, ClassicState.STABLE])
def test_partitions_are_released_before_the_next_join(state):
    """A member drains, commits and calls its callbacks before the next join, and owns its partitions until then."""
    one = member_in(state)

    (release,) = effects_after(one, RebalanceCalled())
    assert release == Release(MINE, is_lost=False, is_last=False, reason="the group rebalances")
    assert one.owned == MINE
    one.handle_timer(NOW + 1)
    assert effects_of(one) == []
    assert one.is_current(one.identity)

    assert effects_after(one, Released()) == []
    assert one.owned == frozenset()
    one.handle_timer(NOW)
    (join,) = effects_of(one)
    assert (join.member_id, join.reason) == ("me", "the group rebalances")


@pytest.mark.parametrize("offered", [("range",), ("cooperative-sticky",)])
@pytest.mark.parametrize(
    "triggers",
    [
        *itertools.permutations(
            (RebalanceCalled(), Resubscribed(frozenset("tu")), HeartbeatOutcome(ME, RebalanceCalled())), 2
        )
    ],
    ids=lambda pair: " then ".join(type(one).__name__ for one in pair),
)
def test_several_reasons_cause_one_rebalance(triggers, offered):
    """Several reasons for a rebalance cause at most one release and one join."""
    one, wanted = member(*offered), []
    effects_after(one, StartMembership())
    one.handle_timer(NOW)
    effects_after(one, JoinedAsFollower("me", 7, offered[0]), Synced(ASSIGNMENT), TakenOver())

    for trigger in (*triggers, RebalanceCalled()):
        wanted += effects_after(one, trigger)
    if one.state is ClassicState.RELEASING:
        wanted += effects_after(one, Released())
    for _ in range(2):
        one.handle_timer(NOW)
        wanted += effects_after(one, *(trigger for trigger in triggers if not isinstance(trigger, RebalanceCalled)))

    assert [type(effect) for effect in wanted] == [Release, SendJoin] if offered == ("range",) else [SendJoin]
    assert one.state is ClassicState.JOINING


def leader(*, counts: dict[str, int]) -> ClassicMember:
    """Return the leader of two members, of which the other subscribes to ``u`` as well."""
    one = member_in(ClassicState.JOINING)
    effects_after(
        one, JoinedAsLeader("me", 7, "range", TWO, {}), PartitionsFound(counts), Synced(ASSIGNMENT), TakenOver()
    )
    return one


@pytest.mark.parametrize(
    ("counts", "is_changed"),
    [
        ({"t": 2, "u": 1}, False),
        ({"t": 3, "u": 1}, True),
        ({"t": 2, "u": 2}, True),
        ({"t": 2, "u": 0}, True),
        ({"t": 2}, False),
        ({"t": 2, "u": 1, "other": 5}, False),
    ],
    ids=["the same", "grown", "another's grown", "gone", "not told of", "nobody's"],
)
def test_leader_watches_the_topics_of_all_members(counts, is_changed):
    """Added partitions and deleted topics cause a rebalance; topics without a subscriber do not."""
    one = leader(counts={"t": 2, "u": 1})

    effects = effects_after(one, MetadataRefreshed(counts))

    assert bool(effects) == is_changed
    assert one.state is (ClassicState.RELEASING if is_changed else ClassicState.STABLE)


def test_created_topic_is_assigned():
    """A subscribed topic that did not exist at the last assignment causes a rebalance."""
    one = leader(counts={"t": 2})

    assert effects_after(one, MetadataRefreshed({"t": 2, "u": 0})) == []
    (release,) = effects_after(one, MetadataRefreshed({"t": 2, "u": 4}))

    assert release.reason == "partitions or topics were added or removed"


def test_follower_does_not_watch_topics():
    """A follower does not watch topics even if it was a leader before."""
    one = leader(counts={"t": 2, "u": 1})
    effects_after(one, RebalanceCalled(), Released())
    one.handle_timer(NOW)
    effects_after(one, JoinedAsFollower("me", 8, "range"), Synced(ASSIGNMENT), TakenOver())

    assert effects_after(one, MetadataRefreshed({"t": 9, "u": 9})) == []


def test_new_subscription_causes_a_join():
    """Partitions are released, and the join carries the new subscription."""
    one = member_in(ClassicState.STABLE)

    (release,) = effects_after(one, Resubscribed(frozenset("uv")))
    assert not release.is_lost
    effects_after(one, Released())
    one.handle_timer(NOW)

    (join,) = effects_of(one)
    assert join.subscriptions[0][1].topics == ("u", "v")
    assert join.reason == "the subscription changed"


@pytest.mark.parametrize("state", [ClassicState.JOINING, ClassicState.LEADING, ClassicState.SYNCING])
def test_subscription_changed_during_a_join_causes_another(state):
    """The assignment for the old subscription is not taken over."""
    one = member_in(state)
    effects_after(one, Resubscribed(frozenset("u")))
    if state is ClassicState.JOINING:
        effects_after(one, JoinedAsFollower("me", 7, "range"))
    if state is ClassicState.LEADING:
        effects_after(one, PartitionsFound({"t": 2}))

    assert effects_after(one, Synced(ASSIGNMENT)) == []

    assert one.owned == frozenset()
    one.handle_timer(NOW)
    (join,) = effects_of(one)
    assert join.subscriptions[0][1].topics == ("u",)
    effects_after(one, JoinedAsFollower("me", 8, "range"))
    assigned = MemberAssignment((OwnedPartitions("u", (0,)),))
    assert isinstance(effects_after(one, Synced(assigned))[0], TakeOver)


def test_join_carries_the_last_assignment():
    """A join carries the last assignment and its generation for eager sticky assignors, although it was released."""
    one = member("sticky")
    effects_after(one, StartMembership())
    one.handle_timer(NOW)
    (first,) = effects_of(one)
    effects_after(
        one, JoinedAsFollower("me", 7, "sticky"), Synced(ASSIGNMENT), TakenOver(), RebalanceCalled(), Released()
    )
    one.handle_timer(NOW)
    (second,) = effects_of(one)

    assert (first.last_assigned, first.last_generation) == ((), -1)
    assert (second.last_assigned, second.last_generation) == (ASSIGNMENT.assigned_partitions, 7)
    assert second.subscriptions[0][1].owned_partitions == ()


# ---- current effects and identity ------------------------------------------------------------------------------


def test_only_current_effects_are_awaited():
    """The outcome of an effect is not awaited after a later event."""
    one = member_in(ClassicState.WAITING)
    one.handle_timer(NOW)
    (first,) = effects_of(one)
    assert one.awaits(first)

    (second,) = effects_after(one, MemberIdAssigned("me"))
    assert one.awaits(second)
    assert not one.awaits(first)

    effects_after(one, RetryLater("loading"))
    assert not one.awaits(second)


def test_an_interrupted_takeover_or_release_is_not_awaited():
    """A takeover is not awaited after a rebalance, and a release is not awaited after a loss."""
    one = member_in(ClassicState.SYNCING)
    (take_over,) = effects_after(one, Synced(ASSIGNMENT))

    (release,) = effects_after(one, RebalanceCalled())
    assert (one.awaits(take_over), one.awaits(release)) == (False, True)

    (loss,) = effects_after(one, MemberLost("late"))
    assert (one.awaits(release), one.awaits(loss)) == (False, True)


def test_heartbeat_does_not_end_the_wait_for_a_callback():
    """The outcome of a heartbeat does not end the wait for a callback."""
    one = member_in(ClassicState.SYNCING)
    (take_over,) = effects_after(one, Synced(ASSIGNMENT))
    one.handle_timer(NOW + 3)
    effects_after(
        one,
        *(
            HeartbeatOutcome(ME, outcome)
            for outcome in (HeartbeatAnswered(), CoordinatorGone("moved"), RetryLater("loading"))
        ),
    )

    assert one.awaits(take_over)


@pytest.mark.parametrize("state", ClassicState)
def test_identity_is_current_only_within_its_generation(state):
    """The identity of a member is current only in its generation, so that later responses to it are ignored."""
    one = member_in(state)

    assert one.is_current(one.identity) == (state in ALIVE)
    assert not one.is_current(Identity("me", 6))
    assert not one.is_current(Identity("you", 7))


# ---- stopping --------------------------------------------------------------------------------------------------

LEAVES = [SendLeave(Identity("me", 7), "the consumer stops")]
GIVES_BACK = [Release(MINE, is_lost=False, is_last=True, reason="the consumer stops")]


@pytest.mark.parametrize(
    ("state", "effects", "then"),
    [
        (ClassicState.IDLE, [], ClassicState.LEFT),
        (ClassicState.WAITING, [], ClassicState.LEFT),
        (ClassicState.JOINING, [], ClassicState.JOINING),
        (ClassicState.LEADING, LEAVES, ClassicState.LEAVING),
        (ClassicState.SYNCING, LEAVES, ClassicState.LEAVING),
        (ClassicState.TAKING_OVER, GIVES_BACK, ClassicState.CLOSING),
        (ClassicState.STABLE, GIVES_BACK, ClassicState.CLOSING),
        (ClassicState.RELEASING, GIVES_BACK, ClassicState.CLOSING),
        (ClassicState.CLOSING, [], ClassicState.CLOSING),
        (ClassicState.LEAVING, [], ClassicState.LEAVING),
        (ClassicState.LEFT, [], ClassicState.LEFT),
        (ClassicState.FAILED, [], ClassicState.FAILED),
    ],
)
def test_stop_releases_and_leaves_as_the_state_requires(state, effects, then):
    """A stop releases owned partitions, and leaves if the group knows the member."""
    one = member_in(state)

    assert effects_after(one, StopMembership()) == effects
    assert one.state is then


def test_member_id_that_arrives_after_a_stop_is_left_with():
    """A member that is assigned an id after its stop leaves, as the coordinator waits for it (KIP-394)."""
    one = member_in(ClassicState.JOINING)
    effects_after(one, StopMembership())

    assert effects_after(one, MemberIdAssigned("late")) == [SendLeave(Identity("late", -1), "the consumer stops")]
    assert effects_after(one, LeaveAnswered()) == []
    assert one.state is ClassicState.LEFT


def test_stop_does_not_wait_for_an_unresponsive_coordinator():
    """A stop during a join that is not answered ends the member after a limit."""
    one = member_in(ClassicState.JOINING)
    effects_after(one, StopMembership())

    one.handle_timer(one.next_deadline())
    (effect,) = effects_of(one)

    assert effect == Release(frozenset(), is_lost=False, is_last=True, reason="the consumer stops")
    assert effects_after(one, Released()) == []
    assert one.state is ClassicState.LEFT


@pytest.mark.parametrize("state", [ClassicState.TAKING_OVER, ClassicState.STABLE, ClassicState.RELEASING])
def test_stop_releases_then_leaves(state):
    """A stop releases the partitions and then leaves; until then the member keeps its identity."""
    one = member_in(state)

    effects_after(one, StopMembership())
    assert one.owned == MINE
    assert effects_after(one, Released()) == LEAVES
    assert one.owned == frozenset()
    assert effects_after(one, LeaveAnswered()) == []

    assert one.state is ClassicState.LEFT
    assert one.identity == Identity()


def test_rejoining_member_leaves_under_its_id():
    """A member that stops during a repeated join leaves under its id."""
    one = member_in(ClassicState.RELEASING)
    effects_after(one, Released())
    one.handle_timer(NOW)
    effects_of(one)

    assert effects_after(one, StopMembership()) == LEAVES


def test_static_member_releases_and_does_not_leave():
    """A static member keeps its place until its session expires."""
    one = member_in(ClassicState.STABLE, leaves_on_stop=False, instance_id="i")

    assert effects_after(one, StopMembership()) == GIVES_BACK
    assert effects_after(one, Released()) == []

    assert one.state is ClassicState.LEFT


def test_member_lost_while_closing_sends_no_leave():
    """A closing member that is lost reports its partitions as lost, and sends no leave."""
    for event in (MemberLost("late"), SessionOver("late")):
        one = member_in(ClassicState.CLOSING)

        (release,) = effects_after(one, event)

        assert release == Release(MINE, is_lost=True, is_last=True, reason="the membership was lost")
        assert one.next_deadline() is None
        assert effects_after(one, Released()) == []
        assert one.state is ClassicState.LEFT


def test_member_of_an_old_generation_leaves_while_closing():
    """A closing member of an old generation reports its partitions as lost, and leaves."""
    one = member_in(ClassicState.CLOSING)

    (release,) = effects_after(one, GenerationLost("late"))
    assert release == Release(MINE, is_lost=True, is_last=True, reason="the membership was lost")
    assert one.next_deadline() is None

    assert effects_after(one, Released()) == [SendLeave(Identity("me", -1), "the consumer stops")]
    assert effects_after(one, LeaveAnswered()) == []
    assert one.state is ClassicState.LEFT


def test_heartbeats_continue_while_closing():
    """A closing member sends heartbeats until its last commit, and ignores a rebalance."""
    one = member_in(ClassicState.CLOSING)

    one.handle_timer(NOW + 3)
    assert isinstance(effects_of(one)[0], SendHeartbeat)
    assert effects_after(one, RebalanceCalled(), Resubscribed(frozenset("u")), StopMembership()) == []
    assert one.state is ClassicState.CLOSING


def test_repr_shows_member_group_and_state():
    assert repr(member()) == "<ClassicMember new of g idle>"
    assert repr(member_in(ClassicState.STABLE)) == "<ClassicMember me of g stable>"


# ---- the application does not poll -----------------------------------------------------------------------------


def test_member_whose_application_does_not_poll_leaves():
    """A member whose application does not poll loses its partitions and leaves; at the next poll, it joins as new."""
    one = member_in(ClassicState.STABLE)

    *telling, release = effects_after(one, PollingStalled(UNREAD))

    assert telling == [
        ReportGroupError(UNREAD, is_fatal=False),
        SendLeave(Identity("me", 7), "the application does not poll"),
    ]
    assert release == Release(MINE, is_lost=True, is_last=False, reason="the application does not poll")
    assert effects_after(one, Released()) == []
    assert one.next_deadline() is None
    effects_after(one, PollingResumed())
    one.handle_timer(NOW)
    assert effects_of(one)[0].member_id == ""


def test_static_member_whose_application_does_not_poll_sends_no_leave():
    """A static member whose application does not poll loses its partitions without a leave."""
    one = member_in(ClassicState.STABLE, instance_id="i", leaves_on_stop=False)

    _, release = effects_after(one, PollingStalled(UNREAD))

    assert release.is_lost
    effects_after(one, Released(), PollingResumed())
    one.handle_timer(NOW)
    assert effects_of(one)[0].member_id == "me"


def test_application_that_polls_during_the_loss_is_joined_at_once():
    """If the application polls while the loss is reported, the member joins right after the report."""
    one = member_in(ClassicState.STEPPING_AWAY)

    effects_after(one, PollingResumed(), Released())

    assert one.state is ClassicState.WAITING
