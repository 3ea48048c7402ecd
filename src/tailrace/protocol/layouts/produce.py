"""The Produce request.

Produce stops before version 12: with that one a broker takes partitions into a transaction by itself and wants the
rest of the second kind of transaction with it (KIP-890); from 13 on topics go by their ids only.
"""

from __future__ import annotations

from tailrace.protocol.encoding.api import api
from tailrace.protocol.encoding.primitives import INT16, INT32, INT64, RECORDS, STRING
from tailrace.protocol.encoding.schema import Array, ByTopic, Struct, field
from tailrace.protocol.messages import (
    BrokerMetadata,
    LeaderIdAndEpoch,
    ProducedPartition,
    ProduceRequest,
    ProduceResponse,
    RecordsToProduce,
    RefusedRecord,
)

__all__ = ["PRODUCE"]

_TOPIC = (field("name", STRING, 0, 12, attribute="topic"),)
_PARTITION = field("index", INT32, attribute="partition")

PRODUCE = api(
    0,
    "Produce",
    versions=(8, 11),
    flexible=9,
    message=ProduceRequest,
    request=Struct(
        ProduceRequest,
        field("transactional_id", STRING, 3, nullable=3),
        field("acks", INT16),
        field("timeout_ms", INT32),
        field(
            "topic_data",
            ByTopic(
                _TOPIC, "partition_data", Struct(RecordsToProduce, _PARTITION, field("records", RECORDS, nullable=0))
            ),
            attribute="partitions",
        ),
    ),
    response=Struct(
        ProduceResponse,
        field(
            "responses",
            ByTopic(
                _TOPIC,
                "partition_responses",
                Struct(
                    ProducedPartition,
                    _PARTITION,
                    field("error_code", INT16),
                    field("base_offset", INT64),
                    field("log_append_time_ms", INT64, 2),
                    field("log_start_offset", INT64, 5),
                    field(
                        "record_errors",
                        Array.of(
                            RefusedRecord,
                            field("batch_index", INT32, 8),
                            field("batch_index_error_message", STRING, 8, nullable=8, attribute="message"),
                        ),
                        8,
                    ),
                    field("error_message", STRING, 8, nullable=8),
                    field(
                        "current_leader",
                        Struct(LeaderIdAndEpoch, field("leader_id", INT32), field("leader_epoch", INT32)),
                        10,
                        tag=0,
                    ),
                ),
            ),
            attribute="partitions",
        ),
        field("throttle_time_ms", INT32, 1),
        field(
            "node_endpoints",
            Array.of(
                BrokerMetadata,
                field("node_id", INT32),
                field("host", STRING),
                field("port", INT32),
                field("rack", STRING, nullable=10),
            ),
            10,
            tag=0,
        ),
    ),
)
