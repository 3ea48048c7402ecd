"""State machine of a group member: its vocabulary, and what the machines of both protocols have in common.

Pure: no clock, IO or logging.

A machine receives *events* and emits *effects*; both are plain values, with all the data that is needed to handle or
perform them. ``consumer.group.membership`` performs the effects and reports their outcomes as events. The machines are
in ``consumer.group.classic`` and ``consumer.group.kip848``. All times are in seconds, of one clock.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import TypeAlias, TypeVar
from uuid import UUID

import msgspec

from tailrace.core.backoff import Backoff
from tailrace.core.group_requests import Identity
from tailrace.core.machine import StateMachine, TransitionTable
from tailrace.errors import (
    BrokerError,
    ConfigurationError,
    FencedMemberError,
    GroupAuthorizationFailedError,
    GroupError,
    TailraceError,
)
from tailrace.protocol.groups import MemberAssignment, MemberSubscription, OwnedPartitions
from tailrace.records import TopicPartition
from tailrace.values import Value

__all__ = [
    "CoordinatorGone",
    "DescribeGroup",
    "Effect",
    "FindPartitions",
    "FindTopicNames",
    "ForgetCoordinator",
    "GenerationLost",
    "GroupDescribed",
    "GroupEvent",
    "GroupMachine",
    "Heartbeat",
    "HeartbeatAnswered",
    "HeartbeatOutcome",
    "Identity",
    "InstanceHeld",
    "InstanceReleased",
    "JoinDue",
    "JoinedAsFollower",
    "JoinedAsLeader",
    "LeaveAnswered",
    "MemberIdAssigned",
    "MemberLost",
    "MemberSettings",
    "MembershipFailed",
    "MetadataRefreshed",
    "Partitions",
    "PartitionsFound",
    "PollIntervalClock",
    "PollingResumed",
    "PollingStalled",
    "RebalanceCalled",
    "Release",
    "Released",
    "ReportAssignmentFault",
    "ReportGroupError",
    "RequestEffect",
    "Resubscribed",
    "RetryLater",
    "SendGroupHeartbeat",
    "SendHeartbeat",
    "SendJoin",
    "SendLeave",
    "SendSync",
    "SessionKnown",
    "SessionOver",
    "StartMembership",
    "StopDue",
    "StopMembership",
    "Synced",
    "TakeOver",
    "TakenOver",
    "TopicNamesFound",
    "leaves_after",
]

Partitions: TypeAlias = frozenset[TopicPartition]


class GroupEvent(Value):
    """Base of all events of a membership."""


# ---- from the consumer -----------------------------------------------------------------------------------------------


class StartMembership(GroupEvent):
    """The membership begins."""


class Resubscribed(GroupEvent):
    """The subscription changed."""

    topics: frozenset[str]


class MetadataRefreshed(GroupEvent):
    """Cluster metadata was refreshed: topics may have been created or deleted, or have more partitions."""

    counts: Mapping[str, int]
    """Partition counts by topic: 0 for a topic that does not exist, no entry for a topic without metadata."""


class PollingStalled(GroupEvent):
    """The application has not polled for ``max_poll_interval_ms`` (KIP-62)."""

    error: TailraceError


class PollingResumed(GroupEvent):
    """The application polls again."""


class StopMembership(GroupEvent):
    """The consumer is stopping."""

    may_commit: bool = True
    """True if offsets may have to be committed when the partitions are released."""


# ---- from the machine's own timer (``handle_timer``) -----------------------------------------------------------------


class JoinDue(GroupEvent):
    """A join is due, at once or after a pause; see ``ClassicMember.handle_timer``."""


class StopDue(GroupEvent):
    """The time for which a stop waits for the end of a rebalance is over."""


class SessionOver(GroupEvent):
    """No heartbeat was acknowledged within the session timeout."""

    reason: str


# ---- a join and a sync of the classic protocol, with their answers ---------------------------------------------------


class SendJoin(Value):
    """JoinGroup request, which the coordinator may hold until all members have joined."""

    member_id: str
    subscriptions: tuple[tuple[str, MemberSubscription], ...]
    """Subscriptions by assignor, most preferred first."""
    reason: str
    timeout_s: float
    last_assigned: tuple[OwnedPartitions, ...] = ()
    """Last assignment of this member, for eager sticky assignors."""
    last_generation: int = -1
    """Generation of ``last_assigned``; -1 if there was no assignment."""


class MemberIdAssigned(GroupEvent):
    """The coordinator assigned a member id, with which the member has to repeat its join (KIP-394)."""

    member_id: str


class JoinedAsFollower(GroupEvent):
    """A generation began, and another member computes the assignment."""

    member_id: str
    generation: int
    protocol: str
    """Protocol that the coordinator chose; in a consumer group, the name of an assignor."""


class JoinedAsLeader(GroupEvent):
    """A generation began, and this member computes the assignment."""

    member_id: str
    generation: int
    protocol: str
    members: Mapping[str, MemberSubscription]
    """Subscriptions of all members, by member id."""
    instances: Mapping[str, str]
    """Instance ids of static members, by member id."""
    skip_assignment: bool = False
    """True if the group keeps its assignment, so that the leader must send none (KIP-814)."""


class FindPartitions(Value):
    """Lookup of the partition counts of topics, for the leader."""

    topics: frozenset[str]


class PartitionsFound(GroupEvent):
    """Partition counts of the members' topics; topics that do not exist are left out."""

    counts: Mapping[str, int]
    racks: Mapping[TopicPartition, frozenset[str]] = msgspec.field(default_factory=dict)
    """Racks of each partition's replicas, for rack-aware assignors (KIP-881)."""


