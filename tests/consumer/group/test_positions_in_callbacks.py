"""Positions and lag in rebalance callbacks."""

from __future__ import annotations

import asyncio

import pytest

from tailrace import TopicPartition

both_protocols = pytest.mark.parametrize("protocol", ["classic", "consumer"])


class Listener:
    """Listener that reads positions and lag when partitions are assigned."""

    def __init__(self):
        self.consumer = None
        self.found = {}

    async def on_partitions_assigned(self, partitions):
        async with asyncio.timeout(10):
            self.found |= {one: await self.consumer.position(one) for one in partitions}
            self.found["lag"] = (await self.consumer.lag()).total


@both_protocols
async def test_a_callback_gets_the_start_of_a_partition_without_a_commit(kafka, group, protocol):
    """In on_partitions_assigned, position() returns the start of a partition without a commit, and lag() its lag."""
    topic, listener = kafka.topic_with(5), Listener()
    options = {"group_id": group, "group_protocol": protocol, "rebalance_listener": listener}

    async with asyncio.timeout(60), kafka.consumer(topic, **options) as listener.consumer:
        first = await listener.consumer.getone()

    assert listener.found == {TopicPartition(topic, 0): 0, "lag": 5}
    assert first.offset == 0


@both_protocols
async def test_post_rebalance_callback_may_seek_relative_to_the_position(kafka, group, protocol):
    """In post_rebalance_callback, the position of a partition that starts at "latest" is its end offset."""
    topic = kafka.topic_with(5)

    async def two_back(consumer, _old, _new):
        async with asyncio.timeout(10):
            return {one: await consumer.position(one) - 2 for one in consumer.assignment()}

    options = {"group_protocol": protocol, "post_rebalance_callback": two_back, "auto_offset_reset": "latest"}
    async with asyncio.timeout(60), kafka.consumer(topic, group_id=group, **options) as consumer:
        got = [(await consumer.getone()).offset for _ in range(2)]

    assert got == [3, 4]
