"""Group membership: each partition has one owner and each record is handled, whichever members join and leave."""

from __future__ import annotations

import asyncio
import time

import pytest

from tailrace import NoCommonAssignorError, TopicPartition
from tailrace.observe.events import GroupJoined, GroupLeft, PartitionsAssigned
from tests.support.consumer_group import ConsumerGroup, kill, until
from tests.support.event_recorder import EventRecorder


async def test_two_members_share_six_partitions(new_topic, new_consumer, witness, group):
    """Two members get three of six partitions each, as the broker knows, and each record is handled once."""
    topic = new_topic(6)

    async with ConsumerGroup(new_consumer, topic, group_id=group) as crew:
        await crew.join()
        await crew.join()
        await crew.shares(3, 3)
        witness.produce(topic, (b"%d" % n for n in range(6_000)))
        await crew.handle(6_000)
        seen_by_the_broker = await witness.members(group)
        seen_by_us = {member.consumer.assignment() for member in crew.members}

    assert seen_by_us == set(seen_by_the_broker.values())
    assert {1} == set(crew.handled.values())


async def test_a_third_member_joins_and_one_leaves(new_topic, new_consumer, witness, group):
    """While a member joins and another leaves under load, each record is handled once."""
    topic = new_topic(6)

    async with ConsumerGroup(new_consumer, topic, group_id=group, heartbeat_interval_ms=300) as crew:
        first = await crew.join()
        await crew.join()
        await crew.shares(3, 3)
        producing = asyncio.create_task(asyncio.to_thread(produce_in_portions, witness, topic))
        await crew.handle(2_000)
        await crew.join()
        await crew.shares(2, 2, 2)
        await crew.handle(4_000)
        await crew.leave(first)
        await crew.shares(3, 3)
        await producing
        await crew.handle(12_000)

    assert {1} == set(crew.handled.values())


def produce_in_portions(witness, topic):
    for _ in range(12):
        witness.produce(topic, (b"%d" % n for n in range(1_000)))
        time.sleep(0.1)  # records before, during and after the changes


async def test_roundrobin_assigns_in_turn(new_topic, new_consumer, witness, group):
    """With roundrobin, two members get three partitions each of two topics of three; with range, four and two."""
    first, second = sorted((new_topic(3), new_topic(3)))
    shares = {}

    for strategy in ("range", "roundrobin"):
        options = {"group_id": f"{group}-{strategy}", "partition_assignment_strategy": strategy}
        async with new_consumer(first, second, **options) as one, new_consumer(first, second, **options) as other:
            await until(lambda: bool(one.assignment() and other.assignment()))
            shares[strategy] = sorted((len(one.assignment()), len(other.assignment())))
            assert not one.assignment() & other.assignment()

    assert shares == {"range": [2, 4], "roundrobin": [3, 3]}


async def test_range_assigns_seven_partitions_to_three_members(new_topic, new_consumer, witness, group):
    """With range, the first of three members gets three of seven partitions, the others two each."""
    topic = new_topic(7)

    async with ConsumerGroup(new_consumer, topic, group_id=group, partition_assignment_strategy="range") as crew:
        for _ in range(3):
            await crew.join()
        await crew.shares(2, 2, 3)
        dealt = sorted((await witness.members(group)).items())

    numbers = [sorted(one.partition for one in partitions) for _, partitions in dealt]
    assert numbers == [[0, 1, 2], [3, 4], [5, 6]]


async def test_stop_leaves_the_group_at_once(new_topic, new_consumer, witness, group):
    """stop() removes the member from the group, without waiting for its session to expire."""
    events = EventRecorder()
    consumer = new_consumer(new_topic(), group_id=group, session_timeout_ms=60_000, hooks=[events])
    await consumer.start()
    await events.wait_for(PartitionsAssigned)
    assert len(await witness.members(group)) == 1

    began = time.monotonic()
    await consumer.stop()
    took = time.monotonic() - began

    assert took < 10
    assert await witness.members(group) == {}
    assert len(events.of(GroupLeft)) == 1


