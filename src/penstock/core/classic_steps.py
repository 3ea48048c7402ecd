"""What a member of a classic group knows, and what it does: the steps that the table of ``core.classic`` puts in order.

Rule 1: a step does one thing, and asks nobody whether it may: the table has said so. A step that had to go elsewhere
(nothing to release, no leave to send) sets the state itself.
Rule 2: eager members give all back before they join; cooperative ones (KIP-429: all that is offered is cooperative)
keep what they own through a join, give back what the new generation takes away, and join once more.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping, Sequence

from penstock.core.backoff import Backoff
from penstock.core.classic_states import ALIVE, OWNING, REJOINING, State
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
    CoordinatorGone,
    Failed,
    GenerationLost,
    GroupEvent,
    Identity,
    JoinedAsFollower,
    JoinedAsLeader,
    MemberIdGiven,
    MemberLost,
    PartitionsChanged,
    PartitionsFound,
    RebalanceCalled,
    Resubscribed,
    SessionOver,
    Stalled,
    Stop,
    Synced,
)
from penstock.core.strategies import Strategy, are_cooperative
from penstock.errors import ConfigurationError, PenstockError, RebalanceError
from penstock.messages import MemberAssignment, MemberSubscription, OwnedPartitions
from penstock.records import TopicPartition

__all__ = ["ClassicSteps"]


class ClassicSteps:
    """One member's knowledge and deeds.

    Args:
        settings: what the options say.
        strategies: how to deal, most preferred first; all of them are offered.
        chance: gives a number in [0, 1) for jitter, passed in because chance is not decided here.

    Attributes:
        state: where it stands.
        effects: what is to be done and was not given out yet.
        awaited: the effect whose outcome is waited for.
        owned: the partitions that are this member's.
        join_at: when a member that waits sends its join.
        stop_at: a stop waits for the end of the rebalance, until then at most; None when there is none that waits.
    """

    def __init__(self, settings: MemberSettings, strategies: Sequence[Strategy], chance: Callable[[], float]) -> None:
        self._settings = settings
        self._strategies = {strategy.name: strategy for strategy in strategies}
        self._is_cooperative = are_cooperative(strategies)
        self._chance = chance
        self._backoff = Backoff(settings.retry_first_s, settings.retry_longest_s)
        self.heartbeat = Heartbeat(settings.session_timeout_s, settings.heartbeat_interval_s)
        self.effects: deque[Effect] = deque()
        self.awaited: Effect | None = None
        self.taking: TakeOver | None = None
        """Goes on beside a join; a release or a later takeover ends it."""
        self._topics = self._joined_topics = settings.topics
        self._member_id = ""
        self._generation = -1
        self._protocol = ""
        self.owned: Partitions = frozenset()
        self._ready: Partitions = frozenset()
        """Those of the owned that are taken over: callbacks are through, records flow."""
        self._dealt_to_us: tuple[tuple[OwnedPartitions, ...], int] = ((), -1)
        """The last assignment and its generation, which an eager member tells an assignor that leaves things be."""
        self._lead: Lead | None = None
        self._failures = 0
        self._comes_back = False
        self.join_at = 0.0
        self.stop_at: float | None = None
        self._reason = "the consumer starts"
        self.state = State.IDLE

    @property
    def identity(self) -> Identity:
        """Who this member is to the broker now."""
        return Identity(self._member_id, self._generation, self._settings.instance_id)

    @property
    def is_member(self) -> bool:
        """Whether the group counts us in a generation: what is done may be committed."""
        # What is lost is lost once: while it is being told, there is no session to keep or to lose again.
        return self._generation >= 0 and (self.state in ALIVE or (self.state in REJOINING and bool(self.owned)))

    # ---- steps, named by what is done --------------------------------------------------------------------------

    def ignore(self, event: GroupEvent, now: float) -> None:
        """It does not matter here."""

    def begin(self, event: GroupEvent, now: float) -> None:
        """Join when the timer is looked at, as nothing has to be given back; who is to stop joins no more."""
        if self.stop_at is not None:
            self.close(event, now)
        self.join_at = now

    def resubscribe(self, event: GroupEvent, _now: float) -> None:
        """Take note; the next join says so."""
        assert isinstance(event, Resubscribed)
        self._topics, self._reason = event.topics, "the subscription changed"

    def join(self, _event: GroupEvent, _now: float) -> None:
        """Ask for a place in the next generation; what is owned is claimed, so it has to be wanted still."""
        if unwanted := frozenset(one for one in self.owned if one.topic not in self._topics):
            self._release(unwanted)
        else:
            self._send_join()

    def take_id(self, event: GroupEvent, now: float) -> None:
        """Join once more, under the name that the coordinator gave (KIP-394); or tell it not to wait for that."""
        assert isinstance(event, MemberIdGiven)
        self._member_id = event.member_id
        self._send_join() if self.stop_at is None else self.leave(event, now)

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
        if self.stop_at is not None:
            self.close(event, now)
            return
        if self._lead is not None:
            self._lead.recall(event.assignment)
        dealt = event.assignment.assigned_partitions
        assigned = frozenset(TopicPartition(one.topic, p) for one in dealt for p in one.partitions)
        if self._topics != self._joined_topics and not self.owned:
            # The subscription has changed since; nothing was handed out yet, so join again with the new one.
            self._wait_until(now)
            return
        self._dealt_to_us = (dealt, self._generation)
        taken_away = self.owned - assigned
        self.owned |= assigned
        if taken_away:
            self._reason = "partitions were given back"
            self._release(taken_away)
        elif self._topics != self._joined_topics:
            self.regroup(event, now)
        else:
            kept = assigned & self._ready
            self.taking = TakeOver(assigned - kept, kept, self.identity, self._protocol, self._lead is not None)
            self.effects.append(self.taking)

    def taken(self, _event: GroupEvent, _now: float) -> None:
        """What was taken over is read from now on, whatever the group does meanwhile."""
        assert self.taking is not None
        self._ready |= self.taking.added
        self.taking = None

    def regroup(self, event: GroupEvent, now: float) -> None:
        """Join the next generation: eagerly after giving all back, cooperatively with all that is still wanted."""
        self._reason = event.reason if isinstance(event, RebalanceCalled) else self._reason
        if isinstance(event, Resubscribed):
            self.resubscribe(event, now)
        if self._is_cooperative:
            self._wait_until(now)
        else:
            self._release(self.owned)

    def lose(self, event: GroupEvent, now: float) -> None:
        """The partitions are gone; then join again."""
        self._reason = str(getattr(event, "reason", "the membership was lost"))
        owned, self.owned, self._ready = self.owned, frozenset(), frozenset()
        self._forget(event)
        if (is_last := self.stop_at is not None) or owned or self.state in OWNING:
            self._give_up(owned, is_last=is_last)
            self.state = State.CLOSING if is_last else State.RELEASING
        else:
            self._wait_until(now)

    def step_away(self, event: GroupEvent, _now: float) -> None:
        """Nobody reads: tell the group to go on without us, and drop what others will have."""
        assert isinstance(event, Stalled)
        self._reason, self._comes_back = str(event.error), False
        self.effects.append(Tell(event.error))
        if self._settings.leaves_on_stop:
            self.effects.append(SendLeave(self.identity, "nobody reads"))
            self._member_id = ""
        self._generation = -1
        self._give_up(self.owned, is_last=False)
        self.owned = self._ready = frozenset()

    def come_back(self, _event: GroupEvent, _now: float) -> None:
        """Somebody reads, while the loss is still being told."""
        self._comes_back = True

    def be_away(self, _event: GroupEvent, now: float) -> None:
        """The loss is told; wait for a reader, unless there is one."""
        if self._comes_back:
            self._wait_until(now)

    def live(self, now: float) -> None:
        """Say that we live."""
        self.heartbeat.sent(now)
        self.effects.append(SendHeartbeat(self.identity, self._settings.session_timeout_s / 3))

    def close(self, _event: GroupEvent, _now: float) -> None:
        """Give the partitions back for good."""
        self.taking = self.stop_at = None
        self._do(Release(self.owned, is_lost=False, is_last=True, reason="the consumer stops"))
        self.state = State.CLOSING

    def go(self, event: GroupEvent, now: float) -> None:
        """Stop between two assignments: first hear what the join brings, a generation to commit in or a name."""
        assert isinstance(event, Stop)
        is_named = bool(self._member_id or self._settings.instance_id) or self.state is State.WAITING
        if is_named and not self.owned:
            self.leave(event, now)
        elif is_named and (self.state is State.WAITING or not event.is_owing):
            self.close(event, now)
        elif self.stop_at is None:
            self.stop_at = now + self._settings.stop_patience_s

    def close_lost(self, event: GroupEvent, _now: float) -> None:
        """While closing, the group went on without us: nothing to commit, and good-bye only to who still knows us."""
        self._reason = "the membership was lost"
        self._give_up(self.owned, is_last=True)
        self.owned = frozenset()
        self._generation = -1
        if not isinstance(event, GenerationLost):
            self._member_id = ""

    def rejoin(self, _event: GroupEvent, now: float) -> None:
        """What had to be given back is: join the next generation."""
        assert isinstance(self.awaited, Release)
        self.owned -= self.awaited.partitions
        self._ready -= self.awaited.partitions
        self.join_at = now

    def wait(self, event: GroupEvent, now: float) -> None:
        """Try again after a pause that grows."""
        if isinstance(event, CoordinatorGone):
            self.effects.append(ForgetCoordinator(event.reason))
        self._failures += 1
        self.begin(event, now + self._backoff.pause_s(self._failures, self._chance()))

    def look_up(self, event: GroupEvent, now: float) -> None:
        """Another broker coordinates the group; the membership is none the worse for it."""
        assert isinstance(event, CoordinatorGone)
        self.try_later(event, now)
        self.effects.append(ForgetCoordinator(event.reason))

    def try_later(self, _event: GroupEvent, now: float) -> None:
        """The heartbeat failed for now; the session goes on."""
        self.heartbeat.failed(now, self._settings.retry_first_s)

    def notice(self, event: GroupEvent, now: float) -> None:
        """The leader watches all members' topics: grown or gone, they have to be dealt out anew."""
        assert isinstance(event, PartitionsChanged)
        if self._lead is not None and self._lead.is_outdated_by(event.counts):
            self._reason = "partitions were added or topics have come or gone"
            self.regroup(event, now)

    def leave(self, event: GroupEvent, now: float) -> None:
        """Nothing is ours any more: say so, unless a static member means to be back."""
        self.owned, self.taking, self.stop_at = frozenset(), None, None
        if self._member_id and self._settings.leaves_on_stop:
            self._do(SendLeave(self.identity, "the consumer stops"))
            self.state = State.LEAVING
        else:
            self.end(event, now)

    def end(self, _event: GroupEvent, _now: float) -> None:
        """The group is behind us."""
        self._member_id, self._generation, self.owned = "", -1, frozenset()
        self.state = State.LEFT

    def fail(self, event: GroupEvent, _now: float) -> None:
        """Drop what is owned and tell the error: no other join would help."""
        assert isinstance(event, Failed)
        self._fail(event.error)

    def tell(self, event: GroupEvent, _now: float) -> None:
        """Too late to change anything but what the user knows."""
        assert isinstance(event, Failed)
        self.effects.append(Fail(event.error))

    # ---- inside ------------------------------------------------------------------------------------------------

    def _fail(self, error: PenstockError) -> None:
        self._reason = str(error)
        self._give_up(self.owned, is_last=True)
        self.effects.append(Fail(error))
        self.owned = self._ready = frozenset()
        self.state = State.FAILED
        is_ours = isinstance(error, RebalanceError | ConfigurationError)
        if is_ours and self._member_id and self._settings.leaves_on_stop:
            # The fault is ours alone: the others need not wait until they miss us.
            self._do(SendLeave(self.identity, "the consumer failed"))
            self.state = State.LEAVING

    def _release(self, partitions: Partitions) -> None:
        self.taking = None
        self._do(Release(partitions, is_lost=False, is_last=False, reason=self._reason))
        self.state = State.RELEASING

    def _give_up(self, partitions: Partitions, *, is_last: bool) -> None:
        self.taking = self.stop_at = None
        self._do(Release(partitions, is_lost=True, is_last=is_last, reason=self._reason))

    def _wait_until(self, at: float) -> None:
        self.join_at = at
        self.state = State.WAITING

    def _do(self, effect: Effect) -> None:
        """Have ``effect`` performed and wait for its outcome."""
        self.effects.append(effect)
        self.awaited = effect

    def _enter(self, member_id: str, generation: int, protocol: str, now: float) -> None:
        self._member_id, self._generation, self._protocol = member_id, generation, protocol
        # The session began when the answer was sent, which may be long ago. Whoever owns something counts from the last
        # heartbeat that was heard; whoever does not, from now on, since the sync by which it will is heard after this.
        self.heartbeat.reset(now - self.heartbeat.age_s(now) if self.owned else now)

    def _forget(self, event: GroupEvent) -> None:
        if isinstance(event, GenerationLost | MemberLost | SessionOver):
            self._generation = -1
        if isinstance(event, MemberLost):
            self._member_id = ""

    def _send_join(self) -> None:
        self._joined_topics = self._topics
        subscription = MemberSubscription(
            tuple(sorted(self._topics)),
            owned_partitions=by_topic(self.owned),
            generation_id=self._generation,
            rack_id=self._settings.rack,
        )
        offers = tuple((name, subscription) for name in self._strategies)
        self._do(SendJoin(self._member_id, offers, self._reason, self._settings.patience_s, *self._dealt_to_us))

    def _send_sync(self, assignments: Mapping[str, MemberAssignment]) -> None:
        self._do(SendSync(self.identity, self._protocol, assignments, self._settings.patience_s))
