"""Health, offsets and lag of a consumer at one point in time. Unknown values are left out."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Literal, NamedTuple, TypeAlias

from tailrace.core.delivery.positions import Position
from tailrace.errors import ConfigurationError
from tailrace.records import TopicPartition

__all__ = ["ConsumerHealth", "ConsumerOffsets", "Kind", "Lag", "offsets_of", "offsets_of_kind"]

Kind: TypeAlias = Literal["fetch", "highwater", "commit", "done"]
HealthStatus: TypeAlias = Literal["starting", "ok", "degraded", "failed"]


class ConsumerOffsets(NamedTuple):
    """Offsets of each assigned partition."""

    fetch: dict[TopicPartition, int]
    """Positions: the offset of the next record to deliver."""
    highwater: dict[TopicPartition, int]
    """High watermarks as of the last fetch: the offset after the last record."""
    commit: dict[TopicPartition, int]
    """Committed offsets, as last acknowledged by the broker: the offset of the next record after a restart."""
    done: dict[TopicPartition, int]
    """Lowest unfinished offsets, which the next commit contains."""


class Lag(NamedTuple):
    """Number of offsets from the position to the end of the log."""

    partitions: dict[TopicPartition, int]
    """Lag of each partition."""
    total: int
    """Sum of the lags of all partitions."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsumerHealth:
    """Health of a consumer.

    Attributes:
        status: "starting" before the group's first assignment; "degraded" while the cluster or the group's coordinator
            cannot be reached, the group rebalances, or the start offset of a partition is unknown for long
            (``StartOffsetDelayed``); "failed" once an error has ended the consumer; otherwise "ok".
        detail: reason why the status is not "ok".
        partitions: number of assigned partitions.
        heartbeat_age_s: seconds since the last acknowledged heartbeat was sent; None without a group.
    """

    status: HealthStatus
    detail: str = ""
    partitions: int = 0
    heartbeat_age_s: float | None = None

    @property
    def is_live(self) -> bool:
        """False if only a restart can help."""
        return self.status != "failed"

    @property
    def is_ready(self) -> bool:
        """False before the group's first assignment, and once an error has ended the consumer."""
        return self.status in {"ok", "degraded"}


def offsets_of(positions: Iterable[Position]) -> ConsumerOffsets:
    """Return all kinds of offsets of the positions."""
    listed = list(positions)

    def every(get: Callable[[Position], int | None]) -> dict[TopicPartition, int]:
        return {one.partition: offset for one in listed if (offset := get(one)) is not None}

    return ConsumerOffsets(
        every(lambda one: one.next_offset),
        every(lambda one: one.high_watermark),
        every(lambda one: one.committed),
        every(lambda one: one.finished),
    )


def offsets_of_kind(offsets: ConsumerOffsets, kind: str) -> dict[TopicPartition, int]:
    """Return the offsets of one kind.

    Raises:
        ConfigurationError: ``kind`` is unknown.
    """
    if kind not in ConsumerOffsets._fields:
        raise ConfigurationError(f"kind must be one of {', '.join(ConsumerOffsets._fields)}, not {kind!r}")
    found: dict[TopicPartition, int] = getattr(offsets, kind)
    return found