async def test_a_slow_handler_keeps_its_membership(new_topic, new_consumer, witness, group):
    """A member that handles a record for longer than its session stays in the group."""
    topic, events = new_topic(), EventRecorder()
    witness.produce(topic, [b"slow"])
    options = {"session_timeout_ms": 3_000, "heartbeat_interval_ms": 300}

    async with new_consumer(topic, group_id=group, hooks=[events], **options) as consumer:
        await consumer.getone()
        before = await witness.members(group)
        await asyncio.sleep(3.4)
        after = await witness.members(group)

    assert before == after
    assert len(events.of(GroupJoined)) == 1


async def test_a_killed_member_is_replaced_after_its_session(new_topic, new_consumer, witness, group):
    """When the session of a killed member has expired, another member handles its unfinished records."""
    topic = new_topic(2)
    options = {"group_id": group, "session_timeout_ms": 1_500, "heartbeat_interval_ms": 300}
    witness.produce(topic, (b"%d" % n for n in range(100)))
    doomed = new_consumer(topic, **options)
    await doomed.start()
    handed_out = [await doomed.getone() for _ in range(10)]

    await kill(topic)
    async with ConsumerGroup(new_consumer, topic, **options) as crew:
        await crew.join()
        await crew.shares(2)
        await crew.handle(100)
    await doomed.stop()

    assert {(record.partition, record.offset) for record in handed_out} <= crew.handled.keys()
    assert len(crew.handled) == 100


async def test_members_without_a_common_assignor_raise(new_topic, new_consumer, group):
    """A member without a common assignor raises an error with the option to set, and the other member continues."""
    topic, events = new_topic(), EventRecorder()

    async with new_consumer(topic, group_id=group, partition_assignment_strategy="range", hooks=[events]) as first:
        await events.wait_for(PartitionsAssigned)
        async with new_consumer(topic, group_id=group, partition_assignment_strategy="roundrobin") as second:
            with pytest.raises(NoCommonAssignorError, match="partition_assignment_strategy"):
                await second.getone(timeout_ms=30_000)
        assert frozenset({TopicPartition(topic, 0)}) == first.assignment()


@pytest.mark.parametrize("strategy", ["range", "roundrobin", "cooperative-sticky"])
async def test_librdkafka_members_share_the_group(new_topic, new_consumer, kafka_server, group, strategy):
    """Members of tailrace and librdkafka in one group get distinct partitions with each strategy."""
    from confluent_kafka import Consumer as Confluent  # noqa: PLC0415 - the one use

    topic, events = new_topic(4), EventRecorder()
    theirs = Confluent(
        {
            "bootstrap.servers": kafka_server.bootstrap_servers,
            "group.id": group,
            "partition.assignment.strategy": strategy,
            "session.timeout.ms": 6_000,
        }
    )
    theirs.subscribe([topic])
    polling = asyncio.create_task(asyncio.to_thread(poll_until, theirs, 2))
    try:
        options = {"partition_assignment_strategy": strategy, "hooks": [events]}
        async with new_consumer(topic, group_id=group, **options) as ours:
            await until(lambda: len(ours.assignment()) == 2)
            their_share = await polling
            assert not their_share & ours.assignment()
            assert len(their_share | ours.assignment()) == 4
    finally:
        await asyncio.wait({polling})  # While another thread polls, close() may wait forever.
        theirs.close()


def poll_until(consumer, share):
    give_up_at = time.monotonic() + 30
    while len(consumer.assignment()) != share:
        consumer.poll(0.05)
        assert time.monotonic() < give_up_at
    return {TopicPartition(one.topic, one.partition) for one in consumer.assignment()}


async def test_new_partitions_are_assigned(new_topic, new_consumer, witness, group, kafka_server):
    """Partitions added while the group runs are assigned and read from their beginning."""
    topic = new_topic(2)

    async with ConsumerGroup(new_consumer, topic, group_id=group, metadata_max_age_ms=500) as crew:
        await crew.join()
        await crew.shares(2)
        kafka_server.add_partitions(topic, 6)
        witness.produce(topic, (b"%d" % n for n in range(50)), partition=5)
        await crew.shares(6)
        await crew.handle(50)

    assert set(crew.handled) == {(5, offset) for offset in range(50)}
