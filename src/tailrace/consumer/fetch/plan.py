"""Fetch plans: the partitions to fetch from each broker, sizes, and reactions to error codes.

Pure: no clock, IO or logging.

A partition is fetched if its position is known, it is neither paused nor about to be revoked, its backoff is over, and
its share of the buffer has space.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from uuid import UUID
from zlib import crc32

from tailrace.consumer.partition import AssignedPartitions, BufferSpace, Partition
from tailrace.core.cluster_metadata import ClusterMetadata, Leadership, is_other_log
from tailrace.error_codes import ErrorCode, ReactionTable
from tailrace.protocol.records import FetchPartition, FetchResponse, ForgottenPartition
from tailrace.records import TopicPartition

__all__ = [
    "FETCH_REACTIONS",
    "AddedWait",
    "FetchConnection",
    "FetchErrorAction",
    "FetchLimits",
    "FetchPlan",
    "FetchSession",
    "FetchSource",
    "FetchSources",
    "FetchWait",
    "SessionPart",
    "is_interruption",
    "make_plan",
    "slot_of",
    "sources_change_at",
    "without_session",
]

# ---- sources of the assigned partitions: the broker to fetch from, and the entry of the fetch request ----------------


@dataclass(slots=True, eq=False)
class FetchSource:
    """Source of one assigned partition."""

    partition: Partition
    topology: ClusterMetadata
    leadership: Leadership | None
    """None if the partition is unknown."""
    topic_id: UUID
    _last_request: FetchPartition | None = None

    def node_id(self, now: float) -> int | None:
        """Return the broker to fetch from: the leader, or the nearer replica named by the leader (KIP-392).

        Return None if the partition has no leader.
        """
        leadership, partition = self.leadership, self.partition
        if leadership is None:
            return None
        if partition.preferred_read_replica is not None and now < partition.preferred_read_replica_until:
            replicas = set(leadership.replicas) - set(leadership.offline)
            if partition.preferred_read_replica in replicas & self.topology.brokers.keys():
                return partition.preferred_read_replica
        return None if leadership.leader_id < 0 else leadership.leader_id

    @property
    def is_recreated(self) -> bool:
        """True if the topic was recreated since its last fetch, so that its offsets belong to other records."""
        return self._is_other(self.partition.fetched_topic_id)

    @property
    def is_unassigned(self) -> bool:
        """True if the group has assigned the topic by its id, and the topic of this name has another id (KIP-848)."""
        return self._is_other(self.partition.assigned_topic_id)

    def _is_other(self, topic_id: UUID | None) -> bool:
        # Two ids that are equal are nearly always the same object; a comparison by value is slow.
        if topic_id is None or topic_id is self.topic_id:
            return False
        return is_other_log(topic_id, self.partition.topic_partition, self.topology)

    def request(self, offset: int, size: int) -> FetchPartition:
        """Return the entry of a fetch request for ``size`` bytes; the same object again if nothing has changed."""
        partition, last = self.partition, self._last_request
        if (
            last is None
            or last.fetch_offset != offset
            or last.partition_max_bytes != size
            or last.last_fetched_epoch != partition.last_fetched_epoch
        ):
            last = self._last_request = FetchPartition(
                topic=partition.topic_partition.topic,
                topic_id=self.topic_id,
                partition=partition.topic_partition.partition,
                fetch_offset=offset,
                partition_max_bytes=size,
                current_leader_epoch=self.leadership.epoch if self.leadership is not None else -1,
                # Lets the broker detect that the log was truncated below this position (KIP-320, KIP-595).
                last_fetched_epoch=partition.last_fetched_epoch,
            )
        return last


class FetchSources:
    """Sources of the assigned partitions, which are looked up again when the metadata or the assignment changes."""

    def __init__(self, partitions: AssignedPartitions) -> None:
        self._partitions = partitions
        self._topology: ClusterMetadata | None = None
        self._version = -1
        self._sources: Sequence[FetchSource] = ()

    def at(self, topology: ClusterMetadata) -> Sequence[FetchSource]:
        """Return the source of each assigned partition, according to ``topology``."""
        if self._topology is not topology or self._version != self._partitions.version:
            self._topology, self._version = topology, self._partitions.version
            self._sources = [
                FetchSource(
                    one, topology, topology.leader(one.topic_partition), topology.topic_id(one.topic_partition.topic)
                )
                for one in self._partitions
            ]
        return self._sources


def sources_change_at(partitions: Iterable[Partition], now: float) -> float | None:
    """Return the time at which the first preferred read replica expires, so that the leader is used again.

    Return None if no preferred read replica is in use.
    """
    named = (one.preferred_read_replica_until for one in partitions if one.preferred_read_replica is not None)
    return min((until for until in named if until > now), default=None)


# ---- incremental fetch sessions (KIP-227) ----------------------------------------------------------------------------

_SESSION_ERRORS = frozenset(
    {
        ErrorCode.FETCH_SESSION_ID_NOT_FOUND,
        ErrorCode.INVALID_FETCH_SESSION_EPOCH,
        ErrorCode.FETCH_SESSION_TOPIC_ID_ERROR,
    }
)
_LAST_EPOCH = 0x7FFFFFFF
_NO_SESSION_EPOCH = -1


@dataclass(frozen=True, slots=True)
class SessionPart:
    """Fields of a fetch request that concern its session."""

    session_id: int
    session_epoch: int
    partitions: tuple[FetchPartition, ...]
    forgotten: tuple[ForgottenPartition, ...]


def without_session(wanted: Mapping[TopicPartition, FetchPartition]) -> SessionPart:
    return SessionPart(0, _NO_SESSION_EPOCH, tuple(wanted.values()), ())


class FetchSession:
    """Client side of one session."""

    def __init__(self) -> None:
        self._id = 0
        self._epoch = 0
        self._known: Mapping[TopicPartition, FetchPartition] = {}
        """Partitions that the broker remembers."""
        self._requested: Mapping[TopicPartition, FetchPartition] = {}
        """Partitions that the broker remembers once it has answered the request in flight."""

    @property
    def is_full(self) -> bool:
        return self._epoch == 0

    def knows(self, topic_partition: TopicPartition) -> bool:
        """Return True if the broker remembers a partition, so that answers contain it only after a change."""
        return topic_partition in self._known

    def next_request(self, wanted: Mapping[TopicPartition, FetchPartition]) -> SessionPart:
        """Return the session fields of the next request, after whose answer the session contains ``wanted``."""
        # A partition without a change is nearly always the same object; a comparison by value is slow.
        known = self._known
        changed = {key: one for key, one in wanted.items() if (before := known.get(key)) is not one and before != one}
        if any(key in known and known[key].topic_id != one.topic_id for key, one in changed.items()):
            # A topic was recreated, so an incremental request would add and forget topics of the same name. A broker
            # that identifies topics by name would forget both.
            self.restart()
        self._requested = dict(wanted)
        if self.is_full:
            # A request with the id of the old session and epoch 0 ends that session and starts another.
            return SessionPart(self._id, 0, tuple(wanted.values()), ())
        forgotten: tuple[ForgottenPartition, ...] = ()
        if not known.keys() <= wanted.keys():
            forgotten = tuple(
                ForgottenPartition(one.partition, one.topic, one.topic_id)
                for key, one in known.items()
                if key not in wanted
            )
        return SessionPart(self._id, self._epoch, tuple(changed.values()), forgotten)

    def handle_answer(self, answer: FetchResponse) -> bool:
        """Update the session after an answer; return False if the answer contains only an error of the session."""
        if answer.error_code:
            self.restart()
            if answer.error_code == ErrorCode.FETCH_SESSION_ID_NOT_FOUND:
                self._id = 0
            return answer.error_code not in _SESSION_ERRORS
        if answer.session_id == 0:
            # The broker keeps no session: its cache is full, or it does not support sessions.
            self._id, self._epoch, self._known = 0, 0, {}
            return True
        self._id = answer.session_id
        self._epoch = 1 if self._epoch == _LAST_EPOCH else self._epoch + 1
        self._known = self._requested
        return True

    def restart(self) -> None:
        """Make the next request full, because it is uncertain which partitions the broker remembers."""
        self._epoch, self._known = 0, {}


# ---- fetch plans: the partitions to fetch from each broker, sizes, and reactions to error codes ----------------------

_SHORTEST_WAIT_S = 0.02
"""Shortest time for which a broker may hold a fetch while the buffer lacks space."""
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
    """
    return action is FetchErrorAction.REFRESH_METADATA and failures < _INTERRUPTIONS


