"""Incremental fetch sessions (KIP-227): the broker remembers the partitions, so a request lists only changes.

Pure: no clock, IO or logging.

There is one session per connection. A request is full (session epoch 0, all partitions) or incremental. Any error ends
the session, and the next request is full again.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from uuid import UUID

from tailrace.core.cluster_metadata import ClusterMetadata, Leadership, is_other_log
from tailrace.core.delivery.positions import Position, Positions
from tailrace.error_codes import ErrorCode
from tailrace.protocol.records import FetchPartition, FetchResponse, ForgottenPartition
from tailrace.records import TopicPartition

__all__ = ["FetchSession", "FetchSource", "FetchSources", "SessionPart", "sources_change_at", "without_session"]

# ---- sources of the assigned partitions: the broker to fetch from, and the entry of the fetch request ----------------


@dataclass(slots=True, eq=False)
class FetchSource:
    """Source of one assigned partition."""

    position: Position
    topology: ClusterMetadata
    leadership: Leadership | None
    """None if the partition is unknown."""
    topic_id: UUID
    _last_request: FetchPartition | None = None

    def node_id(self, now: float) -> int | None:
        """Return the broker to fetch from: the leader, or the nearer replica named by the leader (KIP-392).

        Return None if the partition has no leader.
        """
        leadership, position = self.leadership, self.position
        if leadership is None:
            return None
        if position.preferred_read_replica is not None and now < position.preferred_read_replica_until:
            replicas = set(leadership.replicas) - set(leadership.offline)
            if position.preferred_read_replica in replicas & self.topology.brokers.keys():
                return position.preferred_read_replica
        return None if leadership.leader_id < 0 else leadership.leader_id

    @property
    def is_recreated(self) -> bool:
        """True if the topic was recreated since its last fetch, so that its offsets belong to other records."""
        fetched_id = self.position.fetched_topic_id
        # Two ids that are equal are nearly always the same object; a comparison by value is slow.
        return fetched_id is not self.topic_id and is_other_log(fetched_id, self.position.partition, self.topology)

    @property
    def is_unassigned(self) -> bool:
        """True if the group has assigned the topic by its id, and the topic of this name has another id (KIP-848)."""
        assigned_id = self.position.assigned_topic_id
        return assigned_id is not self.topic_id and is_other_log(assigned_id, self.position.partition, self.topology)

    def request(self, offset: int, size: int) -> FetchPartition:
        """Return the entry of a fetch request for ``size`` bytes; the same object again if nothing has changed."""
        position, last = self.position, self._last_request
        if (
            last is None
            or last.fetch_offset != offset
            or last.partition_max_bytes != size
            or last.last_fetched_epoch != position.last_fetched_epoch
        ):
            last = self._last_request = FetchPartition(
                topic=position.partition.topic,
                topic_id=self.topic_id,
                partition=position.partition.partition,
                fetch_offset=offset,
                partition_max_bytes=size,
                current_leader_epoch=self.leadership.epoch if self.leadership is not None else -1,
                # Lets the broker detect that the log was truncated below this position (KIP-320, KIP-595).
                last_fetched_epoch=position.last_fetched_epoch,
            )
        return last


class FetchSources:
    """Sources of the assigned partitions, which are looked up again when the metadata or the assignment changes."""

    def __init__(self, positions: Positions) -> None:
        self._positions = positions
        self._topology: ClusterMetadata | None = None
        self._version = -1
        self._sources: Sequence[FetchSource] = ()

    def at(self, topology: ClusterMetadata) -> Sequence[FetchSource]:
        """Return the source of each assigned partition, according to ``topology``."""
        if self._topology is not topology or self._version != self._positions.version:
            self._topology, self._version = topology, self._positions.version
            self._sources = [
                FetchSource(one, topology, topology.leader(one.partition), topology.topic_id(one.partition.topic))
                for one in self._positions
            ]
        return self._sources


def sources_change_at(positions: Iterable[Position], now: float) -> float | None:
    """Return the time at which the first preferred read replica expires, so that the leader is used again.

    Return None if no preferred read replica is in use.
    """
    named = (one.preferred_read_replica_until for one in positions if one.preferred_read_replica is not None)
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
    """Return the session fields of a request that uses no session."""
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
        """True if the next request lists all partitions."""
        return self._epoch == 0

    def knows(self, partition: TopicPartition) -> bool:
        """Return True if the broker remembers a partition, so that answers contain it only after a change."""
        return partition in self._known

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
