"""Reading: each record is delivered once and in order, however a loop or a call ends."""

from __future__ import annotations

import asyncio

import pytest

from tailrace import Consumer, ConsumerStateError, Record, TopicPartition
from tests.support.witness import offsets


async def read(consumer: Consumer, count: int) -> list[Record]:
    records = []
    async with asyncio.timeout(30):
        async for record in consumer:
            records.append(record)
            if len(records) == count:
                break
    return records


async def test_every_record_is_delivered_once_and_in_order(new_topic, new_consumer, witness, group):
    """``async for`` delivers each record of every partition once, in the order of its offsets."""
    topic = new_topic(4)
    witness.produce(topic, (b"%d" % n for n in range(5_000)))

    async with new_consumer(topic, group_id=group) as consumer:
        records = await read(consumer, 5_000)

    ends = await witness.ends(topic, 4)
    by_partition = {p: [offset for found, offset in offsets(records) if found == p] for p in range(4)}
    assert by_partition == {p: list(range(end)) for p, end in ends.items()}
    assert sorted(int(record.value) for record in records) == list(range(5_000))


async def test_a_record_has_the_fields_that_were_produced(new_topic, new_consumer, kafka_server):
    """A record has the producer's key, value, headers and timestamp, and null differs from an empty key or value."""
    from confluent_kafka import Producer  # noqa: PLC0415 - the one use

    topic = new_topic()
    producer = Producer({"bootstrap.servers": kafka_server.bootstrap_servers})
    producer.produce(topic, b"v", key=b"k", headers=[("a", b"1"), ("n", None)], timestamp=1_700_000_000_123)
    producer.produce(topic, None, key=b"")
    producer.flush(10)

    async with new_consumer(topic, auto_offset_reset="earliest") as consumer:
        first, second = await read(consumer, 2)

    assert (topic, 0, 0, b"k", b"v") == tuple(first)
    assert (list(first.headers), first.timestamp) == ([("a", b"1"), ("n", None)], 1_700_000_000_123)
    assert (second.key, second.value, second.offset) == (b"", None, 1)


async def test_without_a_group_only_new_records_are_delivered(new_topic, new_consumer, witness):
    """A consumer without a group reads only records written after its start."""
    topic = new_topic()
    witness.produce(topic, [b"before"])

    async with new_consumer(topic) as consumer:
        await consumer.position(TopicPartition(topic, 0))
        witness.produce(topic, [b"after"])

        assert (await consumer.getone(timeout_ms=30_000)).value == b"after"


async def test_a_canceled_getone_loses_no_record(new_topic, new_consumer, witness, group):
    """If calls of getone() are canceled while records arrive, each record is still delivered once."""
    topic = new_topic()
    got = []

    async with new_consumer(topic, group_id=group) as consumer:
        feeding = asyncio.create_task(asyncio.to_thread(feed, witness, topic))
        while len(got) < 300:
            try:
                got.append(await asyncio.wait_for(consumer.getone(), 0.001))
            except TimeoutError:
                continue
        await feeding

    assert list(range(300)) == [record.offset for record in got]


def feed(witness, topic):
    for n in range(30):
        witness.produce(topic, (b"%d" % (10 * n + i) for i in range(10)))


async def test_getone_returns_none_at_its_timeout(new_topic, new_consumer, group):
    """Without a record, getone() returns None after timeout_ms."""
    async with new_consumer(new_topic(), group_id=group) as consumer:
        assert await consumer.getone(timeout_ms=200) is None


async def test_polls_without_waiting_let_other_tasks_run(new_topic, new_consumer, witness, group):
    """With timeout_ms=0, each call returns buffered records, and a loop of such calls lets other tasks run."""
    topic = new_topic()
    witness.produce(topic, (b"%d" % n for n in range(30)))

    async def polled(poll, count: int) -> list[Record]:
        got, polls = [], 0
        while len(got) < count:
            polls += 1
            got += await poll() or ()
            await asyncio.sleep(0.03)
        assert polls <= count + 1, "a call returned no buffered record"
        return got

    async with new_consumer(topic, group_id=group) as consumer, asyncio.timeout(30):
        while (first := await consumer.getone(timeout_ms=0)) is None:
            pass

        async def one() -> list[Record]:
            record = await consumer.getone(timeout_ms=0)
            return [] if record is None else [record]

        got = [first, *await polled(one, 9)]
        got += await polled(lambda: consumer.getmany(max_records=2, timeout_ms=0), 20)
        assert await consumer.getone(timeout_ms=0) is None

    assert [record.offset for record in got] == list(range(30))


async def test_getmany_returns_buffered_records(new_topic, new_consumer, witness, group):
    """getmany() returns one to max_records records in order, or an empty list at its timeout."""
    topic = new_topic(2)
    witness.produce(topic, (b"x" for _ in range(500)), partition=0)
    witness.produce(topic, (b"x" for _ in range(500)), partition=1)
    got = []

    async with new_consumer(topic, group_id=group) as consumer:
        while len(got) < 1_000:
            batch = await consumer.getmany(max_records=77)
            assert 1 <= len(batch) <= 77
            got += batch
        assert await consumer.getmany(timeout_ms=100) == []

    assert sorted((p, o) for p in range(2) for o in range(500)) == sorted(offsets(got))
    assert [o for p, o in offsets(got) if p == 0] == list(range(500))


