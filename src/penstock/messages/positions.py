"""Positions in the log: first, last, and by time."""

from __future__ import annotations

from dataclasses import dataclass

from penstock.messages.request import Request

__all__ = ["ListOffsetsPartition", "ListOffsetsRequest", "ListOffsetsResponse", "ListedOffset"]


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
