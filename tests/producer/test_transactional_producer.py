"""Transactions with a real broker, as read_committed consumers see them."""

from __future__ import annotations

import asyncio
import time
import uuid

import pytest
from confluent_kafka import Producer

from tailrace import (
    BrokerConnectionError,
    CommitFailedError,
    Consumer,
    FencedMemberError,
    OffsetAndMetadata,
    ProducerFencedError,
    TopicPartition,
)
from tailrace.config import resolve
from tailrace.core.group_requests import Identity
from tailrace.producer.publisher import OutgoingRecord
from tailrace.producer.transaction_machine import ProducerState
from tailrace.producer.transactional_producer import TransactionalProducer
from tests.support.committed_records import CommittedRecords
from tests.support.manual_member import ManualMember


@pytest.fixture
def ledger(kafka_server) -> CommittedRecords:
    return CommittedRecords(kafka_server)


def offsets_of(topic: str, *numbers: int) -> dict[TopicPartition, OffsetAndMetadata]:
    """Return offsets to commit for partitions 0, 1, …"""
    return {TopicPartition(topic, one): OffsetAndMetadata(number) for one, number in enumerate(numbers)}


# ---- all or nothing --------------------------------------------------------------------------------------------


async def test_committed_records_are_read_once_and_aborted_ones_never(ledger):
    """read_committed consumers see the records of committed transactions in order, and none of aborted ones."""
    topic, expected = ledger.topic(), []

    async with ledger.producer() as producer:
        for number in range(6):
            await producer.begin()
            values = [b"%d.%d" % (number, one) for one in range(10)]
            for value in values:
                await producer.send(OutgoingRecord(topic, value))
            if number % 2:
                await producer.abort()
            else:
                await producer.commit()
                expected += values

    assert expected == await ledger.values(topic)


async def test_a_record_has_the_content_that_was_sent(ledger):
    """A record keeps key, value, headers, timestamp and partition, and null differs from empty."""
    topic = ledger.topic(3)

    async with ledger.producer() as producer:
        await producer.begin()
        headers = [("h", b"1"), ("h", None)]
        places = [
            await producer.send(
                OutgoingRecord(topic, b"v", key=b"k", headers=headers, partition=2, timestamp_ms=1_700_000_000_000)
            ),
            await producer.send(OutgoingRecord(topic, None, key=b"", partition=2)),
        ]
        await producer.commit()

    first, second = await ledger.committed(topic)
    assert [(await place)[:3] for place in places] == [(topic, 2, offset) for offset in (0, 1)]
    assert (first.partition(), first.key(), first.value(), first.headers()) == (2, b"k", b"v", headers)
    assert first.timestamp()[1] == 1_700_000_000_000
    assert (second.key(), second.value(), second.headers()) == (b"", None, None)


async def test_a_key_has_the_same_partition_as_with_librdkafka(ledger):
    """A key has the same partition as with librdkafka's murmur2 partitioner."""
    topic, keys = ledger.topic(7), [b"%d" % number * (number % 5 + 1) for number in range(100)]
    theirs = Producer({"bootstrap.servers": ledger.server.bootstrap_servers, "partitioner": "murmur2"})

    async with ledger.producer() as producer:
        await producer.begin()
        for key in keys:
            await producer.send(OutgoingRecord(topic, b"ours", key=key))
            theirs.produce(topic, b"theirs", key=key)
        await producer.commit()
    assert theirs.flush(20) == 0

    places: dict[bytes, set[int]] = {}
    for record in await ledger.committed(topic):
        places.setdefault(record.key(), set()).add(record.partition())
    assert {len(partitions) for partitions in places.values()} == {1}
    assert len(set().union(*places.values())) == 7


@pytest.mark.parametrize("compression", ["gzip", "snappy", "lz4", "zstd"])
async def test_batches_may_be_compressed(ledger, compression):
    """Batches of each compression codec can be read by librdkafka."""
    topic, values = ledger.topic(), [b"%d" % number * 200 for number in range(100)]

    async with ledger.producer(compression_type=compression) as producer:
        await producer.begin()
        for value in values:
            await producer.send(OutgoingRecord(topic, value))
        await producer.commit()

    assert values == await ledger.values(topic)


