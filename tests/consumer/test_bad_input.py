"""Invalid input raises a typed error with advice, in bounded time."""

from __future__ import annotations

import asyncio
import gc
import time

import pytest

from tailrace import (
    BrokerConnectionError,
    ConfigurationError,
    Consumer,
    ConsumerStateError,
    InvalidTopicError,
    OffsetAndMetadata,
    TopicPartition,
    UnknownPartitionError,
    UnknownTopicError,
)
from tailrace.protocol.metadata import MetadataRequest
from tests.support.consumer_group import until


async def test_start_raises_for_an_unknown_topic(new_consumer, group):
    """start() raises UnknownTopicError for an unknown topic in bounded time and leaves no task."""
    consumer = new_consumer("no-such-topic", group_id=group)
    began = time.monotonic()

    with pytest.raises(UnknownTopicError, match=r"no-such-topic.*create the topic"):
        await consumer.start()

    assert time.monotonic() - began < 15
    assert {asyncio.current_task()} == asyncio.all_tasks()


async def test_the_error_for_a_missing_partition_advises_to_name_another(new_topic, new_consumer):
    """assign() of a missing partition raises UnknownPartitionError, which advises an existing partition."""
    topic = new_topic()
    async with new_consumer() as consumer:
        with pytest.raises(
            UnknownTopicError, match=rf"{topic}\[7\].* count is 1, .*name an existing partition"
        ) as raised:
            await consumer.assign((topic, 7))

    assert isinstance(raised.value, UnknownPartitionError)
    assert "create the topic" not in str(raised.value)


async def test_start_raises_for_an_illegal_topic_name(new_consumer, group):
    """start() raises InvalidTopicError with Kafka's rule for an illegal topic name."""
    with pytest.raises(InvalidTopicError, match="249 characters"):
        await new_consumer("no spaces, please", group_id=group).start()


async def test_start_waits_for_a_topic_created_just_now(witness_of, group):
    """start() waits some seconds for a topic that is being created."""
    consumer = witness_of.consumer(group, group_id=group, client_id=group)

    def asked():
        return witness_of.proxy.answers(MetadataRequest, client_id=group)

    starting = asyncio.create_task(consumer.start())
    await until(lambda: bool(asked()))
    was_there = not asked()[0].message.topics[0].error_code
    await asyncio.to_thread(witness_of.server.create_topic, group)
    await starting
    await until(lambda: bool(consumer.assignment()))
    found = consumer.assignment()
    await consumer.stop()

    assert not was_there
    assert found == {TopicPartition(group, 0)}


async def test_a_port_without_kafka_is_recognized(group):
    """start() at the port of a web server raises an error that names a web server."""

    async def answer(reader, writer):
        await reader.read(1_000)
        writer.write(b"HTTP/1.1 400 Bad Request\r\n\r\n")
        writer.close()

    server = await asyncio.start_server(answer, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    async with server:
        with pytest.raises(BrokerConnectionError, match="web server"):
            await Consumer("t", bootstrap_servers=f"127.0.0.1:{port}", start_timeout_ms=2_500).start()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"group": "g"}, "group_id"),
        ({"session_timeout": 1}, "session_timeout_ms"),
        ({"session_timeout_ms": "soon"}, "session_timeout_ms"),
        ({"heartbeat_interval_ms": 50_000}, "heartbeat_interval_ms"),
        ({"enable_auto_commit": True}, "group_id"),
        ({"auto_offset_reset": "smallest"}, "auto_offset_reset"),
        ({"bootstrap_servers": "localhost:kafka"}, "localhost:kafka"),
        ({"fetch_wait_max_ms": 1}, "fetch_max_wait_ms"),
        ({"partition_assignment_strategy": ("best",), "group_id": "g"}, "range"),
    ],
)
def test_invalid_options_raise_in_the_constructor(options, message):
    """An unknown, invalid or contradictory option raises in the constructor."""
    with pytest.raises(ConfigurationError, match=message):
        Consumer("t", **options)


async def test_start_raises_without_bootstrap_servers(monkeypatch):
    """start() without bootstrap_servers raises an error that names the environment variable."""
    monkeypatch.delenv("TAILRACE_BOOTSTRAP_SERVERS", raising=False)

    with pytest.raises(ConfigurationError, match="TAILRACE_BOOTSTRAP_SERVERS"):
        await Consumer("t").start()


@pytest.mark.parametrize("topics", [("",), (b"t",), (["a", "b"],)])
def test_topics_must_be_names(topics):
    """Topics of other types raise in the constructor."""
    with pytest.raises(ConfigurationError, match="topic"):
        Consumer(*topics)


async def test_max_records_must_be_positive(new_topic, new_consumer):
    """getmany(max_records=0) raises ConfigurationError."""
    async with new_consumer(new_topic()) as consumer:
        with pytest.raises(ConfigurationError, match="max_records"):
            await consumer.getmany(max_records=0)


async def test_an_invalid_seek_raises(new_topic, new_consumer, group):
    """seek() raises for a partition that is not assigned and for a negative offset."""
    topic = new_topic()
    async with new_consumer(topic) as consumer:
        with pytest.raises(ConsumerStateError, match="not assigned"):
            await consumer.seek(TopicPartition(topic, 7), 0)
        with pytest.raises(ConfigurationError, match="offset=-1"):
            await consumer.seek(TopicPartition(topic, 0), -1)


@pytest.mark.parametrize("offset", [-5, 2**63, "3", 1.5, True])
async def test_invalid_offsets_are_neither_committed_nor_sought(new_topic, new_consumer, group, offset):
    """commit() and seek() raise for values that are no valid offset."""
    partition = TopicPartition(new_topic(), 0)

    async with new_consumer(partition.topic, group_id=group) as consumer:
        for wrong in (offset, OffsetAndMetadata(offset)):
            with pytest.raises(ConfigurationError, match="an offset must be a non-negative integer, not "):
                await consumer.commit({partition: wrong})
        await until(lambda: bool(consumer.assignment()))
        with pytest.raises(ConfigurationError, match=r"offset=.* must be"):
            await consumer.seek(partition, offset)


def test_a_consumer_that_was_never_stopped_warns(new_topic, new_consumer, group):
    """A consumer that is garbage-collected without stop() emits a ResourceWarning."""
    topic = new_topic()

    async def start_only():
        consumer = new_consumer(topic, group_id=group)
        await consumer.start()

    def forget():
        asyncio.run(start_only())
        gc.collect()

    with pytest.warns(ResourceWarning, match="never stopped"):
        forget()


async def test_pause_raises_for_anything_but_partitions(new_topic, new_consumer):
    """pause() and resume() raise for a set in place of partitions."""
    async with new_consumer(new_topic()) as consumer:
        for call in (consumer.pause, consumer.resume):
            with pytest.raises(ConfigurationError, match="a partition must be a TopicPartition"):
                call(consumer.assignment())

        assert consumer.paused() == frozenset()
