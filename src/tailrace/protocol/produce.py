"""Writing of record batches: Produce.

The newest supported version is 11. From version 12 on, brokers add partitions to transactions implicitly, which
requires transactions version 2 in the other requests, too (KIP-890). From version 13 on, topics have only ids.
"""

from __future__ import annotations

from typing import Annotated

from tailrace.protocol.encoding.fields import by_topic, field
from tailrace.protocol.encoding.primitives import RECORDS, int16, int32, int64
from tailrace.protocol.fetch import LeaderIdAndEpoch
from tailrace.protocol.message import ApiMessage, Request
from tailrace.protocol.metadata import BrokerMetadata

__all__ = ["ProduceRequest", "ProduceResponse", "ProducedPartition", "RecordsToProduce", "RefusedRecord"]


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
    log_start_offset: int64 = -1
    record_errors: tuple[RefusedRecord, ...] = ()
    error_message: str | None = None
    current_leader: LeaderIdAndEpoch = field(since=10, tag=0, default=LeaderIdAndEpoch())


class ProduceResponse(ApiMessage):
    partitions: tuple[ProducedPartition, ...] = by_topic("responses", "partition_responses")
    throttle_time_ms: int32 = 0
    node_endpoints: tuple[BrokerMetadata, ...] = field(since=10, tag=0, default=())


class ProduceRequest(Request[ProduceResponse], key=0, versions=(8, 11), flexible_from=9):
    transactional_id: str | None
    acks: int16
    """-1 if the leader must not respond before all in-sync replicas have the batch."""
    timeout_ms: int32
    """Maximum time for which the leader waits for the replicas."""
    partitions: tuple[RecordsToProduce, ...] = by_topic("topic_data", "partition_data")
