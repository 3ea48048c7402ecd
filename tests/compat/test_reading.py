"""Promises of aiokafka's consumer tests about reading, under the names of its tests (see docs/compat.md)."""

from __future__ import annotations

import asyncio
import json
import random
import string
import time

import pytest

from tailrace import ConfigurationError, Consumer, ConsumerStateError, OffsetOutOfRangeError, TopicPartition
from tests.support.aiokafka_interface import AiokafkaInterface, values_of


def random_string(length: int) -> bytes:
    return "".join(random.choices(string.ascii_letters, k=length)).encode()


async def test_simple_consumer(compat):
    """A consumer reads 200 records, and its assignment, offsets, high watermark and seeks are as in aiokafka."""
    compat.send(0, range(100))
    compat.send(1, range(100, 200))
    consumer = await compat.started()

    assert sorted(consumer.assignment()) == [compat.first, compat.second]
    assert compat.topic in await consumer.topics()
    assert await consumer.partitions_for_topic(compat.topic) == {0, 1}
    assert await consumer.committed(TopicPartition("unknown-topic", 2)) is None
    assert await consumer.committed(compat.first) is None
    assert len(set(await values_of(consumer, 200))) == 200
    assert consumer.highwater(compat.first) == 100
    consumer.seek(compat.first, 90)
    assert await values_of(consumer, 10) == [b"%d" % n for n in range(90, 100)]
    await consumer.stop()
    await consumer.stop()


def test_create_consumer_no_running_loop(kafka_server, new_topic, witness):
    """A consumer may be created outside of the event loop that runs it."""
    topic = new_topic()
    witness.produce(topic, [b"%d" % n for n in range(10)])
    servers = kafka_server.bootstrap_servers
    consumer = AiokafkaInterface(topic, bootstrap_servers=servers, auto_offset_reset="earliest")
    with asyncio.Runner() as runner:
        runner.run(consumer.start())
        try:
            assert len([runner.run(consumer.getone()) for _ in range(10)]) == 10
        finally:
            runner.run(consumer.stop())


async def test_consumer_context_manager(compat):
    """``async with`` starts and stops a consumer, also after an exception."""
    compat.send(0, range(10))
    options = {"group_id": compat.group, "auto_offset_reset": "earliest", "enable_auto_commit": False}

    for error in (None, ValueError):
        consumer = compat.consumer(compat.topic, **options)
        seen = []
        try:
            async with consumer as same:
                assert same is consumer
                async for record in consumer:
                    seen.append(record)
                    if len(seen) == 10:
                        break
                if error is not None:
                    raise error
        except ValueError:
            assert error is ValueError
        assert len(seen) == 10
        with pytest.raises(ConsumerStateError, match="stopped"):
            await consumer.getone()


async def test_consumer_warn_unclosed(kafka_server):
    """A consumer that is garbage-collected without stop() emits a ResourceWarning."""
    consumer = Consumer(bootstrap_servers=kafka_server.bootstrap_servers)
    await consumer.start()
    # The tasks in the background would have to be collected first.
    with pytest.warns(ResourceWarning, match="never stopped"):
        consumer.__del__()
    await consumer.stop()


async def test_get_by_partition(compat):
    """getone(partition) returns records of this partition.

    One task reads here; in aiokafka's test there are two.
    """
    compat.send(0, range(100))
    compat.send(1, range(100, 200))
    consumer = await compat.started()

    seen = []
    for _ in range(100):
        for partition in (compat.first, compat.second):
            record = await consumer.getone(partition)
            assert record.topic_partition == partition
            seen.append(record.value)
    assert len(set(seen)) == 200


async def test_none_group(compat):
    """Consumers without a group each read all records and cannot commit."""
    compat.send(0, range(100))
    compat.send(1, range(100, 200))

    for options in ({"enable_auto_commit": False}, {}):
        consumer = await compat.started(group_id=None, **options)
        assert len(set(await values_of(consumer, 200))) == 200
        with pytest.raises(ConsumerStateError, match="needs a group_id"):
            await consumer.commit()


async def test_consumer_poll(compat):
    """getmany() returns all records, or those of the given partition."""
    compat.send(0, range(100))
    compat.send(1, range(100, 200))
    consumer = await compat.started()

    async def read(count: int, *partitions: TopicPartition) -> list:
        found: list = []
        while len(found) < count:
            for records in (await consumer.getmany(*partitions, timeout_ms=20_000)).values():
                found += records
        return found

    assert len({record.value for record in await read(200)}) == 200
    compat.send(0, range(100))
    compat.send(1, range(100, 200))
    assert {record.partition for record in await read(100, compat.first)} == {0}
    assert {record.partition for record in await read(100, compat.second)} == {1}


async def test_large_messages(compat):
    """Records of very different sizes are all delivered."""
    sent = compat.send(0, range(10)) + compat.send(0, [random_string(5_000) for _ in range(10)])
    consumer = await compat.started()

    assert set(await values_of(consumer, 20)) == set(sent)


