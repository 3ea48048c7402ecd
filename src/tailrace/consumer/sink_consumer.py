"""Consumer whose records an App or worker processes take, and its view for transactions; internal to tailrace."""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Mapping
from dataclasses import replace
from typing import Any

from tailrace.consumer.arguments import TopicPredicate
from tailrace.consumer.consumer import Consumer
from tailrace.consumer.delivery.completion import RecordSink
from tailrace.consumer.delivery.reader import Reader
from tailrace.consumer.delivery.unreadable_batches import OnCorruptBatch, UnreadableBatches
from tailrace.consumer.monitoring import describe_delays
from tailrace.consumer.partition import Partition, UnreadableBatch
from tailrace.consumer.runtime import ConsumerRuntime
from tailrace.consumer.subscription import SubscribedTopics
from tailrace.core.cluster_metadata import ClusterMetadata
from tailrace.core.group_requests import Identity
from tailrace.errors import ConfigurationError
from tailrace.net.offsets import committed_offsets
from tailrace.observe.statistics import ConsumerStatistics
from tailrace.records import AnyRecord, OffsetAndMetadata, TopicPartition

__all__ = ["MemberView", "SinkConsumer"]


class SinkConsumer(Consumer[Any, Any]):
    """Consumer that delivers its records to a ``RecordSink`` instead of a user who polls."""

    # ---- before the start --------------------------------------------------------------------------------------

    def also_subscribe(self, topics: Iterable[str]) -> None:
        """Add topics to which the group itself publishes records to the subscription.

        Without a committed offset, ``topics`` are read from their first record on. Topics that were not subscribed to
        before need not exist at the start.
        """
        own, names = frozenset(topics), self._topics.names
        self._topics = replace(self._topics, names=names | own, optional=own - names, own=own)

    def subscribe_matching(
        self, selects: Callable[[str], bool], description: str, *, own_topics: Container[str]
    ) -> None:
        """Subscribe to topics by a predicate, also to topics that are created later.

        Args:
            selects: function that returns True for the names of the topics to read.
            description: short description of the topics, for messages.
            own_topics: topics to which the group itself publishes records. Without a committed offset, they are read
                from their first record on.
        """
        self._topics = SubscribedTopics(pattern=TopicPredicate(description, selects), own=own_topics)

    # ---- after the start ---------------------------------------------------------------------------------------

    def attach_sink(self, sink: RecordSink, on_corrupt_batch: OnCorruptBatch = "stop") -> tuple[Reader, int]:
        """Deliver records to ``sink``; return the reader and ``max_queued_records``.

        Args:
            sink: receiver of the records.
            on_corrupt_batch: reaction to a batch that cannot be read; with "stop", its error is raised to the sink.

        Raises:
            ConfigurationError: an option is set that applies only to a consumer that is polled.
        """
        runtime = self._started
        config = runtime.config
        if config.ack != "auto":
            raise ConfigurationError(
                "ack='manual' applies to Consumer only - leave it out; a record is finished when its handler returns"
            )
        if config.key_deserializer is not None or config.value_deserializer is not None:
            raise ConfigurationError(
                "key_deserializer and value_deserializer apply to Consumer only - set codec= instead"
            )
        if on_corrupt_batch != "stop":
            runtime.reader.unreadable_batches = UnreadableBatches(on_corrupt_batch, runtime.parts)
        runtime.reader.attach_sink(sink)
        return runtime.reader, config.max_queued_records

    def refresh_metadata(self) -> None:
        """Request a refresh of the cluster metadata, so that topics are found that were just created."""
        self._started.parts.metadata_refresher.ask()

    @property
    def topology(self) -> ClusterMetadata:
        return self._started.parts.cluster.topology

    async def wait_for_starts(self) -> None:
        """Wait until records that are written to the assigned partitions are read.

        Unlike ``assigned``, this may be called in a rebalance callback.
        """
        await self._started.wait_for_starts()

    def group_view(self) -> MemberView:
        return MemberView(self._started)

    # ---- at any time -------------------------------------------------------------------------------------------

    @property
    def unreadable_batches(self) -> Mapping[TopicPartition, UnreadableBatch]:
        """Batches at which partitions wait; empty before the start."""
        partitions = () if self._runtime is None else self._runtime.partitions
        return {one.topic_partition: one.unreadable for one in partitions if one.unreadable is not None}

    @property
    def start_delays(self) -> str:
        """Sentence about partitions whose start offset is unknown; empty if there are none."""
        return "" if self._runtime is None else describe_delays(self._runtime.start_delays)

    def statistics_with(self, unfinished: Iterable[AnyRecord]) -> ConsumerStatistics | None:
        """Return the statistics; None before the start.

        Args:
            unfinished: records that the handlers of the sink were called with and have not finished.
        """
        return None if self._runtime is None else self._runtime.statistics(unfinished)


class MemberView:
    """Group identity and partitions of a started consumer, for transactions that commit its offsets."""

    def __init__(self, runtime: ConsumerRuntime) -> None:
        assert runtime.config.group_id is not None
        self._runtime = runtime
        self.group_id: str = runtime.config.group_id

    @property
    def identity(self) -> Identity | None:
        membership = self._runtime.membership
        return None if membership is None else membership.commit_identity()

    def delivered_offsets(self) -> Mapping[TopicPartition, int | None]:
        return {partition.topic_partition: partition.delivered for partition in self._runtime.partitions}

    def uncommitted_starts(self) -> list[Partition]:
        """Return the partitions for which no offset was committed since they were assigned, sought or reset.

        Partitions without a start offset and partitions that are about to be revoked are left out.
        """
        return [
            one
            for one in self._runtime.partitions
            if one.has_stale_commit and one.progress is not None and one.is_fetchable and not one.is_halted
        ]

    def advanced_partitions(self) -> list[Partition]:
        """Return the partitions with a position beyond the committed offset, even if only control records lie between.

        Those of ``uncommitted_starts`` and partitions that are about to be revoked are left out.
        """
        return [
            one
            for one in self._runtime.partitions
            if not one.has_stale_commit and one.is_fetchable and not one.is_halted
            if one.delivered is not None and one.delivered > max(one.commit_base, one.committed or 0)
        ]

    def watch(self, on_change: Callable[[], None]) -> None:
        self._runtime.reader.on_change = on_change

    def is_ours(self, partition: Partition) -> bool:
        return self._runtime.partitions.get(partition.topic_partition) is partition

    async def committed_offsets(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, OffsetAndMetadata]:
        """Return the group's committed offsets; wait until no open transaction can change them."""
        parts = self._runtime.parts
        return await committed_offsets(
            parts.cluster, self.group_id, list(partitions), timeout_s=parts.default_timeout_s
        )

    def read_again(self, partition: Partition, at: OffsetAndMetadata) -> None:
        """Read from a committed offset on, without records that the offset map lists as finished.

        If the topic was recreated after the partition was last fetched, ignore the offset and read the new topic.
        """
        self._runtime.start_positions.read_again(partition, at)
