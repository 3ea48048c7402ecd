"""max_poll_interval_ms: a consumer that is not polled loses its partitions until the next poll."""

from __future__ import annotations

import asyncio

import pytest

from tailrace import RebalanceError, TopicPartition
from tailrace.observe.events import GroupJoined, GroupLeft, PartitionsLost
from tests.support.consumer_group import ConsumerGroup, until
from tests.support.event_recorder import EventRecorder

LIMIT = {"max_poll_interval_ms": 1_000, "heartbeat_interval_ms": 300}


@pytest.mark.parametrize("protocol", ["classic", "consumer"])
async def test_a_consumer_that_is_not_polled_leaves_the_group(quick, group, protocol):
    """A consumer that is not polled leaves the group after max_poll_interval_ms, and joins again when it is polled."""
    topic, events, losses = quick.topic(2), EventRecorder(), []
    quick.produce(topic, (b"%d" % n for n in range(100)))

    class Listener:
        def on_partitions_lost(self, lost):
            losses.append(lost)

    options = {"group_id": group, "group_protocol": protocol}
    if protocol == "classic":
        options["heartbeat_interval_ms"] = 300
    listening = {"hooks": [events], "rebalance_listener": Listener()}
    async with (
        quick.consumer(topic, max_poll_interval_ms=1_000, **listening, **options) as stuck,
        ConsumerGroup(quick.consumer, topic, **options) as crew,
    ):
        in_flight = await stuck.getone()
        lost = await events.wait_for(PartitionsLost)
        await events.wait_for(GroupLeft)
        await until(lambda: stuck.assignment() == frozenset())
        await crew.join()
        await crew.shares(2)
        await crew.handle(100)
        assert (in_flight.partition, in_flight.offset) in crew.handled

        with pytest.raises(RebalanceError, match=r"max_poll_interval_ms .* the next poll joins again"):
            await stuck.getone()
        coming_back = asyncio.create_task(stuck.getone())
        await until(lambda: len(stuck.assignment()) == 1)
        for partition in range(2):
            quick.produce(topic, [b"after"], partition=partition)
        assert (await coming_back).value == b"after"

    assert lost.partitions == losses[0] == {TopicPartition(topic, 0), TopicPartition(topic, 1)}
    assert "max_poll_interval_ms" in lost.reason


async def test_a_waiting_poll_keeps_the_membership(new_topic, new_consumer, witness, group):
    """A consumer stays in the group during a long poll, and while it has no records to deliver."""
    topic, events = new_topic(), EventRecorder()

    async with new_consumer(topic, group_id=group, hooks=[events], **LIMIT) as consumer:
        assert await consumer.getone(timeout_ms=1_600) is None
        # No poll, and no records.
        await asyncio.sleep(1.6)
        witness.produce(topic, [b"0"])
        assert (await consumer.getone()).value == b"0"

    assert len(events.of(GroupJoined)) == 1


async def test_b3_a_canceled_getone_does_not_count_as_polling(new_topic, new_consumer, witness, group):
    """After a canceled getone() and one that timed out, a consumer that is not polled leaves the group (B3)."""
    topic, events = new_topic(), EventRecorder()

    async with new_consumer(topic, group_id=group, hooks=[events], **LIMIT) as consumer:
        waiting = asyncio.create_task(consumer.getone())
        await until(lambda: len(consumer.assignment()) == 1)
        waiting.cancel()
        await asyncio.wait({waiting})
        assert await consumer.getone(timeout_ms=10) is None
        witness.produce(topic, [b"nobody comes for it"])

        await events.wait_for(PartitionsLost)

        with pytest.raises(RebalanceError, match="left the group"):
            await consumer.getone()
        assert (await consumer.getone()).offset == 0


async def test_without_polls_of_any_stream_the_member_leaves(new_topic, new_consumer, witness, group):
    """A member leaves the group when none of its streams is polled, but not while one of them is.

    The first poll after that raises the reason, and only then the member joins again.
    """
    topic, events = new_topic(2), EventRecorder()
    for partition in range(2):
        witness.produce(topic, (b"%d" % n for n in range(100)), partition=partition)
    options = {"auto_commit_interval_ms": 100, "hooks": [events], **LIMIT}

    async with new_consumer(topic, group_id=group, **options) as consumer:
        streams = aiter(consumer.streams())
        (_, one), (_, other) = await anext(streams), await anext(streams)
        first = [await anext(other) for _ in range(100)]
        await anext(one)
        waiting = asyncio.create_task(anext(other))
        # There are four checks in each interval; wait for one and a half.
        await asyncio.sleep(1.6)
        assert not events.of(PartitionsLost)
        witness.produce(topic, [b"100"], partition=first[0].partition)
        assert (await waiting).offset == 100

        await events.wait_for(PartitionsLost)
        joined = len(events.of(GroupJoined))
        # The loss of partitions is not a poll: two checks later it is still out of the group.
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.6):
                await events.wait_for(GroupJoined, joined + 1)
        with pytest.raises(RebalanceError, match="max_poll_interval_ms"):
            await anext(one)
        with pytest.raises(StopAsyncIteration):
            await anext(other)
        await events.wait_for(GroupJoined, joined + 1)
        again = [await anext(streams) for _ in range(2)]
        # The record in flight when the member left was not finished.
        assert {(await anext(stream)).offset for _, stream in again} == {0, 100}

    assert {place.partition for place, _ in again} == {0, 1}
