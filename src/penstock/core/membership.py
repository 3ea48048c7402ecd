"""What a membership is told and what it wants done, whichever protocol it speaks.

Rule of this file: events go in, effects come out, and both are plain values. The coroutine around a membership does
nothing but perform effects and report back; it decides nothing.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Protocol, TypeAlias
from uuid import UUID

from penstock.errors import PenstockError
from penstock.messages import MemberAssignment, MemberSubscription, OwnedPartitions
from penstock.records import TopicPartition

__all__ = [
    "Beat",
    "CoordinatorGone",
    "Effect",
    "Fail",
    "Failed",
    "FindPartitions",
    "ForgetCoordinator",
    "GenerationLost",
    "GroupEvent",
    "GroupHeartbeatAnswered",
    "HeartbeatAnswered",
    "Identity",
    "JoinDue",
    "JoinedAsFollower",
    "JoinedAsLeader",
    "LeaveAnswered",
    "MemberIdGiven",
    "MemberLost",
    "MemberSettings",
    "Membership",
    "NameTopics",
    "NotNow",
    "Partitions",
    "PartitionsChanged",
    "PartitionsFound",
    "RebalanceCalled",
    "Release",
    "Released",
    "Resubscribed",
    "Returned",
    "SendGroupHeartbeat",
    "SendHeartbeat",
    "SendJoin",
    "SendLeave",
    "SendSync",
    "SessionKnown",
    "SessionOver",
    "Stalled",
    "Start",
    "Stop",
    "StopDue",
    "Synced",
    "TakeOver",
    "TakenOver",
    "Tell",
    "TopicsNamed",
]

Partitions: TypeAlias = frozenset[TopicPartition]

# What the network needs on top of what the group may take.
_JOIN_GRACE_S = 5.0


@dataclass(frozen=True, slots=True)
class Identity:
    """Who this member is to the broker: what a commit has to carry."""

    member_id: str = ""
    generation: int = -1
    instance_id: str | None = None


# ---- events: what has happened ---------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class GroupEvent:
    """The root of what a membership is told."""


@dataclass(frozen=True, slots=True)
class Start(GroupEvent):
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
class Failed(GroupEvent):
    """Nothing can heal this."""

    error: PenstockError


@dataclass(frozen=True, slots=True)
class Stalled(GroupEvent):
    """Nobody has come for records for so long that others should have them (KIP-62)."""

    error: PenstockError


@dataclass(frozen=True, slots=True)
class Returned(GroupEvent):
    """Somebody comes for records again."""


@dataclass(frozen=True, slots=True)
class Stop(GroupEvent):
    """The user has had enough."""

    is_owing: bool = True
    """Whether there may be something to commit before the partitions are anybody else's."""


# ---- effects: what is to be done -------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class SendJoin:
    """Send JoinGroup; it may be held for as long as the slowest member needs."""

    member_id: str
    subscriptions: tuple[tuple[str, MemberSubscription], ...]
    """By assignor, most preferred first."""
    reason: str
    timeout_s: float
    held_before: tuple[OwnedPartitions, ...] = ()
    """What this member held in ``generation``, for eager assignors that like to leave things as they were."""
    generation: int = -1


@dataclass(frozen=True, slots=True)
class SendSync:
    """Send SyncGroup; ``assignments`` of all members when this one leads, else none."""

    identity: Identity
    protocol: str
    assignments: Mapping[str, MemberAssignment]
    timeout_s: float


@dataclass(frozen=True, slots=True)
class SendHeartbeat:
    """Say that we live."""

    identity: Identity
    timeout_s: float


@dataclass(frozen=True, slots=True)
class SendGroupHeartbeat:
    """Say under KIP-848 that we live, and what has changed: None is what the group knows already."""

    identity: Identity
    timeout_s: float
    topics: frozenset[str] | None = None
    pattern: str | None = None
    assignor: str | None = None
    rebalance_timeout_s: float | None = None
    rack: str | None = None
    owned: Mapping[UUID, tuple[int, ...]] | None = None


@dataclass(frozen=True, slots=True)
class NameTopics:
    """Find out the names of these topics."""

    topic_ids: frozenset[UUID]


@dataclass(frozen=True, slots=True)
class SendLeave:
    """Say that we go."""

    identity: Identity
    reason: str


@dataclass(frozen=True, slots=True)
class FindPartitions:
    """Find out how many partitions these topics have."""

    topics: frozenset[str]


@dataclass(frozen=True, slots=True)
class TakeOver:
    """Find where to begin, let the user have a say, then consume."""

    added: Partitions
    kept: Partitions
    identity: Identity
    protocol: str
    is_leader: bool


@dataclass(frozen=True, slots=True)
class Release:
    """Stop consuming; in order (drain and commit first), or at once because they are lost already."""

    partitions: Partitions
    is_lost: bool
    is_last: bool
    """Whether the member goes for good: nobody will ask for another record then, so nothing is waited for."""
    reason: str


@dataclass(frozen=True, slots=True)
class ForgetCoordinator:
    """Look the coordinator up again."""

    reason: str


@dataclass(frozen=True, slots=True)
class Tell:
    """Have the user's next call raise this; the membership goes on."""

    error: PenstockError


@dataclass(frozen=True, slots=True)
class Fail:
    """Tell the user; the membership is over."""

    error: PenstockError


Effect: TypeAlias = (
    SendJoin
    | SendSync
    | SendHeartbeat
    | SendGroupHeartbeat
    | SendLeave
    | FindPartitions
    | NameTopics
    | TakeOver
    | Release
    | ForgetCoordinator
    | Tell
    | Fail
)


@dataclass(frozen=True, slots=True)
class MemberSettings:
    """What the options say to a membership; times in seconds."""

    group_id: str
    topics: frozenset[str]
    session_timeout_s: float
    heartbeat_interval_s: float
    rebalance_timeout_s: float
    request_timeout_s: float
    retry_first_s: float
    retry_longest_s: float
    leaves_on_stop: bool
    stop_patience_s: float = 5.0
    """How long a stop may wait for the end of a rebalance, before which the group takes no commits."""
    instance_id: str | None = None
    rack: str | None = None
    pattern: str | None = None
    """Topics by regular expression, where the broker resolves it (KIP-848)."""
    remote_assignor: str | None = None
    """The broker's assignor to ask for (KIP-848); its default when nothing is said."""

    @property
    def patience_s(self) -> float:
        """How long a join or sync may take: it is held until the slowest member is there."""
        return max(self.request_timeout_s, self.rebalance_timeout_s + _JOIN_GRACE_S)


class Membership(Protocol):
    """One member of one group. It has no clock, does no IO, and is asked by one coroutine."""

    @property
    def identity(self) -> Identity: ...

    @property
    def owned(self) -> Partitions: ...

    @property
    def is_member(self) -> bool:
        """Whether the group counts us in a generation: what is done may be committed."""

    @property
    def is_over(self) -> bool: ...

    def is_current(self, identity: Identity) -> bool:
        """Whether an error that answers what was sent as ``identity`` still counts."""

    def awaits(self, effect: Effect) -> bool:
        """Whether the outcome of ``effect`` still matters."""

    def heartbeat_age_s(self, now: float) -> float:
        """Seconds since the group is known to have heard from this member."""

    def receive(self, event: GroupEvent, now: float) -> None:
        """Something has happened."""

    def handle_timer(self, now: float) -> None:
        """Time has passed."""

    def next_deadline(self) -> float | None:
        """When ``handle_timer`` has something to do; None for never."""

    def effects(self) -> Iterator[Effect]:
        """What is to be done now, in order; each is given once."""
