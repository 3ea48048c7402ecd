"""Transactions (KIP-98): InitProducerId, AddPartitionsToTxn, AddOffsetsToTxn, TxnOffsetCommit and EndTxn.

The oldest supported versions are those of Apache Kafka 2.5, the first release whose TxnOffsetCommit contains the
generation and member id (KIP-447); InitProducerId also gives an idempotent producer its id, from Kafka 2.1 on. The
newest supported versions are the last ones without transactions version 2 (KIP-890). In later versions of EndTxn and
TxnOffsetCommit, the broker bumps the producer epoch with each transaction, which requires Produce version 12.
AddPartitionsToTxn from version 4 on is used only between brokers.
"""

from __future__ import annotations

from tailrace.protocol.encoding.fields import by_topic, field
from tailrace.protocol.encoding.primitives import int16, int32, int64
from tailrace.protocol.groups import CommitOffset, CommitResult
from tailrace.protocol.handshake import Capability
from tailrace.protocol.message import ApiMessage, Request
from tailrace.protocol.records import ProduceRequest

__all__ = [
    "PUBLISHING",
    "TRANSACTIONS",
    "AddOffsetsToTxnRequest",
    "AddOffsetsToTxnResponse",
    "AddPartitionsToTxnRequest",
    "AddPartitionsToTxnResponse",
    "AddedPartition",
    "EndTxnRequest",
    "EndTxnResponse",
    "InitProducerIdRequest",
    "InitProducerIdResponse",
    "PartitionToAdd",
    "TxnOffsetCommitRequest",
    "TxnOffsetCommitResponse",
]


class InitProducerIdResponse(ApiMessage):
    throttle_time_ms: int32 = field(default=0, kw_only=True)
    error_code: int16
    producer_id: int64 = -1
    producer_epoch: int16 = -1


class InitProducerIdRequest(Request[InitProducerIdResponse], key=22, versions=(0, 5), flexible_from=2):
    transactional_id: str | None
    transaction_timeout_ms: int32
    producer_id: int64 = field(since=3, default=-1)
    """Producer id whose epoch the broker is to increase (KIP-360); -1 to request an id without this check.

    The broker returns an error if another producer with the same transactional id has a newer epoch.
    """
    producer_epoch: int16 = field(since=3, default=-1)


class PartitionToAdd(ApiMessage):
    topic: str = field("name", per_topic=True)
    partition: int32 = field("partitions")


class AddedPartition(ApiMessage):
    topic: str = field("name", per_topic=True)
    partition: int32 = field("partition_index")
    error_code: int16 = field("partition_error_code")


class AddPartitionsToTxnResponse(ApiMessage):
    throttle_time_ms: int32 = field(default=0, kw_only=True)
    partitions: tuple[AddedPartition, ...] = by_topic("results_by_topic_v3_and_below", "results_by_partition")


class AddPartitionsToTxnRequest(Request[AddPartitionsToTxnResponse], key=24, versions=(1, 3), flexible_from=3):
    transactional_id: str = field("v3_and_below_transactional_id")
    producer_id: int64 = field("v3_and_below_producer_id")
    producer_epoch: int16 = field("v3_and_below_producer_epoch")
    partitions: tuple[PartitionToAdd, ...] = by_topic("v3_and_below_topics", bare=True)


class AddOffsetsToTxnResponse(ApiMessage):
    throttle_time_ms: int32 = field(default=0, kw_only=True)
    error_code: int16


class AddOffsetsToTxnRequest(Request[AddOffsetsToTxnResponse], key=25, versions=(1, 4), flexible_from=3):
    transactional_id: str
    producer_id: int64
    producer_epoch: int16
    group_id: str


class TxnOffsetCommitResponse(ApiMessage):
    throttle_time_ms: int32 = field(default=0, kw_only=True)
    partitions: tuple[CommitResult, ...] = by_topic()


class TxnOffsetCommitRequest(Request[TxnOffsetCommitResponse], key=28, versions=(3, 4), flexible_from=3):
    transactional_id: str
    group_id: str
    producer_id: int64
    producer_epoch: int16
    generation_id: int32 = field(default=-1, kw_only=True)
    """Generation, or member epoch (KIP-848); -1 if the committer is not a member and cannot be fenced (KIP-447)."""
    member_id: str = field(default="", kw_only=True)
    group_instance_id: str | None = field(default=None, kw_only=True)
    partitions: tuple[CommitOffset, ...] = by_topic(entry_version=9)


class EndTxnResponse(ApiMessage):
    throttle_time_ms: int32 = field(default=0, kw_only=True)
    error_code: int16


class EndTxnRequest(Request[EndTxnResponse], key=26, versions=(1, 4), flexible_from=3):
    transactional_id: str
    producer_id: int64
    producer_epoch: int16
    committed: bool
    """True to commit the transaction, False to abort it."""


# ---- what brokers need for publishing --------------------------------------------------------------------------------

PUBLISHING = Capability(
    "publishing with an idempotent producer",
    (ProduceRequest.api, InitProducerIdRequest.api),
    "upgrade the brokers to Apache Kafka 2.1 or newer, or enable idempotence on them",
)
TRANSACTIONS = Capability(
    "transactions (delivery='exactly_once')",
    (
        ProduceRequest.api,
        InitProducerIdRequest.api,
        AddPartitionsToTxnRequest.api,
        AddOffsetsToTxnRequest.api,
        TxnOffsetCommitRequest.api,
        EndTxnRequest.api,
    ),
    "set delivery='at_least_once', or upgrade the brokers to Apache Kafka 2.5 or newer",
)
