"""Member of one group under KIP-848, where the broker assigns and the member reconciles: its transition table.

The heartbeat is the protocol: it joins (epoch 0), brings the target assignment and reports released partitions. One
heartbeat is in flight at a time; after one that was not answered the next repeats every field.

The outcome of an effect counts only while it is awaited: ``awaits`` decides for an effect, ``is_current`` for a commit,
whose epoch must be the current one of a member.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from tailrace.core.group.effects import Effect
from tailrace.core.group.events import (
    CoordinatorGone,
    GenerationLost,
    GroupEvent,
    GroupHeartbeatAnswered,
    Identity,
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
    """Member of a KIP-848 group; see ``core.group.membership.Membership`` for how it is driven.

    Args:
        settings: settings of the membership.
        member_id: UUID made by the caller (KIP-1082); it never changes.
        chance: returns a number in [0, 1) for jitter.
    """

    def __init__(self, settings: MemberSettings, member_id: str, chance: Callable[[], float]) -> None:
        super().__init__(TABLE, settings, member_id, chance)

    def __repr__(self) -> str:
        return f"<Kip848Member {self.identity.member_id} of {self._settings.group_id} {self.state}>"

    def is_current(self, identity: Identity) -> bool:
        """Return True if an error that answers a commit sent as ``identity`` still matters."""
        return identity == self.identity and self.is_member

    def awaits(self, effect: Effect) -> bool:
        """Return True if the outcome of ``effect`` still matters."""
        return any(effect is one for one in (self._beat.sent, self._names.in_flight, self._work))

    def heartbeat_age_s(self, now: float) -> float:
        """Return the seconds since the last acknowledged heartbeat was sent."""
        return self._beat.session.age_s(now)

    def receive(self, event: GroupEvent, now: float) -> None:
        """Handle an event.

        Raises:
            ValueError: the event cannot happen in this state, or answers a request that was not sent; nothing has
                changed.
        """
        if not self.is_over and not self._is_expected(event):
            raise ValueError(f"{type(event).__name__} cannot happen while {self.state}")
        super().receive(event, now)

    def handle_timer(self, now: float) -> None:
        """Expire the session, or send the heartbeat or the request for topic names that is due."""
        if self.is_member and self._beat.session.session_expired(now):
            self.receive(SessionOver(f"no heartbeat was acknowledged for {self.heartbeat_age_s(now):.1f} s"), now)
        if (at := self._names.next_at) is not None and now >= at:
            self._request_names(self._names.request_again(self._wanted_topics))
        if self._sends_heartbeats and (at := self._beat.next_at) is not None and now >= at:
            self._effects.append(self._next_heartbeat(now))

    def next_deadline(self) -> float | None:
        """Return the time at which ``handle_timer`` is due; None for never."""
        times = [self._names.next_at, self._beat.next_at if self._sends_heartbeats else None]
        times += [self._beat.session.expires_at] if self.is_member else []
        return min((at for at in times if at is not None), default=None)

    @property
    def _sends_heartbeats(self) -> bool:
        return self.state is Kip848State.JOINING or self.is_member

    def _is_expected(self, event: GroupEvent) -> bool:
        if isinstance(event, GroupHeartbeatAnswered | InstanceReleased):
            return self._beat.sent is not None
        return self._names.in_flight is not None or not isinstance(event, TopicNamesFound)

    def _next_heartbeat(self, now: float) -> Effect:
        # A static member's join is refused while the group still holds its instance id for the former membership:
        # after an answer that was lost, or a silence that was too long for the member and not for the broker.
        if self.state is Kip848State.JOINING and self._settings.instance_id is not None and self._beat.is_held:
            return self._beat.release_instance(
                Identity(self._member_id, STATIC_LEAVE_EPOCH, self._settings.instance_id)
            )
        return self._beat.next_heartbeat(self.identity, self._owned, now)


def _rows() -> Iterator[Row[Any, Kip848State, Any]]:
    on, do = Kip848State, Kip848Steps
    reconciling = (on.STABLE, on.RELEASING, on.TAKING_OVER)
    not_reconciling = all_but(on, *reconciling)
    speaking = (on.JOINING, *reconciling, on.CLOSING)
    lost = (GenerationLost, MemberLost, SessionOver)

    yield Row((on.IDLE,), StartMembership, do.schedule_join, on.JOINING)
    yield Row((on.IDLE,), StopMembership, do.forget, on.LEFT)
    # Heartbeats and their outcomes.
    yield Row((on.JOINING,), GroupHeartbeatAnswered, do.handle_answer, on.STABLE, (on.TAKING_OVER,))
    yield Row(reconciling, GroupHeartbeatAnswered, do.handle_answer, None, (on.RELEASING, on.TAKING_OVER))
    yield Row((on.CLOSING,), GroupHeartbeatAnswered, do.acknowledge)
    yield Row(speaking, (RetryLater, RebalanceCalled), do.retry)
    yield Row(speaking, CoordinatorGone, do.find_coordinator)
    yield Row((on.JOINING,), InstanceReleased, do.join_now)
    yield Row((on.JOINING,), (GenerationLost, MemberLost), do.back_off)
    yield Row(all_but(on, on.CLOSING, on.LEAVING), Resubscribed, do.resubscribe)
    yield Row(on, SessionKnown, do.set_session_timeout)
    # Towards the target assignment.
    yield Row(reconciling, TopicNamesFound, do.add_names, None, (on.RELEASING, on.TAKING_OVER))
    yield Row(reconciling, PartitionsChanged, do.request_missing_names)
    yield Row(not_reconciling, PartitionsChanged, do.ignore)
    yield Row((on.TAKING_OVER,), TakenOver, do.complete_takeover, on.STABLE, (on.RELEASING, on.TAKING_OVER))
    yield Row((on.RELEASING,), Released, do.complete_release, on.STABLE, (on.RELEASING, on.TAKING_OVER))
    yield Row(reconciling, lost, do.report_loss, on.LOSING, (on.JOINING,))
    yield Row((on.LOSING,), Released, do.schedule_join, on.JOINING)
    # The application does not poll.
    yield Row((on.STABLE,), PollingStalled, do.step_away, on.STEPPING_AWAY)
    yield Row(all_but(on, on.STABLE), PollingStalled, do.ignore)
    yield Row((on.STEPPING_AWAY,), Released, do.ignore, on.AWAY)
    yield Row((on.STEPPING_AWAY,), PollingResumed, do.ignore, on.LOSING)
    yield Row((on.AWAY,), PollingResumed, do.schedule_join, on.JOINING)
    yield Row(all_but(on, on.STEPPING_AWAY, on.AWAY), PollingResumed, do.ignore)
    yield Row((on.AWAY,), StopMembership, do.forget, on.LEFT)
    # The end.
    yield Row((on.JOINING,), StopMembership, do.leave, on.LEAVING, (on.LEFT,))
    yield Row(reconciling, StopMembership, do.close, on.CLOSING)
    yield Row((on.LOSING, on.STEPPING_AWAY), StopMembership, do.ignore, on.CLOSING)
    yield Row((on.CLOSING,), lost, do.close_lost)
    yield Row((on.CLOSING,), Released, do.leave, on.LEAVING, (on.LEFT,))
    yield Row((on.LEAVING,), LeaveAnswered, do.forget, on.LEFT)
    yield Row((on.CLOSING, on.LEAVING), (StopMembership, Resubscribed), do.ignore)
    yield Row(all_but(on, on.LEAVING), MembershipFailed, do.fail, on.FAILED, (on.LEAVING,))
    yield Row((on.LEAVING,), MembershipFailed, do.report_failure)


TABLE = TransitionTable(_rows(), OVER)
"""Every transition of a KIP-848 member."""
