"""Groups: ListGroups, DescribeGroups, ConsumerGroupDescribe and DeleteGroups."""

from __future__ import annotations

from uuid import UUID

from tailrace.protocol.encoding.fields import field
from tailrace.protocol.encoding.primitives import int8, int16, int32
from tailrace.protocol.message import ApiMessage, Request
from tailrace.protocol.metadata import OPERATIONS_NOT_REQUESTED

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


class ListedGroup(ApiMessage):
    group_id: str
    protocol_type: str
    """``consumer`` for consumer groups, of both the classic protocol and KIP-848."""
    group_state: str = field(since=4, default="")
    group_type: str = field(since=5, default="")
    """``classic`` or ``consumer`` (KIP-848); empty from a broker without KIP-848."""


class ListGroupsResponse(ApiMessage):
    throttle_time_ms: int32 = field(since=1, default=0, kw_only=True)
    error_code: int16
    groups: tuple[ListedGroup, ...] = ()
    """Groups whose coordinator is the responding broker."""


class ListGroupsRequest(Request[ListGroupsResponse], key=16, versions=(0, 5), flexible_from=3):
    states_filter: tuple[str, ...] = field(since=4, default=())
    """States of the groups to list; empty for all."""
    types_filter: tuple[str, ...] = field(since=5, default=())


# ---- the classic protocol --------------------------------------------------------------------------------------


class DescribedGroupMember(ApiMessage):
    member_id: str
    group_instance_id: str | None = field(since=4, default=None)
    client_id: str = ""
    client_host: str = ""
    metadata: bytes = field("member_metadata", default=b"")
    """MemberSubscription if the protocol type of the group is ``consumer``."""
    assignment: bytes = field("member_assignment", default=b"")
    """MemberAssignment if the protocol type of the group is ``consumer``."""


class DescribedGroup(ApiMessage):
    error_code: int16
    error_message: str | None = field(since=6, default=None, kw_only=True)
    group_id: str
    group_state: str = ""
    """State of the group. Before version 6, there is no error code for a missing group; its state is ``Dead``."""
    protocol_type: str = ""
    protocol_data: str = ""
    """Assignor chosen by the group."""
    members: tuple[DescribedGroupMember, ...] = ()
    authorized_operations: int32 = field(since=3, ignorable=True, default=OPERATIONS_NOT_REQUESTED)


class DescribeGroupsResponse(ApiMessage):
    throttle_time_ms: int32 = field(since=1, default=0, kw_only=True)
    groups: tuple[DescribedGroup, ...]


class DescribeGroupsRequest(Request[DescribeGroupsResponse], key=15, versions=(0, 6), flexible_from=5):
    group_ids: tuple[str, ...] = field("groups")
    include_authorized_operations: bool = field(since=3, default=False)

    @property
    def newest_version(self) -> int | None:
        """Version 5 if ``include_authorized_operations`` is set; otherwise None."""
        # From version 6 on, the response for a missing group has an error code instead of the authorized operations.
        return 5 if self.include_authorized_operations else None


# ---- the consumer protocol (KIP-848) ---------------------------------------------------------------------------


class DescribedPartitions(ApiMessage):
    topic_id: UUID
    topic: str = field("topic_name")
    partitions: tuple[int32, ...]


class DescribedConsumerGroupMember(ApiMessage):
    member_id: str
    instance_id: str | None = None
    rack_id: str | None = None
    member_epoch: int32 = 0
    client_id: str = ""
    client_host: str = ""
    subscribed_topic_names: tuple[str, ...] = ()
    subscribed_topic_regex: str | None = None
    assignment: tuple[DescribedPartitions, ...] = field(only_field="topic_partitions", default=())
    target_assignment: tuple[DescribedPartitions, ...] = field(only_field="topic_partitions", default=())
    """Assignment that the member is to have after the rebalance."""
    member_type: int8 = field(since=1, ignorable=True, default=-1)
    """0 for the classic protocol, 1 for the consumer protocol, -1 if unknown."""


class DescribedConsumerGroup(ApiMessage):
    error_code: int16
    error_message: str | None = field(default=None, kw_only=True)
    group_id: str
    group_state: str = ""
    group_epoch: int32 = 0
    assignment_epoch: int32 = 0
    assignor_name: str = ""
    members: tuple[DescribedConsumerGroupMember, ...] = ()
    authorized_operations: int32 = OPERATIONS_NOT_REQUESTED


class ConsumerGroupDescribeResponse(ApiMessage):
    throttle_time_ms: int32 = field(default=0, kw_only=True)
    groups: tuple[DescribedConsumerGroup, ...]


class ConsumerGroupDescribeRequest(Request[ConsumerGroupDescribeResponse], key=69, versions=(0, 1), flexible_from=0):
    group_ids: tuple[str, ...]
    include_authorized_operations: bool = False


# ---- removal ---------------------------------------------------------------------------------------------------


class DeletedGroup(ApiMessage):
    group_id: str
    error_code: int16


class DeleteGroupsResponse(ApiMessage):
    throttle_time_ms: int32 = field(default=0, kw_only=True)
    groups: tuple[DeletedGroup, ...] = field("results")


class DeleteGroupsRequest(Request[DeleteGroupsResponse], key=42, versions=(0, 2), flexible_from=2):
    group_ids: tuple[str, ...] = field("groups_names")
