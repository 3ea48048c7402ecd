"""Transactions under faults: each is committed once as a whole, or not at all."""

from __future__ import annotations

import asyncio
import uuid
from contextlib import AsyncExitStack

import pytest
from msgspec.structs import replace

from tailrace import ConsumerStateError, OffsetAndMetadata, ProducerFencedError, PublishError, TopicPartition
from tailrace.config import split_address
from tailrace.core.group_requests import Identity
from tailrace.error_codes import ErrorCode
from tailrace.producer.publisher import OutgoingRecord
from tailrace.producer.transaction_machine import ProducerState
from tailrace.producer.transactional_producer import TransactionalProducer
from tailrace.protocol.metadata import (
    DescribeClusterRequest,
    DescribeClusterResponse,
    FindCoordinatorRequest,
    MetadataRequest,
    MetadataResponse,
)
from tailrace.protocol.records import ProduceRequest
from tailrace.protocol.transactions import (
    AddOffsetsToTxnRequest,
    AddPartitionsToTxnRequest,
    EndTxnRequest,
    InitProducerIdRequest,
    TxnOffsetCommitRequest,
)
from tailrace.testing import FaultProxy
from tests.support.committed_records import CommittedRecords
from tests.support.net.peers import closed_port
from tests.support.transaction_faults import IN_TRANSACTION, LOSSES, requests_of, sent_in, with_code

NOBODY = Identity()

# Detects lost answers early.
IMPATIENT = {"request_timeout_ms": 300}


@pytest.fixture
def ledger(own_server) -> CommittedRecords:
    """Provide a ledger whose producers connect through the proxy."""
    return CommittedRecords(own_server)


def offset(topic: str, number: int) -> dict[TopicPartition, OffsetAndMetadata]:
    """Return an offset of the first partition, to commit."""
    return {TopicPartition(topic, 0): OffsetAndMetadata(number)}


async def begin(producer: TransactionalProducer, topic: str, value: bytes) -> None:
    """Begin a transaction, and send a record to each of two partitions."""
    await producer.begin()
    for partition in (0, 1):
        await producer.send(OutgoingRecord(topic, value, partition=partition))


async def publish(producer: TransactionalProducer, topic: str, value: bytes, group: str, number: int) -> None:
    """Commit a transaction of a record in each of two partitions, and an offset."""
    await begin(producer, topic, value)
    await producer.commit(offset(topic, number), NOBODY, group)


# ---- lost answers ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("fault", LOSSES)
async def test_a_lost_response_loses_and_repeats_nothing(ledger, proxy, group, fault, transaction_version):
    """Records and offsets are committed once after a lost request, lost response or duplicate."""
    topic, requests = ledger.topic(2), requests_of(transaction_version)
    numbers = range(len(requests))

    async with ledger.producer(config=IMPATIENT) as producer:
        for number, request in enumerate(requests):
            with getattr(proxy, fault)(request):
                await publish(producer, topic, b"%d" % number, group, number)
            assert await ledger.group_offsets(group, topic) == {0: number}

    assert await ledger.values(topic) == [b"%d" % number for number in numbers] * 2


@pytest.mark.parametrize("fault", ["drop_answer", "reset_on_answer"])
@pytest.mark.parametrize("request_", [InitProducerIdRequest, FindCoordinatorRequest])
async def test_start_retries_after_a_lost_response(ledger, proxy, group, request_, fault):
    """start() retries after a lost response, and the former producer with the transactional id is fenced."""
    topic, name = ledger.topic(2), f"x-{uuid.uuid4().hex[:12]}"

    async with ledger.producer(name) as zombie:
        await zombie.begin()
        await zombie.send(OutgoingRecord(topic, b"zombie"))
        with getattr(proxy, fault)(request_):
            async with ledger.producer(name, config=IMPATIENT) as successor:
                await publish(successor, topic, b"1", group, 1)
        with pytest.raises(ProducerFencedError):
            await zombie.commit()

    assert await ledger.values(topic) == [b"1"] * 2


