"""Fetch options and the requests that they cause."""

from __future__ import annotations

import asyncio
from itertools import pairwise

import pytest
from msgspec.structs import replace

from tailrace import Consumer, ConsumerStateError, TopicPartition
from tailrace.error_codes import ErrorCode
from tailrace.observe.events import OffsetsCommitted
from tailrace.protocol.handshake import ApiVersionsRequest
from tailrace.protocol.metadata import MetadataRequest
from tailrace.protocol.records import FetchRequest
from tests.support.event_recorder import EventRecorder
from tests.support.simulation.cpu_time import cpu_time


def fetches(kafka, client):
    return [frame.message for frame in kafka.proxy.requests(FetchRequest, client_id=client)]


def asked_at(kafka, client):
    """Return the times at which fetches were sent."""
    return [frame.at for frame in kafka.proxy.requests(FetchRequest, client_id=client)]


async def test_fetch_options_are_fields_of_each_fetch(kafka, group):
    """fetch_min_bytes, fetch_max_wait_ms, fetch_max_bytes and max_partition_fetch_bytes are sent with each fetch."""
    topic = kafka.topic_with(10)
    options = {
        "fetch_min_bytes": 2,
        "fetch_max_wait_ms": 123,
        "fetch_max_bytes": 54_321,
        "max_partition_fetch_bytes": 12_345,
        "auto_offset_reset": "earliest",
    }

    async with kafka.consumer(topic, client_id=group, **options) as consumer:
        await consumer.getone()
    first = fetches(kafka, group)[0]

    assert (first.min_bytes, first.max_wait_ms) == (2, 123)
    assert first.max_bytes <= 54_321
    assert [one.partition_max_bytes for one in first.partitions] == [12_345]


async def test_a_response_is_no_larger_than_fetch_max_bytes(kafka, group):
    """Responses are limited by fetch_max_bytes for all partitions together, and exceed it by one batch at most."""
    topic = kafka.topic(4)
    for partition in range(4):
        kafka.produce(topic, (b"x" * 1_000 for _ in range(100)), partition=partition, batch_bytes=4_000)
    limits = {"fetch_max_bytes": 20_000, "max_partition_fetch_bytes": 15_000, "auto_offset_reset": "earliest"}

    async with kafka.consumer(topic, client_id=group, **limits) as consumer:
        got = [await consumer.getone() for _ in range(400)]
    answers = [frame.size for frame in kafka.proxy.answers(FetchRequest, client_id=group)]

    assert {record.partition for record in got} == set(range(4))
    assert {one.max_bytes for one in fetches(kafka, group)} == {20_000}
    assert 20_000 - 4_000 < max(answers) < 20_000 + 4_000 + 500


async def test_a_changed_leader_is_looked_up_with_backoff(kafka, group):
    """While a broker refuses fetches as NOT_LEADER_OR_FOLLOWER, metadata requests are retry_backoff_ms apart."""
    topic, pause_ms = kafka.topic_with(1), 200
    options = {"client_id": group, "retry_backoff_ms": pause_ms, "fetch_max_wait_ms": 100}

    def moved(answer):
        code = ErrorCode.NOT_LEADER_OR_FOLLOWER
        return replace(answer, partitions=tuple(replace(one, error_code=code) for one in answer.partitions))

    async with kafka.consumer(topic, auto_offset_reset="earliest", **options) as consumer:
        await consumer.getone()
        before = len(kafka.proxy.requests(MetadataRequest, client_id=group))
        with kafka.proxy.edit_answer(FetchRequest, moved, times=4) as refusal:
            kafka.produce(topic, [b"x"])
            assert (await consumer.getone(timeout_ms=20_000)).offset == 1
    asked = [frame.at for frame in kafka.proxy.requests(MetadataRequest, client_id=group)][before:]

    assert refusal.count == 4
    assert 2 <= len(asked) <= 4
    assert min(later - earlier for earlier, later in pairwise(asked)) >= 0.7 * pause_ms / 1000


async def test_the_broker_waits_for_fetch_min_bytes(kafka, group):
    """A broker answers a fetch when fetch_min_bytes are available, or after fetch_max_wait_ms."""
    topic = kafka.topic_with(10)
    patient = {"fetch_min_bytes": 1_000_000, "fetch_max_wait_ms": 800, "auto_offset_reset": "earliest"}

    async with kafka.consumer(topic, client_id=group, **patient) as consumer:
        await consumer.getone()
    took = kafka.proxy.answers(FetchRequest, client_id=group)[0].at - asked_at(kafka, group)[0]
    async with kafka.consumer(topic, auto_offset_reset="earliest", fetch_max_wait_ms=35_000) as consumer:
        quick = await consumer.getone(timeout_ms=15_000)

    assert took >= 0.75
    assert quick is not None


async def test_an_empty_topic_is_fetched_every_fetch_max_wait_ms(kafka, group):
    """Fetches of an empty topic are fetch_max_wait_ms apart."""
    topic = kafka.topic()

    async with kafka.consumer(topic, client_id=group, fetch_max_wait_ms=300) as consumer:
        async with asyncio.timeout(20):
            while len(asked_at(kafka, group)) < 4:
                assert await consumer.getone(timeout_ms=50) is None
    asked = asked_at(kafka, group)

    # The first fetch of a session is answered at once.
    assert min(later - earlier for earlier, later in pairwise(asked[1:])) >= 0.27


