"""Whoever publishes for handlers: a producer, a transaction, or a test that keeps what it is given."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Protocol

from tailrace.core.legal_topic_names import topic_name_fault
from tailrace.errors import PublishError
from tailrace.records import TopicPartition

__all__ = ["Published", "Publisher", "check_topic_name"]


class Published(NamedTuple):
    """Where a record is now."""

    partition: TopicPartition
    offset: int


class Publisher(Protocol):
    """Publishes records in bytes."""

    async def publish(  # noqa: PLR0913 - what a record has
        self,
        topic: str,
        value: bytes | None,
        *,
        key: bytes | None = None,
        headers: Sequence[tuple[str, bytes | None]] = (),
        partition: int | None = None,
        timestamp_ms: int | None = None,
    ) -> Published | None:
        """Publish one record; when this returns, what it led to may be counted as done.

        Returns:
            Where it is, or None where that is not known before a transaction is committed.

        Raises:
            PublishError: it was refused, or not acknowledged in time.
        """


def check_topic_name(topic: str) -> None:
    """Refuse a name that no topic can have, for which brokers would be asked in vain until the time is up.

    Raises:
        PublishError: the name is not legal.
    """
    if fault := topic_name_fault(topic):
        raise PublishError(f"{topic!r} is no name of a topic: {fault}")
