"""Producer: what users publish is stored as they wrote it, and each wrong call says what to do."""

from __future__ import annotations

import asyncio
import dataclasses
import datetime as dt
import subprocess
import sys
import time
import uuid
from typing import Annotated, Any

import msgspec
import pydantic
import pytest
from confluent_kafka import Consumer as WitnessConsumer
from confluent_kafka import Producer as WitnessProducer
from confluent_kafka import TopicPartition as WitnessPartition
from prometheus_client import CollectorRegistry

from tailrace import (
    BrokerConnectionError,
    BufferFullError,
    ConfigurationError,
    Consumer,
    ConsumerStateError,
    Message,
    Producer,
    ProducerFencedError,
    Published,
    PublishError,
    PublishTooLargeError,
    SharedCluster,
    TopicPartition,
)
from tailrace.codecs.json_codec import JsonCodec, text_decoder
from tailrace.integrations.prometheus import exposition
from tailrace.observe.metrics import METRICS, samples
from tailrace.testing import KafkaServer


@pytest.fixture
def new_producer(kafka_server):
    def make(**options: Any) -> Producer:
        return Producer(bootstrap_servers=kafka_server.bootstrap_servers, **options)

    return make


def read(server: KafkaServer, topic: str, count: int, partitions: int = 3) -> list:
    """Return ``count`` records as librdkafka reads them, sorted by partition and offset."""
    witness = WitnessConsumer({"bootstrap.servers": server.bootstrap_servers, "group.id": uuid.uuid4().hex})
    try:
        witness.assign([WitnessPartition(topic, number, 0) for number in range(partitions)])
        found, until = [], time.monotonic() + 20
        while len(found) < count and time.monotonic() < until:
            found += [one for one in witness.consume(count - len(found), 0.5) if one.error() is None]
    finally:
        witness.close()
    return sorted(found, key=lambda one: (one.partition(), one.offset()))


# ---- publishing ------------------------------------------------------------------------------------------------------


async def test_send_returns_the_place_of_the_record(kafka_server, new_producer, topic):
    """send() returns topic, partition, offset and timestamp of a record, which librdkafka reads unchanged."""
    async with new_producer() as producer:
        first = await producer.send(
            topic, b"v", key="k", headers=[("h", "1")], partition=2, timestamp_ms=1_234_567_890_123
        )
        second = await producer.send(topic, None, key="k", partition=2)

    one, two = await asyncio.to_thread(read, kafka_server, topic, 2)
    assert first == Published(topic, 2, 0, 1_234_567_890_123)
    assert first.topic_partition == TopicPartition(topic, 2)
    assert (one.key(), one.value(), one.headers()) == (b"k", b"v", [("h", b"1")])
    assert [second.timestamp] == [two.timestamp()[1]]
    assert (two.value(), second.offset) == (None, 1)


async def test_the_brokers_timestamp_is_returned(kafka_server, new_producer):
    """In a topic with LogAppendTime, the timestamp is the broker's."""
    name = f"t-{uuid.uuid4().hex[:12]}"
    kafka_server.create_topic(name, 1, config={"message.timestamp.type": "LogAppendTime"})
    async with new_producer() as producer:
        place = await producer.send(name, b"v", timestamp_ms=1_000)

    (one,) = await asyncio.to_thread(read, kafka_server, name, 1, 1)
    assert place.timestamp == one.timestamp()[1] > 1_700_000_000_000


async def test_enqueued_records_share_requests_and_stay_in_order(kafka_server, new_producer, topic):
    """enqueue() returns futures; after flush() all records are stored, in the order of the calls."""
    async with new_producer(linger_ms=500) as producer:
        futures = [await producer.enqueue(topic, b"%d" % number, partition=1) for number in range(5_000)]
        await producer.flush()
        assert [one.result().offset for one in futures] == list(range(5_000))

    found = await asyncio.to_thread(read, kafka_server, topic, 5_000)
    assert [one.value() for one in found] == [b"%d" % number for number in range(5_000)]


