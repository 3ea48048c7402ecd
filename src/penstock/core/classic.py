"""One member of one group in the classic protocol (JoinGroup, SyncGroup), eagerly: the whole machine as one table.

Rule 1: every transition stands in ``TABLE``: a state, what happened, what to do, the state after it. What is not in
the table cannot happen, raises, and changes nothing; what may happen and does not matter stands there as ``ignore``.
Rule 2: heartbeats go on whenever the group counts us in a generation (``ALIVE``, until it is lost); while a join is
in flight the coordinator waits for us and no session runs.
Rule 3: an outcome counts only while it is waited for. ``awaits`` says so of an effect (a join, a callback that
runs), ``is_current`` of a heartbeat or commit: its generation has to be the current one, with no join in flight.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import TypeAlias

from penstock.core.assignors import Assignor, GroupMember
from penstock.core.backoff import Backoff
from penstock.core.heartbeat import Heartbeat
from penstock.core.membership import (
    CoordinatorGone,
    Effect,
    Fail,
    Failed,
    FindPartitions,
    ForgetCoordinator,
    GenerationLost,
    GroupEvent,
    HeartbeatAnswered,
    Identity,
    JoinedAsFollower,
    JoinedAsLeader,
    LeaveAnswered,
    MemberIdGiven,
    MemberLost,
    MemberSettings,
    NotNow,
    Partitions,
    PartitionsChanged,
    PartitionsFound,
    RebalanceCalled,
    Release,
    Released,
    Resubscribed,
    SendHeartbeat,
    SendJoin,
    SendLeave,
    SendSync,
    SessionOver,
    Start,
    Stop,
    Synced,
    TakenOver,
    TakeOver,
)
from penstock.messages import MemberAssignment, MemberSubscription, OwnedPartitions
from penstock.records import TopicPartition

__all__ = ["TABLE", "ClassicMember", "Rule", "State"]

# A join is held until the slowest member is there; what the network needs comes on top.
_JOIN_GRACE_S = 5.0


class State(StrEnum):
    """Where a member stands."""

    IDLE = "idle"
    WAITING = "waiting"
    """To send a join, now or after a pause."""
    JOINING = "joining"
    DEALING = "dealing"
    """This one leads, and learns how many partitions there are."""
    SYNCING = "syncing"
    TAKING_OVER = "taking over"
    """Start positions and the user's callbacks."""
    STABLE = "stable"
    RELEASING = "releasing"
    """Drain, commit, the user's callbacks; then join."""
    CLOSING = "closing"
    """The same, for the last time."""
    LEAVING = "leaving"
    LEFT = "left"
    FAILED = "failed"


ALIVE = frozenset({State.DEALING, State.SYNCING, State.TAKING_OVER, State.STABLE, State.RELEASING, State.CLOSING})
"""The states in which the group counts this member in a generation."""

OVER = frozenset({State.LEFT, State.FAILED})

Step: TypeAlias = Callable[["ClassicMember", GroupEvent, float], None]


@dataclass(frozen=True, slots=True)
class Rule:
    """One line of the table."""

    step: Step
    then: State


