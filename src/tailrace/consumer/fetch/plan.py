"""Fetch plans: the partitions to fetch from each broker, sizes, and reactions to error codes.

Pure: no clock, IO or logging.

A partition is fetched if its position is known, it is neither paused nor about to be revoked, its backoff is over, and
its share of the buffer has room.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Protocol
from uuid import UUID
from zlib import crc32

from tailrace.consumer.fetch.session import FetchSource
from tailrace.core.delivery.positions import Position
from tailrace.error_codes import ErrorCode, ReactionTable
from tailrace.protocol.records import FetchPartition
from tailrace.records import TopicPartition

__all__ = [
    "FETCH_REACTIONS",
    "AddedWait",
    "BufferRoom",
    "FetchErrorAction",
    "FetchLimits",
    "FetchPlan",
    "FetchWait",
    "FetcherSlot",
    "is_interruption",
    "make_plan",
    "slot_of",
]


_SHORTEST_WAIT_S = 0.02
"""Shortest time for which a broker may hold a fetch while the buffer lacks room."""
_ADDED_WAIT_S = 0.1
"""Time for which a broker may hold a fetch of added partitions, until such a fetch was answered without a record."""
_INTERRUPTIONS = 2
"""Number of failed fetches in a row that a change of the leader may cause."""


class FetchErrorAction(StrEnum):
    """Reactions to a partition's error code."""

    ACCEPT = "accept the records"
    RESET = "reset the position, which is outside the log"
    REFRESH_METADATA = "refresh metadata, then fetch again after a pause"
    RETRY = "fetch again after a pause"
    RAISE = "raise the error, then fetch again after a pause"


# Retriable codes nearly always mean that the leader has changed, so metadata is refreshed. A pause follows, because a
# restarting broker would otherwise receive fetches as fast as the network allows.
FETCH_REACTIONS: ReactionTable[StrEnum, FetchErrorAction] = ReactionTable(
    {
        ErrorCode.NONE: FetchErrorAction.ACCEPT,
        ErrorCode.OFFSET_OUT_OF_RANGE: FetchErrorAction.RESET,
        ErrorCode.CORRUPT_MESSAGE: FetchErrorAction.RETRY,
        ErrorCode.UNKNOWN_SERVER_ERROR: FetchErrorAction.RETRY,
        ErrorCode.OFFSET_NOT_AVAILABLE: FetchErrorAction.RETRY,
    },
    retriable=FetchErrorAction.REFRESH_METADATA,
    final=FetchErrorAction.RAISE,
)


def is_interruption(action: FetchErrorAction, failures: int) -> bool:
    """Return True if the failure of a fetch may be due to a change of the leader.

    The first failure may be the answer of the old leader; the second may follow from metadata that still named it.

    Args:
        action: reaction to the error code of the fetch.
        failures: number of fetches of the partition that failed before, since the last success.
    """
    return action is FetchErrorAction.REFRESH_METADATA and failures < _INTERRUPTIONS


@dataclass(frozen=True, slots=True)
class FetchLimits:
    """Limits of a fetch: ``fetch_max_bytes``, ``max_partition_fetch_bytes`` and ``fetch_max_wait_ms``."""

    max_bytes: int
    partition_max_bytes: int
    max_wait_s: float


class BufferRoom(Protocol):
    """Space in the buffer; implemented by ``consumer.delivery.buffer.FetchBuffer``."""

    @property
    def free_bytes(self) -> int: ...

    @property
    def largest_bytes(self) -> int: ...

    def bytes_of(self, partition: TopicPartition) -> int: ...

    def share_of(self, partitions: int) -> int: ...


