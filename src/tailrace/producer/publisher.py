"""Interface through which handlers publish records: producers, transactions and test logs implement it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple, Protocol

from tailrace.core.cluster_metadata import topic_name_fault
from tailrace.errors import PublishError
from tailrace.observe.hooks import Instrumentation, Publish
from tailrace.records import TopicPartition

__all__ = ["Published", "Publisher", "check_topic_name", "instrumented"]


class Published(NamedTuple):
    """Partition and offset of a record that was stored."""

    partition: TopicPartition
    offset: int
    """Offset of the record; -1 if the broker no longer knows it."""


class Publisher(Protocol):
    """Publisher of encoded records."""

    async def publish(  # noqa: PLR0913 - the fields of a record
        self,
        topic: str,
        value: bytes | None,
        *,
        key: bytes | None = None,
        headers: Sequence[tuple[str, bytes | None]] = (),
        partition: int | None = None,
        timestamp_ms: int | None = None,
    ) -> Published | None:
        """Publish one record.

        When the call returns, the record is stored, or it is part of an open transaction, which also commits the offset
        of the record that is being handled.

        Returns:
            Partition and offset; None if the record is part of an open transaction.

        Raises:
            PublishError: the record was refused, or not acknowledged in time.
        """


def check_topic_name(topic: str) -> None:
    """Check that ``topic`` is a legal name, because no caller should wait for a topic that cannot exist.

    Raises:
        PublishError: the name is not legal.
    """
    if fault := topic_name_fault(topic):
        raise PublishError(f"{topic!r} is not a legal topic name: {fault}")


def instrumented(publisher: Publisher, instrumentations: Iterable[Instrumentation]) -> Publisher:
    """Return a publisher that calls ``publisher`` within ``instrumentations``; the first one is the outermost."""
    layers = tuple(instrumentations)
    if not layers:
        return publisher
    publish: Publish = publisher.publish
    for layer in reversed(layers):
        publish = layer.around_publish(publish)
    return _InstrumentedPublisher(publish)


class _InstrumentedPublisher:
    def __init__(self, publish: Publish) -> None:
        self._publish = publish

    async def publish(  # noqa: PLR0913 - the fields of a record
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
