"""Manual assignment, positions and lag."""

from __future__ import annotations

import asyncio
import copy
import pickle
import time

import pytest

from tailrace import (
    CommitFailedError,
    ConfigurationError,
    ConsumerStateError,
    ConsumerTimeoutError,
    TopicPartition,
    UnknownPartitionError,
    UnknownTopicError,
)
from tailrace.protocol.groups import JoinGroupRequest
from tailrace.protocol.records import FetchRequest
from tests.support.consumer_group import until

EARLIEST = {"auto_offset_reset": "earliest"}


async def read(consumer, count):
    return [await consumer.getone() for _ in range(count)]


def places(records):
    return sorted((record.topic, record.partition, record.offset) for record in records)


# ---- assign -------------------------------------------------------------------------------------------------------


async def test_partitions_can_be_named_in_every_form(kafka):
    """assign() accepts a name, pairs, triples, mappings to partitions or offsets, and a mix of them."""
    a, b = kafka.topic_with(5, partitions=3), kafka.topic_with(5, partitions=2)
    everything = {(a, 0), (a, 1), (a, 2)}
    forms = [
        ((a,), everything, 0),
        (((a, 1),), {(a, 1)}, 0),
        (({a: 2},), {(a, 2)}, 0),
        (({a: [0, 2]},), {(a, 0), (a, 2)}, 0),
        (({a: (0, 2)},), {(a, 0), (a, 2)}, 0),
        (((a, 1, 3),), {(a, 1)}, 3),
        (({(a, 1): 3},), {(a, 1)}, 3),
        ((a, (b, 1)), {*everything, (b, 1)}, 0),
    ]

    async with kafka.consumer(a, fetch_max_wait_ms=100, **EARLIEST) as consumer:
        await consumer.unsubscribe()
        for given, partitions, offset in forms:
            await consumer.assign(*given)
            records = await read(consumer, len(partitions) * (5 - offset))
            assert consumer.assignment() == {TopicPartition(*one) for one in partitions}
            assert places(records) == sorted((*one, n) for one in partitions for n in range(offset, 5))


async def test_an_assignment_replaces_the_one_before(kafka):
    """assign() discards fetched records of the former partitions, and changes nothing if it raises."""
    a, b = kafka.topic_with(50), kafka.topic_with(5)

    async with kafka.consumer(a, default_api_timeout_ms=1_000, **EARLIEST) as consumer:
        await consumer.unsubscribe()
        with pytest.raises(ConsumerStateError, match="reads nothing yet"):
            await consumer.getone()
        await consumer.assign(a)
        await read(consumer, 3)
        await consumer.assign((b, 0, 2))
        records = await read(consumer, 3)
        for wrong, error in (
            (5, ConfigurationError),
            (("no-such-topic", 0), UnknownTopicError),
            ((b, 7), UnknownPartitionError),
        ):
            with pytest.raises(error):
                await consumer.assign(wrong)
        still = consumer.assignment()

    assert places(records) == [(b, 0, 2), (b, 0, 3), (b, 0, 4)]
    assert still == {TopicPartition(b, 0)}


async def test_only_assigned_partitions_are_fetched(kafka, group):
    """With assign(), only the assigned partitions are fetched, and no group is joined."""
    topic = kafka.topic_with(5, partitions=3)

    async with kafka.consumer(topic, client_id=group, **EARLIEST) as consumer:
        await consumer.unsubscribe()
        before = len(kafka.proxy.requests(FetchRequest, client_id=group))
        await consumer.assign((topic, 2))
        records = await read(consumer, 5)
    asked = [frame.message for frame in kafka.proxy.requests(FetchRequest, client_id=group)][before:]

    assert {record.partition for record in records} == {2}
    assert {one.partition for fetch in asked[1:] for one in fetch.partitions} <= {2}
    assert kafka.proxy.requests(JoinGroupRequest, client_id=group) == []


async def test_assign_with_a_group_only_stores_offsets(kafka, group):
    """With assign(), offsets are committed for a group without members, and refused for one with members."""
    topic = kafka.topic_with(10)

    async def assigned(count):
        async with kafka.consumer(topic, group_id=group, client_id=f"{group}-a", **EARLIEST) as consumer:
            await consumer.unsubscribe()
            await consumer.assign(topic)
            records = await read(consumer, count)
            await consumer.commit()
            return [record.offset for record in records], await kafka.members(group)

    first, members = await assigned(4)
    second, _ = await assigned(2)
    assert (first, second, members) == ([0, 1, 2, 3], [4, 5], {})
    assert await kafka.committed(group, topic, 1) == {0: 6}
    async with kafka.consumer(topic, group_id=group) as member:
        await member.getone()
        with pytest.raises(CommitFailedError):
            await assigned(1)


