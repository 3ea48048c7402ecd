"""Topics made and unmade, for tools and tests."""

from __future__ import annotations

from tailrace.protocol.encoding.api import ApiLayout, api
from tailrace.protocol.encoding.primitives import BOOL, INT8, INT16, INT32, INT64, STRING, UUIDS
from tailrace.protocol.encoding.schema import Array, ByTopic, Struct, field
from tailrace.protocol.messages import (
    CreatePartitionsRequest,
    CreatePartitionsResponse,
    CreateTopicsRequest,
    CreateTopicsResponse,
    DeletedRecords,
    DeleteRecordsRequest,
    DeleteRecordsResponse,
    DeleteTopicsRequest,
    DeleteTopicsResponse,
    MetadataTopic,
    NewPartitions,
    NewTopic,
    RecordsToDelete,
    ReplicaAssignment,
    TopicConfig,
    TopicResult,
)

__all__ = ["CREATE_PARTITIONS", "CREATE_TOPICS", "DELETE_RECORDS", "DELETE_TOPICS"]

CREATE_TOPICS = api(
    19,
    "CreateTopics",
    versions=(2, 7),
    flexible=5,
    message=CreateTopicsRequest,
    request=Struct(
        CreateTopicsRequest,
        field(
            "topics",
            Array.of(
                NewTopic,
                field("name", STRING),
                field("num_partitions", INT32),
                field("replication_factor", INT16),
                field(
                    "assignments",
                    Array.of(
                        ReplicaAssignment,
                        field("partition_index", INT32, attribute="partition"),
                        field("broker_ids", Array(INT32)),
                    ),
                ),
                field(
                    "configs",
                    Array.of(TopicConfig, field("name", STRING), field("value", STRING, nullable=0)),
                ),
            ),
        ),
        field("timeout_ms", INT32),
        field("validate_only", BOOL, 1),
    ),
    response=Struct(
        CreateTopicsResponse,
        field("throttle_time_ms", INT32, 2),
        field(
            "topics",
            Array.of(
                TopicResult,
                field("name", STRING),
                field("topic_id", UUIDS, 7),
                field("error_code", INT16),
                field("error_message", STRING, 1, nullable=0),
                field("topic_config_error_code", INT16, 5, tag=0, unused=0),
                field("num_partitions", INT32, 5, unused=-1),
                field("replication_factor", INT16, 5, unused=-1),
                field(
                    "configs",
                    Array.of(
                        dict,
                        field("name", STRING),
                        field("value", STRING, nullable=5),
                        field("read_only", BOOL),
                        field("config_source", INT8),
                        field("is_sensitive", BOOL),
                    ),
                    5,
                    nullable=5,
                    unused=(),
                ),
            ),
        ),
    ),
)


def _by_name(topic_names: tuple[str, ...], timeout_ms: int) -> DeleteTopicsRequest:
    return DeleteTopicsRequest(tuple(MetadataTopic(name) for name in topic_names), timeout_ms)


DELETE_TOPICS = api(
    20,
    "DeleteTopics",
    versions=(1, 6),
    flexible=4,
    message=DeleteTopicsRequest,
    request=(
        ApiLayout(0, Struct(_by_name, field("topic_names", Array(STRING), 0, 5), field("timeout_ms", INT32))),
        ApiLayout(
            6,
            Struct(
                DeleteTopicsRequest,
                field("topics", Array.of(MetadataTopic, field("name", STRING, nullable=6), field("topic_id", UUIDS))),
                field("timeout_ms", INT32),
            ),
        ),
    ),
    response=Struct(
        DeleteTopicsResponse,
        field("throttle_time_ms", INT32, 1),
        field(
            "responses",
            Array.of(
                TopicResult,
                field("name", STRING, nullable=6),
                field("topic_id", UUIDS, 6),
                field("error_code", INT16),
                field("error_message", STRING, 5, nullable=5),
            ),
            attribute="topics",
        ),
    ),
)

CREATE_PARTITIONS = api(
    37,
    "CreatePartitions",
    versions=(0, 3),
    flexible=2,
    message=CreatePartitionsRequest,
    request=Struct(
        CreatePartitionsRequest,
        field(
            "topics",
            Array.of(
                NewPartitions,
                field("name", STRING),
                field("count", INT32),
                field("assignments", Array.of(dict, field("broker_ids", Array(INT32))), nullable=0),
            ),
        ),
        field("timeout_ms", INT32),
        field("validate_only", BOOL),
    ),
    response=Struct(
        CreatePartitionsResponse,
        field("throttle_time_ms", INT32),
        field(
            "results",
            Array.of(
                TopicResult,
                field("name", STRING),
                field("error_code", INT16),
                field("error_message", STRING, nullable=0),
            ),
            attribute="topics",
        ),
    ),
)

_TOPIC = (field("name", STRING, attribute="topic"),)
_PARTITION = field("partition_index", INT32, attribute="partition")

DELETE_RECORDS = api(
    21,
    "DeleteRecords",
    versions=(0, 2),
    flexible=2,
    message=DeleteRecordsRequest,
    request=Struct(
        DeleteRecordsRequest,
        field(
            "topics",
            ByTopic(_TOPIC, "partitions", Struct(RecordsToDelete, _PARTITION, field("offset", INT64))),
            attribute="partitions",
        ),
        field("timeout_ms", INT32),
    ),
    response=Struct(
        DeleteRecordsResponse,
        field("throttle_time_ms", INT32),
        field(
            "topics",
            ByTopic(
                _TOPIC,
                "partitions",
                Struct(DeletedRecords, _PARTITION, field("low_watermark", INT64), field("error_code", INT16)),
            ),
            attribute="partitions",
        ),
    ),
)
