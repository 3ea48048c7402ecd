"""One member of one group in the classic protocol (JoinGroup, SyncGroup): the whole machine as one table.

Rule 1: every transition stands in ``TABLE``: a state, what happened, what to do, the state after it. What is not in
the table cannot happen, raises, and changes nothing; what may happen and does not matter stands there as ``ignore``.
Rule 2: eager members give all back before they join; cooperative ones (KIP-429: all that is offered is cooperative)
keep what they own through a join, give back what the new generation takes away, and join once more.
Rule 3: heartbeats go on whenever the group counts us in a generation, through a join too while partitions are owned.
A member that owns nothing has no session to keep while the coordinator holds its join.
Rule 4: an outcome counts only while it is waited for. ``awaits`` says so of an effect (a join, a callback that
runs), ``is_current`` of a heartbeat or commit: its generation has to be the current one, with no join in flight.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from penstock.core.backoff import Backoff
from penstock.core.classic_states import ALIVE, OVER, OWNING, REJOINING, State
from penstock.core.heartbeat import Heartbeat
from penstock.core.leading import Lead, by_topic
from penstock.core.membership import MemberSettings
from penstock.core.membership_effects import (
    Effect,
    Fail,
    FindPartitions,
    ForgetCoordinator,
    Partitions,
    Release,
    SendHeartbeat,
    SendJoin,
    SendLeave,
    SendSync,
    TakeOver,
    Tell,
)
from penstock.core.membership_events import (
    Beat,
    CoordinatorGone,
    Failed,
    GenerationLost,
    GroupEvent,
    HeartbeatAnswered,
    Identity,
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
    SessionOver,
    Stalled,
    Start,
    Stop,
    StopDue,
    Synced,
    TakenOver,
)
from penstock.core.strategies import Strategy, are_cooperative
from penstock.errors import PenstockError, RebalanceError
from penstock.messages import MemberAssignment, MemberSubscription, OwnedPartitions
from penstock.records import TopicPartition

__all__ = ["TABLE", "ClassicMember", "Rule"]

Step: TypeAlias = Callable[["ClassicMember", GroupEvent, float], None]


@dataclass(frozen=True, slots=True)
class Rule:
    """One line of the table."""

    step: Step
    then: State
    elsewhere: tuple[State, ...] = ()
    """Where the step may lead besides."""


class ClassicMember:
    """The machine; see ``core.membership.Membership`` for how it is driven.

    Args:
        settings: what the options say.
        strategies: how to deal, most preferred first; all of them are offered.
        chance: gives a number in [0, 1) for jitter, passed in because chance is not decided here.
    """

    def __init__(self, settings: MemberSettings, strategies: Sequence[Strategy], chance: Callable[[], float]) -> None:
        self._settings = settings
        self._strategies = {strategy.name: strategy for strategy in strategies}
        self._is_cooperative = are_cooperative(strategies)
        self._chance = chance
        self._backoff = Backoff(settings.retry_first_s, settings.retry_longest_s)
        self._heartbeat = Heartbeat(settings.session_timeout_s, settings.heartbeat_interval_s)
        self._effects: deque[Effect] = deque()
        self._awaited: Effect | None = None
        self._taking: TakeOver | None = None
        """Goes on beside a join; a release or a later takeover ends it."""
        self._topics = self._joined_topics = settings.topics
        self._member_id = ""
        self._generation = -1
        self._protocol = ""
        self._owned: Partitions = frozenset()
        self._ready: Partitions = frozenset()
        """Those of the owned that are taken over: callbacks are through, records flow."""
        self._dealt_to_us: tuple[tuple[OwnedPartitions, ...], int] = ((), -1)
        """The last assignment and its generation, which an eager member tells an assignor that leaves things be."""
        self._lead: Lead | None = None
        self._failures = 0
        self._comes_back = False
        self._join_at = 0.0
        self._stop_at: float | None = None
        """A stop waits for the end of the rebalance, until then at most; None when there is none that waits."""
        self._reason = "the consumer starts"
        self.state = State.IDLE

    def __repr__(self) -> str:
        return f"<ClassicMember {self._member_id or 'new'} of {self._settings.group_id} {self.state}>"

    # ---- being driven ------------------------------------------------------------------------------------------

    @property
    def identity(self) -> Identity:
        """Who this member is to the broker now."""
        return Identity(self._member_id, self._generation, self._settings.instance_id)

    @property
    def owned(self) -> Partitions:
        """The partitions that are this member's."""
        return self._owned

    @property
    def is_over(self) -> bool:
        """Whether nothing more will happen."""
        return self.state in OVER

    @property
    def is_member(self) -> bool:
        """Whether the group counts us in a generation: what is done may be committed."""
        # What is lost is lost once: while it is being told, there is no session to keep or to lose again.
        return self._generation >= 0 and (self.state in ALIVE or (self.state in REJOINING and bool(self._owned)))

    def heartbeat_age_s(self, now: float) -> float:
        """Seconds since the group is known to have heard from this member."""
        return self._heartbeat.age_s(now)

    def is_current(self, identity: Identity) -> bool:
        """Whether an answer to a heartbeat or commit that was sent as ``identity`` still matters."""
        return identity == self.identity and self.is_member and self.state is not State.JOINING

    def awaits(self, effect: Effect) -> bool:
        """Whether the outcome of ``effect`` still matters: no later event has made it moot."""
        return effect is self._awaited or effect is self._taking

    def receive(self, event: GroupEvent, now: float) -> None:
        """Something has happened.

        Raises:
            ValueError: that cannot happen in this state; nothing has changed.
        """
        if isinstance(event, Beat):
            self._hear(event, now)
            return
        if self.is_over:
            return
        rule = TABLE.get((self.state, type(event)))
        if rule is None:
            raise ValueError(f"{type(event).__name__} cannot happen while {self.state}")
        before, awaited = self.state, self._awaited
        rule.step(self, event, now)
        # A step that had to go elsewhere (nothing to release, no leave to send) has set the state itself.
        if self.state is before:
            self.state = rule.then
        if self.state is not before and self._awaited is awaited:
            self._awaited = None

    def handle_timer(self, now: float) -> None:
        """Time has passed: the session may be over, or a join or a heartbeat due."""
        if self.is_member and self._heartbeat.session_expired(now):
            self.receive(SessionOver(f"no heartbeat was acknowledged for {self._heartbeat.age_s(now):.1f} s"), now)
            return
        if self._stop_at is not None and now >= self._stop_at:
            self.receive(StopDue(), now)
        if self.state is State.WAITING and now >= self._join_at:
            self.receive(JoinDue(), now)
        if self.is_member and self._heartbeat.should_heartbeat(now):
            self._heartbeat.sent(now)
            self._effects.append(SendHeartbeat(self.identity, self._settings.session_timeout_s / 3))

    def next_deadline(self) -> float | None:
        """When ``handle_timer`` has something to do."""
        due = [self._heartbeat.next_at] if self.is_member else []
        due += [] if self._stop_at is None else [self._stop_at]
        return min([*due, self._join_at] if self.state is State.WAITING else due, default=None)

    def effects(self) -> Iterator[Effect]:
        """What is to be done now, each once."""
        while self._effects:
            yield self._effects.popleft()

    # ---- steps, named by what is done --------------------------------------------------------------------------

    def ignore(self, event: GroupEvent, now: float) -> None:
        """It does not matter here."""

    def begin(self, event: GroupEvent, now: float) -> None:
        """Join when the timer is looked at, as nothing has to be given back; who is to stop joins no more."""
        if self._stop_at is not None:
            self.close(event, now)
        self._join_at = now

    def resubscribe(self, event: GroupEvent, _now: float) -> None:
        """Take note; the next join says so."""
        assert isinstance(event, Resubscribed)
        self._topics, self._reason = event.topics, "the subscription changed"

    def join(self, _event: GroupEvent, _now: float) -> None:
        """Ask for a place in the next generation; what is owned is claimed, so it has to be wanted still."""
        if unwanted := frozenset(one for one in self._owned if one.topic not in self._topics):
            self._release(unwanted)
        else:
            self._send_join()

    def take_id(self, event: GroupEvent, now: float) -> None:
        """Join once more, under the name that the coordinator gave (KIP-394); or tell it not to wait for that."""
        assert isinstance(event, MemberIdGiven)
        self._member_id = event.member_id
        self._send_join() if self._stop_at is None else self.leave(event, now)

    def follow(self, event: GroupEvent, now: float) -> None:
        """Another member deals; ask what it dealt to this one."""
        assert isinstance(event, JoinedAsFollower)
        self._enter(event.member_id, event.generation, event.protocol, now)
        self._lead = None
        self._send_sync({})

    def lead(self, event: GroupEvent, now: float) -> None:
        """Learn how many partitions there are to deal."""
        assert isinstance(event, JoinedAsLeader)
        self._enter(event.member_id, event.generation, event.protocol, now)
        self._lead = Lead(event, self._strategies[event.protocol])
        self._do(FindPartitions(self._lead.topics))

    def deal(self, event: GroupEvent, _now: float) -> None:
        """Deal out the partitions; this member, too, takes its share from the answer to the sync."""
        assert isinstance(event, PartitionsFound)
        assert self._lead is not None
        try:
            self._send_sync(self._lead.deal(event))
        except RebalanceError as error:
            self._fail(error)

    def take_over(self, event: GroupEvent, now: float) -> None:
        """The assignment is known: give back what it lacks, or make what it brings ready; or stop, and commit in it."""
        assert isinstance(event, Synced)
        self._failures = 0
        if self._stop_at is not None:
            self.close(event, now)
            return
        dealt = event.assignment.assigned_partitions
        assigned = frozenset(TopicPartition(one.topic, p) for one in dealt for p in one.partitions)
        if self._topics != self._joined_topics and not self._owned:
            # The subscription has changed since; nothing was handed out yet, so join again with the new one.
            self._wait_until(now)
            return
        self._dealt_to_us = (dealt, self._generation)
        taken_away = self._owned - assigned
        self._owned |= assigned
        if taken_away:
            self._reason = "partitions were given back"
            self._release(taken_away)
        elif self._topics != self._joined_topics:
            self.regroup(event, now)
        else:
            kept = assigned & self._ready
            self._taking = TakeOver(assigned - kept, kept, self.identity, self._protocol, self._lead is not None)
            self._effects.append(self._taking)

    def taken(self, _event: GroupEvent, _now: float) -> None:
        """What was taken over is read from now on, whatever the group does meanwhile."""
        assert self._taking is not None
        self._ready |= self._taking.added
        self._taking = None

    def regroup(self, event: GroupEvent, now: float) -> None:
        """Join the next generation: eagerly after giving all back, cooperatively with all that is still wanted."""
        self._reason = event.reason if isinstance(event, RebalanceCalled) else self._reason
        if isinstance(event, Resubscribed):
            self.resubscribe(event, now)
        if self._is_cooperative:
            self._wait_until(now)
        else:
            self._release(self._owned)

    def lose(self, event: GroupEvent, now: float) -> None:
        """The partitions are gone; then join again."""
        self._reason = str(getattr(event, "reason", "the membership was lost"))
        owned, self._owned, self._ready = self._owned, frozenset(), frozenset()
        self._forget(event)
        if (is_last := self._stop_at is not None) or owned or self.state in OWNING:
            self._give_up(owned, is_last=is_last)
            self.state = State.CLOSING if is_last else State.RELEASING
        else:
            self._wait_until(now)

    def step_away(self, event: GroupEvent, _now: float) -> None:
        """Nobody reads: tell the group to go on without us, and drop what others will have."""
        assert isinstance(event, Stalled)
        self._reason, self._comes_back = str(event.error), False
        self._effects.append(Tell(event.error))
        if self._settings.leaves_on_stop:
            self._effects.append(SendLeave(self.identity, "nobody reads"))
            self._member_id = ""
        self._generation = -1
        self._give_up(self._owned, is_last=False)
        self._owned = self._ready = frozenset()

    def come_back(self, _event: GroupEvent, _now: float) -> None:
        """Somebody reads, while the loss is still being told."""
        self._comes_back = True

    def be_away(self, _event: GroupEvent, now: float) -> None:
        """The loss is told; wait for a reader, unless there is one."""
        if self._comes_back:
            self._wait_until(now)

    def close(self, _event: GroupEvent, _now: float) -> None:
        """Give the partitions back for good."""
        self._taking = self._stop_at = None
        self._do(Release(self._owned, is_lost=False, is_last=True, reason="the consumer stops"))
        self.state = State.CLOSING

    def go(self, event: GroupEvent, now: float) -> None:
        """Stop between two assignments: first hear what the join brings, a generation to commit in or a name."""
        assert isinstance(event, Stop)
        is_named = bool(self._member_id or self._settings.instance_id) or self.state is State.WAITING
        if is_named and not self._owned:
            self.leave(event, now)
        elif is_named and (self.state is State.WAITING or not event.is_owing):
            self.close(event, now)
        elif self._stop_at is None:
            self._stop_at = now + self._settings.stop_patience_s

    def close_lost(self, event: GroupEvent, _now: float) -> None:
        """While closing, the group went on without us: nothing to commit, and good-bye only to who still knows us."""
        self._reason = "the membership was lost"
        self._give_up(self._owned, is_last=True)
        self._owned = frozenset()
        self._generation = -1
        if not isinstance(event, GenerationLost):
            self._member_id = ""

    def rejoin(self, _event: GroupEvent, now: float) -> None:
        """What had to be given back is: join the next generation."""
        assert isinstance(self._awaited, Release)
        self._owned -= self._awaited.partitions
        self._ready -= self._awaited.partitions
        self._join_at = now

    def wait(self, event: GroupEvent, now: float) -> None:
        """Try again after a pause that grows."""
        if isinstance(event, CoordinatorGone):
            self._effects.append(ForgetCoordinator(event.reason))
        self._failures += 1
        self.begin(event, now + self._backoff.pause_s(self._failures, self._chance()))

    def look_up(self, event: GroupEvent, now: float) -> None:
        """Another broker coordinates the group; the membership is none the worse for it."""
        assert isinstance(event, CoordinatorGone)
        self.try_later(event, now)
        self._effects.append(ForgetCoordinator(event.reason))

    def try_later(self, _event: GroupEvent, now: float) -> None:
        """The heartbeat failed for now; the session goes on."""
        self._heartbeat.failed(now, self._settings.retry_first_s)

    def notice(self, event: GroupEvent, now: float) -> None:
        """The leader watches all members' topics: grown or gone, they have to be dealt out anew."""
        assert isinstance(event, PartitionsChanged)
        if self._lead is not None and self._lead.is_outdated_by(event.counts):
            self._reason = "partitions were added or topics have come or gone"
            self.regroup(event, now)

    def leave(self, event: GroupEvent, now: float) -> None:
        """Nothing is ours any more: say so, unless a static member means to be back."""
        self._owned, self._taking, self._stop_at = frozenset(), None, None
        if self._member_id and self._settings.leaves_on_stop:
            self._do(SendLeave(self.identity, "the consumer stops"))
            self.state = State.LEAVING
        else:
            self.end(event, now)

    def end(self, _event: GroupEvent, _now: float) -> None:
        """The group is behind us."""
        self._member_id, self._generation, self._owned = "", -1, frozenset()
        self.state = State.LEFT

    def fail(self, event: GroupEvent, _now: float) -> None:
        """Drop what is owned and tell the error: no other join would help."""
        assert isinstance(event, Failed)
        self._fail(event.error)

    def tell(self, event: GroupEvent, _now: float) -> None:
        """Too late to change anything but what the user knows."""
        assert isinstance(event, Failed)
        self._effects.append(Fail(event.error))

    # ---- inside ------------------------------------------------------------------------------------------------

    def _hear(self, beat: Beat, now: float) -> None:
        if beat.identity != self.identity or not self.is_member:
            return
        outcome = beat.outcome
        # "The group rebalances" is an answer too: the group knows that we live. In another generation nobody lives on.
        if isinstance(outcome, HeartbeatAnswered | RebalanceCalled):
            self._heartbeat.received(now)
        if self.state is not State.JOINING:
            if not isinstance(outcome, HeartbeatAnswered):
                self.receive(outcome, now)
        elif isinstance(outcome, CoordinatorGone):
            self.look_up(outcome, now)
        elif isinstance(outcome, NotNow):
            self.try_later(outcome, now)
        elif not isinstance(outcome, HeartbeatAnswered | RebalanceCalled):
            # What the group thinks of us is the join's to say.
            self._heartbeat.failed(now, self._settings.heartbeat_interval_s)

    def _fail(self, error: PenstockError) -> None:
        self._reason = str(error)
        self._give_up(self._owned, is_last=True)
        self._effects.append(Fail(error))
        self._owned = self._ready = frozenset()
        self.state = State.FAILED
        if isinstance(error, RebalanceError) and self._member_id and self._settings.leaves_on_stop:
            # The fault is ours alone: the others need not wait until they miss us.
            self._do(SendLeave(self.identity, "the consumer failed"))
            self.state = State.LEAVING

    def _release(self, partitions: Partitions) -> None:
        self._taking = None
        self._do(Release(partitions, is_lost=False, is_last=False, reason=self._reason))
        self.state = State.RELEASING

    def _give_up(self, partitions: Partitions, *, is_last: bool) -> None:
        self._taking = self._stop_at = None
        self._do(Release(partitions, is_lost=True, is_last=is_last, reason=self._reason))

    def _wait_until(self, at: float) -> None:
        self._join_at = at
        self.state = State.WAITING

    def _do(self, effect: Effect) -> None:
        """Have ``effect`` performed and wait for its outcome."""
        self._effects.append(effect)
        self._awaited = effect

    def _enter(self, member_id: str, generation: int, protocol: str, now: float) -> None:
        self._member_id, self._generation, self._protocol = member_id, generation, protocol
        # The session began when the answer was sent, which may be long ago. Whoever owns something counts from the last
        # heartbeat that was heard; whoever does not, from now on, since the sync by which it will is heard after this.
        self._heartbeat.reset(now - self._heartbeat.age_s(now) if self._owned else now)

    def _forget(self, event: GroupEvent) -> None:
        if isinstance(event, GenerationLost | MemberLost | SessionOver):
            self._generation = -1
        if isinstance(event, MemberLost):
            self._member_id = ""

    def _send_join(self) -> None:
        self._joined_topics = self._topics
        subscription = MemberSubscription(
            tuple(sorted(self._topics)),
            owned_partitions=by_topic(self._owned),
            generation_id=self._generation,
            rack_id=self._settings.rack,
        )
        offers = tuple((name, subscription) for name in self._strategies)
        self._do(SendJoin(self._member_id, offers, self._reason, self._settings.patience_s, *self._dealt_to_us))

    def _send_sync(self, assignments: Mapping[str, MemberAssignment]) -> None:
        self._do(SendSync(self.identity, self._protocol, assignments, self._settings.patience_s))


