"""Reading in batches, and timeouts of reading."""

from __future__ import annotations

import asyncio
import time

import pytest
from confluent_kafka import Producer

from tailrace import (
    ConfigurationError,
    ConsumerStateError,
    ConsumerTimeoutError,
    RecordTooLargeError,
    TopicPartition,
)
from tests.support.consumer_group import until


async def test_a_batch_collects_records_for_max_wait_ms(new_topic, new_consumer, witness, group):
    """batches() returns a batch of max_records at once, and a smaller one after max_wait_ms."""
    topic = new_topic()
    witness.produce(topic, (b"%d" % n for n in range(250)))
    sizes = []

    async with new_consumer(topic, group_id=group) as consumer:
        began_at = None
        async for batch in consumer.batches(max_records=100, max_wait_ms=700):
            sizes.append(len(batch))
            if len(sizes) == 2:
                began_at = time.monotonic()
            if len(sizes) == 3:
                took_s = time.monotonic() - began_at
                break

    assert sizes == [100, 100, 50]
    assert 0.6 < took_s < 20


async def test_records_that_arrive_in_time_join_the_batch(new_topic, new_consumer, witness, group):
    """Records that arrive within max_wait_ms join the batch, which is returned as soon as it is full."""
    topic = new_topic()
    witness.produce(topic, [b"first"])

    async with new_consumer(topic, group_id=group) as consumer:
        batches = aiter(consumer.batches(max_records=3, max_wait_ms=100_000))
        waiting = asyncio.create_task(anext(batches))
        witness.produce(topic, [b"second", b"third", b"fourth"])
        async with asyncio.timeout(30):
            batch = await waiting

    assert [record.value for record in batch] == [b"first", b"second", b"third"]


async def test_the_next_poll_finishes_a_batch_and_stop_ends_the_loop(new_topic, new_consumer, witness, group):
    """A loop over batches ends when another task calls stop(), which commits all batches but the current one."""
    topic = new_topic()
    witness.produce(topic, (b"%d" % n for n in range(50)))
    consumer = new_consumer(topic, group_id=group)
    await consumer.start()
    seen = []
    second, may_go_on = asyncio.Event(), asyncio.Event()

    async def read() -> None:
        async for batch in consumer.batches(max_records=20):
            seen.append(len(batch))
            if len(seen) == 2:
                second.set()
                await may_go_on.wait()

    reading = asyncio.create_task(read())
    await second.wait()
    await consumer.stop()
    may_go_on.set()
    await asyncio.wait_for(reading, 15)

    assert seen == [20, 20]
    assert await witness.committed(group, topic, 1) == {0: 20}


async def test_a_canceled_wait_for_a_batch_loses_no_record(new_topic, new_consumer, witness, group):
    """If waits for a full batch are canceled, all records are still delivered once and in order."""
    topic = new_topic()
    got = []

    async with new_consumer(topic, group_id=group) as consumer:
        feeding = asyncio.create_task(asyncio.to_thread(feed, witness, topic))
        batches = aiter(consumer.batches(max_records=50, max_wait_ms=10_000))
        while len(got) < 300:
            try:
                got += await asyncio.wait_for(anext(batches), 0.01)
            except TimeoutError:
                continue
        await feeding

    assert [record.offset for record in got] == list(range(300))


def feed(witness, topic):
    for n in range(30):
        witness.produce(topic, (b"%d" % (10 * n + i) for i in range(10)))


async def test_getmany_waits_for_min_records(new_topic, new_consumer, witness, group):
    """getmany() waits until min_records have arrived, or until its timeout, when it returns fewer."""
    topic = new_topic()
    witness.produce(topic, (b"%d" % n for n in range(3)))

    async with new_consumer(topic, group_id=group) as consumer:
        await until(lambda: bool(consumer.statistics().buffered_bytes))
        began_at = time.monotonic()
        few = await consumer.getmany(min_records=5, max_records=5, timeout_ms=1_000)
        took_s = time.monotonic() - began_at
        none = await consumer.getmany(timeout_ms=0)
        waiting = asyncio.create_task(consumer.getmany(min_records=5, max_records=10))
        witness.produce(topic, (b"%d" % n for n in range(3)))
        done, _ = await asyncio.wait({waiting}, timeout=0.5)
        assert not done
        witness.produce(topic, (b"%d" % n for n in range(3)))
        all_of_them = await asyncio.wait_for(waiting, 30)

        for wrong in ({"max_records": 0}, {"min_records": 0}, {"min_records": 7, "max_records": 5}):
            with pytest.raises(ConfigurationError, match="records"):
                await consumer.getmany(**wrong)

    assert ([record.offset for record in few], none) == ([0, 1, 2], [])
    assert 0.9 <= took_s < 20
    assert len(all_of_them) >= 5