async def test_a_transaction_may_be_larger_than_the_producers_memory(ledger):
    """Full batches are written during the transaction and become visible at its commit."""
    topic, value = ledger.topic(2), b"x" * 1_000

    async with ledger.producer(buffer_memory=1 << 20) as producer:
        await producer.begin()
        async with asyncio.TaskGroup() as tasks:
            for task in range(4):
                tasks.create_task(send_many(producer, topic, value, task % 2))
        assert producer._records.buffered_bytes < 2 << 20
        assert await ledger.stable_end(topic) == 0
        await producer.commit()

    assert len(await ledger.values(topic)) == 6_000


async def send_many(producer, topic, value, partition):
    for _ in range(1_500):
        await producer.send(OutgoingRecord(topic, value, partition=partition))


async def test_offsets_are_committed_with_the_records(ledger, group):
    """Offsets of a committed transaction are the group's committed offsets."""
    topic, out = ledger.topic(2), ledger.topic()

    async with ledger.producer() as producer:
        for number, end in ((1, producer.commit), (2, producer.abort), (3, producer.commit)):
            await producer.begin()
            await producer.send(OutgoingRecord(out, b"%d" % number))
            if end == producer.commit:
                await producer.commit(offsets_of(topic, number, number * 10), group_id=group)
                assert await ledger.group_offsets(group, topic, (0, 1)) == {0: number, 1: number * 10}
            else:
                await producer.abort()

    assert await ledger.values(out) == [b"1", b"3"]


async def test_offsets_alone_can_be_committed(ledger, group):
    """A transaction without records commits offsets and their metadata."""
    topic = ledger.topic()

    async with ledger.producer(config={"group_id": group}) as producer:
        await producer.begin()
        await producer.commit({TopicPartition(topic, 0): OffsetAndMetadata(7, "mine", 0)})

    async with Consumer(topic, bootstrap_servers=ledger.server.bootstrap_servers, group_id=group) as consumer:
        assert await consumer.committed([TopicPartition(topic, 0)]) == {
            TopicPartition(topic, 0): OffsetAndMetadata(7, "mine", 0)
        }


async def test_empty_transactions_can_be_committed_and_aborted(ledger):
    """Empty transactions can be committed and aborted any number of times."""
    async with ledger.producer() as producer:
        for end in (producer.commit, producer.abort) * 3:
            await producer.begin()
            await end()

        assert producer.state is ProducerState.READY


async def test_a_hundred_transactions_lose_and_repeat_nothing(ledger, group):
    """A hundred transactions of a hundred records and an offset lose and repeat no record."""
    topic, source = ledger.topic(3), ledger.topic()

    async with ledger.producer() as producer:
        began = time.monotonic()
        for number in range(100):
            await producer.begin()
            for one in range(100):
                await producer.send(OutgoingRecord(topic, b"%d" % (number * 100 + one), key=b"%d" % one))
            await producer.commit(offsets_of(source, number + 1), group_id=group)
        took_s = time.monotonic() - began

    assert took_s < 40
    assert sorted(map(int, await ledger.values(topic))) == list(range(10_000))
    assert await ledger.group_offsets(group, source) == {0: 100}


# ---- fencing and generations -----------------------------------------------------------------------------------


@pytest.mark.parametrize("moment", ["begin", "flush", "commit"])
async def test_a_zombie_is_fenced(ledger, moment):
    """A second producer with the same transactional id fences the first one and aborts its transaction."""
    topic, name = ledger.topic(), f"x-{uuid.uuid4().hex[:12]}"

    async with ledger.producer(name) as zombie:
        if moment != "begin":
            await zombie.begin()
            await zombie.send(OutgoingRecord(topic, b"zombie"))
        if moment == "flush":
            await ledger.flush(zombie)
        async with ledger.producer(name) as successor:
            with pytest.raises(ProducerFencedError, match=f"another process has the same transactional_id '{name}'"):
                await continue_fenced(zombie, topic)
            with pytest.raises(ProducerFencedError):
                await zombie.begin()
            await zombie.abort()
            await successor.begin()
            await successor.send(OutgoingRecord(topic, b"successor"))
            await successor.commit()

    assert zombie.state is ProducerState.FENCED
    assert await ledger.values(topic) == [b"successor"]


async def continue_fenced(zombie: TransactionalProducer, topic: str) -> None:
    """Continue as a process that does not know its successor."""
    if zombie.state is ProducerState.READY:
        await zombie.begin()
        await zombie.send(OutgoingRecord(topic, b"zombie"))
    await zombie.commit()


