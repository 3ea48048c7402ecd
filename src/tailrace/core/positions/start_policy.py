"""Choice of the start of each partition: the user's start, the committed offset, or ``auto_offset_reset``."""

from __future__ import annotations

from collections.abc import Container, Mapping
from typing import TypeAlias
from uuid import UUID

from tailrace.core.cluster_metadata import ClusterMetadata, TopicInfo, is_other_log
from tailrace.core.positions.partition_spec import RequestedStart
from tailrace.core.positions.start_point import StartFrom, StartPoint
from tailrace.records import OffsetAndMetadata, TopicPartition

__all__ = ["Start", "StartPolicy"]

_EARLIEST = StartPoint(StartFrom.EARLIEST)

Start: TypeAlias = int | StartPoint | OffsetAndMetadata
"""An offset, a start point that only the leader can resolve, or a committed offset with its offset map."""


class StartPolicy:
    """Decides where a partition is read from.

    If ``auto_offset_reset`` is "latest", partitions that were added and topics that were recreated after the
    subscription are read from their first record, since their records were written while the consumer was subscribed.

    Args:
        reset: start point that ``auto_offset_reset`` names.
        own_topics: topics to which the group itself publishes records. Without a committed offset, they are read from
            their first record, whatever ``auto_offset_reset`` is.
    """

    def __init__(self, reset: StartPoint, own_topics: Container[str] = frozenset()) -> None:
        self.reset, self._own_topics = reset, own_topics
        self._subscribed: dict[str, tuple[UUID, int]] = {}
        """Topic id and number of partitions of each topic at the time of the subscription."""
        self._has_subscribed = False

    def note_topics(self, topics: Mapping[str, TopicInfo]) -> None:
        """Store topics that exist when the consumer subscribes; topics that are already stored stay unchanged."""
        self._has_subscribed = True
        found = {name: (one.topic_id, len(one.partitions)) for name, one in topics.items()}
        self._subscribed = found | self._subscribed

    def start_of_assigned(self, requested: RequestedStart, committed: OffsetAndMetadata | None) -> Start:
        """Return the start of a partition that the user has assigned."""
        if requested is not None:
            return requested
        return self.reset if committed is None else committed

    def start_of_subscribed(
        self,
        partition: TopicPartition,
        topology: ClusterMetadata,
        committed: OffsetAndMetadata | None = None,
        last_release: tuple[UUID | None, int | None] = (None, None),
        *,
        ignores_committed: bool = False,
    ) -> Start:
        """Return the start of a partition of a subscribed topic.

        Args:
            partition: partition that is about to be read.
            topology: newest metadata of the cluster.
            committed: offset committed by the group; None if there is none.
            last_release: topic id and committed offset of the partition when it was last taken from this member; None
                where unknown. Kafka stores offsets by topic name. So if the topic was recreated since and the committed
                offset is unchanged, the offset belongs to the deleted topic and is ignored.
            ignores_committed: True if ``reset_offset_on_start`` applies.
        """
        if ignores_committed and self._uses_reset(partition):
            return self.reset
        topic_id, offset = last_release
        if committed is None or (committed.offset == offset and is_other_log(topic_id, partition, topology)):
            return self._start_without_commit(partition, topology)
        return committed

    def start_of_added(self, partition: TopicPartition) -> StartPoint:
        """Return the start of a partition that was added, or whose topic was recreated, after the subscription."""
        return _EARLIEST if self.reset.whence is StartFrom.LATEST else self.start_after_reset(partition)

    def start_after_reset(self, partition: TopicPartition) -> StartPoint:
        """Return the start of a partition that has no position, or whose log does not contain its position."""
        return self.reset if self._uses_reset(partition) else _EARLIEST

    def _start_without_commit(self, partition: TopicPartition, topology: ClusterMetadata) -> StartPoint:
        topic_id, count = self._subscribed.get(partition.topic, (None, 0))
        is_added = partition.partition >= count or is_other_log(topic_id, partition, topology)
        return (
            self.start_of_added(partition) if self._has_subscribed and is_added else self.start_after_reset(partition)
        )

    def _uses_reset(self, partition: TopicPartition) -> bool:
        return partition.topic not in self._own_topics
