"""Interface of producers, transactions and test logs that publish records of handlers."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple, Protocol

from tailrace.core.legal_topic_names import topic_name_fault
from tailrace.errors import PublishError
from tailrace.observe.instrumentation import Instrumentation, Publish
from tailrace.records import TopicPartition

__all__ = ["Published", "Publisher", "check_topic_name", "instrumented"]


class Published(NamedTuple):
    """Partition and offset of a stored record."""

    partition: TopicPartition
    offset: int


class Publisher(Protocol):
    """Publishes records in bytes."""

    async def publish(  # noqa: PLR0913 - a record
        self,
        topic: str,
        value: bytes | None,
        *,
        key: bytes | None = None,
        headers: Sequence[tuple[str, bytes | None]] = (),
        partition: int | None = None,
        timestamp_ms: int | None = None,
    ) -> Published | None:
        """Publish one record; when this returns, the record whose handler has published it may be acknowledged.

        Returns:
            Partition and offset; None for a record of a transaction that is not committed yet.

        Raises:
            PublishError: the record was refused, or not acknowledged in time.
        """


def check_topic_name(topic: str) -> None:
    """Raise if no topic can have this name, so that the caller does not look it up until the timeout.

    Raises:
        PublishError: the name is not legal.
    """
    if fault := topic_name_fault(topic):
        raise PublishError(f"{topic!r} is not a legal topic name: {fault}")


def instrumented(publisher: Publisher, instrumentations: Iterable[Instrumentation]) -> Publisher:
    """Return ``publisher`` surrounded by ``instrumentations``, the first one outermost."""
    around = tuple(instrumentations)
    if not around:
        return publisher
    publish: Publish = publisher.publish
    for one in reversed(around):
        publish = one.around_publish(publish)
    return _InstrumentedPublisher(publish)


class _InstrumentedPublisher:
    def __init__(self, publish: Publish) -> None:
        self._publish = publish

    async def publish(  # noqa: PLR0913 - a record
        self,
        topic: str,
        value: bytes | None,
        *,
        key: bytes | None = None,
        headers: Sequence[tuple[str, bytes | None]] = (),
        partition: int | None = None,
        timestamp_ms: int | None = None,
    ) -> Published | None:
        published: Published | None = await self._publish(
            topic, value, key=key, headers=headers, partition=partition, timestamp_ms=timestamp_ms
        )
        return published
