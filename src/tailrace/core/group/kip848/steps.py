"""Data of a KIP-848 group member, and the steps that the table of ``core.group.kip848.member`` refers to.

A member owns a partition from its TakeOver to its Released, and reports exactly these partitions in its heartbeats.
Nothing is added to a reported set before the heartbeat is answered, because the group may have assigned partitions that
were not in it to other members.
"""

from __future__ import annotations

from collections.abc import Callable
from uuid import UUID

from tailrace.core.backoff import Backoff
from tailrace.core.group.effects import (
    Effect,
    EmitGroupEvent,
    FailMembership,
    FindTopicNames,
    ForgetCoordinator,
    Partitions,
    Release,
    SendLeave,
    TakeOver,
)
from tailrace.core.group.events import (
    CoordinatorGone,
    GenerationLost,
    GroupEvent,
    GroupHeartbeatAnswered,
    Identity,
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
from tailrace.core.group.membership import MemberSettings
from tailrace.core.machine import StateMachine, TransitionTable
from tailrace.errors import ConfigurationError, RebalanceError
from tailrace.records import TopicPartition

__all__ = ["Kip848Steps"]

NO_PARTITIONS: TopicIdPartitions = frozenset()


class Kip848Steps(StateMachine[Kip848State, GroupEvent, Effect]):
    """Data and steps of one member.

    Args:
        table: transitions that refer to these steps.
        settings: settings of the membership.
        member_id: UUID made by the caller (KIP-1082); it never changes.
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
        self._beat = HeartbeatFields(settings, backoff, chance)
        self._names = TopicNames(backoff, chance)
        self._epoch = JOIN_EPOCH
        self._target: TopicIdPartitions = NO_PARTITIONS
        self._owned: TopicIdPartitions = NO_PARTITIONS
        self._ready: TopicIdPartitions = NO_PARTITIONS
        """Owned partitions whose takeover is complete."""
        self._work: TakeOver | Release | SendLeave | None = None
        """Effect about partitions, or the leave, whose outcome is awaited."""
        self._moving: TopicIdPartitions = NO_PARTITIONS
        """Partitions that ``_work`` is about."""
        self._is_introduced = False
        """True if the application has received an assignment since the last join or release."""

    @property
    def identity(self) -> Identity:
        """Identity of this member in the group."""
        return Identity(self._member_id, self._epoch, self._settings.instance_id)

    @property
    def owned(self) -> Partitions:
        """Assigned partitions, including those being taken over or released."""
        return self._named(self._owned)

    @property
    def is_member(self) -> bool:
        """True while the group counts this member, so that it may commit."""
        # A loss counts once: while it is being reported, there is no session to keep or to lose again.
        return self.state in ALIVE and self._epoch > 0

    # ---- steps -------------------------------------------------------------------------------------------------

    def schedule_join(self, _event: GroupEvent, now: float) -> None:
        """Join at the next timer call."""
        self._begin(now)

    def join_now(self, _event: GroupEvent, now: float) -> None:
        """Join at once: the group has released the instance id."""
        self._beat.is_held = False
        self._begin(now)

    def set_session_timeout(self, event: SessionKnown, _now: float) -> None:
        """Adopt the session timeout of the broker."""
        self._beat.session.session_timeout_s = event.timeout_s

    def resubscribe(self, event: Resubscribed, now: float) -> None:
        """Report the new subscription at once; the group decides about the assignment."""
        self._beat.subscribe(event.topics, now)

    def acknowledge(self, event: GroupHeartbeatAnswered, now: float) -> None:
        """Record an acknowledged heartbeat and its member epoch."""
        self._epoch = event.epoch
        self._beat.answered(event.interval_s, now)

    def handle_answer(self, event: GroupHeartbeatAnswered, now: float) -> Kip848State:
        """Record an acknowledged heartbeat, and go on towards a new target assignment if it brings one."""
        self.acknowledge(event, now)
        if event.assigned is not None:
            before = self._target
            self._target = frozenset((topic, n) for topic, numbers in event.assigned.items() for n in numbers)
            if before - self._target - self._owned:
                # Assigned and revoked before the takeover: the group waits for a report that it is not owned.
                self._beat.owned_changed(now)
        return self._reconcile(Kip848State.STABLE if self.state is Kip848State.JOINING else self.state)

    def add_names(self, event: TopicNamesFound, now: float) -> Kip848State:
        """Store names of topic ids; missing names are requested again later."""
        self._names.answered(event.names, now)
        return self._reconcile(self.state)

    def request_missing_names(self, _event: GroupEvent, _now: float) -> None:
        """Request missing topic names again, since cluster metadata has changed."""
        self._request_names(self._names.request_again(self._wanted_topics))

    def complete_takeover(self, _event: GroupEvent, now: float) -> Kip848State:
        """Mark the partitions of the takeover as ready, report them, and go on towards the target."""
        self._is_introduced = True
        self._ready |= self._moving
        return self._moved(now)

    def complete_release(self, _event: GroupEvent, now: float) -> Kip848State:
        """Report the released partitions and go on towards the target."""
        self._owned -= self._moving
        self._is_introduced = False
        return self._moved(now)

    def report_loss(self, event: GenerationLost | MemberLost | SessionOver, now: float) -> Kip848State | None:
        """Report the partitions as lost, then join again under the same member id."""
        if gone := self._forget(event):
            self._release(gone, is_lost=True, reason=event.reason)
            return None
        self._begin(now)
        return Kip848State.JOINING

    def step_away(self, event: PollingStalled, _now: float) -> None:
        """Leave the group because the application does not poll, and report the partitions as lost."""
        self._epoch = LEAVE_EPOCH if self._settings.instance_id is None else STATIC_LEAVE_EPOCH
        self._effects.append(SendLeave(self.identity, "the application does not poll"))
        self._effects.append(EmitGroupEvent(event.error))
        self._release(self._forget(event), is_lost=True, reason=str(event.error))

    def back_off(self, event: GroupEvent, now: float) -> None:
        """Join again later: the group may still have to expire the former membership."""
        self._forget(event)
        self._beat.is_held = False
        self._beat.failed(now)

    def retry(self, _event: GroupEvent, now: float) -> None:
        """Send a heartbeat soon, after a heartbeat or commit that failed; the session goes on."""
        self._beat.hasten_after_error(now)
        self._names.failed(now)

    def find_coordinator(self, event: CoordinatorGone, now: float) -> None:
        """Find the coordinator again; the membership goes on."""
        self._beat.failed(now)
        self._names.failed(now)
        self._effects.append(ForgetCoordinator(event.reason))

    def close(self, _event: GroupEvent, _now: float) -> None:
        """Release all partitions for good."""
        self._names.stop()
        self._release(self._owned, is_last=True, reason="the consumer stops")

    def close_lost(self, event: GroupEvent, _now: float) -> None:
        """Report the loss while closing: there is nothing to commit."""
        if self.is_member:
            self._release(self._forget(event), is_lost=True, is_last=True, reason="the membership was lost")

    def leave(self, event: GroupEvent, now: float) -> Kip848State | None:
        """Leave the group; a static member keeps its place unless ``leaves_on_stop`` is set."""
        self._owned = self._ready = NO_PARTITIONS
        self._beat.end()
        if self._beat.is_known and (self._settings.leaves_on_stop or self._settings.instance_id is not None):
            self._send_leave("the consumer stops")
            return None
        self.forget(event, now)
        return Kip848State.LEFT

    def forget(self, event: GroupEvent, _now: float) -> None:
        """Forget the membership."""
        self._forget(event)
        self._epoch, self._work = LEAVE_EPOCH, None

    def fail(self, event: MembershipFailed, _now: float) -> Kip848State | None:
        """Report the error and give up the partitions: joining again would not help."""
        self._release(self._forget(event), is_lost=True, is_last=True, reason=str(event.error))
        self._effects.append(FailMembership(event.error))
        is_own_fault = isinstance(event.error, RebalanceError | ConfigurationError)
        if not (is_own_fault and self._beat.is_known and self._settings.leaves_on_stop):
            return None
        # Only this member is at fault: the others need not wait until its session expires.
        self._send_leave("the consumer failed")
        return Kip848State.LEAVING

    def report_failure(self, event: MembershipFailed, _now: float) -> None:
        """Report an error that comes too late to change anything."""
        self._effects.append(FailMembership(event.error))

    # ---- inside ------------------------------------------------------------------------------------------------

    def _begin(self, now: float) -> None:
        self._work = None
        self._beat.begin(now)

    @property
    def _wanted_topics(self) -> frozenset[UUID]:
        return frozenset(topic for topic, _ in self._target)

    def _reconcile(self, state: Kip848State) -> Kip848State:
        """Go from ``state`` towards the target: release first, then take over partitions of named topics."""
        self._request_names(self._names.request(self._wanted_topics))
        if state is Kip848State.RELEASING:
            return state
        if revoked := self._owned - self._target:
            # This ends a takeover in progress; those of its partitions that are still assigned are taken over again.
            self._release(revoked, reason="the group assigns the partitions to other members")
            return Kip848State.RELEASING
        if state is Kip848State.TAKING_OVER:
            return state
        added = frozenset(one for one in self._target if one[0] in self._names.known) - self._ready
        is_news = bool(added) or not (self._is_introduced or self._names.in_flight)
        unconfirmed = self._beat.unconfirmed
        if not is_news or (unconfirmed is not None and not added <= unconfirmed):
            return state
        self._owned |= added
        self._moving = added
        protocol = self._settings.remote_assignor or "the broker's choice"
        self._do(TakeOver(self._named(added), self._named(self._ready), self.identity, protocol, is_leader=False))
        return Kip848State.TAKING_OVER

    def _release(
        self, partitions: TopicIdPartitions, *, is_lost: bool = False, is_last: bool = False, reason: str
    ) -> None:
        self._moving = partitions
        self._ready -= partitions
        self._do(Release(self._named(partitions), is_lost, is_last, reason))

    def _moved(self, now: float) -> Kip848State:
        self._work = None
        if self._moving:
            self._beat.owned_changed(now)
        return self._reconcile(Kip848State.STABLE)

    def _send_leave(self, reason: str) -> None:
        self._epoch = LEAVE_EPOCH if self._settings.leaves_on_stop else STATIC_LEAVE_EPOCH
        self._do(SendLeave(self.identity, reason))

    def _do(self, work: TakeOver | Release | SendLeave) -> None:
        """Emit ``work`` and await its outcome, and no other."""
        self._effects.append(work)
        self._work = work

    def _request_names(self, request: FindTopicNames | None) -> None:
        if request is not None:
            self._effects.append(request)

    def _forget(self, event: GroupEvent) -> TopicIdPartitions:
        """Forget the membership and return the partitions that it owned."""
        if isinstance(event, MemberLost):
            self._beat.is_known = self._beat.is_held = False
        self._beat.end()
        self._names.stop()
        self._epoch, self._is_introduced = JOIN_EPOCH, False
        gone, self._owned, self._ready, self._target = self._owned, NO_PARTITIONS, NO_PARTITIONS, NO_PARTITIONS
        return gone

    def _named(self, partitions: TopicIdPartitions) -> Partitions:
        return frozenset(TopicPartition(self._names.known[topic], n) for topic, n in partitions)
