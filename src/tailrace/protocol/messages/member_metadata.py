"""What members of a classic group tell each other, inside of JoinGroup and SyncGroup."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["MemberAssignment", "MemberSubscription", "OwnedPartitions"]


@dataclass(frozen=True, slots=True)
class OwnedPartitions:
    topic: str
    partitions: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class MemberSubscription:
    """ConsumerProtocolSubscription: what one member asks for."""

    topics: tuple[str, ...]
    user_data: bytes | None = None
    owned_partitions: tuple[OwnedPartitions, ...] = ()
    generation_id: int = -1
    rack_id: str | None = None


@dataclass(frozen=True, slots=True)
class MemberAssignment:
    """ConsumerProtocolAssignment: what one member is given."""

    assigned_partitions: tuple[OwnedPartitions, ...]
    user_data: bytes | None = None