async def test_the_end_of_the_producer_delivers_all_records(kafka_server, new_producer, topic):
    """Records that were enqueued before the end of the ``async with`` are stored, without a flush()."""
    async with new_producer(linger_ms=10_000) as producer:
        futures = [await producer.enqueue(topic, b"x", key=number) for number in range(100)]

    assert all(one.done() and one.result().offset >= 0 for one in futures)
    assert len(await asyncio.to_thread(read, kafka_server, topic, 100)) == 100


async def test_send_many_returns_all_places_or_publishes_nothing(kafka_server, new_producer, topic):
    """send_many() returns the places in order; if a message cannot be encoded, none is published."""
    async with new_producer() as producer:
        with pytest.raises(PublishError, match="cannot be encoded"):
            await producer.send_many([Message(1, topic=topic), Message({1, object()}, topic=topic)])
        with pytest.raises(PublishError, match="a Message has no topic"):
            await producer.send_many([Message(1)])
        with pytest.raises(PublishError, match="a Producer cannot delay a Message - leave out delay_ms and at, or"):
            await producer.send_many([Message(1, topic=topic), Message(1, topic=topic, delay_ms=5)])
        places = await producer.send_many([Message(number, partition=0) for number in range(10)], topic)

    assert [(one.partition, one.offset) for one in places] == [(0, number) for number in range(10)]
    assert len(await asyncio.to_thread(read, kafka_server, topic, 10)) == 10


@pytest.mark.parametrize(
    ("kind", "level"),
    [("gzip", None), ("gzip", 1), ("snappy", None), ("lz4", None), ("lz4", 9), ("zstd", None), ("zstd", 10)],
)
async def test_compressed_batches_are_read_by_librdkafka(kafka_server, new_producer, topic, kind, level):
    """A batch of each compression and level is smaller in the log, and librdkafka reads its records."""
    values = [b'{"order": %d, "customer": "the same customer"}' % number for number in range(1_000)]
    async with new_producer(compression_type=kind, compression_level=level, linger_ms=200) as producer:
        await producer.send_many([Message(one, partition=0) for one in values], topic)
        size = producer.statistics().published_bytes

    found = await asyncio.to_thread(read, kafka_server, topic, 1_000)
    assert [one.value() for one in found] == values
    assert 0 < size < sum(map(len, values)) / 2


# ---- keys and values -------------------------------------------------------------------------------------------------


class Order(msgspec.Struct):
    number: int
    at: dt.datetime


@dataclasses.dataclass
class Invoice:
    number: int
    lines: list[str]


class Customer(pydantic.BaseModel):
    name: Annotated[str, pydantic.Field(alias="fullName")]


NOON = dt.datetime(2026, 1, 31, 12, tzinfo=dt.UTC)


@pytest.mark.parametrize("key", [7, "seven", b"7", uuid.UUID(int=7), NOON, 2.5, True, Order(1, NOON)], ids=repr)
@pytest.mark.parametrize(
    "value", [Order(1, NOON), Invoice(2, ["a"]), Customer(fullName="Ada"), {"a": [1]}, "text", b"raw"]
)
async def test_what_a_handler_decodes_can_be_published(kafka_server, new_producer, topic, key, value):
    """Keys and values of the types that handlers decode are published in the form that they read."""
    async with new_producer() as producer:
        await producer.send(topic, value, key=key)

    (found,) = await asyncio.to_thread(read, kafka_server, topic, 1)
    assert text_decoder(type(key))(found.key()) == key
    assert JsonCodec().decoder(type(value))(found.value()) == value


async def test_serializers_replace_the_codec(kafka_server, new_producer, topic):
    """key_serializer and value_serializer encode instead of the codec; what they raise or return wrongly is named."""
    options = {"key_serializer": lambda key: key.to_bytes(4, "big"), "value_serializer": str.encode}
    async with new_producer(**options) as producer:
        await producer.send(topic, "v", key=1)
        with pytest.raises(PublishError, match=r"cannot be encoded: .*'int'"):
            await producer.send(topic, 5, key=1)
    async with new_producer(value_serializer=lambda value: value) as producer:
        with pytest.raises(PublishError, match="value_serializer must return bytes, not str"):
            await producer.send(topic, "v")

    (found,) = await asyncio.to_thread(read, kafka_server, topic, 1)
    assert (found.key(), found.value()) == (b"\0\0\0\1", b"v")


