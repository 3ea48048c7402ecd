"""Groups: membership in both protocols, committed offsets, descriptions, and metadata that members exchange."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Protocol, TypeVar
from uuid import UUID

from tailrace.errors import MalformedMessageError
from tailrace.protocol.encoding.codec import decoder_of, encoder_of
from tailrace.protocol.encoding.fields import OneElement, by_topic, field
from tailrace.protocol.encoding.primitives import FrameReader, int8, int16, int32, int64
from tailrace.protocol.message import NO_TOPIC_ID, ApiMessage, Request
from tailrace.protocol.metadata import OPERATIONS_NOT_REQUESTED

__all__ = [
    "CommitOffset",
    "CommitResult",
    "CommittedOffset",
    "ConsumerGroupDescribeRequest",
    "ConsumerGroupDescribeResponse",
    "ConsumerGroupHeartbeatRequest",
    "ConsumerGroupHeartbeatResponse",
    "DeleteGroupsRequest",
    "DeleteGroupsResponse",
    "DeletedGroup",
    "DeletedOffset",
    "DescribeGroupsRequest",
    "DescribeGroupsResponse",
    "DescribedConsumerGroup",
    "DescribedConsumerGroupMember",
    "DescribedGroup",
    "DescribedGroupMember",
    "DescribedPartitions",
    "HeartbeatRequest",
    "HeartbeatResponse",
    "JoinGroupMember",
    "JoinGroupProtocol",
    "JoinGroupRequest",
    "JoinGroupResponse",
    "LeaveGroupRequest",
    "LeaveGroupResponse",
    "LeavingMember",
    "ListGroupsRequest",
    "ListGroupsResponse",
    "ListedGroup",
    "MemberAssignment",
    "MemberSubscription",
    "OffsetCommitRequest",
    "OffsetCommitResponse",
    "OffsetDeleteRequest",
    "OffsetDeleteResponse",
    "OffsetFetchPartition",
    "OffsetFetchRequest",
    "OffsetFetchResponse",
    "OffsetToDelete",
    "OwnedPartitions",
    "SyncGroupAssignment",
    "SyncGroupRequest",
    "SyncGroupResponse",
    "TopicIdPartitions",
    "decode_assignment",
    "decode_cooperative_data",
    "decode_sticky_data",
    "decode_subscription",
    "encode_assignment",
    "encode_cooperative_data",
    "encode_sticky_data",
    "encode_subscription",
]

# ---- classic protocol ------------------------------------------------------------------------------------------------


class JoinGroupProtocol(ApiMessage):
    name: str
    metadata: bytes


class JoinGroupMember(ApiMessage):
    member_id: str
    group_instance_id: str | None = field(since=5, default=None)
    metadata: bytes = b""


class JoinGroupResponse(ApiMessage):
    throttle_time_ms: int32 = field(default=0, kw_only=True)
    error_code: int16
    generation_id: int32 = -1
    protocol_type: str | None = field(since=7, default=None)
    protocol_name: str | None = field(nullable_from=7, default=None)
    leader: str = ""
    skip_assignment: bool = field(since=9, default=False)
    member_id: str = ""
    members: tuple[JoinGroupMember, ...] = ()


class JoinGroupRequest(Request[JoinGroupResponse], key=11, versions=(2, 9), flexible_from=6):
    group_id: str
    session_timeout_ms: int32
    rebalance_timeout_ms: int32
    member_id: str
    group_instance_id: str | None = field(since=5, default=None, kw_only=True)
    protocol_type: str
    protocols: tuple[JoinGroupProtocol, ...]
    reason: str | None = field(since=8, ignorable=True, default=None)


class SyncGroupAssignment(ApiMessage):
    member_id: str
    assignment: bytes


class SyncGroupResponse(ApiMessage):
    throttle_time_ms: int32 = field(since=1, default=0, kw_only=True)
    error_code: int16
    protocol_type: str | None = field(since=5, default=None, kw_only=True)
    protocol_name: str | None = field(since=5, default=None, kw_only=True)
    assignment: bytes


class SyncGroupRequest(Request[SyncGroupResponse], key=14, versions=(0, 5), flexible_from=4):
    group_id: str
    generation_id: int32
    member_id: str
    group_instance_id: str | None = field(since=3, default=None)
    protocol_type: str | None = field(since=5, ignorable=True, default=None)
    protocol_name: str | None = field(since=5, ignorable=True, default=None)
    assignments: tuple[SyncGroupAssignment, ...] = ()
    """Assignments of all members in the leader's request; empty in the requests of the other members."""


