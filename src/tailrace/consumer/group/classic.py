"""Member of one group in the classic protocol (JoinGroup, SyncGroup): states, steps and transition table.

Pure: no clock, IO or logging.

Heartbeats are sent while the member is in a generation. A member that owns partitions stays in its generation during a
join, and keeps sending heartbeats. A member without partitions needs none while the coordinator holds its join.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from enum import StrEnum
from typing import Any

from tailrace.consumer.group.assignors import Strategy, are_cooperative, checked_assignment
from tailrace.consumer.group.group_machine import (
    CoordinatorGone,
    DescribeGroup,
    Effect,
    FindPartitions,
    ForgetCoordinator,
    GenerationLost,
    GroupDescribed,
    GroupEvent,
    GroupMachine,
    Heartbeat,
    HeartbeatAnswered,
    HeartbeatOutcome,
    JoinDue,
    JoinedAsFollower,
    JoinedAsLeader,
    LeaveAnswered,
    MemberIdAssigned,
    MemberLost,
    MemberSettings,
    MembershipFailed,
    MetadataRefreshed,
    Partitions,
    PartitionsFound,
    PollingResumed,
    PollingStalled,
    RebalanceCalled,
    Release,
    Released,
    ReportAssignmentFault,
    ReportGroupError,
    Resubscribed,
    RetryLater,
    SendHeartbeat,
    SendJoin,
    SendLeave,
    SendSync,
    SessionOver,
    StartMembership,
    StopDue,
    StopMembership,
    Synced,
    TakenOver,
    TakeOver,
    leaves_after,
)
from tailrace.consumer.group.range_assignor import SubscribedMember
from tailrace.core.backoff import Backoff
from tailrace.core.group_requests import Identity
from tailrace.core.machine import Row, TransitionTable, all_but
from tailrace.errors import RebalanceError
from tailrace.protocol.groups import MemberAssignment, MemberSubscription, OwnedPartitions
from tailrace.records import TopicPartition

__all__ = [
    "ALIVE",
    "ASSIGNED",
    "OVER",
    "OWNING",
    "REJOINING",
    "TABLE",
    "ClassicMember",
    "ClassicState",
    "GroupLeader",
    "by_topic",
    "unowned_partitions",
]

# ---- states of a member of a classic group ---------------------------------------------------------------------------


class ClassicState(StrEnum):
    """State of a classic member."""

    IDLE = "idle"
    """The membership has not started yet."""
    WAITING = "waiting"
    """A join is due, now or after a pause."""
    JOINING = "joining"
    """A join was sent and is not answered yet."""
    LEADING = "leading"
    """This member is the leader and waits for the partition counts, from which it computes the assignment."""
    SYNCING = "syncing"
    """A sync was sent and is not answered yet."""
    TAKING_OVER = "taking over"
    """Start positions of the assigned partitions are being looked up, and the application's callbacks are called."""
    STABLE = "stable"
    """The member is in a generation and has taken over its partitions."""
    RELEASING = "releasing"
    """Partitions are being released, or reported as lost; a join follows."""
    STEPPING_AWAY = "stepping away"
    """The application does not poll, so the member has ended its membership and reports its partitions as lost."""
    AWAY = "away"
    """The member is out of the group until the application polls."""
    CLOSING = "closing"
    """All partitions are being released, or reported as lost; a leave follows."""
    LEAVING = "leaving"
    """A leave was sent and is not answered yet."""
    LEFT = "left"
    FAILED = "failed"


ALIVE = frozenset(
    {
        ClassicState.LEADING,
        ClassicState.SYNCING,
        ClassicState.TAKING_OVER,
        ClassicState.STABLE,
        ClassicState.RELEASING,
        ClassicState.CLOSING,
    }
)
"""States in which the member is in a generation of the group, whether it owns partitions or not.

The exception is a member that reports a loss while RELEASING or CLOSING; see ``ClassicMember.is_member``.
"""

