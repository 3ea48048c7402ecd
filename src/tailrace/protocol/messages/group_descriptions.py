"""Groups as tools and tests see them from outside."""

from __future__ import annotations

from dataclasses import dataclass
from uuid import UUID

from tailrace.protocol.messages.request import Request

__all__ = [
    "ConsumerGroupDescribeRequest",
    "ConsumerGroupDescribeResponse",
    "DeleteGroupsRequest",
    "DeleteGroupsResponse",
    "DeletedGroup",
    "DescribeGroupsRequest",
    "DescribeGroupsResponse",
    "DescribedConsumerGroup",
    "DescribedConsumerGroupMember",
    "DescribedGroup",
    "DescribedGroupMember",
    "DescribedPartitions",
    "ListGroupsRequest",
    "ListGroupsResponse",
    "ListedGroup",
]


@dataclass(frozen=True, slots=True)
class ListedGroup:
    group_id: str
    protocol_type: str
    """``consumer`` of those that consume, whichever protocol they speak."""
    group_state: str = ""
    group_type: str = ""
    """``classic`` or ``consumer`` (KIP-848); empty from a broker that knows but the first."""


@dataclass(frozen=True, slots=True)
class ListGroupsResponse:
    error_code: int
    groups: tuple[ListedGroup, ...] = ()
    """Those that this broker coordinates."""
    throttle_time_ms: int = 0


@dataclass(frozen=True, slots=True)
class ListGroupsRequest(Request[ListGroupsResponse]):
    states_filter: tuple[str, ...] = ()
    """An empty filter lets all pass."""
    types_filter: tuple[str, ...] = ()


# ---- the classic protocol --------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class DescribedGroupMember:
    member_id: str
    group_instance_id: str | None = None
    client_id: str = ""
    client_host: str = ""
    metadata: bytes = b""
    """A MemberSubscription, where the group's protocol type is ``consumer``."""
    assignment: bytes = b""
    """A MemberAssignment, likewise."""


@dataclass(frozen=True, slots=True)
class DescribedGroup:
    error_code: int
    group_id: str
    group_state: str = ""
    """``Dead`` of a group that is not there, where the version has no code for that (before 6)."""
    protocol_type: str = ""
    protocol_data: str = ""
    """The assignor that the members agreed on."""
    members: tuple[DescribedGroupMember, ...] = ()
    error_message: str | None = None


@dataclass(frozen=True, slots=True)
class DescribeGroupsResponse:
    groups: tuple[DescribedGroup, ...]
    throttle_time_ms: int = 0


@dataclass(frozen=True, slots=True)
class DescribeGroupsRequest(Request[DescribeGroupsResponse]):
    group_ids: tuple[str, ...]


# ---- the consumer protocol (KIP-848) ---------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class DescribedPartitions:
    topic_id: UUID
    topic: str
    partitions: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class DescribedConsumerGroupMember:
    member_id: str
    instance_id: str | None = None
    rack_id: str | None = None
    member_epoch: int = 0
    client_id: str = ""
    client_host: str = ""
    subscribed_topic_names: tuple[str, ...] = ()
    subscribed_topic_regex: str | None = None
    assignment: tuple[DescribedPartitions, ...] = ()
    """What it has."""
    target_assignment: tuple[DescribedPartitions, ...] = ()
    """What it shall have."""
    member_type: int = -1
    """0 speaks the classic protocol, 1 the consumer protocol, -1 is not said."""


@dataclass(frozen=True, slots=True)
class DescribedConsumerGroup:
    error_code: int
    group_id: str
    group_state: str = ""
    group_epoch: int = 0
    assignment_epoch: int = 0
    assignor_name: str = ""
    members: tuple[DescribedConsumerGroupMember, ...] = ()
    error_message: str | None = None


@dataclass(frozen=True, slots=True)
class ConsumerGroupDescribeResponse:
    groups: tuple[DescribedConsumerGroup, ...]
    throttle_time_ms: int = 0


@dataclass(frozen=True, slots=True)
class ConsumerGroupDescribeRequest(Request[ConsumerGroupDescribeResponse]):
    group_ids: tuple[str, ...]


# ---- removal ---------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class DeletedGroup:
    group_id: str
    error_code: int


@dataclass(frozen=True, slots=True)
class DeleteGroupsResponse:
    groups: tuple[DeletedGroup, ...]
    throttle_time_ms: int = 0


@dataclass(frozen=True, slots=True)
class DeleteGroupsRequest(Request[DeleteGroupsResponse]):
    group_ids: tuple[str, ...]
