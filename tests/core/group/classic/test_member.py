"""The classic membership: the whole of its table, and what it does in the course of a life."""

from __future__ import annotations

import itertools
from dataclasses import replace

import pytest

from tailrace.core.group import events as membership_events
from tailrace.core.group.classic.member import TABLE, ClassicMember
from tailrace.core.group.classic.states import ALIVE, OVER, ClassicState
from tailrace.core.group.effects import (
    EmitGroupEvent,
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
    MemberIdGiven,
    MemberLost,
    NotNow,
    PartitionsChanged,
    PartitionsFound,
    RebalanceCalled,
    Released,
    Resubscribed,
    Returned,
    SessionOver,
    Stalled,
    StartMembership,
    StopMembership,
    Synced,
    TakenOver,
)
from tailrace.protocol.member_metadata import MemberAssignment, MemberSubscription, OwnedPartitions
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
from tests.support.simulation.driven_machine import NOW, check_events, effects_of, state_of, told

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
"""How a follower comes from each state to the next."""


def member_in(state: ClassicState, **changes) -> ClassicMember:
    """One that has come to ``state`` at NOW, and whose effects so far are performed."""
    one = member(**changes)
    if state is ClassicState.FAILED:
        one.receive(FENCED, NOW)
    elif state is ClassicState.DEALING:
        one = member_in(ClassicState.JOINING, **changes)
        one.receive(EVENTS[JoinedAsLeader], NOW)
    elif state in {ClassicState.STEPPING_AWAY, ClassicState.AWAY}:
        one = member_in(ClassicState.STABLE, **changes)
        one.receive(EVENTS[Stalled], NOW)
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


def test_every_event_there_is_is_tried():
    """The examples of this file leave none out."""
    check_events(membership_events, GroupEvent, TABLE, EVENTS)


@pytest.mark.parametrize("state", ClassicState)
def test_every_event_in_every_state(state):
    """Either the table has a rule, or it raises and nothing has changed; what is over stays over."""
    for event in EVENTS.values():
        check_event(state, event)


def check_event(state, event):
    one = member_in(state)
    before = state_of(one)

    if isinstance(event, Beat) or state in OVER:
        assert told(one, event) == []
        assert one.state is state
    elif isinstance(event, TakenOver) and state in REJOINING:
        # An eager member has given back what it was taking over, so nothing can be through.
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
        # The last step may have nothing to say good-bye to, and a dynamic member may have nobody to tell.
        assert one.state in {rule.then, *rule.exceptions}


@pytest.mark.parametrize("state", ClassicState)
def test_every_state_can_be_left(state):
    """From each state, Stop and the outcome of what is under way lead to the end."""
    one = member_in(state)

    effects = told(one, StopMembership())
    for _ in range(3):
        if any(isinstance(effect, Release) for effect in effects) or one.state is ClassicState.CLOSING:
            effects = told(one, Released())
        elif one.state is ClassicState.LEAVING:
            effects = told(one, LeaveAnswered())
        elif one.state is ClassicState.JOINING:
            effects = told(one, MemberIdGiven("late"))

    assert one.state in OVER
    assert one.is_over
    assert one.next_deadline() is None


@pytest.mark.parametrize("state", ClassicState)
def test_a_fatal_error_ends_it_from_every_state(state):
    """What it has is dropped, the user is told, and nothing follows."""
    one = member_in(state)
    owned = one.owned

    effects = told(one, FENCED)

    if state in OVER:
        assert effects == []
    elif state is ClassicState.LEAVING:
        assert effects == [FailMembership(FENCED.error)]
        told(one, LeaveAnswered())
    else:
        assert effects == [Release(owned, is_lost=True, is_last=True, reason="fenced"), FailMembership(FENCED.error)]
        assert one.state is ClassicState.FAILED
    assert one.is_over
    assert one.owned == frozenset()
    one.handle_timer(NOW + 1_000)
    assert told(one, StopMembership(), now=NOW + 1_000) == []


# ---- becoming a member -----------------------------------------------------------------------------------------


