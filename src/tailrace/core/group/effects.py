"""Effects of a group membership: requests to send, changes of the assignment, reports to the application.

Each effect is a plain value that carries everything needed to perform it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TypeAlias
from uuid import UUID

from tailrace.core.group.events import Identity
from tailrace.errors import TailraceError
from tailrace.protocol.member_metadata import MemberAssignment, MemberSubscription, OwnedPartitions
from tailrace.records import TopicPartition

__all__ = [
    "Effect",
    "EmitGroupEvent",
    "FailMembership",
    "FindPartitions",
    "FindTopicNames",
    "ForgetCoordinator",
    "Partitions",
    "Release",
    "SendGroupHeartbeat",
    "SendHeartbeat",
    "SendJoin",
    "SendLeave",
    "SendSync",
    "TakeOver",
]

Partitions: TypeAlias = frozenset[TopicPartition]


@dataclass(frozen=True, slots=True)
class SendJoin:
    """JoinGroup request. The coordinator may hold it until the slowest member has joined."""

    member_id: str
    subscriptions: tuple[tuple[str, MemberSubscription], ...]
    """Subscriptions by assignor, most preferred first."""
    reason: str
    timeout_s: float
    held_before: tuple[OwnedPartitions, ...] = ()
    """Partitions assigned in ``generation``, for eager sticky assignors."""
    generation: int = -1


@dataclass(frozen=True, slots=True)
class SendSync:
    """SyncGroup request. ``assignments`` has every member's partitions if this member leads, otherwise no entry."""

    identity: Identity
    protocol: str
    assignments: Mapping[str, MemberAssignment]
    timeout_s: float


@dataclass(frozen=True, slots=True)
class SendHeartbeat:
    """Heartbeat request of the classic protocol."""

    identity: Identity
    timeout_s: float


@dataclass(frozen=True, slots=True)
class SendGroupHeartbeat:
    """ConsumerGroupHeartbeat request (KIP-848). A field that is None has not changed since the last heartbeat."""

    identity: Identity
    timeout_s: float
    topics: frozenset[str] | None = None
    pattern: str | None = None
    assignor: str | None = None
    rebalance_timeout_s: float | None = None
    rack: str | None = None
    owned: Mapping[UUID, tuple[int, ...]] | None = None


@dataclass(frozen=True, slots=True)
class FindTopicNames:
    """Request for the names of topic ids."""

    topic_ids: frozenset[UUID]


@dataclass(frozen=True, slots=True)
class SendLeave:
    """LeaveGroup request, or the last heartbeat under KIP-848."""

    identity: Identity
    reason: str


@dataclass(frozen=True, slots=True)
class FindPartitions:
    """Request for the partition counts of topics."""

    topics: frozenset[str]


@dataclass(frozen=True, slots=True)
class TakeOver:
    """Takeover of assigned partitions: find the start positions, call the application's callbacks, then consume."""

    added: Partitions
    kept: Partitions
    identity: Identity
    protocol: str
    is_leader: bool


@dataclass(frozen=True, slots=True)
class Release:
    """Release of partitions, after a drain and a commit, or at once if the partitions are already lost."""

    partitions: Partitions
    is_lost: bool
    is_last: bool
    """True if the member stops. No later poll would finish the records in flight, so the release skips the drain."""
    reason: str


@dataclass(frozen=True, slots=True)
class ForgetCoordinator:
    """Request to look up the coordinator again."""

    reason: str


@dataclass(frozen=True, slots=True)
class EmitGroupEvent:
    """Error that the application's next call raises; the membership continues."""

    error: TailraceError


@dataclass(frozen=True, slots=True)
class FailMembership:
    """Error that ends the membership."""

    error: TailraceError


Effect: TypeAlias = (
    SendJoin
    | SendSync
    | SendHeartbeat
    | SendGroupHeartbeat
    | SendLeave
    | FindPartitions
    | FindTopicNames
    | TakeOver
    | Release
    | ForgetCoordinator
    | EmitGroupEvent
    | FailMembership
)
