"""What a membership is told: everything that may happen to a member of a group, whichever protocol it speaks.

Rule of this file: plain values, named by what has happened and never by what is to be done about it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from uuid import UUID

from tailrace.errors import TailraceError
from tailrace.protocol.member_metadata import MemberAssignment, MemberSubscription
from tailrace.records import TopicPartition

__all__ = [
    "Beat",
    "CoordinatorGone",
    "GenerationLost",
    "GroupEvent",
    "GroupHeartbeatAnswered",
    "HeartbeatAnswered",
    "Identity",
    "InstanceReleased",
    "JoinDue",
    "JoinedAsFollower",
    "JoinedAsLeader",
    "LeaveAnswered",
    "MemberIdGiven",
    "MemberLost",
    "MembershipFailed",
    "NotNow",
    "PartitionsChanged",
    "PartitionsFound",
    "RebalanceCalled",
    "Released",
    "Resubscribed",
    "Returned",
    "SessionKnown",
    "SessionOver",
    "Stalled",
    "StartMembership",
    "StopDue",
    "StopMembership",
    "Synced",
    "TakenOver",
    "TopicsNamed",
]


@dataclass(frozen=True, slots=True)
class Identity:
    """Who this member is to the broker: what a commit has to carry."""

    member_id: str = ""
    generation: int = -1
    instance_id: str | None = None


@dataclass(frozen=True, slots=True)
class GroupEvent:
    """The root of what a membership is told."""


@dataclass(frozen=True, slots=True)
class StartMembership(GroupEvent):
    """Become a member."""


@dataclass(frozen=True, slots=True)
class Resubscribed(GroupEvent):
    """The user wants other topics."""

    topics: frozenset[str]


@dataclass(frozen=True, slots=True)
class StopDue(GroupEvent):
    """A member that is to stop has waited long enough for the end of a rebalance; the membership tells itself so."""


@dataclass(frozen=True, slots=True)
class JoinDue(GroupEvent):
    """The pause before a join is over; the membership tells itself so."""


@dataclass(frozen=True, slots=True)
class MemberIdGiven(GroupEvent):
    """The coordinator gave an id to join with (KIP-394)."""

    member_id: str


@dataclass(frozen=True, slots=True)
class JoinedAsFollower(GroupEvent):
    """A generation has begun and somebody else deals out the partitions."""

    member_id: str
    generation: int
    protocol: str


@dataclass(frozen=True, slots=True)
class JoinedAsLeader(GroupEvent):
    """A generation has begun and this member deals out the partitions."""

    member_id: str
    generation: int
    protocol: str
    members: Mapping[str, MemberSubscription]
    instances: Mapping[str, str]
    """The instance ids of static members, by member id."""
    skip_assignment: bool = False


@dataclass(frozen=True, slots=True)
class PartitionsFound(GroupEvent):
    """How many partitions the members' topics have; a topic that does not exist is left out."""

    counts: Mapping[str, int]
    racks: Mapping[TopicPartition, frozenset[str]] = field(default_factory=dict)
    """Where each partition's replicas are, for assignors that care (KIP-881)."""


@dataclass(frozen=True, slots=True)
class Synced(GroupEvent):
    """What this member was given."""

    assignment: MemberAssignment


@dataclass(frozen=True, slots=True)
class TakenOver(GroupEvent):
    """The partitions are being consumed."""


@dataclass(frozen=True, slots=True)
class Released(GroupEvent):
    """The partitions are not ours any more."""


@dataclass(frozen=True, slots=True)
class PartitionsChanged(GroupEvent):
    """The cluster's picture is newer; topics may have grown, come or gone."""

    counts: Mapping[str, int]


@dataclass(frozen=True, slots=True)
class HeartbeatAnswered(GroupEvent):
    """The group knows that we live."""


@dataclass(frozen=True, slots=True)
class Beat(GroupEvent):
    """What came of one heartbeat, and as whom it was sent."""

    identity: Identity
    outcome: GroupEvent


@dataclass(frozen=True, slots=True)
class GroupHeartbeatAnswered(GroupEvent):
    """The same under KIP-848, where the answer also says which partitions are ours to hold."""

    member_id: str
    epoch: int
    interval_s: float
    assigned: Mapping[UUID, tuple[int, ...]] | None = None
    """By topic id; None when nothing has changed since the last answer that said something."""


@dataclass(frozen=True, slots=True)
class InstanceReleased(GroupEvent):
    """The group does not hold this member's instance id for it any more: it may ask for the place anew."""


@dataclass(frozen=True, slots=True)
class TopicsNamed(GroupEvent):
    """Topics by id, as the cluster's picture knows them; an id it does not know is left out."""

    names: Mapping[UUID, str]


@dataclass(frozen=True, slots=True)
class SessionKnown(GroupEvent):
    """How long the group waits for a silent member, where the broker decides that."""

    timeout_s: float


@dataclass(frozen=True, slots=True)
class LeaveAnswered(GroupEvent):
    """The group knows that we go, or will find out."""


@dataclass(frozen=True, slots=True)
class RebalanceCalled(GroupEvent):
    """The group begins a new generation."""

    reason: str = "the group rebalances"


@dataclass(frozen=True, slots=True)
class NotNow(GroupEvent):
    """The coordinator cannot answer yet; ask it again."""

    reason: str


@dataclass(frozen=True, slots=True)
class CoordinatorGone(GroupEvent):
    """It is not the coordinator any more, or does not answer; find the one that is."""

    reason: str


@dataclass(frozen=True, slots=True)
class GenerationLost(GroupEvent):
    """The group went on without us and still knows our id."""

    reason: str


@dataclass(frozen=True, slots=True)
class MemberLost(GroupEvent):
    """The group does not know us any more."""

    reason: str


@dataclass(frozen=True, slots=True)
class SessionOver(GroupEvent):
    """Nothing was acknowledged for a whole session; the membership tells itself so."""

    reason: str


@dataclass(frozen=True, slots=True)
class MembershipFailed(GroupEvent):
    """Nothing can heal this."""

    error: TailraceError


@dataclass(frozen=True, slots=True)
class Stalled(GroupEvent):
    """Nobody has come for records for so long that others should have them (KIP-62)."""

    error: TailraceError


@dataclass(frozen=True, slots=True)
class Returned(GroupEvent):
    """Somebody comes for records again."""


@dataclass(frozen=True, slots=True)
class StopMembership(GroupEvent):
    """The user has had enough."""

    is_owing: bool = True
    """Whether there may be something to commit before the partitions are anybody else's."""
