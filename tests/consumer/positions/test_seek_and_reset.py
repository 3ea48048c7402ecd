"""Seek and offset reset: by offset, from either end, by time, by policy."""

from __future__ import annotations

import asyncio
import datetime as dt
import time
from functools import partial

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import NewPartitions
from msgspec.structs import replace

from tailrace import (
    ConfigurationError,
    ConsumerStateError,
    OffsetOutOfRangeError,
    RequestTimedOutError,
    SharedCluster,
    TopicPartition,
    UnknownTopicError,
)
from tailrace.observe.events import OffsetReset, OffsetsCommitted
from tailrace.protocol.records import FetchRequest, ListOffsetsRequest
from tests.support.consumer_group import until
from tests.support.event_recorder import EventRecorder

NOON = 1_700_000_000_000


@pytest.fixture
def stamped(kafka_server, new_topic):
    """Return a function that creates topics of records a second apart, and deletes the first ``gone`` ones."""

    def make(count: int = 100, *, partitions: int = 1, gone: int = 0) -> str:
        topic = new_topic(partitions)
        producer = Producer({"bootstrap.servers": kafka_server.bootstrap_servers})
        for partition in range(partitions):
            for n in range(count):
                producer.produce(topic, b"%d" % n, partition=partition, timestamp=NOON + 1_000 * n)
        assert producer.flush(20) == 0
        if gone:
            cut(kafka_server, topic, partitions, gone)
        return topic

    return make


def cut(server, topic: str, partitions: int, before: int) -> None:
    """Delete the records below an offset."""
    from confluent_kafka import TopicPartition as Place  # noqa: PLC0415 - the one use
    from confluent_kafka.admin import AdminClient  # noqa: PLC0415 - the one use

    admin = AdminClient({"bootstrap.servers": server.bootstrap_servers})
    for done in admin.delete_records([Place(topic, number, before) for number in range(partitions)]).values():
        done.result(20)


async def test_seek_counts_from_either_end_and_from_the_position(stamped, new_consumer, group):
    """seek() counts from the beginning, the position or the end, and the result stays within the log."""
    topic = stamped(gone=10)
    place = TopicPartition(topic, 0)

    async with new_consumer(topic, group_id=group) as consumer:
        await consumer.getone()
        assert await consumer.seek(place, 5, whence="earliest") == 15
        assert (await consumer.getone()).offset == 15
        assert await consumer.seek(place, 20) == 20
        assert await consumer.seek(place, -5, whence="current") == 15
        assert (await consumer.getone()).offset == 15
        assert await consumer.seek(place, -10, whence="latest") == 90
        assert (await consumer.getone()).offset == 90
        assert await consumer.seek(place, -500, whence="current") == 10
        assert await consumer.seek(place, 500, whence="earliest") == 100


async def test_a_seek_may_be_spread_over_partitions(stamped, new_consumer, group):
    """seek(spread=True) divides a number of records evenly among partitions."""
    topic = stamped(partitions=4)
    places = [TopicPartition(topic, number) for number in range(4)]

    async with new_consumer(topic, group_id=group) as consumer:
        await consumer.getone()
        forward = await consumer.seek(places, 10, whence="earliest", spread=True)
        back = await consumer.seek(consumer.assignment(), -10, whence="latest", spread=True)

        with pytest.raises(ConfigurationError, match="spread=True needs whence"):
            await consumer.seek(places, 10, spread=True)
        with pytest.raises(ConfigurationError, match="whence='middle'"):
            await consumer.seek(places, 10, whence="middle")

    assert [forward[place] for place in places] == [3, 3, 2, 2]
    assert [back[place] for place in places] == [97, 97, 98, 98]