# ---- partitioners ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("ours", "theirs"), [("murmur2", "murmur2"), ("consistent_random", "consistent_random")])
async def test_a_key_has_the_partition_that_librdkafka_chooses(kafka_server, new_producer, topic, ours, theirs):
    """With each partitioner, keys have the same partitions as with librdkafka."""
    keys = [b"key %d" % number for number in range(50)]
    expected: dict[bytes, int] = {}
    witness = WitnessProducer({"bootstrap.servers": kafka_server.bootstrap_servers, "partitioner": theirs})
    for key in keys:
        witness.produce(topic, key=key, on_delivery=lambda _error, one: expected.update({one.key(): one.partition()}))
    await asyncio.to_thread(witness.flush, 20)

    async with new_producer(partitioner=ours) as producer:
        places = await producer.send_many([Message(b"", key) for key in keys], topic)

    assert {key: place.partition for key, place in zip(keys, places, strict=True)} == expected


async def test_a_partitioner_may_ignore_keys_or_be_a_function(new_producer, topic):
    """The partitioner "sticky" puts records of all keys into one batch, and a function chooses freely."""
    async with new_producer(partitioner="sticky", linger_ms=200) as producer:
        places = await producer.send_many([Message(b"", number) for number in range(20)], topic)
        assert len({one.partition for one in places}) == 1
    async with new_producer(partitioner=lambda key, every, available: max(every) if key else available[0]) as producer:
        assert (await producer.send(topic, b"", key="k")).partition == 2
        assert (await producer.send(topic, b"")).partition == 0
    async with new_producer(partitioner=lambda _key, every, _available: len(every)) as producer:
        with pytest.raises(PublishError, match=r"partitioner returned 3, which is not one of \[0, 1, 2\]"):
            await producer.send(topic, b"")
    async with new_producer(partitioner=lambda _key, _every, _available: 1 // 0) as producer:
        with pytest.raises(PublishError, match="partitioner raised ZeroDivisionError"):
            await producer.send(topic, b"")


# ---- acknowledgments -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("acks", "offset"), [(0, -1), (1, 0), ("all", 0), (-1, 0)])
async def test_acknowledgments(kafka_server, new_producer, topic, acks, offset):
    """With acks=0 a record has no offset; in all cases it is stored."""
    async with new_producer(acks=acks) as producer:
        place = await producer.send(topic, b"v", partition=0)
        many = await producer.send_many([Message(b"w", partition=0)] * 100, topic)

    assert (place.offset, len(many)) == (offset, 100)
    assert len(await asyncio.to_thread(read, kafka_server, topic, 101)) == 101


# ---- transactions ----------------------------------------------------------------------------------------------------


async def test_a_transaction_commits_or_aborts(ledger):
    """The end of the block commits the records and offsets; an exception in the block aborts both."""
    source, target = ledger.topic(), ledger.topic()
    options = ledger.server.client_options
    async with (
        Producer(**options) as plain,
        Producer(transactional_id=f"x-{uuid.uuid4().hex}", **options) as producer,
        Consumer(
            source, group_id=f"g-{source}", enable_auto_commit=False, auto_offset_reset="earliest", **options
        ) as consumer,
    ):
        await plain.send_many([Message(b"%d" % number) for number in range(4)], source)
        for number in range(4):
            record = await consumer.getone()
            try:
                async with producer.transaction() as transaction:
                    await producer.send(target, record.value)
                    await transaction.send_offsets(consumer)
                    assert number != 3
            except AssertionError:
                await consumer.seek_to_committed()
        assert (await consumer.committed(TopicPartition(source, 0))).offset == 3
        assert (await consumer.getone()).value == b"3"

    assert [one[2] if isinstance(one, tuple) else one.value() for one in await ledger.committed(target)] == [
        b"0",
        b"1",
        b"2",
    ]


async def test_wrong_use_of_transactions_is_refused(new_producer, topic):
    """A record outside of a transaction, a transaction in another, and one without an id raise and say what to do."""
    async with new_producer(transactional_id=f"x-{topic}") as producer:
        with pytest.raises(ConsumerStateError, match=r"publish inside `async with producer.transaction\(\)`"):
            await producer.send(topic, b"v")
        async with producer.transaction() as transaction:
            await producer.send(topic, b"v")
            with pytest.raises(ConsumerStateError, match="a transaction of this producer is open"):
                async with producer.transaction():
                    pass
            for other in ("group", {TopicPartition(topic, 0): 1}, None):
                with pytest.raises(ConfigurationError, match=r"takes the tailrace\.Consumer that has read the"):
                    await transaction.send_offsets(other)
            with pytest.raises(ConsumerStateError, match="not started"):
                await transaction.send_offsets(Consumer(topic, group_id="g", bootstrap_servers="127.0.0.1:1"))
        with pytest.raises(ConsumerStateError, match="this transaction is not open"):
            await transaction.send_offsets(Consumer(topic, group_id="g", bootstrap_servers="127.0.0.1:1"))
    async with new_producer() as producer:
        with pytest.raises(ConfigurationError, match="transactions need a transactional_id"):
            producer.transaction()


async def test_a_fenced_producer_says_so(new_producer, topic):
    """A producer whose transactional id another one has taken raises ProducerFencedError from then on."""
    async with new_producer(transactional_id=f"x-{topic}") as older:
        async with older.transaction():
            await older.send(topic, b"1")
        async with new_producer(transactional_id=f"x-{topic}"):
            with pytest.raises(ProducerFencedError):
                async with older.transaction():
                    await older.send(topic, b"2")
            with pytest.raises(ProducerFencedError):
                async with older.transaction():
                    pass


# ---- wrong input -----------------------------------------------------------------------------------------------------


async def test_a_missing_topic_is_an_error_within_seconds():
    """Where the broker creates no topics, a missing one raises within three seconds, with a similar topic's name."""
    with KafkaServer(config={"auto.create.topics.enable": "false"}) as server:
        server.create_topic("orders")
        async with Producer(bootstrap_servers=server.bootstrap_servers) as producer:
            for call, message in (
                (lambda: producer.send("order", b"v"), r"order: the topic does not exist.* did you mean 'orders'"),
                (lambda: producer.partitions_for("nothing-like-it"), "the topic does not exist"),
            ):
                took: list[float] = []
                # A busy machine may delay some of the calls; a regression delays all.
                while len(took) < 5 and min(took, default=9) > 3:
                    since = time.monotonic()
                    with pytest.raises(PublishError, match=message):
                        await call()
                    took.append(time.monotonic() - since)
                assert min(took) <= 3
            assert await producer.partitions_for("orders") == {0}


async def test_a_missing_topic_is_created_where_brokers_create_topics():
    """With auto.create.topics.enable, the first record creates the topic."""
    with KafkaServer(config={"auto.create.topics.enable": "true"}) as server:
        async with Producer(bootstrap_servers=server.bootstrap_servers) as producer:
            assert (await producer.send("new", b"v"))[:3] == ("new", 0, 0)


async def test_a_record_above_the_limit_is_refused_before_it_is_sent(kafka_server, new_producer, topic):
    """A record larger than max_request_size raises PublishTooLargeError, also in send_many(), unsent."""
    async with new_producer(max_request_size=1_000) as producer:
        for value, headers in ((b"v" * 1_001, ()), (b"", [("h", b"v" * 1_000)])):
            with pytest.raises(PublishTooLargeError, match="max_request_size=1000") as raised:
                await producer.send(topic, value, headers=headers)
            assert raised.value.setting == "max_request_size"
        with pytest.raises(PublishTooLargeError):
            await producer.send_many([Message(b""), Message(b"v" * 1_001)], topic)
        await producer.send(topic, b"last")

    assert [one.value() for one in await asyncio.to_thread(read, kafka_server, topic, 1)] == [b"last"]


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda producer, _topic: producer.send("new orders", b""), "'new orders' is not a legal topic name"),
        (lambda producer, _topic: producer.send(5, b""), "topic must be a string such as 'orders', not 5"),
        (lambda producer, topic: producer.send(topic, b"", partition=7), "has no partition 7"),
        (lambda producer, topic: producer.send(topic, b"", partition=-1), "partition must be a non-negative integer"),
        (lambda producer, topic: producer.send(topic, b"", headers={"a": "b"}), "headers must be a list of"),
        (lambda producer, topic: producer.send(topic, object()), "cannot be encoded: .*object"),
        (lambda producer, topic: producer.send(topic, float("nan")), "nan has no JSON form"),
        (lambda producer, topic: producer.send(topic, b"", timestamp_ms="now"), "timestamp|integer|int"),
    ],
)
async def test_a_wrong_argument_raises_and_the_producer_goes_on(new_producer, topic, call, words):
    """A wrong argument raises PublishError that names it, and the next record is published."""
    async with new_producer() as producer:
        with pytest.raises(PublishError, match=words):
            await call(producer, topic)
        assert (await producer.send(topic, b"v", partition=0)).offset == 0


