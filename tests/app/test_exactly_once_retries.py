"""App(delivery="exactly_once") and records that fail more slowly than a transaction may last."""

from __future__ import annotations

import asyncio

import pytest
from ledger import Ledger
from passing import IMPATIENT, QUICK_BROKER, check, direct, fill, until_committed
from witness import Witness

from penstock import App, ConfigurationError, Message, PartialFailureError, Record, Retry
from penstock.observe.events import RecordBuried
from penstock.testing import KafkaServer

POISON = b"7"


@pytest.fixture(scope="module")
def own_server():
    with KafkaServer(config=QUICK_BROKER) as started:
        yield started


@pytest.fixture
def ledger(own_server) -> Ledger:
    return Ledger(direct(own_server))


@pytest.fixture
def witness(own_server) -> Witness:
    return Witness(own_server.bootstrap_servers)


@pytest.fixture
def new_app(own_server, group, recorder):
    def make(**options) -> App:
        defaults = {
            **IMPATIENT,
            "group_id": group,
            "hooks": [recorder],
            "dead_letter": "{topic}.dead",
            "transaction_timeout_ms": 500,
        }
        return App(bootstrap_servers=own_server.bootstrap_servers, delivery="exactly_once", **{**defaults, **options})

    return make


@pytest.fixture
def dead(own_server, ledger):
    """Makes the topic for a topic's dead letters."""

    def make(source: str) -> str:
        own_server.create_topic(f"{source}.dead")
        ledger._partitions[f"{source}.dead"] = 1
        return f"{source}.dead"

    return make


@pytest.mark.parametrize(
    ("retry", "takes_s", "timeout_ms", "attempts"),
    [
        # The pauses add up to more than a transaction may last, and so does the longest of them alone.
        (Retry(attempts=4, backoff_ms=150, jitter=False), 0.0, None, 4),
        (Retry(attempts=2, backoff_ms=600, jitter=False), 0.0, None, 2),
        # The attempts do.
        (Retry(attempts=3, backoff_ms=1), 600.0, 250, 3),
        # One attempt alone does.
        (Retry(attempts=2, backoff_ms=1), 0.6, None, 2),
    ],
)
async def test_a_record_that_fails_slowly_dies(  # noqa: PLR0917 - fixtures
    ledger, witness, new_app, group, recorder, dead, retry, takes_s, timeout_ms, attempts
):
    """After as many attempts as were said, in the transaction that goes on without it; others are not held up."""
    source, target = ledger.topic(2), ledger.topic()
    letters, app, tried = dead(source), new_app(retry=retry), []
    fill(witness, source, range(20))

    @app.handler(source, publish=target, order_by="key", timeout_ms=timeout_ms, concurrency=16)
    async def pass_on(record: Record) -> Message:
        if record.value == POISON:
            tried.append(asyncio.get_running_loop().time())
            await asyncio.sleep(takes_s)
            raise ValueError("poison")
        return Message(record.value, key=record.key)

    async with app:
        await until_committed(ledger, group, source, 20, 2)

    assert len(tried) == attempts
    assert len(recorder.of(RecordBuried)) == 1
    assert await ledger.values(letters) == [POISON]
    await check(ledger, target, sorted({*range(20)} - {7}))


async def test_a_record_of_a_batch_that_fails_slowly_dies(ledger, witness, new_app, group, dead):
    """It alone, after as many attempts as were said; the others of its batches are passed on once."""
    source, target = ledger.topic(), ledger.topic()
    letters, app, tried = dead(source), new_app(retry=Retry(attempts=3, backoff_ms=250, jitter=False)), []
    fill(witness, source, range(20))

    @app.batch_handler(source, publish=target, max_records=5, max_wait_ms=20)
    async def pass_on(records: list[Record]) -> list[Message]:
        found = [index for index, record in enumerate(records) if record.value == POISON]
        tried.extend(found)
        if found:
            raise PartialFailureError(found)
        return [Message(record.value, key=record.key) for record in records]

    async with app:
        await until_committed(ledger, group, source, 20)

    assert len(tried) == 3
    assert await ledger.values(letters) == [POISON]
    await check(ledger, target, sorted({*range(20)} - {7}))


@pytest.mark.parametrize(
    ("handler", "said"),
    [
        ({"timeout_ms": 400}, "timeout_ms=400.*below 400 ms.*transaction_timeout_ms=500"),
        ({"max_wait_ms": 300, "timeout_ms": 100}, "max_wait_ms=300 and then timeout_ms=100"),
        ({"max_wait_ms": 400}, "max_wait_ms=400"),
    ],
)
async def test_what_can_never_fit_into_a_transaction_is_refused_at_the_start(new_app, handler, said):
    """All of its transactions would be taken back; the longest time that would do is told."""
    app = new_app()
    declare = app.batch_handler if "max_wait_ms" in handler else app.handler

    @declare("t", **handler)
    async def handle(_values: list[bytes]) -> None: ...

    with pytest.raises(ConfigurationError, match=said):
        await app.start()
