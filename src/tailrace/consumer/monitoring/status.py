"""What a consumer says of itself: how far it is, how far behind, how it is.

Rule of this file: plain values, copied; whoever has them may change them without changing anything. What is not known
is absent.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Literal, NamedTuple, TypeAlias

from tailrace.core.delivery.positions import Position
from tailrace.errors import ConfigurationError
from tailrace.records import TopicPartition

__all__ = ["ConsumerHealth", "ConsumerOffsets", "ConsumerStatistics", "Kind", "Lag", "offsets_of", "one_kind"]

Kind: TypeAlias = Literal["fetch", "highwater", "commit", "done"]
HealthStatus: TypeAlias = Literal["starting", "ok", "degraded", "failed"]


class ConsumerStatistics(NamedTuple):
    """What a consumer holds right now."""

    queued_records: int
    """Decoded and not handed out; at most ``max_queued_records``."""
    buffered_bytes: int
    """Fetched and not decoded."""
    reserved_bytes: int
    """Kept free for fetches under way; with what is buffered at most ``max_buffered_bytes``."""
    ignored_maps: int
    """Commits found at takeovers with metadata that are not ours, or cannot be read; see ``OffsetMapIgnored``."""


class ConsumerOffsets(NamedTuple):
    """How far each assigned partition is; each offset is that of the next record."""

    fetch: dict[TopicPartition, int]
    """To be handed out."""
    highwater: dict[TopicPartition, int]
    """To be written, as the last fetch told it."""
    commit: dict[TopicPartition, int]
    """That the group goes on with, as the broker took it last."""
    done: dict[TopicPartition, int]
    """That is not done: the lowest one."""


class Lag(NamedTuple):
    """Records that are there and not handed out."""

    partitions: dict[TopicPartition, int]
    total: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsumerHealth:
    """How a consumer is.

    Attributes:
        status: "failed" is for good; "starting" until there is a first assignment; "degraded" while the group cannot
            be reached, or deals out partitions.
        detail: why it is not "ok".
        partitions: how many are assigned.
        heartbeat_age_s: since the group has last heard of us; None without a group.
    """

    status: HealthStatus
    detail: str = ""
    partitions: int = 0
    heartbeat_age_s: float | None = None

    @property
    def is_live(self) -> bool:
        """False when nothing but a restart heals it."""
        return self.status != "failed"

    @property
    def is_ready(self) -> bool:
        """Whether it has begun to work: false before the first assignment, and when it has failed."""
        return self.status in {"ok", "degraded"}


def offsets_of(positions: Iterable[Position]) -> ConsumerOffsets:
    """All kinds of offsets."""
    among = list(positions)

    def every(get: Callable[[Position], int | None]) -> dict[TopicPartition, int]:
        return {one.partition: offset for one in among if (offset := get(one)) is not None}

    return ConsumerOffsets(
        every(lambda one: one.next_offset),
        every(lambda one: one.high_watermark),
        every(lambda one: one.committed),
        every(lambda one: one.finished),
    )


def one_kind(offsets: ConsumerOffsets, kind: str) -> dict[TopicPartition, int]:
    """The offsets of one kind.

    Raises:
        ConfigurationError: there is no such kind.
    """
    if kind not in ConsumerOffsets._fields:
        raise ConfigurationError(f"kind={kind!r} will not do: it has to be one of {', '.join(ConsumerOffsets._fields)}")
    found: dict[TopicPartition, int] = getattr(offsets, kind)
    return found