def test_the_first_join_offers_all_strategies_at_once():
    """One join with every assignor, most preferred first, and no id (B1); it waits as long as a rebalance may (B5)."""
    one = member(topics=frozenset("tu"), rack="r")

    assert told(one, StartMembership()) == []
    assert one.next_deadline() == NOW
    one.handle_timer(NOW)

    said = MemberSubscription(("t", "u"), generation_id=-1, rack_id="r")
    assert effects_of(one) == [
        SendJoin("", (("range", said), ("roundrobin", said)), "the consumer starts", timeout_s=65.0)
    ]
    assert one.next_deadline() is None


def test_a_join_never_waits_less_than_any_request():
    """A short rebalance timeout does not make a join more impatient than other requests."""
    one = member(rebalance_timeout_s=6.0)
    one.receive(StartMembership(), NOW)
    one.handle_timer(NOW)

    (join,) = effects_of(one)

    assert join.timeout_s == 30.0


def test_an_id_that_was_given_is_joined_with_at_once():
    """The coordinator gave it for just that (KIP-394)."""
    one = member_in(ClassicState.JOINING)

    (join,) = told(one, MemberIdGiven("me"))

    assert join.member_id == "me"
    assert one.state is ClassicState.JOINING
    assert one.identity == Identity("me", -1)


def test_a_follower_takes_what_it_is_given():
    """It deals nothing; when it is given partitions it takes them over, and then it is stable."""
    one = member_in(ClassicState.JOINING, instance_id="i")

    (sync,) = told(one, JoinedAsFollower("me", 7, "range"))
    assert sync == SendSync(Identity("me", 7, "i"), "range", {}, timeout_s=65.0)

    (take_over,) = told(one, Synced(ASSIGNMENT))
    assert take_over == TakeOver(MINE, frozenset(), Identity("me", 7, "i"), "range", is_leader=False)
    assert one.owned == MINE

    assert told(one, TakenOver()) == []
    assert one.state is ClassicState.STABLE


TWO = {"me": MemberSubscription(("t",)), "you": MemberSubscription(("t", "u"))}


def test_a_leader_deals_to_everybody():
    """It learns how many partitions all members' topics have, and gives each member its share, itself too."""
    one = member_in(ClassicState.JOINING)

    assert told(one, JoinedAsLeader("me", 7, "range", TWO, {})) == [FindPartitions(frozenset("tu"))]
    (sync,) = told(one, PartitionsFound({"t": 3, "u": 1}))

    assert sync.assignments == {
        "me": MemberAssignment((OwnedPartitions("t", (0, 1)),)),
        "you": MemberAssignment((OwnedPartitions("t", (2,)), OwnedPartitions("u", (0,)))),
    }


def test_a_leader_too_takes_what_the_coordinator_says():
    """Its own computation is no short cut: the answer counts, whatever it dealt."""
    one = member_in(ClassicState.DEALING)
    told(one, PartitionsFound({"t": 5}))

    (take_over,) = told(one, Synced(ASSIGNMENT))

    assert take_over.added == MINE
    assert take_over.is_leader


def test_static_members_keep_their_place():
    """Instance ids of members reach the assignor."""
    one = member_in(ClassicState.JOINING)
    told(one, JoinedAsLeader("a", 7, "range", {"a": TWO["me"], "z": TWO["me"]}, {"z": "i"}))

    (sync,) = told(one, PartitionsFound({"t": 1}))

    assert sync.assignments["z"].assigned_partitions == (OwnedPartitions("t", (0,)),)
    assert sync.assignments["a"].assigned_partitions == ()


def test_the_chosen_strategy_deals():
    """The coordinator chose one that all members have."""
    one = member_in(ClassicState.JOINING)
    told(one, JoinedAsLeader("me", 7, "roundrobin", TWO, {}))

    (sync,) = told(one, PartitionsFound({"t": 3}))

    assert sync.protocol == "roundrobin"
    assert sync.assignments["me"].assigned_partitions == (OwnedPartitions("t", (0, 2)),)