async def test_assign_reads_committed_offsets_again(kafka, group):
    """assign(at="committed") starts at the offset that another client has committed meanwhile."""
    topic = kafka.topic_with(20)

    async with kafka.consumer(topic, group_id=group, enable_auto_commit=False, **EARLIEST) as consumer:
        await consumer.unsubscribe()
        await consumer.assign(topic)
        await read(consumer, 3)
        await kafka.commit(group, topic, 15, "")
        await consumer.assign(topic, at="committed")
        record = await consumer.getone()

    assert record.offset == 15


async def test_a_larger_subscription_joins_once(kafka, group):
    """subscribe() with an additional topic sends one join, and the other topic continues at its position."""
    a, b = kafka.topic_with(5), kafka.topic_with(5)

    async with kafka.consumer(a, group_id=group, client_id=group, heartbeat_interval_ms=100) as consumer:
        await read(consumer, 5)
        joins = len(kafka.proxy.requests(JoinGroupRequest, client_id=group))
        await consumer.subscribe(a, b)
        records = await read(consumer, 5)
        kafka.produce(a, [b"5"])
        more = await consumer.getone()
        after = len(kafka.proxy.requests(JoinGroupRequest, client_id=group))

    assert places(records) == [(b, 0, n) for n in range(5)]
    assert (more.topic, more.offset) == (a, 5)
    assert after == joins + 1


# ---- offsets and lag ----------------------------------------------------------------------------------------------


async def test_offsets_are_returned_by_kind(kafka, group):
    """offsets() returns a copy of each kind of offset, and an unknown kind raises."""
    topic = kafka.topic_with(30)
    place = TopicPartition(topic, 0)

    async with kafka.consumer(topic, group_id=group, ack="manual", auto_commit_interval_ms=None) as consumer:
        records = await consumer.getmany(max_records=10)
        while len(records) < 10:
            records += await consumer.getmany(max_records=10 - len(records))
        for record in records[:6]:
            consumer.ack(record)
        await consumer.commit()
        found = consumer.offsets()
        kinds = [consumer.offsets(kind)[place] for kind in ("fetch", "highwater", "commit", "done")]
        found.fetch[place] = 999
        again = consumer.offsets("fetch")[place]
        with pytest.raises(ConfigurationError, match=r"kind must be one of .*, not 'task_done'"):
            consumer.offsets("task_done")

    assert kinds == [10, 30, 6, 6]
    assert again == 10


async def test_offsets_are_a_tuple_of_four(kafka):
    """The result of offsets() is a tuple with named fields that can be pickled and copied."""
    topic = kafka.topic_with(5)

    async with kafka.consumer(topic, **EARLIEST) as consumer:
        await read(consumer, 2)
        found = consumer.offsets()

    fetch, highwater, commit, done = found
    assert (fetch, highwater, commit, done) == (found.fetch, found.highwater, found.commit, found.done)
    assert pickle.loads(pickle.dumps(found)) == found == copy.deepcopy(found)
    assert repr(found).startswith("ConsumerOffsets(fetch={")


async def test_assignment_and_positions_agree_with_the_broker(kafka, group):
    """assignment() agrees with the broker's, and each position is after the last record."""
    topic = kafka.topic_with(4, partitions=3)

    async with kafka.consumer(topic, group_id=group) as consumer:
        records = await read(consumer, 12)
        owned, members = consumer.assignment(), await kafka.members(group)
        held = consumer.offsets("fetch")

    assert [owned] == list(members.values())
    assert held == dict.fromkeys(owned, 4)
    assert len(records) == 12


async def test_lag_counts_unread_records(kafka, group):
    """lag() counts the records that are not read yet, of all partitions or of some."""
    topic = kafka.topic_with(50, partitions=2)

    async with kafka.consumer(topic, group_id=group) as consumer:
        await read(consumer, 30)
        lag = await consumer.lag()
        one = TopicPartition(topic, 0)
        part = await consumer.lag(one)

    assert (lag.total, sum(lag.partitions.values())) == (70, 70)
    assert part.partitions == {one: lag.partitions[one]}


async def test_beginning_and_end_offsets_are_those_of_the_log(kafka):
    """beginning_offsets() and end_offsets() return the ends of the log after records were deleted."""
    from confluent_kafka import TopicPartition as Place  # noqa: PLC0415 - the one use

    topic = kafka.topic_with(100)
    place = TopicPartition(topic, 0)
    deleted = kafka.admin.delete_records([Place(topic, 0, 10)])
    await asyncio.to_thread(next(iter(deleted.values())).result, 20)

    async with kafka.consumer(topic, **EARLIEST) as consumer:
        first = await consumer.beginning_offsets([place])
        end = await consumer.end_offsets([place])

    assert [end[place], first[place]] == [100, 10]


