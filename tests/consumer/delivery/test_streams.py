"""Streams: each partition is read and acknowledged on its own, until it is revoked."""

from __future__ import annotations

import asyncio
from collections import defaultdict

import pytest

from tailrace import ConfigurationError, ConsumerStateError, ConsumerTimeoutError, TopicPartition
from tests.support.consumer_group import until


@pytest.fixture
def filled(new_topic, witness):
    """Return a function that creates topics with ``count`` records in each partition."""

    def make(partitions: int = 1, count: int = 1_000) -> str:
        topic = new_topic(partitions)
        for partition in range(partitions):
            witness.produce(topic, (b"%d" % n for n in range(count)), partition=partition)
        return topic

    return make


async def test_each_partition_has_a_stream_of_its_own(filled, new_consumer, witness, group):
    """If one task reads the stream of each partition, every record is delivered once, in order, and committed."""
    topic = filled(4)
    got: dict[TopicPartition, list[int]] = defaultdict(list)
    all_read = asyncio.Event()

    async def read(partition, stream) -> None:
        async for record in stream:
            assert record.topic_partition == partition == stream.partition
            got[partition].append(record.offset)
            if sum(map(len, got.values())) == 4_000:
                all_read.set()

    async with new_consumer(topic, group_id=group) as consumer, asyncio.TaskGroup() as tasks:

        async def begin() -> None:
            async for partition, stream in consumer.streams():
                tasks.create_task(read(partition, stream))

        tasks.create_task(begin())
        async with asyncio.timeout(30):
            await all_read.wait()
        await asyncio.sleep(0)  # the next poll of each stream finishes its last record
        await consumer.stop()

    assert got == {TopicPartition(topic, number): list(range(1_000)) for number in range(4)}
    assert await witness.committed(group, topic, 4) == dict.fromkeys(range(4), 1_000)


async def test_a_slow_stream_delays_no_other_stream(filled, new_consumer, witness, group):
    """While a task handles a record of one stream, another stream is read to its end."""
    topic = filled(2)
    done = asyncio.Event()

    async with new_consumer(topic, group_id=group) as consumer:

        async def read(stream) -> None:
            async for record in stream:
                if stream.partition.partition == 0 and record.offset == 3:
                    await asyncio.Event().wait()
                if stream.partition.partition == 1 and record.offset == 999:
                    assert stream.ack(record)
                    assert not stream.ack(record)
                    done.set()

        streams = aiter(consumer.streams())
        reading = [asyncio.create_task(read((await anext(streams))[1])) for _ in range(2)]
        async with asyncio.timeout(30):
            await done.wait()
        await consumer.commit()
        for task in reading:
            task.cancel()
        await asyncio.gather(*reading, return_exceptions=True)

    assert await witness.committed(group, topic, 2) == {0: 3, 1: 1_000}


async def test_a_stream_ends_when_its_partition_is_revoked(filled, new_consumer, witness, group):
    """The stream of a revoked partition ends, and the partition's next owner loses and repeats no record.

    The reader slows down until the partition is revoked, so that records are left for the other member.
    """
    topic = filled(2)
    options = {"group_id": group, "heartbeat_interval_ms": 200}
    got: list[tuple[int, int]] = []
    ended: list[TopicPartition] = []
    some = asyncio.Event()

    async def read(stream) -> None:
        async for record in stream:
            got.append((record.partition, record.offset))
            if len(got) > 200:
                some.set()
            await asyncio.sleep(0.05 if some.is_set() and not ended else 0)
        ended.append(stream.partition)

    async with new_consumer(topic, **options) as consumer:
        streams = aiter(consumer.streams())
        reading = [asyncio.create_task(read((await anext(streams))[1])) for _ in range(2)]
        async with asyncio.timeout(30):
            await some.wait()
        async with new_consumer(topic, **options) as other:
            async with asyncio.timeout(60):
                while len(got) < 2_000:
                    got += [(one.partition, one.offset) for one in await other.getmany(timeout_ms=100)]
            ended_before_stop = list(ended)
    await asyncio.gather(*reading)

    assert len(ended_before_stop) == 1
    assert len(ended) == 2
    assert sorted(got) == [(partition, offset) for partition in range(2) for offset in range(1_000)]


