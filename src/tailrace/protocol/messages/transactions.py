"""Records written to partitions, and the transactions that make several writes and a group's offsets one (KIP-98)."""

from __future__ import annotations

from dataclasses import dataclass

from tailrace.protocol.messages.committed_offsets import CommitOffset, CommitResult
from tailrace.protocol.messages.fetch import LeaderIdAndEpoch
from tailrace.protocol.messages.metadata import BrokerMetadata
from tailrace.protocol.messages.request import Request

__all__ = [
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
    "ProduceRequest",
    "ProduceResponse",
    "ProducedPartition",
    "RecordsToProduce",
    "RefusedRecord",
    "TxnOffsetCommitRequest",
    "TxnOffsetCommitResponse",
]


@dataclass(frozen=True, slots=True)
class InitProducerIdResponse:
    error_code: int
    producer_id: int = -1
    producer_epoch: int = -1
    throttle_time_ms: int = 0


@dataclass(frozen=True, slots=True)
class InitProducerIdRequest(Request[InitProducerIdResponse]):
    transactional_id: str | None
    transaction_timeout_ms: int
    producer_id: int = -1
    """With its epoch: whoever has it already wants the next epoch, and not if another has taken the id (KIP-360)."""
    producer_epoch: int = -1


_NOT_SAID = LeaderIdAndEpoch()


# ---- records ---------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class RecordsToProduce:
    topic: str
    partition: int
    records: bytes | memoryview | None
    """One batch."""


@dataclass(frozen=True, slots=True)
class RefusedRecord:
    batch_index: int
    message: str | None = None


@dataclass(frozen=True, slots=True)
class ProducedPartition:
    topic: str
    partition: int
    error_code: int
    base_offset: int = -1
    log_append_time_ms: int = -1
    log_start_offset: int = -1
    record_errors: tuple[RefusedRecord, ...] = ()
    error_message: str | None = None
    current_leader: LeaderIdAndEpoch = _NOT_SAID


@dataclass(frozen=True, slots=True)
class ProduceResponse:
    partitions: tuple[ProducedPartition, ...]
    throttle_time_ms: int = 0
    node_endpoints: tuple[BrokerMetadata, ...] = ()


@dataclass(frozen=True, slots=True)
class ProduceRequest(Request[ProduceResponse]):
    transactional_id: str | None
    acks: int
    """-1 when all replicas in sync have to have it."""
    timeout_ms: int
    """How long the leader waits for them."""
    partitions: tuple[RecordsToProduce, ...]


# ---- transactions ----------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class PartitionToAdd:
    topic: str
    partition: int


@dataclass(frozen=True, slots=True)
class AddedPartition:
    topic: str
    partition: int
    error_code: int


@dataclass(frozen=True, slots=True)
class AddPartitionsToTxnResponse:
    partitions: tuple[AddedPartition, ...]
    throttle_time_ms: int = 0


@dataclass(frozen=True, slots=True)
class AddPartitionsToTxnRequest(Request[AddPartitionsToTxnResponse]):
    transactional_id: str
    producer_id: int
    producer_epoch: int
    partitions: tuple[PartitionToAdd, ...]


@dataclass(frozen=True, slots=True)
class AddOffsetsToTxnResponse:
    error_code: int
    throttle_time_ms: int = 0


@dataclass(frozen=True, slots=True)
class AddOffsetsToTxnRequest(Request[AddOffsetsToTxnResponse]):
    transactional_id: str
    producer_id: int
    producer_epoch: int
    group_id: str


@dataclass(frozen=True, slots=True)
class TxnOffsetCommitResponse:
    partitions: tuple[CommitResult, ...]
    throttle_time_ms: int = 0


@dataclass(frozen=True, slots=True)
class TxnOffsetCommitRequest(Request[TxnOffsetCommitResponse]):
    transactional_id: str
    group_id: str
    producer_id: int
    producer_epoch: int
    partitions: tuple[CommitOffset, ...]
    generation_id: int = -1
    """Or the member's epoch under KIP-848; -1 outside of any membership, where nothing is fenced (KIP-447)."""
    member_id: str = ""
    group_instance_id: str | None = None


@dataclass(frozen=True, slots=True)
class EndTxnResponse:
    error_code: int
    throttle_time_ms: int = 0


@dataclass(frozen=True, slots=True)
class EndTxnRequest(Request[EndTxnResponse]):
    transactional_id: str
    producer_id: int
    producer_epoch: int
    committed: bool
    """Or aborted."""