async def test_a_member_of_an_old_generation_cannot_commit_in_a_transaction(ledger, group):
    """Offsets of an old generation or an unknown member abort their transaction, and the next one succeeds."""
    source, out = ledger.topic(), ledger.topic()

    config = {"group_id": group}
    async with (
        ManualMember(ledger.server.bootstrap_servers, group) as member,
        ledger.producer(config=config) as producer,
    ):
        generation = (await member.join(source)).generation_id
        await publish(producer, out, b"1", offsets_of(source, 1), Identity(member.member_id, generation))
        # Joining again begins a new generation.
        await member.join(source, "another")
        with pytest.raises(CommitFailedError, match="the group has rebalanced without this member"):
            await publish(producer, out, b"2", offsets_of(source, 2), Identity(member.member_id, generation))
        with pytest.raises(CommitFailedError, match="UNKNOWN_MEMBER_ID"):
            await publish(producer, out, b"3", offsets_of(source, 3), Identity("nobody", generation + 1))
        await producer.abort()
        assert await ledger.group_offsets(group, source) == {0: 1}
        await publish(producer, out, b"4", offsets_of(source, 4), Identity(member.member_id, generation + 1))

    assert await ledger.values(out) == [b"1", b"4"]
    assert await ledger.group_offsets(group, source) == {0: 4}


async def publish(producer, topic, value, offsets, identity):
    """Commit a transaction of a record and offsets."""
    await producer.begin()
    await producer.send(OutgoingRecord(topic, value))
    await producer.commit(offsets, identity)


@pytest.mark.parametrize("protocol", ["classic", "consumer"])
async def test_offsets_are_committed_with_the_consumers_membership(ledger, group, protocol):
    """Offsets are accepted with the consumer's current membership, and refused with an outdated or another one."""
    source, out = ledger.topic(), ledger.topic()
    options = {"group_id": group, "group_protocol": protocol, "group_instance_id": "i", "enable_auto_commit": False}

    async with (
        Consumer(source, bootstrap_servers=ledger.server.bootstrap_servers, **options) as consumer,
        ledger.producer(config={"group_id": group}) as producer,
    ):
        while not consumer.assignment():
            await consumer.getone(timeout_ms=50)
        me = consumer._started.membership.identity
        await publish(producer, out, b"1", offsets_of(source, 1), me)
        with pytest.raises(CommitFailedError, match="ILLEGAL_GENERATION"):
            await publish(producer, out, b"2", offsets_of(source, 2), Identity(me.member_id, me.generation - 1, "i"))
        with pytest.raises((FencedMemberError, CommitFailedError), match=r"FENCED_INSTANCE_ID|UNKNOWN_MEMBER_ID"):
            await publish(producer, out, b"3", offsets_of(source, 3), Identity("another", me.generation, "i"))

    assert await ledger.values(out) == [b"1"]
    assert await ledger.group_offsets(group, source) == {0: 1}


# ---- shutdown --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("failure", [None, ValueError])
async def test_leaving_the_context_aborts_an_open_transaction(ledger, failure):
    """Leaving the context aborts an open transaction, with or without an error."""
    topic = ledger.topic()

    async def leave() -> None:
        async with ledger.producer() as producer:
            await producer.begin()
            await producer.send(OutgoingRecord(topic, b"x"))
            await ledger.flush(producer)
            if failure is not None:
                raise failure

    if failure is None:
        await leave()
    else:
        with pytest.raises(failure):
            await leave()

    assert await ledger.values(topic) == []


async def test_closing_leaves_no_task(ledger):
    """A closed producer leaves no task, whether its last transaction was committed or left open."""
    topic, before = ledger.topic(), asyncio.all_tasks()

    for ends in (True, False):
        async with ledger.producer() as producer:
            await producer.begin()
            await producer.send(OutgoingRecord(topic, b"x"))
            if ends:
                await producer.commit()

    assert asyncio.all_tasks() == before


async def test_start_without_a_broker_raises_in_time():
    """start() without a broker raises BrokerConnectionError with the address."""
    config = resolve({"bootstrap_servers": "127.0.0.1:1", "start_timeout_ms": 300}, {})

    with pytest.raises(BrokerConnectionError, match=r"127\.0\.0\.1:1"):
        await TransactionalProducer(config, transactional_id="x").start()
