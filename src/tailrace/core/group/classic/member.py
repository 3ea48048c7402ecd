"""Member of one group in the classic protocol (JoinGroup, SyncGroup), with its transition table.

Heartbeats are sent while the member is in a generation. A member that owns partitions stays in its generation during a
join, and keeps sending heartbeats. A member without partitions needs none while the coordinator holds its join.

The driving coroutine reports the outcome of an effect as an event only if ``awaits`` returns True for the effect. It
reports an error in the answer to a commit only if ``is_current`` returns True: the commit was sent in the current
generation, and no join is in flight.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

from tailrace.core.group.assignors.strategies import Strategy
from tailrace.core.group.classic.states import ASSIGNED, OVER, ClassicState
from tailrace.core.group.classic.steps import ClassicSteps
from tailrace.core.group.effects import Effect, SendHeartbeat
from tailrace.core.group.error_reactions import Identity
from tailrace.core.group.events import (
    CoordinatorGone,
    GenerationLost,
    GroupDescribed,
    GroupEvent,
    HeartbeatAnswered,
    HeartbeatOutcome,
    JoinDue,
    JoinedAsFollower,
    JoinedAsLeader,
    LeaveAnswered,
    MemberIdAssigned,
    MemberLost,
    MembershipFailed,
    PartitionsChanged,
    PartitionsFound,
    PollingResumed,
    PollingStalled,
    RebalanceCalled,
    Released,
    Resubscribed,
    RetryLater,
    SessionOver,
    StartMembership,
    StopDue,
    StopMembership,
    Synced,
    TakenOver,
)
from tailrace.core.group.membership import MemberSettings
from tailrace.core.machine import Row, TransitionTable, all_but

__all__ = ["TABLE", "ClassicMember"]


class ClassicMember(ClassicSteps):
    """Member of a classic group; implements ``core.group.membership.Membership``.

    Args:
        settings: settings of the membership.
        strategies: assignment strategies that the member offers, most preferred first.
        chance: returns a number in [0, 1) for jitter.
    """

    def __init__(self, settings: MemberSettings, strategies: Sequence[Strategy], chance: Callable[[], float]) -> None:
        super().__init__(TABLE, settings, strategies, chance)

    def __repr__(self) -> str:
        return f"<ClassicMember {self.identity.member_id or 'new'} of {self._settings.group_id} {self.state}>"

    def heartbeat_age_s(self, now: float) -> float:
        """Return the seconds since the last acknowledged heartbeat was sent."""
        return self._heartbeat.age_s(now)

    def is_current(self, identity: Identity) -> bool:
        """Return True if the member has to react to an error that answers a request sent as ``identity``."""
        return identity == self.identity and self.is_member and self.state is not ClassicState.JOINING

    def awaits(self, effect: Effect) -> bool:
        """Return True if the member awaits the outcome of ``effect``."""
        return any(effect is one for one in (self._awaited, self._takeover, self._lookup))

    def receive(self, event: GroupEvent, now: float) -> None:
        """Handle an event.

        Raises:
            ValueError: the event cannot happen in this state; nothing has changed.
        """
        if isinstance(event, HeartbeatOutcome):
            self._handle_heartbeat_outcome(event, now)
            return
        before, awaited = self.state, self._awaited
        super().receive(event, now)
        if self.state is not before and self._awaited is awaited:
            self._awaited = None

    def handle_timer(self, now: float) -> None:
        """Perform all that is due: the ends of the session and of the wait of a stop, a join, a lookup, a heartbeat."""
        if self.is_member and self._heartbeat.session_expired(now):
            self.receive(SessionOver(f"no heartbeat was acknowledged for {self._heartbeat.age_s(now):.1f} s"), now)
            return
        if self._stop_at is not None and now >= self._stop_at:
            self.receive(StopDue(), now)
        is_join_due = (at := self._next_join_at) is not None and now >= at
        if is_join_due:
            self.receive(JoinDue(), now)
        elif self.state in ASSIGNED and self._describe_at is not None and now >= self._describe_at:
            self.describe_group()
        if self.is_member and self._heartbeat.should_heartbeat(now):
            self._heartbeat.note_sent(now)
            self._effects.append(SendHeartbeat(self.identity, self._settings.session_timeout_s / 3))

    def next_deadline(self) -> float | None:
        """Return the time at which ``handle_timer`` is due; None for never."""
        due = [self._heartbeat.next_at] if self.is_member else []
        due += [] if self._stop_at is None else [self._stop_at]
        due += [] if (at := self._next_join_at) is None else [at]
        due += [] if self.state not in ASSIGNED or self._describe_at is None else [self._describe_at]
        return min(due, default=None)

    @property
    def _next_join_at(self) -> float | None:
        if self.state in ASSIGNED:
            return self._rejoin_at
        return self._join_at if self.state is ClassicState.WAITING else None

    def _handle_heartbeat_outcome(self, event: HeartbeatOutcome, now: float) -> None:
        if event.identity != self.identity or not self.is_member:
            return
        outcome = event.outcome
        # REBALANCE_IN_PROGRESS acknowledges the heartbeat, too.
        if isinstance(outcome, HeartbeatAnswered | RebalanceCalled):
            self._heartbeat.note_answer(now)
        if self.state is not ClassicState.JOINING:
            if not isinstance(outcome, HeartbeatAnswered):
                self.receive(outcome, now)
        elif isinstance(outcome, CoordinatorGone):
            self.find_coordinator(outcome, now)
        elif isinstance(outcome, RetryLater):
            self.retry_heartbeat(outcome, now)
        elif not isinstance(outcome, HeartbeatAnswered | RebalanceCalled):
            # The error is ignored, because the answer to the join in flight decides about the membership.
            self._heartbeat.note_failure(now, self._settings.heartbeat_interval_s)


def _rows() -> Iterator[Row[Any, ClassicState, Any]]:
    state, step = ClassicState, ClassicSteps
    loss_events = (GenerationLost, MemberLost, SessionOver)
    joining_states = (state.JOINING, state.LEADING, state.SYNCING)
    assigned_states = ASSIGNED
    waiting_or_joining_states = (state.WAITING, *joining_states)
    heartbeat_states = (state.WAITING, *assigned_states, state.RELEASING, state.CLOSING)
    all_but_stable = all_but(state, state.STABLE)

    yield Row((state.IDLE,), StartMembership, step.schedule_join, state.WAITING)
    yield Row((state.IDLE,), StopMembership, step.forget, state.LEFT)
    yield Row((state.IDLE, *waiting_or_joining_states, state.RELEASING), Resubscribed, step.resubscribe)
    # Joining the next generation.
    yield Row((state.WAITING,), JoinDue, step.join, state.JOINING, (state.RELEASING,))
    yield Row((state.JOINING,), MemberIdAssigned, step.join_with_id, None, (state.LEAVING, state.LEFT))
    yield Row((state.JOINING,), JoinedAsFollower, step.follow, state.SYNCING)
    yield Row((state.JOINING,), JoinedAsLeader, step.lead, state.LEADING)
    yield Row((state.LEADING,), PartitionsFound, step.assign, state.SYNCING, (state.FAILED, state.LEAVING))
    yield Row(
        (state.SYNCING,),
        Synced,
        step.apply_assignment,
        state.TAKING_OVER,
        (state.RELEASING, state.WAITING, state.CLOSING),
    )
    yield Row(joining_states, (RetryLater, CoordinatorGone), step.back_off, state.WAITING, (state.CLOSING,))
    yield Row((state.JOINING,), RebalanceCalled, step.back_off, state.WAITING, (state.CLOSING,))
    yield Row((state.LEADING, state.SYNCING), RebalanceCalled, step.schedule_join, state.WAITING, (state.CLOSING,))
    yield Row(waiting_or_joining_states, loss_events, step.report_loss, state.WAITING, (state.RELEASING, state.CLOSING))
    # In a generation.
    yield Row((state.TAKING_OVER,), TakenOver, step.complete_takeover, state.STABLE)
    yield Row(waiting_or_joining_states, TakenOver, step.complete_takeover)
    yield Row((state.STABLE,), PartitionsChanged, step.check_partition_counts, None, (state.RELEASING, state.WAITING))
    yield Row(all_but_stable, (PartitionsChanged, PollingStalled), step.ignore)
    yield Row(assigned_states, GroupDescribed, step.check_owners)
    yield Row(all_but(state, *assigned_states), GroupDescribed, step.ignore)
    yield Row(assigned_states, (RebalanceCalled, JoinDue), step.follow_rebalance, state.RELEASING, (state.WAITING,))
    yield Row(assigned_states, Resubscribed, step.rejoin_with_topics, state.RELEASING, (state.WAITING,))
    yield Row((*assigned_states, state.RELEASING), loss_events, step.report_loss, state.RELEASING)
    yield Row((state.RELEASING,), Released, step.rejoin, state.WAITING)
    yield Row((state.WAITING, state.RELEASING, state.CLOSING), RebalanceCalled, step.ignore)
    yield Row(heartbeat_states, CoordinatorGone, step.find_coordinator)
    yield Row(heartbeat_states, RetryLater, step.retry_heartbeat)
    # The application does not poll.
    yield Row((state.STABLE,), PollingStalled, step.leave_until_polled, state.STEPPING_AWAY)
    yield Row((state.STEPPING_AWAY,), PollingResumed, step.note_polling)
    yield Row((state.STEPPING_AWAY,), Released, step.wait_for_polling, state.AWAY, (state.WAITING,))
    yield Row((state.AWAY,), PollingResumed, step.schedule_join, state.WAITING)
    yield Row(all_but(state, state.STEPPING_AWAY, state.AWAY), PollingResumed, step.ignore)
    yield Row((state.STEPPING_AWAY, state.AWAY), Resubscribed, step.resubscribe)
    yield Row((state.STEPPING_AWAY,), StopMembership, step.close, state.CLOSING)
    yield Row((state.AWAY,), StopMembership, step.forget, state.LEFT)
    # Stop and failure.
    yield Row(
        waiting_or_joining_states,
        StopMembership,
        step.stop_while_joining,
        None,
        (state.CLOSING, state.LEAVING, state.LEFT),
    )
    yield Row(joining_states, StopDue, step.close, state.CLOSING)
    yield Row((*assigned_states, state.RELEASING), StopMembership, step.close, state.CLOSING)
    yield Row((state.CLOSING,), loss_events, step.close_lost)
    yield Row((state.CLOSING,), Released, step.leave, state.LEAVING, (state.LEFT,))
    yield Row((state.LEAVING,), LeaveAnswered, step.forget, state.LEFT)
    yield Row((state.CLOSING, state.LEAVING), (StopMembership, Resubscribed), step.ignore)
    yield Row(all_but(state, state.LEAVING), MembershipFailed, step.fail, state.FAILED, (state.LEAVING,))
    yield Row((state.LEAVING,), MembershipFailed, step.report_failure)


TABLE = TransitionTable(_rows(), OVER)
"""Every transition of a classic member."""
