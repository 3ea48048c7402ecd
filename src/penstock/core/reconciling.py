"""One member of one group under KIP-848, where the broker assigns and the member reconciles: the machine as one table.

Rule 1: every transition stands in ``TABLE``: a state, what happened, what to do, the state after it; a step that finds
more to do goes on from there. What is not in the table cannot happen, raises, and changes nothing.
Rule 2: the heartbeat is the protocol. It joins (epoch 0), brings the target, and says what was given back; one is in
flight at a time, and after one that was not answered the next says everything.
Rule 3: a partition is ours from its TakeOver to its Released, and that is what heartbeats say we own. What one said
is not added to before its answer is here: the group may have given away what it did not name.
Rule 4: an outcome counts only while it is waited for. ``awaits`` says so of an effect, each kind in a slot of its own;
``is_current`` of a commit: its epoch has to be the current one of a member.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import TypeAlias
from uuid import UUID

from penstock.core.backoff import Backoff
from penstock.core.group_heartbeat import GroupHeartbeat, Places
from penstock.core.membership import MemberSettings
from penstock.core.membership_effects import (
    Effect,
    Fail,
    ForgetCoordinator,
    NameTopics,
    Partitions,
    Release,
    SendLeave,
    TakeOver,
    Tell,
)
from penstock.core.membership_events import (
    CoordinatorGone,
    Failed,
    GenerationLost,
    GroupEvent,
    GroupHeartbeatAnswered,
    Identity,
    LeaveAnswered,
    MemberLost,
    NotNow,
    PartitionsChanged,
    RebalanceCalled,
    Released,
    Resubscribed,
    Returned,
    SessionKnown,
    SessionOver,
    Stalled,
    Start,
    Stop,
    TakenOver,
    TopicsNamed,
)
from penstock.core.topic_names import TopicNames
from penstock.errors import RebalanceError
from penstock.records import TopicPartition

__all__ = ["TABLE", "ReconcilingMember", "Rule", "State"]

_JOINS, _LEAVES, _WILL_BE_BACK = 0, -1, -2
"""Epochs that are words."""

NOWHERE: Places = frozenset()


class State(StrEnum):
    """Where a member stands."""

    IDLE = "idle"
    JOINING = "joining"
    """Until the group has answered once; nothing is owned."""
    STABLE = "stable"
    """What can be had of the target is had."""
    RELEASING = "releasing"
    """Drain, commit, the user's callbacks; then the heartbeat that says so."""
    TAKING_OVER = "taking over"
    """Start positions and the user's callbacks."""
    LOSING = "losing"
    """The user is told that all is lost; then join again."""
    STEPPING_AWAY = "stepping away"
    """Nobody reads: the user is told that the partitions are lost."""
    AWAY = "away"
    """Out of the group until somebody reads."""
    CLOSING = "closing"
    """Giving everything back for the last time."""
    LEAVING = "leaving"
    LEFT = "left"
    FAILED = "failed"


ALIVE = frozenset({State.STABLE, State.RELEASING, State.TAKING_OVER, State.CLOSING})
"""The states in which the group counts this member, until it is lost."""

OVER = frozenset({State.LEFT, State.FAILED})

Step: TypeAlias = Callable[["ReconcilingMember", GroupEvent, float], None]


@dataclass(frozen=True, slots=True)
class Rule:
    """One line of the table."""

    step: Step
    then: State
    elsewhere: tuple[State, ...] = ()
    """Where the step may lead besides."""