# ---- timeouts -----------------------------------------------------------------------------------------------------


async def test_consumer_timeout_ms_raises_or_ends_the_loop(kafka):
    """consumer_timeout_ms raises in calls and loops, or ends the loop with when_timed_out="stop"."""
    topic = kafka.topic()

    async with kafka.consumer(topic, consumer_timeout_ms=200) as consumer:
        began = time.monotonic()
        with pytest.raises(ConsumerTimeoutError):
            await consumer.getone()
        with pytest.raises(ConsumerTimeoutError):
            async for _ in consumer:
                pass
        took = time.monotonic() - began
        kafka.produce(topic, [b"x"])
        assert (await consumer.getone(timeout_ms=10_000)).value == b"x"
    async with kafka.consumer(topic, consumer_timeout_ms=500, when_timed_out="stop") as consumer:
        seen = [record async for record in consumer]

    assert took >= 0.35
    assert seen == []


async def test_getmany_waits_for_min_records_until_its_timeout(kafka):
    """getmany() waits for min_records until its timeout, and returns buffered records at once with timeout 0."""
    topic = kafka.topic_with(4)

    async with kafka.consumer(topic, **EARLIEST) as consumer:
        await consumer.getone()  # the others are in the same batch
        began = time.monotonic()
        waited = await consumer.getmany(max_records=5, min_records=5, timeout_ms=700)
        took = time.monotonic() - began
        nothing = await consumer.getmany(timeout_ms=0)
        await consumer.seek(TopicPartition(topic, 0), 1)
        async with asyncio.timeout(20):
            while not (there := await consumer.getmany(max_records=5, timeout_ms=0)):  # noqa: ASYNC110 - a program that polls
                await asyncio.sleep(0.05)
        await consumer.seek(TopicPartition(topic, 0), 1)
        waiting = asyncio.create_task(consumer.getmany(max_records=5, min_records=5))
        done, _ = await asyncio.wait({waiting}, timeout=0.3)
        kafka.produce(topic, [b"4", b"5"])
        every = await asyncio.wait_for(waiting, 20)

    assert (len(waited), nothing, len(there), done, len(every)) == (3, [], 3, set(), 5)
    assert took >= 0.6


async def test_batches_yields_lists_of_at_most_max_records(kafka):
    """batches() yields lists of at most max_records records in order."""
    topic = kafka.topic_with(20)

    async with kafka.consumer(topic, **EARLIEST) as consumer:
        got: list[int] = []
        async for batch in consumer.batches(max_records=6):
            assert 1 <= len(batch) <= 6
            got += [record.offset for record in batch]
            if len(got) == 20:
                break

    assert got == list(range(20))


async def test_streams_separate_topics(kafka):
    """Reading the streams of one topic does not change the position of another."""
    a, b = kafka.topic_with(5), kafka.topic_with(5)

    async with kafka.consumer(a, b, **EARLIEST) as consumer:
        streams = {}
        async for partition, stream in consumer.streams():
            streams[partition.topic] = stream
            if len(streams) == 2:
                break
        records = [await anext(streams[a]) for _ in range(5)]
        other = await consumer.position(TopicPartition(b, 0))

    assert places(records) == [(a, 0, n) for n in range(5)]
    assert other == 0


async def test_reconfigure_changes_a_running_consumer(kafka, group):
    """reconfigure() changes the options of the next fetches, and changes nothing if one is invalid."""
    topic = kafka.topic()

    def fetches():
        return [frame.message for frame in kafka.proxy.requests(FetchRequest, client_id=group)]

    async def waits_until(value):
        async with asyncio.timeout(20):
            while fetches()[-1].max_wait_ms != value:
                await consumer.getone(timeout_ms=50)
        return fetches()[-1]

    async with kafka.consumer(topic, client_id=group, fetch_max_wait_ms=100) as consumer:
        await until(lambda: bool(fetches()))
        await consumer.reconfigure(fetch_max_wait_ms=250, fetch_min_bytes=0)
        inside = await waits_until(250)
        await consumer.reconfigure(fetch_max_wait_ms=100, fetch_min_bytes=1)
        outside = await waits_until(100)
        with pytest.raises(ConfigurationError):
            await consumer.reconfigure(fetch_max_wait_ms=333, no_such_option=1)
        with pytest.raises(ConfigurationError, match="cannot be changed while a consumer runs"):
            await consumer.reconfigure(fetch_max_wait_ms=333, group_id="other")

    assert (inside.min_bytes, outside.min_bytes, outside.max_wait_ms) == (0, 1, 100)