async def test_large_messages_getone(compat):
    """getone() returns a record larger than ``max_partition_fetch_bytes``."""
    sent = [compat.send(0, [random_string(size)])[0] for size in (10, 50_000, 50)]
    consumer = await compat.started(max_partition_fetch_bytes=4_000)

    assert await values_of(consumer, 3) == sent


async def test_large_messages_getmany(compat):
    """getmany() returns a record larger than ``max_partition_fetch_bytes``."""
    sent = [compat.send(0, [random_string(size)])[0] for size in (10, 50_000, 50)]
    consumer = await compat.started(max_partition_fetch_bytes=4_000)

    seen: list[bytes] = []
    while len(seen) < 3:
        seen += [one.value for one in (await consumer.getmany(timeout_ms=20_000)).get(compat.first, ())]
    assert seen == sent


@pytest.mark.parametrize("codec", ["gzip", "snappy", "lz4", "zstd"])
async def test_compress_decompress(compat, codec):
    """Records of each codec are read.

    aiokafka has one test for each: test_compress_decompress_gzip, test_compress_decompress_snappy,
    test_compress_decompress_lz4 and test_compress_decompress_zstd.
    """
    sent = compat.send(1, [b"some-message" * 10, b"other-message" * 30], compression=codec)
    consumer = await compat.started()

    assert await values_of(consumer, 2) == sent


async def test_consumer_seek_backward(compat):
    """After a seek backward, getone() and getmany() return records again."""
    compat.send(0, [1, 2, 3])
    consumer = await compat.started()

    first = await consumer.getone()
    assert first.value == b"1"
    consumer.seek(compat.first, first.offset)
    assert await values_of(consumer, 2) == [b"1", b"2"]
    consumer.seek(compat.first, first.offset + 1)
    found = await consumer.getmany(timeout_ms=20_000)
    assert [record.value for record in found[compat.first]] == [b"2", b"3"]


async def test_consumer_seek_forward_getone(compat):
    """After a seek forward, getone() skips buffered records."""
    compat.send(0, [1, 2, 3])
    consumer = await compat.started()

    first = await consumer.getone()
    consumer.seek(compat.first, first.offset + 2)
    assert await values_of(consumer, 1) == [b"3"]
    assert await consumer.getmany(timeout_ms=0) == {}


async def test_consumer_seek_forward_getmany(compat):
    """After a seek forward, getmany() skips buffered records."""
    compat.send(0, [1, 2, 3])
    consumer = await compat.started()

    first = await consumer.getone()
    consumer.seek(compat.first, first.offset + 2)
    found = await consumer.getmany(timeout_ms=20_000)
    assert [record.value for record in found[compat.first]] == [b"3"]
    assert await consumer.getmany(timeout_ms=0) == {}


async def test_consumer_seek_to_beginning(compat):
    """seek_to_beginning() moves all partitions, or one."""
    compat.send(0, [1, 2, 3])
    consumer = await compat.started()
    start = await consumer.position(compat.first)

    (first,) = await values_of(consumer, 1)
    await consumer.seek_to_beginning()
    assert await values_of(consumer, 1) == [first]
    await consumer.seek_to_beginning(compat.first)
    assert await values_of(consumer, 1) == [first]
    assert await consumer.position(compat.first) == start + 1


async def test_consumer_seek_to_end(compat):
    """After seek_to_end(), only records written later are delivered."""
    compat.send(0, [1, 2, 3])
    consumer = await compat.started()
    start = await consumer.position(compat.first)

    for partitions, values, end in (((), [4, 5, 6], 3), ((compat.first,), [7, 8, 9], 6)):
        await consumer.seek_to_end(*partitions)
        assert await consumer.position(compat.first) == start + end
        waiting = asyncio.create_task(consumer.getone())
        assert await asyncio.wait([waiting], timeout=0.1) == (set(), {waiting})
        compat.send(0, values)
        assert (await waiting).value == b"%d" % values[0]
    assert await consumer.position(compat.first) == start + 7


async def test_consumer_pause_resume(compat):
    """A paused partition delivers no record, not even one that arrives while a call waits."""
    compat.send(0, range(5))
    compat.send(1, range(5))
    consumer = await compat.started()

    async def partitions(count: int) -> set[int]:
        return {(await consumer.getone()).partition for _ in range(count)}

    assert consumer.paused() == set()
    assert await partitions(10) == {0, 1}
    await consumer.seek_to_beginning()
    consumer.pause(compat.first)
    assert consumer.paused() == {compat.first}
    assert await partitions(5) == {1}
    await consumer.seek_to_beginning()
    consumer.resume(compat.first)
    assert consumer.paused() == set()
    assert await partitions(10) == {0, 1}
    waiting = asyncio.create_task(consumer.getone())
    assert await asyncio.wait([waiting], timeout=0.1) == (set(), {waiting})
    consumer.pause(compat.first)
    compat.send(0, [10])
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(waiting, 0.5)