class ReconcilingMember:
    """The machine; see ``core.membership.Membership`` for how it is driven.

    Args:
        settings: what the options say.
        member_id: a UUID made by the caller (KIP-1082), kept for life.
        chance: gives a number in [0, 1) for jitter, passed in because chance is not decided here.
    """

    def __init__(self, settings: MemberSettings, member_id: str, chance: Callable[[], float]) -> None:
        self._settings = settings
        self._member_id = member_id
        backoff = Backoff(settings.retry_first_s, settings.retry_longest_s)
        self._beat = GroupHeartbeat(settings, backoff, chance)
        self._names = TopicNames(backoff, chance)
        self._effects: deque[Effect] = deque()
        self._epoch = _JOINS
        self._target: Places = NOWHERE
        self._owned: Places = NOWHERE
        self._ready: Places = NOWHERE
        """Of what is owned, what was taken over to the end."""
        self._work: TakeOver | Release | SendLeave | None = None
        self._moving: Places = NOWHERE
        """What the work is about."""
        self._is_introduced = False
        """Whether the user has heard of an assignment since the last join or release."""
        self.state = State.IDLE

    def __repr__(self) -> str:
        return f"<ReconcilingMember {self._member_id} of {self._settings.group_id} {self.state}>"

    # ---- being driven ------------------------------------------------------------------------------------------

    @property
    def identity(self) -> Identity:
        """Who this member is to the broker now."""
        return Identity(self._member_id, self._epoch, self._settings.instance_id)

    @property
    def owned(self) -> Partitions:
        """The partitions that are this member's, those that are being taken over or given back too."""
        return self._named(self._owned)

    @property
    def is_member(self) -> bool:
        """Whether the group counts us: what is done may be committed."""
        # What is lost is lost once: while it is being told, there is no session to keep or to lose again.
        return self.state in ALIVE and self._epoch > 0

    @property
    def is_over(self) -> bool:
        """Whether nothing more will happen."""
        return self.state in OVER

    def is_current(self, identity: Identity) -> bool:
        """Whether an error that answers a commit that was sent as ``identity`` still matters."""
        return identity == self.identity and self.is_member

    def awaits(self, effect: Effect) -> bool:
        """Whether the outcome of ``effect`` still matters: no later event or heartbeat has made it moot."""
        return any(effect is one for one in (self._beat.sent, self._names.asked, self._work))

    def heartbeat_age_s(self, now: float) -> float:
        """Seconds since the group is known to have heard from this member."""
        return self._beat.session.age_s(now)

    def receive(self, event: GroupEvent, now: float) -> None:
        """Something has happened.

        Raises:
            ValueError: that cannot happen in this state, or nobody asked; nothing has changed.
        """
        if self.is_over:
            return
        rule = TABLE.get((self.state, type(event)))
        if rule is None or not self._was_asked_for(event):
            raise ValueError(f"{type(event).__name__} cannot happen while {self.state}")
        self.state = rule.then
        rule.step(self, event, now)

    def handle_timer(self, now: float) -> None:
        """Time has passed: a heartbeat, another try at a name, or the end of the session may be due."""
        if self.is_member and self._beat.session.session_expired(now):
            self.receive(SessionOver(f"no heartbeat was acknowledged for {self.heartbeat_age_s(now):.1f} s"), now)
        if (at := self._names.next_at) is not None and now >= at:
            self._ask(self._names.ask_again(self._wanted_topics))
        if self._speaks and (at := self._beat.next_at) is not None and now >= at:
            self._effects.append(self._beat.speak(self.identity, self._owned, now))

    def next_deadline(self) -> float | None:
        """When ``handle_timer`` has something to do."""
        times = [self._names.next_at, self._beat.next_at if self._speaks else None]
        times += [self._beat.session.expires_at] if self.is_member else []
        return min((at for at in times if at is not None), default=None)

    def effects(self) -> Iterator[Effect]:
        """What is to be done now, each once."""
        while self._effects:
            yield self._effects.popleft()

    # ---- steps, named by what is done --------------------------------------------------------------------------

    def ignore(self, event: GroupEvent, now: float) -> None:
        """It does not matter here."""

    def begin(self, _event: GroupEvent, now: float) -> None:
        """Join as soon as the timer is looked at."""
        self._work = None
        self._beat.begin(now)

    def know_session(self, event: GroupEvent, _now: float) -> None:
        """The broker has told how long it waits for us."""
        assert isinstance(event, SessionKnown)
        self._beat.session.session_timeout_s = event.timeout_s

    def resubscribe(self, event: GroupEvent, now: float) -> None:
        """Say so at once; what comes of it the group decides."""
        assert isinstance(event, Resubscribed)
        self._beat.subscribe(event.topics, now)

    def acknowledge(self, event: GroupEvent, now: float) -> None:
        """The group knows that we live, and by which epoch."""
        assert isinstance(event, GroupHeartbeatAnswered)
        self._epoch = event.epoch
        self._beat.answered(event.interval_s, now)

    def hear(self, event: GroupEvent, now: float) -> None:
        """The same, and there may be another target."""
        assert isinstance(event, GroupHeartbeatAnswered)
        self.acknowledge(event, now)
        if event.assigned is not None:
            before = self._target
            self._target = frozenset((topic, n) for topic, numbers in event.assigned.items() for n in numbers)
            if before - self._target - self._owned:
                # Given, and taken away before it was ours: the group waits to hear that it is not.
                self._beat.owned_changed(now)
        self._reconcile()

    def name(self, event: GroupEvent, now: float) -> None:
        """Some topics have names now; the others are left for later."""
        assert isinstance(event, TopicsNamed)
        self._names.answered(event.names, now)
        self._reconcile()

    def look_again(self, _event: GroupEvent, _now: float) -> None:
        """The cluster's picture is newer: it may know names that it did not."""
        self._ask(self._names.ask_again(self._wanted_topics))

    def taken(self, _event: GroupEvent, now: float) -> None:
        """The partitions are being consumed: say so, and go on if the target has grown meanwhile."""
        self._is_introduced = True
        self._ready |= self._moving
        self._moved(now)

    def released(self, _event: GroupEvent, now: float) -> None:
        """The partitions are given back: say so, and go on; the user hears what is left, as after any rebalance."""
        self._owned -= self._moving
        self._is_introduced = False
        self._moved(now)

    def lose(self, event: GroupEvent, now: float) -> None:
        """The partitions are gone; then join again under the same id."""
        if gone := self._forget(event):
            self._release(gone, is_lost=True, reason=str(getattr(event, "reason", "the membership was lost")))
        else:
            self.state = State.JOINING
            self.begin(event, now)

    def step_away(self, event: GroupEvent, _now: float) -> None:
        """Nobody reads: tell the group to go on without us, and drop what others will have."""
        assert isinstance(event, Stalled)
        self._epoch = _LEAVES if self._settings.instance_id is None else _WILL_BE_BACK
        self._effects.append(SendLeave(self.identity, "nobody reads"))
        self._effects.append(Tell(event.error))
        self._release(self._forget(event), is_lost=True, reason=str(event.error))

    def join_later(self, event: GroupEvent, now: float) -> None:
        """The join itself was refused: the group may still have to forget who we were."""
        self._forget(event)
        self._beat.failed(now)

    def retry(self, _event: GroupEvent, now: float) -> None:
        """A heartbeat failed for now, or a commit did and the next heartbeat tells why; the session goes on."""
        self._beat.wanted_soon(now)
        self._names.failed(now)

    def look_up(self, event: GroupEvent, now: float) -> None:
        """Another broker coordinates the group; the membership is none the worse for it."""
        assert isinstance(event, CoordinatorGone)
        self._beat.failed(now)
        self._names.failed(now)
        self._effects.append(ForgetCoordinator(event.reason))

    def close(self, _event: GroupEvent, _now: float) -> None:
        """Give the partitions back for good."""
        self._names.stop()
        self._release(self._owned, is_last=True, reason="the consumer stops")

    def close_lost(self, event: GroupEvent, _now: float) -> None:
        """While closing, the group went on without us: nothing to commit."""
        if self.is_member:
            self._release(self._forget(event), is_lost=True, is_last=True, reason="the membership was lost")

    def leave(self, event: GroupEvent, now: float) -> None:
        """Nothing is ours any more: say so, or that a static member means to be back."""
        self._owned = self._ready = NOWHERE
        self._beat.end()
        if self._beat.is_known and (self._settings.leaves_on_stop or self._settings.instance_id is not None):
            self._say_goodbye("the consumer stops")
        else:
            self.state = State.LEFT
            self.end(event, now)

    def end(self, event: GroupEvent, _now: float) -> None:
        """The group is behind us."""
        self._forget(event)
        self._epoch, self._work = _LEAVES, None

    def fail(self, event: GroupEvent, _now: float) -> None:
        """Drop what is owned and tell the error: no other join would help."""
        assert isinstance(event, Failed)
        self._release(self._forget(event), is_lost=True, is_last=True, reason=str(event.error))
        self._effects.append(Fail(event.error))
        if isinstance(event.error, RebalanceError) and self._beat.is_known and self._settings.leaves_on_stop:
            # The fault is ours alone: the others need not wait until they miss us.
            self.state = State.LEAVING
            self._say_goodbye("the consumer failed")

    def tell(self, event: GroupEvent, _now: float) -> None:
        """Too late to change anything but what the user knows."""
        assert isinstance(event, Failed)
        self._effects.append(Fail(event.error))

    # ---- inside ------------------------------------------------------------------------------------------------

    @property
    def _speaks(self) -> bool:
        return self.state is State.JOINING or self.is_member

    @property
    def _wanted_topics(self) -> frozenset[UUID]:
        return frozenset(topic for topic, _ in self._target)

    def _was_asked_for(self, event: GroupEvent) -> bool:
        if isinstance(event, GroupHeartbeatAnswered):
            return self._beat.sent is not None
        return self._names.asked is not None or not isinstance(event, TopicsNamed)

    def _reconcile(self) -> None:
        """Go towards the target: give back first, then take over what has a name."""
        self._ask(self._names.ask(self._wanted_topics))
        if self.state is State.RELEASING:
            return
        if revoked := self._owned - self._target:
            # It ends a takeover that is going on; what is still wanted of that is taken over anew.
            self.state = State.RELEASING
            self._release(revoked, reason="the group gives the partitions to other members")
            return
        if self.state is State.TAKING_OVER:
            return
        added = frozenset(one for one in self._target if one[0] in self._names.known) - self._ready
        is_news = bool(added) or not (self._is_introduced or self._names.asked)
        unconfirmed = self._beat.unconfirmed
        if is_news and (unconfirmed is None or added <= unconfirmed):
            self._take_over(added)

    def _take_over(self, added: Places) -> None:
        self.state = State.TAKING_OVER
        self._owned |= added
        self._moving = added
        protocol = self._settings.remote_assignor or "the broker's choice"
        self._do(TakeOver(self._named(added), self._named(self._ready), self.identity, protocol, is_leader=False))

    def _release(self, places: Places, *, is_lost: bool = False, is_last: bool = False, reason: str) -> None:
        self._moving = places
        self._ready -= places
        self._do(Release(self._named(places), is_lost, is_last, reason))

    def _moved(self, now: float) -> None:
        self._work = None
        if self._moving:
            self._beat.owned_changed(now)
        self._reconcile()

    def _say_goodbye(self, reason: str) -> None:
        self._epoch = _LEAVES if self._settings.leaves_on_stop else _WILL_BE_BACK
        self._do(SendLeave(self.identity, reason))

    def _do(self, work: TakeOver | Release | SendLeave) -> None:
        """Have ``work`` performed and wait for its outcome, and for no other's any more."""
        self._effects.append(work)
        self._work = work

    def _ask(self, question: NameTopics | None) -> None:
        if question is not None:
            self._effects.append(question)

    def _forget(self, event: GroupEvent) -> Places:
        """The membership is lost; what was had of it is given, for the last time."""
        if isinstance(event, MemberLost):
            self._beat.is_known = False
        self._beat.end()
        self._names.stop()
        self._epoch, self._is_introduced = _JOINS, False
        gone, self._owned, self._ready, self._target = self._owned, NOWHERE, NOWHERE, NOWHERE
        return gone

    def _named(self, places: Places) -> Partitions:
        return frozenset(TopicPartition(self._names.known[topic], n) for topic, n in places)


