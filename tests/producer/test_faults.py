"""Publishing under faults: each record is stored once and in order, or its publish() raises."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Iterator
from contextlib import AsyncExitStack

import pytest
from msgspec.structs import replace

from tailrace import PublishError
from tailrace.config import resolve
from tailrace.error_codes import ErrorCode
from tailrace.producer.publisher import OutgoingRecord
from tailrace.producer.record_producer import RecordProducer
from tailrace.protocol.metadata import MetadataRequest
from tailrace.protocol.records import ProduceRequest, ProduceResponse
from tailrace.testing import KafkaServer
from tests.producer.test_record_producer import read_all
from tests.support.transaction_faults import LOSSES, with_code

IMPATIENT = {"request_timeout_ms": 600}
"""Options that detect a lost answer early."""


@pytest.fixture(scope="module")
def proxied() -> Iterator[KafkaServer]:
    """Return a broker behind a proxy."""
    with KafkaServer(proxied=True) as started:
        yield started


@pytest.fixture
def proxied_topic(proxied) -> str:
    name = f"t-{uuid.uuid4().hex[:12]}"
    proxied.create_topic(name)
    return name


def producer_of(server, **options: object) -> RecordProducer:
    config = resolve({"bootstrap_servers": server.bootstrap_servers, **options}, {})
    return RecordProducer(config, max_batch_size=2_000)


async def publish_all(producer: RecordProducer, topic: str, count: int) -> None:
    """Publish numbers in many batches, and assert the offset of each future."""
    futures = [await producer.send(OutgoingRecord(topic, b"%d" % n + b" " * 90, partition=0)) for n in range(count)]
    assert [(await future).offset for future in futures] == list(range(count))


async def numbers(server, topic: str, count: int) -> list[int]:
    return [int(record.value) for record in await read_all(server, topic, count)]


@pytest.mark.parametrize("skip", [0, 3])
@pytest.mark.parametrize("fault", LOSSES)
async def test_a_lost_response_loses_and_repeats_nothing(proxied, proxied_topic, fault, skip):
    """With several batches in flight, each record is stored once after a lost request, lost response or duplicate."""
    async with producer_of(proxied, **IMPATIENT) as producer, asyncio.timeout(30):
        with getattr(proxied.proxy, fault)(ProduceRequest, skip=skip):
            await publish_all(producer, proxied_topic, 1_000)

    assert await numbers(proxied, proxied_topic, 1_000) == list(range(1_000))


@pytest.mark.parametrize(
    "code",
    [
        ErrorCode.NOT_LEADER_OR_FOLLOWER,
        ErrorCode.REQUEST_TIMED_OUT,
        ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND,
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
    ],
)
async def test_a_batch_answered_with_a_retriable_error_is_stored_once(proxied, proxied_topic, code):
    """A batch that the leader stored and refused with a retriable error is sent again and stored once."""
    async with producer_of(proxied) as producer, asyncio.timeout(30):
        with proxied.proxy.edit_answer(ProduceRequest, with_code(code), times=2):
            await publish_all(producer, proxied_topic, 500)

    assert await numbers(proxied, proxied_topic, 500) == list(range(500))


async def test_repeated_connection_resets_lose_nothing(proxied, proxied_topic):
    """Connection resets lose, repeat and reorder no record."""
    count = 5_000
    async with producer_of(proxied) as producer, asyncio.timeout(60):
        proxied.proxy.reset_every(0.02, 0.2)
        try:
            await publish_all(producer, proxied_topic, count)
        finally:
            proxied.proxy.stop_resets()

    assert await numbers(proxied, proxied_topic, count) == list(range(count))


async def test_a_canceled_publish_delays_no_other_record(proxied, proxied_topic):
    """A record whose publish() is canceled in flight is stored once, and later records follow."""
    async with producer_of(proxied) as producer, asyncio.timeout(30):
        await producer.publish(OutgoingRecord(proxied_topic, b"0", partition=0))
        with proxied.proxy.hold_answer(ProduceRequest) as held:
            publishing = [
                asyncio.create_task(producer.publish(OutgoingRecord(proxied_topic, b"%d" % n, partition=0)))
                for n in (1, 2)
            ]
            await held.wait_applied()
            publishing[0].cancel()
            held.release()
            placed = await publishing[1]

    assert publishing[0].cancelled()
    assert placed.offset == 2
    assert await numbers(proxied, proxied_topic, 3) == [0, 1, 2]


async def test_unacknowledged_records_need_bounded_memory(proxied, proxied_topic):
    """publish() waits while ``buffer_memory`` is unacknowledged, and a canceled wait publishes nothing."""
    config = resolve({"bootstrap_servers": proxied.bootstrap_servers}, {})
    async with RecordProducer(config, buffer_memory=5_000) as producer, asyncio.timeout(30):
        await producer.publish(OutgoingRecord(proxied_topic, b"0"))
        with proxied.proxy.hold_answer(ProduceRequest) as held:
            await producer.send(OutgoingRecord(proxied_topic, b"1" + b" " * 5_000))
            waiting = [asyncio.create_task(producer.publish(OutgoingRecord(proxied_topic, b"%d" % n))) for n in (2, 3)]
            await held.wait_applied()
            assert not any(task.done() for task in waiting)
            waiting[0].cancel()
            held.release()
            await waiting[1]

    assert await numbers(proxied, proxied_topic, 3) == [0, 1, 3]


async def test_close_fails_records_that_are_not_acknowledged_in_time(proxied, proxied_topic):
    """close() fails unacknowledged records after its timeout, so that no publish() waits forever."""
    producer = producer_of(proxied)
    await producer.start()
    await producer.publish(OutgoingRecord(proxied_topic, b"0"))
    with proxied.proxy.hold_answer(ProduceRequest) as held:
        publishing = asyncio.create_task(producer.publish(OutgoingRecord(proxied_topic, b"1")))
        await held.wait_applied()
        async with asyncio.timeout(5):
            await producer.close(0.2)
        with pytest.raises(PublishError, match="the producer was closed"):
            await publishing


async def test_close_fails_records_that_wait_for_metadata(proxied):
    """close() fails a record that waits for metadata of a missing topic."""
    producer = producer_of(proxied)
    await producer.start()
    with proxied.proxy.hold_answer(MetadataRequest) as held:
        publishing = asyncio.create_task(producer.publish(OutgoingRecord(f"missing-{uuid.uuid4().hex}", b"1")))
        await held.wait_applied()
        async with asyncio.timeout(5):
            await producer.close()
            with pytest.raises(PublishError, match="the producer was closed"):
                await publishing


@pytest.mark.slow
async def test_leaders_that_move_lose_and_repeat_nothing(kafka_cluster, name):
    """During a rolling restart of the brokers, each record is stored once and in order."""
    cluster = kafka_cluster(3)
    cluster.create_topic(name, 3, replication_factor=3)
    published: dict[int, list[tuple[int, int]]] = {partition: [] for partition in range(3)}
    is_over = False

    async def publish(partition: int, producer: RecordProducer) -> None:
        number = 0
        while not is_over or number < 100:
            values = range(number, number + 20)
            placed = await asyncio.gather(
                *(producer.publish(OutgoingRecord(name, b"%d" % value, partition=partition)) for value in values)
            )
            published[partition] += zip(values, (one.offset for one in placed), strict=True)
            number += 20

    async with asyncio.timeout(120), producer_of(cluster) as producer, asyncio.TaskGroup() as tasks:
        for partition in range(3):
            tasks.create_task(publish(partition, producer))
        for node in cluster.nodes:
            await asyncio.to_thread(cluster.restart, node)
        is_over = True

    records = await read_all(cluster, name, sum(map(len, published.values())))
    for partition, expected in published.items():
        mine = [(int(record.value), record.offset) for record in records if record.partition == partition]
        assert mine == expected


async def test_a_defect_in_the_sender_raises_in_every_call(proxied, proxied_topic):
    """A defect in the sender raises PublishError in pending and later calls, and calls the loop's exception handler."""
    reported: list[dict] = []
    asyncio.get_running_loop().set_exception_handler(lambda _loop, context: reported.append(context))
    async with AsyncExitStack() as stack:
        producer = producer_of(proxied)
        await producer.start()
        stack.push_async_callback(producer.close)
        await producer.publish(OutgoingRecord(proxied_topic, b"0"))

        def fail() -> None:
            raise ZeroDivisionError("a defect")

        with proxied.proxy.hold_answer(ProduceRequest) as held:
            publishing = asyncio.create_task(producer.publish(OutgoingRecord(proxied_topic, b"1")))
            await held.wait_applied()
            flushing = asyncio.create_task(producer.flush())
            await asyncio.sleep(0)
            producer._running.sender.on_progress = fail
            producer._running.sender.wake()
            for one in (publishing, flushing, producer.publish(OutgoingRecord(proxied_topic, b"2"))):
                with pytest.raises(PublishError, match=r"the producer has failed: .*a defect.*start another"):
                    await one

    (context,) = reported
    assert "a defect" in repr(context["exception"])


async def test_no_batch_overtakes_one_that_waits_while_the_broker_throttles(proxied, proxied_topic):
    """The batches of a partition are sent in order when a throttle ends, so that the broker refuses none of them."""
    codes: list[int] = []

    def throttled(answer: ProduceResponse) -> ProduceResponse:
        codes.extend(one.error_code for one in answer.partitions)
        return replace(answer, throttle_time_ms=5)

    async with producer_of(proxied) as producer, asyncio.timeout(60):
        with proxied.proxy.edit_answer(ProduceRequest, throttled, times=None):
            futures = []
            for number in range(3_000):
                futures.append(await producer.send(OutgoingRecord(proxied_topic, b"%d" % number + b" " * 90)))
                await asyncio.sleep(0)
            await asyncio.gather(*futures)

    assert len(codes) > 100
    assert set(codes) == {ErrorCode.NONE}
    assert await numbers(proxied, proxied_topic, 3_000) == list(range(3_000))
