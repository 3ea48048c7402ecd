"""App(delivery="exactly_once") with a backlog: transactions are limited in time, and commit the finished records."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import random
from collections.abc import Awaitable, Callable

import pytest

from tailrace import Record
from tailrace.error_codes import ErrorCode
from tailrace.observe.events import (
    HandlerFailed,
    HandlerOverdue,
    OffsetsCommitted,
    TransactionAborted,
    TransactionsStalled,
)
from tailrace.protocol.transactions import TxnOffsetCommitRequest
from tests.support.consumer_group import until
from tests.support.pipelines import check, fill, offsets_now, passing_on, until_committed
from tests.support.transaction_faults import with_code


async def eventually(ask: Callable[[], Awaitable[object]]) -> None:
    """Poll until the call returns a true value."""
    async with asyncio.timeout(30):
        while not await ask():  # noqa: ASYNC110 - offsets of a group set no event
            await asyncio.sleep(0.02)


def slow(app, source, target, seconds, order_by="partition"):
    async def wait(_record: Record) -> None:
        await asyncio.sleep(seconds)

    return passing_on(app, source, target, order_by=order_by, first=wait)


@pytest.mark.slow
async def test_a_backlog_in_one_partition_drains_with_default_options(ledger, witness, new_app, group, recorder):
    """A backlog drains without an aborted transaction, and no record is handled twice."""
    source, target = ledger.topic(), ledger.topic()
    fill(witness, source, range(1_500))
    app = new_app()
    seen = slow(app, source, target, 0.01)

    async with app:
        await until_committed(ledger, group, source, 1_500)

    await check(ledger, target, range(1_500))
    assert sorted(seen) == list(range(1_500))
    assert recorder.of(TransactionAborted) == []


@pytest.mark.parametrize("order_by", ["partition", "key", "none"])
@pytest.mark.slow
async def test_a_backlog_in_several_partitions_drains(ledger, witness, new_app, group, recorder, order_by):  # noqa: PLR0917 - fixtures
    """A backlog of several partitions takes longer than a transaction timeout, and drains without an abort."""
    source, target = ledger.topic(6), ledger.topic()
    fill(witness, source, range(600))
    app = new_app(transaction_timeout_ms=2_000)
    seen = slow(app, source, target, 0.05, order_by)

    async with app:
        await until_committed(ledger, group, source, 600, 6)

    assert sorted(seen) == list(range(600))
    if order_by != "none":
        await check(ledger, target, range(600))
    assert recorder.of(TransactionAborted) == []


async def test_results_of_a_slow_handler_are_committed_within_seconds(ledger, witness, new_app):
    """Results of a slow handler are committed within ten seconds of its calls, long before the backlog is handled."""
    source, target = ledger.topic(), ledger.topic()
    fill(witness, source, range(500))
    app = new_app()
    seen = slow(app, source, target, 0.2)

    async with app:
        await eventually(lambda: ledger.stable_end(target))
        calls = len(seen)

    assert calls <= 50


async def test_records_finished_after_an_unfinished_one_are_not_handled_again(
    ledger, witness, new_app, group, recorder
):
    """Records finished out of order are in the commit's offset map, and the next member skips them."""
    source, target = ledger.topic(), ledger.topic()
    witness.produce(
        source, (b"%d" % n for n in range(400)), keys=(b"hot" if n < 60 else b"k%d" % n for n in range(400))
    )

    async def hot_is_slow(record: Record) -> None:
        await asyncio.sleep(0.05 if record.key == b"hot" else 0.005)

    async def has_holes() -> bool:
        return any(one.metadata for one in await ledger.group_offsets_now(group, source))

    first, then = new_app(), new_app()
    seen = passing_on(first, source, target, first=hot_is_slow)
    async with first:
        await eventually(has_holes)
    seen_then = passing_on(then, source, target, first=hot_is_slow)
    async with then:
        await until_committed(ledger, group, source, 400)

    await check(ledger, target, range(400))
    assert sorted(seen + seen_then) == list(range(400))
    assert min(seen_then) < max(seen)
    assert recorder.of(TransactionAborted) == []


async def test_a_record_that_takes_too_long_fails_alone(  # noqa: PLR0917 - fixtures
    ledger, witness, new_app, group, recorder, dead
):
    """Without timeout_ms, a record that takes longer than its share of the transaction's time is dead-lettered."""
    source, target = ledger.topic(), ledger.topic()
    letters = dead(f"{source}.dead")
    fill(witness, source, range(20))
    app = new_app(transaction_timeout_ms=2_000, dead_letter=letters)

    async def endless(record: Record) -> None:
        if record.value == b"7":
            await asyncio.Event().wait()

    seen = passing_on(app, source, target, order_by="partition", first=endless)
    async with app:
        await until_committed(ledger, group, source, 20)

    await check(ledger, target, [n for n in range(20) if n != 7])
    assert await ledger.values(letters) == [b"7"]
    assert seen.count(7) == 2
    assert len(seen) < 40
    assert "TimeoutError" in recorder.of(HandlerFailed)[0].error


