"""Records in the logs of partitions: Fetch, Produce, ListOffsets and OffsetForLeaderEpoch."""

from __future__ import annotations

from typing import Annotated
from uuid import UUID

from tailrace.protocol.encoding.fields import NEVER, by_topic, field
from tailrace.protocol.encoding.primitives import RECORDS, int8, int16, int32, int64
from tailrace.protocol.message import NO_TOPIC_ID, ApiMessage, Request
from tailrace.protocol.metadata import BrokerMetadata

__all__ = [
    "ISOLATION_LEVELS",
    "LAST_PRODUCE_IN_FIRST",
    "AbortedTransaction",
    "EpochEndOffset",
    "FetchPartition",
    "FetchRequest",
    "FetchResponse",
    "FetchedPartition",
    "ForgottenPartition",
    "LeaderEpochEndOffset",
    "LeaderIdAndEpoch",
    "ListOffsetsPartition",
    "ListOffsetsRequest",
    "ListOffsetsResponse",
    "ListedOffset",
    "OffsetForLeaderEpochPartition",
    "OffsetForLeaderEpochRequest",
    "OffsetForLeaderEpochResponse",
    "ProduceRequest",
    "ProduceResponse",
    "ProducedPartition",
    "RecordsToProduce",
    "RefusedRecord",
]

LAST_PRODUCE_IN_FIRST = 11
"""Last version of Produce that may be used in a transaction of version 1 (KIP-890)."""
_SECOND = 2

# ---- Fetch -----------------------------------------------------------------------------------------------------------


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


ISOLATION_LEVELS = {"read_uncommitted": 0, "read_committed": 1}
"""Values of ``isolation_level`` in Fetch and ListOffsets, by the value of the option."""


# ---- ListOffsets and OffsetForLeaderEpoch ----------------------------------------------------------------------------


class ListOffsetsPartition(ApiMessage):
    topic: str = field("name", per_topic=True)
    partition: int32 = field("partition_index")
    current_leader_epoch: int32 = field(since=4, ignorable=True, default=-1, kw_only=True)
    timestamp: int64
    """Milliseconds since 1970; or -1 for the end of the log, -2 for its start, -3 for its greatest timestamp."""


class ListedOffset(ApiMessage):
    topic: str = field("name", per_topic=True)
    partition: int32 = field("partition_index")
    error_code: int16
    timestamp: int64 = -1
    offset: int64 = -1
    leader_epoch: int32 = field(since=4, default=-1)


class ListOffsetsResponse(ApiMessage):
    throttle_time_ms: int32 = field(since=2, default=0, kw_only=True)
    partitions: tuple[ListedOffset, ...] = by_topic()


class ListOffsetsRequest(Request[ListOffsetsResponse], key=2, versions=(1, 11), flexible_from=6):
    replica_id: int32 = field(default=-1, kw_only=True)
    isolation_level: int8 = field(since=2, default=0, kw_only=True)
    partitions: tuple[ListOffsetsPartition, ...] = by_topic()
    timeout_ms: int32 = field(since=10, ignorable=True, default=0, kw_only=True)
    """Maximum time for which the broker reads remote storage (KIP-1075); then it answers with REQUEST_TIMED_OUT."""


class OffsetForLeaderEpochPartition(ApiMessage):
    topic: str = field(per_topic=True)
    partition: int32
    current_leader_epoch: int32 = field(default=-1, kw_only=True)
    """Current leader epoch that the client knows; the broker returns an error if it has another one (KIP-320)."""
    leader_epoch: int32
    """Leader epoch whose end offset is requested."""


class LeaderEpochEndOffset(ApiMessage):
    topic: str = field(per_topic=True)
    error_code: int16
    partition: int32
    leader_epoch: int32 = -1
    """Greatest leader epoch in the log that is not greater than the requested epoch.

    -1 if the log has neither the requested epoch nor a later one.
    """
    end_offset: int64 = -1


class OffsetForLeaderEpochResponse(ApiMessage):
    throttle_time_ms: int32 = field(default=0, kw_only=True)
    partitions: tuple[LeaderEpochEndOffset, ...] = by_topic()


class OffsetForLeaderEpochRequest(Request[OffsetForLeaderEpochResponse], key=23, versions=(2, 4), flexible_from=4):
    replica_id: int32 = field(since=3, ignorable=True, default=-1, kw_only=True)
    """-1 for a consumer. The protocol's default is -2, which is for debugging."""
    partitions: tuple[OffsetForLeaderEpochPartition, ...] = by_topic()


# ---- Produce ---------------------------------------------------------------------------------------------------------


class RecordsToProduce(ApiMessage):
    topic: str = field("name", per_topic=True)
    partition: int32 = field("index")
    records: Annotated[bytes | memoryview, RECORDS] | None
    """One record batch."""


class RefusedRecord(ApiMessage):
    batch_index: int32
    message: str | None = field("batch_index_error_message", default=None)


class ProducedPartition(ApiMessage):
    topic: str = field("name", per_topic=True)
    partition: int32 = field("index")
    error_code: int16
    base_offset: int64 = -1
    log_append_time_ms: int64 = -1
    log_start_offset: int64 = field(since=5, default=-1)
    record_errors: tuple[RefusedRecord, ...] = field(since=8, default=())
    error_message: str | None = field(since=8, default=None)
    current_leader: LeaderIdAndEpoch = field(since=10, tag=0, default=LeaderIdAndEpoch())


class ProduceResponse(ApiMessage):
    partitions: tuple[ProducedPartition, ...] = by_topic("responses", "partition_responses")
    throttle_time_ms: int32 = 0
    node_endpoints: tuple[BrokerMetadata, ...] = field(since=10, tag=0, default=())


class ProduceRequest(Request[ProduceResponse], key=0, versions=(3, 12), flexible_from=9):
    transactional_id: str | None
    acks: int16
    """-1 if the leader must not respond before all in-sync replicas have the batch."""
    timeout_ms: int32
    """Maximum time for which the leader waits for the replicas."""
    partitions: tuple[RecordsToProduce, ...] = by_topic("topic_data", "partition_data")
    transaction_version: int16 = field(since=NEVER, ignorable=True, default=1)
    """Version of the transaction (KIP-890), which decides about the version of the request."""

    @property
    def newest_version(self) -> int | None:
        """Version 11, unless the leader is to add the partitions to a transaction of version 2."""
        return None if self.transaction_version >= _SECOND else LAST_PRODUCE_IN_FIRST

    @property
    def oldest_version(self) -> int | None:
        """First version in which the leader adds the partitions to a transaction of version 2; otherwise None."""
        return LAST_PRODUCE_IN_FIRST + 1 if self.transaction_version >= _SECOND else None
