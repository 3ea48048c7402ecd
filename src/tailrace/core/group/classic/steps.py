"""Data of a classic group member, and the steps of the transitions that ``core.group.classic.member`` lists.

Eager members release all partitions before they join. Cooperative members offer only cooperative assignors (KIP-429).
They keep their partitions during a join; if the new assignment lacks some of them, they release these and join again.

A *takeover* begins with the effect ``TakeOver`` and ends with the event ``TakenOver``; a *release* begins with the
effect ``Release`` and ends with the event ``Released``.

A static member that restarts gets the assignment that the group has stored for its instance id, without a rebalance
(KIP-345). This assignment may be outdated: the member may subscribe to other topics now, and before the restart it may
have been about to release partitions and join again, so that the group would assign them to other members. A static
member that starts therefore looks up the subscriptions and assignments of all members, and joins again if a partition
has no owner. A leader that withholds partitions, because other members have to release them first, repeats the lookup
until the next rebalance: an owner that is a static member of another client may restart, too.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence

from tailrace.core.backoff import Backoff
from tailrace.core.group.assignors.strategies import Strategy, are_cooperative
from tailrace.core.group.classic.leader import GroupLeader, by_topic
from tailrace.core.group.classic.states import ALIVE, OWNING, REJOINING, ClassicState
from tailrace.core.group.effects import (
    DescribeGroup,
    Effect,
    FailMembership,
    FindPartitions,
    ForgetCoordinator,
    Partitions,
    Release,
    ReportAssignmentFault,
    ReportGroupError,
    SendJoin,
    SendLeave,
    SendSync,
    TakeOver,
)
from tailrace.core.group.error_reactions import Identity
from tailrace.core.group.events import (
    CoordinatorGone,
    GenerationLost,
    GroupDescribed,
    GroupEvent,
    JoinDue,
    JoinedAsFollower,
    JoinedAsLeader,
    MemberIdAssigned,
    MemberLost,
    MembershipFailed,
    PartitionsChanged,
    PartitionsFound,
    PollingStalled,
    RebalanceCalled,
    Resubscribed,
    SessionOver,
    StopMembership,
    Synced,
)
from tailrace.core.group.heartbeat import Heartbeat
from tailrace.core.group.membership import MemberSettings, leaves_after
from tailrace.core.machine import StateMachine, TransitionTable
from tailrace.errors import RebalanceError, TailraceError
from tailrace.protocol.member_metadata import MemberAssignment, MemberSubscription, OwnedPartitions
from tailrace.records import TopicPartition

__all__ = ["ClassicSteps", "unowned_partitions"]

_MOST_REJOINS = 5
"""Number of joins after which a member accepts that the group leaves partitions without an owner."""
_MOST_LISTED = 3
"""Maximum number of partitions that a text lists."""


class ClassicSteps(StateMachine[ClassicState, GroupEvent, Effect]):
    """Data of one member, and the steps of its transitions.

    Args:
        table: transitions of the member.
        settings: settings of the membership.
        strategies: assignment strategies that the member offers, most preferred first.
        chance: returns a number in [0, 1) for jitter.

    Attributes:
        owned: assigned partitions, including those being taken over or released.
    """

    def __init__(
        self,
        table: TransitionTable[ClassicState],
        settings: MemberSettings,
        strategies: Sequence[Strategy],
        chance: Callable[[], float],
    ) -> None:
        super().__init__(table, ClassicState.IDLE)
        self._settings = settings
        self._strategies = {strategy.name: strategy for strategy in strategies}
        self._is_cooperative = are_cooperative(strategies)
        self._chance = chance
        self._backoff = Backoff(settings.retry_first_s, settings.retry_longest_s)
        self._heartbeat = Heartbeat(settings.session_timeout_s, settings.heartbeat_interval_s)
        self._awaited: Effect | None = None
        """Request or release whose outcome is awaited; None if no outcome is awaited but that of ``_takeover``."""
        self._takeover: TakeOver | None = None
        """Takeover in progress, or None. A join does not end it, but a release or a later takeover does."""
        self._topics = self._joined_topics = settings.topics
        """Subscribed topics, and the topics in the last join."""
        self._member_id = ""
        self._generation = -1
        self._protocol = ""
        self.owned: Partitions = frozenset()
        self._ready: Partitions = frozenset()
        """Owned partitions whose takeover is complete."""
        self._last_assignment: tuple[tuple[OwnedPartitions, ...], int] = ((), -1)
        """Last assignment and its generation, for the joins of an eager member with a sticky assignor."""
        self._leader: GroupLeader | None = None
        """State of the leader; None if another member leads the generation."""
        self._failures = 0
        """Number of failures since the last assignment, for the backoff."""
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
        self._has_polled_again = False
        """True if the application has polled since its partitions were reported as lost for lack of polls."""
        self._join_at = 0.0
        """Time of the next join while WAITING."""
        self._stop_at: float | None = None
        """Time until which a stop waits for the end of a rebalance; None if no stop is waiting."""
        self._reason = "the consumer starts"
        """Reason of the next join or release, for the broker and the events."""

    @property
    def identity(self) -> Identity:
        """Identity of this member in the group."""
        return Identity(self._member_id, self._generation, self._settings.instance_id)

    @property
    def is_member(self) -> bool:
        """True while this member is in a generation of the group, so that it may commit and has to send heartbeats."""
        # After a loss, ``_generation`` is -1, although the state is RELEASING or CLOSING while the loss is reported.
        return self._generation >= 0 and (self.state in ALIVE or (self.state in REJOINING and bool(self.owned)))

    # ---- steps -------------------------------------------------------------------------------------------------

    def schedule_join(self, _event: GroupEvent, now: float) -> ClassicState | None:
        """Schedule a join for ``now``; a member that is stopping closes instead."""
        self._join_at = now
        return None if self._stop_at is None else self._close()

    def resubscribe(self, event: Resubscribed, _now: float) -> None:
        """Store the subscription for the next join."""
        self._topics, self._reason = event.topics, "the subscription changed"

    def join(self, _event: GroupEvent, _now: float) -> ClassicState | None:
        """Send a join that contains the owned partitions, or first release the partitions of unsubscribed topics."""
        if unwanted := self.owned - self._usable(self.owned):
            return self._release(unwanted)
        self._send_join()
        return None

    def join_with_id(self, event: MemberIdAssigned, _now: float) -> ClassicState | None:
        """Repeat the join with the assigned member id (KIP-394); a member that is stopping leaves instead."""
        self._member_id = event.member_id
        if self._stop_at is not None:
            return self._leave()
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

    def assign(self, event: PartitionsFound, _now: float) -> ClassicState | None:
        """Compute and send the assignment; the answer contains the partitions of the leader, as of every member."""
        assert self._leader is not None
        try:
            self._send_sync(self._leader.assign(event))
        except RebalanceError as error:
            return self._fail(error)
        return None

    def apply_assignment(self, event: Synced, now: float) -> ClassicState | None:
        """Release the revoked partitions, or take over the added partitions if none is revoked.

        A member that is stopping closes instead. A member whose subscription has changed since the join joins again,
        and so does a member that was assigned partitions that it cannot read.
        """
        self._failures = 0
        self._lookup = self._describe_at = self._rejoin_at = None
        if self._stop_at is not None:
            return self._close()
        everything = _partitions_of(event.assignment)
        assigned = self._usable(everything - event.missing)
        has_new_topics = self._topics != self._joined_topics
        if has_new_topics and not self.owned:
            # The member takes over no partition of the old subscription, so it has none to release before it joins.
            return self._wait_until(now)
        self._last_assignment = (by_topic(assigned), self._generation)
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

    def describe_group(self) -> None:
        """Look up the subscriptions and assignments of all members."""
        self._describe_at, self._lookup = None, DescribeGroup(self._protocol)
        self._effects.append(self._lookup)

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

    def complete_takeover(self, _event: GroupEvent, _now: float) -> None:
        """Mark the added partitions of the takeover as ready."""
        assert self._takeover is not None
        self._ready |= self._takeover.added
        self._takeover = None

    def follow_rebalance(self, event: RebalanceCalled | JoinDue, now: float) -> ClassicState:
        """Join the next generation, because the group rebalances, or because of a fault of the assignment."""
        if isinstance(event, RebalanceCalled):
            self._reason = event.reason
        return self._start_rejoin(now)

    def rejoin_with_topics(self, event: Resubscribed, now: float) -> ClassicState:
        """Store the subscription and join the next generation with it."""
        self.resubscribe(event, now)
        return self._start_rejoin(now)

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

    def leave_until_polled(self, event: PollingStalled, _now: float) -> None:
        """Give up the membership because the application does not poll, and report the partitions as lost.

        Without ``leaves_on_stop``, no leave is sent.
        """
        self._reason, self._has_polled_again = str(event.error), False
        self._effects.append(ReportGroupError(event.error))
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

    def close(self, _event: GroupEvent, _now: float) -> ClassicState:
        """Release all partitions, because the consumer stops."""
        return self._close()

    def stop_while_joining(self, event: StopMembership, now: float) -> ClassicState | None:
        """Stop while a join is due or in flight.

        The stop first awaits the answer to a join in flight if the member needs the new generation for a commit, or a
        member id for its leave.
        """
        # While WAITING, no join is in flight whose answer could contain a member id.
        is_id_known = bool(self._member_id or self._settings.instance_id) or self.state is ClassicState.WAITING
        if is_id_known and not self.owned:
            return self._leave()
        if is_id_known and (self.state is ClassicState.WAITING or not event.may_commit):
            return self._close()
        if self._stop_at is None:
            self._stop_at = now + self._settings.stop_max_wait_s
        return None

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

    def rejoin(self, _event: GroupEvent, now: float) -> None:
        """Remove the released partitions, and schedule a join for ``now``."""
        assert isinstance(self._awaited, Release)
        self.owned -= self._awaited.partitions
        self._ready -= self._awaited.partitions
        self._join_at = now

    def back_off(self, event: GroupEvent, now: float) -> ClassicState | None:
        """Schedule a join after an exponential backoff; a member that is stopping closes instead."""
        if isinstance(event, CoordinatorGone):
            self._effects.append(ForgetCoordinator(event.reason))
        self._failures += 1
        return self.schedule_join(event, now + self._backoff.pause_s(self._failures, self._chance()))

    def find_coordinator(self, event: CoordinatorGone, now: float) -> None:
        """Look up the coordinator again, then send another heartbeat; the membership continues."""
        self.retry_heartbeat(event, now)
        self._effects.append(ForgetCoordinator(event.reason))

    def retry_heartbeat(self, _event: GroupEvent, now: float) -> None:
        """Send another heartbeat soon; the session continues."""
        self._heartbeat.note_failure(now, self._settings.retry_first_s)

    def check_partition_counts(self, event: PartitionsChanged, now: float) -> ClassicState | None:
        """Start a rebalance if this member is the leader and partition counts of the group's topics have changed."""
        if self._leader is None or not self._leader.is_outdated_by(event.counts):
            return None
        self._reason = "partitions or topics were added or removed"
        return self._start_rejoin(now)

    def leave(self, _event: GroupEvent, _now: float) -> ClassicState:
        """Leave the group; without ``leaves_on_stop``, no leave is sent."""
        return self._leave()

    def forget(self, _event: GroupEvent, _now: float) -> ClassicState:
        """Forget the membership; no request is sent."""
        return self._forget()

    def fail(self, event: MembershipFailed, _now: float) -> ClassicState:
        """Report the error, and the partitions as lost.

        With ``leaves_on_stop``, the member also leaves the group, unless the error prevents it.
        """
        return self._fail(event.error)

    def report_failure(self, event: MembershipFailed, _now: float) -> None:
        """Report the error of a callback that ended after the leave was sent."""
        self._effects.append(FailMembership(event.error))

    # ---- inside ------------------------------------------------------------------------------------------------

    def _usable(self, partitions: Partitions) -> Partitions:
        """Return the partitions of subscribed topics."""
        if not self._settings.has_subscription:
            return partitions
        return frozenset(one for one in partitions if one.topic in self._topics)

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

    def _start_rejoin(self, now: float) -> ClassicState:
        """Schedule a join for ``now``; a member that is not cooperative first releases all partitions."""
        return self._wait_until(now) if self._is_cooperative else self._release(self.owned)

    def _close(self) -> ClassicState:
        """Release all partitions, because the consumer stops; a leave follows."""
        self._takeover = self._stop_at = None
        self._emit_awaited(Release(self.owned, is_lost=False, is_last=True, reason="the consumer stops"))
        return ClassicState.CLOSING

    def _leave(self) -> ClassicState:
        self.owned, self._takeover, self._stop_at = frozenset(), None, None
        if not (self._member_id and self._settings.leaves_on_stop):
            return self._forget()
        self._emit_awaited(SendLeave(self.identity, "the consumer stops"))
        return ClassicState.LEAVING

    def _forget(self) -> ClassicState:
        self._member_id, self._generation, self.owned = "", -1, frozenset()
        return ClassicState.LEFT

    def _fail(self, error: TailraceError) -> ClassicState:
        self._reason = str(error)
        self._release_lost(self.owned, is_last=True)
        self._effects.append(FailMembership(error))
        self.owned = self._ready = frozenset()
        if not (leaves_after(error) and self._member_id and self._settings.leaves_on_stop):
            return ClassicState.FAILED
        self._emit_awaited(SendLeave(self.identity, "the consumer failed"))
        return ClassicState.LEAVING

    def _release(self, partitions: Partitions) -> ClassicState:
        self._takeover = None
        self._emit_awaited(Release(partitions, is_lost=False, is_last=False, reason=self._reason))
        return ClassicState.RELEASING

    def _release_lost(self, partitions: Partitions, *, is_last: bool) -> None:
        self._takeover = self._stop_at = None
        self._emit_awaited(Release(partitions, is_lost=True, is_last=is_last, reason=self._reason))

    def _wait_until(self, at: float) -> ClassicState:
        self._join_at = at
        return ClassicState.WAITING

    def _emit_awaited(self, effect: Effect) -> None:
        """Emit ``effect`` and await its outcome."""
        self._effects.append(effect)
        self._awaited = effect

    def _enter_generation(self, member_id: str, generation: int, protocol: str, now: float) -> None:
        self._member_id, self._generation, self._protocol = member_id, generation, protocol
        # The coordinator began the session when it sent the answer to the join, which may be long ago. A member that
        # owns partitions has sent heartbeats during the join: its session begins with the last acknowledged heartbeat.
        # The session of a member without partitions begins now: its sync, which renews the session, comes even later.
        self._heartbeat.reset(now - self._heartbeat.age_s(now) if self.owned else now)

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
            SendJoin(self._member_id, offers, self._reason, self._settings.max_wait_s, *self._last_assignment)
        )

    def _send_sync(self, assignments: Mapping[str, MemberAssignment]) -> None:
        self._emit_awaited(SendSync(self.identity, self._protocol, assignments, self._settings.max_wait_s))


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
