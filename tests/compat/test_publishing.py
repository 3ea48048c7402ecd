"""Promises of aiokafka's producer tests, under the names of its tests (see docs/compat.md)."""

from __future__ import annotations

import asyncio
import json
import time
import weakref

import pytest
from msgspec.structs import replace

from tailrace import (
    ConfigurationError,
    ConsumerStateError,
    Producer,
    PublishError,
    PublishTimeoutError,
    PublishTooLargeError,
)
from tailrace.error_codes import ErrorCode
from tailrace.protocol.metadata import MetadataRequest
from tailrace.protocol.records import ProduceRequest
from tailrace.protocol.transactions import InitProducerIdRequest
from tests.support.aiokafka_producer_interface import AiokafkaProducerInterface
from tests.support.transaction_faults import with_code

# ---- life ------------------------------------------------------------------------------------------------------------


async def test_producer_start(publishing):
    """An invalid acks is refused, and partitions_for() lets the broker create the topic."""
    with pytest.raises(ConfigurationError, match="acks must be 'all', 1 or 0, not 122"):
        publishing.producer(acks=122)
    producer = await publishing.started_producer()
    assert await producer.partitions_for(f"{publishing.topic}-created") == {0, 1}
    await producer.stop()
    with pytest.raises(ConsumerStateError, match="stopped"):
        await producer.flush()


async def test_producer_warn_unclosed(creating_server):
    """A producer that is garbage-collected without stop() emits a ResourceWarning."""
    producer = AiokafkaProducerInterface(bootstrap_servers=creating_server.bootstrap_servers)
    await producer.start()
    collected = weakref.ref(producer.inner)
    with pytest.warns(ResourceWarning, match="never stopped"):
        del producer
    assert collected() is None


async def test_producer_notopic(compat):
    """A record to a topic that no broker knows fails within request_timeout_ms."""
    since = time.monotonic()
    async with compat.producer(request_timeout_ms=200) as producer:
        with pytest.raises(PublishError, match="missing"):
            await producer.send_and_wait(f"missing-{compat.topic}", b"hello")
    assert time.monotonic() - since < 10


def test_create_producer_no_running_loop(creating_server):
    """A producer may be created outside of the event loop that runs it."""
    producer = AiokafkaProducerInterface(bootstrap_servers=creating_server.bootstrap_servers)
    with asyncio.Runner() as runner:
        runner.run(producer.start())
        try:
            future = runner.run(producer.send("no-running-loop", b"hello, Kafka!", partition=0))

            async def result():
                return await future

            place = runner.run(result())
            assert (place.topic, place.partition, place.offset) == ("no-running-loop", 0, 0)
        finally:
            runner.run(producer.stop())


async def test_producer_context_manager(publishing):
    """``async with`` starts and stops a producer, also after an exception, and delivers the records."""
    for number, error in enumerate((None, ValueError)):
        producer = publishing.producer()
        try:
            async with producer as same:
                assert same is producer
                future = await producer.send(publishing.topic, b"value", key=b"KEY")
                if error is not None:
                    raise error
        except ValueError:
            assert error is ValueError
        assert future.result().offset == number
        with pytest.raises(ConsumerStateError, match="stopped"):
            await producer.send(publishing.topic, b"value")


async def test_producer_arguments(publishing):
    """An unknown security_protocol is refused; SSL needs no ssl_context."""
    with pytest.raises(ConfigurationError, match="security_protocol must be one of 'PLAINTEXT', 'SSL'"):
        publishing.producer(security_protocol="SOME")
    publishing.producer(security_protocol="SSL", ssl_context=None)


# ---- records ---------------------------------------------------------------------------------------------------------


async def test_producer_send(publishing):
    """send() returns a future of the place; records have the partition that is asked for.

    A str is encoded; in aiokafka, it raises TypeError.
    """
    producer, topic = await publishing.started_producer(), publishing.topic
    first = await (await producer.send(topic, "hello, Kafka!", partition=0))
    assert (first.topic, first.partition, first.offset) == (topic, 0, 0)
    assert (await (await producer.send(topic, b"second msg", partition=1))).partition == 1
    assert (await (await producer.send(topic, b"value", key=b"KEY"))).partition in {0, 1}
    assert (await producer.send_and_wait(topic, b"value")).partition in {0, 1}
    with pytest.raises(PublishError, match="cannot be encoded"):
        await producer.send(topic, object(), partition=0)
    await producer.stop()
    with pytest.raises(ConsumerStateError, match="stopped"):
        await producer.send(topic, b"value", key=b"KEY")