@dataclass(frozen=True, slots=True)
class FetchLimits:
    """Limits of a fetch: ``fetch_max_bytes``, ``max_partition_fetch_bytes`` and ``fetch_max_wait_ms``."""

    max_bytes: int
    partition_max_bytes: int
    max_wait_s: float


@dataclass(frozen=True, slots=True)
class FetchPlan:
    """One fetch from one broker."""

    partitions: Mapping[TopicPartition, FetchPartition]
    epochs: Mapping[TopicPartition, int]
    """Assignment epochs of the partitions, to recognize an outdated answer."""
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

    def is_valid_for(self, partition: Partition) -> bool:
        """Return True if the answer to this fetch is valid for ``partition``.

        It is not valid if the position has changed since, by a seek or by the answer of another broker. While the
        leader changes, the old leader may answer after a fetch was sent to the new leader. Only the first of two
        answers for the same offset is valid, because the second would be without the control batches of the first.
        """
        fetch = self.partitions.get(partition.topic_partition)
        return (
            fetch is not None
            and self.epochs[partition.topic_partition] == partition.epoch
            and fetch.fetch_offset == partition.fetched
        )

    def added_to(self, in_flight: FetchPlan) -> FetchPlan:
        """Return this plan without the partitions that the older plan ``in_flight`` contains in the same epoch."""
        added = {
            topic_partition: fetch
            for topic_partition, fetch in self.partitions.items()
            if in_flight.epochs.get(topic_partition) != self.epochs[topic_partition]
        }
        return replace(
            self,
            partitions=added,
            epochs={topic_partition: self.epochs[topic_partition] for topic_partition in added},
            max_bytes=min(self.max_bytes, sum(one.partition_max_bytes for one in added.values())),
        )