class ClassicMember:
    """The machine; see ``core.membership.Membership`` for how it is driven.

    Args:
        settings: what the options say.
        assignors: how to deal, by name; those the settings name are offered, in their order.
        chance: gives a number in [0, 1) for jitter, passed in because chance is not decided here.
    """

    def __init__(
        self, settings: MemberSettings, assignors: Mapping[str, Assignor], chance: Callable[[], float]
    ) -> None:
        self._settings = settings
        self._assignors = assignors
        self._chance = chance
        self._backoff = Backoff(settings.retry_first_s, settings.retry_longest_s)
        self._heartbeat = Heartbeat(settings.session_timeout_s, settings.heartbeat_interval_s)
        self._effects: deque[Effect] = deque()
        self._awaited: Effect | None = None
        self._topics = self._joined_topics = settings.topics
        self._member_id = ""
        self._generation = -1
        self._protocol = ""
        self._owned: Partitions = frozenset()
        self._leads: JoinedAsLeader | None = None
        self._dealt: dict[str, int] = {}
        """How many partitions there were of all members' topics when this one dealt them out."""
        self._failures = 0
        self._join_at = 0.0
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
    def heartbeat_age_s(self) -> Callable[[float], float]:
        """Seconds since the group is known to have heard from this member."""
        return self._heartbeat.age_s

    def is_current(self, identity: Identity) -> bool:
        """Whether an answer to a heartbeat or commit that was sent as ``identity`` still matters."""
        return identity == self.identity and self._is_alive

    def awaits(self, effect: Effect) -> bool:
        """Whether the outcome of ``effect`` still matters: no later event has made it moot."""
        return effect is self._awaited

    def receive(self, event: GroupEvent, now: float) -> None:
        """Something has happened.

        Raises:
            ValueError: that cannot happen in this state; nothing has changed.
        """
        if isinstance(event, HeartbeatAnswered):
            self._heartbeat.received(now)
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

    def heartbeat_failed(self, now: float) -> None:
        """A heartbeat was not answered; the next goes out after a pause."""
        self._heartbeat.failed(now, self._settings.retry_first_s)

    def handle_timer(self, now: float) -> None:
        """Time has passed: a join, a heartbeat or the end of the session may be due."""
        if self.state is State.WAITING and now >= self._join_at:
            self.state = State.JOINING
            self._send_join()
        if not self._is_alive:
            return
        if self._heartbeat.session_expired(now):
            silent_s = self._heartbeat.age_s(now)
            self.receive(SessionOver(f"no heartbeat was acknowledged for {silent_s:.1f} s"), now)
        elif self._heartbeat.should_heartbeat(now):
            self._heartbeat.sent(now)
            self._effects.append(SendHeartbeat(self.identity, self._settings.session_timeout_s / 3))

    def next_deadline(self) -> float | None:
        """When ``handle_timer`` has something to do."""
        if self.state is State.WAITING:
            return self._join_at
        return self._heartbeat.next_at if self._is_alive else None

    def effects(self) -> Iterator[Effect]:
        """What is to be done now, each once."""
        while self._effects:
            yield self._effects.popleft()

    # ---- steps, named by what is done --------------------------------------------------------------------------

    def ignore(self, event: GroupEvent, now: float) -> None:
        """It does not matter here."""

    def begin(self, _event: GroupEvent, now: float) -> None:
        """Join as soon as the timer is looked at."""
        self._join_at = now

    def resubscribe(self, event: GroupEvent, _now: float) -> None:
        """Take note; the next join says so."""
        assert isinstance(event, Resubscribed)
        self._topics, self._reason = event.topics, "the subscription changed"

    def take_id(self, event: GroupEvent, _now: float) -> None:
        """Join once more, under the name that the coordinator gave (KIP-394)."""
        assert isinstance(event, MemberIdGiven)
        self._member_id = event.member_id
        self._send_join()

    def follow(self, event: GroupEvent, now: float) -> None:
        """Another member deals; ask what it dealt to this one."""
        assert isinstance(event, JoinedAsFollower)
        self._enter(event.member_id, event.generation, event.protocol, now)
        self._leads = None
        self._send_sync({})

    def lead(self, event: GroupEvent, now: float) -> None:
        """Learn how many partitions there are to deal."""
        assert isinstance(event, JoinedAsLeader)
        self._enter(event.member_id, event.generation, event.protocol, now)
        self._leads = event
        self._do(FindPartitions(frozenset(t for s in event.members.values() for t in s.topics)))

    def deal(self, event: GroupEvent, _now: float) -> None:
        """Deal out the partitions; this member, too, takes its share from the answer to the sync."""
        assert isinstance(event, PartitionsFound)
        assert self._leads is not None
        self._dealt = dict(event.counts)
        if self._leads.skip_assignment:
            self._send_sync({})
            return
        members = [_group_member(m, s, self._leads.instances.get(m)) for m, s in self._leads.members.items()]
        given = self._assignors[self._protocol](members, event.counts)
        self._send_sync({member: MemberAssignment(_by_topic(given.get(member, ()))) for member in self._leads.members})

    def take_over(self, event: GroupEvent, now: float) -> None:
        """The assignment is known: make the partitions ready to be read."""
        assert isinstance(event, Synced)
        self._failures = 0
        if self._topics != self._joined_topics:
            # The subscription has changed since; nothing was handed out yet, so join again with the new one.
            self._join_at = now
            self.state = State.WAITING
            return
        self._owned = frozenset(
            TopicPartition(one.topic, p) for one in event.assignment.assigned_partitions for p in one.partitions
        )
        is_leader = self._leads is not None
        self._do(TakeOver(self._owned, frozenset(), self.identity, self._protocol, is_leader))

    def release(self, event: GroupEvent, now: float) -> None:
        """Give the partitions back in order, then join the next generation."""
        self._reason = event.reason if isinstance(event, RebalanceCalled) else self._reason
        if isinstance(event, Resubscribed):
            self.resubscribe(event, now)
        self._do(Release(self._owned, is_lost=False, is_last=False, reason=self._reason))

    def lose(self, event: GroupEvent, _now: float) -> None:
        """The partitions are gone; then join again."""
        self._reason = str(getattr(event, "reason", "the membership was lost"))
        self._forget(event)
        self._do(Release(self._owned, is_lost=True, is_last=False, reason=self._reason))
        self._owned = frozenset()

    def close(self, _event: GroupEvent, _now: float) -> None:
        """Give the partitions back for good."""
        self._do(Release(self._owned, is_lost=False, is_last=True, reason="the consumer stops"))

    def close_lost(self, event: GroupEvent, _now: float) -> None:
        """While closing, the group went on without us: nothing to commit, nobody to say good-bye to."""
        self._forget(event)
        self._do(Release(self._owned, is_lost=True, is_last=True, reason="the membership was lost"))
        self._owned = frozenset()
        self._member_id = ""
        self._generation = -1

    def rejoin(self, _event: GroupEvent, now: float) -> None:
        """All is given back: join the next generation."""
        self._owned = frozenset()
        self._join_at = now

    def rejoin_now(self, event: GroupEvent, now: float) -> None:
        """Nothing was handed out yet, so nothing has to be given back."""
        self._forget(event)
        self._join_at = now

    def wait(self, event: GroupEvent, now: float) -> None:
        """Try again after a pause that grows."""
        self._failures += 1
        self._join_at = now + self._backoff.pause_s(self._failures, self._chance())
        if isinstance(event, CoordinatorGone):
            self._effects.append(ForgetCoordinator(event.reason))

    def look_up(self, event: GroupEvent, now: float) -> None:
        """Another broker coordinates the group; the membership is none the worse for it."""
        assert isinstance(event, CoordinatorGone)
        self.heartbeat_failed(now)
        self._effects.append(ForgetCoordinator(event.reason))

    def try_later(self, _event: GroupEvent, now: float) -> None:
        """The heartbeat failed for now; the session goes on."""
        self.heartbeat_failed(now)

    def notice(self, event: GroupEvent, _now: float) -> None:
        """The leader watches all members' topics: grown or gone, they have to be dealt out anew."""
        assert isinstance(event, PartitionsChanged)
        if self._leads is None:
            return
        # A topic that the picture says nothing of has not changed; one that is gone is told as 0.
        if any(event.counts.get(topic, dealt) != dealt for topic, dealt in self._dealt_of_watched.items()):
            self._reason = "partitions were added or topics have come or gone"
            self._do(Release(self._owned, is_lost=False, is_last=False, reason=self._reason))
            self.state = State.RELEASING

    def leave(self, _event: GroupEvent, _now: float) -> None:
        """Nothing is ours any more: say so, unless a static member means to be back."""
        self._owned = frozenset()
        if self._member_id and self._settings.leaves_on_stop:
            self._do(SendLeave(self.identity, "the consumer stops"))
            self.state = State.LEAVING
        else:
            self.end(_event, _now)

    def end(self, _event: GroupEvent, _now: float) -> None:
        """The group is behind us."""
        self._member_id, self._generation, self._owned = "", -1, frozenset()
        self.state = State.LEFT

    def fail(self, event: GroupEvent, _now: float) -> None:
        """Drop what is owned and tell the error: no other join would help."""
        assert isinstance(event, Failed)
        self._do(Release(self._owned, is_lost=True, is_last=True, reason=str(event.error)))
        self._effects.append(Fail(event.error))
        self._owned = frozenset()

    # ---- inside ------------------------------------------------------------------------------------------------

    @property
    def _is_alive(self) -> bool:
        # What is lost is lost once: while it is being told, there is no session to keep or to lose again.
        return self.state in ALIVE and self._generation >= 0

    @property
    def _dealt_of_watched(self) -> dict[str, int]:
        watched = {topic for one in self._leads.members.values() for topic in one.topics} if self._leads else set()
        return {topic: self._dealt.get(topic, 0) for topic in watched}

    def _do(self, effect: Effect) -> None:
        """Have ``effect`` performed and wait for its outcome."""
        self._effects.append(effect)
        self._awaited = effect

    def _enter(self, member_id: str, generation: int, protocol: str, now: float) -> None:
        self._member_id, self._generation, self._protocol = member_id, generation, protocol
        self._heartbeat.reset(now)

    def _forget(self, event: GroupEvent) -> None:
        if isinstance(event, GenerationLost | MemberLost | SessionOver):
            self._generation = -1
        if isinstance(event, MemberLost):
            self._member_id = ""

    def _send_join(self) -> None:
        self._joined_topics = self._topics
        subscription = MemberSubscription(
            tuple(sorted(self._topics)),
            generation_id=self._generation,
            rack_id=self._settings.rack,
        )
        timeout_s = max(self._settings.request_timeout_s, self._settings.rebalance_timeout_s + _JOIN_GRACE_S)
        offers = tuple((name, subscription) for name in self._settings.assignors)
        self._do(SendJoin(self._member_id, offers, self._reason, timeout_s))

    def _send_sync(self, assignments: Mapping[str, MemberAssignment]) -> None:
        timeout_s = max(self._settings.request_timeout_s, self._settings.rebalance_timeout_s + _JOIN_GRACE_S)
        self._do(SendSync(self.identity, self._protocol, assignments, timeout_s))