def _table() -> dict[tuple[State, type[GroupEvent]], Rule]:
    on, do, stays = State, ClassicMember, None
    lost = (GenerationLost, MemberLost, SessionOver)
    between = (on.JOINING, on.DEALING, on.SYNCING)
    owning = (on.TAKING_OVER, on.STABLE)
    rejoining = (on.WAITING, *between)
    going = (on.CLOSING, on.LEAVING)
    rows: Sequence[tuple[Sequence[State], Sequence[type[GroupEvent]], Step, State | None, tuple[State, ...]]] = (
        ((on.IDLE,), (Start,), do.begin, on.WAITING, ()),
        ((on.IDLE,), (Stop,), do.end, on.LEFT, ()),
        ((on.IDLE, *rejoining, on.RELEASING), (Resubscribed,), do.resubscribe, stays, ()),
        # To the next generation.
        ((on.WAITING,), (JoinDue,), do.join, on.JOINING, (on.RELEASING,)),
        ((on.JOINING,), (MemberIdGiven,), do.take_id, stays, (on.LEAVING, on.LEFT)),
        ((on.JOINING,), (JoinedAsFollower,), do.follow, on.SYNCING, ()),
        ((on.JOINING,), (JoinedAsLeader,), do.lead, on.DEALING, ()),
        ((on.DEALING,), (PartitionsFound,), do.deal, on.SYNCING, (on.FAILED, on.LEAVING)),
        ((on.SYNCING,), (Synced,), do.take_over, on.TAKING_OVER, (on.RELEASING, on.WAITING, on.CLOSING)),
        (between, (NotNow, CoordinatorGone), do.wait, on.WAITING, (on.CLOSING,)),
        ((on.JOINING,), (RebalanceCalled,), do.wait, on.WAITING, (on.CLOSING,)),
        ((on.DEALING, on.SYNCING), (RebalanceCalled,), do.begin, on.WAITING, (on.CLOSING,)),
        (rejoining, lost, do.lose, on.WAITING, (on.RELEASING, on.CLOSING)),
        # In a generation.
        ((on.TAKING_OVER,), (TakenOver,), do.taken, on.STABLE, ()),
        (rejoining, (TakenOver,), do.taken, stays, ()),
        ((on.STABLE,), (PartitionsChanged,), do.notice, stays, (on.RELEASING, on.WAITING)),
        (owning, (RebalanceCalled, Resubscribed), do.regroup, on.RELEASING, (on.WAITING,)),
        ((*owning, on.RELEASING), lost, do.lose, on.RELEASING, ()),
        ((on.RELEASING,), (Released,), do.rejoin, on.WAITING, ()),
        ((on.WAITING, on.RELEASING, on.CLOSING), (RebalanceCalled,), do.ignore, stays, ()),
        ((on.WAITING, *owning, on.RELEASING, on.CLOSING), (CoordinatorGone,), do.look_up, stays, ()),
        ((on.WAITING, *owning, on.RELEASING, on.CLOSING), (NotNow,), do.try_later, stays, ()),
        # Nobody reads, until somebody does.
        ((on.STABLE,), (Stalled,), do.step_away, on.STEPPING_AWAY, ()),
        ((on.STEPPING_AWAY,), (Returned,), do.come_back, stays, ()),
        ((on.STEPPING_AWAY,), (Released,), do.be_away, on.AWAY, (on.WAITING,)),
        ((on.AWAY,), (Returned,), do.begin, on.WAITING, ()),
        ((on.STEPPING_AWAY, on.AWAY), (Resubscribed,), do.resubscribe, stays, ()),
        ((on.STEPPING_AWAY,), (Stop,), do.close, on.CLOSING, ()),
        ((on.AWAY,), (Stop,), do.end, on.LEFT, ()),
        ([state for state in State if state is not on.STABLE], (Stalled,), do.ignore, stays, ()),
        ([state for state in State if state not in {on.STEPPING_AWAY, on.AWAY}], (Returned,), do.ignore, stays, ()),
        # The end.
        (rejoining, (Stop,), do.go, stays, (on.CLOSING, on.LEAVING, on.LEFT)),
        (between, (StopDue,), do.close, on.CLOSING, ()),
        ((*owning, on.RELEASING), (Stop,), do.close, on.CLOSING, ()),
        ((on.CLOSING,), lost, do.close_lost, stays, ()),
        ((on.CLOSING,), (Released,), do.leave, on.LEAVING, (on.LEFT,)),
        ((on.LEAVING,), (LeaveAnswered,), do.end, on.LEFT, ()),
        (going, (Stop, Resubscribed), do.ignore, stays, ()),
        ([state for state in State if state is not on.LEAVING], (Failed,), do.fail, on.FAILED, (on.LEAVING,)),
        ((on.LEAVING,), (Failed,), do.tell, stays, ()),
        ([state for state in State if state is not on.STABLE], (PartitionsChanged,), do.ignore, stays, ()),
    )
    return {
        (state, event): Rule(step, then or state, elsewhere)
        for states, events, step, then, elsewhere in rows
        for state in states
        for event in events
    }


TABLE: Mapping[tuple[State, type[GroupEvent]], Rule] = _table()
"""Every transition there is."""