async def test_an_exception_leaves_the_record_unfinished(new_topic, new_consumer, witness, group):
    """If a loop ends by an exception, the record in flight is not committed."""
    topic = new_topic()
    witness.produce(topic, (b"%d" % n for n in range(10)))

    async def fail_in_the_loop() -> None:
        async with new_consumer(topic, group_id=group) as consumer:
            async for record in consumer:
                if record.offset == 5:
                    raise RuntimeError("in flight")

    with pytest.raises(RuntimeError, match="in flight"):
        await fail_in_the_loop()

    assert await witness.committed(group, topic, 1) == {0: 5}


async def test_break_leaves_the_record_unfinished_and_ack_finishes_it(new_topic, new_consumer, witness, group):
    """After ``break`` the record in flight is not committed, unless ack() was called before."""
    topic = new_topic()
    witness.produce(topic, (b"%d" % n for n in range(10)))

    async with new_consumer(topic, group_id=group) as consumer:
        async for record in consumer:
            if record.offset == 3:
                break
    after_break = await witness.committed(group, topic, 1)
    async with new_consumer(topic, group_id=group) as consumer:
        async for record in consumer:
            if record.offset == 5:
                assert consumer.ack(record)
                break

    assert after_break == {0: 3}
    assert await witness.committed(group, topic, 1) == {0: 6}


async def test_the_next_loop_continues_after_a_break(new_topic, new_consumer, witness, group):
    """A second loop on the same consumer continues with the next record."""
    topic = new_topic()
    witness.produce(topic, (b"%d" % n for n in range(10)))

    async with new_consumer(topic, group_id=group) as consumer:
        first = await read(consumer, 4)
        second = await read(consumer, 6)

    assert list(range(10)) == [record.offset for record in first + second]


async def test_the_next_poll_finishes_a_batch(new_topic, new_consumer, witness, group):
    """stop() commits all batches of getmany() but the last."""
    topic = new_topic()
    witness.produce(topic, (b"%d" % n for n in range(100)))

    async with new_consumer(topic, group_id=group) as consumer:
        for _ in range(2):
            await consumer.getmany(max_records=30, min_records=30)

    assert await witness.committed(group, topic, 1) == {0: 30}


async def test_ack_in_a_batch_covers_earlier_records(new_topic, new_consumer, witness, group):
    """ack() of a record in a batch finishes this record and the earlier ones."""
    topic = new_topic()
    witness.produce(topic, (b"%d" % n for n in range(100)))

    async with new_consumer(topic, group_id=group) as consumer:
        batch = await consumer.getmany(max_records=50, min_records=50)
        assert consumer.ack(batch[19])

    assert await witness.committed(group, topic, 1) == {0: 20}


async def test_two_readers_at_once_raise(new_topic, new_consumer, group):
    """While one task waits for a record, getone() in another task raises, and the first one continues to wait."""
    async with new_consumer(new_topic(), group_id=group) as consumer:
        first = asyncio.create_task(consumer.getone())
        await asyncio.sleep(0)

        with pytest.raises(ConsumerStateError, match="at once"):
            await consumer.getone()

        assert not first.done()
        first.cancel()
        await asyncio.gather(first, return_exceptions=True)


async def test_calls_before_start_raise(new_topic, new_consumer):
    """Before start(), reading, commit() and assignment() raise ConsumerStateError."""
    consumer = new_consumer(new_topic())

    with pytest.raises(ConsumerStateError, match="not started"):
        await consumer.getone()
    with pytest.raises(ConsumerStateError, match="not started"):
        async for _ in consumer:
            pass
    with pytest.raises(ConsumerStateError, match="not started"):
        await consumer.commit()
    with pytest.raises(ConsumerStateError, match="not started"):
        consumer.assignment()


async def test_calls_after_stop_raise(new_topic, new_consumer, group):
    """After stop(), reading and start() raise ConsumerStateError, and another stop() does nothing."""
    consumer = new_consumer(new_topic(), group_id=group)
    await consumer.start()
    await consumer.stop()
    await consumer.stop()

    with pytest.raises(ConsumerStateError, match="stopped"):
        await consumer.getone()
    with pytest.raises(ConsumerStateError, match="stopped"):
        async for _ in consumer:
            pass
    with pytest.raises(ConsumerStateError, match="stopped"):
        await consumer.start()