async def test_partitions_are_sought_to_either_end_and_to_a_time(stamped, new_consumer, group):
    """seek_to_beginning(), seek_to_end() and seek_to_time() move all assigned partitions, or the given ones."""
    topic = stamped(partitions=2, gone=10)
    first, second = TopicPartition(topic, 0), TopicPartition(topic, 1)
    middle = dt.datetime.fromtimestamp((NOON + 49_500) / 1000, dt.UTC)

    async with new_consumer(topic, group_id=group) as consumer:
        await consumer.getone()
        assert await consumer.seek_to_end() == {first: 100, second: 100}
        assert await consumer.getone(timeout_ms=200) is None
        assert await consumer.seek_to_beginning(first) == {first: 10}
        assert (await consumer.getone()).offset == 10
        assert await consumer.seek_to_time(NOON + 20_000, second) == {second: 20}
        assert await consumer.seek_to_time(middle) == {first: 50, second: 50}
        assert await consumer.seek_to_time(dt.timedelta(days=1)) == {first: 100, second: 100}
        began = time.time()
        old = dt.timedelta(milliseconds=int(began * 1000) - NOON - 30_500)
        found = (await consumer.seek_to_time(old, first))[first]
        assert 31 <= found <= 32 + time.time() - began

        with pytest.raises(ConfigurationError, match="a time must be"):
            await consumer.seek_to_time(dt.datetime(2026, 1, 1))  # noqa: DTZ001 - naive times are refused
        with pytest.raises(ConsumerStateError, match="not assigned"):
            await consumer.seek_to_end(TopicPartition(topic, 7))


async def test_a_seek_discards_the_fetch_in_flight_and_is_committed(witness_of, group):
    """A seek discards the response to a fetch in flight, and the new position is committed."""
    topic, events = witness_of.topic(), EventRecorder()
    witness_of.produce(topic, (b"x" * 100 for _ in range(1_000)), batch_bytes=2_000)
    place = TopicPartition(topic, 0)
    options = {"auto_commit_interval_ms": 100, "max_partition_fetch_bytes": 4_000, "hooks": [events]}

    async with witness_of.consumer(topic, group_id=group, **options) as consumer:
        with witness_of.proxy.hold_answer(FetchRequest, skip=2) as held:
            await consumer.getone()
            await held.wait_applied()
            await consumer.seek(place, 500)
            await events.wait_for(OffsetsCommitted, where=lambda one: one.offsets == {place: 500})
            assert await witness_of.committed(group, topic, 1) == {0: 500}
            held.release()
        assert [(await consumer.getone()).offset for _ in range(120)] == list(range(500, 620))
        await consumer.seek_to_beginning()

    assert await witness_of.committed(group, topic, 1) == {0: 0}


async def test_a_seek_with_a_silent_leader_times_out(witness_of, group):
    """If the leader does not answer, seek_to_end() raises after default_api_timeout_ms and stays in effect."""
    topic = witness_of.topic_with(10)

    async with witness_of.consumer(topic, group_id=group, default_api_timeout_ms=2_000) as consumer:
        await consumer.getone()
        with witness_of.proxy.hold_answer(ListOffsetsRequest) as held:
            with pytest.raises(RequestTimedOutError, match="no position"):
                await consumer.seek_to_end()
            held.release()
        witness_of.produce(topic, [b"behind the end"])
        assert (await consumer.getone(timeout_ms=20_000)).offset == 10


async def test_offsets_of_any_partition_can_be_queried(stamped, new_consumer):
    """Offsets of both ends and of a time can be queried for partitions that are not assigned."""
    topic, other = stamped(gone=10), stamped()
    place, beside = TopicPartition(topic, 0), TopicPartition(other, 0)

    async with new_consumer(topic) as consumer:
        assert await consumer.beginning_offsets([place, beside]) == {place: 10, beside: 0}
        assert await consumer.end_offsets([place]) == {place: 100}
        found = await consumer.offsets_for_times({place: NOON + 49_500, beside: NOON + 1_000_000})
        nothing = await consumer.end_offsets([])

        with pytest.raises(UnknownTopicError, match="numbered from 0"):
            await consumer.end_offsets([TopicPartition(topic, 1)])
        with pytest.raises(ConfigurationError, match="a partition must be a TopicPartition"):
            await consumer.beginning_offsets([topic])

    assert (found[place].offset, found[place].timestamp) == (50, NOON + 50_000)
    assert (found[beside], nothing) == (None, {})


