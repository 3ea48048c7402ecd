"""Topics in memory, for tests of handlers."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence

from tailrace.errors import PublishError
from tailrace.producer.partitioner import partition_of
from tailrace.producer.publisher import Published
from tailrace.records import Record, TopicPartition

__all__ = ["TopicLog"]


class TopicLog:
    """Records of all topics and partitions, without gaps in the offsets.

    Args:
        partitions: number of partitions by topic; other topics have one partition.
        wall_clock: function that returns the time in seconds since the epoch.
    """

    def __init__(self, partitions: Mapping[str, int], wall_clock: Callable[[], float]) -> None:
        self._counts, self.wall_clock = partitions, wall_clock
        self._records: defaultdict[TopicPartition, list[Record]] = defaultdict(list)
        self._watchers: list[Callable[[], None]] = []

    def watch(self, watcher: Callable[[], None]) -> None:
        """Call ``watcher`` after a record is added."""
        self._watchers.append(watcher)

    def partitions(self, topic: str) -> list[TopicPartition]:
        """Return the partitions of a topic; a topic of any name exists."""
        return [TopicPartition(topic, number) for number in range(self._counts.get(topic, 1))]

    @property
    def topics(self) -> list[str]:
        """Topics with records."""
        return sorted({partition.topic for partition in self._records})

    def records(self, partition: TopicPartition) -> Sequence[Record]:
        """Return the records of a partition; the index of a record is its offset."""
        return self._records[partition]

    def records_of_topic(self, topic: str) -> list[Record]:
        """Return the records of a topic, ordered by partition and offset."""
        return [record for partition in self.partitions(topic) for record in self._records[partition]]

    def partition_for(self, topic: str, key: bytes | None, partition: int | None) -> TopicPartition:
        """Return the partition for a record: ``partition``, or the partition of ``key`` if ``partition`` is None.

        Raises:
            PublishError: the partition does not exist.
        """
        count = len(self.partitions(topic))
        chosen = (0 if key is None else partition_of(key, count)) if partition is None else partition
        if not 0 <= chosen < count:
            raise PublishError(
                f"{topic} has no partition {chosen}: the number of its partitions is {count} - set it with"
                " TestApp(partitions=...)"
            )
        return TopicPartition(topic, chosen)

    def add(  # noqa: PLR0913, PLR0917 - fields of a record
        self,
        topic: str,
        value: bytes | None,
        key: bytes | None,
        headers: Sequence[tuple[str, bytes | None]],
        partition: int | None = None,
        timestamp_ms: int | None = None,
    ) -> Record:
        """Add a record and return it; without ``partition``, the key determines the partition as in Kafka's clients.

        Raises:
            PublishError: the partition does not exist.
        """
        chosen = self.partition_for(topic, key, partition)
        record = Record(
            topic=topic,
            partition=chosen.partition,
            offset=len(self._records[chosen]),
            timestamp=int(self.wall_clock() * 1000) if timestamp_ms is None else timestamp_ms,
            key=key,
            value=value,
            headers=tuple(headers),
        )
        self._records[chosen].append(record)
        for watcher in self._watchers:
            watcher()
        return record

    async def publish(  # noqa: PLR0913 - interface of publishers
        self,
        topic: str,
        value: bytes | None,
        *,
        key: bytes | None = None,
        headers: Sequence[tuple[str, bytes | None]] = (),
        partition: int | None = None,
        timestamp_ms: int | None = None,
    ) -> Published:
        """Add a record, and return its partition and offset as a producer does.

        Raises:
            PublishError: the partition does not exist.
        """
        record = self.add(topic, value, key, headers, partition, timestamp_ms)
        return Published(record.topic_partition, record.offset)
