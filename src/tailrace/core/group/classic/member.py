"""Member of one group in the classic protocol (JoinGroup, SyncGroup), with its transition table.

Heartbeats are sent whenever the group counts the member in a generation, and also during a join while the member owns
partitions. A member without partitions has no session to keep while the coordinator holds its join.

The outcome of an effect counts only while the member awaits it. ``awaits`` decides this for a join or callback,
``is_current`` for a heartbeat or commit: the request must carry the current generation, and no join may be in flight.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

from tailrace.core.group.assignors.strategies import Strategy
from tailrace.core.group.classic.states import OVER, ClassicState
from tailrace.core.group.classic.steps import ClassicSteps
from tailrace.core.group.effects import Effect, SendHeartbeat
from tailrace.core.group.events import (
    CoordinatorGone,
    GenerationLost,
    GroupEvent,
    HeartbeatAnswered,
    HeartbeatOutcome,
    Identity,
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
    """Member of a classic group; see ``core.group.membership.Membership`` for how it is driven.

    Args:
        settings: settings of the membership.
        strategies: assignment strategies, most preferred first; all of them are offered.
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
        """Return True if the answer to a heartbeat or commit sent as ``identity`` still matters."""
        return identity == self.identity and self.is_member and self.state is not ClassicState.JOINING

    def awaits(self, effect: Effect) -> bool:
        """Return True if the outcome of ``effect`` still matters."""
        return effect is self._awaited or effect is self._taking

    def receive(self, event: GroupEvent, now: float) -> None:
        """Handle an event.

        Raises:
            ValueError: the event cannot happen in this state; nothing has changed.
        """
        if isinstance(event, HeartbeatOutcome):
            self._hear(event, now)
            return
        before, awaited = self.state, self._awaited
        super().receive(event, now)
        if self.state is not before and self._awaited is awaited:
            self._awaited = None

    def handle_timer(self, now: float) -> None:
        """Expire the session, or send the join or heartbeat that is due."""
        if self.is_member and self._heartbeat.session_expired(now):
            self.receive(SessionOver(f"no heartbeat was acknowledged for {self._heartbeat.age_s(now):.1f} s"), now)
            return
        if self._stop_at is not None and now >= self._stop_at:
            self.receive(StopDue(), now)
        if self.state is ClassicState.WAITING and now >= self._join_at:
            self.receive(JoinDue(), now)
        if self.is_member and self._heartbeat.should_heartbeat(now):
            self._heartbeat.sent(now)
            self._effects.append(SendHeartbeat(self.identity, self._settings.session_timeout_s / 3))

    def next_deadline(self) -> float | None:
        """Return the time at which ``handle_timer`` is due; None for never."""
        due = [self._heartbeat.next_at] if self.is_member else []
        due += [] if self._stop_at is None else [self._stop_at]
        return min([*due, self._join_at] if self.state is ClassicState.WAITING else due, default=None)

    def _hear(self, beat: HeartbeatOutcome, now: float) -> None:
        if beat.identity != self.identity or not self.is_member:
            return
        outcome = beat.outcome
        # REBALANCE_IN_PROGRESS acknowledges the heartbeat, too.
        if isinstance(outcome, HeartbeatAnswered | RebalanceCalled):
            self._heartbeat.received(now)
        if self.state is not ClassicState.JOINING:
            if not isinstance(outcome, HeartbeatAnswered):
                self.receive(outcome, now)
        elif isinstance(outcome, CoordinatorGone):
            self.find_coordinator(outcome, now)
        elif isinstance(outcome, RetryLater):
            self.retry_heartbeat(outcome, now)
        elif not isinstance(outcome, HeartbeatAnswered | RebalanceCalled):
            # The answer to the join decides about the membership.
            self._heartbeat.failed(now, self._settings.heartbeat_interval_s)


