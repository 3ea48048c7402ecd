"""Detection of recreated topics, for commits that identify topics by name instead of id."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from uuid import UUID

from tailrace.protocol.message import NO_TOPIC_ID
from tailrace.protocol.metadata import MetadataRequest, MetadataResponse, MetadataTopic
from tailrace.records import TopicPartition

__all__ = ["partitions_of_recreated_topics"]


async def partitions_of_recreated_topics(
    send: Callable[[MetadataRequest], Awaitable[MetadataResponse]], known: Mapping[TopicPartition, UUID]
) -> list[TopicPartition]:
    """Request the topic ids from a broker, and return the partitions whose topic has another id than in ``known``.

    A partition is not returned if the broker does not have its topic, or if one of the two ids is unknown (all zeros).

    Args:
        send: function that sends a request to a broker and returns the response.
        known: topic id by partition.

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
