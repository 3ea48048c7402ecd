"""App(delivery="exactly_once") with failing records: retries, dead letters, delayed records and slow failures."""

from __future__ import annotations

import asyncio
import functools
import itertools
import time
from collections import Counter
from typing import Annotated

import pytest
from confluent_kafka.admin import AlterConfigOpType, ConfigEntry, ConfigResource, ResourceType

from tailrace import (
    ConfigurationError,
    HandlerFailedError,
    Header,
    Message,
    PartialFailureError,
    Record,
    Reject,
    Retry,
)
from tailrace.app.sources import ConsumerSource
from tailrace.error_codes import ErrorCode
from tailrace.observe.events import (
    DeadLetterFailed,
    HandlerFailed,
    OffsetsCommitted,
    RecordDeadLettered,
    TransactionAborted,
)
from tailrace.protocol.transactions import TxnOffsetCommitRequest
from tests.support.consumer_group import until
from tests.support.pipelines import check, fill, offsets_now, passing_on, until_committed
from tests.support.transaction_faults import with_code

POISON = b"7"


@pytest.fixture
def short_app(new_app):
    """Return a factory of apps whose transactions wait for 1.6 s at most, longer than a slow machine needs for one."""
    return functools.partial(new_app, dead_letter="{topic}.dead", transaction_timeout_ms=2_000)


# ---- failures --------------------------------------------------------------------------------------------------


async def test_dead_letters_are_in_the_transaction(  # noqa: PLR0917 - fixtures
    ledger, witness, new_app, group, dead, proxy, recorder
):
    """A record that fails for good has one dead letter, also if a transaction with it was aborted before."""
    source, target, app = ledger.topic(), ledger.topic(), new_app(dead_letter="{topic}.{group}.dead")
    letters = dead(f"{source}.{group}.dead")

    async def some_fail(record: Record) -> None:
        if int(record.value) % 10 == 0:
            raise Reject("poison") if int(record.value) % 20 else ValueError("poison")

    passing_on(app, source, target, first=some_fail)
    async with app:
        # The committed start position.
        await recorder.wait_for(OffsetsCommitted)
        with proxy.edit_answer(TxnOffsetCommitRequest, with_code(ErrorCode.UNKNOWN_MEMBER_ID)):
            fill(witness, source, range(100))
            await until_committed(ledger, group, source, 100)

    assert recorder.of(TransactionAborted)
    # The first record fails, and was in the first transaction.
    assert len(recorder.of(RecordDeadLettered)) > 10
    assert sorted(map(int, await ledger.values(letters))) == list(range(0, 100, 10))
    await check(ledger, target, [n for n in range(100) if n % 10])


async def test_a_poison_record_without_dead_letters_stops_its_partition_only(ledger, witness, new_app, group):
    """A record that fails without a dead-letter topic holds up its partition only, until its handler succeeds."""
    source, target, app = ledger.topic(2), ledger.topic(), new_app()
    witness.produce(source, (b"%d" % n for n in range(50)), partition=0, keys=(b"k%d" % (n % 5) for n in range(50)))
    witness.produce(source, (b"%d" % n for n in range(50, 100)), partition=1, keys=(b"a" for _ in range(50)))
    is_mended = False

    async def one_fails(record: Record) -> None:
        if record.value == b"20" and not is_mended:
            raise ValueError("poison")

    passing_on(app, source, target, first=one_fails)
    async with app:
        await until_committed(ledger, group, source, 70, 2)
        assert await offsets_now(ledger, group, source, 2) == {0: 20, 1: 50}
        await until(lambda: app.health().status == "degraded")
        witness.produce(source, (b"%d" % n for n in range(100, 150)), partition=1, keys=(b"a" for _ in range(50)))
        await until_committed(ledger, group, source, 120, 2)
        is_mended = True
        await until_committed(ledger, group, source, 150, 2)

    await check(ledger, target, range(150))


async def test_a_failure_that_stops_the_app_aborts_its_transaction(ledger, witness, new_app, group):
    """With on_failure="stop" the app ends with the handler's error, and its transaction is aborted."""
    source, target, app = ledger.topic(), ledger.topic(), new_app(on_failure="stop", transaction_interval_ms=2_000)
    fill(witness, source, range(10))

    async def last_fails(record: Record) -> None:
        if record.value == b"9":
            raise ValueError("poison")

    passing_on(app, source, target, first=last_fails)
    with pytest.raises(HandlerFailedError, match="poison"):
        await app.run()

    assert await ledger.values(target) == []
    assert await ledger.group_offsets(group, source) == {0: 0}


