"""Effects of a group membership: requests to send, changes of the assignment, reports to the application.

Each effect is a plain value that carries everything needed to perform it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypeAlias
from uuid import UUID

from tailrace.core.group.events import Identity
from tailrace.errors import TailraceError
from tailrace.protocol.member_metadata import MemberAssignment, MemberSubscription, OwnedPartitions
from tailrace.records import TopicPartition
from tailrace.values import Value

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


class SendJoin(Value):
    """JoinGroup request. The coordinator may hold it until the slowest member has joined."""

    member_id: str
    subscriptions: tuple[tuple[str, MemberSubscription], ...]
    """Subscriptions by assignor, most preferred first."""
    reason: str
    timeout_s: float
    held_before: tuple[OwnedPartitions, ...] = ()
    """Partitions assigned in ``generation``, for eager sticky assignors."""
    generation: int = -1


class SendSync(Value):
    """SyncGroup request. ``assignments`` has every member's partitions if this member leads, otherwise no entry."""

    identity: Identity
    protocol: str
    assignments: Mapping[str, MemberAssignment]
    timeout_s: float


class SendHeartbeat(Value):
    """Heartbeat request of the classic protocol."""

    identity: Identity
    timeout_s: float


class SendGroupHeartbeat(Value):
    """ConsumerGroupHeartbeat request (KIP-848). A field that is None has not changed since the last heartbeat."""

    identity: Identity
    timeout_s: float
    topics: frozenset[str] | None = None
    pattern: str | None = None
    assignor: str | None = None
    rebalance_timeout_s: float | None = None
    rack: str | None = None
    owned: Mapping[UUID, tuple[int, ...]] | None = None


class FindTopicNames(Value):
    """Request for the names of topic ids."""

    topic_ids: frozenset[UUID]


class SendLeave(Value):
    """LeaveGroup request, or the last heartbeat under KIP-848."""

    identity: Identity
    reason: str


class FindPartitions(Value):
    """Request for the partition counts of topics."""

    topics: frozenset[str]


class TakeOver(Value):
    """Takeover of assigned partitions: find the start positions, call the application's callbacks, then consume."""

    added: Partitions
    kept: Partitions
    identity: Identity
    protocol: str
    is_leader: bool


class Release(Value):
    """Release of partitions, after a drain and a commit, or at once if the partitions are already lost."""

    partitions: Partitions
    is_lost: bool
    is_last: bool
    """True if the member stops. No later poll would finish the records in flight, so the release skips the drain."""
    reason: str


class ForgetCoordinator(Value):
    """Request to look up the coordinator again."""

    reason: str


class EmitGroupEvent(Value):
    """Error that the application's next call raises; the membership continues."""

    error: TailraceError


class FailMembership(Value):
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