ASSIGNED = (ClassicState.TAKING_OVER, ClassicState.STABLE)
"""States in which the member has an assignment and no release or join is due."""

OWNING = frozenset({ClassicState.TAKING_OVER, ClassicState.STABLE, ClassicState.RELEASING})
"""States in which a loss is reported to the application's callbacks even if the member owns no partition."""

REJOINING = frozenset({ClassicState.WAITING, ClassicState.JOINING})
"""States in which the member is in a generation only if it owns partitions, as cooperative members may."""

OVER = frozenset({ClassicState.LEFT, ClassicState.FAILED})
"""Final states."""


# ---- member of a classic group: its data and the steps of its transitions --------------------------------------------

_MOST_REJOINS = 5
"""Number of joins after which a member accepts that the group leaves partitions without an owner."""
_MOST_LISTED = 3
"""Maximum number of partitions that a text lists."""


class ClassicMember(GroupMachine[ClassicState]):
    """Member of a classic group.

    Args:
        settings: settings of the membership.
        strategies: assignment strategies that the member offers, most preferred first.
        chance: returns a number in [0, 1) for jitter.

    Attributes:
        owned: assigned partitions, including those being taken over or released.
    """

    def __init__(self, settings: MemberSettings, strategies: Sequence[Strategy], chance: Callable[[], float]) -> None:
        super().__init__(TABLE, ClassicState.IDLE, settings, chance)
        self._strategies = {strategy.name: strategy for strategy in strategies}
        self._is_cooperative = are_cooperative(strategies)
        self._heartbeat = Heartbeat(settings.session_timeout_s, settings.heartbeat_interval_s)
        self._topics = self._joined_topics = settings.topics
        """Subscribed topics, and the topics in the last join."""
        # The generation.
        self._member_id = ""
        self._generation = -1
        self._protocol = ""
        self._leader: GroupLeader | None = None
        """State of the leader; None if another member leads the generation."""
        # The assignment.
        self.owned: Partitions = frozenset()
        self._ready: Partitions = frozenset()
        """Owned partitions whose takeover is complete."""
        self._takeover: TakeOver | None = None
        """Takeover in progress, or None. A join does not end it, but a release or a later takeover does."""
        self._last_assigned: tuple[OwnedPartitions, ...] = ()
        self._last_generation = -1
        """Last assignment and its generation, for the joins of an eager member with a sticky assignor."""
        # The next join, or the end.
        self._join_at = 0.0
        """Time of the next join while WAITING."""
        self._stop_at: float | None = None
        """Time until which a stop waits for the end of a rebalance; None if no stop is waiting."""
        self._reason = "the consumer starts"
        """Reason of the next join or release, for the broker and the events."""
        self._failures = 0
        """Number of failures since the last assignment, for the backoff."""
        self._has_polled_again = False
        """True if the application has polled since its partitions were reported as lost for lack of polls."""
        # Faults of the assignment.
        self._is_unchecked = False
        """True from the join of a starting static member until a lookup shows that every partition has an owner."""
        self._lookup: DescribeGroup | None = None
        """Lookup whose outcome is awaited, or None."""
        self._describe_at: float | None = None
        """Time of the next lookup while the member is assigned; None for never."""
        self._rejoin_at: float | None = None
        """Time at which the member joins again because of a fault, while it is assigned; None for never."""
        self._faults = 0
        """Number of faults of the assignment since the last assignment without a fault, for the backoff."""
        self._fault_backoff = Backoff(settings.heartbeat_interval_s, settings.session_timeout_s)
        """Pauses before joins after repeated faults; each rebalance concerns the whole group."""
        self._has_reported_fault = False

    @property
    def identity(self) -> Identity:
        return Identity(self._member_id, self._generation, self._settings.instance_id)

    @property
    def is_member(self) -> bool:
        # After a loss, ``_generation`` is -1, although the state is RELEASING or CLOSING while the loss is reported.
        return self._generation >= 0 and (self.state in ALIVE or (self.state in REJOINING and bool(self.owned)))

    # ---- driven by the membership's loop -------------------------------------------------------------------------

    def is_current(self, identity: Identity) -> bool:
        return identity == self.identity and self.is_member and self.state is not ClassicState.JOINING

    def awaits(self, effect: Effect) -> bool:
        return any(effect is one for one in (self._awaited, self._takeover, self._lookup))

    def heartbeat_age_s(self, now: float) -> float:
        return self._heartbeat.age_s(now)

    def receive(self, event: GroupEvent, now: float) -> None:
        if isinstance(event, HeartbeatOutcome):
            self._handle_heartbeat_outcome(event, now)
            return
        before, awaited = self.state, self._awaited
        super().receive(event, now)  # core.machine runs the step that TABLE names
        if self.state is not before and self._awaited is awaited:
            self._awaited = None

    def _handle_heartbeat_outcome(self, event: HeartbeatOutcome, now: float) -> None:
        """Note the heartbeat, and handle its outcome as an event; the table has rows for RebalanceCalled and losses."""
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

    def handle_timer(self, now: float) -> None:
        if self.is_member and self._heartbeat.session_expired(now):
            self.receive(SessionOver(f"no heartbeat was acknowledged for {self._heartbeat.age_s(now):.1f} s"), now)
            return
        if self._stop_at is not None and now >= self._stop_at:
            self.receive(StopDue(), now)
        is_join_due = (at := self._next_join_at) is not None and now >= at
        if is_join_due:
            self.receive(JoinDue(), now)
        elif self.state in ASSIGNED and self._describe_at is not None and now >= self._describe_at:
            self._describe_at, self._lookup = None, DescribeGroup(self._protocol)
            self._effects.append(self._lookup)
        if self.is_member and self._heartbeat.should_heartbeat(now):
            self._heartbeat.note_sent(now)
            self._effects.append(SendHeartbeat(self.identity, self._settings.session_timeout_s / 3))

    def next_deadline(self) -> float | None:
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

    # ---- steps: join and sync ------------------------------------------------------------------------------------

    def schedule_join(self, event: GroupEvent, now: float) -> ClassicState | None:
        """Schedule a join for ``now``; a member that is stopping closes instead."""
        self._join_at = now
        return None if self._stop_at is None else self.close(event, now)

    def resubscribe(self, event: Resubscribed, _now: float) -> None:
        """Store the subscription for the next join."""
        self._topics, self._reason = event.topics, "the subscription changed"

    def join(self, _event: GroupEvent, _now: float) -> ClassicState | None:
        """Send a join that contains the owned partitions, or first release the partitions of unsubscribed topics."""
        if unwanted := self.owned - self._usable(self.owned):
            return self._release(unwanted)
        self._send_join()
        return None

    def join_with_id(self, event: MemberIdAssigned, now: float) -> ClassicState | None:
        """Repeat the join with the assigned member id (KIP-394); a member that is stopping leaves instead."""
        self._member_id = event.member_id
        if self._stop_at is not None:
            return self.leave(event, now)
        self._send_join()
        return None

    def follow(self, event: JoinedAsFollower, now: float) -> None:
        """Enter the generation, and request the assignment, which another member computes."""
        self._enter_generation(event.member_id, event.generation, event.protocol, now)
        self._leader = None
        self._send_sync({})

    def lead(self, event: JoinedAsLeader, now: float) -> None:
        """Enter the generation as its leader, and request the partition counts of the group's topics."""
        self._enter_generation(event.member_id, event.generation, event.protocol, now)
        self._leader = GroupLeader(event, self._strategies[event.protocol])
        self._emit_awaited(FindPartitions(self._leader.topics))

    def assign(self, event: PartitionsFound, now: float) -> ClassicState | None:
        """Compute and send the assignment; the answer contains the partitions of the leader, as of every member."""
        assert self._leader is not None
        try:
            self._send_sync(self._leader.assign(event))
        except RebalanceError as error:
            return self.fail(MembershipFailed(error), now)
        return None

    def back_off(self, event: GroupEvent, now: float) -> ClassicState | None:
        """Schedule a join after an exponential backoff; a member that is stopping closes instead."""
        if isinstance(event, CoordinatorGone):
            self._effects.append(ForgetCoordinator(event.reason))
        self._failures += 1
        return self.schedule_join(event, now + self._backoff.pause_s(self._failures, self._chance()))

    def _send_join(self) -> None:
        self._joined_topics = self._topics
        # Without a member id, a static member may replace a former one and get its assignment.
        is_starting = self._settings.instance_id is not None and not self._member_id
        self._is_unchecked |= is_starting and self._settings.has_subscription
        subscription = MemberSubscription(
            tuple(sorted(self._topics)),
            owned_partitions=by_topic(self.owned),
            generation_id=self._generation,
            rack_id=self._settings.rack,
        )
        offers = tuple((name, subscription) for name in self._strategies)
        self._emit_awaited(
            SendJoin(
                self._member_id,
                offers,
                self._reason,
                self._settings.max_wait_s,
                self._last_assigned,
                self._last_generation,
            )
        )

    def _enter_generation(self, member_id: str, generation: int, protocol: str, now: float) -> None:
        self._member_id, self._generation, self._protocol = member_id, generation, protocol
        # The coordinator began the session when it sent the answer to the join, which may be long ago. A member that
        # owns partitions has sent heartbeats during the join: its session begins with the last acknowledged heartbeat.
        # The session of a member without partitions begins now: its sync, which renews the session, comes even later.
        self._heartbeat.reset(now - self._heartbeat.age_s(now) if self.owned else now)

    def _send_sync(self, assignments: Mapping[str, MemberAssignment]) -> None:
        self._emit_awaited(SendSync(self.identity, self._protocol, assignments, self._settings.max_wait_s))

    # ---- steps: assignment and the next rebalance ----------------------------------------------------------------

    def apply_assignment(self, event: Synced, now: float) -> ClassicState | None:
        """Release the revoked partitions, or take over the added partitions if none is revoked.

        If partitions are revoked, the member joins again once they are released, because other members wait for them
        (KIP-429). That join lists the added partitions as owned, and its assignment leads to their takeover.

        A member that is stopping closes instead. A member whose subscription has changed since the join joins again,
        and so does a member that was assigned partitions that it cannot read.
        """
        self._failures = 0
        self._lookup = self._describe_at = self._rejoin_at = None
        if self._stop_at is not None:
            return self.close(event, now)
        everything = _partitions_of(event.assignment)
        assigned = self._usable(everything - event.missing)
        has_new_topics = self._topics != self._joined_topics
        if has_new_topics and not self.owned:
            # The member takes over no partition of the old subscription, so it has none to release before it joins.
            return self._wait_until(now)
        self._last_assigned, self._last_generation = by_topic(assigned), self._generation
        has_fault = not has_new_topics and self._has_fault(event, everything - assigned, now)
        if has_fault and self._faults == 1 and not self._is_cooperative:
            # The join is due now, for which an eager member would have to release the partitions again.
            return self._wait_until(now)
        revoked = self.owned - assigned
        self.owned |= assigned
        if revoked:
            self._reason = "partitions were revoked"
            return self._release(revoked)
        if has_new_topics:
            return self._start_rejoin(now)
        kept = assigned & self._ready
        self._takeover = TakeOver(assigned - kept, kept, self.identity, self._protocol, self._leader is not None)
        self._effects.append(self._takeover)
        return None

    def complete_takeover(self, _event: GroupEvent, _now: float) -> None:
        """Mark the added partitions of the takeover as ready."""
        assert self._takeover is not None
        self._ready |= self._takeover.added
        self._takeover = None

    def follow_rebalance(self, event: RebalanceCalled | JoinDue, now: float) -> ClassicState:
        """Begin to join the next generation, because the group rebalances, or because of a fault of the assignment.

        The member is assigned; ``_start_rejoin`` decides whether it first releases partitions.
        """
        if isinstance(event, RebalanceCalled):
            self._reason = event.reason
        return self._start_rejoin(now)

    def rejoin_with_topics(self, event: Resubscribed, now: float) -> ClassicState:
        """Join the next generation with the new subscription."""
        self.resubscribe(event, now)
        return self._start_rejoin(now)

    def check_partition_counts(self, event: MetadataRefreshed, now: float) -> ClassicState | None:
        """Start a rebalance if this member is the leader and partition counts of the group's topics have changed."""
        if self._leader is None or not self._leader.is_outdated_by(event.counts):
            return None
        self._reason = "partitions or topics were added or removed"
        return self._start_rejoin(now)

    def join_after_release(self, _event: GroupEvent, now: float) -> None:
        """Remove the partitions that were released, and schedule a join for ``now``."""
        assert isinstance(self._awaited, Release)
        self.owned -= self._awaited.partitions
        self._ready -= self._awaited.partitions
        self._join_at = now

    def _usable(self, partitions: Partitions) -> Partitions:
        """Return the partitions of subscribed topics."""
        if not self._settings.has_subscription:
            return partitions
        return frozenset(one for one in partitions if one.topic in self._topics)

    def _start_rejoin(self, now: float) -> ClassicState:
        """Schedule a join for ``now``; a member that is not cooperative first releases all partitions.

        The membership's loop calls ``handle_timer`` at once, whose JoinDue leads to ``join``. An eager member comes to
        WAITING when its partitions are released (``join_after_release``).
        """
        return self._wait_until(now) if self._is_cooperative else self._release(self.owned)

    def _wait_until(self, at: float) -> ClassicState:
        self._join_at = at
        return ClassicState.WAITING

    def _release(self, partitions: Partitions) -> ClassicState:
        self._takeover = None
        self._emit_awaited(Release(partitions, is_lost=False, is_last=False, reason=self._reason))
        return ClassicState.RELEASING

    # ---- steps: heartbeats that fail, and lost memberships -------------------------------------------------------

    def find_coordinator(self, event: CoordinatorGone, now: float) -> None:
        """Look up the coordinator again, then send another heartbeat; the membership continues."""
        self.retry_heartbeat(event, now)
        self._effects.append(ForgetCoordinator(event.reason))

    def retry_heartbeat(self, _event: GroupEvent, now: float) -> None:
        """Send another heartbeat after an exponential backoff of at most an interval; the session continues."""
        pause_s = self._backoff.pause_s(self._heartbeat.failures + 1, self._chance())
        self._heartbeat.note_failure(now, min(pause_s, self._settings.heartbeat_interval_s))

    def report_loss(self, event: GenerationLost | MemberLost | SessionOver, now: float) -> ClassicState:
        """Report the partitions as lost, then join again; a member that is stopping closes instead."""
        self._reason = event.reason
        owned, self.owned, self._ready = self.owned, frozenset(), frozenset()
        self._generation = -1
        if isinstance(event, MemberLost):
            self._member_id = ""
        is_last = self._stop_at is not None
        if not (is_last or owned or self.state in OWNING):
            return self._wait_until(now)
        self._release_lost(owned, is_last=is_last)
        return ClassicState.CLOSING if is_last else ClassicState.RELEASING

    def _release_lost(self, partitions: Partitions, *, is_last: bool) -> None:
        self._takeover = self._stop_at = None
        self._emit_awaited(Release(partitions, is_lost=True, is_last=is_last, reason=self._reason))

    # ---- steps: an application that does not poll ----------------------------------------------------------------

    def leave_until_polled(self, event: PollingStalled, _now: float) -> None:
        """Give up the membership because the application does not poll, and report the partitions as lost.

        Without ``leaves_on_stop``, no leave is sent.
        """
        self._reason, self._has_polled_again = str(event.error), False
        self._effects.append(ReportGroupError(event.error, is_fatal=False))
        if self._settings.leaves_on_stop:
            self._effects.append(SendLeave(self.identity, "the application does not poll"))
            self._member_id = ""
        self._generation = -1
        self._release_lost(self.owned, is_last=False)
        self.owned = self._ready = frozenset()

    def note_polling(self, _event: GroupEvent, _now: float) -> None:
        """Note that the application polls again, so that a join follows once the loss was reported."""
        self._has_polled_again = True

    def wait_for_polling(self, _event: GroupEvent, now: float) -> ClassicState | None:
        """Join again if the application has polled since the loss; otherwise wait until it polls."""
        return self._wait_until(now) if self._has_polled_again else None

    # ---- steps: stop and failure ---------------------------------------------------------------------------------

    def stop_while_joining(self, event: StopMembership, now: float) -> ClassicState | None:
        """Stop while a join is due or in flight.

        The stop first awaits the answer to a join in flight if the member needs the new generation for a commit, or a
        member id for its leave.
        """
        # While WAITING, no join is in flight whose answer could contain a member id.
        needs_id = self._settings.instance_id is None or self._settings.leaves_on_stop
        is_id_known = bool(self._member_id) or not needs_id or self.state is ClassicState.WAITING
        if is_id_known and not self.owned:
            return self.leave(event, now)
        if is_id_known and (self.state is ClassicState.WAITING or not event.may_commit):
            return self.close(event, now)
        if self._stop_at is None:
            self._stop_at = now + self._settings.stop_max_wait_s
        return None

    def close(self, _event: GroupEvent, _now: float) -> ClassicState:
        """Release all partitions, because the consumer stops; a leave follows."""
        self._takeover = self._stop_at = None
        self._emit_awaited(Release(self.owned, is_lost=False, is_last=True, reason="the consumer stops"))
        return ClassicState.CLOSING

    def close_lost(self, event: GroupEvent, _now: float) -> None:
        """Report the partitions as lost instead of releasing them, because nothing can be committed any more.

        A leave follows only if the group still knows the member id.
        """
        self._reason = "the membership was lost"
        self._release_lost(self.owned, is_last=True)
        self.owned = frozenset()
        self._generation = -1
        if not isinstance(event, GenerationLost):
            self._member_id = ""

    def leave(self, event: GroupEvent, now: float) -> ClassicState:
        """Leave the group; without ``leaves_on_stop``, no leave is sent."""
        self.owned, self._takeover, self._stop_at = frozenset(), None, None
        if not (self._member_id and self._settings.leaves_on_stop):
            return self.forget(event, now)
        self._emit_awaited(SendLeave(self.identity, "the consumer stops"))
        return ClassicState.LEAVING

    def forget(self, _event: GroupEvent, _now: float) -> ClassicState:
        """Forget the membership; no request is sent."""
        self._member_id, self._generation, self.owned = "", -1, frozenset()
        return ClassicState.LEFT

    def fail(self, event: MembershipFailed, _now: float) -> ClassicState:
        """Report the error, and the partitions as lost; then leave the group, unless the error prevents a leave."""
        self._reason = str(event.error)
        self._release_lost(self.owned, is_last=True)
        self._effects.append(ReportGroupError(event.error, is_fatal=True))
        self.owned = self._ready = frozenset()
        if not (leaves_after(event.error) and self._member_id and self._settings.leaves_on_stop):
            return ClassicState.FAILED
        self._emit_awaited(SendLeave(self.identity, "the consumer failed"))
        return ClassicState.LEAVING

    # ---- steps: faults of the assignment -------------------------------------------------------------------------

    def check_owners(self, event: GroupDescribed, now: float) -> None:
        """Schedule a join if a partition has no owner, or another lookup if its owner has yet to release it."""
        self._lookup = None
        if event.members is None:
            self._describe_at = now + self._settings.heartbeat_interval_s
            return
        is_cooperative = self._strategies[self._protocol].is_cooperative
        unowned, withheld = unowned_partitions(event.members.values(), event.counts, is_cooperative=is_cooperative)
        if unowned:
            self._note_fault(unowned, f"no member is assigned {_listed(unowned)}", now)
            if self._faults > _MOST_REJOINS:
                self._rejoin_at = None
        elif withheld:
            self._describe_at = now + self._settings.heartbeat_interval_s
        else:
            self._is_unchecked = False
            self._note_no_fault()

    def _has_fault(self, event: Synced, refused: Partitions, now: float) -> bool:
        """Schedule a join and return True if this member cannot read its assignment; schedule a lookup if it is due."""
        missing = refused & event.missing
        if event.fault:
            self._note_fault(refused, f"the assignment cannot be read: {event.fault}", now)
        elif missing:
            self._note_fault(refused, f"this member is assigned {_listed(missing)}, which do not exist", now)
        elif refused:
            topics = ", ".join(sorted({one.topic for one in refused})[:_MOST_LISTED])
            self._note_fault(refused, f"this member is assigned partitions of {topics} without a subscription", now)
        elif self._is_unchecked:
            self._describe_at = now
        else:
            self._note_no_fault()
            if self._leader is not None and self._leader.is_withholding:
                self._describe_at = now + self._settings.heartbeat_interval_s
        return self._rejoin_at is not None

    def _note_fault(self, partitions: Partitions, fault: str, now: float) -> None:
        """Report a fault of the assignment, and schedule a join: at once, or after a pause if the fault is repeated."""
        self._reason, self._has_reported_fault = fault, True
        self._effects.append(ReportAssignmentFault(partitions, fault))
        self._rejoin_at = now + (self._fault_backoff.pause_s(self._faults, self._chance()) if self._faults else 0.0)
        self._faults += 1

    def _note_no_fault(self) -> None:
        self._faults = 0
        if self._has_reported_fault:
            self._has_reported_fault = False
            self._effects.append(ReportAssignmentFault(frozenset(), ""))