async def test_the_epoch_is_new_after_a_lost_response(ledger, proxy, group):
    """After a lost response the next transaction has a new epoch, which fences requests that arrive late."""
    topic = ledger.topic(2)

    async with ledger.producer() as producer:
        await publish(producer, topic, b"1", group, 1)
        with proxy.reset_on_answer(ProduceRequest):
            await publish(producer, topic, b"2", group, 2)
        before = producer._machine.producer
        await publish(producer, topic, b"3", group, 3)
        after = producer._machine.producer

    assert (after.id, after.epoch) == (before.id, before.epoch + 1)


# ---- refused requests ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("request_", "code"),
    [
        (AddPartitionsToTxnRequest, ErrorCode.CONCURRENT_TRANSACTIONS),
        (AddPartitionsToTxnRequest, ErrorCode.NOT_COORDINATOR),
        (ProduceRequest, ErrorCode.NOT_LEADER_OR_FOLLOWER),
        (ProduceRequest, ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND),
        (AddOffsetsToTxnRequest, ErrorCode.COORDINATOR_LOAD_IN_PROGRESS),
        (TxnOffsetCommitRequest, ErrorCode.NOT_COORDINATOR),
        (EndTxnRequest, ErrorCode.COORDINATOR_NOT_AVAILABLE),
        # The end may have taken effect or not, so this is neither success nor failure.
        (EndTxnRequest, ErrorCode.UNKNOWN_SERVER_ERROR),
    ],
)
async def test_a_retriable_refusal_is_repeated_and_takes_effect_once(  # noqa: PLR0917 - fixtures
    ledger, proxy, group, request_, code, transaction_version
):
    """A request refused with a retriable error is repeated, and takes effect once."""
    topic, request = ledger.topic(2), sent_in(transaction_version, request_)

    async with ledger.producer() as producer:
        with proxy.edit_answer(request, with_code(code), times=2):
            await publish(producer, topic, b"1", group, 1)

    assert await ledger.values(topic) == [b"1"] * 2
    assert await ledger.group_offsets(group, topic) == {0: 1}


@pytest.mark.parametrize(
    ("request_", "code"),
    [
        (AddPartitionsToTxnRequest, ErrorCode.TOPIC_AUTHORIZATION_FAILED),
        (ProduceRequest, ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER),
        (ProduceRequest, ErrorCode.TRANSACTION_ABORTABLE),
        (AddOffsetsToTxnRequest, ErrorCode.GROUP_AUTHORIZATION_FAILED),
        (TxnOffsetCommitRequest, ErrorCode.OFFSET_METADATA_TOO_LARGE),
    ],
)
async def test_an_error_that_is_not_retriable_aborts_the_transaction(  # noqa: PLR0917 - fixtures
    ledger, proxy, group, request_, code, transaction_version
):
    """After a permanent error commit() raises, the transaction is aborted, and the next one succeeds."""
    topic, request = ledger.topic(2), sent_in(transaction_version, request_)

    async with ledger.producer() as producer:
        with (
            proxy.edit_answer(request, with_code(code)),
            pytest.raises(PublishError, match=rf"{code.name}.*the transaction was aborted"),
        ):
            await publish(producer, topic, b"1", group, 1)
        await producer.abort()
        assert await ledger.group_offsets(group, topic) == {}
        await publish(producer, topic, b"2", group, 2)

    assert await ledger.values(topic) == [b"2"] * 2
    assert await ledger.group_offsets(group, topic) == {0: 2}


async def test_the_abort_of_an_unknown_transaction_succeeds(ledger, proxy, group, transaction_version):
    """abort() of a transaction that the coordinator does not know succeeds, and so does the next transaction."""
    topic = ledger.topic(2)

    async with ledger.producer(config=IMPATIENT) as producer:
        producer._max_wait_s = 1.0
        with (
            proxy.drop_request(sent_in(transaction_version, AddPartitionsToTxnRequest), times=None),
            pytest.raises(PublishError, match="not completed in time"),
        ):
            await publish(producer, topic, b"1", group, 1)
        producer._max_wait_s = 20.0
        await publish(producer, topic, b"2", group, 2)

    assert await ledger.values(topic) == [b"2"] * 2


# ---- commits ---------------------------------------------------------------------------------------------------