@dataclass(frozen=True, slots=True)
class FetchConnection:
    """One of the ``num_fetchers`` connections to a broker; a partition always uses the same connection."""

    node_id: int
    number: int = 0
    count: int = 1
    """Number of connections to the broker."""

    def has(self, topic_partition: TopicPartition) -> bool:
        """Return True if ``partition`` uses this connection."""
        return self.count == 1 or slot_of(topic_partition, self.count) == self.number


def slot_of(topic_partition: TopicPartition, count: int) -> int:
    """Return the number of the connection that ``partition`` uses if there are ``count`` connections to a broker."""
    return 0 if count == 1 else (crc32(topic_partition.topic.encode()) + topic_partition.partition) % count


def make_plan(
    connection: FetchConnection, sources: Sequence[FetchSource], space: BufferSpace, limits: FetchLimits, now: float
) -> FetchPlan:
    """Return which partitions the next fetch of a connection requests, from which offsets, and how many bytes of each.

    Only partitions are planned that have room in the buffer and are neither halted nor held back.
    """
    # A broker would answer a fetch of less than ``least`` bytes with a single batch, for which a request costs too
    # much.
    share = space.share_of(len(sources))
    least = min(limits.max_bytes, limits.partition_max_bytes, max(1, share // 2))
    full_size = min(limits.partition_max_bytes, share)
    # For a partition without buffered records, at least the size of the largest batch so far is requested: a broker
    # sends a batch that is larger than requested only for the first partition of an answer.
    empty_size = min(limits.partition_max_bytes, max(full_size, space.largest_bytes))
    chosen: dict[TopicPartition, FetchPartition] = {}
    epochs: dict[TopicPartition, int] = {}
    recreated: list[TopicPartition] = []
    unassigned: list[TopicPartition] = []
    is_idle, lacks_room, retry_at, wanted = True, False, math.inf, 0
    for source in sources:
        partition = source.partition
        if source.node_id(now) != connection.node_id or not connection.has(partition.topic_partition):
            continue
        is_idle = False
        if (offset := partition.offset_to_fetch) is None:
            continue
        if partition.retry_at > now:
            retry_at = min(retry_at, partition.retry_at)
            continue
        if source.is_unassigned:
            unassigned.append(partition.topic_partition)
            continue
        if source.is_recreated:
            recreated.append(partition.topic_partition)
            continue
        topic_partition = partition.topic_partition
        size, request_size = full_size, empty_size
        if held := partition.buffered_bytes:
            size = request_size = min(limits.partition_max_bytes, share - held)
        if size < least:
            lacks_room = True
            continue
        wanted += size
        chosen[topic_partition], epochs[topic_partition] = source.request(offset, request_size), partition.epoch
    # The answer may not be larger than the shares of these partitions, so that room is left for other brokers.
    max_bytes = min(limits.max_bytes, space.free_bytes, wanted)
    overdrawn: tuple[TopicPartition, ...] = ()
    if chosen and max_bytes < least:
        overdrawn, lacks_room, chosen, epochs = _overdrawn(sources, space), True, {}, {}
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


def _overdrawn(sources: Sequence[FetchSource], space: BufferSpace) -> tuple[TopicPartition, ...]:
    share = space.share_of(len(sources))
    partitions = (source.partition for source in sources)
    return tuple(one.topic_partition for one in partitions if one.fetched is not None and one.buffered_bytes > share)


@dataclass(slots=True)
class FetchWait:
    """Time for which a broker may hold a fetch; it is short if partitions were left out for lack of space.

    Room may become free at any moment, and a partition cannot be added to a fetch in flight. As long as no record is
    taken out of the buffer, the short time doubles with each fetch.
    """

    longest_s: float
    """``fetch_max_wait_ms``, in seconds."""
    _last_s: float = 0.0
    """Last short time; 0 if the last fetch lacked no space."""
    _taken: int = -1
    """``BufferSpace.taken_bytes`` at the last fetch that lacked space."""

    def wait_s(self, *, lacks_room: bool, taken_bytes: int) -> float:
        """Return the time in seconds for the next fetch.

        Args:
            lacks_room: ``FetchPlan.lacks_room`` of the next fetch.
            taken_bytes: ``BufferSpace.taken_bytes``.
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
