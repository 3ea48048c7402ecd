"""Member of one group under KIP-848: states, steps and transition table. Pure: no clock, IO or logging.

The broker computes the target assignment, and the member reconciles its partitions with it: the member releases and
takes over partitions until it owns exactly the partitions of the target. The protocol consists of heartbeats: a
heartbeat with epoch 0 joins the group, the answers contain the target assignment, and later heartbeats report the owned
partitions. One heartbeat is in flight at a time. If a heartbeat is not answered, the next heartbeat contains every
field.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from enum import StrEnum
from typing import Any, TypeAlias
from uuid import UUID

from tailrace.consumer.group.group_machine import (
    CoordinatorGone,
    Effect,
    FindTopicNames,
    ForgetCoordinator,
    GenerationLost,
    GroupEvent,
    GroupMachine,
    Heartbeat,
    HeartbeatAnswered,
    InstanceHeld,
    InstanceReleased,
    LeaveAnswered,
    MemberLost,
    MemberSettings,
    MembershipFailed,
    MetadataRefreshed,
    Partitions,
    PollingResumed,
    PollingStalled,
    RebalanceCalled,
    Release,
    Released,
    ReportGroupError,
    Resubscribed,
    RetryLater,
    SendGroupHeartbeat,
    SendLeave,
    SessionKnown,
    SessionOver,
    StartMembership,
    StopMembership,
    TakenOver,
    TakeOver,
    TopicNamesFound,
    leaves_after,
)
from tailrace.core.backoff import Backoff
from tailrace.core.group_requests import Identity
from tailrace.core.machine import Row, TransitionTable, all_but
from tailrace.records import TopicPartition

__all__ = [
    "ALIVE",
    "JOIN_EPOCH",
    "LEAVE_EPOCH",
    "OVER",
    "STATIC_LEAVE_EPOCH",
    "TABLE",
    "HeartbeatFields",
    "Kip848Member",
    "Kip848State",
    "TopicIdPartitions",
    "TopicNames",
]

# ---- states of a member under KIP-848 --------------------------------------------------------------------------------

JOIN_EPOCH, LEAVE_EPOCH, STATIC_LEAVE_EPOCH = 0, -1, -2
"""Epochs in heartbeats that join or leave (KIP-848). ``STATIC_LEAVE_EPOCH`` keeps the assignment of a static member."""


class Kip848State(StrEnum):
    """State of a KIP-848 member."""

    IDLE = "idle"
    """The membership has not started yet."""
    JOINING = "joining"
    """The coordinator has not answered the first heartbeat yet; the member owns no partition."""
    STABLE = "stable"
    """The member is in the group, and no partitions are being taken over or released."""
    RELEASING = "releasing"
    """Partitions are being released; a heartbeat reports the remaining partitions afterwards."""
    TAKING_OVER = "taking over"
    """Start positions of the assigned partitions are being looked up, and the application's callbacks are called."""
    LOSING = "losing"
    """All partitions are being reported as lost; a join follows."""
    STEPPING_AWAY = "stepping away"
    """The application does not poll, so the member has left; all partitions are being reported as lost."""
    AWAY = "away"
    """The member is out of the group until the application polls."""
    CLOSING = "closing"
    """All partitions are being released, or reported as lost; a leave follows."""
    LEAVING = "leaving"
    """The heartbeat that leaves the group was sent and is not answered yet."""
    LEFT = "left"
    FAILED = "failed"


ALIVE = frozenset({Kip848State.STABLE, Kip848State.RELEASING, Kip848State.TAKING_OVER, Kip848State.CLOSING})
"""States in which the group has the member, unless the membership was lost while closing."""

OVER = frozenset({Kip848State.LEFT, Kip848State.FAILED})
"""Final states."""


# ---- member of a KIP-848 group: its data and the steps of its transitions --------------------------------------------

TopicIdPartitions: TypeAlias = frozenset[tuple[UUID, int]]
"""Pairs of a topic id and a partition number; a recreated topic has another id."""
NO_PARTITIONS: TopicIdPartitions = frozenset()