def test_a_leader_that_is_told_to_deals_nothing():
    """A static leader that came back leaves the assignment as it was, and goes on watching (KIP-814)."""
    one = member_in(ClassicState.JOINING)
    told(one, JoinedAsLeader("me", 7, "range", TWO, {}, skip_assignment=True))

    (sync,) = told(one, PartitionsFound({"t": 3}))

    assert sync.assignments == {}
    told(one, Synced(ASSIGNMENT), TakenOver())
    assert one.state is ClassicState.STABLE
    told(one, PartitionsChanged({"t": 4}))
    assert one.state is ClassicState.RELEASING


def dealt_by_a_leader(counts, **instances):
    """What a leader gave itself, and the generation's members know nothing of."""
    one = member_in(ClassicState.JOINING)
    told(one, JoinedAsLeader("me", 7, "range", TWO, instances))
    (sync,) = told(one, PartitionsFound(counts))
    return sync.assignments


@pytest.mark.parametrize(("before", "state"), [(3, ClassicState.STABLE), (2, ClassicState.RELEASING)])
def test_a_leader_that_came_back_knows_what_was_dealt(before, state):
    """What grew while a static leader was away nobody has watched: it is dealt out as soon as the picture is newer."""
    note = dealt_by_a_leader({"t": before}, me="one")["me"]
    one = member_in(ClassicState.JOINING)
    told(one, JoinedAsLeader("me", 7, "range", TWO, {"me": "one"}, skip_assignment=True), PartitionsFound({"t": 3}))

    told(one, Synced(note), TakenOver(), PartitionsChanged({"t": 3}))

    assert one.state is state


@pytest.mark.parametrize("note", [None, b"", b"what another client wrote"])
def test_a_leader_that_came_back_believes_no_word_but_its_own(note):
    """Another client has dealt, and may have said what it likes: the picture is what the members have."""
    one = member_in(ClassicState.JOINING)
    told(one, JoinedAsLeader("me", 7, "range", TWO, {"me": "one"}, skip_assignment=True), PartitionsFound({"t": 3}))

    told(one, Synced(replace(ASSIGNMENT, user_data=note)), TakenOver(), PartitionsChanged({"t": 3}))

    assert one.state is ClassicState.STABLE


def test_only_a_leader_that_may_come_back_notes_what_it_dealt():
    """It alone would read it."""
    static = dealt_by_a_leader({"t": 2}, me="one", other="two")
    dynamic = dealt_by_a_leader({"t": 2}, other="two")

    assert [name for name, given in static.items() if given.user_data] == ["me"]
    assert not any(given.user_data for given in dynamic.values())


# ---- a join that goes wrong ------------------------------------------------------------------------------------


@pytest.mark.parametrize("state", [ClassicState.JOINING, ClassicState.DEALING, ClassicState.SYNCING])
def test_pauses_between_joins_grow(state):
    """A coordinator that cannot answer is asked again after a pause, twice as long each time, up to the longest."""
    one = member_in(state)
    pauses = []

    for _ in range(6):
        assert told(one, NotNow("loading")) == []
        assert one.state is ClassicState.WAITING
        pauses.append(one.next_deadline() - NOW)
        one.handle_timer(one.next_deadline())
        assert isinstance(effects_of(one)[0], SendJoin)

    assert pauses == pytest.approx([0.1, 0.2, 0.4, 0.8, 1.0, 1.0])


def test_a_pause_is_kept():
    """Looking at the clock early sends nothing."""
    one = member_in(ClassicState.JOINING)
    told(one, NotNow("loading"))

    one.handle_timer(NOW + 0.09)

    assert effects_of(one) == []
    assert one.state is ClassicState.WAITING


def test_a_join_that_went_well_forgets_the_failures():
    """The next trouble begins with a short pause again."""
    one = member_in(ClassicState.JOINING)
    for _ in range(3):
        told(one, NotNow("loading"))
        one.handle_timer(NOW + 100)
        effects_of(one)
    told(one, JoinedAsFollower("me", 7, "range"), Synced(ASSIGNMENT), TakenOver(), RebalanceCalled(), Released())
    one.handle_timer(NOW)
    effects_of(one)

    told(one, NotNow("loading"))

    assert one.next_deadline() == pytest.approx(NOW + 0.1)


