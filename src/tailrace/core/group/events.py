"""Events of a group membership, for both protocols.

Each event is a plain value, named by what happened and not by the reaction to it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from uuid import UUID

from tailrace.errors import TailraceError
from tailrace.protocol.member_metadata import MemberAssignment, MemberSubscription
from tailrace.records import TopicPartition

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


@dataclass(frozen=True, slots=True)
class Identity:
    """Member id, generation (or member epoch) and instance id of a member, as commits carry them."""

    member_id: str = ""
    generation: int = -1
    instance_id: str | None = None


@dataclass(frozen=True, slots=True)
class GroupEvent:
    """Base of all events of a membership."""


@dataclass(frozen=True, slots=True)
class StartMembership(GroupEvent):
    """The consumer started."""


@dataclass(frozen=True, slots=True)
class Resubscribed(GroupEvent):
    """The subscription changed."""

    topics: frozenset[str]


@dataclass(frozen=True, slots=True)
class StopDue(GroupEvent):
    """A stop has waited long enough for the end of a rebalance; emitted by the membership's own timer."""


@dataclass(frozen=True, slots=True)
class JoinDue(GroupEvent):
    """The pause before a join is over; emitted by the membership's own timer."""


@dataclass(frozen=True, slots=True)
class MemberIdAssigned(GroupEvent):
    """The coordinator assigned a member id to join with (KIP-394)."""

    member_id: str


@dataclass(frozen=True, slots=True)
class JoinedAsFollower(GroupEvent):
    """A generation began, and another member computes the assignment."""

    member_id: str
    generation: int
    protocol: str


@dataclass(frozen=True, slots=True)
class JoinedAsLeader(GroupEvent):
    """A generation began, and this member computes the assignment."""

    member_id: str
    generation: int
    protocol: str
    members: Mapping[str, MemberSubscription]
    instances: Mapping[str, str]
    """Instance ids of static members, by member id."""
    skip_assignment: bool = False


@dataclass(frozen=True, slots=True)
class PartitionsFound(GroupEvent):
    """Partition counts of the members' topics; topics that do not exist are left out."""

    counts: Mapping[str, int]
    racks: Mapping[TopicPartition, frozenset[str]] = field(default_factory=dict)
    """Racks of each partition's replicas, for rack-aware assignors (KIP-881)."""


@dataclass(frozen=True, slots=True)
class Synced(GroupEvent):
    """The group assigned partitions to this member."""

    assignment: MemberAssignment


@dataclass(frozen=True, slots=True)
class TakenOver(GroupEvent):
    """The takeover is complete: the partitions are being consumed."""


@dataclass(frozen=True, slots=True)
class Released(GroupEvent):
    """The release is complete: the partitions are no longer consumed."""


@dataclass(frozen=True, slots=True)
class PartitionsChanged(GroupEvent):
    """Cluster metadata was refreshed; topics may have grown, appeared or disappeared."""

    counts: Mapping[str, int]


@dataclass(frozen=True, slots=True)
class HeartbeatAnswered(GroupEvent):
    """The group acknowledged a heartbeat."""


@dataclass(frozen=True, slots=True)
class HeartbeatOutcome(GroupEvent):
    """Outcome of one heartbeat, with the identity that the heartbeat carried."""

    identity: Identity
    outcome: GroupEvent


@dataclass(frozen=True, slots=True)
class GroupHeartbeatAnswered(GroupEvent):
    """The group acknowledged a KIP-848 heartbeat; the answer may bring a new target assignment."""

    member_id: str
    epoch: int
    interval_s: float
    assigned: Mapping[UUID, tuple[int, ...]] | None = None
    """Target assignment by topic id; None if unchanged since the last answer that had a target assignment."""


@dataclass(frozen=True, slots=True)
class InstanceReleased(GroupEvent):
    """The group released this member's instance id, so the member may join with it again."""


@dataclass(frozen=True, slots=True)
class TopicNamesFound(GroupEvent):
    """Topic names by id, from cluster metadata; ids that are not in the metadata are left out."""

    names: Mapping[UUID, str]


@dataclass(frozen=True, slots=True)
class SessionKnown(GroupEvent):
    """The session timeout was read from the broker, which decides it under KIP-848."""

    timeout_s: float


@dataclass(frozen=True, slots=True)
class LeaveAnswered(GroupEvent):
    """The group acknowledged the leave, or the attempts to send the leave ended."""


@dataclass(frozen=True, slots=True)
class RebalanceCalled(GroupEvent):
    """The group began a new generation."""

    reason: str = "the group rebalances"


@dataclass(frozen=True, slots=True)
class RetryLater(GroupEvent):
    """The coordinator refused a request that can be repeated after a pause."""

    reason: str


@dataclass(frozen=True, slots=True)
class CoordinatorGone(GroupEvent):
    """The broker is no longer the coordinator, or does not answer."""

    reason: str


@dataclass(frozen=True, slots=True)
class GenerationLost(GroupEvent):
    """The group continued without this member, but still knows its member id."""

    reason: str


@dataclass(frozen=True, slots=True)
class MemberLost(GroupEvent):
    """The group does not know this member any more."""

    reason: str


@dataclass(frozen=True, slots=True)
class SessionOver(GroupEvent):
    """No heartbeat was acknowledged for a whole session; emitted by the membership's own timer."""

    reason: str


@dataclass(frozen=True, slots=True)
class MembershipFailed(GroupEvent):
    """An error occurred from which the membership cannot recover."""

    error: TailraceError


@dataclass(frozen=True, slots=True)
class PollingStalled(GroupEvent):
    """The application has not polled for ``max_poll_interval_ms`` (KIP-62)."""

    error: TailraceError


@dataclass(frozen=True, slots=True)
class PollingResumed(GroupEvent):
    """The application polls again."""


@dataclass(frozen=True, slots=True)
class StopMembership(GroupEvent):
    """The consumer is stopping."""

    is_owing: bool = True
    """True if there may be offsets to commit before the partitions go to another member."""