class SendSync(Value):
    """SyncGroup request."""

    identity: Identity
    protocol: str
    assignments: Mapping[str, MemberAssignment]
    """Partitions of every member, by member id; empty if this member is not the leader."""
    timeout_s: float


class Synced(GroupEvent):
    """The coordinator answered the sync with the partitions of this member."""

    assignment: MemberAssignment
    missing: frozenset[TopicPartition] = frozenset()
    """Assigned partitions that do not exist, according to metadata received after the assignment."""
    fault: str = ""
    """Reason why the assignment could not be read, for which it is empty; empty if it was read."""


class DescribeGroup(Value):
    """Lookup of the subscription and assignment of each member, as the coordinator has stored them."""

    protocol: str
    """Assignor of the generation, which decides how subscriptions are read."""


class GroupDescribed(GroupEvent):
    """The coordinator returned the subscription and assignment of each member, or the lookup failed."""

    members: Mapping[str, tuple[MemberSubscription, MemberAssignment]] | None
    """By member id; empty if the group has no classic members, None if the group rebalances or the lookup failed."""
    counts: Mapping[str, int] = msgspec.field(default_factory=dict)
    """Partition counts of the members' topics; topics that do not exist are left out."""


# ---- heartbeats, and under KIP-848 the target assignment in their answers --------------------------------------------


class SendHeartbeat(Value):
    """Heartbeat request of the classic protocol."""

    identity: Identity
    timeout_s: float


class SendGroupHeartbeat(Value):
    """ConsumerGroupHeartbeat request (KIP-848). An optional field is None if it has not changed or is not used."""

    identity: Identity
    timeout_s: float
    topics: frozenset[str] | None = None
    pattern: str | None = None
    assignor: str | None = None
    rebalance_timeout_s: float | None = None
    rack: str | None = None
    owned: Mapping[UUID, tuple[int, ...]] | None = None
    """Partition numbers that the member owns, by topic id."""


class HeartbeatAnswered(GroupEvent):
    """The coordinator acknowledged a heartbeat. The fields are those of KIP-848."""

    epoch: int = -1
    """Member epoch."""
    interval_s: float = 0.0
    """Time until the next heartbeat."""
    assigned: Mapping[UUID, tuple[int, ...]] | None = None
    """Assigned partition numbers by topic id; None if the target assignment has not changed."""


class HeartbeatOutcome(GroupEvent):
    """Outcome of a heartbeat of the classic protocol, which may be in flight together with another request.

    It is in no transition table: ``ClassicMember.receive`` checks the identity, and then handles ``outcome``.
    """

    identity: Identity
    """Identity in the heartbeat; an outcome for an earlier identity is ignored."""
    outcome: GroupEvent


