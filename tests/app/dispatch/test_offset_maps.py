"""Handlers that finish records out of order, and the limited size of the offset map in a commit."""

from __future__ import annotations

import asyncio
import random

import pytest

from tailrace import App, ConfigurationError, Record, Retry, TopicPartition
from tailrace.core.offset_map import decode_metadata
from tailrace.observe.events import OffsetMapDropped, OffsetMapFull, OffsetMapRecovered, OffsetsCommitted
from tests.support.consumer_group import until


@pytest.fixture
def new_app(kafka_server, group, recorder):
    def make(**options):
        defaults = {"bootstrap_servers": kafka_server.bootstrap_servers, "group_id": group, "hooks": [recorder]}
        return App(**{**defaults, **options})

    return make


async def test_a_large_offset_map_delays_the_records_of_its_partition(new_app, new_topic, witness, group, recorder):
    """Above three quarters of the offset map's size, more records of the partition wait; other partitions continue."""
    topic, chance, let_go = new_topic(2), random.Random(11), asyncio.Event()
    for partition in range(2):
        witness.produce(topic, (b"%d" % n for n in range(8_000)), partition=partition)
    app = new_app(offset_metadata_max_bytes=200, max_queued_records=100, auto_commit_interval_ms=50)
    begun, ended = {0: 0, 1: 0}, {0: 0, 1: 0}

    @app.handler(topic, order_by="none", concurrency=500)
    async def handle(record: Record):
        begun[record.partition] += 1
        if record.partition == 0 and not let_go.is_set() and (record.offset == 0 or chance.random() < 0.2):
            await let_go.wait()
        ended[record.partition] += 1

    async with app:
        high = await recorder.wait_for(OffsetMapFull)
        await until(lambda: ended[1] == 8_000)
        stood = begun[0]
        end = TopicPartition(topic, 1)
        await recorder.wait_for(OffsetsCommitted, where=lambda event: event.offsets.get(end) == 8_000)
        text = await witness.metadata(group, topic)
        assert begun[0] == stood < 2_000
        let_go.set()
        await recorder.wait_for(OffsetMapRecovered)
        await until(lambda: ended[0] == 8_000)

    assert (high.partition.partition, high.offset) == (0, 0)
    assert high.fill > 0.75
    assert decode_metadata(text, 0).offset_map is not None
    assert not recorder.of(OffsetMapDropped)
    assert await witness.committed(group, topic, 2) == {0: 8_000, 1: 8_000}


async def test_a_commit_waits_for_all_handlers_of_a_topic(new_app, new_topic, witness, group, recorder):
    """A commit does not pass an unstarted record of one handler when another handler has finished later records."""
    topic, let_go, done = new_topic(), asyncio.Event(), []
    witness.produce(topic, (b"%d" % n for n in range(100)), partition=0)
    app = new_app(auto_commit_interval_ms=30)

    @app.handler(topic, when=lambda record: record.offset % 10 == 3, order_by="partition")
    async def slowly(record: Record):
        await let_go.wait()
        done.append(record.offset)

    @app.handler(topic, when=lambda record: record.offset % 10 != 3, order_by="key", concurrency=4)
    async def quickly(record: Record):
        await asyncio.sleep(0)
        done.append(record.offset)

    async with app:
        await until(lambda: len(done) == 90)
        await recorder.wait_for(OffsetsCommitted, where=lambda event: 3 in event.offsets.values())
        assert await witness.committed(group, topic, 1) == {0: 3}
        let_go.set()
        await until(lambda: len(done) == 100)

    assert await witness.committed(group, topic, 1) == {0: 100}


def is_finished(offset_map):
    """Return True if the offset map lists all but the two records of the poisoned key as finished."""
    return offset_map is not None and [one for one in range(10) if offset_map.is_finished(one)] == [2, 3, 4, 5, 6, 7]


async def test_batches_after_a_failing_key_are_in_the_offset_map(new_app, new_topic, witness, group):
    """With order_by="key", records after a failing key are finished and listed in the committed offset map."""
    topic, app, done = new_topic(), new_app(auto_commit_interval_ms=30, retry=Retry(attempts=1)), []
    witness.produce(topic, (b"%d" % n for n in range(8)), keys=[b"poison", b"poison", *[b"good"] * 6])

    @app.batch_handler(topic, order_by="key", max_records=1)
    async def handle(records: list[Record]) -> None:
        if records[0].key == b"poison":
            raise ValueError("poison")
        done.extend(record.offset for record in records)

    async with app:
        await until(lambda: done == [2, 3, 4, 5, 6, 7])
        async with asyncio.timeout(30):
            while not is_finished(decode_metadata(await witness.metadata(group, topic), 0).offset_map):  # noqa: ASYNC110 - the broker's view
                await asyncio.sleep(0.1)

    assert await witness.committed(group, topic, 1) == {0: 0}
    assert is_finished(decode_metadata(await witness.metadata(group, topic), 0).offset_map)


async def test_manual_acknowledgment_is_refused_for_handlers(new_app, new_topic):
    """ack="manual" is refused at the start, because a record is finished when its handler returns."""
    app = new_app(ack="manual")

    @app.handler(new_topic())
    async def handle(value: bytes): ...

    with pytest.raises(ConfigurationError, match="ack='manual' applies to Consumer only"):
        await app.start()
