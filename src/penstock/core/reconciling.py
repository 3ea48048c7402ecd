"""One member of one group under KIP-848, where the broker assigns and the member reconciles: the machine as one table.

Rule 1: every transition stands in ``TABLE``: a state, what happened, what to do, the state after it; a step that finds
more to do goes on from there. What is not in the table cannot happen, raises, and changes nothing. What the steps do
stands in ``core.reconciling_steps``.
Rule 2: the heartbeat is the protocol. It joins (epoch 0), brings the target, and says what was given back; one is in
flight at a time, and after one that was not answered the next says everything.
Rule 3: an outcome counts only while it is waited for. ``awaits`` says so of an effect, each kind in a slot of its own;
``is_current`` of a commit: its epoch has to be the current one of a member.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from penstock.core.membership import MemberSettings
from penstock.core.membership_effects import Effect, Partitions
from penstock.core.membership_events import (
    CoordinatorGone,
    Failed,
    GenerationLost,
    GroupEvent,
    GroupHeartbeatAnswered,
    Identity,
    InstanceReleased,
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
from penstock.core.reconciling_states import OVER, State
from penstock.core.reconciling_steps import ReconcilingSteps

__all__ = ["TABLE", "ReconcilingMember", "Rule"]

Step: TypeAlias = Callable[[ReconcilingSteps, GroupEvent, float], None]


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
        self._group_id = settings.group_id
        self._steps = ReconcilingSteps(settings, member_id, chance)

    def __repr__(self) -> str:
        return f"<ReconcilingMember {self.identity.member_id} of {self._group_id} {self.state}>"

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
        """The partitions that are this member's, those that are being taken over or given back too."""
        return self._steps.owned

    @property
    def is_member(self) -> bool:
        """Whether the group counts us: what is done may be committed."""
        return self._steps.is_member

    @property
    def is_over(self) -> bool:
        """Whether nothing more will happen."""
        return self.state in OVER

    def is_current(self, identity: Identity) -> bool:
        """Whether an error that answers a commit that was sent as ``identity`` still matters."""
        return identity == self.identity and self.is_member

    def awaits(self, effect: Effect) -> bool:
        """Whether the outcome of ``effect`` still matters: no later event or heartbeat has made it moot."""
        steps = self._steps
        return any(effect is one for one in (steps.beat.sent, steps.names.asked, steps.work))

    def heartbeat_age_s(self, now: float) -> float:
        """Seconds since the group is known to have heard from this member."""
        return self._steps.beat.session.age_s(now)

    # ---- being driven ------------------------------------------------------------------------------------------

    def receive(self, event: GroupEvent, now: float) -> None:
        """Something has happened.

        Raises:
            ValueError: that cannot happen in this state, or nobody asked; nothing has changed.
        """
        if self.is_over:
            return
        rule = TABLE.get((self.state, type(event)))
        if rule is None or not self._steps.was_asked_for(event):
            raise ValueError(f"{type(event).__name__} cannot happen while {self.state}")
        self._steps.state = rule.then
        rule.step(self._steps, event, now)

    def handle_timer(self, now: float) -> None:
        """Time has passed: a heartbeat, another try at a name, or the end of the session may be due."""
        if self.is_member and self._steps.beat.session.session_expired(now):
            self.receive(SessionOver(f"no heartbeat was acknowledged for {self.heartbeat_age_s(now):.1f} s"), now)
        self._steps.look_at_the_clock(now)

    def next_deadline(self) -> float | None:
        """When ``handle_timer`` has something to do."""
        steps = self._steps
        times = [steps.names.next_at, steps.beat.next_at if steps.speaks else None]
        times += [steps.beat.session.expires_at] if self.is_member else []
        return min((at for at in times if at is not None), default=None)

    def effects(self) -> Iterator[Effect]:
        """What is to be done now, each once."""
        while self._steps.effects:
            yield self._steps.effects.popleft()


def _table() -> dict[tuple[State, type[GroupEvent]], Rule]:
    on, do, stays = State, ReconcilingSteps, None
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
        ((on.JOINING,), (InstanceReleased,), do.join_now, stays, ()),
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