@pytest.mark.parametrize("partitions", [1, 2])
async def test_a_batch_larger_than_the_buffer_is_cut(new_topic, new_consumer, witness, group, partitions):
    """getmany() returns fewer than min_records if these exceed the buffer or a partition's share of it."""
    topic = new_topic(partitions)
    witness.produce(topic, (b"x" * 1_000 for _ in range(500)), partition=0, batch_bytes=10_000)

    async with new_consumer(topic, group_id=group, max_buffered_bytes=50_000) as consumer:
        async with asyncio.timeout(30):
            batch = await consumer.getmany(min_records=400, max_records=400)

    assert 0 < len(batch) < 400


async def test_an_exhausted_batch_frees_its_buffer_space(new_topic, new_consumer, witness, group):
    """The next batch is fetched when the buffered one is exhausted, even if both together exceed max_buffered_bytes."""
    topic = new_topic()
    for _ in range(3):
        witness.produce(topic, [b"x" * 60_000])

    async with new_consumer(topic, group_id=group, max_buffered_bytes=100_000) as consumer, asyncio.timeout(30):
        batches = aiter(consumer.batches(max_records=1))
        got = [await anext(batches) for _ in range(3)]

    assert [[record.offset for record in batch] for batch in got] == [[0], [1], [2]]


async def test_a_fetch_in_flight_is_waited_for(new_topic, new_consumer, witness, group):
    """While a fetch in flight has reserved the whole buffer, getmany() and batches() wait for its records."""
    topic = new_topic()
    witness.produce(topic, [b"0"])

    async with new_consumer(topic, group_id=group, max_buffered_bytes=1_000_000) as consumer, asyncio.timeout(40):
        many = asyncio.create_task(consumer.getmany(min_records=3))
        await until(lambda: bool(consumer.statistics().buffered_bytes) or many.done())
        for number in (1, 2):
            witness.produce(topic, [b"%d" % number])
        assert len(await many) == 3
        batch = asyncio.create_task(anext(consumer.batches(max_records=3, max_wait_ms=30_000)))
        for number in (3, 4, 5):
            witness.produce(topic, [b"%d" % number])

        assert len(await batch) == 3


async def test_offsets_without_records_do_not_delay_a_batch(new_topic, new_consumer, kafka_server, group):
    """A consumer that waits for a full batch skips control records and aborted data that exceed the buffer."""
    topic = new_topic()
    place = TopicPartition(topic, 0)
    servers = {"bootstrap.servers": kafka_server.bootstrap_servers}
    producer = Producer({**servers, "transactional.id": group, "batch.size": 20_000, "linger.ms": 5})
    await asyncio.to_thread(producer.init_transactions, 20)
    for count, ending in ((300, producer.abort_transaction), (2, producer.commit_transaction)):
        producer.begin_transaction()
        for number in range(count):
            producer.produce(topic, b"%d" % number * 500)
        await asyncio.to_thread(producer.flush, 20)
        await asyncio.to_thread(ending, 20)

    options = {"group_id": group, "isolation_level": "read_committed", "max_buffered_bytes": 50_000}
    async with new_consumer(topic, **options) as consumer, asyncio.timeout(40):
        batches = aiter(consumer.batches(max_records=10))
        batch = await anext(batches)
        waiting = asyncio.create_task(anext(batches))
        await until(lambda: consumer.offsets("done")[place] == 304)
        position, held = await consumer.position(place), consumer.statistics().buffered_bytes
        waiting.cancel()
        await asyncio.gather(waiting, return_exceptions=True)

    assert [record.offset for record in batch] == [301, 302]
    assert (position, held) == (304, 0)


