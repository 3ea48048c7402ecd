"""Data of a KIP-848 group member, and the steps of the transitions that ``core.group.kip848.member`` lists.

The *target assignment* is the set of partitions that the group assigns to the member. The member *reconciles*: it
releases owned partitions that are not in the target (effect ``Release``, event ``Released`` at the end), and then takes
over the others of the target (effect ``TakeOver``, event ``TakenOver`` at the end). A member owns a partition from the
effect ``TakeOver`` to the event ``Released`` or the loss of the membership.

Heartbeats report the owned partitions. Until a heartbeat that reports them is answered, the member takes over only
partitions that this heartbeat lists, because the group may assign any other partition to another member.
"""

from __future__ import annotations

from collections.abc import Callable
from uuid import UUID

from tailrace.core.backoff import Backoff
from tailrace.core.group.effects import (
    Effect,
    FailMembership,
    FindTopicNames,
    ForgetCoordinator,
    Partitions,
    Release,
    ReportGroupError,
    SendLeave,
    TakeOver,
)
from tailrace.core.group.error_reactions import Identity
from tailrace.core.group.events import (
    CoordinatorGone,
    GenerationLost,
    GroupEvent,
    GroupHeartbeatAnswered,
    InstanceHeld,
    MemberLost,
    MembershipFailed,
    PollingStalled,
    Resubscribed,
    SessionKnown,
    SessionOver,
    TopicNamesFound,
)
from tailrace.core.group.kip848.heartbeat_fields import HeartbeatFields, TopicIdPartitions
from tailrace.core.group.kip848.states import ALIVE, JOIN_EPOCH, LEAVE_EPOCH, STATIC_LEAVE_EPOCH, Kip848State
from tailrace.core.group.kip848.topic_names import TopicNames
from tailrace.core.group.membership import MemberSettings, leaves_after
from tailrace.core.machine import StateMachine, TransitionTable
from tailrace.records import TopicPartition

__all__ = ["Kip848Steps"]

NO_PARTITIONS: TopicIdPartitions = frozenset()

_UNKNOWN_SESSION_S = 60.0
"""Longest session that a broker configures by default (``group.consumer.max.session.timeout.ms``)."""
_EXPIRY_GRACE_S = 2.0
"""Time allowed for the coordinator to remove a member whose session has ended."""


