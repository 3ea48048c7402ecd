"""One member of one group in the classic protocol (JoinGroup, SyncGroup): the whole machine as one table.

Rule 1: every transition stands in ``TABLE``: a state, what happened, what to do, the state after it. What is not in
the table cannot happen, raises, and changes nothing; what may happen and does not matter stands there as ``ignore``.
What the steps do stands in ``core.classic_steps``.
Rule 2: heartbeats go on whenever the group counts us in a generation, through a join too while partitions are owned.
A member that owns nothing has no session to keep while the coordinator holds its join.
Rule 3: an outcome counts only while it is waited for. ``awaits`` says so of an effect (a join, a callback that
runs), ``is_current`` of a heartbeat or commit: its generation has to be the current one, with no join in flight.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from penstock.core.classic_states import OVER, State
from penstock.core.classic_steps import ClassicSteps
from penstock.core.membership import MemberSettings
from penstock.core.membership_effects import Effect, Partitions
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
from penstock.core.strategies import Strategy

__all__ = ["TABLE", "ClassicMember", "Rule"]

Step: TypeAlias = Callable[[ClassicSteps, GroupEvent, float], None]


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
        self._steps = ClassicSteps(settings, strategies, chance)

    def __repr__(self) -> str:
        return f"<ClassicMember {self.identity.member_id or 'new'} of {self._settings.group_id} {self.state}>"

    # ---- being looked at ---------------------------------------------------------------------------------------

    @property
    def state(self) -> State:
        """Where it stands."""
        return self._steps.state

    @property
    def identity(self) -> Identity:
        """Who this member is to the broker now."""
        return self._steps.identity

    @property
    def owned(self) -> Partitions:
        """The partitions that are this member's."""
        return self._steps.owned

    @property
    def is_over(self) -> bool:
        """Whether nothing more will happen."""
        return self.state in OVER

    @property
    def is_member(self) -> bool:
        """Whether the group counts us in a generation: what is done may be committed."""
        return self._steps.is_member

    def heartbeat_age_s(self, now: float) -> float:
        """Seconds since the group is known to have heard from this member."""
        return self._steps.heartbeat.age_s(now)

    def is_current(self, identity: Identity) -> bool:
        """Whether an answer to a heartbeat or commit that was sent as ``identity`` still matters."""
        return identity == self.identity and self.is_member and self.state is not State.JOINING

    def awaits(self, effect: Effect) -> bool:
        """Whether the outcome of ``effect`` still matters: no later event has made it moot."""
        return effect is self._steps.awaited or effect is self._steps.taking

    # ---- being driven ------------------------------------------------------------------------------------------

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
        steps, before = self._steps, self.state
        rule, awaited = TABLE.get((before, type(event))), steps.awaited
        if rule is None:
            raise ValueError(f"{type(event).__name__} cannot happen while {before}")
        rule.step(steps, event, now)
        if steps.state is before:
            steps.state = rule.then
        if steps.state is not before and steps.awaited is awaited:
            steps.awaited = None

    def handle_timer(self, now: float) -> None:
        """Time has passed: the session may be over, or a join or a heartbeat due."""
        steps = self._steps
        if self.is_member and steps.heartbeat.session_expired(now):
            self.receive(SessionOver(f"no heartbeat was acknowledged for {steps.heartbeat.age_s(now):.1f} s"), now)
            return
        if steps.stop_at is not None and now >= steps.stop_at:
            self.receive(StopDue(), now)
        if self.state is State.WAITING and now >= steps.join_at:
            self.receive(JoinDue(), now)
        if self.is_member and steps.heartbeat.should_heartbeat(now):
            steps.live(now)

    def next_deadline(self) -> float | None:
        """When ``handle_timer`` has something to do."""
        steps = self._steps
        due = [steps.heartbeat.next_at] if self.is_member else []
        due += [] if steps.stop_at is None else [steps.stop_at]
        return min([*due, steps.join_at] if self.state is State.WAITING else due, default=None)

    def effects(self) -> Iterator[Effect]:
        """What is to be done now, each once."""
        while self._steps.effects:
            yield self._steps.effects.popleft()

    def _hear(self, beat: Beat, now: float) -> None:
        if beat.identity != self.identity or not self.is_member:
            return
        outcome, steps = beat.outcome, self._steps
        # "The group rebalances" is an answer too: the group knows that we live. In another generation nobody lives on.
        if isinstance(outcome, HeartbeatAnswered | RebalanceCalled):
            steps.heartbeat.received(now)
        if self.state is not State.JOINING:
            if not isinstance(outcome, HeartbeatAnswered):
                self.receive(outcome, now)
        elif isinstance(outcome, CoordinatorGone):
            steps.look_up(outcome, now)
        elif isinstance(outcome, NotNow):
            steps.try_later(outcome, now)
        elif not isinstance(outcome, HeartbeatAnswered | RebalanceCalled):
            # What the group thinks of us is the join's to say.
            steps.heartbeat.failed(now, self._settings.heartbeat_interval_s)


def _table() -> dict[tuple[State, type[GroupEvent]], Rule]:
    on, do, stays = State, ClassicSteps, None
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
