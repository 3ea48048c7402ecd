"""Record sets that are damaged in different places: what is whole is delivered, and the error says where to go on."""

from __future__ import annotations

import asyncio
import struct

import pytest
from msgspec.structs import replace

from tailrace import CorruptRecordError, TopicPartition
from tailrace.observe.events import CorruptBatchFetched, FetchCompleted
from tailrace.protocol.records import FetchRequest
from tests.support.event_recorder import EventRecorder

EARLIEST = {"auto_offset_reset": "earliest"}


def in_batch(offset, change):
    """Return a function that edits a Fetch response: it calls ``change`` with the batch that starts at ``offset``."""

    def edit(answer):
        return replace(answer, partitions=tuple(map(edited, answer.partitions)))

    def edited(fetched):
        data, at, changed = bytes(fetched.records or b""), 0, b""
        while at + 12 <= len(data):
            end = at + 12 + int.from_bytes(data[at + 8 : at + 12], "big")
            batch = bytearray(data[at:end])
            if int.from_bytes(batch[:8], "big") == offset and fetched.partition == 0:
                change(batch)
            changed, at = changed + batch, end
        return replace(fetched, records=memoryview(changed))

    return edit


def set_last_offset_delta(number):
    return lambda batch: struct.pack_into(">i", batch, 23, number)


def flip_value(batch):
    batch[70] ^= 0xFF


def set_format(batch):
    batch[16] = 7


def set_length(batch):
    struct.pack_into(">i", batch, 8, 3)


DAMAGES = {
    "checksum": (flip_value, 2),
    "last offset below the first": (set_last_offset_delta(-5), 2),
    "last offset beyond the next batch": (set_last_offset_delta(1 << 30), 2),
    "unknown format": (set_format, None),
    "length below the minimum": (set_length, None),
}


@pytest.mark.parametrize("damage", DAMAGES)
async def test_only_the_damaged_batch_is_not_delivered(kafka, damage):
    """Batches before a damaged one are delivered; the error has the batch's offset and, if it is known, the next."""
    change, next_offset = DAMAGES[damage]
    topic = kafka.topic()
    for n in range(3):
        kafka.produce(topic, [b"%d" % n * 50])

    with kafka.proxy.edit_answer(FetchRequest, in_batch(1, change), times=None) as damaging:
        async with kafka.consumer(topic, **EARLIEST) as consumer, asyncio.timeout(40):
            first = await consumer.getone()
            for _ in range(2):
                with pytest.raises(CorruptRecordError) as raised:
                    await consumer.getone()
            damaging.end()
            await consumer.seek(TopicPartition(topic, 0), 2)
            last = await consumer.getone()

    assert (first.offset, last.offset) == (0, 2)
    assert (raised.value.offset, raised.value.next_offset) == (1, next_offset)


async def test_records_without_a_complete_batch_are_corrupt(kafka):
    """A response whose only batch is cut off is not fetched again without end: the partition has an error."""
    topic, events = kafka.topic(), EventRecorder()
    kafka.produce(topic, [bytes(100)])

    def cut(answer):
        cut = [replace(one, records=one.records[:-9] if one.records else None) for one in answer.partitions]
        return replace(answer, partitions=tuple(cut))

    with kafka.proxy.edit_answer(FetchRequest, cut, times=None):
        async with kafka.consumer(topic, hooks=[events], **EARLIEST) as consumer, asyncio.timeout(40):
            with pytest.raises(CorruptRecordError, match="no complete record batch"):
                await consumer.getone()

    assert len(events.of(CorruptBatchFetched)) == 3
    assert len([one for one in events.of(FetchCompleted) if one.size]) < 10


@pytest.mark.parametrize("style", ["getmany", "arrow"])
async def test_other_partitions_are_read_on_beside_corrupt_ones(kafka, style):
    """Two of three partitions are corrupt: the third is delivered, and each corrupt one by itself is sought past."""
    topic = kafka.topic(3)
    for partition in (0, 1):
        kafka.produce(topic, [bytes(900_000)], partition=partition, compression="zstd")
        kafka.produce(topic, [b"after"], partition=partition)
    kafka.produce(topic, [b"%d" % n for n in range(20)], partition=2)
    got, sought = {0: [], 1: [], 2: []}, set()

    async with kafka.consumer(topic, max_decompressed_batch_bytes=100_000, **EARLIEST) as consumer, asyncio.timeout(40):
        while sum(map(len, got.values())) < 22:
            try:
                if style == "arrow":
                    table = await anext(aiter(consumer.arrow_batches(max_records=7, max_wait_ms=1)))
                    read = zip(table.column("partition").to_pylist(), table.column("offset").to_pylist(), strict=True)
                else:
                    read = [(one.partition, one.offset) for one in await consumer.getmany(max_records=7)]
                for partition, offset in read:
                    got[partition].append(offset)
            except CorruptRecordError as error:
                if len(got[2]) == 20:
                    sought.add(error.partition)
                    await consumer.seek(error.partition, error.next_offset)

    assert got == {0: [1], 1: [1], 2: list(range(20))}
    assert sought == {(topic, 0), (topic, 1)}
