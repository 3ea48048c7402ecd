"""Reading Arrow record batches: ``arrow_batches``."""

from __future__ import annotations

import asyncio
import sys

import pyarrow as pa
import pytest
from confluent_kafka import Producer

from tailrace import ConfigurationError, ConsumerStateError, OffsetGapError, RecordTooLargeError, TopicPartition
from tailrace.batches import columns, record_batch
from tailrace.batches.columns import arrow_of
from tailrace.installation import COMPILED
from tailrace.observe.events import OffsetsCommitted

DECODERS = [
    pytest.param(True, id="compiled", marks=pytest.mark.skipif(not COMPILED, reason="there is no compiled module")),
    pytest.param(False, id="pure"),
]


@pytest.fixture(params=DECODERS)
def is_compiled(request, monkeypatch):
    """Run a test with the compiled decoder, and again without it."""
    if not request.param:
        monkeypatch.setattr(record_batch, "_BatchDecoder", None)


@pytest.fixture
def by_hand(new_consumer, group):
    """Return a function that creates consumers with ``ack="manual"`` and without automatic commits."""

    def make(*topics, **options):
        return new_consumer(*topics, **{"group_id": group, "ack": "manual", "enable_auto_commit": False, **options})

    return make


async def tables_of(consumer, count, **limits):
    """Read Arrow batches until they have ``count`` rows."""
    tables = []
    async with asyncio.timeout(40):
        async for table in consumer.arrow_batches(**limits):
            tables.append(table)
            if sum(one.num_rows for one in tables) >= count:
                return tables
    return tables


def offsets(table):
    return table.column("offset").to_pylist()


@pytest.mark.parametrize("compression", ["none", "lz4"])
@pytest.mark.usefixtures("is_compiled")
async def test_the_columns_have_all_fields_of_the_records(new_topic, new_consumer, witness, compression):
    """Arrow batches have the content that ``getmany`` returns, in the order of each partition's offsets."""
    topics = [new_topic(2), new_topic()]
    options = {"compression": compression, "batch_bytes": 2_000}
    for topic in topics:
        keys = [None if n % 3 else b"k%d" % n for n in range(300)]
        values = [None if n % 7 == 0 else b"v%d" % n for n in range(300)]
        witness.produce(topic, values, keys=keys, headers=[("trace", b"1"), ("none", None)], **options)
        witness.produce(topic, [b""], **options)

    async with new_consumer(*topics, auto_offset_reset="earliest") as consumer:
        records = []
        while len(records) < 602:
            records += await consumer.getmany()
        await consumer.seek_to_beginning()
        tables = await tables_of(consumer, 602, max_records=130, max_wait_ms=200)

    rows = pa.Table.from_batches(tables)
    rows.validate(full=True)
    order = [("topic", "ascending"), ("partition", "ascending"), ("offset", "ascending")]
    assert rows.sort_by(order) == pa.Table.from_batches([arrow_of(records)]).sort_by(order)
    assert max(one.num_rows for one in tables) <= 130
    seen = {}
    for row in rows.select(["topic", "partition", "offset"]).to_pylist():
        place = row["topic"], row["partition"]
        assert row["offset"] == seen.get(place, -1) + 1
        seen[place] = row["offset"]


async def test_max_records_limits_a_batch(new_topic, new_consumer, witness, group):
    """A batch has at most ``max_records`` rows, and ``max_records`` must be positive."""
    topic = new_topic()
    witness.produce(topic, (b"%d" % n for n in range(250)))

    async with new_consumer(topic, group_id=group) as consumer:
        tables = await tables_of(consumer, 250, max_records=100, max_wait_ms=700)
        for wrong in (0, -1):
            with pytest.raises(ConfigurationError, match="records"):
                consumer.arrow_batches(max_records=wrong)

    assert [one.num_rows for one in tables] == [100, 100, 50]


