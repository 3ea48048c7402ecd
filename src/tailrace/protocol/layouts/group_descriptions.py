"""Groups as tools see them, from outside."""

from __future__ import annotations

from tailrace.protocol.encoding.api import api
from tailrace.protocol.encoding.primitives import BOOL, BYTES, INT8, INT16, INT32, NOT_ASKED_FOR, STRING, UUIDS
from tailrace.protocol.encoding.schema import Array, Sole, Struct, field
from tailrace.protocol.messages import (
    ConsumerGroupDescribeRequest,
    ConsumerGroupDescribeResponse,
    DeletedGroup,
    DeleteGroupsRequest,
    DeleteGroupsResponse,
    DescribedConsumerGroup,
    DescribedConsumerGroupMember,
    DescribedGroup,
    DescribedGroupMember,
    DescribedPartitions,
    DescribeGroupsRequest,
    DescribeGroupsResponse,
    ListedGroup,
    ListGroupsRequest,
    ListGroupsResponse,
)

__all__ = ["CONSUMER_GROUP_DESCRIBE", "DELETE_GROUPS", "DESCRIBE_GROUPS", "LIST_GROUPS"]

LIST_GROUPS = api(
    16,
    "ListGroups",
    versions=(0, 5),
    flexible=3,
    message=ListGroupsRequest,
    request=Struct(
        ListGroupsRequest,
        field("states_filter", Array(STRING), 4),
        field("types_filter", Array(STRING), 5),
    ),
    response=Struct(
        ListGroupsResponse,
        field("throttle_time_ms", INT32, 1),
        field("error_code", INT16),
        field(
            "groups",
            Array.of(
                ListedGroup,
                field("group_id", STRING),
                field("protocol_type", STRING),
                field("group_state", STRING, 4),
                field("group_type", STRING, 5),
            ),
        ),
    ),
)

DESCRIBE_GROUPS = api(
    15,
    "DescribeGroups",
    versions=(0, 6),
    flexible=5,
    message=DescribeGroupsRequest,
    request=Struct(
        DescribeGroupsRequest,
        field("groups", Array(STRING), attribute="group_ids"),
        field("include_authorized_operations", BOOL, 3, unused=False),
    ),
    response=Struct(
        DescribeGroupsResponse,
        field("throttle_time_ms", INT32, 1),
        field(
            "groups",
            Array.of(
                DescribedGroup,
                field("error_code", INT16),
                field("error_message", STRING, 6, nullable=6),
                field("group_id", STRING),
                field("group_state", STRING),
                field("protocol_type", STRING),
                field("protocol_data", STRING),
                field(
                    "members",
                    Array.of(
                        DescribedGroupMember,
                        field("member_id", STRING),
                        field("group_instance_id", STRING, 4, nullable=4),
                        field("client_id", STRING),
                        field("client_host", STRING),
                        field("member_metadata", BYTES, attribute="metadata"),
                        field("member_assignment", BYTES, attribute="assignment"),
                    ),
                ),
                field("authorized_operations", INT32, 3, unused=NOT_ASKED_FOR),
            ),
        ),
    ),
)

_ASSIGNMENT = Sole(
    field(
        "topic_partitions",
        Array.of(
            DescribedPartitions,
            field("topic_id", UUIDS),
            field("topic_name", STRING, attribute="topic"),
            field("partitions", Array(INT32)),
        ),
    )
)

CONSUMER_GROUP_DESCRIBE = api(
    69,
    "ConsumerGroupDescribe",
    versions=(0, 1),
    flexible=0,
    message=ConsumerGroupDescribeRequest,
    request=Struct(
        ConsumerGroupDescribeRequest,
        field("group_ids", Array(STRING)),
        field("include_authorized_operations", BOOL, unused=False),
    ),
    response=Struct(
        ConsumerGroupDescribeResponse,
        field("throttle_time_ms", INT32),
        field(
            "groups",
            Array.of(
                DescribedConsumerGroup,
                field("error_code", INT16),
                field("error_message", STRING, nullable=0),
                field("group_id", STRING),
                field("group_state", STRING),
                field("group_epoch", INT32),
                field("assignment_epoch", INT32),
                field("assignor_name", STRING),
                field(
                    "members",
                    Array.of(
                        DescribedConsumerGroupMember,
                        field("member_id", STRING),
                        field("instance_id", STRING, nullable=0),
                        field("rack_id", STRING, nullable=0),
                        field("member_epoch", INT32),
                        field("client_id", STRING),
                        field("client_host", STRING),
                        field("subscribed_topic_names", Array(STRING)),
                        field("subscribed_topic_regex", STRING, nullable=0),
                        field("assignment", _ASSIGNMENT),
                        field("target_assignment", _ASSIGNMENT),
                        field("member_type", INT8, 1, ignorable=True),
                    ),
                ),
                field("authorized_operations", INT32, unused=NOT_ASKED_FOR),
            ),
        ),
    ),
)

DELETE_GROUPS = api(
    42,
    "DeleteGroups",
    versions=(0, 2),
    flexible=2,
    message=DeleteGroupsRequest,
    request=Struct(DeleteGroupsRequest, field("groups_names", Array(STRING), attribute="group_ids")),
    response=Struct(
        DeleteGroupsResponse,
        field("throttle_time_ms", INT32),
        field(
            "results",
            Array.of(DeletedGroup, field("group_id", STRING), field("error_code", INT16)),
            attribute="groups",
        ),
    ),
)
