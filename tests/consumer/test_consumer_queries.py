"""Queries of a consumer: assignment, topics, offsets and timestamps; and commits of wrong offsets."""

from __future__ import annotations

import asyncio
import time

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import NewPartitions
from msgspec.structs import replace

from tailrace import (
    ConfigurationError,
    ConsumerStateError,
    GroupAuthorizationFailedError,
    ProcessPoolConsumer,
    RequestTimedOutError,
    TailraceError,
    TopicPartition,
    UnknownTopicError,
)
from tailrace.error_codes import ErrorCode
from tailrace.protocol.groups import JoinGroupRequest
from tests.support.consumer_group import until

# ---- assigned() ------------------------------------------------------------------------------------------------------


async def test_assigned_waits_for_the_first_assignment(new_topic, new_consumer, group):
    """assigned() returns the partitions after on_partitions_assigned has returned."""
    topic = new_topic(3)
    assigned: list[object] = []

    class Listener:
        async def on_partitions_assigned(self, partitions):
            await asyncio.sleep(0.05)
            assigned.append(partitions)

    async with new_consumer(topic, group_id=group, rebalance_listener=Listener()) as consumer:
        found = await consumer.assigned(timeout_ms=20_000)
        assert found == consumer.assignment() == {TopicPartition(topic, number) for number in range(3)}
        assert assigned == [found]
        assert await consumer.assigned(timeout_ms=0) == found


@pytest.mark.parametrize("protocol", ["classic", "consumer"])
async def test_assigned_returns_an_empty_assignment(new_topic, new_consumer, group, protocol):
    """assigned() returns an empty set for a member without partitions."""
    topic = new_topic()
    options = {"group_id": group, "group_protocol": protocol}

    async with new_consumer(topic, **options) as first, asyncio.timeout(40):
        assert len(await first.assigned()) == 1
        async with new_consumer(topic, **options) as second:
            assert len(await second.assigned()) + len(first.assignment()) == 1


async def test_assigned_returns_at_once_without_a_group(new_topic, new_consumer):
    """Without a group, assigned() returns at once, and raises if nothing is subscribed or assigned."""
    topic = new_topic(2)
    async with new_consumer(topic) as consumer:
        assert len(await consumer.assigned(timeout_ms=0)) == 2
    async with new_consumer() as consumer:
        with pytest.raises(ConsumerStateError, match="reads nothing"):
            await consumer.assigned()
        await consumer.assign((topic, 1))
        assert await consumer.assigned() == {TopicPartition(topic, 1)}


async def test_assigned_raises_at_its_timeout(kafka, group):
    """assigned() raises RequestTimedOutError after timeout_ms, in all tasks that wait."""
    topic = kafka.topic()
    with kafka.proxy.hold_answer(JoinGroupRequest):
        async with kafka.consumer(topic, group_id=group, client_id=group, stop_timeout_ms=1_000) as consumer:
            await until(lambda: bool(kafka.proxy.answers(JoinGroupRequest, client_id=group)))
            began = time.monotonic()
            found = await asyncio.gather(*[consumer.assigned(timeout_ms=50) for _ in range(2)], return_exceptions=True)
            assert time.monotonic() - began < 5
    assert [type(one) for one in found] == [RequestTimedOutError] * 2


async def test_assigned_raises_what_ends_the_consumer(kafka, group):
    """assigned() raises the error with which the group refuses the member."""
    topic = kafka.topic()

    def refuse(answer):
        return replace(answer, error_code=ErrorCode.GROUP_AUTHORIZATION_FAILED)

    with kafka.proxy.edit_answer(JoinGroupRequest, refuse, times=None):
        async with kafka.consumer(topic, group_id=group, client_id=group) as consumer:
            await until(lambda: bool(kafka.proxy.answers(JoinGroupRequest, client_id=group)))
            with pytest.raises(GroupAuthorizationFailedError):
                await consumer.assigned(timeout_ms=20_000)