def _group_member(member_id: str, subscription: MemberSubscription, instance_id: str | None) -> GroupMember:
    owned = frozenset(TopicPartition(o.topic, p) for o in subscription.owned_partitions for p in o.partitions)
    return GroupMember(
        member_id,
        frozenset(subscription.topics),
        instance_id,
        owned,
        subscription.generation_id,
        subscription.rack_id,
    )


def _by_topic(partitions: Iterable[TopicPartition]) -> tuple[OwnedPartitions, ...]:
    topics: dict[str, list[int]] = {}
    for topic, partition in sorted(partitions):
        topics.setdefault(topic, []).append(partition)
    return tuple(OwnedPartitions(topic, tuple(found)) for topic, found in topics.items())


def _table() -> dict[tuple[State, type[GroupEvent]], Rule]:
    on, do, stays = State, ClassicMember, None
    lost = (GenerationLost, MemberLost, SessionOver)
    between = (on.JOINING, on.DEALING, on.SYNCING)
    owning = (on.TAKING_OVER, on.STABLE)
    going = (on.CLOSING, on.LEAVING)
    rows: Sequence[tuple[Sequence[State], Sequence[type[GroupEvent]], Step, State | None]] = (
        ((on.IDLE,), (Start,), do.begin, on.WAITING),
        ((on.IDLE,), (Stop,), do.end, on.LEFT),
        ((on.IDLE, on.WAITING, *between, on.RELEASING), (Resubscribed,), do.resubscribe, stays),
        # To the next generation.
        ((on.JOINING,), (MemberIdGiven,), do.take_id, stays),
        ((on.JOINING,), (JoinedAsFollower,), do.follow, on.SYNCING),
        ((on.JOINING,), (JoinedAsLeader,), do.lead, on.DEALING),
        ((on.DEALING,), (PartitionsFound,), do.deal, on.SYNCING),
        ((on.SYNCING,), (Synced,), do.take_over, on.TAKING_OVER),
        (between, (NotNow, CoordinatorGone), do.wait, on.WAITING),
        (between, lost, do.rejoin_now, on.WAITING),
        ((on.JOINING,), (RebalanceCalled,), do.wait, on.WAITING),
        ((on.DEALING, on.SYNCING), (RebalanceCalled,), do.rejoin_now, on.WAITING),
        # In a generation.
        ((on.TAKING_OVER,), (TakenOver,), do.ignore, on.STABLE),
        ((on.STABLE,), (PartitionsChanged,), do.notice, stays),
        (owning, (RebalanceCalled, Resubscribed), do.release, on.RELEASING),
        ((*owning, on.RELEASING), lost, do.lose, on.RELEASING),
        ((on.RELEASING,), (Released,), do.rejoin, on.WAITING),
        ((on.RELEASING, on.CLOSING), (RebalanceCalled,), do.ignore, stays),
        ((*owning, on.RELEASING, on.CLOSING), (CoordinatorGone,), do.look_up, stays),
        ((*owning, on.RELEASING, on.CLOSING), (NotNow,), do.try_later, stays),
        # The end.
        ((on.WAITING, *between), (Stop,), do.leave, on.LEAVING),
        ((*owning, on.RELEASING), (Stop,), do.close, on.CLOSING),
        ((on.CLOSING,), lost, do.close_lost, stays),
        ((on.CLOSING,), (Released,), do.leave, on.LEAVING),
        ((on.LEAVING,), (LeaveAnswered,), do.end, on.LEFT),
        (going, (Stop, Resubscribed), do.ignore, stays),
        (tuple(State), (Failed,), do.fail, on.FAILED),
        ([state for state in State if state is not on.STABLE], (PartitionsChanged,), do.ignore, stays),
    )
    return {
        (state, event): Rule(step, then or state)
        for states, events, step, then in rows
        for state in states
        for event in events
    }


TABLE: Mapping[tuple[State, type[GroupEvent]], Rule] = _table()
"""Every transition there is."""