async def test_pause_and_seek_apply_to_streams(filled, new_consumer, group):
    """The stream of a paused partition waits and continues at its position, and a seek determines the next record."""
    topic = filled()
    place = TopicPartition(topic, 0)

    async with new_consumer(topic, group_id=group) as consumer:
        _, stream = await anext(aiter(consumer.streams()))
        assert [(await anext(stream)).offset for _ in range(5)] == list(range(5))
        consumer.pause(place)
        waiting = asyncio.create_task(anext(stream))
        done, _ = await asyncio.wait({waiting}, timeout=0.3)
        assert not done
        consumer.resume(place)
        assert (await waiting).offset == 5
        await consumer.seek(place, 700)
        assert [(await anext(stream)).offset for _ in range(3)] == [700, 701, 702]


async def test_streams_and_other_ways_of_reading_exclude_each_other(filled, new_consumer, group):
    """After streams() is called, every other way of reading raises, and so does streams() with ack="manual"."""
    topic = filled()

    async with new_consumer(topic, group_id=group) as consumer:
        await consumer.getone()
        _, stream = await anext(aiter(consumer.streams()))
        for call in (consumer.getone, consumer.getmany, lambda: anext(aiter(consumer)), consumer.batches().__anext__):
            with pytest.raises(ConsumerStateError, match="streams"):
                await call()
        with pytest.raises(ConsumerStateError, match="already called"):
            consumer.streams()
        assert (await anext(stream)).offset == 1
    async with new_consumer(topic, group_id=group, ack="manual") as consumer:
        with pytest.raises(ConfigurationError, match="manual"):
            consumer.streams()


async def test_a_second_reader_of_a_stream_raises_and_timeouts_apply(filled, new_consumer):
    """While a task waits on a stream, a second wait raises, and the first one raises after consumer_timeout_ms."""
    topic = filled()

    async with new_consumer(topic, consumer_timeout_ms=300) as consumer:
        _, stream = await anext(aiter(consumer.streams()))
        first = asyncio.create_task(anext(stream))
        await asyncio.sleep(0)
        with pytest.raises(ConsumerStateError, match="at once"):
            await anext(stream)
        with pytest.raises(ConsumerTimeoutError):
            await first


async def test_stream_timeouts_follow_the_options(new_topic, new_consumer, witness):
    """consumer_timeout_ms and when_timed_out apply to streams, also after reconfigure()."""
    topic = new_topic()
    witness.fill(topic, 1, 2)

    async with new_consumer(topic, auto_offset_reset="earliest") as consumer, asyncio.timeout(30):
        _, stream = await anext(aiter(consumer.streams()))
        await anext(stream)
        await consumer.reconfigure(consumer_timeout_ms=300, when_timed_out="stop")
        first = [record.offset async for record in stream]
        witness.fill(topic, 1, 1)
        await until(lambda: bool(consumer.statistics().buffered_bytes))
        second = [record.offset async for record in stream]
        await consumer.reconfigure(when_timed_out="raise")
        with pytest.raises(ConsumerTimeoutError):
            await anext(stream)

    assert (first, second) == ([1], [2])


@pytest.mark.parametrize("in_group", [True, False])
async def test_a_stop_ends_streams_at_once(filled, new_consumer, witness, group, in_group):
    """stop() ends a stream at once, and commits only records that were delivered and finished."""
    topic = filled()
    options = {"group_id": group} if in_group else {"auto_offset_reset": "earliest"}

    async with new_consumer(topic, **options) as consumer:
        _, stream = await anext(aiter(consumer.streams()))
        records = [await anext(stream) for _ in range(3)]
        assert stream.ack(records[-1])
        stopping = asyncio.create_task(consumer.stop())
        await asyncio.sleep(0)
        assert [record async for record in stream] == []
        await stopping

    assert await witness.committed(group, topic, 1) == ({0: 3} if in_group else {})
