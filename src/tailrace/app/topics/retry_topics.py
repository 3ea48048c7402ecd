"""Names and delays of a group's retry topics."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from tailrace.app.handlers import Handler
from tailrace.app.topics.names import RETRY, topic_name
from tailrace.core.failures.delayed_records import delay_name

__all__ = ["RetryTopic", "retry_topic", "retry_topics_of"]


@dataclass(frozen=True, slots=True)
class RetryTopic:
    """Where records wait."""

    origin: str
    """The topic that they came from first."""
    delay_ms: int


def retry_topic(origin: str, group_id: str, delay_ms: int) -> str:
    """The name of a group's retry topic."""
    return topic_name(RETRY, topic=origin, group=group_id, delay=delay_name(delay_ms))


def retry_topics_of(handlers: Iterable[Handler], group_id: str) -> dict[str, RetryTopic]:
    """All that handlers of a group send records to and read again, by name.

    Raises:
        ConfigurationError: a name is too long.
    """
    return {
        retry_topic(topic, group_id, delay_ms): RetryTopic(topic, delay_ms)
        for handler in handlers
        for topic in handler.topics
        for delay_ms in handler.retry_topics
    }