class FindTopicNames(Value):
    """Lookup of the topic names that belong to topic ids (KIP-848)."""

    topic_ids: frozenset[UUID]


class TopicNamesFound(GroupEvent):
    """Topic names by topic id; ids that are not in the cluster metadata are left out."""

    names: Mapping[UUID, str]


class SessionKnown(GroupEvent):
    """The session timeout of the group was read from the broker, where it is configured under KIP-848."""

    timeout_s: float


class InstanceHeld(GroupEvent):
    """The group holds the instance id of this static member for another member, which may have died (KIP-848)."""

    error: TailraceError
    """Error to report if the group still holds the instance id after a session."""


class InstanceReleased(GroupEvent):
    """The group no longer holds the instance id for this static member, so the member may join with the id again."""


# ---- takeover and release of partitions ------------------------------------------------------------------------------


class TakeOver(Value):
    """Takeover of assigned partitions: find their start positions, call the application's callbacks, then fetch."""

    added: Partitions
    kept: Partitions
    """Partitions that an earlier takeover has made ready."""
    identity: Identity
    protocol: str
    """Protocol of the generation; in a consumer group, the name of an assignor."""
    is_leader: bool
    topic_ids: Mapping[str, UUID] = msgspec.field(default_factory=dict)
    """Ids of the topics of ``added`` (KIP-848), by name; without an entry, the group assigns the topic by name."""


class TakenOver(GroupEvent):
    """``TakeOver`` was performed: the added partitions can be fetched."""


class Release(Value):
    """Release of partitions: after records in flight are finished and offsets committed, or at once after a loss."""

    partitions: Partitions
    is_lost: bool
    """True if other members may already own the partitions, so that nothing may be committed."""
    is_last: bool
    """True if the member stops, so that records in flight are not awaited: no poll would finish them.

    An App has awaited or canceled its handlers before.
    """
    reason: str


class Released(GroupEvent):
    """``Release`` was performed: the consumer has removed the partitions."""


# ---- leave -----------------------------------------------------------------------------------------------------------


class SendLeave(Value):
    """LeaveGroup request; under KIP-848, the heartbeat that leaves the group."""

    identity: Identity
    reason: str


class LeaveAnswered(GroupEvent):
    """The coordinator acknowledged the leave, or the leave failed and is not repeated."""


# ---- outcomes that a request may have in place of its answer ---------------------------------------------------------


class RebalanceCalled(GroupEvent):
    """The group rebalances, so the member has to join again."""

    reason: str = "the group rebalances"


class RetryLater(GroupEvent):
    """The coordinator refused a request, which can be repeated after a pause."""

    reason: str
    error: TailraceError | None = None
    """Error to report if repeating the request does not help in time; None to repeat it without a limit."""


class CoordinatorGone(GroupEvent):
    """The broker to which the request was sent is no longer the coordinator, or does not answer."""

    reason: str


class GenerationLost(GroupEvent):
    """The group has left the generation (or member epoch) of the request, but still knows the member id."""

    reason: str


class MemberLost(GroupEvent):
    """The group does not know the member id."""

    reason: str


class MembershipFailed(GroupEvent):
    """An error occurred that a repeated request cannot resolve."""

    error: TailraceError


# ---- reports ---------------------------------------------------------------------------------------------------------


class ForgetCoordinator(Value):
    """Removal of the known coordinator, so that the next request looks up the coordinator again."""

    reason: str


class ReportAssignmentFault(Value):
    """Fault of the group's assignment, such as partitions without an owner; the membership continues."""

    partitions: Partitions
    fault: str
    """Description of the fault; empty if the fault that was last reported is over."""


class ReportGroupError(Value):
    """Error that the application's next poll raises."""

    error: TailraceError
    is_fatal: bool
    """True if the error ends the membership; False if the membership continues."""


RequestEffect: TypeAlias = (
    SendJoin
    | SendSync
    | SendHeartbeat
    | SendGroupHeartbeat
    | SendLeave
    | FindPartitions
    | FindTopicNames
    | DescribeGroup
)
"""Effects that are performed by requests to brokers."""

Effect: TypeAlias = RequestEffect | TakeOver | Release | ForgetCoordinator | ReportAssignmentFault | ReportGroupError


