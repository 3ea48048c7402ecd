"""What is said to brokers and heard from them, free of versions and layouts.

Rule of this file: one frozen dataclass for each request and answer, flat where the wire nests (an entry names its
topic and partition itself). ``wire/`` turns them into the bytes of a version, ``core/`` consumes and emits them,
``consumer/`` ferries them between the two. A field's default is what Kafka's schema says of an absent one, so an
answer of an old version is a full message too. Times are as on the wire, in milliseconds.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Generic, TypeVar
from uuid import UUID

__all__ = [
    "NO_TOPIC_ID",
    "AbortedTransaction",
    "ApiVersionRange",
    "ApiVersionsRequest",
    "ApiVersionsResponse",
    "BrokerMetadata",
    "CommitOffset",
    "CommitResult",
    "CommittedOffset",
    "Coordinator",
    "CreatePartitionsRequest",
    "CreatePartitionsResponse",
    "CreateTopicsRequest",
    "CreateTopicsResponse",
    "DeleteGroupsRequest",
    "DeleteGroupsResponse",
    "DeleteRecordsRequest",
    "DeleteRecordsResponse",
    "DeleteTopicsRequest",
    "DeleteTopicsResponse",
    "DeletedGroup",
    "DeletedRecords",
    "EpochEndOffset",
    "FetchPartition",
    "FetchRequest",
    "FetchResponse",
    "FetchedPartition",
    "FindCoordinatorRequest",
    "FindCoordinatorResponse",
    "ForgottenPartition",
    "HeartbeatRequest",
    "HeartbeatResponse",
    "JoinGroupMember",
    "JoinGroupProtocol",
    "JoinGroupRequest",
    "JoinGroupResponse",
    "LeaderIdAndEpoch",
    "LeaveGroupRequest",
    "LeaveGroupResponse",
    "LeavingMember",
    "ListOffsetsPartition",
    "ListOffsetsRequest",
    "ListOffsetsResponse",
    "ListedOffset",
    "MemberAssignment",
    "MemberSubscription",
    "MetadataRequest",
    "MetadataResponse",
    "MetadataTopic",
    "NewPartitions",
    "NewTopic",
    "OffsetCommitRequest",
    "OffsetCommitResponse",
    "OffsetFetchPartition",
    "OffsetFetchRequest",
    "OffsetFetchResponse",
    "OwnedPartitions",
    "PartitionMetadata",
    "RecordsToDelete",
    "ReplicaAssignment",
    "Request",
    "SaslAuthenticateRequest",
    "SaslAuthenticateResponse",
    "SaslHandshakeRequest",
    "SaslHandshakeResponse",
    "SyncGroupAssignment",
    "SyncGroupRequest",
    "SyncGroupResponse",
    "TopicConfig",
    "TopicMetadata",
    "TopicResult",
]

ResponseT = TypeVar("ResponseT")

NO_TOPIC_ID = UUID(int=0)
"""How the protocol spells an absent topic id."""


class Request(Generic[ResponseT]):
    """A request, typed by its answer: ``await broker.send(request)`` gives a ``ResponseT``."""

    __slots__ = ()


# ---- the opening of a connection -------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class ApiVersionRange:
    """The versions of one API that a broker offers."""

    api_key: int
    min_version: int
    max_version: int


@dataclass(frozen=True, slots=True)
class ApiVersionsResponse:
    error_code: int = 0
    api_keys: tuple[ApiVersionRange, ...] = ()
    throttle_time_ms: int = 0


@dataclass(frozen=True, slots=True)
class ApiVersionsRequest(Request[ApiVersionsResponse]):
    client_software_name: str = ""
    client_software_version: str = ""


@dataclass(frozen=True, slots=True)
class SaslHandshakeResponse:
    error_code: int
    mechanisms: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class SaslHandshakeRequest(Request[SaslHandshakeResponse]):
    mechanism: str


@dataclass(frozen=True, slots=True)
class SaslAuthenticateResponse:
    error_code: int
    error_message: str | None
    auth_bytes: bytes = field(repr=False)
    session_lifetime_ms: int = 0


@dataclass(frozen=True, slots=True)
class SaslAuthenticateRequest(Request[SaslAuthenticateResponse]):
    auth_bytes: bytes = field(repr=False)


# ---- the cluster -----------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class BrokerMetadata:
    node_id: int
    host: str
    port: int
    rack: str | None = None


@dataclass(frozen=True, slots=True)
class PartitionMetadata:
    error_code: int
    partition: int
    leader_id: int
    leader_epoch: int = -1
    replicas: tuple[int, ...] = ()
    isr: tuple[int, ...] = ()
    offline_replicas: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class TopicMetadata:
    error_code: int
    name: str | None
    topic_id: UUID = NO_TOPIC_ID
    is_internal: bool = False
    partitions: tuple[PartitionMetadata, ...] = ()


@dataclass(frozen=True, slots=True)
class MetadataResponse:
    brokers: tuple[BrokerMetadata, ...]
    topics: tuple[TopicMetadata, ...]
    cluster_id: str | None = None
    controller_id: int = -1
    throttle_time_ms: int = 0
    error_code: int = 0


@dataclass(frozen=True, slots=True)
class MetadataTopic:
    name: str | None
    topic_id: UUID = NO_TOPIC_ID


@dataclass(frozen=True, slots=True)
class MetadataRequest(Request[MetadataResponse]):
    topics: tuple[MetadataTopic, ...] | None
    """None asks for all topics, an empty tuple for none."""
    allow_auto_topic_creation: bool = False


@dataclass(frozen=True, slots=True)
class Coordinator:
    key: str | None
    """The group; None from a broker that answers one key at a time and does not repeat it."""
    node_id: int
    host: str
    port: int
    error_code: int = 0
    error_message: str | None = None


@dataclass(frozen=True, slots=True)
class FindCoordinatorResponse:
    coordinators: tuple[Coordinator, ...]
    throttle_time_ms: int = 0

    @property
    def only(self) -> Coordinator:
        """The one answer to the one key that was asked for."""
        return self.coordinators[0]


@dataclass(frozen=True, slots=True)
class FindCoordinatorRequest(Request[FindCoordinatorResponse]):
    key: str
    key_type: int = 0
    """0 a group, 1 a transactional id."""

    @property
    def keys(self) -> tuple[str]:
        """The same in the shape of the versions that take several."""
        return (self.key,)


# ---- group membership, classic protocol ------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class JoinGroupProtocol:
    name: str
    metadata: bytes


@dataclass(frozen=True, slots=True)
class JoinGroupMember:
    member_id: str
    group_instance_id: str | None = None
    metadata: bytes = b""


@dataclass(frozen=True, slots=True)
class JoinGroupResponse:
    error_code: int
    generation_id: int = -1
    protocol_type: str | None = None
    protocol_name: str | None = None
    leader: str = ""
    skip_assignment: bool = False
    member_id: str = ""
    members: tuple[JoinGroupMember, ...] = ()
    throttle_time_ms: int = 0


@dataclass(frozen=True, slots=True)
class JoinGroupRequest(Request[JoinGroupResponse]):
    group_id: str
    session_timeout_ms: int
    rebalance_timeout_ms: int
    member_id: str
    protocol_type: str
    protocols: tuple[JoinGroupProtocol, ...]
    group_instance_id: str | None = None
    reason: str | None = None


@dataclass(frozen=True, slots=True)
class SyncGroupAssignment:
    member_id: str
    assignment: bytes


@dataclass(frozen=True, slots=True)
class SyncGroupResponse:
    error_code: int
    assignment: bytes
    protocol_type: str | None = None
    protocol_name: str | None = None
    throttle_time_ms: int = 0


@dataclass(frozen=True, slots=True)
class SyncGroupRequest(Request[SyncGroupResponse]):
    group_id: str
    generation_id: int
    member_id: str
    group_instance_id: str | None = None
    protocol_type: str | None = None
    protocol_name: str | None = None
    assignments: tuple[SyncGroupAssignment, ...] = ()
    """Of every member when this one leads, else empty."""


@dataclass(frozen=True, slots=True)
class HeartbeatResponse:
    error_code: int
    throttle_time_ms: int = 0


@dataclass(frozen=True, slots=True)
class HeartbeatRequest(Request[HeartbeatResponse]):
    group_id: str
    generation_id: int
    member_id: str
    group_instance_id: str | None = None


@dataclass(frozen=True, slots=True)
class LeavingMember:
    member_id: str
    group_instance_id: str | None = None
    reason: str | None = None
    error_code: int = 0


@dataclass(frozen=True, slots=True)
class LeaveGroupResponse:
    error_code: int
    members: tuple[LeavingMember, ...] = ()
    throttle_time_ms: int = 0


@dataclass(frozen=True, slots=True)
class LeaveGroupRequest(Request[LeaveGroupResponse]):
    group_id: str
    member: LeavingMember

    @property
    def member_id(self) -> str:
        """The same in the shape of the versions that take one."""
        return self.member.member_id

    @property
    def members(self) -> tuple[LeavingMember]:
        """The same in the shape of the versions that take several."""
        return (self.member,)


# ---- what members tell each other, inside JoinGroup and SyncGroup ----------------------------------------------


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


# ---- committed offsets -----------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class CommitOffset:
    topic: str
    partition: int
    offset: int
    leader_epoch: int = -1
    metadata: str | None = ""


@dataclass(frozen=True, slots=True)
class CommitResult:
    topic: str
    partition: int
    error_code: int


@dataclass(frozen=True, slots=True)
class OffsetCommitResponse:
    partitions: tuple[CommitResult, ...]
    throttle_time_ms: int = 0


@dataclass(frozen=True, slots=True)
class OffsetCommitRequest(Request[OffsetCommitResponse]):
    group_id: str
    partitions: tuple[CommitOffset, ...]
    generation_id: int = -1
    """Or the member's epoch under KIP-848; -1 outside of any membership."""
    member_id: str = ""
    group_instance_id: str | None = None


