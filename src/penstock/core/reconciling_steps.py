"""What a member of a group knows under KIP-848, and what it does: the steps that ``core.reconciling``'s table orders.

Rule 1: a step does one thing, and asks nobody whether it may: the table has said so. A step that finds more to do goes
on from there, and sets the state itself.
Rule 2: a partition is ours from its TakeOver to its Released, and that is what heartbeats say we own. What one said
is not added to before its answer is here: the group may have given away what it did not name.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
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
    GroupEvent,
    GroupHeartbeatAnswered,
    Identity,
    InstanceReleased,
    MemberLost,
    Resubscribed,
    SessionKnown,
    Stalled,
    TopicsNamed,
)
from penstock.core.reconciling_states import ALIVE, State
from penstock.core.topic_names import TopicNames
from penstock.errors import ConfigurationError, RebalanceError
from penstock.records import TopicPartition

__all__ = ["ReconcilingSteps"]

_JOINS, _LEAVES, _WILL_BE_BACK = 0, -1, -2
"""Epochs that are words."""

NOWHERE: Places = frozenset()


class ReconcilingSteps:
    """One member's knowledge and deeds.

    Args:
        settings: what the options say.
        member_id: a UUID made by the caller (KIP-1082), kept for life.
        chance: gives a number in [0, 1) for jitter, passed in because chance is not decided here.

    Attributes:
        state: where it stands.
        effects: what is to be done and was not given out yet.
        beat: the heartbeat, and the session that it keeps.
        names: of the topics that are known by their ids alone.
        work: the effect about partitions, or the farewell, whose outcome is waited for.
    """

    def __init__(self, settings: MemberSettings, member_id: str, chance: Callable[[], float]) -> None:
        self._settings = settings
        self._member_id = member_id
        backoff = Backoff(settings.retry_first_s, settings.retry_longest_s)
        self.beat = GroupHeartbeat(settings, backoff, chance)
        self.names = TopicNames(backoff, chance)
        self.effects: deque[Effect] = deque()
        self._epoch = _JOINS
        self._target: Places = NOWHERE
        self._owned: Places = NOWHERE
        self._ready: Places = NOWHERE
        """Of what is owned, what was taken over to the end."""
        self.work: TakeOver | Release | SendLeave | None = None
        self._moving: Places = NOWHERE
        """What the work is about."""
        self._is_introduced = False
        """Whether the user has heard of an assignment since the last join or release."""
        self.state = State.IDLE

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
    def speaks(self) -> bool:
        """Whether heartbeats go out."""
        return self.state is State.JOINING or self.is_member

    def was_asked_for(self, event: GroupEvent) -> bool:
        """Whether a question of ours was waiting for that."""
        if isinstance(event, GroupHeartbeatAnswered | InstanceReleased):
            return self.beat.sent is not None
        return self.names.asked is not None or not isinstance(event, TopicsNamed)

    def look_at_the_clock(self, now: float) -> None:
        """Send what is due: a heartbeat, another try at a name."""
        if (at := self.names.next_at) is not None and now >= at:
            self._ask(self.names.ask_again(self._wanted_topics))
        if self.speaks and (at := self.beat.next_at) is not None and now >= at:
            self.effects.append(self._let_go() if self._is_in_its_own_way else self._speak(now))

    # ---- steps, named by what is done --------------------------------------------------------------------------

    def ignore(self, event: GroupEvent, now: float) -> None:
        """It does not matter here."""

    def begin(self, _event: GroupEvent, now: float) -> None:
        """Join as soon as the timer is looked at."""
        self.work = None
        self.beat.begin(now)

    def join_now(self, event: GroupEvent, now: float) -> None:
        """Our name is free."""
        self.beat.is_held = False
        self.begin(event, now)

    def know_session(self, event: GroupEvent, _now: float) -> None:
        """The broker has told how long it waits for us."""
        assert isinstance(event, SessionKnown)
        self.beat.session.session_timeout_s = event.timeout_s

    def resubscribe(self, event: GroupEvent, now: float) -> None:
        """Say so at once; what comes of it the group decides."""
        assert isinstance(event, Resubscribed)
        self.beat.subscribe(event.topics, now)

    def acknowledge(self, event: GroupEvent, now: float) -> None:
        """The group knows that we live, and by which epoch."""
        assert isinstance(event, GroupHeartbeatAnswered)
        self._epoch = event.epoch
        self.beat.answered(event.interval_s, now)

    def hear(self, event: GroupEvent, now: float) -> None:
        """The same, and there may be another target."""
        assert isinstance(event, GroupHeartbeatAnswered)
        self.acknowledge(event, now)
        if event.assigned is not None:
            before = self._target
            self._target = frozenset((topic, n) for topic, numbers in event.assigned.items() for n in numbers)
            if before - self._target - self._owned:
                # Given, and taken away before it was ours: the group waits to hear that it is not.
                self.beat.owned_changed(now)
        self._reconcile()

    def name(self, event: GroupEvent, now: float) -> None:
        """Some topics have names now; the others are left for later."""
        assert isinstance(event, TopicsNamed)
        self.names.answered(event.names, now)
        self._reconcile()

    def look_again(self, _event: GroupEvent, _now: float) -> None:
        """The cluster's picture is newer: it may know names that it did not."""
        self._ask(self.names.ask_again(self._wanted_topics))

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
        self.effects.append(SendLeave(self.identity, "nobody reads"))
        self.effects.append(Tell(event.error))
        self._release(self._forget(event), is_lost=True, reason=str(event.error))

    def join_later(self, event: GroupEvent, now: float) -> None:
        """The join itself was refused: the group may still have to forget who we were."""
        self._forget(event)
        self.beat.is_held = False
        self.beat.failed(now)

    def retry(self, _event: GroupEvent, now: float) -> None:
        """A heartbeat failed for now, or a commit did and the next heartbeat tells why; the session goes on."""
        self.beat.wanted_soon(now)
        self.names.failed(now)

    def look_up(self, event: GroupEvent, now: float) -> None:
        """Another broker coordinates the group; the membership is none the worse for it."""
        assert isinstance(event, CoordinatorGone)
        self.beat.failed(now)
        self.names.failed(now)
        self.effects.append(ForgetCoordinator(event.reason))

    def close(self, _event: GroupEvent, _now: float) -> None:
        """Give the partitions back for good."""
        self.names.stop()
        self._release(self._owned, is_last=True, reason="the consumer stops")

    def close_lost(self, event: GroupEvent, _now: float) -> None:
        """While closing, the group went on without us: nothing to commit."""
        if self.is_member:
            self._release(self._forget(event), is_lost=True, is_last=True, reason="the membership was lost")

    def leave(self, event: GroupEvent, now: float) -> None:
        """Nothing is ours any more: say so, or that a static member means to be back."""
        self._owned = self._ready = NOWHERE
        self.beat.end()
        if self.beat.is_known and (self._settings.leaves_on_stop or self._settings.instance_id is not None):
            self._say_goodbye("the consumer stops")
        else:
            self.state = State.LEFT
            self.end(event, now)

    def end(self, event: GroupEvent, _now: float) -> None:
        """The group is behind us."""
        self._forget(event)
        self._epoch, self.work = _LEAVES, None

    def fail(self, event: GroupEvent, _now: float) -> None:
        """Drop what is owned and tell the error: no other join would help."""
        assert isinstance(event, Failed)
        self._release(self._forget(event), is_lost=True, is_last=True, reason=str(event.error))
        self.effects.append(Fail(event.error))
        is_ours = isinstance(event.error, RebalanceError | ConfigurationError)
        if is_ours and self.beat.is_known and self._settings.leaves_on_stop:
            # The fault is ours alone: the others need not wait until they miss us.
            self.state = State.LEAVING
            self._say_goodbye("the consumer failed")

    def tell(self, event: GroupEvent, _now: float) -> None:
        """Too late to change anything but what the user knows."""
        assert isinstance(event, Failed)
        self.effects.append(Fail(event.error))

    # ---- inside ------------------------------------------------------------------------------------------------

    @property
    def _is_in_its_own_way(self) -> bool:
        # A join of a static member is let in if its name is free, and is not if that member itself still has it: after
        # an answer that was lost, or a silence that was too long for us and not for the broker.
        return self.state is State.JOINING and self._settings.instance_id is not None and self.beat.is_held

    def _let_go(self) -> Effect:
        return self.beat.let_go(Identity(self._member_id, _WILL_BE_BACK, self._settings.instance_id))

    def _speak(self, now: float) -> Effect:
        return self.beat.speak(self.identity, self._owned, now)

    @property
    def _wanted_topics(self) -> frozenset[UUID]:
        return frozenset(topic for topic, _ in self._target)

    def _reconcile(self) -> None:
        """Go towards the target: give back first, then take over what has a name."""
        self._ask(self.names.ask(self._wanted_topics))
        if self.state is State.RELEASING:
            return
        if revoked := self._owned - self._target:
            # It ends a takeover that is going on; what is still wanted of that is taken over anew.
            self.state = State.RELEASING
            self._release(revoked, reason="the group gives the partitions to other members")
            return
        if self.state is State.TAKING_OVER:
            return
        added = frozenset(one for one in self._target if one[0] in self.names.known) - self._ready
        is_news = bool(added) or not (self._is_introduced or self.names.asked)
        unconfirmed = self.beat.unconfirmed
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
        self.work = None
        if self._moving:
            self.beat.owned_changed(now)
        self._reconcile()

    def _say_goodbye(self, reason: str) -> None:
        self._epoch = _LEAVES if self._settings.leaves_on_stop else _WILL_BE_BACK
        self._do(SendLeave(self.identity, reason))

    def _do(self, work: TakeOver | Release | SendLeave) -> None:
        """Have ``work`` performed and wait for its outcome, and for no other's any more."""
        self.effects.append(work)
        self.work = work

    def _ask(self, question: NameTopics | None) -> None:
        if question is not None:
            self.effects.append(question)

    def _forget(self, event: GroupEvent) -> Places:
        """The membership is lost; what was had of it is given, for the last time."""
        if isinstance(event, MemberLost):
            self.beat.is_known = self.beat.is_held = False
        self.beat.end()
        self.names.stop()
        self._epoch, self._is_introduced = _JOINS, False
        gone, self._owned, self._ready, self._target = self._owned, NOWHERE, NOWHERE, NOWHERE
        return gone

    def _named(self, places: Places) -> Partitions:
        return frozenset(TopicPartition(self.names.known[topic], n) for topic, n in places)