async def test_offset_queries_follow_a_changed_leader(witness_of):
    """A query that a former leader refuses is sent to the new one, also of a topic that is not read."""
    topic, other = witness_of.topic(), witness_of.topic_with(5)
    place = TopicPartition(other, 0)

    def moved(answer):
        return replace(answer, partitions=tuple(replace(one, error_code=6) for one in answer.partitions))

    async with witness_of.consumer(topic, default_api_timeout_ms=20_000) as consumer:
        await consumer.position(TopicPartition(topic, 0))
        with witness_of.proxy.edit_answer(ListOffsetsRequest, moved):
            assert await consumer.end_offsets([place]) == {place: 5}


async def test_offset_queries_of_an_unknown_topic_raise(new_topic, new_consumer):
    """A query of an unknown topic raises UnknownTopicError in bounded time."""
    async with new_consumer(new_topic(), default_api_timeout_ms=1_000) as consumer:
        async with asyncio.timeout(20):
            with pytest.raises(UnknownTopicError):
                await consumer.end_offsets([TopicPartition("nobody-has-this", 0)])


@pytest.mark.parametrize(
    ("reset", "first"),
    [
        ("earliest", 10),
        ("latest", 100),
        (NOON + 49_500, 50),
        (dt.datetime.fromtimestamp((NOON + 70_000) / 1000, dt.UTC), 70),
        ("2023-11-14T22:14:00Z", 40),
        (dt.timedelta(hours=1), 100),
        ("PT1H", 100),
    ],
)
async def test_auto_offset_reset_determines_the_start(stamped, new_consumer, group, reset, first):
    """auto_offset_reset is either end, a time, or a duration before now; a time after all records is the end."""
    topic = stamped(gone=10)

    async with new_consumer(topic, group_id=group, auto_offset_reset=reset) as consumer:
        await until(lambda: bool(consumer.assignment()))
        position = await consumer.position(TopicPartition(topic, 0))
        record = await consumer.getone() if first < 100 else None

    assert position == first
    assert record is None or record.offset == first


@pytest.mark.parametrize(("reset", "goes_on", "lost"), [("earliest", 50, 40), ("latest", 100, 90)])
async def test_a_position_out_of_range_is_reset_by_policy(
    stamped, new_consumer, witness, group, *, reset, goes_on, lost
):
    """A position before the beginning of the log is reset, and an event counts the lost records."""
    topic, events = stamped(), EventRecorder()
    await witness.commit(group, topic, 10, "")
    cut(witness, topic, 1, 50)

    async with new_consumer(topic, group_id=group, auto_offset_reset=reset, hooks=[events]) as consumer:
        reading = asyncio.create_task(consumer.getone(timeout_ms=10_000))
        event = await events.wait_for(OffsetReset)
        assert await consumer.position(TopicPartition(topic, 0)) in {goes_on, goes_on + 1}
        reading.cancel()
        await asyncio.gather(reading, return_exceptions=True)

    assert (event.before, event.after, event.lost, event.policy) == (10, goes_on, lost, reset)


async def test_a_seek_in_any_turn_after_the_assignment_counts(stamped, new_consumer):
    """A seek applies in any turn of the event loop after assign()."""
    place = TopicPartition(stamped(10), 0)

    for turns in range(8):
        async with new_consumer(auto_offset_reset="earliest") as consumer:
            await consumer.assign(place)
            for _ in range(turns):
                await asyncio.sleep(0)
            await consumer.seek(place, 5)
            assert (await consumer.getone()).offset == 5


async def test_a_position_out_of_range_raises_with_policy_none(stamped, new_consumer, witness, group, kafka_server):
    """With auto_offset_reset="none", a position out of range raises in each call until a seek."""
    topic = stamped()
    await witness.commit(group, topic, 10, "")
    cut(kafka_server, topic, 1, 50)

    async with new_consumer(topic, group_id=group, auto_offset_reset="none") as consumer:
        for _ in range(2):
            with pytest.raises(OffsetOutOfRangeError) as caught:
                await consumer.getone(timeout_ms=10_000)
        for ask in (partial(consumer.position, TopicPartition(topic, 0)), consumer.lag):
            with pytest.raises(OffsetOutOfRangeError, match="offset 10 is outside"):
                await asyncio.wait_for(ask(), 20)
        await consumer.seek_to_beginning()
        record = await consumer.getone(timeout_ms=10_000)

    assert (caught.value.topic, caught.value.partition, caught.value.offset) == (topic, 0, 10)
    assert record.offset == 50


