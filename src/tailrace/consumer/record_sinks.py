"""Interface through which App and worker processes take records from a consumer; internal to tailrace."""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable

from tailrace.consumer.consumer import Consumer
from tailrace.consumer.delivery.progress import RecordSink
from tailrace.consumer.delivery.reader import Reader
from tailrace.consumer.topic_patterns import TopicPredicate
from tailrace.core.cluster_metadata import ClusterMetadata
from tailrace.errors import ConfigurationError
from tailrace.observe.statistics import ConsumerStatistics
from tailrace.records import AnyRecord

__all__ = ["also_subscribe", "attach_sink", "refresh_metadata", "statistics_of", "subscribe_matching", "topology_of"]


def also_subscribe(consumer: Consumer, topics: Iterable[str]) -> None:
    """Subscribe a consumer that is not started to more topics, read from their first record on once they exist."""
    life = consumer._life  # noqa: SLF001 - same package
    whole = life.whole = frozenset(topics)
    life.optional = whole - life.topics
    life.topics |= whole


def subscribe_matching(
    consumer: Consumer, selects: Callable[[str], bool], description: str, *, whole: Container[str]
) -> None:
    """Subscribe a consumer that is not started to all topics that ``selects`` selects, also to topics created later.

    Args:
        consumer: a consumer that names no topics.
        selects: predicate of topic names.
        description: short description of the topics, for messages.
        whole: topics that are read from their first record on.
    """
    life = consumer._life  # noqa: SLF001 - same package
    life.pattern, life.whole = TopicPredicate(description, selects), whole


def attach_sink(consumer: Consumer, sink: RecordSink) -> tuple[Reader, int]:
    """Deliver the records of a started consumer to ``sink``; return its reader and ``max_queued_records``.

    Raises:
        ConfigurationError: an option applies only to a consumer that is polled.
    """
    engine = consumer._started  # noqa: SLF001 - same package
    if engine.config.ack != "auto":
        raise ConfigurationError(
            "ack='manual' is for Consumer - a handler's record is finished when the handler returns"
        )
    if engine.config.key_deserializer is not None or engine.config.value_deserializer is not None:
        raise ConfigurationError("key_deserializer and value_deserializer are for Consumer - an App has codecs")
    engine.reader.attach_sink(sink)
    return engine.reader, engine.config.max_queued_records


def refresh_metadata(consumer: Consumer) -> None:
    """Refresh the metadata of a started consumer soon, to find topics created just now."""
    consumer._started.refresh_metadata()  # noqa: SLF001 - same package


def topology_of(consumer: Consumer) -> ClusterMetadata:
    """Return the cluster metadata of a started consumer."""
    return consumer._started.topology  # noqa: SLF001 - same package


def statistics_of(consumer: Consumer, started: Iterable[AnyRecord]) -> ConsumerStatistics | None:
    """Return the statistics of a consumer that may be stopped; None if it was never started.

    Args:
        consumer: the consumer.
        started: unfinished records that its sink holds, for the age of the oldest one.
    """
    engine = consumer._life.engine  # noqa: SLF001 - same package
    return None if engine is None else engine.statistics(started)