async def test_no_record_is_visible_before_the_transaction_ends(ledger, proxy, group):
    """Before EndTxn reaches the coordinator, read_committed consumers see no record and no offset is committed."""
    topic = ledger.topic(2)

    async with ledger.producer() as producer, asyncio.TaskGroup() as tasks:
        with proxy.hold_request(EndTxnRequest) as held:
            committing = tasks.create_task(publish(producer, topic, b"1", group, 1))
            await held.wait_applied()
            assert await ledger.stable_end(topic) == 0
            (found,) = await ledger.group_offsets_now(group, topic)
            assert found.offset < 0
            assert not committing.done()

    assert await ledger.values(topic) == [b"1"] * 2
    assert await ledger.group_offsets(group, topic) == {0: 1}


async def test_a_commit_in_doubt_is_completed_by_the_next_call(ledger, proxy, group):
    """After a commit without a response abort() raises, and the next commit() or begin() completes it."""
    topics = {way_on: ledger.topic(2) for way_on in ("commit", "begin", "close")}

    async def doubt(producer: TransactionalProducer, topic: str) -> None:
        producer._max_wait_s = 3.0
        with pytest.raises(PublishError, match="not known whether"):
            await publish(producer, topic, b"1", f"{group}-{topic}", 1)
        producer._max_wait_s = 20.0
        assert producer.is_in_doubt
        with pytest.raises(Exception, match="cannot be undone"):
            await producer.abort()

    async with AsyncExitStack() as stack:
        producers = {way_on: await stack.enter_async_context(ledger.producer(config=IMPATIENT)) for way_on in topics}
        for way_on, topic in topics.items():
            await publish(producers[way_on], topic, b"0", f"{group}-{topic}", 0)
        with proxy.drop_answer(EndTxnRequest, times=None):
            await asyncio.gather(*(doubt(producers[way_on], topic) for way_on, topic in topics.items()))
        for way_on in ("commit", "begin"):
            await getattr(producers[way_on], way_on)()
            assert not producers[way_on].is_in_doubt

    for topic in topics.values():
        assert await ledger.values(topic) == [b"0", b"1"] * 2
        assert await ledger.group_offsets(f"{group}-{topic}", topic) == {0: 1}


@pytest.mark.parametrize("request_", [ProduceRequest, EndTxnRequest])
async def test_a_record_is_refused_while_its_transaction_is_committed(ledger, proxy, request_):
    """A record that another task publishes during a commit raises, and belongs to no transaction; the next one does."""
    topic = ledger.topic(2)

    async with ledger.producer() as producer, asyncio.TaskGroup() as tasks:
        with proxy.hold_answer(request_) as held:
            await begin(producer, topic, b"1")
            committing = tasks.create_task(producer.commit())
            await held.wait_applied()
            with pytest.raises(ConsumerStateError, match="being committed - publish in the next one"):
                await producer.send(OutgoingRecord(topic, b"lost", partition=0))
        await committing
        await begin(producer, topic, b"2")
        await producer.commit()

    assert await ledger.values(topic) == [b"1", b"2"] * 2


@pytest.mark.parametrize("request_", IN_TRANSACTION)
async def test_a_canceled_commit_is_all_or_nothing(ledger, proxy, group, request_, transaction_version):
    """A canceled commit takes effect only if EndTxn was sent, and the next transaction succeeds."""
    topic = ledger.topic(2)

    async with ledger.producer() as producer:
        with proxy.hold_answer(sent_in(transaction_version, request_)) as held:
            async with asyncio.TaskGroup() as tasks:
                committing = tasks.create_task(publish(producer, topic, b"1", group, 1))
                await held.wait_applied()
                committing.cancel()
        assert producer.is_in_doubt is (request_ is EndTxnRequest)
        await publish(producer, topic, b"2", group, 2)

    assert await ledger.values(topic) == ([b"1", b"2"] if request_ is EndTxnRequest else [b"2"]) * 2
    assert await ledger.group_offsets(group, topic) == {0: 2}


# ---- broker failures and timeouts ------------------------------------------------------------------------------


@pytest.mark.slow
async def test_transactions_complete_after_the_coordinator_is_killed(mortal_server, group):
    """After SIGKILL and restart of the broker, pending commits and aborts complete."""
    ledger = CommittedRecords(mortal_server)
    topic = ledger.topic(2)

    async with ledger.producer() as committing, ledger.producer() as aborting:
        for producer, value in ((committing, b"committed"), (aborting, b"aborted")):
            await begin(producer, topic, value)
        await ledger.flush(aborting)
        await asyncio.to_thread(mortal_server.kill)
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(asyncio.to_thread(mortal_server.restart))
            tasks.create_task(committing.commit(offset(topic, 7), NOBODY, group))
            tasks.create_task(aborting.abort())
        assert committing.state in {ProducerState.READY, ProducerState.UNINITIALIZED}
        await publish(committing, topic, b"next", group, 8)

    assert await ledger.values(topic) == [b"committed", b"next"] * 2
    assert await ledger.group_offsets(group, topic) == {0: 8}