async def test_the_next_poll_finishes_a_batch_and_stop_ends_the_loop(new_topic, new_consumer, witness, group):
    """A loop over Arrow batches ends when another task calls stop(), which commits all batches but the current one."""
    topic = new_topic()
    witness.produce(topic, (b"%d" % n for n in range(50)), batch_bytes=200)
    consumer = new_consumer(topic, group_id=group)
    await consumer.start()
    seen, second, may_go_on = [], asyncio.Event(), asyncio.Event()

    async def read() -> None:
        async for table in consumer.arrow_batches(max_records=20, max_wait_ms=5_000):
            seen.append(offsets(table))
            if len(seen) == 2:
                second.set()
                await may_go_on.wait()

    reading = asyncio.create_task(read())
    await asyncio.wait_for(second.wait(), 30)
    position = await consumer.position(TopicPartition(topic, 0))
    await consumer.stop()
    may_go_on.set()
    await asyncio.wait_for(reading, 15)

    assert seen == [list(range(20)), list(range(20, 40))]
    assert position == 40
    assert await witness.committed(group, topic, 1) == {0: 20}


async def test_ack_finishes_the_batch_before_break(new_topic, new_consumer, witness, group):
    """ack() finishes the batch that was delivered last, once, and returns False for its copies and earlier batches."""
    topic = new_topic()
    witness.produce(topic, (b"%d" % n for n in range(50)))

    async with new_consumer(topic, group_id=group) as consumer:
        tables = aiter(consumer.arrow_batches(max_records=20))
        first, second = await anext(tables), await anext(tables)
        assert not consumer.ack(first)
        assert not consumer.ack(second.slice(0))
        assert consumer.ack(second)
        assert not consumer.ack(second)

    assert await witness.committed(group, topic, 1) == {0: 40}


async def test_an_unfinished_batch_is_delivered_again(new_topic, new_consumer, witness, group):
    """A batch whose loop body raised is delivered again to the next consumer of the group."""
    topic = new_topic()
    witness.produce(topic, (b"%d" % n for n in range(30)))

    async def fail_at_the_second() -> None:
        async with new_consumer(topic, group_id=group) as consumer:
            async for table in consumer.arrow_batches(max_records=10):
                if offsets(table)[0] == 10:
                    raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        await fail_at_the_second()

    async with new_consumer(topic, group_id=group) as consumer:
        (table,) = await tables_of(consumer, 1, max_records=10)

    assert offsets(table) == list(range(10, 20))


async def test_manual_ack_finishes_batches_in_any_order(new_topic, by_hand, witness, group):
    """With ack="manual", a commit stops at the lowest unacknowledged batch, and no finished batch is repeated."""
    topic = new_topic()
    witness.produce(topic, (b"%d" % n for n in range(60)), batch_bytes=200)

    async with by_hand(topic) as consumer:
        tables = aiter(consumer.arrow_batches(max_records=10, max_wait_ms=5_000))
        first, second, third, _ = [await anext(tables) for _ in range(4)]
        for table, expected in ((second, 0), (first, 20), (third, 30)):
            assert consumer.ack(table)
            assert not consumer.ack(table)
            await consumer.commit()
            assert await witness.committed(group, topic, 1) == {0: expected}
        assert consumer.ack(await anext(tables))
        await consumer.commit()

    async with by_hand(topic, ack="auto") as consumer:
        rows = pa.Table.from_batches(await tables_of(consumer, 20))
    assert offsets(rows) == [*range(30, 40), *range(50, 60)]


async def test_max_unacknowledged_records_limits_batches(new_topic, by_hand, witness):
    """With ack="manual", the loop waits for an acknowledgment at max_unacknowledged_records rows in flight."""
    topic = new_topic()
    witness.produce(topic, (b"%d" % n for n in range(60)))

    async with by_hand(topic, max_unacknowledged_records=25) as consumer, asyncio.timeout(40):
        tables = aiter(consumer.arrow_batches(max_records=20))
        first, second = await anext(tables), await anext(tables)
        waiting = asyncio.create_task(anext(tables))
        done, _ = await asyncio.wait({waiting}, timeout=0.3)
        assert not done
        assert consumer.ack(first)
        third = await waiting

    assert [one.num_rows for one in (first, second, third)] == [20, 5, 20]


async def test_a_seek_discards_the_batch_in_flight(new_topic, by_hand, new_consumer, witness, group):
    """After a seek, reading continues at the new offset, and the batch before the seek cannot be acknowledged."""
    topic = new_topic()
    place = TopicPartition(topic, 0)
    witness.produce(topic, (b"%d" % n for n in range(30)))

    for make in (by_hand, new_consumer):
        async with make(topic, group_id=group) as consumer:
            tables = aiter(consumer.arrow_batches(max_records=10))
            before = await anext(tables)
            await consumer.seek(place, 5)
            assert not consumer.ack(before)
            after = await anext(tables)
            assert (offsets(after), await consumer.position(place)) == (list(range(5, 15)), 15)
            assert not consumer.ack(before)
            assert consumer.ack(after)


