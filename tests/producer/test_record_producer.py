"""RecordProducer with a real broker: acknowledged records are written once, and each publish() returns or raises."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest

from tailrace import (
    AuthenticationError,
    BrokerConnectionError,
    ConfigurationError,
    Consumer,
    ConsumerStateError,
    PublishError,
    PublishTooLargeError,
    TopicPartition,
)
from tailrace.config import resolve
from tailrace.producer.publisher import OutgoingRecord, Published
from tailrace.producer.record_producer import RecordProducer
from tailrace.producer.transaction_machine import ProducerState
from tailrace.producer.transactional_producer import TransactionalProducer
from tailrace.testing import KafkaServer


@pytest.fixture
def new_producer(kafka_server):
    def make(**options: object) -> RecordProducer:
        return RecordProducer(resolve({"bootstrap_servers": kafka_server.bootstrap_servers, **options}, {}))

    return make


async def read_all(server: KafkaServer, topic: str, count: int) -> list:
    options = {**server.client_options, "auto_offset_reset": "earliest"}
    async with asyncio.timeout(30), Consumer(topic, **options) as consumer:
        return [await consumer.getone() for _ in range(count)]


async def test_publish_returns_partition_and_offset_of_the_record(kafka_server, new_producer, topic):
    """publish() returns partition and offset of the record, which has the given key, value, headers and timestamp."""
    async with new_producer() as producer:
        places = [
            await producer.publish(
                OutgoingRecord(topic, b"v", key=b"k", headers=[("h", b"1")], partition=2, timestamp_ms=1_234_567)
            ),
            await producer.publish(OutgoingRecord(topic, None, key=b"k", partition=2)),
        ]

    first, second = await read_all(kafka_server, topic, 2)
    assert places == [Published(*one.topic_partition, one.offset, one.timestamp) for one in (first, second)]
    assert (first.key, first.value, list(first.headers), first.timestamp) == (b"k", b"v", [("h", b"1")], 1_234_567)
    assert (second.key, second.value, second.offset) == (b"k", None, 1)


async def test_a_key_has_one_partition(new_producer, topic):
    """Records of one key are in one partition, and keys are spread over all partitions."""
    async with new_producer() as producer, asyncio.TaskGroup() as tasks:
        sent = {
            n: tasks.create_task(producer.publish(OutgoingRecord(topic, b"%d" % n, key=b"%d" % (n % 20))))
            for n in range(200)
        }

    places = {key: {sent[n].result().topic_partition for n in sent if n % 20 == key} for key in range(20)}
    assert {len(partitions) for partitions in places.values()} == {1}
    assert set().union(*places.values()) == {TopicPartition(topic, p) for p in range(3)}


async def test_a_partition_that_was_added_since_is_found(kafka_server, new_producer, topic):
    """publish() to an unknown partition refreshes the metadata before it raises."""
    async with new_producer() as producer:
        await producer.publish(OutgoingRecord(topic, b"v"))
        kafka_server.add_partitions(topic, 5)
        placed = await producer.publish(OutgoingRecord(topic, b"v", partition=4))
        with pytest.raises(PublishError, match="has no partition 5 - its partitions are 0 to 4"):
            await producer.publish(OutgoingRecord(topic, b"v", partition=5))

    assert placed.topic_partition == TopicPartition(topic, 4)


async def test_concurrent_calls_keep_their_order(new_producer, topic):
    """Concurrent calls of one task keep their order in a partition, while other tasks publish, too."""
    values = [b"x" * (n * 7_919 % 5_000) for n in range(1_000)]
    is_over = False

    async def publish(value: bytes) -> None:
        while not is_over:
            await producer.publish(OutgoingRecord(topic, value, partition=0))

    async with new_producer() as producer, asyncio.TaskGroup() as tasks:
        for n in range(20):
            tasks.create_task(publish(b"y" * 3_000 * n))
        await producer.publish(OutgoingRecord(topic, b"", partition=0))
        places = await asyncio.gather(
            *(producer.publish(OutgoingRecord(topic, value, partition=0)) for value in values)
        )
        is_over = True

    offsets = [place.offset for place in places]
    assert offsets == sorted(offsets)


async def test_many_records_arrive_once_and_in_order(kafka_server, new_producer, topic):
    """publish_many() writes each record once and in order."""
    values = {p: [b"%d" % n * 100 for n in range(p, 9_000, 3)] for p in range(3)}

    async with new_producer() as producer:
        for partition, sent in values.items():
            await producer.publish_many(topic, partition, ((b"k", value) for value in sent))

    records = await read_all(kafka_server, topic, 9_000)
    assert {p: [one.value for one in records if one.partition == p] for p in range(3)} == values


@pytest.mark.parametrize(
    ("config", "value", "message"),
    [
        ({"max.message.bytes": 1_000}, b"x" * 10_000, "MESSAGE_TOO_LARGE"),
        ({"cleanup.policy": "compact"}, b"no key", "cannot accept message without key"),
    ],
)
async def test_a_refused_record_raises_in_its_own_publish_only(  # noqa: PLR0917
    kafka_server, new_producer, topic, config, value, message
):
    """A record that the broker refuses raises PublishError in its own publish(); later records are written."""
    kafka_server.create_topic(strict := f"{topic}-strict", config=config)

    async with new_producer() as producer:
        places = [await producer.publish(OutgoingRecord(strict, b"0", key=b"k"))]
        for n in (1, 2):
            with pytest.raises(PublishError, match=f"{strict}.*{message}"):
                await producer.publish(OutgoingRecord(strict, value))
            places.append(await producer.publish(OutgoingRecord(strict, b"%d" % n, key=b"k")))

    assert [place.offset for place in places] == [0, 1, 2]
    assert [record.value for record in await read_all(kafka_server, strict, 3)] == [b"0", b"1", b"2"]


async def test_a_refused_record_fails_alone(kafka_server, new_producer, topic):
    """A record that is too large fails alone; concurrent records are written once."""
    kafka_server.create_topic(strict := f"{topic}-strict", config={"max.message.bytes": 10_000})
    values = {n: b"%d " % n + b"x" * (20_000 if n % 50 == 7 else 1_000) for n in range(300)}

    async with new_producer() as producer:
        await producer.publish(OutgoingRecord(strict, b"first"))
        results = await asyncio.gather(
            *(producer.publish(OutgoingRecord(strict, one)) for one in values.values()), return_exceptions=True
        )
        last = await producer.publish(OutgoingRecord(strict, b"last"))

    refused = [n for n, one in enumerate(results) if isinstance(one, PublishTooLargeError)]
    placed = {one.offset: values[n] for n, one in enumerate(results) if isinstance(one, Published)}
    records = await read_all(kafka_server, strict, 296)
    assert refused == [7, 57, 107, 157, 207, 257]
    assert last.offset == 295
    assert {one.offset: one.value for one in records} == {0: b"first", **placed, 295: b"last"}


async def test_refused_records_do_not_affect_records_of_other_tasks(kafka_server, new_producer, topic):
    """Refused records neither lose, repeat nor reorder those of concurrent tasks."""
    kafka_server.create_topic(strict := f"{topic}-strict", 2, config={"max.message.bytes": 1_000})
    refused = 0

    async def publish(key: int) -> None:
        for n in range(150):
            await producer.publish(OutgoingRecord(topic if key % 2 else strict, b"%d" % n, key=b"%d" % key))

    async with new_producer() as producer, asyncio.TaskGroup() as tasks:
        publishing = [tasks.create_task(publish(key)) for key in range(20)]
        while refused <= 10 or not all(task.done() for task in publishing):
            with pytest.raises(PublishTooLargeError):
                await producer.publish(OutgoingRecord(strict, b"x" * 2_000, partition=refused % 2))
            refused += 1

    records = [*await read_all(kafka_server, topic, 1_500), *await read_all(kafka_server, strict, 1_500)]
    values = {key: [int(one.value) for one in records if one.key == b"%d" % key] for key in range(20)}
    assert values == {key: list(range(150)) for key in range(20)}


async def test_publish_to_a_missing_partition_raises(new_producer, topic):
    """A missing partition raises PublishError in publish() and publish_many()."""
    async with new_producer() as producer:
        with pytest.raises(PublishError, match=topic):
            await producer.publish(OutgoingRecord(topic, b"x", partition=7))
        with pytest.raises(PublishError, match=topic):
            await producer.publish_many(topic, 7, [(None, b"x")])


async def test_publish_to_a_missing_topic_raises_after_the_timeout(new_producer, topic):
    """publish() to a missing topic raises after ``default_api_timeout_ms``, with the name of the topic."""
    async with new_producer(default_api_timeout_ms=1_500) as producer:
        with pytest.raises(PublishError, match=r"finding topic '.*-gone': .*UNKNOWN_TOPIC_OR_PARTITION"):
            await producer.publish(OutgoingRecord(f"{topic}-gone", b"x"))


async def test_flush_raises_if_records_of_publish_many_were_refused(kafka_server, new_producer, topic):
    """flush() and leaving the context raise if records of publish_many() were refused; later records are written."""
    small = f"{topic}-small"
    kafka_server.create_topic(small, config={"max.message.bytes": 1_000})
    places = []

    async def publish() -> None:
        async with new_producer() as producer:
            places.append(await producer.publish(OutgoingRecord(small, b"0")))
            await producer.publish_many(small, 0, [(None, b"x" * 10_000)])
            with pytest.raises(PublishError, match="MESSAGE_TOO_LARGE"):
                await producer.flush()
            places.append(await producer.publish(OutgoingRecord(small, b"1")))

    with pytest.raises(PublishError, match="MESSAGE_TOO_LARGE"):
        await publish()

    assert [place.offset for place in places] == [0, 1]


async def test_a_producer_accepts_the_security_options_of_a_consumer():
    """TLS and SASL options are those of a consumer, in RecordProducer and TransactionalProducer."""
    with KafkaServer(security="SCRAM-SHA-512", tls=True) as server:
        server.create_topic("t")
        config = resolve(server.client_options, {})
        async with RecordProducer(config) as producer:
            assert (await producer.publish(OutgoingRecord("t", b"x")))[:3] == ("t", 0, 0)
        async with TransactionalProducer(config, transactional_id="x") as transactional:
            await transactional.begin()
            await transactional.send(OutgoingRecord("t", b"x"))
            await transactional.commit()
            assert transactional.state is ProducerState.READY
        stranger = resolve({**server.client_options, "sasl_plain_password": "another"}, {})
        with pytest.raises(AuthenticationError, match="check user name, password"):
            await RecordProducer(stranger).start()


class Tokens:
    """OAuth token provider that fails and breaks on demand, with SASL extensions."""

    def __init__(self, real) -> None:
        self.real, self.fails, self.breaks = real, 0, 0

    async def __call__(self) -> str:
        if self.fails:
            self.fails -= 1
            raise OSError("no token today")
        return await self.real()

    def extensions(self) -> dict[str, str]:
        if self.breaks:
            self.breaks -= 1
            raise RuntimeError("no extensions today")
        return {"tenant": "a"}


async def test_a_failed_token_provider_is_called_again():
    """A token provider that fails, in its extensions, too, is called again, and the records are published."""
    with KafkaServer(security="OAUTHBEARER", tls=True) as server:
        server.create_topic("t")
        options = server.client_options
        tokens = Tokens(options["sasl_oauth_token_provider"])
        options |= {"sasl_oauth_token_provider": tokens, "connections_max_idle_ms": 50}

        tokens.fails = 1_000
        with pytest.raises(BrokerConnectionError, match="sasl_oauth_token_provider raised OSError"):
            await RecordProducer(resolve({**options, "start_timeout_ms": 2_000}, {})).start()
        tokens.fails = 1

        async with RecordProducer(resolve(options, {})) as producer, asyncio.timeout(30):

            async def publish_until(is_over: Callable[[], bool]) -> None:
                while not is_over():
                    await asyncio.sleep(0.2)  # longer than connections_max_idle_ms
                    await producer.publish(OutgoingRecord("t", b"x"))

            tokens.fails = 1
            await publish_until(lambda: not tokens.fails)
            tokens.breaks = 1
            await publish_until(lambda: not tokens.breaks)


async def test_start_without_a_broker_raises_in_time():
    """start() raises BrokerConnectionError with the address, or ConfigurationError without bootstrap_servers."""
    with pytest.raises(BrokerConnectionError, match=r"127\.0\.0\.1:1"):
        await RecordProducer(resolve({"bootstrap_servers": "127.0.0.1:1", "start_timeout_ms": 200}, {})).start()
    with pytest.raises(ConfigurationError, match="bootstrap_servers is missing"):
        await RecordProducer(resolve({}, {})).start()


async def test_calls_to_a_frozen_broker_end_at_their_timeouts():
    """With a frozen broker, publish() and close() end at their timeouts and leave no task."""
    with KafkaServer() as server:
        server.create_topic("t")
        options = {"default_api_timeout_ms": 2_500, "stop_timeout_ms": 1_000, "request_timeout_ms": 60_000}
        producer = RecordProducer(resolve({**server.client_options, **options}, {}))
        before = asyncio.all_tasks()
        await producer.start()
        await producer.publish(OutgoingRecord("t", b"x"))
        server.pause()

        async with asyncio.timeout(20):
            with pytest.raises(PublishError, match="no acknowledgement"):
                await producer.publish(OutgoingRecord("t", b"x"))
            await producer.close()

        if left := asyncio.all_tasks() - before:
            _, left = await asyncio.wait(left, timeout=5)
        assert left == set()
        server.resume()


async def test_publish_before_the_start_raises(new_producer):
    """publish() outside of ``async with`` raises ConsumerStateError."""
    with pytest.raises(ConsumerStateError, match="async with"):
        await new_producer().publish(OutgoingRecord("t", b"x"))


async def test_an_illegal_topic_name_raises_before_a_request(new_producer):
    """An illegal topic name raises at once, without a request."""
    async with new_producer() as producer, asyncio.timeout(5):
        with pytest.raises(PublishError, match=r"'new orders' is not a legal topic name: .* ' '"):
            await producer.publish(OutgoingRecord("new orders", b"1"))
        with pytest.raises(PublishError, match=r"'new orders' is not a legal topic name"):
            await producer.publish_many("new orders", 0, [(None, b"1")])
