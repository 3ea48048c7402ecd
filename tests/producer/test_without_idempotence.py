"""Producer without idempotence: records may be stored twice, but none is lost and none precedes an earlier one."""

from __future__ import annotations

import asyncio
import uuid

import pytest

from tailrace import PublishError, TopicPartition, UnsupportedVersionError
from tailrace.config import resolve
from tailrace.error_codes import ErrorCode
from tailrace.observe.events import IdempotenceDisabled
from tailrace.producer.publisher import OutgoingRecord
from tailrace.producer.record_producer import RecordProducer
from tailrace.protocol.handshake import ApiVersionsRequest
from tailrace.protocol.records import ProduceRequest
from tailrace.protocol.transactions import InitProducerIdRequest
from tests.support.offered_versions import limited
from tests.support.topic_contents import contents_of
from tests.support.transaction_faults import LOSSES, with_code

WITHOUT = limited({InitProducerIdRequest: None})


@pytest.fixture
def plain_broker(own_server):
    """Return a broker that does not offer InitProducerId."""
    with own_server.proxy.edit_answer(ApiVersionsRequest, WITHOUT, times=None):
        yield own_server


@pytest.fixture
def topic(own_server) -> str:
    name = f"t-{uuid.uuid4().hex[:12]}"
    own_server.create_topic(name, 2)
    return name


def producer_of(server, *, enable_idempotence: bool | None = None, **options: object) -> RecordProducer:
    config = resolve({"bootstrap_servers": server.bootstrap_servers, **options}, {})
    producer = RecordProducer(config, max_batch_size=2_000)
    producer.enable_idempotence = enable_idempotence
    return producer


async def publish_all(producer: RecordProducer, topic: str, count: int) -> list[int]:
    """Publish numbers in many batches to two partitions; return the offsets."""
    futures = [await producer.send(OutgoingRecord(topic, b"%d" % n + b" " * 90, partition=n % 2)) for n in range(count)]
    return [(await future).offset for future in futures]


async def stored(witness, topic: str) -> tuple[list[int], list[int]]:
    """Return the numbers in each of the two partitions, as librdkafka reads them."""
    found = ([], [])
    for record in await contents_of(witness, topic, 2):
        found[record.partition()].append(int(record.value()))
    return found


def in_order_of_first_copies(numbers: tuple[list[int], list[int]]) -> tuple[list[int], list[int]]:
    return list(dict.fromkeys(numbers[0])), list(dict.fromkeys(numbers[1]))


async def test_records_are_published_where_the_broker_offers_no_producer_ids(plain_broker, topic, witness, recorder):
    """Without InitProducerId, records are stored in order, and one event names the reason and what is lost."""
    async with producer_of(plain_broker, hooks=[recorder]) as producer, asyncio.timeout(30):
        offsets = await publish_all(producer, topic, 200)

    assert offsets == [n // 2 for n in range(200)]
    assert await stored(witness, topic) == (list(range(0, 200, 2)), list(range(1, 200, 2)))
    (event,) = recorder.of(IdempotenceDisabled)
    assert event.reason == (
        "the broker does not support idempotent producers (KIP-98): InitProducerId: tailrace supports versions 0 to 5,"
        " the broker does not support this API"
    )
    assert event.consequence == "a record whose answer is lost is sent again, and may be stored twice"
    assert plain_broker.proxy.requests(InitProducerIdRequest) == []


@pytest.mark.parametrize("skip", [0, 3])
@pytest.mark.parametrize("fault", LOSSES)
async def test_a_lost_response_loses_and_reorders_nothing(plain_broker, topic, witness, fault, skip):
    """A lost request or response, or a duplicate, stores records at most twice; each is first stored in order."""
    # A request that a busy broker answers after this time would be stored twice, too.
    async with producer_of(plain_broker, request_timeout_ms=2_000) as producer, asyncio.timeout(60):
        with getattr(plain_broker.proxy, fault)(ProduceRequest, skip=skip):
            await publish_all(producer, topic, 300)

    numbers = await stored(witness, topic)
    assert in_order_of_first_copies(numbers) == (list(range(0, 300, 2)), list(range(1, 300, 2)))
    is_twice = fault != "drop_request"
    assert (sum(map(len, numbers)) > 300) is is_twice, "the records whose answer was lost are stored twice"


async def test_a_retriable_error_is_retried(plain_broker, topic, witness):
    """A batch that was stored, and refused with a retriable error, is sent again, and stored twice."""
    async with producer_of(plain_broker) as producer, asyncio.timeout(30):
        code = ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND
        with plain_broker.proxy.edit_answer(ProduceRequest, with_code(code)):
            published = await producer.publish(OutgoingRecord(topic, b"7", partition=0))

    assert published.topic_partition == TopicPartition(topic, 0)
    assert await stored(witness, topic) == ([7, 7], [])


async def test_connection_resets_lose_nothing(plain_broker, topic, witness):
    """Connection resets lose and reorder no record."""
    async with producer_of(plain_broker) as producer, asyncio.timeout(60):
        plain_broker.proxy.reset_every(0.02, 0.2)
        try:
            await publish_all(producer, topic, 2_000)
        finally:
            plain_broker.proxy.stop_resets()

    numbers = in_order_of_first_copies(await stored(witness, topic))
    assert numbers == (list(range(0, 2_000, 2)), list(range(1, 2_000, 2)))


async def test_idempotence_can_be_switched_off(own_server, topic, witness, recorder):
    """With ``enable_idempotence=False``, no producer id is requested, and the event names the option."""
    async with producer_of(own_server, enable_idempotence=False, hooks=[recorder]) as producer:
        await publish_all(producer, topic, 10)

    assert own_server.proxy.requests(InitProducerIdRequest) == []
    assert [one.reason for one in recorder.of(IdempotenceDisabled)] == ["enable_idempotence=False"]
    assert await stored(witness, topic) == ([0, 2, 4, 6, 8], [1, 3, 5, 7, 9])


async def test_idempotence_can_be_required(plain_broker):
    """With ``enable_idempotence=True``, the start raises an error that names the missing request and the next step."""
    with pytest.raises(UnsupportedVersionError) as caught:
        await producer_of(plain_broker, enable_idempotence=True).start()

    assert str(caught.value) == (
        "the broker does not support idempotent producers (KIP-98): InitProducerId: tailrace supports versions 0 to 5,"
        " the broker does not support this API - accept duplicates (enable_idempotence=None, the default), or enable"
        " idempotence on the brokers"
    )


async def test_a_principal_without_idempotent_write_gets_the_next_step(own_server):
    """If the broker refuses a producer id for lack of a permission, the error names the ACL and the option."""
    refused = with_code(ErrorCode.CLUSTER_AUTHORIZATION_FAILED)
    with (
        own_server.proxy.edit_answer(InitProducerIdRequest, refused, times=None),
        pytest.raises(PublishError) as caught,
    ):
        await producer_of(own_server).start()

    assert str(caught.value).endswith(
        " - grant WRITE on a topic (Kafka 2.8 or newer), or IDEMPOTENT_WRITE on the cluster, to this principal; or set"
        " enable_idempotence=False"
    )
