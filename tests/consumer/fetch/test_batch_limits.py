"""Limits of the size of batches, compressed and decompressed."""

from __future__ import annotations

import asyncio
import threading

import pytest
from confluent_kafka import Producer

from tailrace import CorruptRecordError, RecordTooLargeError, TopicPartition
from tailrace.batches.record_batch import RecordBatch

EARLIEST = {"auto_offset_reset": "earliest"}


async def test_a_batch_above_max_batch_bytes_raises(kafka):
    """A batch larger than max_batch_bytes raises RecordTooLargeError at each poll until a seek past it."""
    topic = kafka.topic()
    for size in (10, 20_000, 10):
        kafka.produce(topic, [bytes(size)])

    async with kafka.consumer(topic, max_batch_bytes=8_192, **EARLIEST) as consumer:
        assert (await consumer.getone()).offset == 0
        for _ in range(2):
            with pytest.raises(RecordTooLargeError, match="max_batch_bytes=8192"):
                await consumer.getone()
        place = TopicPartition(topic, 0)
        stands_at = await consumer.position(place)
        await consumer.seek(place, 2)
        last = await consumer.getone()
    async with kafka.consumer(topic, max_partition_fetch_bytes=4_096, **EARLIEST) as consumer:
        sizes = [len((await consumer.getone()).value) for _ in range(3)]

    assert (stands_at, last.offset) == (1, 2)
    assert sizes == [10, 20_000, 10]


def produce_batch(kafka, topic: str, values: list[bytes], codec: str) -> None:
    """Write ``values`` as one batch."""
    options = {
        "bootstrap.servers": kafka.bootstrap_servers,
        "compression.type": codec,
        "message.max.bytes": 1_000_000_000,
        "batch.size": 1_000_000_000,
        "batch.num.messages": len(values),
        "linger.ms": 30_000,
        "queue.buffering.max.kbytes": 2_000_000,
    }
    producer = Producer(options)
    for value in values:
        producer.produce(topic, value, partition=0)
    assert producer.flush(60) == 0


@pytest.mark.parametrize("codec", ["gzip", "snappy", "lz4", "zstd"])
async def test_a_batch_that_decompresses_beyond_its_limit_is_corrupt(kafka, codec):
    """A batch larger than max_decompressed_batch_bytes raises CorruptRecordError at each poll until a seek past it."""
    topic = kafka.topic(max_message_bytes=50_000_000)
    kafka.produce(topic, [b"before"])
    await asyncio.to_thread(produce_batch, kafka, topic, [bytes(64 << 20)], codec)
    kafka.produce(topic, [b"after"])

    limit = {"max_decompressed_batch_bytes": 4 << 20}
    async with kafka.consumer(topic, **limit, **EARLIEST) as consumer, asyncio.timeout(60):
        assert (await consumer.getone()).value == b"before"
        for _ in range(2):
            with pytest.raises(CorruptRecordError, match="max_decompressed_batch_bytes=4194304") as raised:
                await consumer.getone()
            assert (raised.value.partition, raised.value.offset) == ((topic, 0), 1)
            assert "raise this limit" in str(raised.value)
            assert "seek() to 2 to continue" in str(raised.value)
            assert "replica" not in str(raised.value)
        assert raised.value.next_offset == 2
        await consumer.seek(TopicPartition(topic, 0), raised.value.next_offset)
        assert (await consumer.getone()).value == b"after"


async def test_large_batches_are_decompressed_by_a_thread(kafka, monkeypatch):
    """Large batches are decompressed in a thread, small ones in the event loop, and records keep their order."""
    topic, threads = kafka.topic(max_message_bytes=50_000_000), {}
    sizes = [100, 50_000, 100, 100, 30_000]
    for number, size in enumerate(sizes):
        values = [b"%d-%d" % (number, n) + bytes(size) for n in range(100)]
        await asyncio.to_thread(produce_batch, kafka, topic, values, "zstd")
    decompress = RecordBatch.decompress

    def watched(batch: RecordBatch, limit: int) -> bool:
        fits = decompress(batch, limit)
        if fits:
            threads.setdefault(batch.base_offset, threading.current_thread() is threading.main_thread())
        return fits

    monkeypatch.setattr(RecordBatch, "decompress", watched)
    async with kafka.consumer(topic, **EARLIEST) as consumer, asyncio.timeout(60):
        values = [(await consumer.getone()).value for _ in range(100 * len(sizes))]

    assert [value.rstrip(b"\0") for value in values] == [b"%d-%d" % (n // 100, n % 100) for n in range(500)]
    assert threads == {at * 100: size == 100 for at, size in enumerate(sizes)}


async def test_large_batches_are_delivered_in_every_style(kafka):
    """getone(), getmany(), batches() and streams() wait for a batch that is decompressed in a thread."""
    topic = kafka.topic(max_message_bytes=50_000_000)
    await asyncio.to_thread(produce_batch, kafka, topic, [bytes(50_000)] * 100, "gzip")

    async with kafka.consumer(topic, **EARLIEST) as consumer, asyncio.timeout(60):
        assert (await consumer.getone(timeout_ms=30_000)) is not None
    async with kafka.consumer(topic, **EARLIEST) as consumer, asyncio.timeout(60):
        assert len(await consumer.getmany(max_records=100, timeout_ms=30_000)) == 100
    async with kafka.consumer(topic, **EARLIEST) as consumer, asyncio.timeout(60):
        async for batch in consumer.batches(max_records=100, max_wait_ms=30_000):
            assert len(batch) == 100
            break
    async with kafka.consumer(topic, **EARLIEST) as consumer, asyncio.timeout(60):
        async for _, stream in consumer.streams():
            assert [(await anext(stream)).offset for _ in range(100)] == list(range(100))
            break