async def test_an_error_ends_the_wait_for_more_records(new_topic, new_consumer, witness, group):
    """getmany() returns the records before an unreadable batch, even if fewer than min_records, and then raises."""
    topic = new_topic()
    witness.produce(topic, [b"x" * 100, b"y" * 100])
    witness.produce(topic, [b"z" * 5_000])

    async with new_consumer(topic, group_id=group, max_batch_bytes=1_000) as consumer, asyncio.timeout(30):
        batch = await consumer.getmany(min_records=100)
        with pytest.raises(RecordTooLargeError):
            await consumer.getmany(min_records=100)

    assert [record.offset for record in batch] == [0, 1]


async def test_a_loop_over_one_getmany_call_ends(new_topic, new_consumer, witness, group):
    """getmany() returns a list of the available records, and an empty one when there are no more at the timeout."""
    topic = new_topic()
    witness.produce(topic, (b"%d" % n for n in range(5)))

    async with new_consumer(topic, group_id=group) as consumer:
        first = [record.offset for record in await consumer.getmany()]
        second = [record.offset for record in await consumer.getmany(timeout_ms=100)]

    assert (first, second) == ([0, 1, 2, 3, 4], [])


async def test_timeout_ms_returns_none_or_an_empty_list(new_topic, new_consumer):
    """Without records, getone() returns None and getmany() an empty list after timeout_ms."""
    async with new_consumer(new_topic(), consumer_timeout_ms=60_000) as consumer:
        began_at = time.monotonic()
        assert await consumer.getone(timeout_ms=300) is None
        assert await consumer.getmany(timeout_ms=300) == []
        assert 0.5 < time.monotonic() - began_at < 20


async def test_consumer_timeout_ms_raises(new_topic, new_consumer, witness):
    """After consumer_timeout_ms without a record, every way of reading raises, and the consumer can be polled again."""
    topic = new_topic()

    async with new_consumer(topic, consumer_timeout_ms=300, auto_offset_reset="earliest") as consumer:
        for call in (consumer.getone, consumer.getmany, lambda: anext(aiter(consumer)), consumer.batches().__anext__):
            with pytest.raises(ConsumerTimeoutError, match="consumer_timeout_ms=300"):
                await call()
        witness.produce(topic, [b"late"])
        assert (await consumer.getone(timeout_ms=30_000)).value == b"late"


async def test_when_timed_out_stop_ends_the_loop(new_topic, new_consumer, witness):
    """With when_timed_out="stop", a loop ends without an error after the last record, and another loop may follow."""
    topic = new_topic()
    witness.produce(topic, [b"1", b"2"])
    options = {"consumer_timeout_ms": 500, "when_timed_out": "stop", "auto_offset_reset": "earliest"}

    async with new_consumer(topic, **options) as consumer:
        await until(lambda: bool(consumer.statistics().buffered_bytes))
        first = [record.value async for record in consumer]
        witness.produce(topic, [b"3"])
        await until(lambda: bool(consumer.statistics().buffered_bytes))
        second = [record.value async for batch in consumer.batches() for record in batch]

    assert (first, second) == ([b"1", b"2"], [b"3"])


async def test_a_running_loop_uses_changed_timeouts(new_topic, new_consumer):
    """An iterator that exists already applies the timeouts that reconfigure() changes."""
    async with new_consumer(new_topic()) as consumer, asyncio.timeout(30):
        batches = consumer.batches()
        await consumer.reconfigure(consumer_timeout_ms=200, when_timed_out="stop")

        assert [batch async for batch in batches] == []


async def test_batches_beside_another_reader_raise(new_topic, new_consumer, group):
    """While one task waits for a batch, getone() in another task raises ConsumerStateError."""
    async with new_consumer(new_topic(), group_id=group) as consumer:
        waiting = asyncio.create_task(anext(aiter(consumer.batches())))
        await asyncio.sleep(0)
        with pytest.raises(ConsumerStateError, match="at once"):
            await consumer.getone()
        waiting.cancel()
        await asyncio.gather(waiting, return_exceptions=True)