@dataclass(frozen=True, slots=True)
class CommittedOffset:
    topic: str
    partition: int
    offset: int
    """-1 when the group has none."""
    leader_epoch: int = -1
    metadata: str | None = ""
    error_code: int = 0


@dataclass(frozen=True, slots=True)
class OffsetFetchResponse:
    partitions: tuple[CommittedOffset, ...]
    error_code: int = 0
    """Of the whole group: from version 2 on the broker says here, with no partition, that it could not answer."""
    throttle_time_ms: int = 0
    group_id: str = ""

    @property
    def groups(self) -> tuple[OffsetFetchResponse]:
        """The same in the shape of the versions that answer for several."""
        return (self,)


@dataclass(frozen=True, slots=True)
class OffsetFetchPartition:
    topic: str
    partition: int


@dataclass(frozen=True, slots=True)
class OffsetFetchRequest(Request[OffsetFetchResponse]):
    group_id: str
    partitions: tuple[OffsetFetchPartition, ...] | None
    """None asks for all that the group has committed."""
    require_stable: bool = True
    member_id: str | None = None
    member_epoch: int = -1

    @property
    def groups(self) -> tuple[OffsetFetchRequest]:
        """The same in the shape of the versions that take several."""
        return (self,)


# ---- positions in the log --------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class ListOffsetsPartition:
    topic: str
    partition: int
    timestamp: int
    """-1 the end, -2 the start, -3 the greatest timestamp, else milliseconds since the epoch."""
    current_leader_epoch: int = -1


