"""Decompressed batches of all partitions have a bounded size, and no partition waits forever."""

from __future__ import annotations

import asyncio
import resource
import sys
from pathlib import Path

import pytest
from confluent_kafka import Producer

from tailrace import TopicPartition

MIB = 1 << 20
PARTITIONS, RECORDS = 8, 32
OPTIONS = {
    "auto_offset_reset": "earliest",
    "max_buffered_bytes": 8 * MIB,
    "max_decompressed_batch_bytes": 64 * MIB,
    # Few records are decoded at a time, so that each partition has a turn before its batch is exhausted.
    "max_queued_records": 4,
}


@pytest.fixture
async def bombs(kafka):
    """Create a topic with a batch of 32 MiB in each of eight partitions, and another batch after it."""
    topic = kafka.topic(PARTITIONS, max_message_bytes=50_000_000)
    await asyncio.to_thread(write, kafka.bootstrap_servers, topic)
    return topic


def write(bootstrap_servers: str, topic: str) -> None:
    producer = Producer(
        {
            "bootstrap.servers": bootstrap_servers,
            "compression.type": "zstd",
            "message.max.bytes": 1_000_000_000,
            "batch.size": 1_000_000_000,
            "linger.ms": 30_000,
        }
    )
    for _ in range(2):
        for partition in range(PARTITIONS):
            for _ in range(RECORDS):
                producer.produce(topic, bytes(MIB), partition=partition)
            assert producer.flush(60) == 0


def resident_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()


def offsets_of(records) -> dict[int, list[int]]:
    found: dict[int, list[int]] = {}
    for partition, offset in records:
        found.setdefault(partition, []).append(offset)
    return found


ALL = {partition: list(range(2 * RECORDS)) for partition in range(PARTITIONS)}


@pytest.mark.skipif(sys.platform != "linux", reason="resident memory is read from /proc")
async def test_batches_of_many_partitions_are_not_decompressed_at_once(kafka, bombs):
    """A consumer that reads eight batches of 32 MiB in turn does not have all of them decompressed at once."""
    records, most = [], 0
    async with kafka.consumer(bombs, **OPTIONS) as consumer, asyncio.timeout(60):
        before = resident_bytes()
        while len(records) < 2 * RECORDS * PARTITIONS:
            record = await consumer.getone()
            records.append((record.partition, record.offset))
            most = max(most, resident_bytes() - before)

    assert offsets_of(records) == ALL
    # Two at a time, and memory that the allocator keeps; all at once would take more than 500 MiB.
    assert most < 320 * MIB


async def test_a_paused_partition_frees_its_decompressed_memory(kafka, bombs):
    """Partitions paused in the middle of a batch do not delay others, and continue at their positions when resumed."""
    records = []
    async with kafka.consumer(bombs, **OPTIONS) as consumer, asyncio.timeout(60):
        while len({partition for partition, _ in records}) < PARTITIONS:
            record = await consumer.getone()
            records.append((record.partition, record.offset))
            # Each partition is paused after its first record, until all have delivered one.
            consumer.pause(record.topic_partition)
        consumer.resume()
        while len(records) < 2 * RECORDS * PARTITIONS:
            record = await consumer.getone()
            records.append((record.partition, record.offset))

    assert offsets_of(records) == ALL


async def test_streams_read_in_turn_do_not_wait_for_each_other(kafka, bombs):
    """A stream that is not polled does not delay the next one, and no stream loses or repeats a record."""
    async with kafka.consumer(bombs, **OPTIONS) as consumer, asyncio.timeout(90):
        opened, streams = {}, aiter(consumer.streams())
        while len(opened) < PARTITIONS:
            partition, stream = await anext(streams)
            opened[partition] = stream
        records = []
        for step in (1, 7, 24, 1, 31):
            for partition, stream in opened.items():
                for _ in range(step):
                    record = await anext(stream)
                    records.append((partition.partition, record.offset))

    assert offsets_of(records) == ALL
    assert set(opened) == {TopicPartition(bombs, number) for number in range(PARTITIONS)}
