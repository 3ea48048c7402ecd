"""Control records that cannot be decoded raise an error for their partition, as any other batch does."""

from __future__ import annotations

import asyncio

import pytest
from confluent_kafka import Producer
from msgspec.structs import replace

from tailrace import CorruptRecordError, TopicPartition
from tailrace.batches.record_batch import split
from tailrace.observe.events import CorruptBatchFetched
from tailrace.protocol.records import FetchRequest
from tests.support.event_recorder import EventRecorder
from tests.support.protocol.built_batches import resealed

EARLIEST = {"auto_offset_reset": "earliest"}
KEY_AT = 61 + 5
"""Offset of the key of a batch's only record, after five fields of one byte."""


def in_a_transaction(kafka, topic: str, value: bytes) -> None:
    """Write and commit ``value``, and wait until the broker has written the control record at the next offset."""
    options = {"bootstrap.servers": kafka.bootstrap_servers, "transactional.id": topic}
    producer = Producer(options)
    producer.init_transactions(30)
    producer.begin_transaction()
    producer.produce(topic, value, partition=0)
    producer.commit_transaction(30)
    # A commit is answered before its markers are written; the next producer with the same id waits for them.
    Producer(options).init_transactions(30)


def with_broken_markers(answer):
    """Return the response with control records whose key ends after a byte, under a valid checksum."""
    return replace(answer, partitions=tuple(map(broken, answer.partitions)))


def broken(fetched):
    if not fetched.records:
        return fetched
    data = bytearray()
    for batch in split(fetched.records):
        one = bytearray(batch._view)
        if batch.is_control:
            # The key's length, 4 in zigzag, becomes 1; the rest of the key is read as the value's length and value.
            assert one[KEY_AT - 1] == 8
            one[KEY_AT - 1 : KEY_AT + 2] = bytes([2, 0, 2 * (len(one) - KEY_AT - 3)])
            one = resealed(one)
        data += one
    return replace(fetched, records=memoryview(bytes(data)))


@pytest.mark.parametrize("isolation_level", ["read_committed", "read_uncommitted"])
async def test_a_marker_that_cannot_be_read_is_corrupt(kafka, isolation_level):
    """A control record that cannot be decoded raises CorruptRecordError until a seek, and other partitions continue."""
    topic, events = kafka.topic(2), EventRecorder()
    await asyncio.to_thread(in_a_transaction, kafka, topic, b"before")
    kafka.produce(topic, [b"after"], partition=0)
    kafka.produce(topic, [b"other"], partition=1)

    options = {"isolation_level": isolation_level, "hooks": [events], **EARLIEST}
    with kafka.proxy.edit_answer(FetchRequest, with_broken_markers, times=None):
        async with kafka.consumer(topic, **options) as consumer, asyncio.timeout(60):
            got, corrupt = [], []
            while len(got) < 2 or len(corrupt) < 2:
                try:
                    got.append((await consumer.getone()).value)
                except CorruptRecordError as error:
                    corrupt.append((error.partition, error.offset))
            await consumer.seek(TopicPartition(topic, 0), 2)
            assert (await consumer.getone()).value == b"after"

    assert set(got) == {b"before", b"other"}
    assert set(corrupt) == {((topic, 0), 1)}
    assert len(events.of(CorruptBatchFetched)) >= 3
