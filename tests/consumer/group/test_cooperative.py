"""Cooperative rebalances: kept partitions are read throughout, revoked ones are released in order."""

from __future__ import annotations

import asyncio

import pytest

from tailrace import TopicPartition
from tailrace.observe.events import GroupJoined, PartitionsAssigned, PartitionsRevoked
from tailrace.protocol.groups import JoinGroupRequest, decode_subscription
from tests.support.consumer_group import ConsumerGroup, until
from tests.support.event_recorder import EventRecorder

QUICK = {"heartbeat_interval_ms": 300}
"""Short, so that members learn soon that the group rebalances."""


def partitions(topic, *numbers):
    return frozenset(TopicPartition(topic, number) for number in numbers)


async def test_kept_partitions_are_read_while_another_member_drains(new_topic, new_consumer, witness, group):
    """While one member finishes records of a revoked partition, other members read the partitions that they keep."""
    topic, let_go, in_flight = new_topic(6), asyncio.Event(), []
    options = {"group_id": group, "auto_offset_reset": "latest", "rebalance_drain_ms": 100_000, **QUICK}
    slow_events, quick_events = EventRecorder(), EventRecorder()

    async def be_slow(consumer):
        await until(lambda: all(consumer.highwater(one) == 1 for one in consumer.assignment()))
        in_flight.extend(await consumer.getmany())
        await let_go.wait()
        while True:
            await consumer.getmany()

    async with (
        ConsumerGroup(new_consumer, topic, **options) as crew,
        new_consumer(topic, **options, hooks=[slow_events]) as slow,
    ):
        quick = await crew.join(hooks=[quick_events])
        await until(lambda: len(slow.assignment()) == len(quick.consumer.assignment()) == 3)
        for one in slow.assignment():
            await slow.position(one)  # resolves "latest" to the current end
        for one in slow.assignment():
            witness.produce(topic, [b"in flight"], partition=one.partition)
        reading = asyncio.create_task(be_slow(slow))
        await until(lambda: len(in_flight) == 3)
        # Either member may have had all six partitions, and revoked three, before the other joined.
        revoked_before = len(slow_events.of(PartitionsRevoked))
        quick_revoked_before = len(quick_events.of(PartitionsRevoked))
        await crew.join()
        # In the second generation the slow member has to release a partition: its drain has begun.
        await until(lambda: len(quick_events.of(PartitionsRevoked)) > quick_revoked_before)
        kept = quick.consumer.assignment()
        for one in kept:
            await quick.consumer.position(one)
        for _ in range(5):
            seen = len(crew.handled)
            for one in kept:
                witness.produce(topic, [b"more"], partition=one.partition)
            await crew.handle(seen + len(kept), timeout_s=20)
        still_draining = len(slow_events.of(PartitionsRevoked)) == revoked_before
        let_go.set()
        await until(lambda: sorted(len(one.consumer.assignment()) for one in crew.members) == [2, 2])
        reading.cancel()
        await asyncio.wait({reading})

    assert still_draining
    assert len(kept) == 2


async def test_kept_partitions_keep_their_position_and_pause(new_topic, new_consumer, witness, group):
    """A partition that a member keeps in a rebalance keeps its position and its pause (B16)."""
    topic, events = new_topic(4), EventRecorder()
    witness.fill(topic, 4, 100)

    async with new_consumer(topic, group_id=group, enable_auto_commit=False, **QUICK, hooks=[events]) as one:
        await until(lambda: len(one.assignment()) == 4)
        for partition in one.assignment():
            await one.seek(partition, 40)
        one.pause()
        async with new_consumer(topic, group_id=group, enable_auto_commit=False, **QUICK) as other:
            await until(lambda: len(other.assignment()) == len(one.assignment()) == 2)
            kept = one.assignment()
            assert one.paused() == kept
            assert await one.getone(timeout_ms=100) is None
            one.resume()
            first = {}
            while len(first) < 2:
                record = await one.getone()
                first.setdefault(TopicPartition(topic, record.partition), record.offset)

    assert first == dict.fromkeys(kept, 40)
    assert not events.of(PartitionsRevoked)[0].partitions & kept


async def test_no_record_is_delivered_after_the_revocation(new_topic, new_consumer, witness, group):
    """After on_partitions_revoked no record of the partitions is delivered, and the group handles each record once."""
    topic, gone, late = new_topic(6), set(), []
    witness.produce(topic, (b"%d" % n for n in range(20_000)))

    class Listener:
        def on_partitions_revoked(self, revoked):
            gone.update(revoked)

        def on_partitions_assigned(self, added):
            gone.difference_update(added)

    async def read(consumer, crew):
        async for record in consumer:
            if TopicPartition(topic, record.partition) in gone:
                late.append(record)
            crew._note(record)
            await asyncio.sleep(0)

    async with (
        ConsumerGroup(new_consumer, topic, group_id=group, **QUICK) as crew,
        new_consumer(topic, group_id=group, rebalance_listener=Listener(), **QUICK) as watched,
    ):
        reading = asyncio.create_task(read(watched, crew))
        await crew.handle(2_000)
        for _ in range(3):
            other = await crew.join()
            await crew.shares(3)
            await crew.leave(other)
            await until(lambda: len(watched.assignment()) == 6)
        await crew.handle(20_000)
        await watched.stop()
        await reading

    assert late == []
    assert {1} == set(crew.handled.values())


