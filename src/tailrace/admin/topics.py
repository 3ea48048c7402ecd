"""Creation and deletion of topics, and lookup of their partitions.

A request is repeated if its response was lost. If the repeated request fails because the topic was already created or
deleted, the operation has succeeded.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Mapping
from typing import Any, cast

from tailrace.error_codes import ErrorCode
from tailrace.errors import BrokerConnectionError, broker_error
from tailrace.net.cluster import Cluster
from tailrace.net.offsets import DEFAULT_TIMEOUT_S
from tailrace.protocol.admin import (
    CreateTopicsRequest,
    CreateTopicsResponse,
    DeleteTopicsRequest,
    DeleteTopicsResponse,
    NewTopic,
    TopicConfig,
    TopicToDelete,
)
from tailrace.protocol.message import Request
from tailrace.records import TopicPartition

__all__ = ["create_topic", "delete_topic", "partitions_of", "partitions_with_leader"]


async def create_topic(
    cluster: Cluster,
    name: str,
    partitions: int,
    *,
    replication_factor: int = -1,
    config: Mapping[str, object] | None = None,
) -> None:
    """Create a topic and wait until each of its partitions has a leader.

    Args:
        cluster: a connected cluster.
        name: name of the topic.
        partitions: number of partitions.
        replication_factor: number of replicas of each partition; -1 for the brokers' default.
        config: configuration of the topic, such as ``retention.ms``.

    Raises:
        BrokerError: the topic already exists, or the brokers refuse to create it.
        BrokerConnectionError: no broker answered in time.
    """
    configs = tuple(TopicConfig(key, str(value)) for key, value in (config or {}).items())
    request = CreateTopicsRequest((NewTopic(name, partitions, replication_factor, configs=configs),))
    attempts = 0

    async def create() -> None:
        nonlocal attempts
        attempts += 1
        already_done = ErrorCode.TOPIC_ALREADY_EXISTS if attempts > 1 else ErrorCode.NONE
        await _change(cluster, request, name, already_done)

    async def check_leaders() -> None:
        await cluster.refresh()
        topic = cluster.topology.topics.get(name)
        with_leader = [one for one in topic.partitions.values() if one.leader_id >= 0] if topic is not None else []
        if len(with_leader) < partitions:
            raise broker_error(
                ErrorCode.LEADER_NOT_AVAILABLE, f"{name}: {len(with_leader)} of {partitions} partitions have leaders"
            )

    await cluster.retrying(create, timeout_s=DEFAULT_TIMEOUT_S, what=f"creating topic {name}")
    with cluster.watching([name]):
        await cluster.retrying(
            check_leaders, timeout_s=DEFAULT_TIMEOUT_S, what=f"waiting for the leaders of topic {name}"
        )


async def delete_topic(cluster: Cluster, name: str, *, timeout_s: float = DEFAULT_TIMEOUT_S) -> None:
    """Delete a topic; do nothing if it does not exist.

    Raises:
        BrokerError: the brokers refuse to delete the topic.
        BrokerConnectionError: no broker answered in time.
    """
    request = DeleteTopicsRequest((TopicToDelete(name),))

    async def delete() -> None:
        await _change(cluster, request, name, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)

    await cluster.retrying(delete, timeout_s=timeout_s, what=f"deleting topic {name}")


async def partitions_of(
    cluster: Cluster, topics: Collection[str], *, timeout_s: float = DEFAULT_TIMEOUT_S
) -> dict[str, int]:
    """Return the number of partitions of each of ``topics``; topics that do not exist are left out.

    Raises:
        BrokerError: a topic name is invalid, or the principal may not describe the topic.
        BrokerConnectionError: no broker answered in time.
    """
    if not topics:
        return {}

    async def look_up() -> dict[str, int]:
        await cluster.refresh()
        for name in topics:
            code = cluster.topology.errors.get(name, ErrorCode.NONE)
            if code not in {ErrorCode.NONE, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION}:
                raise broker_error(code, f"topic {name!r}")
        return cluster.topology.partition_counts(topics)

    with cluster.watching(topics):
        return await cluster.retrying(look_up, timeout_s=timeout_s, what=f"looking for topics {', '.join(topics)}")


async def partitions_with_leader(
    cluster: Cluster, partitions: Collection[TopicPartition], *, max_wait_s: float, timeout_s: float = DEFAULT_TIMEOUT_S
) -> frozenset[TopicPartition]:
    """Wait until all partitions have a leader, and return the partitions that have one.

    The wait takes at most ``max_wait_s``, and at most half of ``timeout_s``.

    Raises:
        BrokerConnectionError: no broker answered in time.
    """
    loop = asyncio.get_running_loop()
    wait_until = loop.time() + min(max_wait_s, timeout_s / 2)

    async def look_up() -> frozenset[TopicPartition]:
        leaders = {one: cluster.topology.leader(one) for one in partitions}
        found = frozenset(one for one, leader in leaders.items() if leader is not None and leader.leader_id >= 0)
        if len(found) == len(leaders) or loop.time() >= wait_until:
            return found
        await cluster.refresh()
        raise broker_error(ErrorCode.LEADER_NOT_AVAILABLE, f"{len(leaders) - len(found)} partitions have no leader")

    with cluster.watching({one.topic for one in partitions}):
        return await cluster.retrying(look_up, timeout_s=timeout_s, what="looking for the leaders of partitions")


async def _change(
    cluster: Cluster,
    request: CreateTopicsRequest | DeleteTopicsRequest,
    name: str,
    already_done: ErrorCode,
) -> None:
    """Send a request about one topic to the controller; the error code ``already_done`` is a success."""
    try:
        controller = cluster.broker(cluster.topology.controller_id)
        answer: CreateTopicsResponse | DeleteTopicsResponse = await controller.send(cast("Request[Any]", request))
    except BrokerConnectionError:
        await cluster.refresh()
        raise
    result = next((one for one in answer.topics if one.name == name), None)
    if result is None:
        raise broker_error(ErrorCode.UNKNOWN_SERVER_ERROR, f"topic {name} is missing from the response")
    if result.error_code == ErrorCode.NOT_CONTROLLER:
        await cluster.refresh()
    if result.error_code not in {ErrorCode.NONE, already_done}:
        permission = "CREATE" if already_done is ErrorCode.TOPIC_ALREADY_EXISTS else "DELETE"
        raise broker_error(result.error_code, f"{name}: {result.error_message or 'refused'}", permission=permission)