def _rows() -> Iterator[Row[Any, ClassicState, Any]]:
    on, do = ClassicState, ClassicSteps
    lost = (GenerationLost, MemberLost, SessionOver)
    between = (on.JOINING, on.DEALING, on.SYNCING)
    owning = (on.TAKING_OVER, on.STABLE)
    rejoining = (on.WAITING, *between)
    speaking = (on.WAITING, *owning, on.RELEASING, on.CLOSING)
    not_stable = all_but(on, on.STABLE)

    yield Row((on.IDLE,), StartMembership, do.schedule_join, on.WAITING)
    yield Row((on.IDLE,), StopMembership, do.forget, on.LEFT)
    yield Row((on.IDLE, *rejoining, on.RELEASING), Resubscribed, do.resubscribe)
    # To the next generation.
    yield Row((on.WAITING,), JoinDue, do.join, on.JOINING, (on.RELEASING,))
    yield Row((on.JOINING,), MemberIdAssigned, do.join_with_id, None, (on.LEAVING, on.LEFT))
    yield Row((on.JOINING,), JoinedAsFollower, do.follow, on.SYNCING)
    yield Row((on.JOINING,), JoinedAsLeader, do.lead, on.DEALING)
    yield Row((on.DEALING,), PartitionsFound, do.assign, on.SYNCING, (on.FAILED, on.LEAVING))
    yield Row((on.SYNCING,), Synced, do.apply_assignment, on.TAKING_OVER, (on.RELEASING, on.WAITING, on.CLOSING))
    yield Row(between, (RetryLater, CoordinatorGone), do.back_off, on.WAITING, (on.CLOSING,))
    yield Row((on.JOINING,), RebalanceCalled, do.back_off, on.WAITING, (on.CLOSING,))
    yield Row((on.DEALING, on.SYNCING), RebalanceCalled, do.schedule_join, on.WAITING, (on.CLOSING,))
    yield Row(rejoining, lost, do.report_loss, on.WAITING, (on.RELEASING, on.CLOSING))
    # In a generation.
    yield Row((on.TAKING_OVER,), TakenOver, do.complete_takeover, on.STABLE)
    yield Row(rejoining, TakenOver, do.complete_takeover)
    yield Row((on.STABLE,), PartitionsChanged, do.check_partition_counts, None, (on.RELEASING, on.WAITING))
    yield Row(not_stable, PartitionsChanged, do.ignore)
    yield Row(owning, RebalanceCalled, do.follow_rebalance, on.RELEASING, (on.WAITING,))
    yield Row(owning, Resubscribed, do.rejoin_with_topics, on.RELEASING, (on.WAITING,))
    yield Row((*owning, on.RELEASING), lost, do.report_loss, on.RELEASING)
    yield Row((on.RELEASING,), Released, do.rejoin, on.WAITING)
    yield Row((on.WAITING, on.RELEASING, on.CLOSING), RebalanceCalled, do.ignore)
    yield Row(speaking, CoordinatorGone, do.find_coordinator)
    yield Row(speaking, RetryLater, do.retry_heartbeat)
    # The application does not poll.
    yield Row((on.STABLE,), PollingStalled, do.leave_until_polled, on.STEPPING_AWAY)
    yield Row(not_stable, PollingStalled, do.ignore)
    yield Row((on.STEPPING_AWAY,), PollingResumed, do.note_polling)
    yield Row((on.STEPPING_AWAY,), Released, do.wait_for_polling, on.AWAY, (on.WAITING,))
    yield Row((on.AWAY,), PollingResumed, do.schedule_join, on.WAITING)
    yield Row(all_but(on, on.STEPPING_AWAY, on.AWAY), PollingResumed, do.ignore)
    yield Row((on.STEPPING_AWAY, on.AWAY), Resubscribed, do.resubscribe)
    yield Row((on.STEPPING_AWAY,), StopMembership, do.close, on.CLOSING)
    yield Row((on.AWAY,), StopMembership, do.forget, on.LEFT)
    # The end.
    yield Row(rejoining, StopMembership, do.stop_while_joining, None, (on.CLOSING, on.LEAVING, on.LEFT))
    yield Row(between, StopDue, do.close, on.CLOSING)
    yield Row((*owning, on.RELEASING), StopMembership, do.close, on.CLOSING)
    yield Row((on.CLOSING,), lost, do.close_lost)
    yield Row((on.CLOSING,), Released, do.leave, on.LEAVING, (on.LEFT,))
    yield Row((on.LEAVING,), LeaveAnswered, do.forget, on.LEFT)
    yield Row((on.CLOSING, on.LEAVING), (StopMembership, Resubscribed), do.ignore)
    yield Row(all_but(on, on.LEAVING), MembershipFailed, do.fail, on.FAILED, (on.LEAVING,))
    yield Row((on.LEAVING,), MembershipFailed, do.report_failure)


TABLE = TransitionTable(_rows(), OVER)
"""Every transition of a classic member."""
