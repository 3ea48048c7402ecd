"""Methods of a Consumer that return information and change nothing."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import overload

from tailrace.consumer.arguments import checked_partitions
from tailrace.consumer.lifecycle import ConsumerLifecycle
from tailrace.consumer.monitoring.status import (
    ConsumerHealth,
    ConsumerOffsets,
    Kind,
    Lag,
    offsets_of,
    one_kind,
)
from tailrace.consumer.positions.start_points import Time, start_at_time
from tailrace.consumer.runtime import ConsumerRuntime
from tailrace.core.metrics import MetricName
from tailrace.errors import ConsumerStateError
from tailrace.observe.statistics import ConsumerStatistics
from tailrace.records import OffsetAndMetadata, OffsetAndTimestamp, TopicPartition

__all__ = ["ConsumerQueries"]


class ConsumerQueries:
    """Methods of a Consumer that return information about partitions, logs, topics and state."""

    _life: ConsumerLifecycle

    # ---- partitions --------------------------------------------------------------------------------------------

    def assignment(self) -> frozenset[TopicPartition]:
        """Return the partitions assigned now."""
        return self._started.positions.partitions

    def subscription(self) -> frozenset[str]:
        """Return the subscribed topics, or the topics that match the pattern now; none after ``assign``."""
        life = self._life
        return life.topics if life.pattern is None or life.engine is None else life.engine.subscription.subscription

    def paused(self) -> frozenset[TopicPartition]:
        """Return the paused partitions."""
        return frozenset(position.partition for position in self._started.positions if position.is_paused)

    @overload
    async def committed(self, partitions: TopicPartition) -> OffsetAndMetadata | None: ...

    @overload
    async def committed(
        self, partitions: Iterable[TopicPartition] | None = None
    ) -> dict[TopicPartition, OffsetAndMetadata]: ...

    async def committed(
        self, partitions: TopicPartition | Iterable[TopicPartition] | None = None
    ) -> OffsetAndMetadata | dict[TopicPartition, OffsetAndMetadata] | None:
        """Return offsets that the group has committed, as stored by the broker.

        A partition without a committed offset is absent from the mapping. For a single partition, the result is None if
        there is no committed offset.

        Raises:
            ConsumerStateError: not started, stopped, or without a group.
            BrokerError: the broker refuses the request.
            BrokerConnectionError: no broker answers in time.
        """
        found = await self._started.offset_queries.committed(self._group_of("committed()"), self._among(partitions))
        return found.get(partitions) if isinstance(partitions, TopicPartition) else found

    @overload
    async def position(self, partitions: TopicPartition) -> int: ...

    @overload
    async def position(self, partitions: Iterable[TopicPartition] | None = None) -> dict[TopicPartition, int]: ...

    async def position(
        self, partitions: TopicPartition | Iterable[TopicPartition] | None = None
    ) -> int | dict[TopicPartition, int]:
        """Return the offset of the next record to deliver.

        Raises:
            ConsumerStateError: not started, stopped, or a partition is not assigned.
            OffsetOutOfRangeError: ``auto_offset_reset="none"``, and there is no committed offset, or it is not in the
                log.
            RequestTimedOutError: the start offset was not found within ``default_api_timeout_ms``.
        """
        found = await self._started.seek.positions(self._among(partitions), may_go=partitions is None)
        return found[partitions] if isinstance(partitions, TopicPartition) else found

    # ---- logs --------------------------------------------------------------------------------------------------

    @overload
    async def beginning_offsets(self, partitions: TopicPartition) -> int: ...

    @overload
    async def beginning_offsets(
        self, partitions: Iterable[TopicPartition] | None = None
    ) -> dict[TopicPartition, int]: ...

    async def beginning_offsets(
        self, partitions: TopicPartition | Iterable[TopicPartition] | None = None
    ) -> int | dict[TopicPartition, int]:
        """Return the first offset of each partition's log; partitions need not be assigned.

        Raises:
            UnknownTopicError: a topic or a partition does not exist.
        """
        found = await self._started.offset_queries.beginning_offsets(self._among(partitions))
        return found[partitions] if isinstance(partitions, TopicPartition) else found

    @overload
    async def end_offsets(self, partitions: TopicPartition) -> int: ...

    @overload
    async def end_offsets(self, partitions: Iterable[TopicPartition] | None = None) -> dict[TopicPartition, int]: ...

    async def end_offsets(
        self, partitions: TopicPartition | Iterable[TopicPartition] | None = None
    ) -> int | dict[TopicPartition, int]:
        """Return the offset of the next record to be written; see ``beginning_offsets``."""
        found = await self._started.offset_queries.end_offsets(self._among(partitions))
        return found[partitions] if isinstance(partitions, TopicPartition) else found

    async def offsets_for_times(
        self, times: Mapping[TopicPartition, Time]
    ) -> dict[TopicPartition, OffsetAndTimestamp | None]:
        """Return offset and timestamp of each partition's first record not older than a time; None without one."""
        checked_partitions(times)
        return await self._started.offset_queries.offsets_for_times(
            {one: start_at_time(time) for one, time in times.items()}
        )

    async def lag(self, *partitions: TopicPartition) -> Lag:
        """Return the number of records not yet delivered, by partition and in total."""
        end_offsets = await self.end_offsets(partitions or self.assignment())
        positions = await self._started.seek.positions(end_offsets, may_go=not partitions)
        behind = {one: max(0, end_offsets[one] - at) for one, at in positions.items()}
        return Lag(behind, sum(behind.values()))

    def highwater(self, partition: TopicPartition) -> int | None:
        """Return the end offset of an assigned partition as of the last fetch; None before the first fetch."""
        position = self._started.positions.get(partition)
        return position.high_watermark if position is not None else None

    def last_stable_offset(self, partition: TopicPartition) -> int | None:
        """Return the offset below which no transaction is open, as of the last fetch; None before the first fetch.

        Brokers report this offset with ``isolation_level="read_committed"`` only; otherwise the result is None.
        """
        engine = self._started
        position = engine.positions.get(partition)
        is_known = position is not None and engine.config.isolation_level == "read_committed"
        return position.last_stable_offset if position is not None and is_known else None

    @overload
    def offsets(self, kind: None = None) -> ConsumerOffsets: ...

    @overload
    def offsets(self, kind: Kind) -> dict[TopicPartition, int]: ...

    def offsets(self, kind: Kind | None = None) -> ConsumerOffsets | dict[TopicPartition, int]:
        """Return four offsets of each assigned partition, or only those of one ``kind``.

        The kinds are "fetch" (position), "highwater" (high watermark), "commit" (committed offset) and "done" (lowest
        unfinished offset).
        """
        found = offsets_of(self._started.positions)
        return found if kind is None else one_kind(found, kind)

    async def topics(self) -> frozenset[str]:
        """Return the names of all topics, without internal topics unless ``exclude_internal_topics=False``."""
        return await self._started.offset_queries.topics()

    async def partitions_for_topic(self, topic: str) -> frozenset[int]:
        """Return the partition numbers of a topic.

        Raises:
            UnknownTopicError: the topic does not exist.
        """
        return frozenset((await self._started.offset_queries.partitions_of([topic]))[topic])

    # ---- state -------------------------------------------------------------------------------------------------

    def health(self) -> ConsumerHealth:
        """Return the state of the consumer and its membership."""
        return self._started.health()

    def metrics(self) -> dict[MetricName, float]:
        """Return a snapshot of the metrics, under the names of Kafka's Java consumer."""
        return self._started.metrics()

    def statistics(self) -> ConsumerStatistics:
        """Return a snapshot of offsets and lag by partition, of buffers, and of the durations of requests.

        A stopped consumer has statistics, too: its counters, without partitions.

        Raises:
            ConsumerStateError: not started.
        """
        engine = self._life.engine
        return (self._started if engine is None else engine).statistics()

    # ---- inside ------------------------------------------------------------------------------------------------

    @property
    def _started(self) -> ConsumerRuntime:
        return self._life.started

    def _among(self, partitions: TopicPartition | Iterable[TopicPartition] | None) -> frozenset[TopicPartition]:
        if partitions is None:
            return self.assignment()
        return checked_partitions([partitions] if isinstance(partitions, TopicPartition) else partitions)

    def _group_of(self, call: str) -> str:
        if (group_id := self._started.config.group_id) is None:
            raise ConsumerStateError(f"{call} needs a group_id - a consumer without a group has no committed offsets")
        return group_id