@dataclass(frozen=True, slots=True)
class FetchPlan:
    """One fetch from one broker."""

    partitions: Mapping[TopicPartition, FetchPartition]
    epochs: Mapping[TopicPartition, int]
    """Assignment epochs of the positions, to recognize an outdated answer."""
    max_bytes: int
    """Maximum size of the answer in bytes."""
    lacks_room: bool
    """True if a partition was left out because its share of the buffer, or the whole buffer, is full."""
    retry_at: float | None
    """Time at which the first backoff of a partition ends; None if no partition backs off."""
    is_idle: bool
    """True if no assigned partition uses this connection to this broker."""
    overdrawn: tuple[TopicPartition, ...] = ()
    """Partitions that use more than their share of the buffer, if that leaves no room for the partitions to fetch."""
    recreated: tuple[TopicPartition, ...] = ()
    """Partitions that were left out because their topics were recreated."""
    unassigned: tuple[TopicPartition, ...] = ()
    """Partitions that were left out because the topics of their names have other ids than the assigned topics."""

    def is_valid_for(self, position: Position) -> bool:
        """Return True if the answer to this fetch is valid for ``position``.

        It is not valid if the position has changed since, by a seek or by the answer of another broker. While the
        leader changes, the old leader may answer after a fetch was sent to the new leader. Only the first of two
        answers for the same offset is valid, because the second would be without the control batches of the first.
        """
        fetch = self.partitions.get(position.partition)
        return (
            fetch is not None
            and self.epochs[position.partition] == position.epoch
            and fetch.fetch_offset == position.fetched
        )

    def added_to(self, in_flight: FetchPlan) -> FetchPlan:
        """Return this plan without the partitions that the older plan ``in_flight`` contains in the same epoch."""
        added = {
            partition: fetch
            for partition, fetch in self.partitions.items()
            if in_flight.epochs.get(partition) != self.epochs[partition]
        }
        return replace(
            self,
            partitions=added,
            epochs={partition: self.epochs[partition] for partition in added},
            max_bytes=min(self.max_bytes, sum(one.partition_max_bytes for one in added.values())),
        )

    def topic_names(self) -> dict[UUID, str]:
        """Return the names of the topics of this plan, by topic id."""
        # A UUID is slow to hash, so the id of a topic is hashed once, and not for each partition.
        topics = {fetch.topic: fetch.topic_id for fetch in self.partitions.values()}
        return {topic_id: topic for topic, topic_id in topics.items()}


@dataclass(frozen=True, slots=True)
class FetcherSlot:
    """One of several connections to a broker; a partition always uses the same connection."""

    number: int = 0
    count: int = 1
    """Number of connections to the broker."""

    def has(self, partition: TopicPartition) -> bool:
        """Return True if ``partition`` uses this connection."""
        return self.count == 1 or slot_of(partition, self.count) == self.number


def slot_of(partition: TopicPartition, count: int) -> int:
    """Return the number of the connection that ``partition`` uses if there are ``count`` connections to a broker."""
    return 0 if count == 1 else (crc32(partition.topic.encode()) + partition.partition) % count