async def test_producer_send_noack(publishing):
    """With acks=0, a future completes without an offset; the place has the offset -1, in aiokafka it is None."""
    producer = await publishing.started_producer(acks=0)
    futures = [await producer.send(publishing.topic, b"hello, Kafka!", partition=number) for number in (0, 1)]
    assert [(one.partition, one.offset) for one in await asyncio.gather(*futures)] == [(0, -1), (1, -1)]


async def test_producer_send_with_serializer(publishing):
    """Serializers encode keys and values; a record above max_request_size is refused; a second stop() does nothing."""
    producer = await publishing.started_producer(
        value_serializer=lambda value: json.dumps(value).encode(),
        key_serializer=lambda key: key.upper().encode(),
        acks="all",
        max_request_size=1_000,
    )
    value = {"strKey": 23523.443, 23: "STRval"}
    first = await producer.send_and_wait(publishing.topic, value, key="some key")
    second = await producer.send_and_wait(publishing.topic, "some str", key="some key")
    assert (second.partition, second.offset) == (first.partition, first.offset + 1)
    with pytest.raises(PublishTooLargeError, match="max_request_size=1000"):
        await producer.send(publishing.topic, {**value, 23: "*VALUE" * 800}, key="some key")
    await producer.stop()
    await producer.stop()

    record = await (await publishing.reader()).getone()
    assert (record.key, json.loads(record.value)) == (b"SOME KEY", {"strKey": 23523.443, "23": "STRval"})


async def test_producer_send_with_compression(publishing):
    """An unknown compression is refused; short and long records are compressed and stored."""
    with pytest.raises(ConfigurationError, match="compression_type must be one of"):
        publishing.producer(compression_type="my_custom")
    producer = await publishing.started_producer(compression_type="gzip")
    for value in (b"this msg is too short for compress", b"large_message-" * 100):
        place = await producer.send_and_wait(publishing.topic, value, partition=0)
        assert (place.topic, place.partition) == (publishing.topic, 0)


async def test_producer_send_with_headers(publishing):
    """send() takes headers."""
    producer = await publishing.started_producer()
    await (await producer.send(publishing.topic, b"msg", partition=0, headers=[("type", b"Normal")]))
    assert (await (await publishing.reader()).getone()).headers == (("type", b"Normal"),)


async def test_producer_send_and_wait_with_headers(publishing):
    """send_and_wait() takes headers."""
    producer = await publishing.started_producer()
    await producer.send_and_wait(publishing.topic, b"msg", partition=0, headers=[("type", b"Normal")])
    assert (await (await publishing.reader()).getone()).headers == (("type", b"Normal"),)


async def test_producer_correct_time_returned(publishing):
    """A place has the time of the call, the given time, or the broker's with LogAppendTime."""
    producer, by_broker = await publishing.started_producer(), f"{publishing.topic}-by-broker"
    publishing.server.create_topic(by_broker, 1, config={"message.timestamp.type": "LogAppendTime"})

    before = time.time() * 1000
    assert before - 1 <= (await producer.send_and_wait(publishing.topic, b"text1")).timestamp <= time.time() * 1000
    given = await producer.send_and_wait(publishing.topic, b"text1", timestamp_ms=123123123)
    assert given.timestamp == 123123123
    assert (await producer.send_and_wait(by_broker, b"text1", timestamp_ms=123123123)).timestamp >= before - 1


async def test_producer_flush_test(publishing):
    """After flush(), all records are acknowledged; the broker creates the topic."""
    producer = await publishing.started_producer()
    futures = [await producer.send(f"{publishing.topic}-flushed", value) for value in (b"text1", b"text2")]
    assert not any(one.done() for one in futures)
    await producer.flush()
    assert all(one.done() for one in futures)


async def test_producer_send_empty_batch(publishing):
    """A record that cannot be encoded leaves no batch behind."""
    producer = await publishing.started_producer()
    with pytest.raises(PublishError, match="cannot be encoded"):
        await producer.send(publishing.topic, object())
    await producer.flush()
    assert producer.inner.statistics().requests.count == 0


# ---- batches ---------------------------------------------------------------------------------------------------------


