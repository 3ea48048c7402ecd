"""Events of a group membership, for both protocols.

Each event is a plain value. Its name states what happened, not how the member reacts.
"""

from __future__ import annotations

from collections.abc import Mapping
from uuid import UUID

import msgspec

from tailrace.core.group.error_reactions import Identity
from tailrace.errors import TailraceError
from tailrace.protocol.member_metadata import MemberAssignment, MemberSubscription
from tailrace.records import TopicPartition
from tailrace.values import Value

__all__ = [
    "CoordinatorGone",
    "GenerationLost",
    "GroupDescribed",
    "GroupEvent",
    "GroupHeartbeatAnswered",
    "HeartbeatAnswered",
    "HeartbeatOutcome",
    "InstanceHeld",
    "InstanceReleased",
    "JoinDue",
    "JoinedAsFollower",
    "JoinedAsLeader",
    "LeaveAnswered",
    "MemberIdAssigned",
    "MemberLost",
    "MembershipFailed",
    "PartitionsChanged",
    "PartitionsFound",
    "PollingResumed",
    "PollingStalled",
    "RebalanceCalled",
    "Released",
    "Resubscribed",
    "RetryLater",
    "SessionKnown",
    "SessionOver",
    "StartMembership",
    "StopDue",
    "StopMembership",
    "Synced",
    "TakenOver",
    "TopicNamesFound",
]


class GroupEvent(Value):
    """Base of all events of a membership."""


class StartMembership(GroupEvent):
    """The membership begins."""


class Resubscribed(GroupEvent):
    """The subscription changed."""

    topics: frozenset[str]


class StopDue(GroupEvent):
    """The time for which a stop waits for the end of a rebalance is over; created by ``Membership.handle_timer``."""


class JoinDue(GroupEvent):
    """A join is due, at once or after a pause; created by ``Membership.handle_timer``."""


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
    """Protocol that the coordinator chose; in a consumer group, the name of an assignor."""
    members: Mapping[str, MemberSubscription]
    """Subscriptions of all members, by member id."""
    instances: Mapping[str, str]
    """Instance ids of static members, by member id."""
    skip_assignment: bool = False
    """True if the group keeps its assignment, so that the leader must send none (KIP-814)."""


class PartitionsFound(GroupEvent):
    """Partition counts of the members' topics; topics that do not exist are left out."""

    counts: Mapping[str, int]
    racks: Mapping[TopicPartition, frozenset[str]] = msgspec.field(default_factory=dict)
    """Racks of each partition's replicas, for rack-aware assignors (KIP-881)."""


class Synced(GroupEvent):
    """The coordinator answered the sync with the partitions of this member."""

    assignment: MemberAssignment
    missing: frozenset[TopicPartition] = frozenset()
    """Assigned partitions that do not exist, according to metadata received after the assignment."""
    fault: str = ""
    """Reason why the assignment could not be read, for which it is empty; empty if it was read."""


class GroupDescribed(GroupEvent):
    """The coordinator returned the subscription and assignment of each member, or the lookup failed."""

    members: Mapping[str, tuple[MemberSubscription, MemberAssignment]] | None
    """By member id; empty if the group has no classic members, None if the group rebalances or the lookup failed."""
    counts: Mapping[str, int] = msgspec.field(default_factory=dict)
    """Partition counts of the members' topics; topics that do not exist are left out."""


class TakenOver(GroupEvent):
    """``TakeOver`` was performed: the added partitions can be fetched."""


class Released(GroupEvent):
    """``Release`` was performed: the consumer has removed the partitions."""


class PartitionsChanged(GroupEvent):
    """Cluster metadata was refreshed: topics may have been created or deleted, or have more partitions."""

    counts: Mapping[str, int]
    """Partition counts by topic: 0 for a topic that does not exist, no entry for a topic without metadata."""


class HeartbeatAnswered(GroupEvent):
    """The coordinator acknowledged a heartbeat of the classic protocol."""


class HeartbeatOutcome(GroupEvent):
    """Outcome of one heartbeat of the classic protocol."""

    identity: Identity
    """Identity in the heartbeat; an outcome for an earlier identity is ignored."""
    outcome: GroupEvent


class GroupHeartbeatAnswered(GroupEvent):
    """The coordinator acknowledged a KIP-848 heartbeat; its answer may contain a new target assignment."""

    member_id: str
    epoch: int
    """Member epoch."""
    interval_s: float
    """Time until the next heartbeat."""
    assigned: Mapping[UUID, tuple[int, ...]] | None = None
    """Assigned partition numbers by topic id; None if the target assignment has not changed."""


class InstanceHeld(GroupEvent):
    """The group holds the instance id of this static member for another member, which may have died (KIP-848)."""

    error: TailraceError
    """Error to report if the group still holds the instance id after a session."""


class InstanceReleased(GroupEvent):
    """The group no longer holds the instance id for this static member, so the member may join with the id again."""


class TopicNamesFound(GroupEvent):
    """Topic names by topic id; ids that are not in the cluster metadata are left out."""

    names: Mapping[UUID, str]


class SessionKnown(GroupEvent):
    """The session timeout of the group was read from the broker, where it is configured under KIP-848."""

    timeout_s: float


class LeaveAnswered(GroupEvent):
    """The coordinator acknowledged the leave, or the leave failed and is not repeated."""


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


class SessionOver(GroupEvent):
    """No heartbeat was acknowledged within the session timeout; created by ``Membership.handle_timer``."""

    reason: str


class MembershipFailed(GroupEvent):
    """An error occurred that a repeated request cannot resolve."""

    error: TailraceError


class PollingStalled(GroupEvent):
    """The application has not polled for ``max_poll_interval_ms`` (KIP-62)."""

    error: TailraceError


class PollingResumed(GroupEvent):
    """The application polls again."""


class StopMembership(GroupEvent):
    """The consumer is stopping."""

    may_commit: bool = True
    """True if offsets may have to be committed when the partitions are released."""
