"""Events of a group membership, for both protocols.

Each event is a plain value, named by what happened and not by the reaction to it.
"""

from __future__ import annotations

from collections.abc import Mapping
from uuid import UUID

import msgspec

from tailrace.errors import TailraceError
from tailrace.protocol.member_metadata import MemberAssignment, MemberSubscription
from tailrace.records import TopicPartition
from tailrace.values import Value

__all__ = [
    "CoordinatorGone",
    "GenerationLost",
    "GroupEvent",
    "GroupHeartbeatAnswered",
    "HeartbeatAnswered",
    "HeartbeatOutcome",
    "Identity",
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


class Identity(Value):
    """Member id, generation (or member epoch) and instance id of a member, as commits carry them."""

    member_id: str = ""
    generation: int = -1
    instance_id: str | None = None


class GroupEvent(Value):
    """Base of all events of a membership."""


class StartMembership(GroupEvent):
    """The consumer started."""


class Resubscribed(GroupEvent):
    """The subscription changed."""

    topics: frozenset[str]


class StopDue(GroupEvent):
    """A stop has waited long enough for the end of a rebalance; emitted by the membership's own timer."""


class JoinDue(GroupEvent):
    """The pause before a join is over; emitted by the membership's own timer."""


class MemberIdAssigned(GroupEvent):
    """The coordinator assigned a member id to join with (KIP-394)."""

    member_id: str


class JoinedAsFollower(GroupEvent):
    """A generation began, and another member computes the assignment."""

    member_id: str
    generation: int
    protocol: str


class JoinedAsLeader(GroupEvent):
    """A generation began, and this member computes the assignment."""

    member_id: str
    generation: int
    protocol: str
    members: Mapping[str, MemberSubscription]
    instances: Mapping[str, str]
    """Instance ids of static members, by member id."""
    skip_assignment: bool = False


class PartitionsFound(GroupEvent):
    """Partition counts of the members' topics; topics that do not exist are left out."""

    counts: Mapping[str, int]
    racks: Mapping[TopicPartition, frozenset[str]] = msgspec.field(default_factory=dict)
    """Racks of each partition's replicas, for rack-aware assignors (KIP-881)."""


class Synced(GroupEvent):
    """The group assigned partitions to this member."""

    assignment: MemberAssignment


class TakenOver(GroupEvent):
    """The takeover is complete: the partitions are being consumed."""


class Released(GroupEvent):
    """The release is complete: the partitions are no longer consumed."""


class PartitionsChanged(GroupEvent):
    """Cluster metadata was refreshed; topics may have grown, appeared or disappeared."""

    counts: Mapping[str, int]


class HeartbeatAnswered(GroupEvent):
    """The group acknowledged a heartbeat."""


class HeartbeatOutcome(GroupEvent):
    """Outcome of one heartbeat, with the identity that the heartbeat carried."""

    identity: Identity
    outcome: GroupEvent


class GroupHeartbeatAnswered(GroupEvent):
    """The group acknowledged a KIP-848 heartbeat; the answer may bring a new target assignment."""

    member_id: str
    epoch: int
    interval_s: float
    assigned: Mapping[UUID, tuple[int, ...]] | None = None
    """Target assignment by topic id; None if unchanged since the last answer that had a target assignment."""


class InstanceReleased(GroupEvent):
    """The group released this member's instance id, so the member may join with it again."""


class TopicNamesFound(GroupEvent):
    """Topic names by id, from cluster metadata; ids that are not in the metadata are left out."""

    names: Mapping[UUID, str]


class SessionKnown(GroupEvent):
    """The session timeout was read from the broker, which decides it under KIP-848."""

    timeout_s: float


class LeaveAnswered(GroupEvent):
    """The group acknowledged the leave, or the attempts to send the leave ended."""


class RebalanceCalled(GroupEvent):
    """The group began a new generation."""

    reason: str = "the group rebalances"


class RetryLater(GroupEvent):
    """The coordinator refused a request that can be repeated after a pause."""

    reason: str


class CoordinatorGone(GroupEvent):
    """The broker is no longer the coordinator, or does not answer."""

    reason: str


class GenerationLost(GroupEvent):
    """The group continued without this member, but still knows its member id."""

    reason: str


class MemberLost(GroupEvent):
    """The group does not know this member any more."""

    reason: str


class SessionOver(GroupEvent):
    """No heartbeat was acknowledged for a whole session; emitted by the membership's own timer."""

    reason: str


class MembershipFailed(GroupEvent):
    """An error occurred from which the membership cannot recover."""

    error: TailraceError


class PollingStalled(GroupEvent):
    """The application has not polled for ``max_poll_interval_ms`` (KIP-62)."""

    error: TailraceError


class PollingResumed(GroupEvent):
    """The application polls again."""


class StopMembership(GroupEvent):
    """The consumer is stopping."""

    is_owing: bool = True
    """True if there may be offsets to commit before the partitions go to another member."""
