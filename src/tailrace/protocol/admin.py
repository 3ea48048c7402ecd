"""Management of topics and configurations."""

from __future__ import annotations

from uuid import UUID

from tailrace.protocol.encoding.fields import NEVER, by_topic, field
from tailrace.protocol.encoding.primitives import int8, int16, int32, int64
from tailrace.protocol.message import NO_TOPIC_ID, ApiMessage, Request

__all__ = [
    "AlteredConfigs",
    "ConfigAlteration",
    "ConfigEntry",
    "ConfigSynonym",
    "ConfigsToAlter",
    "ConfigsToDescribe",
    "CreatePartitionsRequest",
    "CreatePartitionsResponse",
    "CreateTopicsRequest",
    "CreateTopicsResponse",
    "CreatedTopic",
    "CreatedTopicConfig",
    "DeleteRecordsRequest",
    "DeleteRecordsResponse",
    "DeleteTopicsRequest",
    "DeleteTopicsResponse",
    "DeletedRecords",
    "DeletedTopic",
    "DescribeConfigsRequest",
    "DescribeConfigsResponse",
    "DescribedConfigs",
    "IncrementalAlterConfigsRequest",
    "IncrementalAlterConfigsResponse",
    "NewPartitions",
    "NewPartitionsAssignment",
    "NewTopic",
    "RecordsToDelete",
    "ReplicaAssignment",
    "TopicConfig",
    "TopicResult",
    "TopicToDelete",
]

# ---- topics ----------------------------------------------------------------------------------------------------------


class TopicResult(ApiMessage):
    """Result of CreatePartitions for a topic, and base class of the results of CreateTopics and DeleteTopics."""

    name: str | None = field(nullable_from=NEVER)
    topic_id: UUID = field(since=NEVER, ignorable=True, default=NO_TOPIC_ID, kw_only=True)
    error_code: int16
    error_message: str | None = None


# ---- creation --------------------------------------------------------------------------------------------------


class TopicConfig(ApiMessage):
    name: str
    value: str | None


class ReplicaAssignment(ApiMessage):
    partition: int32 = field("partition_index")
    broker_ids: tuple[int32, ...]


class NewTopic(ApiMessage):
    name: str
    num_partitions: int32 = -1
    replication_factor: int16 = -1
    assignments: tuple[ReplicaAssignment, ...] = ()
    configs: tuple[TopicConfig, ...] = ()


class CreatedTopicConfig(ApiMessage):
    name: str
    value: str | None
    read_only: bool
    config_source: int8
    is_sensitive: bool


class CreatedTopic(TopicResult):
    topic_id: UUID = field(since=7, default=NO_TOPIC_ID, kw_only=True)
    topic_config_error_code: int16 = field(since=5, tag=0, ignorable=True, default=0)
    num_partitions: int32 = field(since=5, ignorable=True, default=-1)
    replication_factor: int16 = field(since=5, ignorable=True, default=-1)
    configs: tuple[CreatedTopicConfig, ...] | None = field(since=5, ignorable=True, default=())


class CreateTopicsResponse(ApiMessage):
    throttle_time_ms: int32 = field(default=0, kw_only=True)
    topics: tuple[CreatedTopic, ...]


class CreateTopicsRequest(Request[CreateTopicsResponse], key=19, versions=(2, 7), flexible_from=5):
    topics: tuple[NewTopic, ...]
    timeout_ms: int32 = 60_000
    validate_only: bool = False


# ---- deletion --------------------------------------------------------------------------------------------------


class DeletedTopic(TopicResult):
    name: str | None = field(nullable_from=6)
    topic_id: UUID = field(since=6, default=NO_TOPIC_ID, kw_only=True)
    error_message: str | None = field(since=5, default=None)


class DeleteTopicsResponse(ApiMessage):
    throttle_time_ms: int32 = field(default=0, kw_only=True)
    topics: tuple[DeletedTopic, ...] = field("responses")


class TopicToDelete(ApiMessage):
    name: str | None = field(nullable_from=6)
    topic_id: UUID = field(since=6, ignorable=True, default=NO_TOPIC_ID)


class DeleteTopicsRequest(Request[DeleteTopicsResponse], key=20, versions=(1, 6), flexible_from=4):
    topics: tuple[TopicToDelete, ...] = field(bare_until=("topic_names", 5))
    timeout_ms: int32 = 60_000