async def test_assigned_ends_with_the_consumer(new_topic, new_consumer, group):
    """assigned() raises when the consumer is stopped, and inside a rebalance callback."""
    topic = new_topic()
    raised: list[TailraceError] = []

    class Listener:
        async def on_partitions_assigned(self, _partitions):
            with pytest.raises(ConsumerStateError, match="callback") as caught:
                await consumer.assigned()
            raised.append(caught.value)
            await asyncio.sleep(60)

    async with new_consumer(topic, group_id=group, rebalance_listener=Listener(), stop_timeout_ms=2_000) as consumer:
        waiting = asyncio.create_task(consumer.assigned())
        async with asyncio.timeout(20):
            while not raised:  # noqa: ASYNC110 - the callback sets no event
                await asyncio.sleep(0.01)
        assert not waiting.done()
        await consumer.stop()
        with pytest.raises(ConsumerStateError, match="stopped"):
            await waiting


# ---- topics, partitions, offsets -------------------------------------------------------------------------------------


async def test_topics_and_their_partitions_are_listed(new_topic, new_consumer, group):
    """topics() lists all topics, internal ones only with exclude_internal_topics=False.

    partitions_for_topic() returns the partitions of any topic, and raises for an unknown one.
    """
    mine, other = new_topic(3), new_topic()
    async with new_consumer(mine, group_id=group) as consumer:
        await consumer.assigned()
        await consumer.commit({TopicPartition(mine, 0): 0})
        found = await consumer.topics()
        assert {mine, other} <= found
        assert "__consumer_offsets" not in found
        assert await consumer.partitions_for_topic(mine) == {0, 1, 2}
        assert await consumer.partitions_for_topic(other) == {0}
        with pytest.raises(UnknownTopicError, match="missing-topic"):
            await consumer.partitions_for_topic("missing-topic")
    async with new_consumer(mine, exclude_internal_topics=False) as consumer:
        assert "__consumer_offsets" in await consumer.topics()


async def test_a_query_accepts_one_partition_or_several(new_topic, new_consumer, witness, group):
    """A query returns a value for one partition, and a mapping for an iterable or without arguments."""
    topic = new_topic(2)
    witness.fill(topic, 2, 5)
    first, second = (TopicPartition(topic, number) for number in range(2))
    both = {first: 5, second: 5}

    async with new_consumer(topic, group_id=group, enable_auto_commit=False) as consumer:
        await consumer.assigned()
        for query, value in ((consumer.position, 0), (consumer.beginning_offsets, 0), (consumer.end_offsets, 5)):
            assert await query(first) == value
            assert await query([first]) == {first: value}
            assert await query() == {first: value, second: value}
        assert await consumer.committed(first) is None
        assert await consumer.committed() == {}
        await consumer.commit(both)
        assert (await consumer.committed(second)).offset == 5
        assert {one: at.offset for one, at in (await consumer.committed()).items()} == both
        assert await consumer.seek({first: 2, second: 3}) == {first: 2, second: 3}
        assert await consumer.seek(first, 4) == 4
        assert await consumer.position() == {first: 4, second: 3}
        for wrong in ({first: -1}, {topic: 1}):
            with pytest.raises(ConfigurationError):
                await consumer.seek(wrong)
        with pytest.raises(ConfigurationError, match="either a mapping"):
            await consumer.seek({first: 1}, 2)


