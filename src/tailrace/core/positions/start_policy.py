"""Start of each partition: the user's choice, the committed offset, or ``auto_offset_reset``."""

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
    """Decides where reading of a partition begins.

    If ``auto_offset_reset`` is "latest", partitions added and topics recreated after the subscription are read from
    their first record, since their records were written while the consumer was subscribed.

    Args:
        reset: start point that ``auto_offset_reset`` names.
        whole: topics to which the group itself publishes records. They are read from their first record, whatever
            ``auto_offset_reset`` is.
    """

    def __init__(self, reset: StartPoint, whole: Container[str] = frozenset()) -> None:
        self.reset, self._whole = reset, whole
        self._seen: dict[str, tuple[UUID, int]] = {}
        """Topic id and number of partitions of each topic at the time of the subscription."""
        self._is_fixed = False

    def note_topics(self, topics: Mapping[str, TopicInfo]) -> None:
        """Remember the topics that exist when the consumer subscribes."""
        self._is_fixed = True
        self._seen = {name: (one.topic_id, len(one.partitions)) for name, one in topics.items()} | self._seen

    def of_chosen(self, requested: RequestedStart, committed: OffsetAndMetadata | None) -> Start:
        """Return the start of a partition that the user assigned."""
        if requested is not None:
            return requested
        return self.reset if committed is None else committed

    def of_subscribed(
        self,
        partition: TopicPartition,
        topology: ClusterMetadata,
        committed: OffsetAndMetadata | None = None,
        released: tuple[UUID | None, int | None] = (None, None),
        *,
        ignores_committed: bool = False,
    ) -> Start:
        """Return the start of a partition of a subscribed topic.

        Args:
            partition: partition that is about to be read.
            topology: newest metadata of the cluster.
            committed: offset committed by the group; None if there is none.
            released: topic id and committed offset of the partition when this member released it last. A group's
                offsets are stored by topic name, so offsets of a deleted topic are found for its recreated successor.
            ignores_committed: True if ``reset_offset_on_start`` applies.
        """
        if ignores_committed and self._applies_to(partition):
            return self.reset
        topic_id, offset = released
        if committed is None or (committed.offset == offset and is_other_log(topic_id, partition, topology)):
            return self._by_option(partition, topology)
        return committed

    def of_added(self, partition: TopicPartition) -> StartPoint:
        """Return the start of ``partition`` if it was added, or its topic recreated, after the subscription."""
        return _EARLIEST if self.reset.whence is StartFrom.LATEST else self.of_reset(partition)

    def of_reset(self, partition: TopicPartition) -> StartPoint:
        """Return where to continue ``partition`` when its log no longer has the position."""
        return self.reset if self._applies_to(partition) else _EARLIEST

    def _by_option(self, partition: TopicPartition, topology: ClusterMetadata) -> StartPoint:
        topic_id, count = self._seen.get(partition.topic, (None, 0))
        is_added = partition.partition >= count or is_other_log(topic_id, partition, topology)
        return self.of_added(partition) if self._is_fixed and is_added else self.of_reset(partition)

    def _applies_to(self, partition: TopicPartition) -> bool:
        return partition.topic not in self._whole
