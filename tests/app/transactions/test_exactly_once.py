"""App(delivery="exactly_once") on the real broker: read_committed consumers see each result once.

Committed records and offsets are read with librdkafka.
"""

from __future__ import annotations

import asyncio
from collections import Counter

import pytest
from msgspec.structs import replace

from tailrace import (
    App,
    ConfigurationError,
    Message,
    PublishError,
    Record,
    UnsupportedVersionError,
)
from tailrace.observe.events import TransactionAborted
from tailrace.producer.publisher import OutgoingRecord
from tailrace.protocol.handshake import ApiVersionsRequest, ApiVersionsResponse
from tests.support.consumer_group import until
from tests.support.pipelines import check, fill, passing_on, until_committed

INIT_PRODUCER_ID = 22


# ---- all or nothing --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("order_by", ["partition", "key", "none"])
@pytest.mark.parametrize("protocol", ["classic", "consumer"])
async def test_each_record_is_published_exactly_once(  # noqa: PLR0917 - fixtures
    ledger, witness, new_app, group, order_by, protocol
):
    """Each record is published once, with its key and in order, and offsets are committed without an offset map."""
    source, target = ledger.topic(3), ledger.topic(3)
    fill(witness, source, range(600))
    app = new_app(group_protocol=protocol)

    async def now_and_then(record: Record) -> None:
        await asyncio.sleep(0.001 * (record.offset % 3))

    passing_on(app, source, target, order_by=order_by, first=now_and_then)
    async with app:
        await until_committed(ledger, group, source, 600, 3)

    found = await ledger.committed(target)
    assert Counter(int(one.value()) for one in found) == Counter(range(600))
    assert {one.metadata for one in await ledger.group_offsets_now(group, source, range(3))} <= {None, ""}
    if order_by != "none":
        await check(ledger, target, range(600))


async def test_results_are_invisible_until_their_transaction_ends(ledger, witness, new_app):
    """Results stay invisible to read_committed consumers while another record of their transaction is in flight."""
    source, target, held = ledger.topic(), ledger.topic(), asyncio.Event()
    fill(witness, source, range(2))
    app = new_app()

    async def hold_one(record: Record) -> None:
        if record.value == b"1":
            await held.wait()

    seen = passing_on(app, source, target, first=hold_one)
    async with app:
        await until(lambda: len(seen) == 2)
        assert await ledger.stable_end(target) == 0
        held.set()

    await check(ledger, target, range(2))


async def test_records_published_by_the_handler_are_in_its_transaction(ledger, witness, new_app, group):
    """Records that a handler or its tasks publish are in its transaction; a failed attempt publishes nothing."""
    source, target, app = ledger.topic(), ledger.topic(), new_app()
    fill(witness, source, range(10))
    attempts = Counter()

    @app.handler(source)
    async def twice(record: Record) -> None:
        attempts[record.offset] += 1
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(app.publish(target, record.value, key="task"))
        await app.publish(target, record.value, key="handler")
        if attempts[record.offset] == 1:
            raise ValueError("not yet")

    async with app:
        await until_committed(ledger, group, source, 10)

    found = Counter((one.key(), one.value()) for one in await ledger.committed(target))
    assert found == Counter({(key, b"%d" % n): 1 for key in (b"task", b"handler") for n in range(10)})
    assert set(attempts.values()) == {2}


async def test_records_published_outside_of_handlers_are_visible_at_once(ledger, new_app):
    """App.publish outside of handlers returns when the record is acknowledged, and the record is visible at once."""
    app, target = new_app(), ledger.topic()
    passing_on(app, ledger.topic(), target)

    async with app:
        placed = await app.publish(target, b"7", key="k")
        assert await ledger.stable_end(target) == 1

    assert (placed.topic, placed.offset) == (target, 0)


async def test_a_task_that_outlives_its_handler_publishes_nothing(ledger, witness, new_app, group):
    """A task that outlives its handler cannot publish: the transaction of its record may be committed already."""
    source, target, app = ledger.topic(), ledger.topic(), new_app()
    fill(witness, source, range(1))
    left_behind, go = [], asyncio.Event()

    async def late() -> None:
        await go.wait()
        await app.publish(target, b"1")

    @app.handler(source)
    async def leave(_value: bytes) -> None:
        left_behind.extend((asyncio.create_task(late()), asyncio.create_task(app.publish(target, b"2"))))
        # The second task looks up a topic without metadata.
        await asyncio.sleep(0)

    async with app:
        await until_committed(ledger, group, source, 1)
        go.set()
        errors = await asyncio.gather(*left_behind, return_exceptions=True)

    assert [type(error) for error in errors] == [PublishError] * 2
    assert all("handler has returned" in str(error) for error in errors)
    assert await ledger.values(target) == []


