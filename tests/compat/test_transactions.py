"""Promises of aiokafka's tests of transactions, under the names of its tests (see docs/compat.md)."""

from __future__ import annotations

import asyncio

import pytest

from tailrace import (
    ConfigurationError,
    ConsumerStateError,
    OffsetAndMetadata,
    Producer,
    ProducerFencedError,
    PublishError,
)
from tailrace.error_codes import ErrorCode
from tailrace.protocol.records import ProduceRequest
from tailrace.protocol.transactions import EndTxnRequest, InitProducerIdRequest
from tests.support.transaction_faults import with_code

# ---- producers -------------------------------------------------------------------------------------------------------


async def test_producer_transactional_simple(publishing):
    """A record of a transaction is read with the offset and time of its place."""
    producer = await publishing.transactional()
    async with producer.transaction():
        place = await producer.send_and_wait(publishing.topic, b"hello, Kafka!")
    record = await (await publishing.reader()).getone()
    assert (record.topic_partition, record.offset) == (place.topic_partition, place.offset)
    assert (record.timestamp, record.key, record.value) == (place.timestamp, None, b"hello, Kafka!")


async def test_producer_transactional_empty_txn(publishing):
    """Empty transactions can be committed and aborted, without a request to end them."""
    producer = await publishing.transactional(client_id=publishing.topic)
    await producer.begin_transaction()
    await producer.commit_transaction()
    await producer.begin_transaction()
    await producer.abort_transaction()
    assert not publishing.proxy.requests(EndTxnRequest, client_id=publishing.topic)


async def test_producer_transactional_fences_off_previous(publishing):
    """A second producer with the same transactional id fences the first."""
    first, second = await publishing.transactional(), await publishing.transactional()
    async with second.transaction():
        await second.send_and_wait(publishing.topic, b"hello, Kafka! 2")
    with pytest.raises(ProducerFencedError):
        async with first.transaction():
            await first.send_and_wait(publishing.topic, b"hello, Kafka!")


async def test_producer_transactional_restart_reaquire_pid(publishing):
    """A producer with the transactional id of an earlier one gets its producer id, in a later epoch."""
    for _ in range(2):
        producer = await publishing.transactional(client_id=publishing.topic)
        await producer.stop()
    answers = [one.message for one in publishing.proxy.answers(InitProducerIdRequest, client_id=publishing.topic)]
    # A coordinator that was elected a moment ago may refuse the first request.
    first, second = (one for one in answers if not one.error_code)
    assert first.producer_id == second.producer_id
    assert first.producer_epoch < second.producer_epoch


async def test_producer_transactional_raise_out_of_sequence(publishing):
    """A record that the broker refuses as out of sequence aborts its transaction; the next one succeeds."""
    producer = await publishing.transactional()
    refuse = with_code(ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER)
    await producer.begin_transaction()
    await producer.send_and_wait(publishing.topic, b"msg1", partition=0)
    with (
        publishing.proxy.edit_answer(ProduceRequest, refuse),
        pytest.raises(PublishError, match="OUT_OF_ORDER_SEQUENCE_NUMBER"),
    ):
        await producer.send_and_wait(publishing.topic, b"msg2", partition=0)
    with pytest.raises(PublishError, match=r"the transaction is over: .*OUT_OF_ORDER_SEQUENCE_NUMBER"):
        await producer.commit_transaction()
    async with producer.transaction():
        await producer.send_and_wait(publishing.topic, b"msg3", partition=0)

    reader = await publishing.reader(isolation_level="read_committed")
    assert (await reader.getone(publishing.first)).value == b"msg3"


async def transform(publishing, consumer, producer, *, fails: bool = False) -> None:
    """Copy 200 records of the topic in transactions of up to 20 records, with the offsets."""
    copied = 0
    while copied < 200:
        batch = await consumer.getmany(timeout_ms=20_000, max_records=20)
        async with producer.transaction():
            offsets = {}
            for partition, records in batch.items():
                for record in records:
                    value = b"OUT-" + record.value
                    await producer.send(f"{publishing.topic}-out", value, partition=partition.partition)
                offsets[partition] = records[-1].offset + 1
                copied += len(records)
            await producer.send_offsets_to_transaction(offsets, publishing.group)
            if fails:
                raise InterruptedError


async def test_producer_transactional_send_offsets_to_transaction(publishing):
    """A transaction commits the offsets of a consumer's group."""
    publishing.send(0, range(100))
    publishing.send(1, range(100, 200))
    consumer = await publishing.started(enable_auto_commit=False)
    producer = await publishing.transactional()
    for partition in (publishing.first, publishing.second):
        await consumer.commit({partition: 0})
        assert await consumer.committed(partition) == 0

    await transform(publishing, consumer, producer)
    assert [await consumer.committed(one) for one in (publishing.first, publishing.second)] == [100, 100]