async def test_calls_before_the_start_and_after_the_stop_are_refused(new_producer, topic):
    """Each call of a producer that is not started, stopped, or of another event loop raises ConsumerStateError."""
    producer = new_producer()
    with pytest.raises(ConsumerStateError, match="not started - use `async with"):
        await producer.send(topic, b"v")
    async with producer:
        with pytest.raises(ConsumerStateError, match="already started"):
            await producer.start()
        with pytest.raises(ConsumerStateError, match="another event loop"):
            await asyncio.to_thread(lambda: asyncio.run(producer.send(topic, b"v")))
    for call in (producer.enqueue(topic, b"v"), producer.flush(), producer.start(), producer.partitions_for(topic)):
        with pytest.raises(ConsumerStateError, match="was stopped - create another"):
            await call
    await producer.stop()


async def test_a_start_without_a_broker_is_one_error():
    """start() without a broker raises one BrokerConnectionError with the address."""
    with pytest.raises(BrokerConnectionError, match=r"127\.0\.0\.1:1"):
        await Producer(bootstrap_servers="127.0.0.1:1", start_timeout_ms=300).start()


@pytest.mark.parametrize("max_block_ms", [0, 400])
async def test_full_memory_makes_calls_wait_for_max_block_ms(max_block_ms):
    """With a frozen broker and full memory, a call raises BufferFullError after max_block_ms, at once with 0."""
    with KafkaServer() as server:
        server.create_topic("t")
        options = {"buffer_memory": 10_000, "stop_timeout_ms": 300, "max_block_ms": max_block_ms}
        async with Producer(bootstrap_servers=server.bootstrap_servers, **options) as producer:
            await producer.send("t", b"v")
            server.pause()
            futures = [await producer.enqueue("t", b"v" * 1_000) for _ in range(10)]
            since = time.monotonic()
            with pytest.raises(BufferFullError, match=r"took up all of buffer_memory for \d\.\d s"):
                await producer.enqueue("t", b"v" * 1_000)
            # By default, a call waits for a minute.
            assert max_block_ms <= 1_000 * (time.monotonic() - since) < max_block_ms + 15_000
        assert [type(one.exception()) for one in futures] == [PublishError] * 10
        server.resume()