async def test_a_result_that_cannot_be_published_fails_its_record(  # noqa: PLR0917 - fixtures
    ledger, witness, new_app, group, dead, recorder, monkeypatch
):
    """A record whose output goes to a missing topic or is too large is dead-lettered; the others are published."""
    monkeypatch.setattr("tailrace.producer.runtime.DEFAULT_LOOKUP_S", 2.5)
    source, target, app = ledger.topic(), ledger.topic(max_message_bytes=10_000), new_app(dead_letter="{topic}.dead")
    letters = dead(f"{source}.dead")
    fill(witness, source, range(40))

    @app.handler(source)
    async def pass_on(record: Record) -> None:
        if record.value == b"7":
            await app.publish("nowhere", b"", key=record.key)
        await app.publish(target, record.value * (20_000 if record.value == b"13" else 1), key=record.key)

    async with app:
        await until_committed(ledger, group, source, 40)

    assert sorted(await ledger.values(letters)) == [b"13", b"7"]
    assert any("MESSAGE_TOO_LARGE" in one.error for one in recorder.of(HandlerFailed))
    await check(ledger, target, sorted({*range(40)} - {7, 13}))


async def test_results_are_published_all_or_none(ledger, witness, new_app, group, dead):
    """A record with an output that cannot be published publishes nothing at all, and is dead-lettered."""
    source, target, app = ledger.topic(), ledger.topic(), new_app(dead_letter="{topic}.dead")
    letters, name_of = dead(f"{source}.dead"), {POISON: "no \ud800 text"}
    fill(witness, source, range(10))

    @app.handler(source)
    async def pass_on(record: Record) -> None:
        await app.publish(target, record.value, key=record.key)
        await app.publish(target, b"1" + record.value, headers=[(name_of.get(record.value, "text"), b"")])

    async with app:
        await until_committed(ledger, group, source, 10)

    assert await ledger.values(letters) == [POISON]
    assert sorted(await ledger.values(target)) == sorted(b"%d" % n for n in range(20) if n % 10 != 7)


async def test_a_record_whose_output_is_too_large_is_dead_lettered(ledger, witness, new_app, group, dead):
    """A record whose output is too large is dead-lettered, although other partitions are committed all the time."""
    source, target = ledger.topic(2), ledger.topic(max_message_bytes=10_000)
    app = new_app(dead_letter="{topic}.dead", transaction_max_records=2)
    letters, numbers = dead(f"{source}.dead"), itertools.count()
    witness.produce(source, [b"7"], partition=0)

    @app.handler(source, publish=target)
    async def pass_on(record: Record) -> bytes:
        return record.value * (20_000 if record.value == POISON else 1)

    async with app, asyncio.timeout(60):
        while (await offsets_now(ledger, group, source, 2)).get(0) != 1:
            witness.produce(source, (b"a%d" % next(numbers) for _ in range(20)), partition=1)
            await asyncio.sleep(0.01)
        await until_committed(ledger, group, source, 1 + next(numbers), 2)

    assert await ledger.values(letters) == [POISON]
    assert len(set(await ledger.values(target))) == len(await ledger.values(target))


async def test_a_dead_letter_that_is_too_large_omits_the_traceback(ledger, witness, new_app, group, recorder):
    """A large dead letter omits its traceback; one that is still too large blocks its partition only."""
    source, letters, target = ledger.topic(2), ledger.topic(max_message_bytes=5_000), ledger.topic()
    app = new_app(dead_letter=letters, retry=Retry(attempts=1, backoff_ms=1, max_backoff_ms=50))
    too_large, large = b"x" * 6_000, b"y" * 3_000
    witness.produce(source, [large, b"1", too_large, b"2"], partition=0)

    @app.handler(source, publish=target)
    async def pass_on(value: bytes) -> bytes:
        if len(value) > 10:
            raise ValueError("poison " * 500)
        return value

    async with app:
        refused = await recorder.wait_for(DeadLetterFailed)
        await until(lambda: app.health().status == "degraded")
        await until_committed(ledger, group, source, 2, 2)
        assert await offsets_now(ledger, group, source, 2) == {0: 2, 1: 0}
        witness.produce(source, [b"3"] * 9, partition=1)
        await until_committed(ledger, group, source, 11, 2)
        set_limit(witness, letters, 100_000)
        await until_committed(ledger, group, source, 13, 2)

    found = await ledger.committed(letters)
    assert (refused.offset, refused.advice) == (2, f"raise max.message.bytes of {letters}")
    assert [one.value() for one in found] == [large, too_large]
    assert "tailrace-error-traceback" not in dict(found[0].headers())
    assert sorted(await ledger.values(target)) == [b"1", b"2", *[b"3"] * 9]