async def test_producer_transactional_send_offsets_and_abort(publishing):
    """An aborted transaction commits no offsets; after seek_to_committed() the records are read again."""
    publishing.send(0, range(100))
    publishing.send(1, range(100, 200))
    consumer = await publishing.started(enable_auto_commit=False)
    producer = await publishing.transactional()
    for partition in (publishing.first, publishing.second):
        await consumer.commit({partition: 0})

    with pytest.raises(InterruptedError):
        await transform(publishing, consumer, producer, fails=True)
    assert [await consumer.committed(one) for one in (publishing.first, publishing.second)] == [0, 0]
    await consumer.seek_to_committed()
    await transform(publishing, consumer, producer)
    assert [await consumer.committed(one) for one in (publishing.first, publishing.second)] == [100, 100]

    reader = await publishing.reader(f"{publishing.topic}-out", isolation_level="read_committed")
    values = {(await reader.getone()).value for _ in range(200)}
    assert values == {b"OUT-%d" % number for number in range(200)}


async def test_producer_transactional_send_offsets_error_checks(publishing):
    """Offsets need an open transaction, and the consumer that has read the records.

    In aiokafka, they need the name of the group.
    """
    producer = await publishing.transactional()
    async with producer.inner.transaction() as transaction:
        for wrong in (None, publishing.group, {publishing.first: 1}):
            with pytest.raises(ConfigurationError, match=r"send_offsets\(\) takes the tailrace\.Consumer"):
                await transaction.send_offsets(wrong)
    with pytest.raises(ConsumerStateError, match="this transaction is not open"):
        await transaction.send_offsets(publishing.consumer(group_id=publishing.group).inner)


async def test_producer_transactional_flush_before_commit(publishing):
    """A commit waits for all records of its transaction."""
    producer = await publishing.transactional()
    await producer.begin_transaction()
    futures = [await producer.send(publishing.topic, b"Super msg") for _ in range(10)]
    await producer.commit_transaction()
    assert all(one.done() and one.result().offset >= 0 for one in futures)


async def test_producer_transactional_flush_2_batches_before_commit(publishing):
    """A commit waits for several batches of one partition."""
    producer = await publishing.transactional(max_batch_size=100)
    await producer.begin_transaction()
    futures = []
    for value in (b"1", b"2"):
        batch = producer.create_batch()
        batch.append(timestamp=None, key=None, value=value * 100)
        batch.close()
        futures.append(await producer.send_batch(batch, publishing.topic, partition=0))
    await producer.commit_transaction()
    assert [one.result().offset for one in futures if one.done()] == [0, 1]


async def canceled(call) -> None:
    """Start a call, and cancel it while it waits."""
    task = asyncio.create_task(call)
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


async def test_producer_transactional_cancel_txn_methods(publishing):
    """The next call completes a canceled commit or abort; in aiokafka, they continue in the background."""
    producer, topic = await publishing.transactional(), publishing.topic
    await producer.begin_transaction()
    await producer.send_and_wait(topic, b"1", partition=0)
    await canceled(producer.commit_transaction())
    await canceled(producer.begin_transaction())
    await producer.begin_transaction()
    await producer.send_and_wait(topic, b"2", partition=0)
    await canceled(producer.abort_transaction())
    async with producer.transaction():
        await producer.send_and_wait(topic, b"3", partition=0)

    reader = await publishing.reader(isolation_level="read_committed")
    assert [(await reader.getone()).value for _ in range(2)] == [b"1", b"3"]


async def test_producer_require_transactional_id(publishing):
    """A producer without a transactional id has no transactions."""
    producer = await publishing.started_producer()
    with pytest.raises(ConfigurationError, match="transactions need a transactional_id"):
        await producer.begin_transaction()
    with pytest.raises(ConfigurationError, match="transactions need a transactional_id"):
        async with producer.transaction():
            pass


async def sends_outside(publishing, send) -> None:
    """Check that a record is refused before, during and after the commit of a transaction."""
    producer = await publishing.transactional()
    with pytest.raises(ConsumerStateError, match="no transaction is open"):
        await send(producer)
    await producer.begin_transaction()
    await producer.send(publishing.topic, b"1", partition=0)
    with publishing.proxy.hold_answer(EndTxnRequest) as held:
        commit = asyncio.create_task(producer.commit_transaction())
        await held.wait_applied()
        with pytest.raises(ConsumerStateError, match="being committed"):
            await send(producer)
        held.release()
        await commit
    with pytest.raises(ConsumerStateError, match="no transaction is open"):
        await send(producer)
    async with producer.transaction():
        assert (await producer.send_and_wait(publishing.topic, b"3", partition=0)).offset == 2


async def test_producer_transactional_send_message_outside_txn(publishing):
    """Outside of a transaction, also during its commit, send() raises."""
    await sends_outside(publishing, lambda producer: producer.send(publishing.topic, b"2", partition=0))


async def test_producer_transactional_send_batch_outside_txn(publishing):
    """Outside of a transaction, also during its commit, send_batch() raises."""

    async def send(producer):
        batch = producer.create_batch()
        batch.append(timestamp=None, key=None, value=b"2")
        await producer.send_batch(batch, publishing.topic, partition=0)

    await sends_outside(publishing, send)


# ---- from kafka-python's tests ---------------------------------------------------------------------------------------


