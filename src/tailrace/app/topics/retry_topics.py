"""Names and delays of a group's retry topics."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from tailrace.app.handlers import Handler
from tailrace.app.resolved_options import ResolvedOptions
from tailrace.app.topics.delay_queue import delay_name
from tailrace.app.topics.names import RETRY, topic_name

__all__ = ["RetryTopic", "retry_topic", "retry_topics_of"]


@dataclass(frozen=True, slots=True)
class RetryTopic:
    """Topic in which failed records wait for their next attempt."""

    origin: str
    """Topic from which the records were first read."""
    delay_ms: int
    """Milliseconds from the publishing of a record to this topic until its next attempt."""


def retry_topic(origin: str, group_id: str, delay_ms: int) -> str:
    """Return the name of a group's retry topic for records of the topic ``origin``."""
    return topic_name(RETRY, topic=origin, group=group_id, delay=delay_name(delay_ms))


def retry_topics_of(handlers: Iterable[tuple[Handler, ResolvedOptions]], group_id: str) -> dict[str, RetryTopic]:
    """Return the retry topics of a group's handlers, by name.

    Raises:
        ConfigurationError: the name of a retry topic is too long.
    """
    return {
        retry_topic(topic, group_id, delay_ms): RetryTopic(topic, delay_ms)
        for handler, resolved in handlers
        for topic in handler.topics
        for delay_ms in resolved.retry.topic_delays_ms
    }