@pytest.mark.parametrize("state", [ClassicState.JOINING, ClassicState.DEALING, ClassicState.SYNCING])
def test_a_coordinator_that_moved_is_looked_up(state):
    """Then the same again, after a pause."""
    one = member_in(state)

    assert told(one, CoordinatorGone("moved")) == [ForgetCoordinator("moved")]

    assert one.state is ClassicState.WAITING
    assert one.next_deadline() > NOW


@pytest.mark.parametrize(
    ("event", "member_id"), [(GenerationLost("x"), "me"), (SessionOver("x"), "me"), (MemberLost("x"), "")]
)
def test_what_is_lost_before_it_was_had_needs_no_giving_back(event, member_id):
    """Between a join and its end nothing is owned: the next join follows at once, with the id if it is still known."""
    one = member_in(ClassicState.SYNCING)

    assert told(one, event) == []

    assert one.next_deadline() == NOW
    one.handle_timer(NOW)
    (join,) = effects_of(one)
    assert join.member_id == member_id
    assert join.subscriptions[0][1].generation_id == -1


@pytest.mark.parametrize("state", [ClassicState.DEALING, ClassicState.SYNCING])
def test_a_rebalance_during_a_rebalance(state):
    """Somebody else came meanwhile: join again, at once and under the same id."""
    one = member_in(state)

    assert told(one, RebalanceCalled()) == []

    assert one.next_deadline() == NOW
    one.handle_timer(NOW)
    assert effects_of(one)[0].member_id == "me"


# ---- living ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("state", ClassicState)
def test_heartbeats_go_out_while_the_group_counts_us_in(state):
    """From the answer to the join on, through callbacks, drain and the last commit; never while a join is in flight."""
    one = member_in(state)
    one.handle_timer(NOW + INTERVAL_S)

    beats = [effect for effect in effects_of(one) if isinstance(effect, SendHeartbeat)]

    assert beats == ([SendHeartbeat(Identity("me", 7), SESSION_S / 3)] if state in ALIVE else [])


def test_heartbeats_keep_their_interval():
    """Each an interval after the one before was sent, with one under way at a time."""
    one = member_in(ClassicState.STABLE)
    sent_at = []

    now = NOW
    while now < NOW + 20:
        now = one.next_deadline()
        one.handle_timer(now)
        assert isinstance(effects_of(one)[0], SendHeartbeat)
        sent_at.append(now - NOW)
        one.receive(Beat(ME, HeartbeatAnswered()), now + 0.5)

    assert sent_at == [3, 6, 9, 12, 15, 18, 21]


def test_no_heartbeat_before_the_answer_to_the_last():
    """What is due then waits; the session does not."""
    one = member_in(ClassicState.STABLE)
    one.handle_timer(NOW + 3)
    effects_of(one)

    one.handle_timer(NOW + 7)

    assert effects_of(one) == []
    assert one.next_deadline() == NOW + SESSION_S


@pytest.mark.parametrize("event", [NotNow("loading"), CoordinatorGone("moved")])
@pytest.mark.parametrize(
    "state", [ClassicState.TAKING_OVER, ClassicState.STABLE, ClassicState.RELEASING, ClassicState.CLOSING]
)
def test_a_heartbeat_that_failed_is_tried_again_soon(state, event):
    """After the first pause; the membership is none the worse for it, and the session goes on counting."""
    one = member_in(state)
    one.handle_timer(NOW + 3)
    effects_of(one)

    effects = told(one, Beat(ME, event), now=NOW + 4)

    assert effects == ([ForgetCoordinator("moved")] if isinstance(event, CoordinatorGone) else [])
    assert one.state is state
    assert one.next_deadline() == pytest.approx(NOW + 4.1)
    one.handle_timer(NOW + 4.1)
    assert isinstance(effects_of(one)[0], SendHeartbeat)
    assert one.heartbeat_age_s(NOW + 5) == 5


