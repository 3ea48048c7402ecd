"""Fetching: what is asked of a partition's leader, and the batches that come back."""

from __future__ import annotations

from dataclasses import dataclass, field
from uuid import UUID

from tailrace.protocol.messages.metadata import BrokerMetadata
from tailrace.protocol.messages.request import NO_TOPIC_ID, Request

__all__ = [
    "AbortedTransaction",
    "EpochEndOffset",
    "FetchPartition",
    "FetchRequest",
    "FetchResponse",
    "FetchedPartition",
    "ForgottenPartition",
    "LeaderIdAndEpoch",
]


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