_UNKNOWN_SESSION_S = 60.0
"""Longest session that a broker configures by default (``group.consumer.max.session.timeout.ms``)."""
_EXPIRY_GRACE_S = 2.0
"""Time allowed for the coordinator to remove a member whose session has ended."""


class Kip848Member(GroupMachine[Kip848State]):
    """Member of a KIP-848 group.

    Args:
        settings: settings of the membership.
        member_id: UUID that the caller generates (KIP-1082); it never changes.
        chance: returns a number in [0, 1) for jitter.
    """

    def __init__(self, settings: MemberSettings, member_id: str, chance: Callable[[], float]) -> None:
        super().__init__(TABLE, Kip848State.IDLE, settings, chance)
        self._member_id = member_id
        self._heartbeats = HeartbeatFields(settings, self._backoff, chance)
        self._names = TopicNames(self._backoff, chance)
        self._epoch = JOIN_EPOCH
        self._target: TopicIdPartitions = NO_PARTITIONS
        """Target assignment: the partitions that the group has last assigned to this member."""
        self._owned: TopicIdPartitions = NO_PARTITIONS
        self._ready: TopicIdPartitions = NO_PARTITIONS
        """Owned partitions whose takeover is complete."""
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
        return Identity(self._member_id, self._epoch, self._settings.instance_id)

    @property
    def owned(self) -> Partitions:
        """Assigned partitions, including those being taken over or released."""
        return self._with_topic_names(self._owned)

    @property
    def is_member(self) -> bool:
        # A member that lost its membership is also in state CLOSING, if it stops while the loss is being reported. Its
        # ``_epoch`` is 0 then.
        return self.state in ALIVE and self._epoch > 0

    # ---- driven by the membership's loop -------------------------------------------------------------------------

    def is_current(self, identity: Identity) -> bool:
        return identity == self.identity and self.is_member

    def awaits(self, effect: Effect) -> bool:
        return any(effect is one for one in (self._heartbeats.in_flight, self._names.in_flight, self._awaited))

    def heartbeat_age_s(self, now: float) -> float:
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

    def _is_expected(self, event: GroupEvent) -> bool:
        if isinstance(event, HeartbeatAnswered | InstanceHeld | InstanceReleased):
            return self._heartbeats.in_flight is not None
        return self._names.in_flight is not None or not isinstance(event, TopicNamesFound)

    def handle_timer(self, now: float) -> None:
        if self.is_member and self._heartbeats.session.session_expired(now):
            self.receive(SessionOver(f"no heartbeat was acknowledged for {self.heartbeat_age_s(now):.1f} s"), now)
        if (at := self._names.next_at) is not None and now >= at:
            self._request_names(is_repeated=True)
        if self._sends_heartbeats and (at := self._heartbeats.next_at) is not None and now >= at:
            self._effects.append(self._next_heartbeat(now))

    def next_deadline(self) -> float | None:
        times = [self._names.next_at, self._heartbeats.next_at if self._sends_heartbeats else None]
        times += [self._heartbeats.session.expires_at] if self.is_member else []
        return min((at for at in times if at is not None), default=None)

    @property
    def _sends_heartbeats(self) -> bool:
        return self.state is Kip848State.JOINING or self.is_member

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

    # ---- steps: heartbeats and their answers ---------------------------------------------------------------------

    def schedule_join(self, _event: GroupEvent, now: float) -> None:
        """Schedule the heartbeat that joins the group for ``now``."""
        self._awaited = None
        self._heartbeats.restart(now)

    def join_after_instance_release(self, event: GroupEvent, now: float) -> None:
        """Schedule the heartbeat that joins the group for ``now``, as the group no longer holds the instance id."""
        self._heartbeats.is_instance_held = False
        self.schedule_join(event, now)

    def resubscribe(self, event: Resubscribed, now: float) -> None:
        """Report the new subscription in a heartbeat; the owned partitions change only with the target assignment."""
        self._heartbeats.subscribe(event.topics, now)

    def set_session_timeout(self, event: SessionKnown, _now: float) -> None:
        """Use the session timeout that the broker has for the group."""
        self._is_session_known = True
        self._heartbeats.session.session_timeout_s = event.timeout_s

    def store_epoch(self, event: HeartbeatAnswered, now: float) -> None:
        """Store the member epoch of the answer, and schedule the next heartbeat."""
        self._instance_held_since = None
        self._epoch = event.epoch
        self._heartbeats.note_answer(event.interval_s, now)

    def handle_answer(self, event: HeartbeatAnswered, now: float) -> Kip848State:
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
            return self.fail(MembershipFailed(event.error), now)
        self._heartbeats.is_known = False
        self.back_off(event, now)
        return None

    # ---- steps: reconciliation with the target assignment --------------------------------------------------------

    def add_names(self, event: TopicNamesFound, now: float) -> Kip848State:
        """Store the names of topic ids and reconcile; missing names are requested again later."""
        self._names.note_answer(event.names, now)
        return self._reconcile(self.state)

    def request_missing_names(self, _event: GroupEvent, _now: float) -> None:
        """Request missing topic names again, because cluster metadata has changed."""
        self._request_names(is_repeated=True)

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

    def _report_and_reconcile(self, now: float) -> Kip848State:
        self._awaited = None
        if self._awaited_partitions:
            self._heartbeats.report_owned(now)
        return self._reconcile(Kip848State.STABLE)

    def _reconcile(self, state: Kip848State) -> Kip848State:
        """Release or take over partitions to match the target assignment, and return the next state.

        The member releases partitions first. It takes over only partitions whose topic names are known.
        """
        self._request_names()
        if state is Kip848State.RELEASING:
            return state
        if revoked := self._owned - self._target:
            # The release ends a takeover in progress, whose partitions are taken over again later if still assigned.
            self._release(revoked, reason="the group assigns the partitions to other members")
            return Kip848State.RELEASING
        if state is Kip848State.TAKING_OVER:
            return state
        added = frozenset(one for one in self._target if self._is_subscribed(one[0])) - self._ready
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

    def _is_subscribed(self, topic: UUID) -> bool:
        """Return True if the name of a topic is known, and the member subscribes to the topic."""
        name = self._names.known.get(topic)
        return name is not None and (self._settings.pattern is not None or name in self._heartbeats.topics)

    def _release(
        self, partitions: TopicIdPartitions, *, is_lost: bool = False, is_last: bool = False, reason: str
    ) -> None:
        self._awaited_partitions = partitions
        self._ready -= partitions
        self._emit_awaited(Release(self._with_topic_names(partitions), is_lost, is_last, reason))

    def _request_names(self, *, is_repeated: bool = False) -> None:
        """Request missing names of the target's topics; if ``is_repeated``, also those that the last answer lacked."""
        topics = frozenset(topic for topic, _ in self._target)
        if (request := self._names.request(topics, is_repeated=is_repeated)) is not None:
            self._effects.append(request)

    def _with_topic_names(self, partitions: TopicIdPartitions) -> Partitions:
        return frozenset(TopicPartition(self._names.known[topic], n) for topic, n in partitions)

    # ---- steps: lost memberships, and an application that does not poll ------------------------------------------

    def report_loss(self, event: GenerationLost | MemberLost | SessionOver, now: float) -> Kip848State | None:
        """Report the owned partitions as lost, or join again if there are none; the member id stays the same."""
        if lost := self._forget(event):
            self._release(lost, is_lost=True, reason=event.reason)
            return None
        self.schedule_join(event, now)
        return Kip848State.JOINING

    def leave_until_polled(self, event: PollingStalled, _now: float) -> None:
        """Leave the group because the application does not poll, and report the partitions as lost."""
        returns = self._settings.instance_id is not None and not self._settings.leaves_on_stop
        self._epoch = STATIC_LEAVE_EPOCH if returns else LEAVE_EPOCH
        self._effects.append(SendLeave(self.identity, "the application does not poll"))
        self._effects.append(ReportGroupError(event.error, is_fatal=False))
        self._release(self._forget(event), is_lost=True, reason=str(event.error))

    def _forget(self, event: GroupEvent) -> TopicIdPartitions:
        """Forget the membership and return the partitions that the member owned."""
        if isinstance(event, MemberLost):
            self._heartbeats.is_known = self._heartbeats.is_instance_held = False
        self._heartbeats.ignore_answer()
        self._names.stop()
        self._epoch, self._has_reported_assignment = JOIN_EPOCH, False
        lost, self._owned, self._ready, self._target = self._owned, NO_PARTITIONS, NO_PARTITIONS, NO_PARTITIONS
        return lost

    # ---- steps: stop and failure ---------------------------------------------------------------------------------

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

    def fail(self, event: MembershipFailed, _now: float) -> Kip848State:
        """Report the error, and the partitions as lost; then leave the group, unless the error prevents a leave."""
        self._release(self._forget(event), is_lost=True, is_last=True, reason=str(event.error))
        self._effects.append(ReportGroupError(event.error, is_fatal=True))
        if not (leaves_after(event.error) and self._heartbeats.is_known and self._settings.leaves_on_stop):
            return Kip848State.FAILED
        self._send_leave("the consumer failed")
        return Kip848State.LEAVING

    def _send_leave(self, reason: str) -> None:
        self._epoch = LEAVE_EPOCH if self._settings.leaves_on_stop else STATIC_LEAVE_EPOCH
        self._emit_awaited(SendLeave(self.identity, reason))


