"""Partitions that the user names, each with its requested start, and the choice of each partition's start.

Pure: no clock, IO or logging.

A topic that is named without partitions stands for all of them; the caller looks them up in the cluster metadata.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Iterator, Mapping
from typing import NamedTuple, TypeAlias
from uuid import UUID

from tailrace.core.cluster_metadata import ClusterMetadata, TopicInfo, is_other_log
from tailrace.core.start_point import StartFrom, StartPoint
from tailrace.errors import ConfigurationError
from tailrace.records import OffsetAndMetadata, TopicPartition

__all__ = ["PartitionSpec", "RequestedStart", "Start", "StartParser", "StartPolicy", "partition_specs"]

RequestedStart: TypeAlias = int | StartPoint | None
"""Offset or start point; None to start at the committed offset, or at ``auto_offset_reset`` if there is none."""


class PartitionSpec(NamedTuple):
    """Topic or partition named by the user, with its start."""

    topic: str
    partition: int | None
    """None for all partitions of the topic."""
    start: RequestedStart


StartParser: TypeAlias = Callable[[object], RequestedStart]
"""Function that parses a start given by the user."""


def partition_specs(
    entries: Iterable[object], default: RequestedStart, parse_start: StartParser
) -> list[PartitionSpec]:
    """Return the partitions that ``entries`` name, in order.

    An entry is a topic; (topic, partition); (topic, partition, start); {topic: partition or partitions};
    {(topic, partition): start}; or a list or set of entries. Partitions without a start begin at ``default``.

    Raises:
        ConfigurationError: an entry has another form.
    """
    return [spec for entry in entries for spec in _parse(entry, default, parse_start)]


def _parse(entry: object, default: RequestedStart, parse_start: StartParser) -> Iterator[PartitionSpec]:
    match entry:
        case str() if entry:
            yield PartitionSpec(entry, None, default)
        case (str() as topic, partition) if isinstance(entry, tuple) or _is_number(partition):
            yield PartitionSpec(_topic(topic), _partition(partition), default)
        case (str() as topic, partition, start) if isinstance(entry, tuple):
            yield PartitionSpec(_topic(topic), _partition(partition), parse_start(start))
        case Mapping():
            for key, value in entry.items():
                yield from _parse_item(key, value, default, parse_start)
        case list() | set() | frozenset():
            yield from partition_specs(entry, default, parse_start)
        case _:
            raise ConfigurationError(
                f"{entry!r} is not a partition - use 'topic', ('topic', 0), ('topic', 0, offset), {{'topic': [0, 1]}}"
                " or {('topic', 0): offset}"
            )


def _parse_item(
    key: object, value: object, default: RequestedStart, parse_start: StartParser
) -> Iterator[PartitionSpec]:
    match key, value:
        case str(), list() | tuple() | set() | frozenset() | range():
            yield from (PartitionSpec(_topic(key), _partition(one), default) for one in value)
        case str(), _:
            yield PartitionSpec(_topic(key), _partition(value), default)
        case (str() as topic, partition), _:
            yield PartitionSpec(_topic(topic), _partition(partition), parse_start(value))
        case _:
            raise ConfigurationError(
                f"{key!r}: {value!r} is not a partition - use a topic or (topic, partition) as the key"
            )


def _topic(value: object) -> str:
    if isinstance(value, str) and value:
        return value
    raise ConfigurationError(f"a topic must be a name such as 'orders', not {value!r}")


def _partition(value: object) -> int:
    if _is_number(value) and int(str(value)) < 1 << 31:
        return int(str(value))
    raise ConfigurationError(f"a partition must be an integer from 0 on, not {value!r}")


def _is_number(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 1 << 63


# ---- choice of the start of each partition ---------------------------------------------------------------------------

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