@pytest.mark.parametrize("state", [ClassicState.TAKING_OVER, ClassicState.STABLE, ClassicState.RELEASING])
def test_a_session_that_is_over_is_lost_once(state):
    """Everything is dropped, no heartbeat goes out any more, and the next join follows when the user was told."""
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

    assert told(one, Released(), now=NOW + 100) == []
    one.handle_timer(NOW + 100)
    assert effects_of(one)[0].member_id == "me"


def test_the_session_counts_from_the_sending_of_the_last_good_heartbeat():
    """The broker heard it later than that, so we never outlive what it knows of us."""
    one = member_in(ClassicState.STABLE)
    one.handle_timer(NOW + 3)
    one.receive(Beat(ME, HeartbeatAnswered()), NOW + 5)
    one.handle_timer(NOW + 6)
    effects_of(one)

    assert one.next_deadline() == NOW + 3 + SESSION_S
    one.handle_timer(NOW + 12.9)
    assert one.state is ClassicState.STABLE
    one.handle_timer(NOW + 13)
    assert one.state is ClassicState.RELEASING


@pytest.mark.parametrize("state", [ClassicState.DEALING, ClassicState.SYNCING])
def test_a_session_may_end_before_anything_was_given(state):
    """A leader that takes too long, a sync that is held too long: join again."""
    one = member_in(state)

    one.handle_timer(NOW + SESSION_S)

    assert effects_of(one) == []
    assert one.state is ClassicState.WAITING


@pytest.mark.parametrize("state", [ClassicState.TAKING_OVER, ClassicState.STABLE, ClassicState.RELEASING])
@pytest.mark.parametrize(("event", "member_id"), [(GenerationLost("late"), "me"), (MemberLost("late"), "")])
def test_a_membership_that_is_lost_is_lost_once(state, event, member_id):
    """The group went on without us: all is dropped, and joined anew, as the same member or as a new one."""
    one = member_in(state)
    me = one.identity

    (release,) = told(one, event)

    assert release == Release(MINE, is_lost=True, is_last=False, reason="late")
    assert not one.is_current(me)
    assert not one.is_current(one.identity)
    assert one.next_deadline() is None
    told(one, Released())
    one.handle_timer(NOW)
    assert effects_of(one)[0].member_id == member_id


# ---- rebalancing -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("state", [ClassicState.TAKING_OVER, ClassicState.STABLE])
def test_partitions_are_given_back_before_the_next_join(state):
    """Drain, commit, callbacks; only when that is through does the join go out, and until then they are ours."""
    one = member_in(state)

    (release,) = told(one, RebalanceCalled())
    assert release == Release(MINE, is_lost=False, is_last=False, reason="the group rebalances")
    assert one.owned == MINE
    one.handle_timer(NOW + 1)
    assert effects_of(one) == []
    assert one.is_current(one.identity)

    assert told(one, Released()) == []
    assert one.owned == frozenset()
    one.handle_timer(NOW)
    (join,) = effects_of(one)
    assert (join.member_id, join.reason) == ("me", "the group rebalances")


@pytest.mark.parametrize("offered", [("range",), ("cooperative-sticky",)])
@pytest.mark.parametrize(
    "triggers",
    [*itertools.permutations((RebalanceCalled(), Resubscribed(frozenset("tu")), Beat(ME, RebalanceCalled())), 2)],
    ids=lambda pair: " then ".join(type(one).__name__ for one in pair),
)
def test_a_rebalance_is_called_once(triggers, offered):
    """Two reasons at once are one rebalance: one giving back, if any, and one join; what comes meanwhile adds none."""
    one, wanted = member(*offered), []
    told(one, StartMembership())
    one.handle_timer(NOW)
    told(one, JoinedAsFollower("me", 7, offered[0]), Synced(ASSIGNMENT), TakenOver())

    for trigger in (*triggers, RebalanceCalled()):
        wanted += told(one, trigger)
    if one.state is ClassicState.RELEASING:
        wanted += told(one, Released())
    for _ in range(2):
        one.handle_timer(NOW)
        wanted += told(one, *(trigger for trigger in triggers if not isinstance(trigger, RebalanceCalled)))

    assert [type(effect) for effect in wanted] == [Release, SendJoin] if offered == ("range",) else [SendJoin]
    assert one.state is ClassicState.JOINING