# ---- partitions ------------------------------------------------------------------------------------------------


class NewPartitionsAssignment(ApiMessage):
    broker_ids: tuple[int32, ...]


class NewPartitions(ApiMessage):
    name: str
    count: int32
    """New total number of partitions."""
    assignments: tuple[NewPartitionsAssignment, ...] | None = None


class CreatePartitionsResponse(ApiMessage):
    throttle_time_ms: int32 = field(default=0, kw_only=True)
    topics: tuple[TopicResult, ...] = field("results")


class CreatePartitionsRequest(Request[CreatePartitionsResponse], key=37, versions=(0, 3), flexible_from=2):
    topics: tuple[NewPartitions, ...]
    timeout_ms: int32 = 60_000
    validate_only: bool = False


# ---- records ---------------------------------------------------------------------------------------------------


class RecordsToDelete(ApiMessage):
    topic: str = field("name", per_topic=True)
    partition: int32 = field("partition_index")
    offset: int64
    """Offset of the first record to keep; -1 to delete all records up to the high watermark."""


class DeletedRecords(ApiMessage):
    topic: str = field("name", per_topic=True)
    partition: int32 = field("partition_index")
    low_watermark: int64
    error_code: int16


class DeleteRecordsResponse(ApiMessage):
    throttle_time_ms: int32 = field(default=0, kw_only=True)
    partitions: tuple[DeletedRecords, ...] = by_topic()


class DeleteRecordsRequest(Request[DeleteRecordsResponse], key=21, versions=(0, 2), flexible_from=2):
    partitions: tuple[RecordsToDelete, ...] = by_topic()
    timeout_ms: int32 = 60_000


# ---- configurations --------------------------------------------------------------------------------------------------


class ConfigsToDescribe(ApiMessage):
    resource_type: int8
    """2 for a topic, 4 for a broker, 32 for a group."""
    resource_name: str
    configuration_keys: tuple[str, ...] | None = None
    """Requested keys; None for all."""


class ConfigSynonym(ApiMessage):
    name: str
    value: str | None
    source: int8


class ConfigEntry(ApiMessage):
    name: str
    value: str | None
    """Value; None if it is not set, or is sensitive and therefore not returned."""
    read_only: bool = False
    config_source: int8 = -1
    """Source of the value: 1 for the topic, 2 to 4 for brokers, 5 for Kafka's default, 8 for the group."""
    is_sensitive: bool = False
    synonyms: tuple[ConfigSynonym, ...] = ()
    config_type: int8 = field(since=3, ignorable=True, default=0)
    documentation: str | None = field(since=3, ignorable=True, default=None)


class DescribedConfigs(ApiMessage):
    error_code: int16
    error_message: str | None
    resource_type: int8
    resource_name: str
    configs: tuple[ConfigEntry, ...] = ()


class DescribeConfigsResponse(ApiMessage):
    throttle_time_ms: int32 = field(default=0, kw_only=True)
    results: tuple[DescribedConfigs, ...]


class DescribeConfigsRequest(Request[DescribeConfigsResponse], key=32, versions=(1, 4), flexible_from=4):
    resources: tuple[ConfigsToDescribe, ...]
    include_synonyms: bool = False
    include_documentation: bool = field(since=3, default=False)


class ConfigAlteration(ApiMessage):
    name: str
    operation: int8 = field("config_operation")
    """0 sets the value, 1 restores the default, 2 appends to a list, 3 removes from a list."""
    value: str | None = None


class ConfigsToAlter(ApiMessage):
    resource_type: int8
    """2 for a topic, 4 for a broker, 32 for a group."""
    resource_name: str
    configs: tuple[ConfigAlteration, ...]


class AlteredConfigs(ApiMessage):
    error_code: int16
    error_message: str | None
    resource_type: int8
    resource_name: str


class IncrementalAlterConfigsResponse(ApiMessage):
    throttle_time_ms: int32 = field(default=0, kw_only=True)
    responses: tuple[AlteredConfigs, ...]


class IncrementalAlterConfigsRequest(
    Request[IncrementalAlterConfigsResponse], key=44, versions=(0, 1), flexible_from=1
):
    resources: tuple[ConfigsToAlter, ...]
    validate_only: bool = False
