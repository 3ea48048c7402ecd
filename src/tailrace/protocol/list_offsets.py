"""Lookup of offsets in a log: ListOffsets and OffsetForLeaderEpoch."""

from __future__ import annotations

from tailrace.protocol.encoding.fields import by_topic, field
from tailrace.protocol.encoding.primitives import int8, int16, int32, int64
from tailrace.protocol.message import ApiMessage, Request

__all__ = [
    "LeaderEpochEndOffset",
    "ListOffsetsPartition",
    "ListOffsetsRequest",
    "ListOffsetsResponse",
    "ListedOffset",
    "OffsetForLeaderEpochPartition",
    "OffsetForLeaderEpochRequest",
    "OffsetForLeaderEpochResponse",
]


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


class ListOffsetsRequest(Request[ListOffsetsResponse], key=2, versions=(1, 7), flexible_from=6):
    replica_id: int32 = field(default=-1, kw_only=True)
    isolation_level: int8 = field(since=2, default=0, kw_only=True)
    partitions: tuple[ListOffsetsPartition, ...] = by_topic()


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