def leader(*, counts: dict[str, int]) -> ClassicMember:
    """One that leads two members, of whom the other wants ``u`` as well."""
    one = member_in(ClassicState.JOINING)
    told(one, JoinedAsLeader("me", 7, "range", TWO, {}), PartitionsFound(counts), Synced(ASSIGNMENT), TakenOver())
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
def test_a_leader_watches_all_members_topics(counts, is_changed):
    """Partitions that were added, topics that have gone: they are dealt out anew; what nobody wants does not matter."""
    one = leader(counts={"t": 2, "u": 1})

    effects = told(one, PartitionsChanged(counts))

    assert bool(effects) == is_changed
    assert one.state is (ClassicState.RELEASING if is_changed else ClassicState.STABLE)


def test_a_topic_that_comes_is_dealt():
    """It did not exist when partitions were dealt, and somebody wants it."""
    one = leader(counts={"t": 2})

    assert told(one, PartitionsChanged({"t": 2, "u": 0})) == []
    (release,) = told(one, PartitionsChanged({"t": 2, "u": 4}))

    assert release.reason == "partitions or topics were added or removed"


def test_a_follower_leaves_that_to_its_leader():
    """Also one that has led before."""
    one = leader(counts={"t": 2, "u": 1})
    told(one, RebalanceCalled(), Released())
    one.handle_timer(NOW)
    told(one, JoinedAsFollower("me", 8, "range"), Synced(ASSIGNMENT), TakenOver())

    assert told(one, PartitionsChanged({"t": 9, "u": 9})) == []


def test_a_new_subscription_is_joined_with():
    """Partitions are given back, and the join says what is wanted now."""
    one = member_in(ClassicState.STABLE)

    (release,) = told(one, Resubscribed(frozenset("uv")))
    assert not release.is_lost
    told(one, Released())
    one.handle_timer(NOW)

    (join,) = effects_of(one)
    assert join.subscriptions[0][1].topics == ("u", "v")
    assert join.reason == "the subscription changed"


@pytest.mark.parametrize("state", [ClassicState.JOINING, ClassicState.DEALING, ClassicState.SYNCING])
def test_a_subscription_that_changes_during_a_join_is_joined_with_next(state):
    """What is given for the old one is not taken over; the member joins again at once."""
    one = member_in(state)
    told(one, Resubscribed(frozenset("u")))
    if state is ClassicState.JOINING:
        told(one, JoinedAsFollower("me", 7, "range"))
    if state is ClassicState.DEALING:
        told(one, PartitionsFound({"t": 2}))

    assert told(one, Synced(ASSIGNMENT)) == []

    assert one.owned == frozenset()
    one.handle_timer(NOW)
    (join,) = effects_of(one)
    assert join.subscriptions[0][1].topics == ("u",)
    told(one, JoinedAsFollower("me", 8, "range"))
    assert isinstance(told(one, Synced(ASSIGNMENT))[0], TakeOver)


def test_a_join_says_what_was_held_before():
    """All was given back, but strategies that leave things as they were may know: the last assignment and its age."""
    one = member("sticky")
    told(one, StartMembership())
    one.handle_timer(NOW)
    (first,) = effects_of(one)
    told(one, JoinedAsFollower("me", 7, "sticky"), Synced(ASSIGNMENT), TakenOver(), RebalanceCalled(), Released())
    one.handle_timer(NOW)
    (second,) = effects_of(one)

    assert (first.held_before, first.generation) == ((), -1)
    assert (second.held_before, second.generation) == (ASSIGNMENT.assigned_partitions, 7)
    assert second.subscriptions[0][1].owned_partitions == ()


# ---- what still matters ----------------------------------------------------------------------------------------


