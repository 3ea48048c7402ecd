"""Records acknowledged one by one, in any order, from any task: ``ack="manual"``."""

from __future__ import annotations

import asyncio
import random

import pytest
from confluent_kafka import Producer

from tailrace import ConsumerStateError, RebalanceError, TopicPartition
from tailrace.observe.events import DrainTimedOut, GroupJoined, PartitionsRevoked, RebalanceStarted
from tests.support.consumer_group import until
from tests.support.event_recorder import EventRecorder

QUICK = {"heartbeat_interval_ms": 200}
"""Short, so that members learn soon that the group rebalances."""


@pytest.fixture
def by_hand(new_consumer, group):
    """Return a function that creates consumers with ``ack="manual"`` and without automatic commits."""

    def make(*topics, **options):
        return new_consumer(*topics, **{"group_id": group, "ack": "manual", "enable_auto_commit": False, **options})

    return make


async def read(consumer, count):
    """Read ``count`` records, in any number of batches."""
    records = []
    while len(records) < count:
        records += await consumer.getmany(max_records=count - len(records))
    return records


async def test_a_commit_stops_at_the_lowest_unacknowledged_record(new_topic, by_hand, witness, group):
    """Records may be acknowledged in any order, and a commit stops at the lowest one that is not acknowledged."""
    topic = new_topic()
    witness.produce(topic, (b"%d" % n for n in range(20)))

    async with by_hand(topic) as consumer:
        records = await read(consumer, 10)
        for acknowledged, expected in (([], 0), ([3, 1], 0), ([0], 2), ([9, 4, 5], 2), ([2], 6), ([6, 8, 7], 10)):
            assert all(consumer.ack(records[one]) for one in acknowledged)
            await consumer.commit()
            assert await witness.committed(group, topic, 1) == {0: expected}
        assert (await consumer.getone()).offset == 10
        await consumer.commit()

    assert await witness.committed(group, topic, 1) == {0: 10}


async def test_each_record_may_be_acknowledged_by_its_own_task(new_topic, by_hand, witness, group):
    """If each record is acknowledged by its own task, all records are committed when the consumer stops."""
    topic, chance = new_topic(3), random.Random(7)
    witness.produce(topic, (b"%d" % n for n in range(900)), batch_bytes=4_000)
    handled = []

    async def handle(consumer, record):
        await asyncio.sleep(chance.random() / 50)
        handled.append((record.partition, record.offset))
        assert consumer.ack(record)

    async with (
        by_hand(topic, enable_auto_commit=True, auto_commit_interval_ms=20) as consumer,
        asyncio.TaskGroup() as tasks,
    ):
        for _ in range(900):
            tasks.create_task(handle(consumer, await consumer.getone()))

    assert len(set(handled)) == len(handled) == 900
    assert await witness.committed(group, topic, 3) == await witness.ends(topic, 3)


async def test_ack_of_a_record_not_in_flight_returns_false(new_topic, by_hand, witness):
    """ack() returns False for a record that is acknowledged already, was delivered before a seek, or after stop()."""
    topic = new_topic()
    witness.produce(topic, (b"%d" % n for n in range(5)))

    consumer = by_hand(topic)
    async with consumer:
        before = await read(consumer, 3)
        assert consumer.ack(before[1])
        assert not consumer.ack(before[1])
        await consumer.seek(TopicPartition(topic, 0), 0)
        assert not consumer.ack(before[0])
        after = await read(consumer, 3)
        assert before == after
        assert not consumer.ack(before[0])
        assert consumer.ack(after[0])
        await consumer.commit()
        assert (await consumer.committed([TopicPartition(topic, 0)]))[TopicPartition(topic, 0)].offset == 1

    assert not consumer.ack(after[1])
    with pytest.raises(ConsumerStateError, match="not started"):
        by_hand(topic).ack(after[2])


async def test_a_pause_delays_undelivered_records(new_topic, by_hand, witness, group):
    """A commit during a pause is not delayed by undelivered records, which are delivered after resume()."""
    topic = new_topic()
    witness.produce(topic, (b"%d" % n for n in range(40)))

    async with by_hand(topic) as consumer:
        records = [await consumer.getone() for _ in range(4)]
        consumer.pause()
        for record in records:
            assert consumer.ack(record)
        await consumer.commit()
        assert await witness.committed(group, topic, 1) == {0: 4}
        consumer.resume()
        records = await read(consumer, 36)
        assert [record.offset for record in records] == list(range(4, 40))
        for record in reversed(records):
            assert consumer.ack(record)
        await consumer.commit()

    assert await witness.committed(group, topic, 1) == {0: 40}


