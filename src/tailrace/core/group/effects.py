"""What a membership wants done: requests, and what is to become of partitions.

Rule of this file: plain values, each complete; whoever performs one has to ask nothing and decide nothing.
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
    "ForgetCoordinator",
    "NameTopics",
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
class EmitGroupEvent:
    """Have the user's next call raise this; the membership goes on."""

    error: TailraceError


@dataclass(frozen=True, slots=True)
class FailMembership:
    """Tell the user; the membership is over."""

    error: TailraceError


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
    | EmitGroupEvent
    | FailMembership
)