class HeartbeatResponse(ApiMessage):
    throttle_time_ms: int32 = field(since=1, default=0, kw_only=True)
    error_code: int16


class HeartbeatRequest(Request[HeartbeatResponse], key=12, versions=(0, 4), flexible_from=4):
    group_id: str
    generation_id: int32
    member_id: str
    group_instance_id: str | None = field(since=3, default=None)


class LeavingMember(ApiMessage):
    member_id: str
    group_instance_id: str | None = None
    error_code: int16 = 0


class LeaveGroupResponse(ApiMessage):
    throttle_time_ms: int32 = field(since=1, default=0, kw_only=True)
    error_code: int16
    members: tuple[LeavingMember, ...] = field(since=3, ignorable=True, default=())


_MEMBERS = OneElement("members", since=3)


class LeaveGroupRequest(Request[LeaveGroupResponse], key=13, versions=(0, 5), flexible_from=4):
    group_id: str
    member_id: str = field(inside=_MEMBERS)
    group_instance_id: str | None = field(since=3, inside=_MEMBERS, default=None)
    reason: str | None = field(since=5, ignorable=True, inside=_MEMBERS, default=None)


# ---- consumer protocol (KIP-848) -------------------------------------------------------------------------------------


class TopicIdPartitions(ApiMessage):
    topic_id: UUID
    partitions: tuple[int32, ...]


class ConsumerGroupHeartbeatResponse(ApiMessage):
    throttle_time_ms: int32 = field(default=0, kw_only=True)
    error_code: int16
    error_message: str | None = None
    member_id: str | None = None
    member_epoch: int32 = 0
    heartbeat_interval_ms: int32 = 0
    assignment: tuple[TopicIdPartitions, ...] | None = field(only_field="topic_partitions", default=None)
    """Partitions that the member is to own; None if they have not changed, empty if there are none."""


class ConsumerGroupHeartbeatRequest(Request[ConsumerGroupHeartbeatResponse], key=68, versions=(0, 1), flexible_from=0):
    group_id: str
    member_id: str
    """Id that the member generates and keeps for its lifetime; empty in version 0 to get an id from the broker."""
    member_epoch: int32
    """Member epoch; 0 to join, -1 to leave, -2 to leave temporarily as a static member."""
    instance_id: str | None = None
    rack_id: str | None = None
    rebalance_timeout_ms: int32 = -1
    subscribed_topic_names: tuple[str, ...] | None = None
    subscribed_topic_regex: str | None = field(since=1, default=None)
    """Regular expression in RE2 syntax, evaluated by the broker."""
    server_assignor: str | None = None
    topic_partitions: tuple[TopicIdPartitions, ...] | None = None
    """Partitions that the member owns; None if they have not changed."""


# ---- committed offsets -----------------------------------------------------------------------------------------------

_LAST_BY_NAME = 9
"""Last version of OffsetCommit and OffsetFetch with topic names; later versions have only topic ids."""


class _TopicEntry(Protocol):
    @property
    def topic_id(self) -> UUID: ...


def _newest_version(entries: Iterable[_TopicEntry]) -> int | None:
    return _LAST_BY_NAME if any(entry.topic_id == NO_TOPIC_ID for entry in entries) else None


class CommitOffset(ApiMessage):
    topic: str = field("name", per_topic=True, until=_LAST_BY_NAME, ignorable=True, default="")
    partition: int32 = field("partition_index", default=0)
    offset: int64 = field("committed_offset", default=-1)
    leader_epoch: int32 = field("committed_leader_epoch", since=6, ignorable=True, default=-1)
    metadata: str | None = field("committed_metadata", default="")
    topic_id: UUID = field(per_topic=True, since=10, ignorable=True, default=NO_TOPIC_ID)


class CommitResult(ApiMessage):
    topic: str = field("name", per_topic=True, until=_LAST_BY_NAME, ignorable=True, default="")
    partition: int32 = field("partition_index", default=0)
    error_code: int16 = 0
    topic_id: UUID = field(per_topic=True, since=10, ignorable=True, default=NO_TOPIC_ID)


class OffsetCommitResponse(ApiMessage):
    throttle_time_ms: int32 = field(since=3, default=0, kw_only=True)
    partitions: tuple[CommitResult, ...] = by_topic()


