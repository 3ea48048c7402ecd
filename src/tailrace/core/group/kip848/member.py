"""Member of one group under KIP-848, with its transition table.

The broker computes the target assignment, and the member reconciles its partitions with it: the member releases and
takes over partitions until it owns exactly the partitions of the target. The protocol consists of heartbeats: a
heartbeat with epoch 0 joins the group, the answers contain the target assignment, and later heartbeats report the owned
partitions. One heartbeat is in flight at a time. If a heartbeat is not answered, the next heartbeat contains every
field.

The driving coroutine reports the outcome of an effect as an event only if ``awaits`` returns True for the effect. It
reports an error in the answer to a commit only if ``is_current`` returns True: the member is in the group, and its
epoch is the epoch in the commit.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from tailrace.core.group.effects import Effect
from tailrace.core.group.error_reactions import Identity
from tailrace.core.group.events import (
    CoordinatorGone,
    GenerationLost,
    GroupEvent,
    GroupHeartbeatAnswered,
    InstanceHeld,
    InstanceReleased,
    LeaveAnswered,
    MemberLost,
    MembershipFailed,
    PartitionsChanged,
    PollingResumed,
    PollingStalled,
    RebalanceCalled,
    Released,
    Resubscribed,
    RetryLater,
    SessionKnown,
    SessionOver,
    StartMembership,
    StopMembership,
    TakenOver,
    TopicNamesFound,
)
from tailrace.core.group.kip848.states import OVER, STATIC_LEAVE_EPOCH, Kip848State
from tailrace.core.group.kip848.steps import Kip848Steps
from tailrace.core.group.membership import MemberSettings
from tailrace.core.machine import Row, TransitionTable, all_but

__all__ = ["TABLE", "Kip848Member"]


class Kip848Member(Kip848Steps):
    """Member of a KIP-848 group; implements ``core.group.membership.Membership``.

    Args:
        settings: settings of the membership.
        member_id: UUID that the caller generates (KIP-1082); it never changes.
        chance: returns a number in [0, 1) for jitter.
    """

    def __init__(self, settings: MemberSettings, member_id: str, chance: Callable[[], float]) -> None:
        super().__init__(TABLE, settings, member_id, chance)

    def __repr__(self) -> str:
        return f"<Kip848Member {self.identity.member_id} of {self._settings.group_id} {self.state}>"

    def is_current(self, identity: Identity) -> bool:
        """Return True if the member has to react to an error that answers a commit sent as ``identity``."""
        return identity == self.identity and self.is_member

    def awaits(self, effect: Effect) -> bool:
        """Return True if the member awaits the outcome of ``effect``."""
        return any(effect is one for one in (self._heartbeats.in_flight, self._names.in_flight, self._awaited))

    def heartbeat_age_s(self, now: float) -> float:
        """Return the seconds since the last acknowledged heartbeat was sent."""
        return self._heartbeats.session.age_s(now)

    def receive(self, event: GroupEvent, now: float) -> None:
        """Handle an event.

        Raises:
            ValueError: the event cannot happen in this state, or answers a request that the member does not await;
                nothing has changed.
        """
        if not self.is_over and not self._is_expected(event):
            raise ValueError(f"{type(event).__name__} cannot happen while {self.state}")
        super().receive(event, now)

    def handle_timer(self, now: float) -> None:
        """Perform all that is due: the end of the session, a request for topic names, a heartbeat."""
        if self.is_member and self._heartbeats.session.session_expired(now):
            self.receive(SessionOver(f"no heartbeat was acknowledged for {self.heartbeat_age_s(now):.1f} s"), now)
        if (at := self._names.next_at) is not None and now >= at:
            self._request_names(self._names.request_again(self._target_topics))
        if self._sends_heartbeats and (at := self._heartbeats.next_at) is not None and now >= at:
            self._effects.append(self._next_heartbeat(now))

    def next_deadline(self) -> float | None:
        """Return the time at which ``handle_timer`` is due; None for never."""
        times = [self._names.next_at, self._heartbeats.next_at if self._sends_heartbeats else None]
        times += [self._heartbeats.session.expires_at] if self.is_member else []
        return min((at for at in times if at is not None), default=None)

    @property
    def _sends_heartbeats(self) -> bool:
        return self.state is Kip848State.JOINING or self.is_member

    def _is_expected(self, event: GroupEvent) -> bool:
        if isinstance(event, GroupHeartbeatAnswered | InstanceHeld | InstanceReleased):
            return self._heartbeats.in_flight is not None
        return self._names.in_flight is not None or not isinstance(event, TopicNamesFound)

    def _next_heartbeat(self, now: float) -> Effect:
        # The group refuses the join of a static member while it holds the instance id for an earlier membership: one
        # whose session has not ended at the broker, or one that began with a join whose answer was lost. So the member
        # first releases the instance id.
        if (
            self.state is Kip848State.JOINING
            and self._settings.instance_id is not None
            and self._heartbeats.is_instance_held
        ):
            return self._heartbeats.release_instance(
                Identity(self._member_id, STATIC_LEAVE_EPOCH, self._settings.instance_id)
            )
        return self._heartbeats.next_heartbeat(self.identity, self._owned, now)


def _rows() -> Iterator[Row[Any, Kip848State, Any]]:
    state, step = Kip848State, Kip848Steps
    reconciling_states = (state.STABLE, state.RELEASING, state.TAKING_OVER)
    all_but_reconciling = all_but(state, *reconciling_states)
    heartbeat_states = (state.JOINING, *reconciling_states, state.CLOSING)
    loss_events = (GenerationLost, MemberLost, SessionOver)

    yield Row((state.IDLE,), StartMembership, step.schedule_join, state.JOINING)
    yield Row((state.IDLE,), StopMembership, step.forget, state.LEFT)
    # Heartbeats and their outcomes.
    yield Row((state.JOINING,), GroupHeartbeatAnswered, step.handle_answer, state.STABLE, (state.TAKING_OVER,))
    yield Row(
        reconciling_states, GroupHeartbeatAnswered, step.handle_answer, None, (state.RELEASING, state.TAKING_OVER)
    )
    yield Row((state.CLOSING,), GroupHeartbeatAnswered, step.store_epoch)
    yield Row(heartbeat_states, (RetryLater, RebalanceCalled), step.retry)
    yield Row(heartbeat_states, CoordinatorGone, step.find_coordinator)
    yield Row((state.JOINING,), InstanceReleased, step.handle_instance_release)
    yield Row(heartbeat_states, InstanceHeld, step.wait_for_instance, None, (state.FAILED, state.LEAVING))
    yield Row((state.JOINING,), (GenerationLost, MemberLost), step.back_off)
    yield Row(all_but(state, state.CLOSING, state.LEAVING), Resubscribed, step.resubscribe)
    yield Row(state, SessionKnown, step.set_session_timeout)
    # Reconciliation with the target assignment.
    yield Row(reconciling_states, TopicNamesFound, step.add_names, None, (state.RELEASING, state.TAKING_OVER))
    yield Row(reconciling_states, PartitionsChanged, step.request_missing_names)
    yield Row(all_but_reconciling, PartitionsChanged, step.ignore)
    yield Row(
        (state.TAKING_OVER,), TakenOver, step.complete_takeover, state.STABLE, (state.RELEASING, state.TAKING_OVER)
    )
    yield Row((state.RELEASING,), Released, step.complete_release, state.STABLE, (state.RELEASING, state.TAKING_OVER))
    yield Row(reconciling_states, loss_events, step.report_loss, state.LOSING, (state.JOINING,))
    yield Row((state.LOSING,), Released, step.schedule_join, state.JOINING)
    # The application does not poll.
    yield Row((state.STABLE,), PollingStalled, step.leave_until_polled, state.STEPPING_AWAY)
    yield Row(all_but(state, state.STABLE), PollingStalled, step.ignore)
    yield Row((state.STEPPING_AWAY,), Released, step.ignore, state.AWAY)
    yield Row((state.STEPPING_AWAY,), PollingResumed, step.ignore, state.LOSING)
    yield Row((state.AWAY,), PollingResumed, step.schedule_join, state.JOINING)
    yield Row(all_but(state, state.STEPPING_AWAY, state.AWAY), PollingResumed, step.ignore)
    yield Row((state.AWAY,), StopMembership, step.forget, state.LEFT)
    # Stop and failure.
    yield Row((state.JOINING,), StopMembership, step.leave, state.LEAVING, (state.LEFT,))
    yield Row(reconciling_states, StopMembership, step.close, state.CLOSING)
    yield Row((state.LOSING, state.STEPPING_AWAY), StopMembership, step.ignore, state.CLOSING)
    yield Row((state.CLOSING,), loss_events, step.close_lost)
    yield Row((state.CLOSING,), Released, step.leave, state.LEAVING, (state.LEFT,))
    yield Row((state.LEAVING,), LeaveAnswered, step.forget, state.LEFT)
    yield Row((state.CLOSING, state.LEAVING), (StopMembership, Resubscribed), step.ignore)
    yield Row(all_but(state, state.LEAVING), MembershipFailed, step.fail, state.FAILED, (state.LEAVING,))
    yield Row((state.LEAVING,), MembershipFailed, step.report_failure)


TABLE = TransitionTable(_rows(), OVER)
"""Every transition of a KIP-848 member."""
