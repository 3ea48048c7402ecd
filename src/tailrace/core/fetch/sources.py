"""Sources of the assigned partitions: the broker to fetch from, and the entry of the fetch request."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from uuid import UUID

from tailrace.core.cluster_metadata import ClusterMetadata, Leadership, is_other_log
from tailrace.core.delivery.positions import Position, Positions
from tailrace.protocol.fetch import FetchPartition

__all__ = ["FetchSource", "FetchSources", "sources_change_at"]


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