def _rows() -> Iterator[Row[Any, ClassicState, Any]]:
    state, step = ClassicState, ClassicMember
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
    yield Row((state.STABLE,), MetadataRefreshed, step.check_partition_counts, None, (state.WAITING, state.RELEASING))
    yield Row(all_but_stable, (MetadataRefreshed, PollingStalled), step.ignore)
    yield Row(assigned_states, GroupDescribed, step.check_owners)
    yield Row(all_but(state, *assigned_states), GroupDescribed, step.ignore)
    # A cooperative member keeps its partitions while WAITING for its join; an eager member is RELEASING them first.
    yield Row(assigned_states, (RebalanceCalled, JoinDue), step.follow_rebalance, state.WAITING, (state.RELEASING,))
    yield Row(assigned_states, Resubscribed, step.rejoin_with_topics, state.WAITING, (state.RELEASING,))
    yield Row((*assigned_states, state.RELEASING), loss_events, step.report_loss, state.RELEASING)
    yield Row((state.RELEASING,), Released, step.join_after_release, state.WAITING)
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
"""Every transition of a classic member. ``ClassicMember.receive`` unwraps HeartbeatOutcome, which has no row."""


# ---- leader of a classic generation: computes the assignment and detects when it is outdated -------------------------


class GroupLeader:
    """Leader of one generation."""

    def __init__(self, joined: JoinedAsLeader, strategy: Strategy) -> None:
        self._joined, self._strategy = joined, strategy
        self._counts: Mapping[str, int] = {}
        """Partition counts on which the assignment is based."""
        self.is_withholding = False
        """True if the assignment lacks partitions that their owners have to release first (KIP-429)."""
        self.topics = frozenset(topic for subscription in joined.members.values() for topic in subscription.topics)
        """Topics of all members; the leader watches their partition counts."""

    def assign(self, found: PartitionsFound) -> dict[str, MemberAssignment]:
        """Return the assignment of each member; empty if the group keeps its assignment (KIP-814).

        The assignment is based on the partition counts in ``found``.

        Raises:
            RebalanceError: the strategy's function failed, or its result is not an assignment.
        """
        self._counts = found.counts
        if self._joined.skip_assignment:
            return {}
        instances = self._joined.instances
        members = [
            _as_subscribed(m, subscription, instances.get(m)) for m, subscription in self._joined.members.items()
        ]
        partitions = checked_assignment(self._strategy, members, found.counts, found.racks)
        self.is_withholding = sum(map(len, partitions.values())) < sum(found.counts.values())
        return {member: MemberAssignment(by_topic(partitions.get(member, ()))) for member in self._joined.members}

    def is_outdated_by(self, counts: Mapping[str, int]) -> bool:
        """Return True if partition counts of the members' topics have changed since the assignment.

        A topic that does not exist has 0 partitions. Topics that are not in ``counts`` have not changed.
        """
        assigned = {topic: self._counts.get(topic, 0) for topic in self.topics}
        return any(counts.get(topic, before) != before for topic, before in assigned.items())