def test_only_what_is_waited_for_counts():
    """An outcome that a later event has made moot is not awaited any more."""
    one = member_in(ClassicState.WAITING)
    one.handle_timer(NOW)
    (first,) = effects_of(one)
    assert one.awaits(first)

    (second,) = told(one, MemberIdGiven("me"))
    assert one.awaits(second)
    assert not one.awaits(first)

    told(one, NotNow("loading"))
    assert not one.awaits(second)


def test_a_takeover_that_was_overtaken_does_not_count():
    """A rebalance during the callbacks makes their outcome moot, a loss during the release that of the release."""
    one = member_in(ClassicState.SYNCING)
    (take_over,) = told(one, Synced(ASSIGNMENT))

    (release,) = told(one, RebalanceCalled())
    assert (one.awaits(take_over), one.awaits(release)) == (False, True)

    (loss,) = told(one, MemberLost("late"))
    assert (one.awaits(release), one.awaits(loss)) == (False, True)


def test_heartbeats_leave_what_is_awaited_alone():
    """An answer to a heartbeat is no outcome of a callback."""
    one = member_in(ClassicState.SYNCING)
    (take_over,) = told(one, Synced(ASSIGNMENT))
    one.handle_timer(NOW + 3)
    told(one, *(Beat(ME, outcome) for outcome in (HeartbeatAnswered(), CoordinatorGone("moved"), NotNow("loading"))))

    assert one.awaits(take_over)


@pytest.mark.parametrize("state", ClassicState)
def test_who_we_are_matters_within_a_generation(state):
    """Answers to commits and heartbeats count for the generation they were sent in, and only while it lasts."""
    one = member_in(state)

    assert one.is_current(one.identity) == (state in ALIVE)
    assert not one.is_current(Identity("me", 6))
    assert not one.is_current(Identity("you", 7))


# ---- going -----------------------------------------------------------------------------------------------------

LEAVES = [SendLeave(Identity("me", 7), "the consumer stops")]
GIVES_BACK = [Release(MINE, is_lost=False, is_last=True, reason="the consumer stops")]