async def test_commits_pass_control_and_aborted_records(new_topic, by_hand, witness, kafka_server, group):
    """When all delivered records are acknowledged, the commit passes control records and aborted ones."""
    topic = new_topic()
    producer = Producer({"bootstrap.servers": kafka_server.bootstrap_servers, "transactional.id": group})
    await asyncio.to_thread(producer.init_transactions, 20)
    for number, keep in enumerate((True, False, True, False)):
        producer.begin_transaction()
        for value in range(5):
            producer.produce(topic, b"%d-%d" % (number, value))
        await asyncio.to_thread(producer.flush, 20)
        ending = producer.commit_transaction if keep else producer.abort_transaction
        await asyncio.to_thread(ending, 20)

    async with by_hand(topic, isolation_level="read_committed") as consumer:
        records = await read(consumer, 10)
        # The last marker is written some time after the end of the transaction was acknowledged.
        async with asyncio.timeout(30):
            while await consumer.position(TopicPartition(topic, 0)) < 24:
                assert await consumer.getmany(timeout_ms=50) == []
        for record in records[1:]:
            assert consumer.ack(record)
        await consumer.commit()
        assert await witness.committed(group, topic, 1) == {0: 0}
        assert consumer.ack(records[0])
        await consumer.commit()

    assert await witness.committed(group, topic, 1) == await witness.ends(topic, 1) == {0: 24}


async def test_commits_pass_compacted_records(quick, by_hand, group):
    """When all delivered records are acknowledged, the commit passes offsets that compaction removed."""
    topic = quick.topic(cleanup_policy="compact", segment_ms=50, min_cleanable_dirty_ratio=0.01)
    place = {"bootstrap_servers": quick.server.bootstrap_servers}
    for _ in range(4):
        quick.produce(
            topic, (b"%d" % n for n in range(100)), keys=[b"%d" % (n % 7 if n < 99 else n) for n in range(100)]
        )
    async with asyncio.timeout(60):
        while True:
            async with by_hand(
                topic, group_id=None, enable_auto_commit=None, auto_offset_reset="earliest", **place
            ) as one:
                offsets = [record.offset for record in await one.getmany(timeout_ms=5_000)]
            if len(offsets) < 300:
                break
            await asyncio.sleep(0.1)
            quick.produce(topic, [b"x"], keys=[b"last"])

    async with by_hand(topic, **place) as consumer:
        records = []
        while not records or records[-1].offset < offsets[-1]:  # compaction continues
            records += await consumer.getmany()
        for record in records[1:]:
            assert consumer.ack(record)
        await consumer.commit()
        assert (await quick.committed(group, topic, 1))[0] <= records[0].offset
        assert consumer.ack(records[0])
        await consumer.commit()

    assert (await quick.committed(group, topic, 1))[0] > records[-1].offset


@pytest.mark.parametrize("kind", [QUICK, {"group_protocol": "consumer"}], ids=["classic", "consumer"])
async def test_a_rebalance_waits_for_unacknowledged_records(quick, by_hand, group, kind):
    """A revoked partition is released when its last record is acknowledged, and its next owner repeats no record."""
    topic, events, others = quick.topic(2), EventRecorder(), EventRecorder()
    quick.fill(topic, 2, 10)
    options = {"bootstrap_servers": quick.bootstrap_servers, "enable_auto_commit": True, **kind}

    async with by_hand(topic, hooks=[events], **options) as first:
        records = await read(first, 20)
        reading = asyncio.create_task(first.getone(timeout_ms=30_000))
        async with by_hand(topic, hooks=[others], **options) as second:
            await others.wait_for(GroupJoined)
            for record in records[:-1]:
                assert first.ack(record)
            assert not events.of(PartitionsRevoked)
            last_of = {record.partition: record for record in records}
            for record in last_of.values():
                first.ack(record)
            (revoked,) = (await events.wait_for(PartitionsRevoked)).partitions
            await until(lambda: second.assignment() == {revoked})
            assert await second.position(revoked) == 10
            reading.cancel()
            await asyncio.gather(reading, return_exceptions=True)
            await first.stop()

    assert not events.of(DrainTimedOut)
    assert await quick.committed(group, topic, 2) == {0: 10, 1: 10}