async def test_a_join_contains_owned_partitions(witness_of, group):
    """A member joins with the partitions that it owns and their generation."""
    topic, events = witness_of.topic(4), EventRecorder()

    async with witness_of.consumer(topic, group_id=group, client_id=group, hooks=[events], **QUICK) as first:
        await events.wait_for(GroupJoined)
        await until(lambda: len(first.assignment()) == 4)
        async with witness_of.consumer(topic, group_id=group, client_id="second", **QUICK) as second:
            await until(lambda: len(second.assignment()) == 2)
            # When the second leaves, the first may join once more.
            joins = [frame.message for frame in witness_of.proxy.requests(JoinGroupRequest, client_id=group)]

    subscriptions = [decode_subscription(join.protocols[0].metadata) for join in joins]
    owned = [(each.generation_id, sum(len(one.partitions) for one in each.owned_partitions)) for each in subscriptions]
    assert owned[0] == (-1, 0)
    assert [one for one in owned if one[1]] == [(1, 4), (2, 2)]


async def test_one_join_offers_every_assignor_in_order(witness_of, group):
    """All strategies are offered in one JoinGroup request, in the configured order (B1)."""
    topic = witness_of.topic(2)
    strategies = ("cooperative-sticky", "sticky", "roundrobin", "range")

    async with witness_of.consumer(
        topic, group_id=group, client_id=group, partition_assignment_strategy=strategies
    ) as one:
        await until(lambda: len(one.assignment()) == 2)
        await one.getone(timeout_ms=50)

    joins = [frame.message for frame in witness_of.proxy.requests(JoinGroupRequest, client_id=group)]
    assert [tuple(offer.name for offer in join.protocols) for join in joins] == [strategies, strategies]
    assert [bool(join.member_id) for join in joins] == [False, True]  # KIP-394: the second contains the member id


async def test_a_group_with_an_eager_member_rebalances_eagerly(new_topic, new_consumer, witness, group):
    """A cooperative member in a group with an eager one uses the common strategy, and no record is handled twice."""
    topic = new_topic(6)
    both = ("cooperative-sticky", "range")

    async with ConsumerGroup(new_consumer, topic, group_id=group, partition_assignment_strategy=both, **QUICK) as crew:
        await crew.join()
        await crew.shares(6)
        witness.produce(topic, (b"%d" % n for n in range(1_000)))
        await crew.handle(1_000)
        await crew.join(partition_assignment_strategy="range")
        await crew.shares(3, 3)
        witness.produce(topic, (b"%d" % n for n in range(1_000)))
        await crew.handle(2_000)

    assert {1} == set(crew.handled.values())


async def test_two_sticky_consumers_in_one_process_are_independent(new_topic, new_consumer, group):
    """Two groups in one process assign their own partitions with the sticky assignor (B10)."""
    topics, events = (new_topic(4), new_topic(4)), (EventRecorder(), EventRecorder())
    options = {"partition_assignment_strategy": "sticky", **QUICK}

    async with (
        new_consumer(topics[0], group_id=f"{group}-0", hooks=[events[0]], **options) as zero,
        new_consumer(topics[1], group_id=f"{group}-1", hooks=[events[1]], **options) as one,
    ):
        await until(lambda: len(zero.assignment()) == len(one.assignment()) == 4)
        before = zero.assignment()
        async with new_consumer(topics[0], group_id=f"{group}-0", **options) as another:
            await until(lambda: len(zero.assignment()) == len(another.assignment()) == 2)

            assert zero.assignment() <= before
            assert {partition.topic for partition in one.assignment()} == {topics[1]}
            assert len(events[1].of(PartitionsAssigned)) == 1


@pytest.mark.parametrize("strategy", ["range", "cooperative-sticky"])
async def test_a_new_topic_is_assigned(  # noqa: PLR0917 - fixtures
    new_topic, new_consumer, kafka_server, witness, group, strategy
):
    """All members read topics that match their pattern and are created later (B17)."""
    base = new_topic(2)
    options = {"group_id": group, "metadata_max_age_ms": 300, **QUICK, "partition_assignment_strategy": strategy}
    pattern = rf"{base}(-later)?"

    async with (
        new_consumer(pattern=pattern, **options) as one,
        new_consumer(pattern=pattern, **options) as other,
    ):
        await until(lambda: len(one.assignment()) == len(other.assignment()) == 1)
        kafka_server.create_topic(f"{base}-later", 2)
        witness.produce(f"{base}-later", [b"0", b"1", b"2"], partition=1)
        await until(lambda: len(one.assignment()) == len(other.assignment()) == 2)
        readers = [asyncio.create_task(one.getmany()), asyncio.create_task(other.getmany())]
        done, pending = await asyncio.wait(readers, timeout=20, return_when=asyncio.FIRST_COMPLETED)
        for reader in pending:
            reader.cancel()
        await asyncio.gather(*pending, return_exceptions=True)

        assert one.subscription() == other.subscription() == {base, f"{base}-later"}
    assert {record.topic for reader in done for record in reader.result()} == {f"{base}-later"}


async def test_a_newer_rebalance_cancels_a_running_callback(new_topic, new_consumer, witness, group):
    """A callback that is running at the next rebalance is canceled, and called again with the new assignment."""
    topic, calls, cancelled = new_topic(4), [], []

    async def slow(_consumer, _old, new):
        calls.append(frozenset(new))
        if len(calls) == 1:
            try:
                await asyncio.sleep(60)
            except asyncio.CancelledError:
                cancelled.append(True)
                raise

    async with new_consumer(topic, group_id=group, post_rebalance_callback=slow, **QUICK) as one:
        await until(lambda: len(calls) == 1)
        async with new_consumer(topic, group_id=group, **QUICK) as other:
            await until(lambda: len(other.assignment()) == len(one.assignment()) == 2)
            await until(lambda: len(calls) >= 2)
            for partition in range(4):
                witness.produce(topic, [b"0"], partition=partition)
            assert await one.getone(timeout_ms=30_000) is not None

    assert cancelled == [True]
    assert calls[0] == partitions(topic, 0, 1, 2, 3)
    assert len(calls[-1]) == 2