async def test_ways_of_reading_may_follow_one_another(kafka, group):
    """getone(), loops and getmany() may follow one another, and each record is delivered once and committed."""
    topics, events = [kafka.topic_with(40), kafka.topic_with(40)], EventRecorder()
    options = {"auto_commit_interval_ms": 100, "auto_offset_reset": "earliest", "hooks": [events]}

    async with kafka.consumer(*topics, group_id=group, max_queued_records=7, **options) as consumer:
        got = [await consumer.getone() for _ in range(10)]
        async for record in consumer:
            got.append(record)
            if len(got) >= 25:
                break
        got += await consumer.getmany(max_records=12)
        async for record in consumer:
            got.append(record)
            if len(got) >= 80:
                break
        consumer.ack(got[-1])
        for topic in topics:
            done = {TopicPartition(topic, 0): 40}.items()
            await events.wait_for(OffsetsCommitted, where=lambda event, done=done: done <= event.offsets.items())
        committed = [await kafka.committed(group, topic, 1) for topic in topics]

    assert committed == [{0: 40}, {0: 40}]
    assert {(record.topic, record.offset) for record in got} == {(topic, n) for topic in topics for n in range(40)}
    assert len(got) == 80


async def test_a_record_unpacks(kafka, group):
    """A record unpacks into topic, partition, offset, key and value."""
    topic = kafka.topic()
    kafka.produce(topic, [b"value", b""], keys=[b"", b"key"])

    async with kafka.consumer(topic, auto_offset_reset="earliest", client_id=group) as consumer:
        records = [tuple(await consumer.getone()) for _ in range(2)]

    assert records == [(topic, 0, 0, b"", b"value"), (topic, 0, 1, b"key", b"")]


async def test_nothing_is_sent_before_the_start(kafka, group):
    """Before start(), a consumer connects to no broker, and getone() raises."""
    topic = kafka.topic_with(1)
    consumer = kafka.consumer(topic, group_id=group, client_id=group)
    with pytest.raises(ConsumerStateError, match="not started"):
        await consumer.getone()
    await asyncio.sleep(0.2)
    before = kafka.proxy.requests(ApiVersionsRequest, client_id=group)
    await consumer.start()
    await consumer.getone()
    await consumer.stop()

    assert before == []
    assert kafka.proxy.requests(ApiVersionsRequest, client_id=group)
    assert kafka.proxy.requests(MetadataRequest, client_id=group)


async def test_large_fetches_do_not_block_the_event_loop(kafka, group):
    """While 30 MB are read, no turn of the event loop takes 50 ms of its thread's CPU time."""
    topic, turns = kafka.topic(), []
    kafka.produce(topic, (bytes(10_000) for _ in range(3_000)))

    async def tick(own_s):
        while True:
            # CPU time of the thread: other processes' time does not count.
            before = own_s()
            await asyncio.sleep(0)
            turns.append(own_s() - before)

    async with kafka.consumer(topic, auto_offset_reset="earliest", client_id=group) as consumer:
        with cpu_time() as own_s:
            ticking = asyncio.create_task(tick(own_s))
            for _ in range(3_000):
                await consumer.getone()
            ticking.cancel()

    assert len(turns) > 20
    assert max(turns) < 0.05


@pytest.mark.parametrize("with_group", [True, False])
async def test_a_pattern_excludes_internal_topics(kafka, group, with_group):
    """A pattern excludes internal topics unless exclude_internal_topics=False, and a name may subscribe to one."""
    topic = kafka.topic_with(1)
    await kafka.commit(f"{group}-other", topic, 1, "")  # creates __consumer_offsets
    options = {"auto_offset_reset": "earliest", **({"group_id": group} if with_group else {})}

    async def topics_of(*names, **more):
        async with kafka.consumer(*names, **options, **more) as consumer:
            await consumer.getone()
            return set(consumer.subscription()), {one.topic for one in consumer.assignment()}

    pattern = f"({topic}|__consumer_offsets)"
    hidden, _ = await topics_of(pattern=pattern)
    shown, owned = await topics_of(pattern=pattern, exclude_internal_topics=False)
    named, _ = await topics_of("__consumer_offsets")

    assert hidden == {topic}
    assert shown == owned == {topic, "__consumer_offsets"}
    assert named == {"__consumer_offsets"}


async def test_highwater_comes_from_fetches(kafka, group):
    """highwater() returns the high watermark of the last fetch, and None for a partition that was not fetched."""
    topic = kafka.topic_with(10)
    partition = TopicPartition(topic, 0)

    async with kafka.consumer(topic, auto_offset_reset="earliest", client_id=group) as consumer:
        await consumer.getone()
        first = consumer.highwater(partition)
        kafka.produce(topic, [b"x"] * 5)
        for _ in range(14):
            await consumer.getone()
        last, other = consumer.highwater(partition), consumer.highwater(TopicPartition("other", 0))

    assert (first, last, other) == (10, 15, None)


def test_topics_are_positional_arguments():
    """A consumer accepts topics as positional arguments and options by name."""
    consumer = Consumer("orders", "bills", bootstrap_servers="localhost:9092", group_id="billing")

    assert consumer.subscription() == {"orders", "bills"}
    assert "group=billing" in repr(consumer)