async def test_reset_offset_on_start_ignores_committed_offsets_once(stamped, new_consumer, witness, group):
    """reset_offset_on_start ignores the committed offset at the start, and not in later rebalances."""
    topic = stamped(partitions=2)
    for partition in range(2):
        await witness.commit(group, topic, 70, "", partition)
    options = {"group_id": group, "heartbeat_interval_ms": 200}

    async with new_consumer(topic, reset_offset_on_start=True, **options) as consumer:
        first = [await consumer.getone() for _ in range(200)]
        consumer.ack(first[-1])
        async with new_consumer(topic, **options) as second:
            await until(lambda: len(consumer.assignment()) == len(second.assignment()) == 1)
            (moved,) = second.assignment()
        await until(lambda: len(consumer.assignment()) == 2)
        witness.produce(topic, [b"new"], partition=moved.partition)
        record = await consumer.getone()

    assert {(one.partition, one.offset) for one in first} == {(number, n) for number in range(2) for n in range(100)}
    assert (record.topic_partition, record.offset) == (moved, 100)
    with pytest.raises(ConfigurationError, match="reset_offset_on_start"):
        new_consumer(topic, reset_offset_on_start=True)


async def test_reset_offset_on_start_does_not_apply_to_a_later_subscription(stamped, new_consumer, group):
    """After unsubscribe() and subscribe(), a consumer with reset_offset_on_start continues at its positions."""
    topic = stamped()

    async with new_consumer(topic, group_id=group, reset_offset_on_start=True) as consumer, asyncio.timeout(40):
        records = [await consumer.getone() for _ in range(6)]
        await consumer.unsubscribe()
        await consumer.subscribe(topic)
        records.append(await consumer.getone())

    assert [record.offset for record in records] == [0, 1, 2, 3, 4, 5, 5]


async def test_reset_offset_on_start_commits_before_the_first_record(stamped, new_consumer, witness, group):
    """reset_offset_on_start commits the start offset before the first record is read."""
    topic, events = stamped(), EventRecorder()
    await witness.commit(group, topic, 70, "")

    async with new_consumer(topic, group_id=group, reset_offset_on_start=True, hooks=[events]) as consumer:
        await events.wait_for(OffsetsCommitted)
        assert await witness.committed(group, topic, 1) == {0: 0}
        assert (await consumer.getone(timeout_ms=20_000)).offset == 0


async def test_partitions_added_later_are_read_from_their_first_record(
    kafka_server, new_topic, new_consumer, witness, group
):
    """With auto_offset_reset="latest", a partition that is added later is read from its first record."""
    topic = new_topic(1)
    options = {"auto_offset_reset": "latest", "metadata_max_age_ms": 1_000}

    async with new_consumer(topic, group_id=group, **options) as member, new_consumer(topic, **options) as alone:
        await until(lambda: bool(member.assignment()))
        assert [await one.position(TopicPartition(topic, 0)) for one in (member, alone)] == [0, 0]
        kafka_server.add_partitions(topic, 2)
        witness.produce(topic, [b"early"], partition=1)
        found = [await one.getone(timeout_ms=30_000) for one in (member, alone)]

    assert [(record.partition, record.offset) for record in found] == [(1, 0), (1, 0)]


async def test_partitions_added_before_a_subscription_start_at_the_policy(
    kafka_server, new_topic, new_consumer, witness
):
    """A partition added before a consumer subscribed starts at "latest", although another consumer read it before."""
    topic, other = new_topic(), new_topic()
    options = {"bootstrap_servers": kafka_server.bootstrap_servers, "metadata_max_age_ms": 300}

    async with (
        SharedCluster(**options) as cluster,
        new_consumer(topic, cluster=cluster) as one,
        new_consumer(other, cluster=cluster) as two,
        asyncio.timeout(40),
    ):
        grown = witness.admin.create_partitions([NewPartitions(topic, 2)])
        await asyncio.to_thread(grown[topic].result, 20)
        await until(lambda: len(one.assignment()) == 2)
        witness.produce(topic, [b"0"], partition=1)
        await two.subscribe(topic)

        assert await two.position(TopicPartition(topic, 1)) == 1
