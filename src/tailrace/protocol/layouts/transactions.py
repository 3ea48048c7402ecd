"""Transactions: a producer's id, what belongs to one of them, and its end.

The oldest versions are those of Apache Kafka 2.5, the first whose transactions know members of groups (KIP-447). The
newest are those of the first kind of transaction: in the later ones of EndTxn and TxnOffsetCommit the broker gives a
new epoch with each (KIP-890), which belongs together with a Produce of version 12. AddPartitionsToTxn from 4 on is
spoken among brokers only.
"""

from __future__ import annotations

from tailrace.protocol.encoding.api import api
from tailrace.protocol.encoding.primitives import BOOL, INT16, INT32, INT64, STRING
from tailrace.protocol.encoding.schema import ByTopic, Struct, field
from tailrace.protocol.messages import (
    AddedPartition,
    AddOffsetsToTxnRequest,
    AddOffsetsToTxnResponse,
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnResponse,
    CommitOffset,
    CommitResult,
    EndTxnRequest,
    EndTxnResponse,
    InitProducerIdRequest,
    InitProducerIdResponse,
    PartitionToAdd,
    TxnOffsetCommitRequest,
    TxnOffsetCommitResponse,
)

__all__ = ["ADD_OFFSETS_TO_TXN", "ADD_PARTITIONS_TO_TXN", "END_TXN", "INIT_PRODUCER_ID", "TXN_OFFSET_COMMIT"]

_TOPIC = (field("name", STRING, attribute="topic"),)
_PARTITION = field("partition_index", INT32, attribute="partition")

INIT_PRODUCER_ID = api(
    22,
    "InitProducerId",
    versions=(3, 5),
    flexible=2,
    message=InitProducerIdRequest,
    request=Struct(
        InitProducerIdRequest,
        field("transactional_id", STRING, nullable=0),
        field("transaction_timeout_ms", INT32),
        field("producer_id", INT64, 3),
        field("producer_epoch", INT16, 3),
    ),
    response=Struct(
        InitProducerIdResponse,
        field("throttle_time_ms", INT32),
        field("error_code", INT16),
        field("producer_id", INT64),
        field("producer_epoch", INT16),
    ),
)

ADD_PARTITIONS_TO_TXN = api(
    24,
    "AddPartitionsToTxn",
    versions=(1, 3),
    flexible=3,
    message=AddPartitionsToTxnRequest,
    request=Struct(
        AddPartitionsToTxnRequest,
        field("v3_and_below_transactional_id", STRING, attribute="transactional_id"),
        field("v3_and_below_producer_id", INT64, attribute="producer_id"),
        field("v3_and_below_producer_epoch", INT16, attribute="producer_epoch"),
        field(
            "v3_and_below_topics",
            ByTopic(
                _TOPIC,
                "partitions",
                Struct(PartitionToAdd, field("partitions", INT32, attribute="partition")),
                bare=True,
            ),
            attribute="partitions",
        ),
    ),
    response=Struct(
        AddPartitionsToTxnResponse,
        field("throttle_time_ms", INT32),
        field(
            "results_by_topic_v3_and_below",
            ByTopic(
                _TOPIC,
                "results_by_partition",
                Struct(AddedPartition, _PARTITION, field("partition_error_code", INT16, attribute="error_code")),
            ),
            attribute="partitions",
        ),
    ),
)

ADD_OFFSETS_TO_TXN = api(
    25,
    "AddOffsetsToTxn",
    versions=(1, 4),
    flexible=3,
    message=AddOffsetsToTxnRequest,
    request=Struct(
        AddOffsetsToTxnRequest,
        field("transactional_id", STRING),
        field("producer_id", INT64),
        field("producer_epoch", INT16),
        field("group_id", STRING),
    ),
    response=Struct(AddOffsetsToTxnResponse, field("throttle_time_ms", INT32), field("error_code", INT16)),
)

TXN_OFFSET_COMMIT = api(
    28,
    "TxnOffsetCommit",
    versions=(3, 4),
    flexible=3,
    message=TxnOffsetCommitRequest,
    request=Struct(
        TxnOffsetCommitRequest,
        field("transactional_id", STRING),
        field("group_id", STRING),
        field("producer_id", INT64),
        field("producer_epoch", INT16),
        field("generation_id", INT32, 3),
        field("member_id", STRING, 3),
        field("group_instance_id", STRING, 3, nullable=3),
        field(
            "topics",
            ByTopic(
                _TOPIC,
                "partitions",
                Struct(
                    CommitOffset,
                    _PARTITION,
                    field("committed_offset", INT64, attribute="offset"),
                    field("committed_leader_epoch", INT32, 2, ignorable=True, attribute="leader_epoch"),
                    field("committed_metadata", STRING, nullable=0, attribute="metadata"),
                ),
            ),
            attribute="partitions",
        ),
    ),
    response=Struct(
        TxnOffsetCommitResponse,
        field("throttle_time_ms", INT32),
        field(
            "topics",
            ByTopic(_TOPIC, "partitions", Struct(CommitResult, _PARTITION, field("error_code", INT16))),
            attribute="partitions",
        ),
    ),
)

END_TXN = api(
    26,
    "EndTxn",
    versions=(1, 4),
    flexible=3,
    message=EndTxnRequest,
    request=Struct(
        EndTxnRequest,
        field("transactional_id", STRING),
        field("producer_id", INT64),
        field("producer_epoch", INT16),
        field("committed", BOOL),
    ),
    response=Struct(EndTxnResponse, field("throttle_time_ms", INT32), field("error_code", INT16)),
)