def make_plan(  # noqa: PLR0913, PLR0917 - the inputs of a plan
    node_id: int,
    sources: Sequence[FetchSource],
    room: BufferRoom,
    limits: FetchLimits,
    now: float,
    slot: FetcherSlot = FetcherSlot(),
) -> FetchPlan:
    """Return the fetch to send to the broker ``node_id`` now, on the connection ``slot``."""
    # A broker would answer a fetch of less than ``least`` bytes with a single batch, for which a request costs too
    # much.
    share = room.share_of(len(sources))
    least = min(limits.max_bytes, limits.partition_max_bytes, max(1, share // 2))
    full_size = min(limits.partition_max_bytes, share)
    # For a partition without buffered records, at least the size of the largest chunk so far is requested: a broker
    # sends a batch that is larger than requested only for the first partition of an answer.
    empty_size = min(limits.partition_max_bytes, max(full_size, room.largest_bytes))
    chosen: dict[TopicPartition, FetchPartition] = {}
    epochs: dict[TopicPartition, int] = {}
    recreated: list[TopicPartition] = []
    unassigned: list[TopicPartition] = []
    is_idle, lacks_room, retry_at, wanted = True, False, math.inf, 0
    for source in sources:
        position = source.position
        if source.node_id(now) != node_id or not slot.has(position.partition):
            continue
        is_idle = False
        if (offset := position.offset_to_fetch) is None:
            continue
        if position.retry_at > now:
            retry_at = min(retry_at, position.retry_at)
            continue
        if source.is_unassigned:
            unassigned.append(position.partition)
            continue
        if source.is_recreated:
            recreated.append(position.partition)
            continue
        partition = position.partition
        size, request_size = full_size, empty_size
        if held := room.bytes_of(partition):
            size = request_size = min(limits.partition_max_bytes, share - held)
        if size < least:
            lacks_room = True
            continue
        wanted += size
        chosen[partition], epochs[partition] = source.request(offset, request_size), position.epoch
    # The answer may not be larger than the shares of these partitions, so that room is left for other brokers.
    max_bytes = min(limits.max_bytes, room.free_bytes, wanted)
    overdrawn: tuple[TopicPartition, ...] = ()
    if chosen and max_bytes < least:
        overdrawn, lacks_room, chosen, epochs = _overdrawn(sources, room), True, {}, {}
    return FetchPlan(
        partitions=chosen,
        epochs=epochs,
        max_bytes=max_bytes,
        lacks_room=lacks_room,
        retry_at=None if retry_at == math.inf else retry_at,
        is_idle=is_idle,
        overdrawn=overdrawn,
        recreated=tuple(recreated),
        unassigned=tuple(unassigned),
    )


def _overdrawn(sources: Sequence[FetchSource], room: BufferRoom) -> tuple[TopicPartition, ...]:
    share = room.share_of(len(sources))
    positions = (source.position for source in sources)
    return tuple(one.partition for one in positions if one.fetched is not None and room.bytes_of(one.partition) > share)


@dataclass(slots=True)
class FetchWait:
    """Time for which a broker may hold a fetch; it is short if partitions were left out for lack of room.

    Room may become free at any moment, and a partition cannot be added to a fetch in flight. As long as no record is
    taken out of the buffer, the short time doubles with each fetch.
    """

    longest_s: float
    """``fetch_max_wait_ms``, in seconds."""
    _last_s: float = 0.0
    """Last short time; 0 if the last fetch lacked no room."""
    _taken: int = -1
    """``FetchBuffer.taken_bytes`` at the last fetch that lacked room."""

    def wait_s(self, *, lacks_room: bool, taken_bytes: int) -> float:
        """Return the time in seconds for the next fetch.

        Args:
            lacks_room: ``FetchPlan.lacks_room`` of the next fetch.
            taken_bytes: ``FetchBuffer.taken_bytes``.
        """
        if not lacks_room:
            self._last_s = 0.0
            return self.longest_s
        if self._last_s == 0.0 or taken_bytes != self._taken:
            self._last_s = min(_SHORTEST_WAIT_S, self.longest_s)
        else:
            self._last_s = min(self._last_s * 2, self.longest_s)
        self._taken = taken_bytes
        return self._last_s


@dataclass(slots=True)
class AddedWait:
    """Time for which a broker may hold a fetch of added partitions, which is sent while another fetch is in flight.

    The time is short until such a fetch was answered without a record, so that seeks in quick succession need no new
    connection. After that, the broker may hold the fetch almost as long as the other fetch.
    """

    _empty: FetchPlan | None = None
    """Last fetch of added partitions, if it was answered without a record."""

    def is_long(self, plan: FetchPlan) -> bool:
        """Return True if the last fetch of added partitions contained those of ``plan`` and brought no record."""
        return self._empty is not None and not plan.added_to(self._empty).partitions

    def wait_s(self, plan: FetchPlan, longest_s: float, rest_s: float) -> float | None:
        """Return the time in seconds for the next fetch; None to send none before the other fetch is answered.

        Args:
            plan: plan of the next fetch.
            longest_s: ``fetch_max_wait_ms``, in seconds.
            rest_s: time for which the broker may still hold the other fetch.
        """
        if not self.is_long(plan):
            return min(_ADDED_WAIT_S, longest_s)
        # This fetch must be answered before the other fetch, because the answer to the other fetch would end it early.
        return rest_s - _ADDED_WAIT_S if rest_s > 2 * _ADDED_WAIT_S else None

    def note_answer(self, plan: FetchPlan, *, is_empty: bool) -> None:
        """Note that a fetch of ``plan`` was answered, without records if ``is_empty``."""
        self._empty = plan if is_empty else None