class OffsetCommitRequest(Request[OffsetCommitResponse], key=8, versions=(2, 10), flexible_from=8):
    group_id: str
    generation_id: int32 = field("generation_id_or_member_epoch", default=-1, kw_only=True)
    """Generation, or member epoch (KIP-848); -1 if the committer is not a member."""
    member_id: str = field(default="", kw_only=True)
    group_instance_id: str | None = field(since=7, default=None, kw_only=True)
    retention_time_ms: int64 = field(until=4, default=-1, kw_only=True)
    partitions: tuple[CommitOffset, ...] = by_topic()

    @property
    def newest_version(self) -> int | None:
        """Version 9 if the topic id of a partition is unknown; otherwise None."""
        return _newest_version(self.partitions)


_GROUPS = OneElement("groups", since=8)


class CommittedOffset(ApiMessage):
    topic: str = field("name", per_topic=True, until=_LAST_BY_NAME, ignorable=True, default="")
    partition: int32 = field("partition_index", default=0)
    offset: int64 = field("committed_offset", default=-1)
    """Committed offset; -1 if the group has none."""
    leader_epoch: int32 = field("committed_leader_epoch", since=5, default=-1)
    metadata: str | None = ""
    error_code: int16 = 0
    topic_id: UUID = field(per_topic=True, since=10, ignorable=True, default=NO_TOPIC_ID)


class OffsetFetchResponse(ApiMessage):
    throttle_time_ms: int32 = field(since=3, default=0, kw_only=True)
    group_id: str = field(since=8, inside=_GROUPS, default="", kw_only=True)
    partitions: tuple[CommittedOffset, ...] = by_topic(inside=_GROUPS)
    error_code: int16 = field(inside=_GROUPS, default=0)
    """Error code for the whole group; if it is not 0, the response has no partitions."""


class OffsetFetchPartition(ApiMessage):
    topic: str = field("name", per_topic=True, until=_LAST_BY_NAME, ignorable=True, default="")
    partition: int32 = field("partition_indexes", default=0)
    topic_id: UUID = field(per_topic=True, since=10, ignorable=True, default=NO_TOPIC_ID)


# Version 1 cannot request all partitions, and its response has no error code for the whole group. Brokers since 0.10.2
# support version 2.
class OffsetFetchRequest(Request[OffsetFetchResponse], key=9, versions=(2, 10), flexible_from=6):
    group_id: str = field(inside=_GROUPS)
    member_id: str | None = field(since=9, ignorable=True, inside=_GROUPS, default=None, kw_only=True)
    member_epoch: int32 = field(since=9, ignorable=True, inside=_GROUPS, default=-1, kw_only=True)
    partitions: tuple[OffsetFetchPartition, ...] | None = by_topic(
        partitions="partition_indexes", bare=True, inside=_GROUPS
    )
    """Requested partitions; None for all partitions with a committed offset."""
    require_stable: bool = field(since=7, ignorable=True, default=True)
    """True to get a retriable error while an open transaction contains offsets of the group (KIP-447)."""

    @property
    def newest_version(self) -> int | None:
        """Version 9 if the topic id of a partition is unknown, or if all partitions are requested; otherwise None.

        The response for all partitions has topic names only up to version 9.
        """
        return _LAST_BY_NAME if self.partitions is None else _newest_version(self.partitions)


# ---- removal of groups -----------------------------------------------------------------------------------------------


class DeletedGroup(ApiMessage):
    group_id: str
    error_code: int16
    error_message: str | None = field(since=3, nullable_from=3, ignorable=True, default=None)


class DeleteGroupsResponse(ApiMessage):
    throttle_time_ms: int32 = field(default=0, kw_only=True)
    groups: tuple[DeletedGroup, ...] = field("results")


class DeleteGroupsRequest(Request[DeleteGroupsResponse], key=42, versions=(0, 3), flexible_from=2):
    group_ids: tuple[str, ...] = field("groups_names")


class OffsetToDelete(ApiMessage):
    topic: str = field("name", per_topic=True)
    partition: int32 = field("partition_index")


class DeletedOffset(ApiMessage):
    topic: str = field("name", per_topic=True)
    partition: int32 = field("partition_index")
    error_code: int16


class OffsetDeleteResponse(ApiMessage):
    error_code: int16
    """Error code for the whole group."""
    throttle_time_ms: int32 = field(default=0, kw_only=True)
    partitions: tuple[DeletedOffset, ...] = by_topic(default=())