async def test_a_paused_partition_is_left_out(new_topic, new_consumer, witness):
    """Arrow batches have no rows of a paused partition until it is resumed."""
    topic = new_topic(2)
    for partition in (0, 1):
        witness.produce(topic, (b"%d" % n for n in range(30)), partition=partition)

    async with new_consumer(topic, auto_offset_reset="earliest") as consumer:
        consumer.pause(TopicPartition(topic, 0))
        first = pa.Table.from_batches(await tables_of(consumer, 30))
        consumer.resume()
        second = pa.Table.from_batches(await tables_of(consumer, 30))

    assert set(first.column("partition").to_pylist()) == {1}
    assert set(second.column("partition").to_pylist()) == {0}


@pytest.mark.parametrize("allow_offset_gaps", [True, False])
@pytest.mark.usefixtures("is_compiled")
async def test_rows_and_records_may_be_read_in_turn(new_topic, new_consumer, witness, group, allow_offset_gaps):
    """getone() and arrow_batches() may be called in turn, and no record is lost or repeated."""
    topic = new_topic()
    witness.produce(topic, (b"%d" % n for n in range(100)), batch_bytes=300)
    seen = []

    options = {"group_id": group, "allow_offset_gaps": allow_offset_gaps}
    async with new_consumer(topic, **options) as consumer, asyncio.timeout(40):
        while len(seen) < 100:
            seen.append((await consumer.getone()).offset)
            if len(seen) < 90:
                async for table in consumer.arrow_batches(max_records=7, max_wait_ms=100):
                    seen += offsets(table)
                    break

    assert seen == list(range(100))
    assert await witness.committed(group, topic, 1) == {0: 99}


async def test_aborted_records_are_omitted(new_topic, new_consumer, kafka_server, group):
    """With isolation_level="read_committed", Arrow batches have no rows of aborted records and control records."""
    topic = new_topic()
    producer = Producer({"bootstrap.servers": kafka_server.bootstrap_servers, "transactional.id": group})
    await asyncio.to_thread(producer.init_transactions, 20)
    for count, end in (
        (3, producer.commit_transaction),
        (4, producer.abort_transaction),
        (2, producer.commit_transaction),
    ):
        producer.begin_transaction()
        for number in range(count):
            producer.produce(topic, b"%d" % number)
        await asyncio.to_thread(producer.flush, 20)
        await asyncio.to_thread(end, 20)

    async with new_consumer(topic, group_id=group, isolation_level="read_committed") as consumer:
        rows = pa.Table.from_batches(await tables_of(consumer, 5))

    assert offsets(rows) == [0, 1, 2, 9, 10]


async def test_a_gap_in_the_offsets_raises(new_topic, new_consumer, kafka_server, group):
    """With allow_offset_gaps=False, the rows before a gap are delivered, and the next batch raises OffsetGapError."""
    topic = new_topic()
    producer = Producer({"bootstrap.servers": kafka_server.bootstrap_servers, "transactional.id": group})
    await asyncio.to_thread(producer.init_transactions, 20)
    for number in range(2):
        producer.begin_transaction()
        producer.produce(topic, b"%d" % number)
        await asyncio.to_thread(producer.commit_transaction, 20)

    async with new_consumer(topic, auto_offset_reset="earliest", allow_offset_gaps=False) as consumer:
        tables = aiter(consumer.arrow_batches())
        first = await asyncio.wait_for(anext(tables), 30)
        with pytest.raises(OffsetGapError):
            await asyncio.wait_for(anext(tables), 30)

    assert offsets(first) == [0]


async def test_rows_before_an_error_are_delivered(new_topic, new_consumer, witness):
    """The rows before a batch that exceeds max_batch_bytes are delivered, and the next batch raises the error."""
    topic = new_topic()
    witness.produce(topic, [b"x" * 100, b"y" * 100])
    witness.produce(topic, [b"z" * 5_000])

    async with new_consumer(topic, auto_offset_reset="earliest", max_batch_bytes=1_000) as consumer:
        tables = aiter(consumer.arrow_batches(max_wait_ms=10_000))
        first = await asyncio.wait_for(anext(tables), 30)
        with pytest.raises(RecordTooLargeError):
            await asyncio.wait_for(anext(tables), 30)

    assert offsets(first) == [0, 1]


