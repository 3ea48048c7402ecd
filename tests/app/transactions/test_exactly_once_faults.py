"""App(delivery="exactly_once") with lost responses, killed brokers, transaction timeouts and fencing."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import time
from collections import Counter
from typing import Any

import pytest

from tailrace import ProducerFencedError, PublishError, Record
from tailrace.app.transactions.renewing_producer import RenewingProducer
from tailrace.config import producer_config, resolve
from tailrace.error_codes import ErrorCode
from tailrace.observe.events import (
    OffsetsCommitted,
    TransactionAborted,
    TransactionalProducerReplaced,
    TransactionInDoubt,
)
from tailrace.observe.hooks import Observer
from tailrace.producer.publisher import OutgoingRecord
from tailrace.producer.transaction_machine import ProducerState
from tailrace.protocol.groups import OffsetFetchRequest
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
from tests.support.consumer_group import until
from tests.support.event_recorder import EventRecorder
from tests.support.pipelines import check, fill, passing_on, until_committed
from tests.support.transaction_faults import LOSSES, requests_of, sent_in, with_code
from tests.support.witness import Witness


@pytest.fixture
def new_app(new_app):
    """Return a factory of apps whose abandoned transactions the broker soon aborts."""
    return functools.partial(new_app, transaction_timeout_ms=5_000)


async def its_beginning(recorder: EventRecorder) -> None:
    """Wait until the start position is committed, so that later faults affect transactions with records."""
    await recorder.wait_for(OffsetsCommitted)


# ---- lost responses, refused requests --------------------------------------------------------------------------


@pytest.mark.parametrize("fault", LOSSES)
async def test_lost_requests_and_responses_repeat_no_record(  # noqa: PLR0917 - fixtures
    ledger, witness, proxy, new_app, group, recorder, fault, transaction_version
):
    """Each record is published once, although requests or responses are lost, or requests arrive twice."""
    source, target = ledger.topic(), ledger.topic()
    app, requests = new_app(request_timeout_ms=400), requests_of(transaction_version)
    passing_on(app, source, target)

    async with app:
        await its_beginning(recorder)
        for number, request in enumerate(requests, 1):
            with getattr(proxy, fault)(request):
                fill(witness, source, range(number * 20 - 20, number * 20))
                await until_committed(ledger, group, source, number * 20)

    await check(ledger, target, range(len(requests) * 20))


@pytest.mark.parametrize(
    ("request_", "code"),
    [
        (TxnOffsetCommitRequest, ErrorCode.UNKNOWN_MEMBER_ID),
        (TxnOffsetCommitRequest, ErrorCode.REBALANCE_IN_PROGRESS),
        (ProduceRequest, ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER),
        (ProduceRequest, ErrorCode.TRANSACTION_ABORTABLE),
        (AddPartitionsToTxnRequest, ErrorCode.INVALID_PRODUCER_ID_MAPPING),
        # INVALID_TXN_STATE is fatal: the producer is replaced.
        (EndTxnRequest, ErrorCode.INVALID_TXN_STATE),
        (AddOffsetsToTxnRequest, ErrorCode.INVALID_TXN_STATE),
    ],
)
async def test_a_refused_transaction_is_repeated(  # noqa: PLR0917 - fixtures
    ledger, witness, proxy, new_app, group, recorder, request_, code, transaction_version
):
    """A refused request aborts the transaction; its records are handled again, and published once."""
    source, target, app = ledger.topic(), ledger.topic(), new_app()
    seen = passing_on(app, source, target)

    async with app:
        await its_beginning(recorder)
        with proxy.edit_answer(sent_in(transaction_version, request_), with_code(code)):
            fill(witness, source, range(50))
            await until_committed(ledger, group, source, 50)

    assert len(recorder.of(TransactionAborted)) == 1
    # A request may have succeeded although its answer is an error: then the records are not handled again.
    assert Counter(seen).keys() == {*range(50)}
    await check(ledger, target, range(50))


@pytest.mark.parametrize("code", [ErrorCode.ILLEGAL_GENERATION, ErrorCode.STALE_MEMBER_EPOCH])
async def test_a_temporarily_refused_generation_aborts_nothing(  # noqa: PLR0917 - fixtures
    ledger, witness, proxy, new_app, group, recorder, code
):
    """A refused offset commit is repeated while the member owns its partitions, and no record is handled twice."""
    source, target, app = ledger.topic(), ledger.topic(), new_app()
    seen = passing_on(app, source, target)

    async with app:
        await its_beginning(recorder)
        with proxy.edit_answer(TxnOffsetCommitRequest, with_code(code), times=2) as refused:
            fill(witness, source, range(50))
            await until_committed(ledger, group, source, 50)

    assert refused.count == 2
    assert not recorder.of(TransactionAborted)
    assert Counter(seen) == Counter(range(50))
    await check(ledger, target, range(50))


async def test_a_commit_in_doubt_is_queried_until_its_outcome_is_known(  # noqa: PLR0917 - fixtures
    ledger, witness, proxy, new_app, group, recorder
):
    """No transaction begins while the outcome of the last one is unknown; afterwards processing continues."""
    source, target = ledger.topic(), ledger.topic()
    app = new_app(request_timeout_ms=300, default_api_timeout_ms=2_500)
    seen = passing_on(app, source, target)

    async with app:
        await its_beginning(recorder)
        with proxy.drop_answer(EndTxnRequest, times=None):
            fill(witness, source, range(20))
            await recorder.wait_for(TransactionInDoubt)
        await until_committed(ledger, group, source, 20)

    assert Counter(seen) == Counter(range(20))
    await check(ledger, target, range(20))


async def test_a_transaction_that_the_broker_aborted_is_repeated(  # noqa: PLR0917 - fixtures
    ledger, witness, proxy, new_app, group, recorder
):
    """A transaction that the broker aborted by timeout is repeated with a new producer."""
    source, target = ledger.topic(), ledger.topic()
    app = new_app(transaction_timeout_ms=4_000, request_timeout_ms=1_000)
    seen = passing_on(app, source, target)

    async with app:
        await its_beginning(recorder)
        with proxy.drop_request(EndTxnRequest, times=None):
            fill(witness, source, range(20))
            await recorder.wait_for(TransactionInDoubt)
            async with asyncio.timeout(30):
                # The broker's own abort marker follows the records.
                while await ledger.stable_end(target) <= 20:  # noqa: ASYNC110 - an end offset sets no event
                    await asyncio.sleep(0.05)
        await until_committed(ledger, group, source, 20)

    assert recorder.of(TransactionalProducerReplaced)
    assert Counter(seen) >= Counter([*range(20)] * 2)
    await check(ledger, target, range(20))


@pytest.mark.parametrize("frame", ["request", "answer"])
@pytest.mark.slow
async def test_an_app_that_was_suspended_in_its_transaction_continues(  # noqa: PLR0917 - fixtures
    ledger, witness, proxy, new_app, group, recorder, frame, transaction_version
):
    """An app whose transaction timed out while the process was suspended goes on, at whatever point that was."""
    source, target, loop, suspended_s = ledger.topic(), ledger.topic(), asyncio.get_running_loop(), 1.6
    app, requests = new_app(transaction_timeout_ms=1_000), requests_of(transaction_version)
    passing_on(app, source, target)

    def suspend(message: Any) -> Any:
        # The broker receives the message after it has aborted the transaction, or the app its response.
        loop.call_soon_threadsafe(time.sleep, suspended_s)
        if frame == "request":
            time.sleep(suspended_s)
        return message

    async with app:
        await its_beginning(recorder)
        for number, request in enumerate(requests, 1):
            with getattr(proxy, f"edit_{frame}")(request, suspend):
                fill(witness, source, range(number * 20 - 20, number * 20))
                await until_committed(ledger, group, source, number * 20)

    assert recorder.of(TransactionalProducerReplaced)
    await check(ledger, target, range(len(requests) * 20))


async def test_the_transaction_of_a_handler_that_takes_too_long_is_aborted(ledger, witness, new_app, group, recorder):
    """The transaction of a handler that swallows its timeout is aborted before the broker fences the producer."""
    source, target, app = ledger.topic(), ledger.topic(), new_app()
    fill(witness, source, range(20))
    slow = True

    async def once(record: Record) -> None:
        nonlocal slow
        if record.value == b"7" and slow:
            aborted = asyncio.create_task(recorder.wait_for(TransactionAborted))
            while not aborted.done():
                with contextlib.suppress(asyncio.CancelledError):
                    await asyncio.shield(aborted)
            slow = False

    seen = passing_on(app, source, target, first=once)
    async with app:
        await until_committed(ledger, group, source, 20)

    assert "transaction_timeout_ms" in recorder.of(TransactionAborted)[0].reason
    assert not recorder.of(TransactionalProducerReplaced)
    assert Counter(seen) == Counter([*range(20)] * 2)
    await check(ledger, target, range(20))


async def test_offsets_with_pending_commits_are_fetched_again(ledger, witness, proxy, new_app, recorder):
    """After an abort the app restores committed positions, and retries while the coordinator has pending commits."""
    source, target = ledger.topic(), ledger.topic()
    fill(witness, source, range(20))
    app = new_app()
    passing_on(app, source, target)

    async with app:
        await recorder.wait_for(OffsetsCommitted)
        with (
            proxy.edit_answer(TxnOffsetCommitRequest, with_code(ErrorCode.UNKNOWN_MEMBER_ID)),
            proxy.edit_answer(OffsetFetchRequest, with_code(ErrorCode.UNSTABLE_OFFSET_COMMIT), times=2),
        ):
            fill(witness, source, range(20, 40))
            await recorder.wait_for(OffsetsCommitted, where=lambda event: 40 in event.offsets.values())

    await check(ledger, target, range(40))


# ---- other processes, killed brokers ---------------------------------------------------------------------------


async def test_a_shared_transactional_id_ends_the_first_app(ledger, witness, new_app, group):
    """The first of two apps with one transactional_id ends with ProducerFencedError; the second takes over."""
    source, target = ledger.topic(), ledger.topic()
    fill(witness, source, range(20))
    first, second = (new_app(transactional_id="the same", heartbeat_interval_ms=200) for _ in range(2))
    passing_on(first, source, target)
    passing_on(second, source, target)

    await first.start()
    await until_committed(ledger, group, source, 20)
    async with second:
        await second.wait_ready()
        fill(witness, source, range(20, 40))
        # By this check alone: the test may have blocked the event loop, which fails another check.
        await until(lambda: any(one.name == "app" and one.status == "failed" for one in first.health().checks))
        with pytest.raises(ProducerFencedError, match="give each process a transactional_id of its own"):
            await first.stop()
        await until_committed(ledger, group, source, 40)

    await check(ledger, target, range(40))


@pytest.mark.slow
async def test_a_restarted_broker_loses_and_repeats_no_record(mortal_server, new_app, group):
    """After a broker was killed and restarted, no record is lost, and each result is published once."""
    ledger, witness = CommittedRecords(mortal_server), Witness(mortal_server.bootstrap_servers)
    source, target = ledger.topic(2), ledger.topic(2)
    app = new_app(bootstrap_servers=mortal_server.bootstrap_servers)
    seen = passing_on(app, source, target)
    fill(witness, source, range(3_000))

    async with app:
        await until(lambda: len(seen) > 500)
        await asyncio.to_thread(mortal_server.kill)
        await asyncio.to_thread(mortal_server.restart)
        fill(witness, source, range(3_000, 4_000))
        await until_committed(ledger, group, source, 4_000, 2)

    await check(ledger, target, range(4_000))


async def test_a_fenced_producer_is_not_replaced(own_server, ledger, recorder):
    """A fenced producer with a fixed transactional_id is not replaced, as two processes would fence each other."""
    topic, config = ledger.topic(), resolve({**own_server.client_options, "retry_backoff_ms": 20}, {})
    name = f"x-{topic}"
    named = producer_config(config, transactional_id=name, transaction_timeout_ms=60_000)
    one = RenewingProducer(named, "g", max_metadata_bytes=4_096, observer=Observer((recorder,)))
    await one.start()
    await one.begin()
    async with ledger.producer(name):
        pass

    async def send_until_refused() -> None:
        while True:
            await one.send(OutgoingRecord(topic, b"x", partition=0))
            await asyncio.sleep(0.01)

    async with asyncio.timeout(30):
        with pytest.raises(ProducerFencedError):
            await send_until_refused()
    with pytest.raises(ProducerFencedError):
        await one.abort(PublishError("a record has failed"), is_timed_out=False)
    await one.close()


@pytest.fixture
async def renewing(own_server, ledger, recorder):
    """Start a producer whose transactions time out after two seconds, with the id of no other producer."""
    config = resolve({**own_server.client_options, "retry_backoff_ms": 20}, {})
    name = f"x-{ledger.topic()}"
    named = producer_config(config, transactional_id=name, transaction_timeout_ms=2_000)
    producer = RenewingProducer(named, "g", max_metadata_bytes=4_096, observer=Observer((recorder,)))
    await producer.start()
    yield producer
    await producer.close()


@pytest.mark.parametrize("is_timed_out", [True, False], ids=["known", "found out meanwhile"])
async def test_a_producer_that_its_own_timeout_fenced_is_replaced(  # noqa: PLR0917 - fixtures
    ledger, proxy, renewing, recorder, is_timed_out, transaction_version
):
    """A producer is replaced if its transaction has timed out, even if it is fenced only while ``abort`` waits.

    In version 2, the coordinator also acknowledges the producer's abort of a transaction that it has aborted.
    """
    topic = ledger.topic()
    await renewing.begin()
    first = renewing._producer

    async def send() -> None:
        await renewing.send(OutgoingRecord(topic, b"x", partition=0))

    await send()
    await proxied(proxy, ProduceRequest)
    with proxy.drop_answer(ProduceRequest, times=None), proxy.hold_request(EndTxnRequest) as held:
        await send()
        # The record is not acknowledged, so the producer aborts by itself.
        await until(lambda: first.state is ProducerState.ABORTING)
        aborting = asyncio.create_task(renewing.abort(PublishError("lost a partition"), is_timed_out=is_timed_out))
        # The broker's own marker follows the records.
        async with asyncio.timeout(30):
            while await ledger.stable_end(topic) < 3:  # noqa: ASYNC110 - an end offset sets no event
                await asyncio.sleep(0.05)
        held.release()
        await aborting

    assert first.state is (ProducerState.FENCED if transaction_version == 1 else ProducerState.READY)
    assert len(recorder.of(TransactionalProducerReplaced)) == (1 if transaction_version == 1 else 0)
    await renewing.begin()
    await send()


async def test_a_producer_that_the_broker_has_forgotten_is_replaced(
    ledger, proxy, renewing, recorder, transaction_version
):
    """A producer whose id has expired at the coordinator is replaced at the beginning of the next transaction."""
    topic = ledger.topic()
    unknown = with_code(ErrorCode.INVALID_PRODUCER_ID_MAPPING)
    await renewing.begin()
    with (
        proxy.edit_answer(sent_in(transaction_version, AddPartitionsToTxnRequest), unknown),
        proxy.edit_answer(EndTxnRequest, unknown),
        proxy.edit_answer(InitProducerIdRequest, unknown),
    ):
        await renewing.send(OutgoingRecord(topic, b"x", partition=0))
        await until(lambda: renewing._producer.state is ProducerState.UNINITIALIZED)
        await renewing.abort(PublishError("a record has failed"), is_timed_out=False)
        await renewing.begin()

    assert len(recorder.of(TransactionalProducerReplaced)) == 1
    await renewing.send(OutgoingRecord(topic, b"x", partition=0))


async def proxied(proxy: FaultProxy, kind: type[Any]) -> None:
    """Wait until the proxy has sent a response of this kind."""
    await until(lambda: proxy.answers(kind))