def _table() -> dict[tuple[State, type[GroupEvent]], Rule]:
    on, do, stays = State, ReconcilingMember, None
    reconciling = (on.STABLE, on.RELEASING, on.TAKING_OVER)
    speaking = (on.JOINING, *reconciling, on.CLOSING)
    lost = (GenerationLost, MemberLost, SessionOver)
    # A step that reconciles may find something to give back or to take over.
    moves = (on.RELEASING, on.TAKING_OVER)
    rows: Sequence[tuple[Sequence[State], Sequence[type[GroupEvent]], Step, State | None, tuple[State, ...]]] = (
        ((on.IDLE,), (Start,), do.begin, on.JOINING, ()),
        ((on.IDLE,), (Stop,), do.end, on.LEFT, ()),
        # Heartbeats and what becomes of them.
        ((on.JOINING,), (GroupHeartbeatAnswered,), do.hear, on.STABLE, (on.TAKING_OVER,)),
        (reconciling, (GroupHeartbeatAnswered,), do.hear, stays, moves),
        ((on.CLOSING,), (GroupHeartbeatAnswered,), do.acknowledge, stays, ()),
        (speaking, (NotNow, RebalanceCalled), do.retry, stays, ()),
        (speaking, (CoordinatorGone,), do.look_up, stays, ()),
        ((on.JOINING,), (GenerationLost, MemberLost), do.join_later, stays, ()),
        (
            (on.IDLE, on.JOINING, *reconciling, on.LOSING, on.STEPPING_AWAY, on.AWAY),
            (Resubscribed,),
            do.resubscribe,
            stays,
            (),
        ),
        (tuple(State), (SessionKnown,), do.know_session, stays, ()),
        # Towards the target.
        (reconciling, (TopicsNamed,), do.name, stays, moves),
        (reconciling, (PartitionsChanged,), do.look_again, stays, ()),
        ((on.TAKING_OVER,), (TakenOver,), do.taken, on.STABLE, (on.TAKING_OVER,)),
        ((on.RELEASING,), (Released,), do.released, on.STABLE, moves),
        (reconciling, lost, do.lose, on.LOSING, (on.JOINING,)),
        ((on.LOSING,), (Released,), do.begin, on.JOINING, ()),
        # Nobody reads, until somebody does.
        ((on.STABLE,), (Stalled,), do.step_away, on.STEPPING_AWAY, ()),
        ((on.STEPPING_AWAY,), (Released,), do.ignore, on.AWAY, ()),
        ((on.STEPPING_AWAY,), (Returned,), do.ignore, on.LOSING, ()),
        ((on.AWAY,), (Returned,), do.begin, on.JOINING, ()),
        ((on.AWAY,), (Stop,), do.end, on.LEFT, ()),
        ([state for state in State if state is not on.STABLE], (Stalled,), do.ignore, stays, ()),
        ([state for state in State if state not in {on.STEPPING_AWAY, on.AWAY}], (Returned,), do.ignore, stays, ()),
        # The end.
        ((on.JOINING,), (Stop,), do.leave, on.LEAVING, (on.LEFT,)),
        (reconciling, (Stop,), do.close, on.CLOSING, ()),
        ((on.LOSING, on.STEPPING_AWAY), (Stop,), do.ignore, on.CLOSING, ()),
        ((on.CLOSING,), lost, do.close_lost, stays, ()),
        ((on.CLOSING,), (Released,), do.leave, on.LEAVING, (on.LEFT,)),
        ((on.LEAVING,), (LeaveAnswered,), do.end, on.LEFT, ()),
        ((on.CLOSING, on.LEAVING), (Stop, Resubscribed), do.ignore, stays, ()),
        ([state for state in State if state is not on.LEAVING], (Failed,), do.fail, on.FAILED, (on.LEAVING,)),
        ((on.LEAVING,), (Failed,), do.tell, stays, ()),
        ([state for state in State if state not in reconciling], (PartitionsChanged,), do.ignore, stays, ()),
    )
    return {
        (state, event): Rule(step, then or state, elsewhere)
        for states, events, step, then, elsewhere in rows
        for state in states
        for event in events
    }


TABLE: Mapping[tuple[State, type[GroupEvent]], Rule] = _table()
"""Every transition there is."""