@pytest.mark.parametrize(
    ("state", "effects", "then"),
    [
        (ClassicState.IDLE, [], ClassicState.LEFT),
        (ClassicState.WAITING, [], ClassicState.LEFT),
        (ClassicState.JOINING, [], ClassicState.JOINING),
        (ClassicState.DEALING, LEAVES, ClassicState.LEAVING),
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
def test_a_stop_in_every_state(state, effects, then):
    """What is owned is given back, who is known says good-bye, and who is neither is gone when that is known."""
    one = member_in(state)

    assert told(one, StopMembership()) == effects
    assert one.state is then


def test_a_name_that_comes_after_the_stop_is_given_back():
    """The coordinator waits for whom it has named, and all the group with it: so that one says good-bye (KIP-394)."""
    one = member_in(ClassicState.JOINING)
    told(one, StopMembership())

    assert told(one, MemberIdGiven("late")) == [SendLeave(Identity("late", -1), "the consumer stops")]
    assert told(one, LeaveAnswered()) == []
    assert one.state is ClassicState.LEFT


def test_a_name_that_never_comes_is_not_waited_for():
    """A coordinator that does not answer does not keep a member from stopping."""
    one = member_in(ClassicState.JOINING)
    told(one, StopMembership())

    one.handle_timer(one.next_deadline())
    (effect,) = effects_of(one)

    assert effect == Release(frozenset(), is_lost=False, is_last=True, reason="the consumer stops")
    assert told(one, Released()) == []
    assert one.state is ClassicState.LEFT


@pytest.mark.parametrize("state", [ClassicState.TAKING_OVER, ClassicState.STABLE, ClassicState.RELEASING])
def test_a_member_gives_back_then_leaves_then_is_gone(state):
    """In this order, and with its identity to the last; then it is nobody."""
    one = member_in(state)

    told(one, StopMembership())
    assert one.owned == MINE
    assert told(one, Released()) == LEAVES
    assert one.owned == frozenset()
    assert told(one, LeaveAnswered()) == []

    assert one.state is ClassicState.LEFT
    assert one.identity == Identity()


def test_a_member_that_rejoins_leaves_under_its_id():
    """While its join is in flight the coordinator knows it all the same."""
    one = member_in(ClassicState.RELEASING)
    told(one, Released())
    one.handle_timer(NOW)
    effects_of(one)

    assert told(one, StopMembership()) == LEAVES


def test_a_member_that_means_to_be_back_does_not_leave():
    """A static one keeps its place until its session ends; its partitions are given back in order all the same."""
    one = member_in(ClassicState.STABLE, leaves_on_stop=False, instance_id="i")

    assert told(one, StopMembership()) == GIVES_BACK
    assert told(one, Released()) == []

    assert one.state is ClassicState.LEFT


def test_who_is_lost_while_closing_has_nobody_to_leave():
    """Nothing is committed for partitions that are somebody else's, and nobody is told good-bye."""
    for event in (MemberLost("late"), SessionOver("late")):
        one = member_in(ClassicState.CLOSING)

        (release,) = told(one, event)

        assert release == Release(MINE, is_lost=True, is_last=True, reason="the membership was lost")
        assert one.next_deadline() is None
        assert told(one, Released()) == []
        assert one.state is ClassicState.LEFT


def test_who_is_in_another_generation_while_closing_leaves_it():
    """The group waits for a member that it knows: nothing is committed, but it is told good-bye."""
    one = member_in(ClassicState.CLOSING)

    (release,) = told(one, GenerationLost("late"))
    assert release == Release(MINE, is_lost=True, is_last=True, reason="the membership was lost")
    assert one.next_deadline() is None

    assert told(one, Released()) == [SendLeave(Identity("me", -1), "the consumer stops")]
    assert told(one, LeaveAnswered()) == []
    assert one.state is ClassicState.LEFT


def test_a_member_lives_until_it_has_given_back():
    """Heartbeats go on through the last drain and commit, and a rebalance is no reason to do anything else."""
    one = member_in(ClassicState.CLOSING)

    one.handle_timer(NOW + 3)
    assert isinstance(effects_of(one)[0], SendHeartbeat)
    assert told(one, RebalanceCalled(), Resubscribed(frozenset("u")), StopMembership()) == []
    assert one.state is ClassicState.CLOSING


def test_it_says_what_it_is():
    """Its name, group and state, for whoever looks at it in a debugger or a log."""
    assert repr(member()) == "<ClassicMember new of g idle>"
    assert repr(member_in(ClassicState.STABLE)) == "<ClassicMember me of g stable>"


# ---- nobody reads ----------------------------------------------------------------------------------------------


def test_who_is_not_read_from_steps_aside():
    """It says good-bye, drops what others will have, sends no heartbeat, and joins as a new member when it is read."""
    one = member_in(ClassicState.STABLE)

    *telling, release = told(one, Stalled(UNREAD))

    assert telling == [EmitGroupEvent(UNREAD), SendLeave(Identity("me", 7), "the application does not poll")]
    assert release == Release(MINE, is_lost=True, is_last=False, reason="the application does not poll")
    assert told(one, Released()) == []
    assert one.next_deadline() is None
    told(one, Returned())
    one.handle_timer(NOW)
    assert effects_of(one)[0].member_id == ""


def test_a_static_member_that_is_not_read_from_is_silent():
    """It says no good-bye: its session ends by itself, and until then it may be back under its name."""
    one = member_in(ClassicState.STABLE, instance_id="i", leaves_on_stop=False)

    _, release = told(one, Stalled(UNREAD))

    assert release.is_lost
    told(one, Released(), Returned())
    one.handle_timer(NOW)
    assert effects_of(one)[0].member_id == "me"


def test_who_comes_back_at_once_joins_at_once():
    """A reader that returns while the loss is being told is not forgotten."""
    one = member_in(ClassicState.STEPPING_AWAY)

    told(one, Returned(), Released())

    assert one.state is ClassicState.WAITING