def by_topic(partitions: Iterable[TopicPartition]) -> tuple[OwnedPartitions, ...]:
    """Return the partitions of each topic, in the form of a subscription or assignment."""
    topics: dict[str, list[int]] = {}
    for topic, partition in sorted(partitions):
        topics.setdefault(topic, []).append(partition)
    return tuple(OwnedPartitions(topic, tuple(found)) for topic, found in topics.items())


def _as_subscribed(member_id: str, subscription: MemberSubscription, instance_id: str | None) -> SubscribedMember:
    owned = frozenset(TopicPartition(one.topic, p) for one in subscription.owned_partitions for p in one.partitions)
    return SubscribedMember(
        member_id, frozenset(subscription.topics), instance_id, owned, subscription.generation_id, subscription.rack_id
    )


# ---- owners of the group's partitions, as its coordinator has stored them --------------------------------------------


def unowned_partitions(
    members: Collection[tuple[MemberSubscription, MemberAssignment]], counts: Mapping[str, int], *, is_cooperative: bool
) -> tuple[Partitions, Partitions]:
    """Return the subscribed partitions without an owner, and those that a member has to release first (KIP-429).

    The owner of a partition of the second kind has listed it in its subscription, and is about to release it and join
    again. A restart of the owner replaces its subscription, so that the partition has no owner any more.
    """
    subscribed = frozenset(topic for subscription, _ in members for topic in subscription.topics)
    unassigned = {TopicPartition(topic, n) for topic in subscribed for n in range(counts.get(topic, 0))}
    withheld: set[TopicPartition] = set()
    for subscription, assignment in members:
        unassigned -= {one for one in _partitions_of(assignment) if one.topic in subscription.topics}
        if is_cooperative:
            withheld |= {TopicPartition(one.topic, p) for one in subscription.owned_partitions for p in one.partitions}
    return frozenset(unassigned - withheld), frozenset(unassigned & withheld)


def _partitions_of(assignment: MemberAssignment) -> Partitions:
    return frozenset(TopicPartition(one.topic, p) for one in assignment.assigned_partitions for p in one.partitions)


def _listed(partitions: Partitions) -> str:
    """Return the first of ``partitions`` as text, and the number of the others."""
    text = ", ".join(map(str, sorted(partitions)[:_MOST_LISTED]))
    return f"{text} and {len(partitions) - _MOST_LISTED} more" if len(partitions) > _MOST_LISTED else text
