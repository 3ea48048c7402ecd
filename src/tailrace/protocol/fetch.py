"""Reading of record batches: Fetch, with fetch sessions (KIP-227)."""

from __future__ import annotations

from typing import Annotated
from uuid import UUID

from tailrace.protocol.encoding.fields import by_topic, field
from tailrace.protocol.encoding.primitives import RECORDS, int8, int16, int32, int64
from tailrace.protocol.message import NO_TOPIC_ID, ApiMessage, Request
from tailrace.protocol.metadata import BrokerMetadata

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


class FetchPartition(ApiMessage):
    partition: int32
    current_leader_epoch: int32 = field(since=9, ignorable=True, default=-1, kw_only=True)
    fetch_offset: int64
    last_fetched_epoch: int32 = field(since=12, ignorable=True, default=-1, kw_only=True)
    log_start_offset: int64 = field(since=5, ignorable=True, default=-1, kw_only=True)
    partition_max_bytes: int32
    topic: str = field(per_topic=True, until=12, ignorable=True, default="")
    topic_id: UUID = field(per_topic=True, since=13, ignorable=True, default=NO_TOPIC_ID)


class ForgottenPartition(ApiMessage):
    partition: int32 = field("partitions")
    topic: str = field(per_topic=True, until=12, ignorable=True, default="")
    topic_id: UUID = field(per_topic=True, since=13, ignorable=True, default=NO_TOPIC_ID)


class AbortedTransaction(ApiMessage):
    producer_id: int64
    first_offset: int64


class EpochEndOffset(ApiMessage):
    """Last leader epoch in which the logs of broker and fetcher agree, and the end offset of this epoch.

    Both are -1 if the logs agree (KIP-595).
    """

    epoch: int32 = -1
    end_offset: int64 = -1


class LeaderIdAndEpoch(ApiMessage):
    """Current leader of the partition according to the responding broker (KIP-951)."""

    leader_id: int32 = -1
    leader_epoch: int32 = -1


class FetchedPartition(ApiMessage):
    partition: int32 = field("partition_index")
    error_code: int16
    high_watermark: int64
    last_stable_offset: int64 = -1
    log_start_offset: int64 = field(since=5, default=-1)
    diverging_epoch: EpochEndOffset = field(since=12, tag=0, default=EpochEndOffset())
    current_leader: LeaderIdAndEpoch = field(since=12, tag=1, default=LeaderIdAndEpoch())
    aborted_transactions: tuple[AbortedTransaction, ...] | None = None
    preferred_read_replica: int32 = field(since=11, default=-1)
    records: Annotated[memoryview, RECORDS] | None = field(default=None, repr=False)
    """Record batches, as a view of the response frame."""
    topic: str = field(per_topic=True, until=12, ignorable=True, default="")
    topic_id: UUID = field(per_topic=True, since=13, ignorable=True, default=NO_TOPIC_ID)


class FetchResponse(ApiMessage):
    throttle_time_ms: int32 = field(default=0, kw_only=True)
    error_code: int16 = field(since=7, default=0, kw_only=True)
    session_id: int32 = field(since=7, default=0, kw_only=True)
    partitions: tuple[FetchedPartition, ...] = by_topic("responses")
    node_endpoints: tuple[BrokerMetadata, ...] = field(since=16, tag=0, default=())


class FetchRequest(Request[FetchResponse], key=1, versions=(4, 17), flexible_from=12):
    replica_id: int32 = field(until=14, ignorable=True, default=-1, kw_only=True)
    max_wait_ms: int32
    min_bytes: int32
    max_bytes: int32
    isolation_level: int8 = field(default=0, kw_only=True)
    session_id: int32 = field(since=7, ignorable=True, default=0, kw_only=True)
    session_epoch: int32 = field(since=7, ignorable=True, default=-1, kw_only=True)
    partitions: tuple[FetchPartition, ...] = by_topic()
    # Ignorable, because versions without fetch sessions request all partitions each time.
    forgotten: tuple[ForgottenPartition, ...] = by_topic(
        "forgotten_topics_data", bare=True, since=7, ignorable=True, default=()
    )
    rack_id: str = field(since=11, ignorable=True, default="")