# ---- hooks and shared connections ------------------------------------------------------------------------------------


class Spans:
    """Instrumentation that adds a header to each record."""

    def __init__(self) -> None:
        self.places: list[Published] = []

    def on_event(self, event: object) -> None: ...

    def around_handler(self, call, _handler):
        return call

    def around_publish(self, publish):
        async def traced(topic, value, *, headers=(), **options):
            place = await publish(topic, value, headers=[*headers, ("span", b"1")], **options)
            self.places.append(place)
            return place

        return traced


async def test_instrumentations_wrap_each_record(kafka_server, new_producer, topic):
    """Hooks that are instrumentations wrap send(), enqueue() and send_many(), and records stay in order."""
    spans = Spans()
    async with new_producer(hooks=[spans]) as producer:
        place = await producer.send(topic, b"0", partition=0)
        futures = [await producer.enqueue(topic, b"%d" % number, partition=0) for number in range(1, 50)]
        places = await producer.send_many([Message(b"50", partition=0)], topic)
        assert [place, *[await one for one in futures], *places] == sorted(spans.places)
        with pytest.raises(PublishError, match="has no partition"):
            await producer.enqueue(topic, b"", partition=9)

    found = await asyncio.to_thread(read, kafka_server, topic, 51)
    assert [one.value() for one in found] == [b"%d" % number for number in range(51)]
    assert {tuple(one.headers()) for one in found} == {(("span", b"1"),)}