async def test_check_extended_message_record(compat):
    """A record has a timestamp with its type, and the sizes of its key and value."""
    began = int(time.time() * 1000)
    (sent,) = compat.send(1, [b"some-message#1"])
    consumer = await compat.started()

    record = await consumer.getone()
    assert (record.key, record.value) == (None, sent)
    assert record.timestamp >= began
    assert record.timestamp_type == "CreateTime"


async def test_max_poll_records(compat):
    """getmany() returns at most max_records, which is an option and an argument."""
    compat.send(0, range(100))
    consumer = await compat.started(max_poll_records=48)

    async def count(**limits: int | None) -> int:
        return sum(map(len, (await consumer.getmany(timeout_ms=20_000, **limits)).values()))

    assert [await count(), await count(max_records=42), await count(max_records=None)] == [48, 42, 10]
    compat.send(0, [0])
    assert await count(max_records=100) == 1
    with pytest.raises(ConfigurationError, match="max_records must be at least 1"):
        await count(max_records=0)
    with pytest.raises(ValueError, match="max_poll_records"):
        compat.consumer(compat.topic, max_poll_records=0)


async def test_consumer_stops_getone(compat):
    """stop() ends a waiting getone(), and later calls raise."""
    consumer = await compat.started()
    waiting = asyncio.create_task(consumer.getone())
    assert await asyncio.wait([waiting], timeout=0.1) == (set(), {waiting})

    await consumer.stop()
    for call in (waiting, consumer.getone()):
        with pytest.raises(ConsumerStateError, match="stopped"):
            await call


async def test_consumer_stops_getmany(compat):
    """stop() ends a waiting getmany() with an error; in aiokafka the call returns {} once."""
    consumer = await compat.started()
    waiting = asyncio.create_task(consumer.getmany(timeout_ms=10_000))
    assert await asyncio.wait([waiting], timeout=0.1) == (set(), {waiting})

    await consumer.stop()
    for call in (waiting, consumer.getmany(timeout_ms=10_000), consumer.getmany(timeout_ms=0)):
        with pytest.raises(ConsumerStateError, match="stopped"):
            await call


async def test_offset_reset_manual(compat):
    """With auto_offset_reset="none", a missing or invalid position raises in each call until a seek."""
    compat.send(0, [1])
    consumer = await compat.started(auto_offset_reset="none")

    for _ in range(2):
        for call in (consumer.getmany(timeout_ms=20_000), consumer.getone()):
            with pytest.raises(OffsetOutOfRangeError, match="no committed offset"):
                await call
    await consumer.inner.seek(compat.first, 19_999)
    for call in (consumer.getmany(compat.first, timeout_ms=20_000), consumer.getone(compat.first)):
        with pytest.raises(OffsetOutOfRangeError, match="offset 19999 is outside the log"):
            await call


async def test_consumer_serialize_deserialize(compat):
    """Deserializers decode keys and values, and are not called for null."""
    compat.send(0, [json.dumps(["value1", "value2"]).encode()], key=json.dumps({"key": 1}).encode())
    consumer = await compat.started(key_deserializer=json.loads, value_deserializer=json.loads)

    record = await consumer.getone()
    assert (record.key, record.value) == ({"key": 1}, ["value1", "value2"])


async def test_consumer_compressed_returns_older_msgs(compat):
    """Records of a compressed batch before the position are not delivered."""
    compat.send(0, range(10), compression="gzip")
    consumer = await compat.started()
    consumer.seek(compat.first, 5)

    found = await consumer.getmany(timeout_ms=20_000)
    assert [record.offset for record in found[compat.first]] == list(range(5, 10))
    assert await consumer.position(compat.first) == 10


async def test_consumer_with_headers(compat):
    """Records have their headers."""
    compat.send(0, [0], headers=[("header1", b"17")])
    consumer = await compat.started()

    record = await consumer.getone()
    assert record.value == b"0"
    assert tuple(record.headers) == (("header1", b"17"),)


# ---- iteration -------------------------------------------------------------------------------------------------------


async def test_aiter(compat):
    """``async for`` reads the records of both partitions."""
    compat.send(0, range(10))
    compat.send(1, range(10, 20))
    seen = set()
    async for record in await compat.reader():
        seen.add(record.value)
        if len(seen) == 20:
            break
    assert seen == {b"%d" % number for number in range(20)}


async def test_exception_in_aiter(compat):
    """``async for`` raises the error of a partition without a start offset."""
    compat.send(0, [b"test"])
    reader = await compat.reader(auto_offset_reset="none")
    with pytest.raises(OffsetOutOfRangeError):
        async for _ in reader:
            pass


async def test_consumer_stops_iter(compat):
    """stop() ends a waiting ``async for`` without an error; a later loop raises."""
    reader = await compat.reader()

    async def iterate() -> None:
        async for record in reader:
            raise AssertionError(record)

    waiting = asyncio.create_task(iterate())
    await asyncio.sleep(0.05)
    assert not waiting.done()
    await reader.stop()
    await waiting
    with pytest.raises(ConsumerStateError, match="stopped"):
        await iterate()