async def test_the_last_stable_offset_lies_before_an_open_transaction(new_topic, new_consumer, kafka_server):
    """last_stable_offset() is known after a fetch with read_committed, and None with read_uncommitted."""
    topic = new_topic()
    place = TopicPartition(topic, 0)
    servers = {"bootstrap.servers": kafka_server.bootstrap_servers}
    producer = Producer({**servers, "transactional.id": topic})
    producer.init_transactions(20)
    producer.begin_transaction()
    producer.produce(topic, b"0")
    producer.commit_transaction(20)
    producer.begin_transaction()
    producer.produce(topic, b"1")
    producer.flush(20)

    options = {"auto_offset_reset": "earliest"}
    async with (
        new_consumer(topic, isolation_level="read_committed", **options) as committed,
        new_consumer(topic, **options) as uncommitted,
    ):
        assert committed.last_stable_offset(place) is None
        await committed.getone()
        await uncommitted.getone()
        assert (committed.last_stable_offset(place), committed.highwater(place)) == (2, 3)
        assert uncommitted.last_stable_offset(place) is None
        assert committed.last_stable_offset(TopicPartition(topic, 9)) is None
    producer.abort_transaction(20)


@pytest.mark.parametrize("kind", ["CreateTime", "LogAppendTime"])
@pytest.mark.parametrize("codec", ["none", "zstd"])
async def test_a_record_has_its_timestamp_type(new_topic, new_consumer, witness, kind, codec):
    """timestamp_type is CreateTime or LogAppendTime, as the topic is configured."""
    topic = new_topic(message_timestamp_type=kind)
    witness.produce(topic, [b"%d" % n for n in range(3)], compression=codec)
    options = {"auto_offset_reset": "earliest", "value_deserializer": int}

    async with new_consumer(topic, **options) as consumer:
        records = await consumer.getmany(min_records=3)

    assert [(one.value, one.timestamp_type) for one in records] == [(n, kind) for n in range(3)]
    assert list(records[0].headers) == []


async def test_reader_processes_keep_the_type_of_timestamps(new_topic, kafka_server, witness, group):
    """Records of a ProcessPoolConsumer have a timestamp_type, too."""
    topic = new_topic(message_timestamp_type="LogAppendTime")
    witness.fill(topic, 1, 3)
    servers = kafka_server.bootstrap_servers

    async with ProcessPoolConsumer(topic, bootstrap_servers=servers, group_id=group) as consumer:
        record = await consumer.getone(timeout_ms=30_000)

    assert record is not None
    assert record.timestamp_type == "LogAppendTime"


# ---- commits of wrong offsets ----------------------------------------------------------------------------------------


async def test_a_commit_without_offsets_is_refused(new_topic, new_consumer, group):
    """commit() with an empty mapping raises an error that names the call for all delivered records."""
    async with new_consumer(new_topic(), group_id=group) as consumer:
        with pytest.raises(ConfigurationError, match=r"commit\(\) to commit all delivered records"):
            await consumer.commit({})


async def test_a_commit_for_a_partition_that_does_not_exist_is_an_error(new_topic, new_consumer, witness, group):
    """commit() with an unknown topic or partition raises in bounded time and commits nothing."""
    topic = new_topic()
    place = TopicPartition(topic, 0)
    async with new_consumer(topic, group_id=group, enable_auto_commit=False) as consumer:
        await consumer.assigned()
        began = time.monotonic()
        for wrong in (TopicPartition(topic, 7), TopicPartition("missing-topic", 0)):
            with pytest.raises(UnknownTopicError, match=wrong.topic):
                await consumer.commit({place: 0, wrong: 1})
        assert time.monotonic() - began < 15
        assert await witness.committed(group, topic, 1) == {}
        await consumer.commit({place: 0})
    assert await witness.committed(group, topic, 1) == {0: 0}


async def test_a_partition_created_since_the_last_refresh_may_be_committed(new_topic, new_consumer, witness, group):
    """commit() refreshes the metadata before it treats a partition as unknown."""
    topic = new_topic()
    async with new_consumer(topic, group_id=group, enable_auto_commit=False) as consumer:
        await consumer.assigned()
        for future in witness.admin.create_partitions([NewPartitions(topic, 2)]).values():
            future.result(20)
        await consumer.commit({TopicPartition(topic, 1): 0})
    assert await witness.committed(group, topic, 2) == {1: 0}