async def test_rows_that_cannot_be_built_stay_unfinished(new_topic, new_consumer, witness, group, monkeypatch):
    """If an Arrow batch cannot be built, for lack of memory, its rows are not committed, and the next poll raises."""
    topic = new_topic()
    witness.produce(topic, [b"1", b"2"])

    def fail(_self):
        raise MemoryError

    async with new_consumer(topic, group_id=group) as consumer, asyncio.timeout(40):
        with monkeypatch.context() as patch:
            patch.setattr(columns.ColumnBuilder, "finish", fail)
            with pytest.raises(MemoryError):
                await anext(consumer.arrow_batches())
        with pytest.raises(ConsumerStateError, match="could not be built"):
            await consumer.getone()

    assert await witness.committed(group, topic, 1) in ({}, {0: 0})


async def test_commits_after_a_number_of_records_count_rows(new_topic, new_consumer, witness, group, recorder):
    """auto_commit_every_records counts the rows of finished batches."""
    topic = new_topic()
    witness.produce(topic, (b"%d" % n for n in range(50)))
    options = {"auto_commit_interval_ms": None, "auto_commit_every_records": 20, "hooks": [recorder]}

    async with new_consumer(topic, group_id=group, **options) as consumer, asyncio.timeout(40):
        tables = aiter(consumer.arrow_batches(max_records=10))
        for _ in range(4):
            await anext(tables)
        await recorder.wait_for(OffsetsCommitted)
        committed = await witness.committed(group, topic, 1)

    assert committed[0] in {20, 30}


async def test_deserializers_and_a_missing_pyarrow_are_refused(new_topic, new_consumer, monkeypatch):
    """arrow_batches() raises an error that names the remedy if the consumer has deserializers or pyarrow is missing."""
    topic = new_topic()
    async with new_consumer(topic, value_deserializer=bytes.decode) as consumer:
        with pytest.raises(ConfigurationError, match=r"batches\(\)"):
            consumer.arrow_batches()
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    async with new_consumer(topic) as consumer:
        with pytest.raises(ConfigurationError, match=r"pip install .*\[arrow\]"):
            consumer.arrow_batches()


@pytest.mark.parametrize("protocol", ["classic", "consumer"])
async def test_a_rebalance_loses_and_repeats_no_row(new_topic, new_consumer, witness, group, protocol):
    """Two members that read Arrow batches during a rebalance receive and commit each record once."""
    topic, options = new_topic(4), {"group_id": group, "auto_offset_reset": "earliest", "group_protocol": protocol}
    for partition in range(4):
        witness.produce(topic, (b"%d" % n for n in range(500)), partition=partition)
    rows: dict[str, list[tuple[int, int]]] = {"first": [], "second": []}
    third_batch, all_read = asyncio.Event(), asyncio.Event()

    async def read(name: str, consumer) -> None:
        async for table in consumer.arrow_batches(max_records=30, max_wait_ms=50):
            columns = table.column("partition").to_pylist(), table.column("offset").to_pylist()
            rows[name] += zip(*columns, strict=True)
            if len(rows["first"]) >= 90:
                third_batch.set()
            if not rows["second"]:
                # Leave records for the second member.
                await asyncio.sleep(0.5)
            if len(rows["first"]) + len(rows["second"]) >= 2_000:
                all_read.set()

    async with new_consumer(topic, **options) as first:
        reading = [asyncio.create_task(read("first", first))]
        await asyncio.wait_for(third_batch.wait(), 30)
        async with new_consumer(topic, **options) as second:
            reading.append(asyncio.create_task(read("second", second)))
            await asyncio.wait_for(all_read.wait(), 60)
            await first.commit()
            await second.commit()
    await asyncio.gather(*reading)

    assert rows["second"], "the second member received no records"
    assert sorted(rows["first"] + rows["second"]) == [(p, n) for p in range(4) for n in range(500)]
    for name, own in rows.items():
        for partition in range(4):
            read_offsets = [offset for one, offset in own if one == partition]
            assert read_offsets == sorted(read_offsets), name
    assert await witness.committed(group, topic, 4) == dict.fromkeys(range(4), 500)
