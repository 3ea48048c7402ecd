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
    offsets_of_kind,
)
from tailrace.consumer.positions.start_points import Time, start_at_time
from tailrace.consumer.runtime import ConsumerRuntime
from tailrace.core.metrics import MetricName
from tailrace.errors import ConsumerStateError
from tailrace.observe.statistics import ConsumerStatistics
from tailrace.records import OffsetAndMetadata, OffsetAndTimestamp, TopicPartition

__all__ = ["ConsumerQueries"]


class ConsumerQueries:
    """Base class of Consumer with the methods that return information about partitions, logs, topics and state."""

    _lifecycle: ConsumerLifecycle

    # ---- partitions --------------------------------------------------------------------------------------------

    def assignment(self) -> frozenset[TopicPartition]:
        """Return the currently assigned partitions."""
        return self._started.positions.partitions

    def subscription(self) -> frozenset[str]:
        """Return the subscribed topics, or the topics that currently match the pattern; none after ``assign()``."""
        lifecycle = self._lifecycle
        return (
            lifecycle.topics
            if lifecycle.pattern is None or lifecycle.runtime is None
            else lifecycle.runtime.subscription.subscription
        )

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
        """Return the group's committed offsets, which are requested from the broker.

        A partition without a committed offset is absent from the mapping. For a single partition, the result is None if
        there is no committed offset.

        Raises:
            ConsumerStateError: not started, stopped, or without a group.
            BrokerError: the broker refuses the request.
            BrokerConnectionError: no broker answers in time.
        """
        found = await self._started.offset_queries.committed(
            self._require_group("committed()"), self._partitions_or_assignment(partitions)
        )
        return found.get(partitions) if isinstance(partitions, TopicPartition) else found

    @overload
    async def position(self, partitions: TopicPartition) -> int: ...

    @overload
    async def position(self, partitions: Iterable[TopicPartition] | None = None) -> dict[TopicPartition, int]: ...

    async def position(
        self, partitions: TopicPartition | Iterable[TopicPartition] | None = None
    ) -> int | dict[TopicPartition, int]:
        """Return the positions: the offset of each partition's next record to deliver.

        Raises:
            ConsumerStateError: not started, stopped, or a partition is not assigned.
            OffsetOutOfRangeError: ``auto_offset_reset="none"``, and the committed offset is missing or not in the log.
            RequestTimedOutError: the start offset was not found within ``default_api_timeout_ms``.
        """
        found = await self._started.seek.positions(
            self._partitions_or_assignment(partitions), skip_unassigned=partitions is None
        )
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
        found = await self._started.offset_queries.beginning_offsets(self._partitions_or_assignment(partitions))
        return found[partitions] if isinstance(partitions, TopicPartition) else found

    @overload
    async def end_offsets(self, partitions: TopicPartition) -> int: ...

    @overload
    async def end_offsets(self, partitions: Iterable[TopicPartition] | None = None) -> dict[TopicPartition, int]: ...

    async def end_offsets(
        self, partitions: TopicPartition | Iterable[TopicPartition] | None = None
    ) -> int | dict[TopicPartition, int]:
        """Return the end of each partition's log: the offset after the last record; see ``beginning_offsets``.

        With ``isolation_level="read_committed"``, it is the last stable offset.
        """
        found = await self._started.offset_queries.end_offsets(self._partitions_or_assignment(partitions))
        return found[partitions] if isinstance(partitions, TopicPartition) else found

    async def offsets_for_times(
        self, times: Mapping[TopicPartition, Time]
    ) -> dict[TopicPartition, OffsetAndTimestamp | None]:
        """Return offset and timestamp of each partition's first record that is not older than the partition's time.

        The value of a partition without such a record is None.
        """
        checked_partitions(times)
        return await self._started.offset_queries.offsets_for_times(
            {one: start_at_time(time) for one, time in times.items()}
        )

    async def lag(self, *partitions: TopicPartition) -> Lag:
        """Return the number of offsets from the position to the end of the log, by partition and in total."""
        end_offsets = await self.end_offsets(partitions or self.assignment())
        positions = await self._started.seek.positions(end_offsets, skip_unassigned=not partitions)
        behind = {one: max(0, end_offsets[one] - at) for one, at in positions.items()}
        return Lag(behind, sum(behind.values()))

    def highwater(self, partition: TopicPartition) -> int | None:
        """Return the high watermark of a partition as of its last fetch.

        The result is None before the first fetch, and if the partition is not assigned.
        """
        position = self._started.positions.get(partition)
        return position.high_watermark if position is not None else None

    def last_stable_offset(self, partition: TopicPartition) -> int | None:
        """Return the last stable offset of a partition as last reported by a broker; no transaction is open below it.

        The result is None before the first report, if the partition is not assigned, and without
        ``isolation_level="read_committed"``.
        """
        runtime = self._started
        position = runtime.positions.get(partition)
        is_known = position is not None and runtime.config.isolation_level == "read_committed"
        return position.last_stable_offset if position is not None and is_known else None

    @overload
    def offsets(self, kind: None = None) -> ConsumerOffsets: ...

    @overload
    def offsets(self, kind: Kind) -> dict[TopicPartition, int]: ...

    def offsets(self, kind: Kind | None = None) -> ConsumerOffsets | dict[TopicPartition, int]:
        """Return four kinds of offsets of the assigned partitions, or the offsets of one ``kind``.

        The kinds are "fetch" (position), "highwater" (high watermark), "commit" (committed offset) and "done" (lowest
        unfinished offset). A partition whose offset is unknown is left out.
        """
        found = offsets_of(self._started.positions)
        return found if kind is None else offsets_of_kind(found, kind)

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
        return (self._lifecycle.runtime or self._started).health()

    def metrics(self) -> dict[MetricName, float]:
        """Return a snapshot of the metrics, under the names of Kafka's Java consumer."""
        return (self._lifecycle.runtime or self._started).metrics()

    def statistics(self) -> ConsumerStatistics:
        """Return a snapshot of offsets and lag by partition, of buffers, and of the durations of requests.

        After ``stop()``, the method still returns the counters.

        Raises:
            ConsumerStateError: not started.
        """
        runtime = self._lifecycle.runtime
        return (self._started if runtime is None else runtime).statistics()

    # ---- inside ------------------------------------------------------------------------------------------------

    @property
    def _started(self) -> ConsumerRuntime:
        return self._lifecycle.started

    def _partitions_or_assignment(
        self, partitions: TopicPartition | Iterable[TopicPartition] | None
    ) -> frozenset[TopicPartition]:
        if partitions is None:
            return self.assignment()
        return checked_partitions([partitions] if isinstance(partitions, TopicPartition) else partitions)

    def _require_group(self, call: str) -> str:
        if (group_id := self._started.config.group_id) is None:
            raise ConsumerStateError(f"{call} needs a group_id - a consumer without a group has no committed offsets")
        return group_id
