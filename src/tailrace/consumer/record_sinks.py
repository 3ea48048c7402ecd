"""Interface through which App and worker processes take records from a consumer; internal to tailrace."""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Mapping

from tailrace.consumer.consumer import Consumer
from tailrace.consumer.delivery.completion import RecordSink
from tailrace.consumer.delivery.reader import Reader
from tailrace.consumer.delivery.unreadable_batches import OnCorruptBatch
from tailrace.consumer.monitoring.status import describe_delays
from tailrace.consumer.topic_patterns import TopicPredicate
from tailrace.core.cluster_metadata import ClusterMetadata
from tailrace.core.delivery.positions import UnreadableBatch
from tailrace.errors import ConfigurationError
from tailrace.observe.statistics import ConsumerStatistics
from tailrace.records import AnyRecord, TopicPartition

__all__ = [
    "also_subscribe",
    "attach_sink",
    "refresh_metadata",
    "start_delays_of",
    "statistics_of",
    "subscribe_matching",
    "topology_of",
    "unreadable_batches_of",
    "wait_for_starts",
]


def also_subscribe(consumer: Consumer, topics: Iterable[str]) -> None:
    """Add topics to which the group itself publishes records to the subscription of a consumer that is not started.

    Without a committed offset, ``topics`` are read from their first record on. Topics that were not subscribed to
    before need not exist at the start.
    """
    lifecycle = consumer._lifecycle  # noqa: SLF001 - same package
    own_topics = lifecycle.own_topics = frozenset(topics)
    lifecycle.optional_topics = own_topics - lifecycle.topics
    lifecycle.topics |= own_topics


def subscribe_matching(
    consumer: Consumer, selects: Callable[[str], bool], description: str, *, own_topics: Container[str]
) -> None:
    """Subscribe a consumer that is not started to topics by a predicate, also to topics that are created later.

    Args:
        consumer: a consumer without topics.
        selects: function that returns True for the names of the topics to read.
        description: short description of the topics, for messages.
        own_topics: topics to which the group itself publishes records. Without a committed offset, they are read from
            their first record on.
    """
    lifecycle = consumer._lifecycle  # noqa: SLF001 - same package
    lifecycle.pattern, lifecycle.own_topics = TopicPredicate(description, selects), own_topics


def attach_sink(consumer: Consumer, sink: RecordSink, on_corrupt_batch: OnCorruptBatch = "stop") -> tuple[Reader, int]:
    """Deliver the records of a started consumer to ``sink``; return the consumer's reader and ``max_queued_records``.

    Args:
        consumer: the consumer.
        sink: receiver of the records.
        on_corrupt_batch: reaction to a batch that cannot be read; with "stop", its error is raised to the sink.

    Raises:
        ConfigurationError: an option is set that applies only to a consumer that is polled.
    """
    runtime = consumer._started  # noqa: SLF001 - same package
    if runtime.config.ack != "auto":
        raise ConfigurationError(
            "ack='manual' applies to Consumer only - leave it out; a record is finished when its handler returns"
        )
    if runtime.config.key_deserializer is not None or runtime.config.value_deserializer is not None:
        raise ConfigurationError("key_deserializer and value_deserializer apply to Consumer only - set codec= instead")
    if on_corrupt_batch != "stop":
        runtime.handle_unreadable_batches(on_corrupt_batch)
    runtime.reader.attach_sink(sink)
    return runtime.reader, runtime.config.max_queued_records


def refresh_metadata(consumer: Consumer) -> None:
    """Request a refresh of a started consumer's metadata, so that it finds topics that were just created."""
    consumer._started.refresh_metadata()  # noqa: SLF001 - same package


def topology_of(consumer: Consumer) -> ClusterMetadata:
    """Return the cluster metadata of a started consumer."""
    return consumer._started.topology  # noqa: SLF001 - same package


def unreadable_batches_of(consumer: Consumer) -> Mapping[TopicPartition, UnreadableBatch]:
    """Return the batches at which partitions of a consumer wait; empty if it was never started."""
    runtime = consumer._lifecycle.runtime  # noqa: SLF001 - same package
    positions = () if runtime is None else runtime.positions
    return {one.partition: one.unreadable for one in positions if one.unreadable is not None}


async def wait_for_starts(consumer: Consumer) -> None:
    """Wait until records that are written to the assigned partitions of a started consumer are read.

    Unlike ``Consumer.assigned``, this may be called in a rebalance callback.
    """
    runtime = consumer._started  # noqa: SLF001 - same package
    await runtime.wait_for_starts(runtime.config.default_api_timeout_ms / 1000)


def start_delays_of(consumer: Consumer) -> str:
    """Return a sentence about partitions of a consumer whose start offset is unknown; empty if there are none."""
    runtime = consumer._lifecycle.runtime  # noqa: SLF001 - same package
    return "" if runtime is None else describe_delays(runtime.start_delays)


def statistics_of(consumer: Consumer, unfinished: Iterable[AnyRecord]) -> ConsumerStatistics | None:
    """Return the statistics of a consumer that may be stopped; None if it was never started.

    Args:
        consumer: the consumer.
        unfinished: records that the handlers of its sink were called with and have not finished.
    """
    runtime = consumer._lifecycle.runtime  # noqa: SLF001 - same package
    return None if runtime is None else runtime.statistics(unfinished)
