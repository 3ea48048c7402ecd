"""Fetch plans: the partitions to fetch from each broker, sizes, and reactions to error codes.

A plan reflects the current state only. A partition is fetched if its position is known, it is not paused, its backoff
is over, and its share of the buffer has room.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Protocol
from uuid import UUID
from zlib import crc32

from tailrace.core.cluster_metadata import ClusterMetadata, is_other_log
from tailrace.core.delivery.positions import Position, Positions
from tailrace.core.error_reactions import ReactionTable
from tailrace.error_codes import ErrorCode
from tailrace.protocol.fetch import FetchPartition
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
    "is_recreated",
    "make_plan",
    "slot_of",
    "source_of",
    "sources_change_at",
]


_SHORTEST_WAIT_S = 0.02
"""First time for which a broker holds a fetch while the buffer lacks room."""
_ADDED_WAIT_S = 0.1
"""Time for which a broker holds a fetch of added partitions until one brings no record."""
_INTERRUPTIONS = 2
"""Number of failures in a row that a change of leaders explains."""


class FetchErrorAction(StrEnum):
    """Reactions to a partition's error code."""

    ACCEPT = "accept the records"
    RESET = "reset the position, which the log does not have"
    REFRESH_METADATA = "refresh metadata, then fetch again after a pause"
    RETRY = "fetch again after a pause"
    RAISE = "raise the error, then fetch again after a pause"


# Retriable codes nearly always mean that leadership has moved: refreshing metadata is cheap. Without a backoff, a
# restarting broker would be sent fetches as fast as the network allows.
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
    """Return True if a fetch failed as during a change of leaders, after ``failures`` failures in a row.

    The first failure may come from the old leader, the second failure from metadata that still named the old leader.
    """
    return action is FetchErrorAction.REFRESH_METADATA and failures < _INTERRUPTIONS


@dataclass(frozen=True, slots=True)
class FetchLimits:
    """Limits of a fetch, from the options."""

    max_bytes: int
    partition_max_bytes: int
    max_wait_s: float


class BufferRoom(Protocol):
    """Free space of the buffer (``core.fetch.buffer.FetchBuffer``)."""

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
    """Epochs of the positions, to recognize an outdated answer."""
    max_bytes: int
    lacks_room: bool
    """True if a partition was left out because its share of the buffer, or the buffer, is full."""
    retry_at: float | None
    """End of the earliest backoff; None if no partition backs off."""
    is_idle: bool
    """True if no partition is fetched from this broker."""
    overdrawn: tuple[TopicPartition, ...] = ()
    """Partitions that hold more than their share and leave no room for the partitions to fetch."""
    recreated: tuple[TopicPartition, ...] = ()
    """Partitions left out because their topics were recreated."""

    def counts(self, position: Position) -> bool:
        """Return True if the answer is still valid: no seek or other broker's answer has changed ``position`` since.

        While leadership moves, the old leader may answer after the request to the new leader was sent. Of two answers
        for the same offset, the second is not valid: it would lack the control batches that came with the first.
        """
        fetch = self.partitions.get(position.partition)
        return (
            fetch is not None
            and self.epochs[position.partition] == position.epoch
            and fetch.fetch_offset == position.fetched
        )

    def added_to(self, under_way: FetchPlan) -> FetchPlan:
        """Return this plan without the partitions that the older plan ``under_way`` has in the same epoch."""
        added = {
            partition: fetch
            for partition, fetch in self.partitions.items()
            if under_way.epochs.get(partition) != self.epochs[partition]
        }
        return replace(
            self,
            partitions=added,
            epochs={partition: self.epochs[partition] for partition in added},
            max_bytes=min(self.max_bytes, sum(one.partition_max_bytes for one in added.values())),
        )

    def topic_names(self) -> dict[UUID, str]:
        """Return the names of the topic ids in an answer."""
        # A UUID is slow to hash, so each is hashed once for its topic and not for each of its partitions.
        topics = {fetch.topic: fetch.topic_id for fetch in self.partitions.values()}
        return {topic_id: topic for topic, topic_id in topics.items()}


def source_of(position: Position, topology: ClusterMetadata, now: float) -> int | None:
    """Return the broker to fetch a partition from: its leader, or the nearer replica named by the leader (KIP-392)."""
    leadership = topology.leader(position.partition)
    if leadership is None:
        return None
    replica, is_named = position.preferred_read_replica, now < position.preferred_read_replica_until
    if is_named and replica in topology.brokers and replica in set(leadership.replicas) - set(leadership.offline):
        return replica
    return None if leadership.leader_id < 0 else leadership.leader_id


def is_recreated(position: Position, topology: ClusterMetadata) -> bool:
    """Return True if the topic was recreated since its last fetch, so that its offsets mean other records."""
    return is_other_log(position.fetched_topic_id, position.partition, topology)


def sources_change_at(positions: Positions, now: float) -> float | None:
    """Return the time at which the first preferred read replica expires, so that the leader is used again."""
    named = (one.preferred_read_replica_until for one in positions if one.preferred_read_replica is not None)
    return min((until for until in named if until > now), default=None)


@dataclass(frozen=True, slots=True)
class FetcherSlot:
    """One of several connections to a broker; a partition always uses the same connection."""

    number: int = 0
    of: int = 1

    def has(self, partition: TopicPartition) -> bool:
        """Return True if ``partition`` uses this connection."""
        return slot_of(partition, self.of) == self.number