def _rows() -> Iterator[Row[Any, Kip848State, Any]]:
    state, step = Kip848State, Kip848Member
    reconciling_states = (state.STABLE, state.RELEASING, state.TAKING_OVER)
    all_but_reconciling = all_but(state, *reconciling_states)
    heartbeat_states = (state.JOINING, *reconciling_states, state.CLOSING)
    loss_events = (GenerationLost, MemberLost, SessionOver)

    yield Row((state.IDLE,), StartMembership, step.schedule_join, state.JOINING)
    yield Row((state.IDLE,), StopMembership, step.forget, state.LEFT)
    # Heartbeats and their outcomes.
    yield Row((state.JOINING,), HeartbeatAnswered, step.handle_answer, state.STABLE, (state.TAKING_OVER,))
    yield Row(reconciling_states, HeartbeatAnswered, step.handle_answer, None, (state.RELEASING, state.TAKING_OVER))
    yield Row((state.CLOSING,), HeartbeatAnswered, step.store_epoch)
    yield Row(heartbeat_states, (RetryLater, RebalanceCalled), step.retry)
    yield Row(heartbeat_states, CoordinatorGone, step.find_coordinator)
    yield Row((state.JOINING,), InstanceReleased, step.join_after_instance_release)
    yield Row(heartbeat_states, InstanceHeld, step.wait_for_instance, None, (state.FAILED, state.LEAVING))
    yield Row((state.JOINING,), (GenerationLost, MemberLost), step.back_off)
    yield Row(all_but(state, state.CLOSING, state.LEAVING), Resubscribed, step.resubscribe)
    yield Row(state, SessionKnown, step.set_session_timeout)
    # Reconciliation with the target assignment.
    yield Row(reconciling_states, TopicNamesFound, step.add_names, None, (state.RELEASING, state.TAKING_OVER))
    yield Row(reconciling_states, MetadataRefreshed, step.request_missing_names)
    yield Row(all_but_reconciling, MetadataRefreshed, step.ignore)
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