async def test_stop_from_another_task_ends_the_loop(new_topic, new_consumer, witness, group):
    """A loop that waits for records ends when another task calls stop()."""
    topic = new_topic()
    witness.produce(topic, [b"only"])
    consumer = new_consumer(topic, group_id=group)
    await consumer.start()
    got, first = [], asyncio.Event()

    async def read_all() -> None:
        async for record in consumer:
            got.append(record)
            first.set()

    reading = asyncio.create_task(read_all())
    await first.wait()
    await asyncio.create_task(consumer.stop())
    await asyncio.wait_for(reading, 20)

    assert [record.value for record in got] == [b"only"]


async def test_a_seek_discards_fetched_records(new_topic, new_consumer, witness, group):
    """The next record after a seek forward or backward is the one at the new position."""
    topic = new_topic()
    witness.produce(topic, (b"%d" % n for n in range(1_000)))
    partition = TopicPartition(topic, 0)

    async with new_consumer(topic, group_id=group) as consumer:
        await read(consumer, 10)
        await consumer.seek(partition, 503)
        assert await consumer.position(partition) == 503
        assert (await consumer.getone()).offset == 503
        await consumer.seek(partition, 2)
        assert (await consumer.getone()).offset == 2


async def test_a_paused_partition_continues_at_its_position(new_topic, new_consumer, witness, group):
    """A paused partition delivers no records while others continue, and continues at its position after resume()."""
    topic = new_topic(2)
    witness.produce(topic, (b"%d" % n for n in range(1_000)), partition=0)
    witness.produce(topic, (b"%d" % n for n in range(1_000)), partition=1)
    paused = TopicPartition(topic, 0)
    got: list[Record] = []

    async with new_consumer(topic, group_id=group) as consumer:
        while not any(record.partition == 0 for record in got):
            got.append(await consumer.getone())
        consumer.pause(paused)
        while sum(record.partition == 1 for record in got) < 1_000:
            got.append(await consumer.getone())
        assert frozenset({paused}) == consumer.paused()
        seen = sum(record.partition == 0 for record in got)
        assert await consumer.getone(timeout_ms=100) is None
        consumer.resume(paused)
        got += [await consumer.getone() for _ in range(1_000 - seen)]

    assert list(range(1_000)) == [offset for p, offset in offsets(got) if p == 0]
    assert list(range(1_000)) == [offset for p, offset in offsets(got) if p == 1]


async def test_a_record_larger_than_the_limits_is_delivered(new_topic, new_consumer, witness, group):
    """Records larger than the fetch limits and the buffer are delivered."""
    topic = new_topic()
    witness.produce(topic, [b"a" * 500_000, b"b" * 600_000, b"c"])

    limits = {"max_partition_fetch_bytes": 1_000, "fetch_max_bytes": 1_000, "max_buffered_bytes": 1_000}
    async with new_consumer(topic, group_id=group, **limits) as consumer:
        records = await read(consumer, 3)

    assert [len(record.value) for record in records] == [500_000, 600_000, 1]


@pytest.mark.parametrize("codec", ["gzip", "snappy", "lz4", "zstd"])
async def test_every_codec_is_decompressed(new_topic, new_consumer, witness, group, codec):
    """Batches compressed with gzip, snappy, lz4 or zstd are read."""
    topic = new_topic()
    witness.produce(topic, (b"%d" % n * 20 for n in range(2_000)), compression=codec)

    async with new_consumer(topic, group_id=group) as consumer:
        records = await read(consumer, 2_000)

    assert [b"%d" % n * 20 for n in range(2_000)] == [record.value for record in records]


async def test_read_committed_hides_aborted_records(new_topic, new_consumer, kafka_server, group):
    """With read_committed, aborted records are not delivered, and the position passes them and control records."""
    from confluent_kafka import Producer  # noqa: PLC0415 - the one use

    topic = new_topic()
    producer = Producer({"bootstrap.servers": kafka_server.bootstrap_servers, "transactional.id": group})
    producer.init_transactions(20)
    for value, keep in ((b"kept", True), (b"aborted", False), (b"kept too", True)):
        producer.begin_transaction()
        producer.produce(topic, value)
        producer.flush(10)
        (producer.commit_transaction if keep else producer.abort_transaction)(20)

    async with new_consumer(topic, group_id=group, isolation_level="read_committed") as consumer:
        records = await read(consumer, 2)
        # The last marker is written some time after the commit was acknowledged.
        async with asyncio.timeout(30):
            while await consumer.position(TopicPartition(topic, 0)) < 6:
                assert await consumer.getone(timeout_ms=50) is None

    assert [record.value for record in records] == [b"kept", b"kept too"]


async def test_a_seek_during_the_assignment_takes_precedence(kafka_server, new_topic, new_consumer, witness, group):
    """A seek right after the assignment takes precedence over the committed offset, whose request is in flight."""
    topic = new_topic()
    witness.produce(topic, (b"%d" % n for n in range(20)))
    partition = TopicPartition(topic, 0)

    async with new_consumer(topic, group_id=group) as consumer, asyncio.timeout(30):
        while partition not in consumer.assignment():  # noqa: ASYNC110 - no event is emitted so early
            await asyncio.sleep(0)
        await consumer.seek(partition, 12)
        record = await consumer.getone()

    assert record.offset == 12