@dataclass(frozen=True, slots=True)
class ListedOffset:
    topic: str
    partition: int
    error_code: int
    timestamp: int = -1
    offset: int = -1
    leader_epoch: int = -1


@dataclass(frozen=True, slots=True)
class ListOffsetsResponse:
    partitions: tuple[ListedOffset, ...]
    throttle_time_ms: int = 0


@dataclass(frozen=True, slots=True)
class ListOffsetsRequest(Request[ListOffsetsResponse]):
    partitions: tuple[ListOffsetsPartition, ...]
    isolation_level: int = 0
    replica_id: int = -1


# ---- fetching --------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class FetchPartition:
    partition: int
    fetch_offset: int
    partition_max_bytes: int
    topic: str = ""
    """By name up to version 12, by id from 13 on; one who asks gives both."""
    topic_id: UUID = NO_TOPIC_ID
    current_leader_epoch: int = -1
    last_fetched_epoch: int = -1
    log_start_offset: int = -1


@dataclass(frozen=True, slots=True)
class ForgottenPartition:
    partition: int
    topic: str = ""
    topic_id: UUID = NO_TOPIC_ID


@dataclass(frozen=True, slots=True)
class AbortedTransaction:
    producer_id: int
    first_offset: int


@dataclass(frozen=True, slots=True)
class EpochEndOffset:
    """Where this log and the one that was read before went apart (KIP-595)."""

    epoch: int = -1
    end_offset: int = -1