# ---- content and schedule of KIP-848 heartbeats ----------------------------------------------------------------------


class HeartbeatFields:
    """Fields that a member has reported to its group or has yet to report.

    Args:
        settings: settings of the membership.
        backoff: pauses after failed heartbeats.
        chance: returns a number in [0, 1) for jitter.
    """

    def __init__(self, settings: MemberSettings, backoff: Backoff, chance: Callable[[], float]) -> None:
        self._settings, self._backoff, self._chance = settings, backoff, chance
        self.session = Heartbeat(settings.session_timeout_s, settings.heartbeat_interval_s)
        self.in_flight: SendGroupHeartbeat | None = None
        """Heartbeat whose answer is awaited; None if no answer is awaited."""
        self.unconfirmed: TopicIdPartitions | None = None
        """Owned partitions that were last sent in a heartbeat; None once a heartbeat is answered."""
        self.is_known = False
        """True if the group may contain this member, so that the member has to leave the group when it stops."""
        self.is_instance_held = False
        """True if the group may hold the instance id of this static member for its former membership.

        The group refuses a join with the instance id until a heartbeat has released the id.
        """
        self._may_have_failed = False
        """True if ``in_flight`` may have failed. Its answer is still accepted, until the next heartbeat is sent."""
        self._next_at = 0.0
        self.topics = settings.topics
        """Subscribed topics; with a pattern, the broker resolves the topics."""
        self._reported_topics: frozenset[str] | None = None
        """Topics in the last heartbeat; None before the first."""
        self._is_full = True
        """True if the next heartbeat contains every field."""
        self._reports_owned = False
        """True if the owned partitions have changed since the last heartbeat that contained them."""
        self._failures = 0

    # ---- schedule ------------------------------------------------------------------------------------------------

    @property
    def next_at(self) -> float | None:
        """Time at which the next heartbeat is due; None while a heartbeat is in flight that has not failed."""
        return self._next_at if self.in_flight is None or self._may_have_failed else None

    def restart(self, now: float) -> None:
        """Schedule a heartbeat with every field for ``now``, and ignore the answer to the heartbeat in flight."""
        self.in_flight, self._is_full, self._next_at = None, True, now

    def ignore_answer(self) -> None:
        """Ignore the answer to the heartbeat in flight."""
        self.in_flight = None

    def subscribe(self, topics: frozenset[str], now: float) -> None:
        """Change the subscription, and schedule a heartbeat for ``now`` if the last heartbeat had other topics."""
        self.topics = topics
        if self._topics_to_report != self._reported_topics:
            self._hasten(now)

    def report_owned(self, now: float) -> None:
        """Schedule a heartbeat with the owned partitions, which have changed, for ``now``."""
        self._reports_owned = True
        self._hasten(now)

    def note_answer(self, interval_s: float, now: float) -> None:
        """Schedule the next heartbeat after ``interval_s``, or for ``now`` if a field has changed.

        The session begins at the time at which the answered heartbeat was sent.
        """
        self.session.note_answer(now)
        self.in_flight = self.unconfirmed = None
        self._is_full, self._failures = False, 0
        has_news = self._reports_owned or self._topics_to_report != self._reported_topics
        self._next_at = now if has_news else now + interval_s

    def note_failure(self, now: float) -> None:
        """Schedule a heartbeat with every field after a pause, because the heartbeat or another request failed."""
        self._failures += 1
        self._may_have_failed = self._is_full = True
        self._next_at = now + self._backoff.pause_s(self._failures, self._chance())

    def hasten_after_error(self, now: float) -> None:
        """Schedule a heartbeat soon after another request failed: the answer to the heartbeat may explain the error.

        A heartbeat in flight may have failed, too, so it is repeated after a pause.
        """
        if self.in_flight is not None:
            self.note_failure(now)
        elif not self._failures:
            self._next_at = min(self._next_at, now + self._backoff.pause_s(1, self._chance()))

    # ---- content -------------------------------------------------------------------------------------------------

    def next_heartbeat(self, identity: Identity, owned: TopicIdPartitions, now: float) -> SendGroupHeartbeat:
        """Return the heartbeat to send now, with the fields that the group may not know, and await its answer."""
        settings, is_full, topics = self._settings, self._is_full, self._topics_to_report
        reports_owned = is_full or self._reports_owned
        self.in_flight = SendGroupHeartbeat(
            identity,
            self.session.session_timeout_s / 3,
            topics=topics if is_full or topics != self._reported_topics else None,
            pattern=settings.pattern if is_full else None,
            assignor=settings.remote_assignor if is_full else None,
            rebalance_timeout_s=settings.rebalance_timeout_s if is_full else None,
            rack=settings.rack if is_full else None,
            owned=_by_topic(owned) if reports_owned else None,
        )
        if reports_owned:
            self.unconfirmed = owned
        self._reported_topics, self.is_known, self.is_instance_held = topics, True, True
        self._is_full = self._reports_owned = self._may_have_failed = False
        self.session.note_sent(now)
        return self.in_flight

    def release_instance(self, identity: Identity) -> SendGroupHeartbeat:
        """Return a heartbeat that releases the instance id of ``identity``, whose epoch is -2, and await its answer."""
        self.in_flight = SendGroupHeartbeat(identity, self.session.session_timeout_s / 3)
        self._may_have_failed = False
        return self.in_flight

    # ---- inside --------------------------------------------------------------------------------------------------

    @property
    def _topics_to_report(self) -> frozenset[str]:
        # The broker resolves the topics of a pattern.
        return self.topics if self._settings.pattern is None else frozenset()

    def _hasten(self, now: float) -> None:
        # After a failure the next heartbeat keeps its time, because the coordinator is not answering.
        if not self._failures:
            self._next_at = now


