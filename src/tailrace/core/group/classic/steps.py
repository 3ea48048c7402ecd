"""Data of a classic group member, and the steps that the table of ``core.group.classic.member`` refers to.

Eager members release all partitions before they join. Cooperative members, which offer only cooperative assignors
(KIP-429), keep their partitions through a join, release the partitions that the new generation revokes, and join again.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from tailrace.core.backoff import Backoff
from tailrace.core.group.assignors.strategies import Strategy, are_cooperative
from tailrace.core.group.classic.leader import GroupLeader, by_topic
from tailrace.core.group.classic.states import ALIVE, OWNING, REJOINING, ClassicState
from tailrace.core.group.effects import (
    Effect,
    EmitGroupEvent,
    FailMembership,
    FindPartitions,
    ForgetCoordinator,
    Partitions,
    Release,
    SendJoin,
    SendLeave,
    SendSync,
    TakeOver,
)
from tailrace.core.group.events import (
    CoordinatorGone,
    GenerationLost,
    GroupEvent,
    Identity,
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
from tailrace.core.group.membership import MemberSettings
from tailrace.core.machine import StateMachine, TransitionTable
from tailrace.errors import ConfigurationError, RebalanceError, TailraceError
from tailrace.protocol.member_metadata import MemberAssignment, MemberSubscription, OwnedPartitions
from tailrace.records import TopicPartition

__all__ = ["ClassicSteps"]


class ClassicSteps(StateMachine[ClassicState, GroupEvent, Effect]):
    """Data and steps of one member.

    Args:
        table: transitions that refer to these steps.
        settings: settings of the membership.
        strategies: assignment strategies, most preferred first; all of them are offered.
        chance: returns a number in [0, 1) for jitter.

    Attributes:
        owned: assigned partitions.
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
        """Effect whose outcome is awaited."""
        self._taking: TakeOver | None = None
        """Takeover in progress. It continues during a join; a release or a later takeover ends it."""
        self._topics = self._joined_topics = settings.topics
        self._member_id = ""
        self._generation = -1
        self._protocol = ""
        self.owned: Partitions = frozenset()
        self._ready: Partitions = frozenset()
        """Owned partitions whose takeover is complete: callbacks have returned, and records are delivered."""
        self._last_assignment: tuple[tuple[OwnedPartitions, ...], int] = ((), -1)
        """Last assignment and its generation; a sticky assignor reads both from an eager member's join."""
        self._lead: GroupLeader | None = None
        """State of the leader; None if another member leads the generation."""
        self._failures = 0
        self._has_polled_again = False
        """True if the application has polled while the loss of its partitions is being reported."""
        self._join_at = 0.0
        """Time of the next join while WAITING."""
        self._stop_at: float | None = None
        """Time at which a stop no longer waits for the end of a rebalance; None if no stop waits."""
        self._reason = "the consumer starts"

    @property
    def identity(self) -> Identity:
        """Identity of this member in the group."""
        return Identity(self._member_id, self._generation, self._settings.instance_id)

    @property
    def is_member(self) -> bool:
        """True while the group counts this member in a generation, so that the member may commit."""
        # While a loss is being reported, the member has no session to keep or to lose a second time.
        return self._generation >= 0 and (self.state in ALIVE or (self.state in REJOINING and bool(self.owned)))

    # ---- steps -------------------------------------------------------------------------------------------------

    def schedule_join(self, _event: GroupEvent, now: float) -> ClassicState | None:
        """Join at the next timer call; a member that is stopping closes instead."""
        self._join_at = now
        return None if self._stop_at is None else self._close()

    def resubscribe(self, event: Resubscribed, _now: float) -> None:
        """Remember the subscription for the next join."""
        self._topics, self._reason = event.topics, "the subscription changed"

    def join(self, _event: GroupEvent, _now: float) -> ClassicState | None:
        """Send a join that claims the owned partitions, or first release partitions of unsubscribed topics."""
        if unwanted := frozenset(one for one in self.owned if one.topic not in self._topics):
            return self._release(unwanted)
        self._send_join()
        return None

    def join_with_id(self, event: MemberIdAssigned, _now: float) -> ClassicState | None:
        """Join again with the member id that the coordinator assigned (KIP-394); a member that is stopping leaves."""
        self._member_id = event.member_id
        if self._stop_at is not None:
            return self._leave()
        self._send_join()
        return None

    def follow(self, event: JoinedAsFollower, now: float) -> None:
        """Request the assignment, which another member computes."""
        self._enter(event.member_id, event.generation, event.protocol, now)
        self._lead = None
        self._send_sync({})

    def lead(self, event: JoinedAsLeader, now: float) -> None:
        """Request the partition counts of the group's topics."""
        self._enter(event.member_id, event.generation, event.protocol, now)
        self._lead = GroupLeader(event, self._strategies[event.protocol])
        self._do(FindPartitions(self._lead.topics))

    def assign(self, event: PartitionsFound, _now: float) -> ClassicState | None:
        """Compute and send the assignment; the leader, too, receives its own partitions in the answer to the sync."""
        assert self._lead is not None
        try:
            self._send_sync(self._lead.assign(event))
        except RebalanceError as error:
            return self._fail(error)
        return None

    def apply_assignment(self, event: Synced, now: float) -> ClassicState | None:
        """Release the revoked partitions, or take over added partitions; a member that is stopping closes instead."""
        self._failures = 0
        if self._stop_at is not None:
            return self._close()
        if self._lead is not None:
            self._lead.recall(event.assignment)
        assignment = event.assignment.assigned_partitions
        assigned = frozenset(TopicPartition(one.topic, p) for one in assignment for p in one.partitions)
        if self._topics != self._joined_topics and not self.owned:
            # The subscription has changed since the join, and no partition is owned: join again at once.
            return self._wait_until(now)
        self._last_assignment = (assignment, self._generation)
        revoked = self.owned - assigned
        self.owned |= assigned
        if revoked:
            self._reason = "partitions were revoked"
            return self._release(revoked)
        if self._topics != self._joined_topics:
            return self._regroup(now)
        kept = assigned & self._ready
        self._taking = TakeOver(assigned - kept, kept, self.identity, self._protocol, self._lead is not None)
        self._effects.append(self._taking)
        return None

    def complete_takeover(self, _event: GroupEvent, _now: float) -> None:
        """Mark the partitions of the takeover as ready."""
        assert self._taking is not None
        self._ready |= self._taking.added
        self._taking = None

    def follow_rebalance(self, event: RebalanceCalled, now: float) -> ClassicState:
        """Join the next generation, which the coordinator has called."""
        self._reason = event.reason
        return self._regroup(now)

    def rejoin_with_topics(self, event: Resubscribed, now: float) -> ClassicState:
        """Join the next generation with another subscription."""
        self.resubscribe(event, now)
        return self._regroup(now)

    def report_loss(self, event: GenerationLost | MemberLost | SessionOver, now: float) -> ClassicState:
        """Report the partitions as lost, then join again."""
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
        """Leave the group because the application does not poll, and report the partitions as lost."""
        self._reason, self._has_polled_again = str(event.error), False
        self._effects.append(EmitGroupEvent(event.error))
        if self._settings.leaves_on_stop:
            self._effects.append(SendLeave(self.identity, "the application does not poll"))
            self._member_id = ""
        self._generation = -1
        self._release_lost(self.owned, is_last=False)
        self.owned = self._ready = frozenset()

    def note_polling(self, _event: GroupEvent, _now: float) -> None:
        """Remember that the application polls again, while the loss is still being reported."""
        self._has_polled_again = True

    def wait_for_polling(self, _event: GroupEvent, now: float) -> ClassicState | None:
        """Join again if the application has polled meanwhile; otherwise wait until the application polls."""
        return self._wait_until(now) if self._has_polled_again else None

    def close(self, _event: GroupEvent, _now: float) -> ClassicState:
        """Release all partitions for the last time."""
        return self._close()

    def stop_while_joining(self, event: StopMembership, now: float) -> ClassicState | None:
        """Stop between two assignments.

        The stop first awaits the join if the member needs a generation to commit in, or a member id to leave with.
        """
        is_named = bool(self._member_id or self._settings.instance_id) or self.state is ClassicState.WAITING
        if is_named and not self.owned:
            return self._leave()
        if is_named and (self.state is ClassicState.WAITING or not event.is_owing):
            return self._close()
        if self._stop_at is None:
            self._stop_at = now + self._settings.stop_max_wait_s
        return None

    def close_lost(self, event: GroupEvent, _now: float) -> None:
        """Report the loss while closing: nothing can be committed, and without a member id no leave is sent."""
        self._reason = "the membership was lost"
        self._release_lost(self.owned, is_last=True)
        self.owned = frozenset()
        self._generation = -1
        if not isinstance(event, GenerationLost):
            self._member_id = ""

    def rejoin(self, _event: GroupEvent, now: float) -> None:
        """Join the next generation without the released partitions."""
        assert isinstance(self._awaited, Release)
        self.owned -= self._awaited.partitions
        self._ready -= self._awaited.partitions
        self._join_at = now

    def back_off(self, event: GroupEvent, now: float) -> ClassicState | None:
        """Join again after an exponential backoff."""
        if isinstance(event, CoordinatorGone):
            self._effects.append(ForgetCoordinator(event.reason))
        self._failures += 1
        return self.schedule_join(event, now + self._backoff.pause_s(self._failures, self._chance()))

    def find_coordinator(self, event: CoordinatorGone, now: float) -> None:
        """Find the coordinator again; the membership continues."""
        self.retry_heartbeat(event, now)
        self._effects.append(ForgetCoordinator(event.reason))

    def retry_heartbeat(self, _event: GroupEvent, now: float) -> None:
        """Send another heartbeat soon; the session continues."""
        self._heartbeat.failed(now, self._settings.retry_first_s)

    def check_partition_counts(self, event: PartitionsChanged, now: float) -> ClassicState | None:
        """Rebalance if this member is the leader and a topic of any member has grown, appeared or disappeared."""
        if self._lead is None or not self._lead.is_outdated_by(event.counts):
            return None
        self._reason = "partitions or topics were added or removed"
        return self._regroup(now)

    def leave(self, _event: GroupEvent, _now: float) -> ClassicState:
        """Leave the group; a static member stays in the group unless ``leaves_on_stop`` is set."""
        return self._leave()

    def forget(self, _event: GroupEvent, _now: float) -> ClassicState:
        """Forget the membership."""
        return self._end()

    def fail(self, event: MembershipFailed, _now: float) -> ClassicState:
        """Report the error and give up the partitions: joining again would not help."""
        return self._fail(event.error)

    def report_failure(self, event: MembershipFailed, _now: float) -> None:
        """Report an error that comes too late to change anything."""
        self._effects.append(FailMembership(event.error))

    # ---- inside ------------------------------------------------------------------------------------------------

    def _regroup(self, now: float) -> ClassicState:
        """Join the next generation: at once if the member is cooperative, else after it has released all partitions."""
        return self._wait_until(now) if self._is_cooperative else self._release(self.owned)

    def _close(self) -> ClassicState:
        self._taking = self._stop_at = None
        self._do(Release(self.owned, is_lost=False, is_last=True, reason="the consumer stops"))
        return ClassicState.CLOSING

    def _leave(self) -> ClassicState:
        self.owned, self._taking, self._stop_at = frozenset(), None, None
        if not (self._member_id and self._settings.leaves_on_stop):
            return self._end()
        self._do(SendLeave(self.identity, "the consumer stops"))
        return ClassicState.LEAVING

    def _end(self) -> ClassicState:
        self._member_id, self._generation, self.owned = "", -1, frozenset()
        return ClassicState.LEFT

    def _fail(self, error: TailraceError) -> ClassicState:
        self._reason = str(error)
        self._release_lost(self.owned, is_last=True)
        self._effects.append(FailMembership(error))
        self.owned = self._ready = frozenset()
        is_own_fault = isinstance(error, RebalanceError | ConfigurationError)
        if not (is_own_fault and self._member_id and self._settings.leaves_on_stop):
            return ClassicState.FAILED
        # Only this member is at fault: it leaves, so that the others need not wait until its session expires.
        self._do(SendLeave(self.identity, "the consumer failed"))
        return ClassicState.LEAVING

    def _release(self, partitions: Partitions) -> ClassicState:
        self._taking = None
        self._do(Release(partitions, is_lost=False, is_last=False, reason=self._reason))
        return ClassicState.RELEASING

    def _release_lost(self, partitions: Partitions, *, is_last: bool) -> None:
        self._taking = self._stop_at = None
        self._do(Release(partitions, is_lost=True, is_last=is_last, reason=self._reason))

    def _wait_until(self, at: float) -> ClassicState:
        self._join_at = at
        return ClassicState.WAITING

    def _do(self, effect: Effect) -> None:
        """Emit ``effect`` and await its outcome."""
        self._effects.append(effect)
        self._awaited = effect

    def _enter(self, member_id: str, generation: int, protocol: str, now: float) -> None:
        self._member_id, self._generation, self._protocol = member_id, generation, protocol
        # The session began when the coordinator sent the answer, which may be long ago. A member that owns partitions
        # counts from its last acknowledged heartbeat. A member without partitions counts from now, because its sync
        # reaches the coordinator even later.
        self._heartbeat.reset(now - self._heartbeat.age_s(now) if self.owned else now)

    def _send_join(self) -> None:
        self._joined_topics = self._topics
        subscription = MemberSubscription(
            tuple(sorted(self._topics)),
            owned_partitions=by_topic(self.owned),
            generation_id=self._generation,
            rack_id=self._settings.rack,
        )
        offers = tuple((name, subscription) for name in self._strategies)
        self._do(SendJoin(self._member_id, offers, self._reason, self._settings.max_wait_s, *self._last_assignment))

    def _send_sync(self, assignments: Mapping[str, MemberAssignment]) -> None:
        self._do(SendSync(self.identity, self._protocol, assignments, self._settings.max_wait_s))
