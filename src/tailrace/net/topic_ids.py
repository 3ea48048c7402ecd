"""Comparison of topic ids with the current ids on a broker, for commit requests that identify topics by name."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from uuid import UUID

from tailrace.protocol.message import NO_TOPIC_ID
from tailrace.protocol.metadata import MetadataRequest, MetadataResponse, MetadataTopic
from tailrace.records import TopicPartition

__all__ = ["with_other_ids"]


async def with_other_ids(
    send: Callable[[MetadataRequest], Awaitable[MetadataResponse]], known: Mapping[TopicPartition, UUID]
) -> list[TopicPartition]:
    """Return the partitions whose topic has another id on the broker than in ``known``.

    A topic that the broker does not have counts as unchanged, and so does a topic whose id is unknown here or there.

    Raises:
        BrokerConnectionError: the broker does not answer in time.
    """
    expected = {one: topic_id for one, topic_id in known.items() if topic_id != NO_TOPIC_ID}
    if not expected:
        return []
    names = sorted({one.topic for one in expected})
    answer = await send(MetadataRequest(tuple(MetadataTopic(name) for name in names)))
    current = {one.name: one.topic_id for one in answer.topics if not one.error_code and one.topic_id != NO_TOPIC_ID}
    return [one for one, topic_id in expected.items() if current.get(one.topic, topic_id) != topic_id]