def _by_topic(partitions: Iterable[tuple[UUID, int]]) -> dict[UUID, tuple[int, ...]]:
    topics: dict[UUID, tuple[int, ...]] = {}
    for topic, partition in sorted(partitions):
        topics[topic] = (*topics.get(topic, ()), partition)
    return topics


# ---- names of assigned topics ----------------------------------------------------------------------------------------


class TopicNames:
    """Known topic names by topic id, and the request for missing names.

    Args:
        backoff: pauses between requests.
        chance: returns a number in [0, 1) for jitter.
    """

    def __init__(self, backoff: Backoff, chance: Callable[[], float]) -> None:
        self._backoff, self._chance = backoff, chance
        self.known: dict[UUID, str] = {}
        self.in_flight: FindTopicNames | None = None
        """Request in flight; None if no request is in flight."""
        self.next_at: float | None = None
        """Time of the next request for names that the last answer lacked; None if it lacked none."""
        self._nameless: frozenset[UUID] = frozenset()
        """Topic ids whose names the last answer lacked."""
        self._failures = 0

    def request(self, wanted: frozenset[UUID], *, is_repeated: bool) -> FindTopicNames | None:
        """Return a request for the missing names of ``wanted``.

        Return None if no name is missing or a request is in flight and, unless ``is_repeated``, if the last answer
        lacked all missing names.
        """
        if is_repeated:
            self.next_at, self._nameless = None, frozenset()
        unknown = wanted - self.known.keys()
        if self.in_flight is not None or not unknown - self._nameless:
            return None
        self.in_flight = FindTopicNames(unknown)
        return self.in_flight

    def note_answer(self, names: Mapping[UUID, str], now: float) -> None:
        """Store the names of an answer, and schedule another request for names that the answer lacks."""
        assert self.in_flight is not None
        self.known.update(names)
        self._nameless = self.in_flight.topic_ids - self.known.keys()
        self._failures = self._failures + 1 if self._nameless else 0
        self.in_flight = None
        self.next_at = now + self._backoff.pause_s(self._failures, self._chance()) if self._nameless else None

    def note_failure(self, now: float) -> None:
        """Schedule another request after a pause if a request is in flight, because it may have failed."""
        if self.in_flight is not None:
            self.note_answer({}, now)

    def stop(self) -> None:
        """Forget the request in flight and the scheduled request; known names are kept."""
        self.in_flight = self.next_at = None
        self._nameless, self._failures = frozenset(), 0
