"""Calls that the transactional producer refuses, and errors of brokers."""

from __future__ import annotations

import asyncio

import pytest

from tailrace import (
    ConfigurationError,
    ConsumerStateError,
    OffsetAndMetadata,
    PublishError,
    PublishTooLargeError,
    TopicPartition,
)
from tailrace.config import resolve
from tailrace.producer.publisher import OutgoingRecord
from tailrace.producer.transaction_machine import OPEN, ProducerState
from tailrace.producer.transactional_producer import TransactionalProducer
from tests.support.committed_records import CommittedRecords


@pytest.fixture
def ledger(kafka_server) -> CommittedRecords:
    return CommittedRecords(kafka_server)


async def test_a_refused_record_aborts_its_transaction(ledger):
    """A refused record aborts its transaction; commit() raises the reason, and the next transaction succeeds."""
    topic, small = ledger.topic(), ledger.topic(max_message_bytes=1_000)

    async with ledger.producer() as producer:
        await producer.begin()
        await producer.send(OutgoingRecord(topic, b"with it"))
        await producer.send(OutgoingRecord(small, b"x" * 10_000))
        with pytest.raises(PublishError, match=rf"{small}\[0\].*MESSAGE_TOO_LARGE.*the transaction was aborted"):
            await producer.commit()
        with pytest.raises(PublishError, match=r"the transaction is over: .*MESSAGE_TOO_LARGE"):
            await producer.send(OutgoingRecord(topic, b"after it"))
        await producer.abort()
        await producer.begin()
        await producer.send(OutgoingRecord(topic, b"the next"))
        await producer.send(OutgoingRecord(small, b"x"))
        await producer.commit()

    assert await ledger.values(topic) == [b"the next"]
    assert await ledger.values(small) == [b"x"]


async def test_an_invalid_record_leaves_the_transaction_open(ledger, monkeypatch):
    """An unknown topic or partition, or an invalid record, raises PublishError; the transaction can be committed."""
    topic = ledger.topic()

    async with ledger.producer() as producer:
        await producer.begin()
        await producer.send(OutgoingRecord(topic, b"good"))
        monkeypatch.setattr("tailrace.producer.runtime.DEFAULT_LOOKUP_S", 1.0)
        with pytest.raises(PublishError, match=r"no-such-topic.*UNKNOWN_TOPIC_OR_PARTITION"):
            await producer.send(OutgoingRecord("no-such-topic", b"bad"))
        with pytest.raises(PublishError, match="has no partition 7 - its partitions are 0 to 0"):
            await producer.send(OutgoingRecord(topic, b"bad", partition=7))
        with pytest.raises(PublishError, match=f"{topic}: cannot encode the record"):
            await producer.send(OutgoingRecord(topic, "text"))
        await producer.commit()

    assert await ledger.values(topic) == [b"good"]


async def test_a_call_in_the_wrong_state_raises_with_advice(ledger):
    """A call in the wrong state raises ConsumerStateError that names the call to make first."""
    topic, producer = ledger.topic(), ledger.producer()
    with pytest.raises(ConsumerStateError, match="async with"):
        await producer.begin()

    async with producer:
        with pytest.raises(ConsumerStateError, match="begin"):
            await producer.send(OutgoingRecord(topic, b"x"))
        with pytest.raises(ConsumerStateError, match="begin"):
            await producer.commit()
        await producer.abort()
        await producer.begin()
        with pytest.raises(ConsumerStateError, match="commit"):
            await producer.begin()
        with pytest.raises(ConfigurationError, match="group_id"):
            await producer.commit({TopicPartition(topic, 0): OffsetAndMetadata(1)})
        await producer.commit()

    with pytest.raises(ConsumerStateError, match="create another"):
        await producer.start()
    await producer.close()


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"transactional_id": ""}, "transactional_id"),
        ({"transaction_timeout_ms": 0}, "transaction_timeout_ms must be at least 1, not 0"),
        ({"compression_type": "brotli"}, "compression_type must be one of .*'zstd', not 'brotli'"),
        ({"max_batch_size": 0}, "max_batch_size must be at least 1, not 0"),
    ],
)
async def test_an_invalid_option_raises_in_the_constructor(options, words):
    """An invalid option raises ConfigurationError in the constructor."""
    with pytest.raises(ConfigurationError, match=words):
        TransactionalProducer(resolve({"bootstrap_servers": "127.0.0.1:1"}, {}), **{"transactional_id": "x", **options})


async def test_a_transaction_timeout_above_the_brokers_maximum_raises_at_start(ledger):
    """A transaction_timeout_ms above the broker's maximum raises at start()."""
    with pytest.raises(PublishError, match="INVALID_TRANSACTION_TIMEOUT"):
        await ledger.producer(transaction_timeout_ms=2_000_000_000).start()


async def test_a_partition_that_was_added_since_is_found(kafka_server, ledger):
    """A record for an unknown partition refreshes the metadata before it raises."""
    topic = ledger.topic()

    async with ledger.producer() as producer:
        await producer.begin()
        await producer.send(OutgoingRecord(topic, b"0"))
        await producer.commit()
        kafka_server.add_partitions(topic, 2)
        ledger._partitions[topic] = 2
        await producer.begin()
        await producer.send(OutgoingRecord(topic, b"1", partition=1))
        await producer.commit()

    assert await ledger.values(topic) == [b"0", b"1"]


async def test_after_an_abort_the_next_call_raises_the_reason_once(ledger):
    """After an abort the next call, even begin(), raises the reason once."""
    topic, small = ledger.topic(), ledger.topic(max_message_bytes=1_000)

    async with ledger.producer() as producer, asyncio.timeout(20):
        for call in (producer.begin, producer.commit):
            await producer.begin()
            await producer.send(OutgoingRecord(topic, b"with it"))
            refused = await producer.send(OutgoingRecord(small, b"x" * 10_000))
            with pytest.raises(PublishTooLargeError):
                await refused
            while producer.state in OPEN or producer.state is ProducerState.ABORTING:  # noqa: ASYNC110 - no event
                await asyncio.sleep(0.01)
            with pytest.raises(PublishTooLargeError, match=r"the transaction is over: .*MESSAGE_TOO_LARGE"):
                await call()
        await producer.begin()
        await producer.send(OutgoingRecord(topic, b"the next"))
        await producer.commit()

    assert await ledger.values(topic) == [b"the next"]