async def test_aborted_records_are_not_handled(ledger, new_app, group):
    """Handlers receive committed records only."""
    source, target, app = ledger.topic(), ledger.topic(), new_app()
    async with ledger.producer() as producer:
        for number, ends in enumerate([producer.abort, producer.commit] * 5):
            await producer.begin()
            await producer.send(OutgoingRecord(source, b"%d" % number, key=b"k"))
            await ledger.flush(producer)
            await ends()

    seen = passing_on(app, source, target)
    async with app:
        await until(lambda: len(seen) == 5)
        await until_committed(ledger, group, source, 19)

    assert await ledger.values(target) == [b"1", b"3", b"5", b"7", b"9"]


async def test_commits_pass_control_records(ledger, new_app, group):
    """The committed offset reaches the end of the log, past transaction markers and aborted records."""
    source, target, app = ledger.topic(), ledger.topic(), new_app()

    async with ledger.producer() as producer:

        async def transaction(value: bytes, *, is_good: bool) -> None:
            await producer.begin()
            await producer.send(OutgoingRecord(source, value))
            await ledger.flush(producer)
            await (producer.commit() if is_good else producer.abort())

        await transaction(b"1", is_good=True)
        seen = passing_on(app, source, target)
        async with app:
            await until_committed(ledger, group, source, 2)
            await transaction(b"2", is_good=False)
            await until_committed(ledger, group, source, 4)

    assert seen == [1]
    assert await ledger.group_offsets(group, source) == {0: await ledger.stable_end(source)}
    assert await ledger.values(target) == [b"1"]


async def test_a_paused_handler_does_not_delay_a_transaction(ledger, witness, new_app, group, recorder):
    """Records queued for a paused handler stay out of transactions until it is resumed; other handlers continue."""
    source, other, target, app = ledger.topic(), ledger.topic(), ledger.topic(), new_app(transaction_timeout_ms=60_000)
    fill(witness, source, range(20))
    paused = asyncio.Event()

    @app.handler(source, publish=target)
    async def pass_on(record: Record) -> Message:
        if not paused.is_set():
            app.pause(pass_on)
            paused.set()
        return Message(record.value, key=record.key)

    passing_on(app, other, target)
    async with app:
        await paused.wait()
        fill(witness, other, range(20, 40))
        await until_committed(ledger, group, other, 20)
        # The transaction that had queued records of the handler, if it had any.
        assert len(recorder.of(TransactionAborted)) <= 1
        app.resume(pass_on)
        await until_committed(ledger, group, source, 20)

    assert Counter(await ledger.values(target)) == Counter(b"%d" % n for n in range(40))


# ---- shutdown --------------------------------------------------------------------------------------------------


async def test_a_stop_commits_the_open_transaction(ledger, witness, new_app, group):
    """A stop waits for running handlers and commits their results; a restart handles no record twice."""
    source, target = ledger.topic(), ledger.topic()
    fill(witness, source, range(30))
    seen: list[int] = []
    for least in (1, 30):
        app = new_app(transaction_interval_ms=3_000)

        async def take_a_moment(_record: Record) -> None:
            await asyncio.sleep(0.2)

        found = passing_on(app, source, target, first=take_a_moment)
        async with app:
            await until(lambda found=found, seen=seen, least=least: len(seen) + len(found) >= least)
        seen += found

    assert Counter(seen) == Counter(range(30))
    await check(ledger, target, range(30))
    assert sum((await ledger.group_offsets(group, source)).values()) == 30


async def test_a_stop_aborts_a_transaction_whose_handler_does_not_end(ledger, witness, new_app, group):
    """A stop aborts the transaction of a handler that hangs; the next app handles its records."""
    source, target = ledger.topic(), ledger.topic()
    fill(witness, source, range(10))
    stuck = new_app(rebalance_drain_ms=500)

    async def hang(record: Record) -> None:
        if record.value == b"5":
            await asyncio.Event().wait()

    seen = passing_on(stuck, source, target, first=hang)
    async with stuck:
        await until(lambda: len(seen) == 10)
    assert await ledger.values(target) == []

    healthy = new_app()
    passing_on(healthy, source, target)
    async with healthy:
        await until_committed(ledger, group, source, 10)

    await check(ledger, target, range(10))