async def test_calls_to_a_frozen_broker_end_at_their_timeouts(ledger, proxy):
    """With a frozen broker, each call and the exit end at their timeouts and leave no task."""
    topic, before = ledger.topic(2), asyncio.all_tasks()
    options = {"default_api_timeout_ms": 2_000, "stop_timeout_ms": 500, "request_timeout_ms": 60_000}

    async with asyncio.timeout(30):
        async with ledger.producer(config=options) as producer:
            await producer.begin()
            await producer.send(OutgoingRecord(topic, b"x"))
            proxy.black_hole()
            with pytest.raises(PublishError, match="not completed in time"):
                await producer.commit()
            with pytest.raises(PublishError, match="abort was not acknowledged"):
                await producer.begin()
        proxy.restore()

    assert asyncio.all_tasks() == before
    assert await ledger.values(topic) == []


async def test_a_transaction_timeout_raises_with_advice(ledger):
    """After a transaction timeout, commit() raises ProducerFencedError with advice, and a new producer succeeds."""
    topic, name = ledger.topic(), f"x-{uuid.uuid4().hex[:12]}"

    async with ledger.producer(name, transaction_timeout_ms=2_500) as slow:
        await slow.begin()
        await slow.send(OutgoingRecord(topic, b"slow", partition=0))
        await ledger.flush(slow)
        # The read ends once the broker has aborted the open transaction.
        assert await ledger.values(topic) == []
        with pytest.raises(ProducerFencedError, match="raise transaction_timeout_ms"):
            await slow.commit()
        async with ledger.producer(name) as other:
            await other.begin()
            await other.send(OutgoingRecord(topic, b"other"))
            await other.commit()

    assert await ledger.values(topic) == [b"other"]


async def test_brokers_that_have_moved_are_found_again(own_server, proxy, ledger):
    """If all brokers have moved, the producer finds them by its bootstrap servers."""
    topic = ledger.topic()
    with FaultProxy("127.0.0.1", own_server.node.ports.internal) as old:

        def elsewhere(answer: MetadataResponse) -> MetadataResponse:
            return replace(answer, brokers=tuple(replace(one, port=old.port) for one in answer.brokers))

        with (
            proxy.edit_answer(MetadataRequest, elsewhere, times=None),
            old.edit_answer(MetadataRequest, elsewhere, times=None),
        ):
            producer = ledger.producer(config=IMPATIENT)
            await producer.start()
            await publish_one(producer, topic, b"1")
    await publish_one(producer, topic, b"2")
    await producer.close()

    assert await ledger.values(topic) == [b"1", b"2"]


async def publish_one(producer: TransactionalProducer, topic: str, value: bytes) -> None:
    await producer.begin()
    await producer.send(OutgoingRecord(topic, value))
    await producer.commit()


async def test_a_coordinator_that_has_moved_is_used_before_the_metadata_is_refreshed(own_server, ledger, proxy):
    """A transactional producer reaches its coordinator at the address that a broker names for it."""

    def before_the_move(answer: MetadataResponse) -> MetadataResponse:
        # The other address of the same broker stands for a broker that has not moved.
        (node,) = answer.brokers
        host, port = split_address(dead)
        return replace(answer, brokers=(replace(node, host=host, port=port), replace(node, node_id=2)))

    def both(answer: DescribeClusterResponse) -> DescribeClusterResponse:
        (node,) = answer.brokers
        return replace(answer, brokers=(node, replace(node, broker_id=2)))

    with (
        closed_port() as dead,
        proxy.edit_answer(MetadataRequest, before_the_move, times=None),
        proxy.edit_answer(DescribeClusterRequest, both, times=None),
    ):
        async with ledger.producer(config={"start_timeout_ms": 30_000}) as producer:
            assert producer.state is ProducerState.READY
