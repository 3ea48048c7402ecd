"""Effects of a group membership: requests to send, partitions to take over or release, errors to report.

Each effect is a plain value with all the data that is needed to perform the effect.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypeAlias
from uuid import UUID

import msgspec

from tailrace.core.group.error_reactions import Identity
from tailrace.errors import TailraceError
from tailrace.protocol.member_metadata import MemberAssignment, MemberSubscription, OwnedPartitions
from tailrace.records import TopicPartition
from tailrace.values import Value

__all__ = [
    "DescribeGroup",
    "Effect",
    "FailMembership",
    "FindPartitions",
    "FindTopicNames",
    "ForgetCoordinator",
    "Partitions",
    "Release",
    "ReportAssignmentFault",
    "ReportGroupError",
    "SendGroupHeartbeat",
    "SendHeartbeat",
    "SendJoin",
    "SendLeave",
    "SendSync",
    "TakeOver",
]

Partitions: TypeAlias = frozenset[TopicPartition]


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


class SendSync(Value):
    """SyncGroup request."""

    identity: Identity
    protocol: str
    assignments: Mapping[str, MemberAssignment]
    """Partitions of every member, by member id; empty if this member is not the leader."""
    timeout_s: float


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


class FindTopicNames(Value):
    """Lookup of the topic names that belong to topic ids."""

    topic_ids: frozenset[UUID]


class SendLeave(Value):
    """LeaveGroup request; under KIP-848, the heartbeat that leaves the group."""

    identity: Identity
    reason: str


class FindPartitions(Value):
    """Lookup of the partition counts of topics."""

    topics: frozenset[str]


class DescribeGroup(Value):
    """Lookup of the subscription and assignment of each member, as the coordinator has stored them."""

    protocol: str
    """Assignor of the generation, which decides how subscriptions are read."""


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


class Release(Value):
    """Release of partitions: after records in flight are finished and offsets committed, or at once after a loss."""

    partitions: Partitions
    is_lost: bool
    """True if other members may already own the partitions, so that nothing may be committed."""
    is_last: bool
    """True if the member stops. No poll follows that would finish the records in flight, so they are not awaited."""
    reason: str


class ForgetCoordinator(Value):
    """Removal of the known coordinator, so that the next request looks up the coordinator again."""

    reason: str


class ReportAssignmentFault(Value):
    """Fault of the group's assignment, such as partitions without an owner; the membership continues."""

    partitions: Partitions
    fault: str
    """Description of the fault; empty if the fault that was last reported is over."""


class ReportGroupError(Value):
    """Error that the application's next poll raises; the membership continues."""

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
    | DescribeGroup
    | TakeOver
    | Release
    | ForgetCoordinator
    | ReportAssignmentFault
    | ReportGroupError
    | FailMembership
)
