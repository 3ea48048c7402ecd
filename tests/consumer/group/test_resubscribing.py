"""A group member that subscribes to other topics."""

from __future__ import annotations

import asyncio

import pytest

from tailrace import TopicPartition

both_protocols = pytest.mark.parametrize("protocol", ["classic", "consumer"])


@both_protocols
async def test_no_buffered_record_of_a_topic_is_delivered_after_its_subscription_ended(kafka, group, protocol):
    """After subscribe(), only records of the new topic are delivered.

    Finished records of the former topic are committed.
    """
    before, after = kafka.topic_with(20), kafka.topic_with(20)

    async with kafka.consumer(before, group_id=group, group_protocol=protocol) as consumer, asyncio.timeout(60):
        assert (await consumer.getone()).topic == before
        await consumer.subscribe(after)
        got = [await consumer.getone() for _ in range(20)]
        found = await consumer.committed([TopicPartition(before, 0)])

    assert [(record.topic, record.offset) for record in got] == [(after, n) for n in range(20)]
    assert found[TopicPartition(before, 0)].offset == 1


@both_protocols
async def test_no_record_of_a_stream_is_delivered_after_its_subscription_ended(kafka, group, protocol):
    """After subscribe(), a stream delivers no buffered record of the former topic."""
    before, after = kafka.topic_with(20), kafka.topic_with(20)
    got, is_complete = [], asyncio.Event()

    async def read(stream):
        async for record in stream:
            got.append((record.topic, record.offset))
            if record.topic == before:
                await consumer.subscribe(after)
            if len(got) == 21:
                is_complete.set()

    async with (
        kafka.consumer(before, group_id=group, group_protocol=protocol) as consumer,
        asyncio.timeout(60),
        asyncio.TaskGroup() as tasks,
    ):
        async for partition, stream in consumer.streams():
            reading = tasks.create_task(read(stream))
            if partition.topic == after:
                break
        await is_complete.wait()
        reading.cancel()

    assert got == [(before, 0), *((after, n) for n in range(20))]


@both_protocols
async def test_a_topic_subscribed_to_again_continues_at_its_position(kafka, group, protocol):
    """A topic that is unsubscribed and subscribed again continues without a lost or repeated record."""
    topic, other = kafka.topic_with(20), kafka.topic_with(1)

    async with kafka.consumer(topic, group_id=group, group_protocol=protocol) as consumer, asyncio.timeout(60):
        got = [await consumer.getone() for _ in range(5)]
        await consumer.subscribe(other)
        await consumer.subscribe(topic)
        got += [await consumer.getone() for _ in range(15)]

    assert [(record.topic, record.offset) for record in got if record.topic == topic] == [(topic, n) for n in range(20)]