def slot_of(partition: TopicPartition, of: int) -> int:
    """Return the number of the connection that ``partition`` uses if a broker has ``of`` connections."""
    return 0 if of == 1 else (crc32(partition.topic.encode()) + partition.partition) % of


def make_plan(  # noqa: PLR0913, PLR0917 - the inputs of a plan
    node_id: int,
    positions: Positions,
    topology: ClusterMetadata,
    room: BufferRoom,
    limits: FetchLimits,
    now: float,
    slot: FetcherSlot = FetcherSlot(),
) -> FetchPlan:
    """Return the fetch to send to the broker ``node_id`` now, on the connection ``slot``."""
    mine = [one for one in positions if source_of(one, topology, now) == node_id]
    if slot.of > 1:
        mine = [one for one in mine if slot.has(one.partition)]
    ready = [position for position in mine if _is_ready(position)]
    awake = [position for position in ready if position.retry_at <= now]
    due = [position for position in awake if not is_recreated(position, topology)]
    # A broker would answer a smaller fetch with one batch at a time, for which a request costs too much.
    share = room.share_of(len(positions))
    least = min(limits.max_bytes, limits.partition_max_bytes, max(1, share // 2))
    chosen, wanted = {}, 0
    for position in due:
        held = room.bytes_of(position.partition)
        size = min(limits.partition_max_bytes, share - held)
        if size >= least:
            wanted += size
            if not held:
                # A broker sends a batch that is larger than requested only for one partition of an answer.
                size = min(limits.partition_max_bytes, max(size, room.largest_bytes))
            chosen[position.partition] = _fetch_of(position, topology, size)
    # No more than the shares of these partitions, so that room is left for the fetches from other brokers.
    max_bytes = min(limits.max_bytes, room.free_bytes, wanted)
    overdrawn: tuple[TopicPartition, ...] = ()
    if max_bytes < least:
        overdrawn = _overdrawn(positions, room) if chosen else ()
        chosen = {}
    return FetchPlan(
        partitions=chosen,
        epochs={position.partition: position.epoch for position in due if position.partition in chosen},
        max_bytes=max_bytes,
        lacks_room=len(chosen) < len(due),
        retry_at=min((position.retry_at for position in ready if position.retry_at > now), default=None),
        is_idle=not mine,
        overdrawn=overdrawn,
        recreated=tuple(one.partition for one in awake if is_recreated(one, topology)) if len(due) < len(awake) else (),
    )


def _overdrawn(positions: Positions, room: BufferRoom) -> tuple[TopicPartition, ...]:
    share = room.share_of(len(positions))
    return tuple(one.partition for one in positions if one.fetched is not None and room.bytes_of(one.partition) > share)


def _is_ready(position: Position) -> bool:
    return (
        position.is_fetchable and position.fetched is not None and not position.is_held_back and not position.is_halted
    )


def _fetch_of(position: Position, topology: ClusterMetadata, size: int) -> FetchPartition:
    leadership = topology.leader(position.partition)
    assert position.fetched is not None
    return FetchPartition(
        topic=position.partition.topic,
        topic_id=topology.topic_id(position.partition.topic),
        partition=position.partition.partition,
        fetch_offset=position.fetched,
        partition_max_bytes=size,
        current_leader_epoch=leadership.epoch if leadership is not None else -1,
        # Lets the broker detect that the log was truncated below this position (KIP-320, KIP-595).
        last_fetched_epoch=position.last_fetched_epoch,
    )


@dataclass(slots=True)
class FetchWait:
    """Time that a broker may hold a fetch, which is short if partitions were left out for lack of room.

    Room may become free at any moment, and a partition cannot be added to a fetch in flight. The short time doubles as
    long as nothing is taken out of the buffer.
    """

    longest_s: float
    _next_s: float = 0.0
    _taken: int = -1

    def wait_s(self, *, lacks_room: bool, taken_bytes: int) -> float:
        """Return the time for the next fetch; ``taken_bytes`` is the number of bytes taken out of the buffer so far."""
        if not lacks_room:
            self._next_s = 0.0
            return self.longest_s
        if self._next_s == 0.0 or taken_bytes != self._taken:
            self._next_s = min(_SHORTEST_WAIT_S, self.longest_s)
        else:
            self._next_s = min(self._next_s * 2, self.longest_s)
        self._taken = taken_bytes
        return self._next_s


@dataclass(slots=True)
class AddedWait:
    """Time that a broker may hold a fetch of added partitions while it holds another fetch.

    The time is short until a fetch brings no record, so that seeks in quick succession need no new connection. After
    that, the fetch is held almost as long as the other fetch.
    """

    _empty: FetchPlan | None = None

    def is_long(self, plan: FetchPlan) -> bool:
        """Return True if the last fetch of all partitions of ``plan`` brought no record."""
        return self._empty is not None and not plan.added_to(self._empty).partitions

    def wait_s(self, plan: FetchPlan, longest_s: float, rest_s: float) -> float | None:
        """Return the time for the next fetch; None to send none, but wait for the other, held for ``rest_s`` more."""
        if not self.is_long(plan):
            return min(_ADDED_WAIT_S, longest_s)
        # This fetch must be answered before the other fetch, whose answer would cut this one short.
        return rest_s - _ADDED_WAIT_S if rest_s > 2 * _ADDED_WAIT_S else None

    def answered(self, plan: FetchPlan, *, is_empty: bool) -> None:
        """Note whether a fetch of ``plan`` brought records."""
        self._empty = plan if is_empty else None