async def test_producer_send_batch(publishing):
    """A batch takes records up to its limit, and is stored as a whole after earlier records."""
    producer, topic = await publishing.started_producer(max_batch_size=10_000), publishing.topic
    (partition, *_) = await producer.partitions_for(topic)
    before = await producer.send_and_wait(topic, b"discovering offset", partition=partition)
    batch = producer.create_batch()
    while batch.append(key=b"test key", value=b"test value", timestamp=None) is not None:
        pass
    place = await (await producer.send_batch(batch, topic, partition=partition))
    after = await producer.send_and_wait(topic, b"last", partition=partition)
    assert (place.topic, place.partition, place.offset) == (topic, partition, before.offset + 1)
    assert after.offset == place.offset + batch.record_count() > place.offset + 1

    large = producer.create_batch()
    assert large.append(key=None, value=b"m" * 10_001, timestamp=None) is not None
    assert (await (await producer.send_batch(large, topic, partition=partition))).offset == after.offset + 1
    await producer.stop()
    with pytest.raises(ConsumerStateError, match="stopped"):
        await producer.send_batch(batch, topic, partition=partition)


async def test_producer_send_batch_with_serializer(publishing):
    """Serializers encode the records of a batch."""
    producer = await publishing.started_producer(
        key_serializer=lambda key: key.upper().encode(),
        value_serializer=lambda value: json.dumps(value, separators=(",", ":")).encode(),
    )
    batch = producer.create_batch()
    batch.append(key="key1", value={"value": 111}, timestamp=None)
    batch.append(key="key2", value={"value": 222}, timestamp=None)
    await (await producer.send_batch(batch, publishing.topic, partition=0))

    reader = await publishing.reader()
    found = [await reader.getone() for _ in range(2)]
    assert [(one.key, one.value) for one in found] == [(b"KEY1", b'{"value":111}'), (b"KEY2", b'{"value":222}')]


# ---- faults ----------------------------------------------------------------------------------------------------------


def with_leader(leader_id: int, code: int = ErrorCode.NONE):
    """Return an edit function after which all partitions have this leader."""

    def edit(answer):
        topics = []
        for topic in answer.topics:
            partitions = (replace(one, leader_id=leader_id, error_code=code) for one in topic.partitions)
            topics.append(replace(topic, partitions=tuple(partitions)))
        return replace(answer, topics=tuple(topics))

    return edit


async def test_producer_send_leader_notfound(publishing):
    """A record to a partition without a leader fails after its timeout; when there is a leader, the next is stored."""
    without_leader = with_leader(-1, ErrorCode.LEADER_NOT_AVAILABLE)
    producer = await publishing.started_producer(request_timeout_ms=4_000)
    with publishing.proxy.edit_answer(MetadataRequest, without_leader, times=None):
        future = await producer.send(publishing.topic, b"text", partition=0)
        with pytest.raises(PublishTimeoutError, match="leader"):
            await future
    assert (await producer.send_and_wait(publishing.topic, b"text", partition=0)).offset == 0


async def test_producer_send_timeout(publishing):
    """Records whose requests are not answered fail with a timeout that says that they may be stored."""
    producer = await publishing.started_producer(request_timeout_ms=1_500)
    await producer.partitions_for(publishing.topic)
    with publishing.proxy.drop_answer(ProduceRequest, times=None):
        futures = [await producer.send(publishing.topic, value) for value in (b"text1", b"text2")]
        for error in await asyncio.gather(*futures, return_exceptions=True):
            assert isinstance(error, PublishTimeoutError)
            assert error.may_be_stored
            assert "within 1.5 s" in str(error)


async def test_producer_send_error(publishing):
    """A partition whose batches are refused until their timeout fails alone; another partition's record is stored."""

    def refuse_first(answer):
        code = ErrorCode.REQUEST_TIMED_OUT
        partitions = (one if one.partition else replace(one, error_code=code) for one in answer.partitions)
        return replace(answer, partitions=tuple(partitions))

    producer = await publishing.started_producer(linger_ms=5, request_timeout_ms=2_000)
    with publishing.proxy.edit_answer(ProduceRequest, refuse_first, times=None):
        refused, stored = [await producer.send(publishing.topic, b"text", partition=number) for number in (0, 1)]
        with pytest.raises(PublishTimeoutError, match="REQUEST_TIMED_OUT"):
            await refused
        assert (await stored).offset == 0