def set_limit(witness, topic: str, max_message_bytes: int) -> None:
    entry = ConfigEntry("max.message.bytes", str(max_message_bytes), incremental_operation=AlterConfigOpType.SET)
    resource = ConfigResource(ResourceType.TOPIC, topic, incremental_configs=[entry])
    witness.admin.incremental_alter_configs([resource])[resource].result(20)


async def test_delayed_retries_wait_outside_of_transactions(ledger, witness, new_app, group):
    """A delayed retry is published in one transaction and handled in a later one, once each."""
    source, target = ledger.topic(), ledger.topic()
    app = new_app(transaction_timeout_ms=1_000, retry=Retry(attempts=1, topic_delays_ms=[1_500]))
    fill(witness, source, range(20))
    others_are_seen = asyncio.Event()

    @app.handler(source, publish=target)
    async def pass_on(value: bytes, attempts: Annotated[int, Header("tailrace-attempts")] = 0) -> bytes:
        if value == b"5" and not attempts:
            raise ValueError("not yet")
        if attempts:
            await others_are_seen.wait()
        return value

    async with app:
        await until_committed(ledger, group, source, 20)
        assert len(await ledger.values(target)) == 19
        others_are_seen.set()
        await until_committed(ledger, group, f"{source}.{group}.retry.1500ms", 1)

    assert Counter(await ledger.values(target)) == Counter(b"%d" % n for n in range(20))


@pytest.mark.parametrize("delivery", ["exactly_once", "at_least_once"])
async def test_a_delayed_retry_waits_no_longer_than_its_delay_if_the_clock_is_set_back(  # noqa: PLR0917 - fixtures
    ledger, witness, new_app, group, monkeypatch, delivery
):
    """A record in a retry topic waits for the topic's delay at most, whatever the wall clock does meanwhile."""
    source, ahead_s, attempts = ledger.topic(), 86_400.0, []
    monkeypatch.setattr(ConsumerSource, "wall_clock", lambda _source: time.time() + ahead_s)
    options = {} if delivery == "exactly_once" else {"auto_commit_interval_ms": 50}
    app = new_app(delivery=delivery, retry=Retry(attempts=1, topic_delays_ms=[2_000]), **options)
    fill(witness, source, range(3), keys=1)

    @app.handler(source)
    async def fail_first(record: Record, earlier: Annotated[int, Header("tailrace-attempts")] = 0) -> None:
        attempts.append(int(record.value))
        if not earlier:
            raise ValueError("not yet")

    async with app:
        await until_committed(ledger, group, source, 3)
        # The records are in the retry topic, and most likely were read from there.
        await asyncio.sleep(0.5)
        ahead_s = 0.0
        await until_committed(ledger, group, f"{source}.{group}.retry.2s", 3)

    assert attempts == [0, 1, 2, 0, 1, 2]


async def test_batches_are_in_the_transaction(ledger, witness, new_app, group):
    """Results of batches are published once, those of failed attempts never; records named as failed are retried."""
    source, target, app = ledger.topic(), ledger.topic(), new_app()
    fill(witness, source, range(100))
    attempts = Counter()

    @app.batch_handler(source, publish=target, max_records=20, max_wait_ms=20, order_by="none")
    async def pass_on(records: list[Record]) -> list[Message]:
        numbers = [int(one.value) for one in records]
        attempts.update(numbers)
        if attempts[numbers[0]] == 1 and numbers[0] % 40 == 0:
            await app.publish(target, b"in vain")
            raise ValueError("not yet")
        odd = [index for index, number in enumerate(numbers) if number % 30 == 7 and attempts[number] == 1]
        if odd:
            for number in numbers:
                if number % 30 != 7:
                    await app.publish(target, b"%d" % number, key=b"k%d" % (number % 20))
            raise PartialFailureError(odd)
        return [Message(one.value, key=one.key) for one in records]

    async with app:
        await until_committed(ledger, group, source, 100)

    assert Counter(await ledger.values(target)) == Counter(b"%d" % n for n in range(100))