async def test_a_handler_that_swallows_its_cancellation_holds_up_its_own_lane_alone(
    ledger, witness, new_app, group, recorder
):
    """A handler that swallows its cancellation aborts one transaction; other partitions commit while it runs."""
    source, target, go = ledger.topic(2), ledger.topic(), asyncio.Event()
    witness.produce(source, [b"0"], partition=0)
    witness.produce(source, (b"%d" % n for n in range(1, 30)), partition=1)
    app = new_app(transaction_timeout_ms=3_000)

    async def swallow(record: Record) -> None:
        await asyncio.sleep(0.02)
        while record.value == b"0" and not go.is_set():
            with contextlib.suppress(asyncio.CancelledError):
                await go.wait()

    async def other_is_done() -> bool:
        return (await offsets_now(ledger, group, source, 2)).get(1, 0) == 29

    passing_on(app, source, target, order_by="partition", first=swallow)
    async with app:
        await eventually(other_is_done)
        go.set()
        await until_committed(ledger, group, source, 30, 2)

    assert sorted(map(int, await ledger.values(target))) == list(range(30))
    assert len(recorder.of(TransactionAborted)) == 1


async def test_a_stop_does_not_wait_for_queued_records(ledger, witness, new_app, group):
    """A stop finishes and commits running records, and leaves queued ones to the next member."""
    source, target = ledger.topic(), ledger.topic()
    fill(witness, source, range(300))
    seen = []
    for _ in range(2):
        app = new_app()
        now = slow(app, source, target, 0.05)
        async with app:
            await until(lambda: len(now) >= 20)  # noqa: B023 - it is awaited here
            at_stop = len(now)
        assert len(now) <= at_stop + 2
        seen += now

    await check(ledger, target, range(len(seen)))
    assert seen == list(range(len(seen)))


async def test_failing_commits_degrade_health_and_shrink_transactions(  # noqa: PLR0917 - fixtures
    ledger, witness, proxy, new_app, group, recorder
):
    """While commits fail, transactions shrink by half and health is degraded; after that, health recovers."""
    source, target = ledger.topic(), ledger.topic()
    fill(witness, source, range(200))
    app = new_app(transaction_timeout_ms=1_000)
    seen = slow(app, source, target, 0.005)

    async with app:
        # The committed start position.
        await recorder.wait_for(OffsetsCommitted)
        with proxy.edit_answer(TxnOffsetCommitRequest, with_code(ErrorCode.UNKNOWN_MEMBER_ID), times=None):
            stalled = await recorder.wait_for(TransactionsStalled)
            assert app.health().status == "degraded"
        await until_committed(ledger, group, source, 200)
        assert app.health().status == "ok"

    await check(ledger, target, range(200))
    aborted = [one.records for one in recorder.of(TransactionAborted) if one.records]
    assert all(after <= max(1, before // 2) for before, after in itertools.pairwise(aborted))
    assert len(seen) <= 200 + sum(aborted)
    assert (stalled.group_id, stalled.seconds >= 3) == (group, True)


async def test_a_call_that_does_not_return_is_reported_while_other_partitions_are_committed(
    ledger, witness, new_app, group, recorder
):
    """A HandlerOverdue event names the record before its handler returns; health is degraded until then."""
    source, target, go = ledger.topic(2), ledger.topic(), asyncio.Event()
    witness.produce(source, [b"0"], partition=0)
    witness.produce(source, (b"%d" % n for n in range(1, 30)), partition=1)
    app = new_app(transaction_timeout_ms=1_000)

    async def swallow(record: Record) -> None:
        while record.value == b"0" and not go.is_set():
            with contextlib.suppress(asyncio.CancelledError):
                await go.wait()

    async def other_is_done() -> bool:
        return (await offsets_now(ledger, group, source, 2)).get(1, 0) == 29

    passing_on(app, source, target, order_by="partition", first=swallow)
    async with app:
        overdue = await recorder.wait_for(HandlerOverdue)
        await eventually(other_is_done)
        assert app.health().status == "degraded"
        go.set()
        await until_committed(ledger, group, source, 30, 2)
        await until(lambda: app.health().status == "ok")

    assert (overdue.partition.topic, overdue.partition.partition, overdue.offset) == (source, 0, 0)


async def test_an_offset_map_fits_into_offset_metadata_max_bytes(ledger, witness, proxy, new_app, group):
    """A transaction whose offset map is too large is aborted, and later ones are smaller; no result is repeated."""
    source, target = ledger.topic(), ledger.topic()
    # Random offsets, as a pattern would compress to nothing.
    hot = set(random.Random(1).sample(range(900), 200))
    witness.produce(
        source, (b"%d" % n for n in range(900)), keys=(b"hot" if n in hot else b"k%d" % n for n in range(900))
    )
    app = new_app(offset_metadata_max_bytes=100)

    async def hot_is_slow(record: Record) -> None:
        await asyncio.sleep(1.5 if int(record.value) == min(hot) else 0)

    passing_on(app, source, target, first=hot_is_slow)
    async with app:
        await until_committed(ledger, group, source, 900)

    await check(ledger, target, range(900))
    sizes = [len(one.metadata) for frame in proxy.requests(TxnOffsetCommitRequest) for one in frame.message.partitions]
    assert 0 < max(sizes) <= 100