async def test_a_producer_shares_the_connections_of_a_cluster(kafka_server, topic):
    """A producer with cluster= uses its options and connections, and leaves them open when it stops."""
    async with SharedCluster(bootstrap_servers=kafka_server.bootstrap_servers, client_id="me") as cluster:
        for _ in range(2):
            async with Producer(cluster=cluster) as producer:
                await producer.send(topic, b"v")
        async with Consumer(topic, cluster=cluster, auto_offset_reset="earliest") as consumer:
            assert (await consumer.getone()).value == b"v"
    with pytest.raises(ConsumerStateError, match="shared cluster is not started"):
        await Producer(cluster=cluster).start()


async def test_statistics_count_records_bytes_and_requests(kafka_server, new_producer, topic):
    """statistics() and the metrics have what was published, failed and waits."""
    async with new_producer(client_id="me", linger_ms=10_000, compression_type="lz4") as producer:
        futures = [await producer.enqueue(topic, b"v" * 100, partition=0) for _ in range(50)]
        waiting = producer.statistics()
        await producer.flush()
        done = producer.statistics()
        text = (await exposition(producer, registry=CollectorRegistry()))[0].decode()
    for one in futures:
        assert one.result().partition == 0

    assert (waiting.buffered_records, waiting.published_records, done.buffered_records) == (50, 0, 0)
    assert waiting.buffered_bytes > 5_000
    assert (done.buffered_bytes, done.published_records, done.failed_records) == (0, 50, 0)
    assert 0 < done.published_bytes < 3_000
    assert done.requests.count >= 1
    assert len(await asyncio.to_thread(read, kafka_server, topic, 50)) == 50
    assert {one.metric.name for one in samples([done])} == {one.name for one in METRICS if one.subject == "producer"}
    assert 'tailrace_producer_records_total{client_id="me"} 50.0' in text


# ---- cancellation and forgotten producers ----------------------------------------------------------------------------


async def test_a_canceled_send_leaves_the_producer_usable(kafka_server, new_producer, topic):
    """A send() that is canceled after its record is in a batch publishes it, and later records follow it."""
    async with new_producer(linger_ms=200) as producer:
        await producer.send(topic, b"0", partition=0)
        task = asyncio.create_task(producer.send(topic, b"1", partition=0))
        await asyncio.sleep(0.01)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert (await producer.send(topic, b"2", partition=0)).offset == 2

    assert [one.value() for one in await asyncio.to_thread(read, kafka_server, topic, 3)] == [b"0", b"1", b"2"]


FORGETFUL = """
import asyncio, logging, sys
from tailrace import Producer

async def forget():
    producer = Producer(bootstrap_servers=sys.argv[1], linger_ms=60_000)
    await producer.start()
    for _ in range(17):
        (await producer.enqueue(sys.argv[2], b"v", partition=0)).add_done_callback(lambda one: one.exception())
    return producer

logging.basicConfig()
asyncio.run(forget())
"""


def test_an_event_loop_that_ends_tells_the_number_of_records(kafka_server, topic):
    """If the event loop ends before a producer is stopped, one line has the number of unacknowledged records."""
    command = [sys.executable, "-W", "always", "-c", FORGETFUL, kafka_server.bootstrap_servers, topic]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)

    assert done.stderr.count("records abandoned client_id=tailrace records=17") == 1
    assert "was never stopped - use `async with`" in done.stderr