class Kip848Steps(StateMachine[Kip848State, GroupEvent, Effect]):
    """Data of one member, and the steps of its transitions.

    Args:
        table: transitions of the member.
        settings: settings of the membership.
        member_id: UUID that the caller generates (KIP-1082); it never changes.
        chance: returns a number in [0, 1) for jitter.
    """

    def __init__(
        self,
        table: TransitionTable[Kip848State],
        settings: MemberSettings,
        member_id: str,
        chance: Callable[[], float],
    ) -> None:
        super().__init__(table, Kip848State.IDLE)
        self._settings = settings
        self._member_id = member_id
        backoff = Backoff(settings.retry_first_s, settings.retry_longest_s)
        self._heartbeats = HeartbeatFields(settings, backoff, chance)
        self._names = TopicNames(backoff, chance)
        self._epoch = JOIN_EPOCH
        self._target: TopicIdPartitions = NO_PARTITIONS
        """Target assignment: the partitions that the group has last assigned to this member."""
        self._owned: TopicIdPartitions = NO_PARTITIONS
        self._ready: TopicIdPartitions = NO_PARTITIONS
        """Owned partitions whose takeover is complete."""
        self._awaited: TakeOver | Release | SendLeave | None = None
        """Takeover, release or leave whose outcome is awaited; None if there is none."""
        self._awaited_partitions: TopicIdPartitions = NO_PARTITIONS
        """Partitions of ``_awaited``, if it is a takeover or a release."""
        self._has_reported_assignment = False
        """True if a takeover, which calls the application's callbacks, has ended since the last join or release."""
        self._is_session_known = False
        """True if the session timeout is the one that the broker has for the group."""
        self._instance_held_since: float | None = None
        """Time at which this coordinator first refused to join because of the instance id; None if it has not."""

    @property
    def identity(self) -> Identity:
        """Identity of this member in the group."""
        return Identity(self._member_id, self._epoch, self._settings.instance_id)

    @property
    def owned(self) -> Partitions:
        """Assigned partitions, including those being taken over or released."""
        return self._with_topic_names(self._owned)

    @property
    def is_member(self) -> bool:
        """True while the group has this member, so that it may commit and has to send heartbeats."""
        # A member that lost its membership is also in state CLOSING, if it stops while the loss is being reported. Its
        # ``_epoch`` is 0 then.
        return self.state in ALIVE and self._epoch > 0

    # ---- steps -------------------------------------------------------------------------------------------------

    def schedule_join(self, _event: GroupEvent, now: float) -> None:
        """Schedule the heartbeat that joins the group for ``now``."""
        self._schedule_join(now)

    def handle_instance_release(self, _event: GroupEvent, now: float) -> None:
        """Schedule the heartbeat that joins the group for ``now``, as the group no longer holds the instance id."""
        self._heartbeats.is_instance_held = False
        self._schedule_join(now)

    def set_session_timeout(self, event: SessionKnown, _now: float) -> None:
        """Use the session timeout that the broker has for the group."""
        self._is_session_known = True
        self._heartbeats.session.session_timeout_s = event.timeout_s

    def resubscribe(self, event: Resubscribed, now: float) -> None:
        """Report the new subscription in a heartbeat; the owned partitions change only with the target assignment."""
        self._heartbeats.subscribe(event.topics, now)

    def store_epoch(self, event: GroupHeartbeatAnswered, now: float) -> None:
        """Store the member epoch of the answer, and schedule the next heartbeat."""
        self._instance_held_since = None
        self._epoch = event.epoch
        self._heartbeats.note_answer(event.interval_s, now)

    def handle_answer(self, event: GroupHeartbeatAnswered, now: float) -> Kip848State:
        """Store the member epoch, and the target assignment if the answer contains it, and reconcile."""
        self.store_epoch(event, now)
        if event.assigned is not None:
            before = self._target
            self._target = frozenset((topic, n) for topic, numbers in event.assigned.items() for n in numbers)
            if before - self._target - self._owned:
                # A partition was revoked before the member took it over. The group waits for a heartbeat whose owned
                # partitions do not contain it.
                self._heartbeats.report_owned(now)
        return self._reconcile(Kip848State.STABLE if self.state is Kip848State.JOINING else self.state)

    def add_names(self, event: TopicNamesFound, now: float) -> Kip848State:
        """Store the names of topic ids and reconcile; missing names are requested again later."""
        self._names.note_answer(event.names, now)
        return self._reconcile(self.state)

    def request_missing_names(self, _event: GroupEvent, _now: float) -> None:
        """Request missing topic names again, because cluster metadata has changed."""
        self._request_names(self._names.request_again(self._target_topics))

    def complete_takeover(self, _event: GroupEvent, now: float) -> Kip848State:
        """Mark the partitions of the takeover as ready, schedule a heartbeat that reports them, and reconcile."""
        self._has_reported_assignment = True
        self._ready |= self._awaited_partitions
        return self._report_and_reconcile(now)

    def complete_release(self, _event: GroupEvent, now: float) -> Kip848State:
        """Remove the released partitions, schedule a heartbeat that reports the remaining ones, and reconcile."""
        self._owned -= self._awaited_partitions
        self._has_reported_assignment = False
        return self._report_and_reconcile(now)

    def report_loss(self, event: GenerationLost | MemberLost | SessionOver, now: float) -> Kip848State | None:
        """Report the owned partitions as lost, or join again if there are none; the member id stays the same."""
        if lost := self._forget(event):
            self._release(lost, is_lost=True, reason=event.reason)
            return None
        self._schedule_join(now)
        return Kip848State.JOINING

    def leave_until_polled(self, event: PollingStalled, _now: float) -> None:
        """Leave the group because the application does not poll, and report the partitions as lost."""
        self._epoch = LEAVE_EPOCH if self._settings.instance_id is None else STATIC_LEAVE_EPOCH
        self._effects.append(SendLeave(self.identity, "the application does not poll"))
        self._effects.append(ReportGroupError(event.error))
        self._release(self._forget(event), is_lost=True, reason=str(event.error))

    def back_off(self, event: GroupEvent, now: float) -> None:
        """Join again after a pause, because the group may not have removed the former membership yet."""
        self._forget(event)
        self._heartbeats.is_instance_held = False
        self._heartbeats.note_failure(now)

    def wait_for_instance(self, event: InstanceHeld, now: float) -> Kip848State | None:
        """Join again after a pause, because the member with this instance id may have died.

        A dead member holds the instance id until its session ends. If the id is held for longer, the other member is
        alive, and this membership fails.
        """
        if self._instance_held_since is None:
            self._instance_held_since = now
        session_s = self._heartbeats.session.session_timeout_s
        limit_s = (session_s if self._is_session_known else max(session_s, _UNKNOWN_SESSION_S)) + _EXPIRY_GRACE_S
        if self.state is not Kip848State.JOINING or now >= self._instance_held_since + limit_s:
            return self.fail(MembershipFailed(event.error), now) or Kip848State.FAILED
        self._heartbeats.is_known = False
        self.back_off(event, now)
        return None

    def retry(self, _event: GroupEvent, now: float) -> None:
        """Schedule a heartbeat soon after a failed request, and repeat a request for topic names that is in flight."""
        self._heartbeats.hasten_after_error(now)
        self._names.note_failure(now)

    def find_coordinator(self, event: CoordinatorGone, now: float) -> None:
        """Look up the coordinator again; repeat the heartbeat, and a request for topic names that is in flight."""
        self._instance_held_since = None  # Another coordinator restarts all sessions.
        self._heartbeats.note_failure(now)
        self._names.note_failure(now)
        self._effects.append(ForgetCoordinator(event.reason))

    def close(self, _event: GroupEvent, _now: float) -> None:
        """Release all partitions, because the consumer stops."""
        self._names.stop()
        self._release(self._owned, is_last=True, reason="the consumer stops")

    def close_lost(self, event: GroupEvent, _now: float) -> None:
        """Report the partitions as lost instead of releasing them, because nothing can be committed any more.

        Do nothing if a loss is already being reported.
        """
        if self.is_member:
            self._release(self._forget(event), is_lost=True, is_last=True, reason="the membership was lost")

    def leave(self, event: GroupEvent, now: float) -> Kip848State | None:
        """Leave the group.

        Without ``leaves_on_stop``, the leave of a static member keeps its assignment, and other members send no leave.
        """
        self._owned = self._ready = NO_PARTITIONS
        self._heartbeats.ignore_answer()
        if self._heartbeats.is_known and (self._settings.leaves_on_stop or self._settings.instance_id is not None):
            self._send_leave("the consumer stops")
            return None
        self.forget(event, now)
        return Kip848State.LEFT

    def forget(self, event: GroupEvent, _now: float) -> None:
        """Forget the membership; no request is sent."""
        self._forget(event)
        self._epoch, self._awaited = LEAVE_EPOCH, None

    def fail(self, event: MembershipFailed, _now: float) -> Kip848State | None:
        """Report the error, and the partitions as lost.

        With ``leaves_on_stop``, the member also leaves the group, unless the error prevents it.
        """
        self._release(self._forget(event), is_lost=True, is_last=True, reason=str(event.error))
        self._effects.append(FailMembership(event.error))
        if not (leaves_after(event.error) and self._heartbeats.is_known and self._settings.leaves_on_stop):
            return None
        self._send_leave("the consumer failed")
        return Kip848State.LEAVING

    def report_failure(self, event: MembershipFailed, _now: float) -> None:
        """Report the error of a callback that ended after the leave was sent."""
        self._effects.append(FailMembership(event.error))

    # ---- inside ------------------------------------------------------------------------------------------------

    def _schedule_join(self, now: float) -> None:
        self._awaited = None
        self._heartbeats.restart(now)

    @property
    def _target_topics(self) -> frozenset[UUID]:
        return frozenset(topic for topic, _ in self._target)

    def _reconcile(self, state: Kip848State) -> Kip848State:
        """Release or take over partitions to match the target assignment, and return the next state.

        The member releases partitions first. It takes over only partitions whose topic names are known.
        """
        self._request_names(self._names.request(self._target_topics))
        if state is Kip848State.RELEASING:
            return state
        if revoked := self._owned - self._target:
            # The release ends a takeover in progress, whose partitions are taken over again later if still assigned.
            self._release(revoked, reason="the group assigns the partitions to other members")
            return Kip848State.RELEASING
        if state is Kip848State.TAKING_OVER:
            return state
        added = frozenset(one for one in self._target if one[0] in self._names.known) - self._ready
        # A takeover without partitions reports to the application that the member has joined.
        should_report = bool(added) or not (self._has_reported_assignment or self._names.in_flight)
        unconfirmed = self._heartbeats.unconfirmed
        if not should_report or (unconfirmed is not None and not added <= unconfirmed):
            return state
        self._owned |= added
        self._awaited_partitions = added
        protocol = self._settings.remote_assignor or "the broker's choice"
        self._emit_awaited(
            TakeOver(
                self._with_topic_names(added),
                self._with_topic_names(self._ready),
                self.identity,
                protocol,
                is_leader=False,
                topic_ids={self._names.known[topic]: topic for topic, _ in added},
            )
        )
        return Kip848State.TAKING_OVER

    def _release(
        self, partitions: TopicIdPartitions, *, is_lost: bool = False, is_last: bool = False, reason: str
    ) -> None:
        self._awaited_partitions = partitions
        self._ready -= partitions
        self._emit_awaited(Release(self._with_topic_names(partitions), is_lost, is_last, reason))

    def _report_and_reconcile(self, now: float) -> Kip848State:
        self._awaited = None
        if self._awaited_partitions:
            self._heartbeats.report_owned(now)
        return self._reconcile(Kip848State.STABLE)

    def _send_leave(self, reason: str) -> None:
        self._epoch = LEAVE_EPOCH if self._settings.leaves_on_stop else STATIC_LEAVE_EPOCH
        self._emit_awaited(SendLeave(self.identity, reason))

    def _emit_awaited(self, effect: TakeOver | Release | SendLeave) -> None:
        """Emit ``effect`` and await its outcome, instead of the outcome awaited so far."""
        self._effects.append(effect)
        self._awaited = effect

    def _request_names(self, request: FindTopicNames | None) -> None:
        if request is not None:
            self._effects.append(request)

    def _forget(self, event: GroupEvent) -> TopicIdPartitions:
        """Forget the membership and return the partitions that the member owned."""
        if isinstance(event, MemberLost):
            self._heartbeats.is_known = self._heartbeats.is_instance_held = False
        self._heartbeats.ignore_answer()
        self._names.stop()
        self._epoch, self._has_reported_assignment = JOIN_EPOCH, False
        lost, self._owned, self._ready, self._target = self._owned, NO_PARTITIONS, NO_PARTITIONS, NO_PARTITIONS
        return lost

    def _with_topic_names(self, partitions: TopicIdPartitions) -> Partitions:
        return frozenset(TopicPartition(self._names.known[topic], n) for topic, n in partitions)