async def test_transactional_producer_offsets(publishing):
    """A transaction commits offsets with their metadata, and an aborted one commits none.

    In kafka-python, the name of the group is enough.
    """
    consumer = await publishing.started(enable_auto_commit=False)
    producer = await publishing.transactional()
    async with producer.transaction():
        await producer.send_and_wait(publishing.topic, b"msg1", partition=0)
        offsets = {publishing.first: OffsetAndMetadata(0, "metadata", 0)}
        await producer.send_offsets_to_transaction(offsets, publishing.group)
    await producer.begin_transaction()
    await producer.send_offsets_to_transaction({publishing.second: (1, "bad")}, publishing.group)
    await producer.abort_transaction()

    stored = await consumer.inner.committed(publishing.first)
    assert (stored.offset, stored.metadata) == (0, "metadata")
    assert await consumer.committed(publishing.second) is None


async def test_transaction_aborted_error_on_user_abort_with_undrained_batches(publishing):
    """Records that are not sent when their transaction is aborted raise an error; the next transaction succeeds."""
    producer = await publishing.transactional(linger_ms=10_000)
    await producer.begin_transaction()
    future = await producer.send(publishing.topic, b"value", partition=0)
    await producer.abort_transaction()
    with pytest.raises(PublishError, match="the transaction was aborted"):
        await future
    async with producer.transaction():
        future = await producer.send(publishing.topic, b"value", partition=0)
    assert future.result().offset >= 0


@pytest.mark.parametrize("options", [{"acks": 1}, {"acks": 0}, {"enable_idempotence": False}])
def test_transactional_id_with_acks_1_raises(options):
    """A transactional producer refuses options that contradict idempotence."""
    with pytest.raises(ConfigurationError, match=r"transactional_id.* needs"):
        Producer(transactional_id="tx-1", **options)


# ---- consumers -------------------------------------------------------------------------------------------------------


async def blocked(publishing, *, commits: bool) -> None:
    """Check that an open transaction blocks later records of its partition for read_committed."""
    plain, producer = await publishing.started_producer(), await publishing.transactional()
    reader = await publishing.reader(isolation_level="read_committed", fetch_max_wait_ms=50)
    await producer.begin_transaction()
    first = await producer.send_and_wait(publishing.topic, b"Hello from transaction", partition=0)
    second = await plain.send_and_wait(publishing.topic, b"Hello from non-transaction", partition=0)
    while reader.highwater(publishing.first) != 2:
        assert await reader.getmany(timeout_ms=50) == {}
    waiting = asyncio.create_task(reader.getone())

    await (producer.commit_transaction() if commits else producer.abort_transaction())
    if commits:
        record = await waiting
        assert (record.offset, record.timestamp) == (first.offset, first.timestamp)
        assert (record.key, record.value) == (None, b"Hello from transaction")
    record = await (reader.getone() if commits else waiting)
    assert (record.offset, record.timestamp, record.value) == (
        second.offset,
        second.timestamp,
        b"Hello from non-transaction",
    )
    while reader.highwater(publishing.first) != 3:
        assert await reader.getmany(timeout_ms=50) == {}


async def test_consumer_transactional_commit(publishing):
    """The records of a transaction, and later ones, are read when it is committed, in order."""
    await blocked(publishing, commits=True)


async def test_consumer_transactional_abort(publishing):
    """The records of an aborted transaction are skipped, and later ones are read when it is aborted."""
    await blocked(publishing, commits=False)


async def passes_control_record(publishing, isolation_level: str) -> None:
    """Check that a consumer passes the control record at its position."""
    producer = await publishing.transactional()
    async with producer.transaction():
        first = await producer.send_and_wait(publishing.topic, b"Hello from transaction", partition=0)
    reader = await publishing.reader(isolation_level=isolation_level, fetch_max_bytes=10, fetch_max_wait_ms=50)
    reader.seek(publishing.first, first.offset + 1)
    while await reader.position(publishing.first) != first.offset + 2:
        assert await reader.getmany(timeout_ms=50) == {}
    async with producer.transaction():
        second = await producer.send_and_wait(publishing.topic, b"Hello from transaction 2", partition=0)
    record = await reader.getone()
    assert (record.offset, record.timestamp) == (second.offset, second.timestamp)
    assert (record.key, record.value) == (None, b"Hello from transaction 2")


async def test_consumer_transactional_read_only_control_record(publishing):
    """A read_committed consumer passes a control record at its position."""
    await passes_control_record(publishing, "read_committed")


async def test_consumer_simple_read_only_control_record(publishing):
    """A read_uncommitted consumer passes a control record at its position."""
    await passes_control_record(publishing, "read_uncommitted")


async def test_consumer_several_transactions(publishing):
    """Only the records of the committed ones of ten transactions are read, in order."""
    producer = await publishing.transactional()
    for number in range(10):
        await producer.begin_transaction()
        await producer.send(publishing.topic, b"Hello %d" % number, partition=0)
        await (producer.abort_transaction() if number % 3 else producer.commit_transaction())

    reader = await publishing.reader(isolation_level="read_committed")
    values = [(await reader.getone()).value for _ in range(4)]
    assert values == [b"Hello %d" % number for number in (0, 3, 6, 9)]
    assert await reader.getmany(timeout_ms=500) == {}
