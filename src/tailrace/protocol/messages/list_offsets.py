"""Positions in the log: first, last, by time, and where a leader's epoch ended."""

from __future__ import annotations

from dataclasses import dataclass

from tailrace.protocol.messages.request import Request

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


@dataclass(frozen=True, slots=True)
class ListOffsetsPartition:
    topic: str
    partition: int
    timestamp: int
    """-1 the end, -2 the start, -3 the greatest timestamp, else milliseconds since the epoch."""
    current_leader_epoch: int = -1


@dataclass(frozen=True, slots=True)
class ListedOffset:
    topic: str
    partition: int
    error_code: int
    timestamp: int = -1
    offset: int = -1
    leader_epoch: int = -1


@dataclass(frozen=True, slots=True)
class ListOffsetsResponse:
    partitions: tuple[ListedOffset, ...]
    throttle_time_ms: int = 0


@dataclass(frozen=True, slots=True)
class ListOffsetsRequest(Request[ListOffsetsResponse]):
    partitions: tuple[ListOffsetsPartition, ...]
    isolation_level: int = 0
    replica_id: int = -1


@dataclass(frozen=True, slots=True)
class OffsetForLeaderEpochPartition:
    topic: str
    partition: int
    leader_epoch: int
    """The epoch whose end is asked for."""
    current_leader_epoch: int = -1
    """As the client knows it: the broker refuses it when it is not so (KIP-320)."""


@dataclass(frozen=True, slots=True)
class LeaderEpochEndOffset:
    topic: str
    partition: int
    error_code: int
    leader_epoch: int = -1
    """The greatest epoch not above the one asked for; -1 when there is none."""
    end_offset: int = -1


@dataclass(frozen=True, slots=True)
class OffsetForLeaderEpochResponse:
    partitions: tuple[LeaderEpochEndOffset, ...]
    throttle_time_ms: int = 0


@dataclass(frozen=True, slots=True)
class OffsetForLeaderEpochRequest(Request[OffsetForLeaderEpochResponse]):
    partitions: tuple[OffsetForLeaderEpochPartition, ...]
    replica_id: int = -1
    """A consumer; the protocol's own default, -2, is one that debugs."""
