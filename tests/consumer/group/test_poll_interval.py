"""A reader that does not come back: others have its partitions, and it has its share again when it comes."""

from __future__ import annotations

import asyncio

import pytest

from tailrace import RebalanceError, TopicPartition
from tailrace.observe.events import GroupJoined, GroupLeft, PartitionsLost
from tests.support.consumer_group import ConsumerGroup, until
from tests.support.event_recorder import EventRecorder

LIMIT = {"max_poll_interval_ms": 1_000, "heartbeat_interval_ms": 300}


@pytest.mark.parametrize("protocol", ["classic", "consumer"])
async def test_a_stuck_handler_does_not_keep_its_partitions(quick, group, protocol):
    """Not read for max_poll_interval_ms, the member leaves and says so; it joins when it is read again."""
    topic, events, told = quick.topic(2), EventRecorder(), []
    quick.produce(topic, (b"%d" % n for n in range(100)))

    class Listener:
        def on_partitions_lost(self, lost):
            told.append(lost)

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

        with pytest.raises(RebalanceError, match=r"max_poll_interval_ms .* the next call joins again"):
            await stuck.getone()
        coming_back = asyncio.create_task(stuck.getone())
        await until(lambda: len(stuck.assignment()) == 1)
        for partition in range(2):
            quick.produce(topic, [b"after"], partition=partition)
        assert (await coming_back).value == b"after"

    assert lost.partitions == told[0] == {TopicPartition(topic, 0), TopicPartition(topic, 1)}
    assert "max_poll_interval_ms" in lost.reason


async def test_who_waits_for_records_is_not_stuck(new_topic, new_consumer, witness, group):
    """A reader that waits, however long, and one that has nothing to read stay in the group."""
    topic, events = new_topic(), EventRecorder()

    async with new_consumer(topic, group_id=group, hooks=[events], **LIMIT) as consumer:
        assert await consumer.getone(timeout_ms=1_600) is None
        # Nobody asks, and there is nothing to be had.
        await asyncio.sleep(1.6)
        witness.produce(topic, [b"0"])
        assert (await consumer.getone()).value == b"0"

    assert len(events.of(GroupJoined)) == 1


async def test_b3_a_getone_that_was_cancelled_does_not_count_as_reading(new_topic, new_consumer, witness, group):
    """A cancelled or timed-out getone leaves nothing behind that would keep a stuck member in the group (B3)."""
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


async def test_streams_that_all_stand_still_are_a_stuck_member(new_topic, new_consumer, witness, group):
    """While one body waits at its stream, the other may take its time; when nobody comes to any, the member leaves.

    Whoever comes back first is told why, and the member joins again; before that it does not.
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
        # It is looked four times in each interval, and one and a half go by.
        await asyncio.sleep(1.6)
        assert not events.of(PartitionsLost)
        witness.produce(topic, [b"100"], partition=first[0].partition)
        assert (await waiting).offset == 100

        await events.wait_for(PartitionsLost)
        joined = len(events.of(GroupJoined))
        # That the partitions went is no return of a reader: two looks later it is out of the group still.
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.6):
                await events.wait_for(GroupJoined, joined + 1)
        with pytest.raises(RebalanceError, match="max_poll_interval_ms"):
            await anext(one)
        with pytest.raises(StopAsyncIteration):
            await anext(other)
        await events.wait_for(GroupJoined, joined + 1)
        again = [await anext(streams) for _ in range(2)]
        # What was in hand when the member left was not done.
        assert {(await anext(stream)).offset for _, stream in again} == {0, 100}

    assert {place.partition for place, _ in again} == {0, 1}