async def test_an_incomplete_batch_starts_when_its_transaction_is_full(ledger, witness, new_app, group):
    """An incomplete batch starts at once when its transaction is full, without waiting for max_wait_ms."""
    source, sizes, app = ledger.topic(), [], new_app(transaction_max_records=3, transaction_timeout_ms=120_000)
    fill(witness, source, range(9))

    @app.batch_handler(source, max_records=100, max_wait_ms=60_000)
    async def count(records: list[Record]) -> None:
        sizes.append(len(records))

    async with app, asyncio.timeout(30):
        await until_committed(ledger, group, source, 9)

    assert sizes == [3, 3, 3]


async def test_a_batch_that_fails_without_dead_letters_is_set_aside(ledger, witness, new_app, group):
    """A failing batch aborts its transaction and is retried; other partitions commit meanwhile."""
    source, target, app = ledger.topic(2), ledger.topic(), new_app()
    witness.produce(source, (b"%d" % n for n in range(20)), partition=0)
    witness.produce(source, (b"%d" % n for n in range(20, 40)), partition=1)
    is_mended = False

    @app.batch_handler(source, publish=target, max_records=5, max_wait_ms=20)
    async def pass_on(records: list[Record]) -> list[Message]:
        if records[0].partition == 0 and not is_mended:
            raise ValueError("poison")
        return [Message(one.value) for one in records]

    async with app:
        await until_committed(ledger, group, source, 20, 2)
        assert (await offsets_now(ledger, group, source, 2))[1] == 20
        is_mended = True
        await until_committed(ledger, group, source, 40, 2)

    assert Counter(await ledger.values(target)) == Counter(b"%d" % n for n in range(40))


# ---- slow failures ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("retry", "takes_s", "timeout_ms", "attempts"),
    [
        # The pauses exceed the transaction timeout together, or the longest of them alone.
        (Retry(attempts=3, backoff_ms=700, jitter=False), 0.0, None, 3),
        (Retry(attempts=2, backoff_ms=2_400, jitter=False), 0.0, None, 2),
        # The attempts exceed it together.
        (Retry(attempts=3, backoff_ms=1), 600.0, 1_000, 3),
        # One attempt exceeds it alone.
        (Retry(attempts=2, backoff_ms=1), 2.4, None, 2),
    ],
)
async def test_a_record_that_fails_slowly_is_dead_lettered(  # noqa: PLR0917 - fixtures
    ledger, witness, short_app, group, recorder, dead, retry, takes_s, timeout_ms, attempts
):
    """A record whose attempts exceed the transaction timeout is dead-lettered; other records are published once."""
    source, target = ledger.topic(2), ledger.topic()
    letters, app, tried = dead(f"{source}.dead"), short_app(retry=retry), []
    fill(witness, source, range(20))

    @app.handler(source, publish=target, order_by="key", timeout_ms=timeout_ms, concurrency=16)
    async def pass_on(record: Record) -> Message:
        if record.value == POISON:
            tried.append((record.topic_partition, record.offset))
            await asyncio.sleep(takes_s)
            raise ValueError("poison")
        return Message(record.value, key=record.key)

    async with app:
        await until_committed(ledger, group, source, 20, 2)

    assert len(tried) == attempts
    assert {(one.partition, one.offset) for one in recorder.of(RecordDeadLettered)} == set(tried)
    assert await ledger.values(letters) == [POISON]
    await check(ledger, target, sorted({*range(20)} - {7}))


async def test_a_record_of_a_batch_that_fails_slowly_is_dead_lettered(ledger, witness, short_app, group, dead):
    """A failing record of a batch is dead-lettered alone after its attempts; the others are published once."""
    source, target = ledger.topic(), ledger.topic()
    letters, app, tried = dead(f"{source}.dead"), short_app(retry=Retry(attempts=3, backoff_ms=700, jitter=False)), []
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
    ("handler", "message"),
    [
        ({"timeout_ms": 1_600}, "timeout_ms=1600.*below 1600 ms.*transaction_timeout_ms=2000"),
        ({"max_wait_ms": 1_500, "timeout_ms": 100}, "max_wait_ms=1500 and timeout_ms=100"),
        ({"max_wait_ms": 1_600}, "max_wait_ms=1600"),
    ],
)
async def test_options_that_fit_no_transaction_are_refused_at_the_start(short_app, handler, message):
    """The start refuses times that exceed the transaction timeout, and names the longest valid one."""
    app = short_app()
    declare = app.batch_handler if "max_wait_ms" in handler else app.handler

    @declare("t", **handler)
    async def handle(_values: list[bytes]) -> None: ...

    with pytest.raises(ConfigurationError, match=message):
        await app.start()