class OffsetDeleteRequest(Request[OffsetDeleteResponse], key=47, versions=(0, 0)):
    group_id: str
    partitions: tuple[OffsetToDelete, ...] = by_topic()


# ---- list and description of groups ----------------------------------------------------------------------------------


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


# ---- metadata exchanged by members of a classic group ----------------------------------------------------------------

MessageT = TypeVar("MessageT", bound=ApiMessage)

_NEWEST = 3


class OwnedPartitions(ApiMessage):
    topic: str
    partitions: tuple[int32, ...]


class MemberSubscription(ApiMessage):
    """Topics that a member subscribes to (ConsumerProtocolSubscription)."""

    topics: tuple[str, ...]
    user_data: bytes | None = None
    owned_partitions: tuple[OwnedPartitions, ...] = field(since=1, ignorable=True, default=())
    generation_id: int32 = field(since=2, ignorable=True, default=-1)
    rack_id: str | None = field(since=3, ignorable=True, default=None)


class MemberAssignment(ApiMessage):
    """Partitions assigned to a member (ConsumerProtocolAssignment)."""

    assigned_partitions: tuple[OwnedPartitions, ...]
    user_data: bytes | None = None


def encode_subscription(subscription: MemberSubscription, version: int = _NEWEST) -> bytes:
    """Encode a member's subscription."""
    return _encode(subscription, version)


def encode_assignment(assignment: MemberAssignment, version: int = _NEWEST) -> bytes:
    """Encode a member's assignment."""
    return _encode(assignment, version)


def decode_subscription(data: bytes) -> MemberSubscription:
    """Decode a member's subscription."""
    return _decode(MemberSubscription, data)


def decode_assignment(data: bytes) -> MemberAssignment:
    """Decode a member's assignment. Empty data mean no partitions; a leader with Java's client may send them."""
    return _decode(MemberAssignment, data) if data else MemberAssignment(())


def _encode(message: ApiMessage, version: int) -> bytes:
    out = bytearray(version.to_bytes(2, "big", signed=True))
    encoder_of(type(message), version, flexible=False)(out, message)
    return bytes(out)


def _decode(kind: type[MessageT], data: bytes) -> MessageT:
    reader = FrameReader(data)
    version = reader.int16()
    if version < 0:
        raise MalformedMessageError(
            f"version {version} of a member's metadata is invalid - does the group have members that are not consumers?"
        )
    message: MessageT = decoder_of(kind, min(version, _NEWEST), flexible=False)(reader)
    return message


_NO_GENERATION = -1
"""Value in place of an unknown generation."""
_GENERATION_SIZE = 4


class _StickyData(ApiMessage):
    owned: tuple[OwnedPartitions, ...]
    generation: int32 = field(since=1, default=_NO_GENERATION)


def encode_sticky_data(owned: Sequence[OwnedPartitions], generation: int) -> bytes:
    """Encode the user data of the ``sticky`` assignor: owned partitions and their generation."""
    out = bytearray()
    encoder_of(_StickyData, 1, flexible=False)(out, _StickyData(tuple(owned), generation))
    return bytes(out)


def decode_sticky_data(data: bytes | None) -> tuple[tuple[OwnedPartitions, ...], int]:
    """Decode the user data of the ``sticky`` assignor: owned partitions and their generation.

    Without data, there are no owned partitions. The generation is -1 if it is missing, as in user data of Java's client
    before version 2.3.
    """
    if not data:
        return (), _NO_GENERATION
    reader = FrameReader(data)
    # Version 0 has no generation; the data do not contain the version.
    data_v0: _StickyData = decoder_of(_StickyData, 0, flexible=False)(reader)
    return data_v0.owned, reader.int32() if reader.remaining else _NO_GENERATION


def encode_cooperative_data(generation: int) -> bytes:
    """Encode the user data of ``cooperative-sticky``: the generation of the owned partitions."""
    return generation.to_bytes(_GENERATION_SIZE, "big", signed=True)


def decode_cooperative_data(data: bytes | None) -> int:
    """Decode the user data of ``cooperative-sticky``: the generation, or -1 if it is missing.

    Java's client writes only the generation; librdkafka writes the same user data as for ``sticky``.
    """
    if not data:
        return _NO_GENERATION
    if len(data) == _GENERATION_SIZE:
        return FrameReader(data).int32()
    return decode_sticky_data(data)[1]
