"""The log itself: where it begins and ends, and what is in it."""

from __future__ import annotations

from tailrace.protocol.encoding.api import api
from tailrace.protocol.encoding.primitives import INT8, INT16, INT32, INT64, RECORDS, STRING, UUIDS
from tailrace.protocol.encoding.schema import Array, ByTopic, Struct, field
from tailrace.protocol.messages import (
    AbortedTransaction,
    BrokerMetadata,
    EpochEndOffset,
    FetchedPartition,
    FetchPartition,
    FetchRequest,
    FetchResponse,
    ForgottenPartition,
    LeaderEpochEndOffset,
    LeaderIdAndEpoch,
    ListedOffset,
    ListOffsetsPartition,
    ListOffsetsRequest,
    ListOffsetsResponse,
    OffsetForLeaderEpochPartition,
    OffsetForLeaderEpochRequest,
    OffsetForLeaderEpochResponse,
)

__all__ = ["FETCH", "LIST_OFFSETS", "OFFSET_FOR_LEADER_EPOCH"]

_PARTITION = field("partition_index", INT32, attribute="partition")

LIST_OFFSETS = api(
    2,
    "ListOffsets",
    versions=(1, 7),
    flexible=6,
    message=ListOffsetsRequest,
    request=Struct(
        ListOffsetsRequest,
        field("replica_id", INT32),
        field("isolation_level", INT8, 2),
        field(
            "topics",
            ByTopic(
                (field("name", STRING, attribute="topic"),),
                "partitions",
                Struct(
                    ListOffsetsPartition,
                    _PARTITION,
                    field("current_leader_epoch", INT32, 4, ignorable=True),
                    field("timestamp", INT64),
                ),
            ),
            attribute="partitions",
        ),
    ),
    response=Struct(
        ListOffsetsResponse,
        field("throttle_time_ms", INT32, 2),
        field(
            "topics",
            ByTopic(
                (field("name", STRING, attribute="topic"),),
                "partitions",
                Struct(
                    ListedOffset,
                    _PARTITION,
                    field("error_code", INT16),
                    field("timestamp", INT64, 1),
                    field("offset", INT64, 1),
                    field("leader_epoch", INT32, 4),
                ),
            ),
            attribute="partitions",
        ),
    ),
)

OFFSET_FOR_LEADER_EPOCH = api(
    23,
    "OffsetForLeaderEpoch",
    versions=(2, 4),
    flexible=4,
    message=OffsetForLeaderEpochRequest,
    request=Struct(
        OffsetForLeaderEpochRequest,
        field("replica_id", INT32, 3, ignorable=True),
        field(
            "topics",
            ByTopic(
                (field("topic", STRING),),
                "partitions",
                Struct(
                    OffsetForLeaderEpochPartition,
                    field("partition", INT32),
                    field("current_leader_epoch", INT32, 2),
                    field("leader_epoch", INT32),
                ),
            ),
            attribute="partitions",
        ),
    ),
    response=Struct(
        OffsetForLeaderEpochResponse,
        field("throttle_time_ms", INT32, 2),
        field(
            "topics",
            ByTopic(
                (field("topic", STRING),),
                "partitions",
                Struct(
                    LeaderEpochEndOffset,
                    field("error_code", INT16),
                    field("partition", INT32),
                    field("leader_epoch", INT32, 1),
                    field("end_offset", INT64),
                ),
            ),
            attribute="partitions",
        ),
    ),
)

_TOPIC = (field("topic", STRING, 0, 12, ignorable=True), field("topic_id", UUIDS, 13, ignorable=True))

FETCH = api(
    1,
    "Fetch",
    versions=(4, 17),
    flexible=12,
    message=FetchRequest,
    request=Struct(
        FetchRequest,
        field("replica_id", INT32, 0, 14, ignorable=True),
        field("max_wait_ms", INT32),
        field("min_bytes", INT32),
        field("max_bytes", INT32, 3),
        field("isolation_level", INT8, 4),
        field("session_id", INT32, 7, ignorable=True),
        field("session_epoch", INT32, 7, ignorable=True),
        field(
            "topics",
            ByTopic(
                _TOPIC,
                "partitions",
                Struct(
                    FetchPartition,
                    field("partition", INT32),
                    field("current_leader_epoch", INT32, 9, ignorable=True),
                    field("fetch_offset", INT64),
                    field("last_fetched_epoch", INT32, 12, ignorable=True),
                    field("log_start_offset", INT64, 5, ignorable=True),
                    field("partition_max_bytes", INT32),
                ),
            ),
            attribute="partitions",
        ),
        field(
            "forgotten_topics_data",
            ByTopic(
                _TOPIC,
                "partitions",
                Struct(ForgottenPartition, field("partitions", INT32, attribute="partition")),
                bare=True,
            ),
            7,
            # Without sessions every fetch names all it wants, so there is nothing to forget.
            ignorable=True,
            attribute="forgotten",
        ),
        field("rack_id", STRING, 11, ignorable=True),
    ),
    response=Struct(
        FetchResponse,
        field("throttle_time_ms", INT32, 1),
        field("error_code", INT16, 7),
        field("session_id", INT32, 7),
        field(
            "responses",
            ByTopic(
                _TOPIC,
                "partitions",
                Struct(
                    FetchedPartition,
                    _PARTITION,
                    field("error_code", INT16),
                    field("high_watermark", INT64),
                    field("last_stable_offset", INT64, 4),
                    field("log_start_offset", INT64, 5),
                    field(
                        "diverging_epoch",
                        Struct(EpochEndOffset, field("epoch", INT32, 12), field("end_offset", INT64, 12)),
                        12,
                        tag=0,
                    ),
                    field(
                        "current_leader",
                        Struct(LeaderIdAndEpoch, field("leader_id", INT32), field("leader_epoch", INT32)),
                        12,
                        tag=1,
                    ),
                    field(
                        "aborted_transactions",
                        Array.of(AbortedTransaction, field("producer_id", INT64), field("first_offset", INT64)),
                        4,
                        nullable=4,
                    ),
                    field("preferred_read_replica", INT32, 11),
                    field("records", RECORDS, nullable=0),
                ),
            ),
            attribute="partitions",
        ),
        field(
            "node_endpoints",
            Array.of(
                BrokerMetadata,
                field("node_id", INT32),
                field("host", STRING),
                field("port", INT32),
                field("rack", STRING, nullable=16),
            ),
            16,
            tag=0,
        ),
    ),
)