async def test_producer_send_reenque_resets_waiters(publishing):
    """A record that is published while an earlier one is sent again is stored after it."""
    producer = await publishing.started_producer(linger_ms=200)
    with publishing.proxy.edit_answer(ProduceRequest, with_code(ErrorCode.NOT_LEADER_OR_FOLLOWER)) as fault:
        first = await producer.send(publishing.topic, b"Some MSG", partition=0)
        await fault.wait_applied()
        second = await producer.send(publishing.topic, b"Some MSG 2", partition=0)
        assert (await first).offset < (await second).offset


async def test_producer_invalid_leader_retry_metadata(publishing):
    """A leader that is not among the brokers is looked up again."""
    producer = await publishing.started_producer()
    with publishing.proxy.edit_answer(MetadataRequest, with_leader(77)) as fault:
        place = await producer.send_and_wait(publishing.topic, b"hello, Kafka!", partition=0)
        await fault.wait_applied()
    assert place.offset == 0


# ---- idempotence -----------------------------------------------------------------------------------------------------


async def test_producer_idempotence_configuration(publishing):
    """Idempotence needs acks="all", which is then the default."""
    with pytest.raises(ConfigurationError, match="enable_idempotence"):
        publishing.producer(acks=1, enable_idempotence=True)
    assert publishing.producer(enable_idempotence=True).inner._config.acks == "all"


async def test_producer_indempotence_simple(publishing):
    """A record of an idempotent producer is read with the offset and time of its place."""
    producer = await publishing.started_producer(enable_idempotence=True)
    place = await producer.send_and_wait(publishing.topic, b"hello, Kafka!")
    record = await (await publishing.reader()).getone()
    assert (record.topic_partition, record.offset, record.timestamp) == (
        place.topic_partition,
        place.offset,
        place.timestamp,
    )
    assert (record.key, record.value) == (None, b"hello, Kafka!")


async def test_producer_indempotence_no_duplicates(publishing):
    """A record whose first two answers are lost is stored once."""
    producer = await publishing.started_producer(enable_idempotence=True, request_timeout_ms=20_000)
    with publishing.proxy.reset_on_answer(ProduceRequest, times=2):
        place = await producer.send_and_wait(publishing.topic, b"hello, Kafka!", partition=0)
    following = await producer.send_and_wait(publishing.topic, b"last", partition=0)
    assert (place.offset, following.offset) == (0, 1)


# ---- from kafka-python's tests ---------------------------------------------------------------------------------------


async def test_idempotent_producer_high_throughput(publishing):
    """Records in many small batches, several of them in flight, are stored in the order of the calls."""
    producer = await publishing.started_producer(enable_idempotence=True, max_batch_size=1_024, linger_ms=5)
    futures = [await producer.send(publishing.topic, b"msg %d" % number, partition=0) for number in range(500)]
    assert [(await one).offset for one in futures] == list(range(500))


async def test_kafka_producer_proper_record_metadata(publishing):
    """The place of a record has its partition, offset and timestamp; headers are stored."""
    producer = await publishing.started_producer()
    details = {"headers": [("Header Key", b"Header Value")], "timestamp_ms": 9999999, "partition": 0}
    place = await producer.send_and_wait(publishing.topic, b"Simple value", b"Simple key", **details)
    assert place == (publishing.topic, 0, 0, 9999999)
    assert place.topic_partition == publishing.first


@pytest.mark.parametrize("acks", [0, 1])
async def test_acks_1_silently_disables(publishing, acks):
    """With acks=0 or 1 and the default of enable_idempotence, a producer is not idempotent."""
    options = {"bootstrap_servers": publishing.server.bootstrap_servers, "client_id": publishing.topic}
    async with Producer(acks=acks, **options) as producer:
        await producer.send(publishing.topic, b"v")
    assert not publishing.proxy.requests(InitProducerIdRequest, client_id=publishing.topic)


async def test_bare_construct_is_idempotent(publishing):
    """By default, a producer is idempotent."""
    options = {"bootstrap_servers": publishing.server.bootstrap_servers, "client_id": publishing.topic}
    async with Producer(**options) as producer:
        await producer.send(publishing.topic, b"v")
    assert publishing.proxy.requests(InitProducerIdRequest, client_id=publishing.topic)