# ---- options ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"delivery": "exactly-once"}, "delivery must be .*'exactly_once', not 'exactly-once'"),
        ({"delivery": True}, "delivery must be .*, not True"),
        ({"delivery": "at_least_once", "transactional_id": "a"}, "transactional_id.*delivery='exactly_once'"),
        ({"transactional_id": ""}, "transactional_id must be a name .*, not ''"),
        ({"transactional_id": 7}, "transactional_id must be a name .*, not 7"),
        ({"transaction_timeout_ms": 0}, "transaction_timeout_ms must be a positive integer, not 0"),
        ({"transaction_interval_ms": True}, "transaction_interval_ms must be a positive integer, not True"),
        ({"transaction_max_records": -1}, "transaction_max_records must be a positive integer, not -1"),
        ({"transaction_interval_ms": 6_000}, "at most half of transaction_timeout_ms=10000"),
    ],
)
def test_invalid_options_are_refused(options, message):
    """An invalid option raises ConfigurationError with its name, value and valid values."""
    with pytest.raises(ConfigurationError, match=message):
        App(**{"delivery": "exactly_once", "group_id": "g", **options})


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"isolation_level": "read_uncommitted"}, "isolation_level='read_uncommitted' contradicts"),
        ({"offset_metadata_max_bytes": 0}, "offset_metadata_max_bytes=0 contradicts"),
        ({"enable_auto_commit": True}, "enable_auto_commit=True contradicts"),
        ({"group_id": None}, "no group"),
        ({"transactional_id": "{unknown}"}, "the fields are group, instance"),
        ({"transactional_id": "{instance}"}, "set group_instance_id"),
        ({"transaction_timeout_ms": 1_000}, "timeout_ms=2000.*transaction_timeout_ms=1000"),
    ],
)
async def test_contradicting_options_are_refused(new_app, options, message):
    """Contradicting options raise ConfigurationError at the start, before the app connects."""
    app = new_app(**options)

    @app.handler("t", timeout_ms=2_000)
    async def handle(_value: bytes) -> None: ...

    with pytest.raises(ConfigurationError, match=message):
        await app.start()


async def test_a_transaction_longer_than_the_broker_allows_is_refused_at_the_start(ledger, new_app):
    """The start raises the broker's error for a transaction timeout that is too long."""
    app = new_app(transaction_timeout_ms=2**31 - 1)
    passing_on(app, ledger.topic(), ledger.topic())

    with pytest.raises(PublishError, match="INVALID_TRANSACTION_TIMEOUT"):
        await app.start()


async def test_brokers_that_are_too_old_are_reported(ledger, new_app, proxy):
    """Brokers before Apache Kafka 2.5, which have no generation fencing (KIP-447), raise UnsupportedVersionError."""
    app = new_app()
    passing_on(app, ledger.topic(), ledger.topic())

    def older(answer: ApiVersionsResponse) -> ApiVersionsResponse:
        kept = tuple(replace(one, max_version=2) if one.api_key == INIT_PRODUCER_ID else one for one in answer.api_keys)
        return replace(answer, api_keys=kept)

    with (
        proxy.edit_answer(ApiVersionsRequest, older, times=None),
        pytest.raises(UnsupportedVersionError, match="InitProducerId"),
    ):
        await app.start()


async def test_records_published_together_keep_their_order(own_server, ledger, witness, new_app, group):
    """Concurrent calls of app.publish keep their order, also into a topic that does not exist yet."""
    source, target, app, begun = ledger.topic(), f"{group}-later", new_app(), asyncio.Event()
    fill(witness, source, range(1))

    @app.handler(source)
    async def publish(_record: Record) -> None:
        begun.set()
        await asyncio.gather(*(app.publish(target, b"%d" % number) for number in range(20)))

    async with app:
        await begun.wait()
        await asyncio.to_thread(own_server.create_topic, target)
        ledger._partitions[target] = 1
        await until_committed(ledger, group, source, 1)

    assert await ledger.values(target) == [b"%d" % number for number in range(20)]