# ---- machine of one member, for both protocols -----------------------------------------------------------------------

_JOIN_GRACE_S = 5.0
"""Time allowed for the network, in addition to the rebalance timeout."""


@dataclass(frozen=True, slots=True)
class MemberSettings:
    """Settings of a membership."""

    group_id: str
    topics: frozenset[str]
    session_timeout_s: float
    heartbeat_interval_s: float
    rebalance_timeout_s: float
    request_timeout_s: float
    retry_first_s: float
    retry_longest_s: float
    leaves_on_stop: bool
    """True if the member leaves the group when it stops; False if it remains a member until its session expires."""
    stop_max_wait_s: float = 5.0
    """Longest time for which a stop waits for the end of a rebalance; until then, the group accepts no commits."""
    instance_id: str | None = None
    """``group_instance_id`` of a static member; None for other members."""
    has_subscription: bool = True
    """False for a GroupMember, whose assignment is a placeholder that does not depend on topics."""
    rack: str | None = None
    """``client_rack``, for rack-aware assignors."""
    pattern: str | None = None
    """Regular expression that the broker matches against topic names (KIP-848); None to subscribe to ``topics``."""
    remote_assignor: str | None = None
    """Assignor that the broker is to use (KIP-848); None for the broker's default."""

    @property
    def max_wait_s(self) -> float:
        """Timeout of a join or sync, which the coordinator may hold until all members have sent theirs."""
        return max(self.request_timeout_s, self.rebalance_timeout_s + _JOIN_GRACE_S)


StateT = TypeVar("StateT", bound=StrEnum)


class GroupMachine(StateMachine[StateT, GroupEvent, Effect]):
    """State machine of one member of one group, driven by one coroutine.

    The coroutine reports the outcome of a request only if ``awaits`` returns True for the request, and an error in the
    answer to a commit only if ``is_current`` returns True for the identity in the commit. It reports each outcome of a
    classic heartbeat (``HeartbeatOutcome``), and each error of a takeover or release.

    Args:
        table: transitions of the member.
        state: state before the start.
        settings: settings of the membership.
        chance: returns a number in [0, 1) for jitter.
    """

    def __init__(
        self,
        table: TransitionTable[StateT],
        state: StateT,
        settings: MemberSettings,
        chance: Callable[[], float],
    ) -> None:
        super().__init__(table, state)
        self._settings, self._chance = settings, chance
        self._backoff = Backoff(settings.retry_first_s, settings.retry_longest_s)
        self._awaited: Effect | None = None
        """Effect whose outcome decides the next step; None if there is none. See ``awaits`` for others."""

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.identity.member_id or 'new'} of {self._settings.group_id} {self.state}>"

    @property
    @abstractmethod
    def identity(self) -> Identity:
        """Identity of this member in its requests."""

    @property
    @abstractmethod
    def is_member(self) -> bool:
        """True while this member is in a generation of the group, so that it may commit and has to send heartbeats."""

    @abstractmethod
    def is_current(self, identity: Identity) -> bool:
        """Return True if the member has to react to an error that answers a request sent as ``identity``."""

    @abstractmethod
    def awaits(self, effect: Effect) -> bool:
        """Return True if the member awaits the outcome of ``effect``."""

    @abstractmethod
    def heartbeat_age_s(self, now: float) -> float:
        """Return the seconds since the last acknowledged heartbeat was sent."""

    @abstractmethod
    def handle_timer(self, now: float) -> None:
        """Perform all steps that are due at ``now``."""

    @abstractmethod
    def next_deadline(self) -> float | None:
        """Return the time at which ``handle_timer`` is due; None for never."""

    def report_failure(self, event: MembershipFailed, _now: float) -> None:
        """Report the error of a callback that ended after the leave was sent."""
        self._effects.append(ReportGroupError(event.error, is_fatal=True))

    def _emit_awaited(self, effect: Effect) -> None:
        """Emit ``effect`` and await its outcome, instead of the outcome awaited so far."""
        self._effects.append(effect)
        self._awaited = effect