async def test_ack_after_the_revocation_returns_false(new_topic, by_hand, witness, group):
    """After rebalance_drain_ms the next owner handles unacknowledged records again, and a late ack() returns False."""
    topic, events = new_topic(2), EventRecorder()
    witness.fill(topic, 2, 10)
    options = {"enable_auto_commit": True, "rebalance_drain_ms": 200, **QUICK}

    async with by_hand(topic, hooks=[events], **options) as first:
        records = await read(first, 20)
        for record in records:
            if record.offset not in {4, 7}:
                assert first.ack(record)
        reading = asyncio.create_task(first.getone(timeout_ms=30_000))
        async with by_hand(topic, **options) as second:
            handed_over = [await second.getone(timeout_ms=20_000) for _ in range(2)]
            (lost,) = (await events.wait_for(PartitionsRevoked)).partitions
            assert [(one.topic_partition, one.offset) for one in handed_over] == [(lost, 4), (lost, 7)]
            late = [record for record in records if record.offset in {4, 7}]
            assert [first.ack(record) for record in late] == [record.topic_partition != lost for record in late]
            assert all(second.ack(record) for record in handed_over)
            assert await second.getone(timeout_ms=500) is None
            reading.cancel()
            await asyncio.gather(reading, return_exceptions=True)
            await first.stop()

    assert events.of(DrainTimedOut)
    assert await witness.committed(group, topic, 2) == {0: 10, 1: 10}


async def test_ack_lets_a_rebalance_continue(new_topic, by_hand, new_consumer, witness, group):
    """With ack="auto", too, ack() of the record in flight releases a revoked partition without another poll."""
    topic, events = new_topic(2), EventRecorder()
    witness.fill(topic, 2, 10)

    async with new_consumer(topic, group_id=group, hooks=[events], **QUICK) as first:
        record = await first.getone()
        async with new_consumer(topic, group_id=group, **QUICK):
            await events.wait_for(RebalanceStarted, 2)
            await until(
                lambda: first._started.partitions.get(record.topic_partition).is_halted or events.of(PartitionsRevoked)
            )
            assert first.ack(record) or events.of(PartitionsRevoked)
            await events.wait_for(PartitionsRevoked)
            await first.stop()


async def test_unacknowledged_records_are_bounded(new_topic, by_hand, witness):
    """At most max_unacknowledged_records are unacknowledged at a time, and each acknowledgment allows one more."""
    topic = new_topic(2)
    witness.produce(topic, (b"%d" % n for n in range(60)))

    async with by_hand(topic, max_unacknowledged_records=20) as consumer:
        taken = await read(consumer, 20)
        assert await consumer.getmany(max_records=50, timeout_ms=500) == []
        assert await consumer.getone(timeout_ms=0) is None

        waiting = asyncio.create_task(consumer.getone())
        await asyncio.sleep(0)
        consumer.ack(taken[7])
        taken.append(await asyncio.wait_for(waiting, 20))
        batch = asyncio.create_task(anext(consumer.batches(max_records=50, max_wait_ms=100)))
        await asyncio.sleep(0)
        for record in taken[:5]:
            consumer.ack(record)
        taken += await asyncio.wait_for(batch, 20)
        assert 21 < len(taken) <= 26


async def test_a_seek_resets_the_count_of_unacknowledged_records(new_topic, by_hand, witness):
    """Records delivered before a seek do not count towards max_unacknowledged_records, and cannot be acknowledged."""
    topic = new_topic()
    witness.produce(topic, (b"%d" % n for n in range(30)))

    async with by_hand(topic, max_unacknowledged_records=20) as consumer:
        before = await read(consumer, 20)
        waiting = asyncio.create_task(consumer.getone())
        await asyncio.sleep(0)
        await consumer.seek(TopicPartition(topic, 0), 10)

        assert (await asyncio.wait_for(waiting, 20)).offset == 10
        assert not consumer.ack(before[10])


async def test_a_reader_that_waits_for_acknowledgements_leaves_the_group(new_topic, by_hand, witness):
    """A poll that waits for acknowledgments raises after max_poll_interval_ms, and the next one joins again."""
    topic = new_topic()
    witness.produce(topic, (b"%d" % n for n in range(30)))

    async with by_hand(topic, max_unacknowledged_records=10, max_poll_interval_ms=1_000, **QUICK) as consumer:
        before = await read(consumer, 10)
        with pytest.raises(RebalanceError, match="max_poll_interval_ms"):
            await asyncio.wait_for(consumer.getone(), 20)
        # Until the partitions are released, an acknowledgment may still count.
        await until(lambda: not consumer.assignment())
        assert not consumer.ack(before[0])
        assert (await asyncio.wait_for(consumer.getone(), 20)).offset == 0