@dataclass(frozen=True, slots=True)
class LeaderIdAndEpoch:
    """The leader as the answering broker knows it (KIP-951)."""

    leader_id: int = -1
    leader_epoch: int = -1


@dataclass(frozen=True, slots=True)
class FetchedPartition:
    partition: int
    error_code: int
    high_watermark: int
    topic: str = ""
    """Empty from version 13 on, where the topic goes by its id."""
    topic_id: UUID = NO_TOPIC_ID
    last_stable_offset: int = -1
    log_start_offset: int = -1
    aborted_transactions: tuple[AbortedTransaction, ...] | None = None
    preferred_read_replica: int = -1
    records: memoryview | None = field(default=None, repr=False)
    diverging_epoch: EpochEndOffset = EpochEndOffset()
    current_leader: LeaderIdAndEpoch = LeaderIdAndEpoch()


@dataclass(frozen=True, slots=True)
class FetchResponse:
    partitions: tuple[FetchedPartition, ...]
    error_code: int = 0
    session_id: int = 0
    throttle_time_ms: int = 0
    node_endpoints: tuple[BrokerMetadata, ...] = ()


@dataclass(frozen=True, slots=True)
class FetchRequest(Request[FetchResponse]):
    max_wait_ms: int
    min_bytes: int
    max_bytes: int
    partitions: tuple[FetchPartition, ...]
    forgotten: tuple[ForgottenPartition, ...] = ()
    isolation_level: int = 0
    session_id: int = 0
    session_epoch: int = -1
    rack_id: str = ""
    replica_id: int = -1


# ---- topics, for tools and tests -------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class TopicConfig:
    name: str
    value: str | None


@dataclass(frozen=True, slots=True)
class ReplicaAssignment:
    partition: int
    broker_ids: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class NewTopic:
    name: str
    num_partitions: int = -1
    replication_factor: int = -1
    assignments: tuple[ReplicaAssignment, ...] = ()
    configs: tuple[TopicConfig, ...] = ()


@dataclass(frozen=True, slots=True)
class TopicResult:
    name: str | None
    error_code: int
    error_message: str | None = None
    topic_id: UUID = NO_TOPIC_ID


@dataclass(frozen=True, slots=True)
class CreateTopicsResponse:
    topics: tuple[TopicResult, ...]
    throttle_time_ms: int = 0


@dataclass(frozen=True, slots=True)
class CreateTopicsRequest(Request[CreateTopicsResponse]):
    topics: tuple[NewTopic, ...]
    timeout_ms: int = 60_000
    validate_only: bool = False


@dataclass(frozen=True, slots=True)
class DeleteTopicsResponse:
    topics: tuple[TopicResult, ...]
    throttle_time_ms: int = 0


@dataclass(frozen=True, slots=True)
class DeleteTopicsRequest(Request[DeleteTopicsResponse]):
    topics: tuple[MetadataTopic, ...]
    timeout_ms: int = 60_000

    @property
    def topic_names(self) -> tuple[str, ...]:
        """The same in the shape of the versions that know no topic ids."""
        return tuple(topic.name or "" for topic in self.topics)


@dataclass(frozen=True, slots=True)
class NewPartitions:
    name: str
    count: int
    """How many the topic shall have in all."""
    assignments: None = None


@dataclass(frozen=True, slots=True)
class CreatePartitionsResponse:
    topics: tuple[TopicResult, ...]
    throttle_time_ms: int = 0


@dataclass(frozen=True, slots=True)
class CreatePartitionsRequest(Request[CreatePartitionsResponse]):
    topics: tuple[NewPartitions, ...]
    timeout_ms: int = 60_000
    validate_only: bool = False


@dataclass(frozen=True, slots=True)
class RecordsToDelete:
    topic: str
    partition: int
    offset: int
    """The first to keep; -1 deletes all there are."""


@dataclass(frozen=True, slots=True)
class DeletedRecords:
    topic: str
    partition: int
    low_watermark: int
    error_code: int


@dataclass(frozen=True, slots=True)
class DeleteRecordsResponse:
    partitions: tuple[DeletedRecords, ...]
    throttle_time_ms: int = 0


@dataclass(frozen=True, slots=True)
class DeleteRecordsRequest(Request[DeleteRecordsResponse]):
    partitions: tuple[RecordsToDelete, ...]
    timeout_ms: int = 60_000


# ---- groups, for tools and tests -------------------------------------------------------------------------------


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