def leaves_after(error: TailraceError) -> bool:
    """Return True if a member that fails with ``error`` has to leave the group.

    Other members may continue. They need not wait until the session of the failed member expires, because it leaves.
    """
    if isinstance(error, FencedMemberError | GroupAuthorizationFailedError):
        return False  # The coordinator would refuse the leave, too.
    return isinstance(error, BrokerError | ConfigurationError | GroupError)


# ---- times of a member's heartbeats and of its session ---------------------------------------------------------------


@dataclass(slots=True)
class Heartbeat:
    """Heartbeat and session timer of one membership.

    Each acknowledged heartbeat begins a new session, at the time at which the heartbeat was *sent*. The broker receives
    the heartbeat later, so the member considers its session expired no later than the broker does.
    """

    session_timeout_s: float
    interval_s: float
    _alive_since: float = 0.0
    """Start of the current session."""
    _next_at: float = 0.0
    """Time of the next heartbeat, if no heartbeat is in flight then."""
    _sent_at: float | None = None
    """Time at which the heartbeat in flight was sent; None if no heartbeat is in flight."""
    failures: int = 0
    """Number of heartbeats that failed since the last acknowledged heartbeat, for the backoff."""

    def reset(self, now: float) -> None:
        """Start a new session at ``now``, and schedule a heartbeat one interval later."""
        self._alive_since = now
        self._next_at = now + self.interval_s
        self._sent_at = None
        self.failures = 0

    def note_sent(self, now: float) -> None:
        """Note that a heartbeat was sent; no other heartbeat is due until it is acknowledged or has failed."""
        self._sent_at = now
        self._next_at = now + self.interval_s

    def note_answer(self, now: float) -> None:
        """Note that the heartbeat was acknowledged, so that the session begins at the time at which it was sent."""
        if self._sent_at is not None:
            self._alive_since = max(self._alive_since, self._sent_at)
            self._sent_at = None
        self._next_at = max(self._next_at, now)
        self.failures = 0

    def note_failure(self, now: float, pause_s: float) -> None:
        """Note that the heartbeat failed; the next heartbeat is due after ``pause_s``."""
        self._sent_at = None
        self._next_at = now + pause_s
        self.failures += 1

    def should_heartbeat(self, now: float) -> bool:
        """Return True if a heartbeat is due and none is in flight."""
        return self._sent_at is None and now >= self._next_at

    def session_expired(self, now: float) -> bool:
        return now >= self.expires_at

    @property
    def expires_at(self) -> float:
        """Time at which the session ends unless another heartbeat is acknowledged."""
        return self._alive_since + self.session_timeout_s

    @property
    def next_at(self) -> float:
        """Time at which a heartbeat is due or the session ends, whichever comes first."""
        return self.expires_at if self._sent_at is not None else min(self._next_at, self.expires_at)

    def age_s(self, now: float) -> float:
        """Return the seconds since the last acknowledged heartbeat was sent."""
        return now - self._alive_since


# ---- detection of an application that does not poll although records wait for it (KIP-62) ----------------------------


@dataclass(slots=True)
class PollIntervalClock:
    """Timer that detects an application that is stuck, from snapshots of its progress."""

    limit_s: float
    """``max_poll_interval_ms``, in seconds."""
    is_stuck: bool = field(default=False, init=False)
    _seen: object = field(default=None, init=False)
    """Progress at the last call of ``look``."""
    _since: float = field(default=0.0, init=False)
    """Last time at which the application polled or had nothing to poll."""

    def look(self, progress: object, now: float, *, awaits_poll: bool) -> None:
        """Compare ``progress`` with the last snapshot, and update ``is_stuck``.

        ``is_stuck`` becomes True if the application has not polled for ``limit_s`` although ``awaits_poll`` was true.
        It becomes False when ``progress`` changes.

        Args:
            progress: value that changes whenever the application polls.
            now: current time in seconds.
            awaits_poll: True if the application has records in flight or could poll some, and is not waiting in a poll.
        """
        if progress != self._seen:
            self._seen, self._since, self.is_stuck = progress, now, False
        elif not self.is_stuck and not awaits_poll:
            self._since = now
        elif now - self._since >= self.limit_s:
            self.is_stuck = True

    def next_at(self, now: float) -> float:
        """Return the time of the next call of ``look``: ``is_stuck`` is set at most a quarter of the limit late."""
        return now + self.limit_s / 4
