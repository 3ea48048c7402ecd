"""Who reads in a consumer's user's place: an app's handlers, other processes.

Rule of this file: for this package's own use.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable

from tailrace.consumer.consumer import Consumer
from tailrace.consumer.delivery.progress import RecordSink
from tailrace.consumer.delivery.reader import Reader
from tailrace.consumer.topic_patterns import TopicChoice
from tailrace.core.cluster_metadata import ClusterMetadata
from tailrace.errors import ConfigurationError

__all__ = ["also_subscribe", "attach_sink", "refresh_metadata", "subscribe_matching", "topology_of"]


def also_subscribe(consumer: Consumer, topics: Iterable[str]) -> None:
    """Before its start: have a consumer read these too, from when they are there on, and from their first record."""
    life = consumer._life  # noqa: SLF001 - this room's own
    whole = life.whole = frozenset(topics)
    life.optional = whole - life.topics
    life.topics |= whole


def subscribe_matching(consumer: Consumer, takes: Callable[[str], bool], said: str, *, whole: Container[str]) -> None:
    """Before its start: have a consumer read the topics that ``takes`` wants, those that are made later too.

    Args:
        consumer: that names no topics.
        takes: given a topic's name.
        said: the same in a word, for people.
        whole: of these, those that are read from their first record on.
    """
    life = consumer._life  # noqa: SLF001 - this room's own
    life.pattern, life.whole = TopicChoice(said, takes), whole


def attach_sink(consumer: Consumer, sink: RecordSink) -> tuple[Reader, int]:
    """Have ``sink`` read from a started consumer instead of its user: the reader, and how much may be queued.

    Raises:
        ConfigurationError: an option says how a user reads.
    """
    engine = consumer._started  # noqa: SLF001 - this room's own
    if engine.config.ack != "auto":
        raise ConfigurationError("ack='manual' is for Consumer - a handler's record is done when the handler returns")
    if engine.config.key_deserializer is not None or engine.config.value_deserializer is not None:
        raise ConfigurationError("key_deserializer and value_deserializer are for Consumer - an App has codecs")
    engine.reader.hand_over_to(sink)
    return engine.reader, engine.config.max_queued_records


def refresh_metadata(consumer: Consumer) -> None:
    """Have a started consumer look for topics that were created just now."""
    consumer._started.refresh_metadata()  # noqa: SLF001 - this room's own


def topology_of(consumer: Consumer) -> ClusterMetadata:
    """Return the metadata that a started consumer has of the cluster."""
    return consumer._started.topology  # noqa: SLF001 - this room's own
