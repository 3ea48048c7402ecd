"""App(delivery="exactly_once") in a changing group: transactions end before their partitions are revoked."""

from __future__ import annotations

import asyncio
from collections import Counter

import pytest

from tailrace import App, Message, Record, Retry
from tailrace.core.offset_map import OffsetMap, encode_metadata
from tailrace.error_codes import ErrorCode
from tailrace.observe.events import (
    DrainTimedOut,
    FinishedRecordsSkipped,
    OffsetMapIgnored,
    PartitionsAssigned,
    PartitionsRevoked,
    TransactionAborted,
)
from tailrace.protocol.groups import JoinGroupRequest, SyncGroupRequest
from tailrace.protocol.transactions import TxnOffsetCommitRequest, TxnOffsetCommitResponse
from tests.support.consumer_group import commit_as_it_is, until
from tests.support.pipelines import check, direct, fill, offsets_now, passing_on, until_committed
from tests.support.transaction_faults import with_code


@pytest.fixture
def new_app(new_app):
    def make(**options: object) -> App:
        quick = {} if options.get("group_protocol") == "consumer" else {"heartbeat_interval_ms": 200}
        return new_app(**quick, **options)

    return make


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"partition_assignment_strategy": "range"},
        {"group_protocol": "consumer"},
    ],
    ids=["cooperative", "eager", "consumer protocol"],
)
@pytest.mark.slow
async def test_each_record_is_published_once_while_members_come_and_go(ledger, witness, new_app, group, options):
    """While members join and leave, each record is published once, in order."""
    source, target, numbers = ledger.topic(4), ledger.topic(4), iter(range(0, 100_000, 400))
    first, others = new_app(**options), [new_app(**options) for _ in range(2)]
    seen = [passing_on(app, source, target, first=a_moment) for app in (first, *others)]
    last = 0

    def more() -> None:
        nonlocal last
        last = next(numbers) + 400
        fill(witness, source, range(last - 400, last))

    more()
    async with first:
        await until(lambda: seen[0])
        for number, other in enumerate(others, 1):
            more()
            async with other:
                # It joins in the middle of the others' transactions.
                async with asyncio.timeout(60):
                    while len(seen[number]) < 50:
                        more()
                        await asyncio.sleep(0.1)
            more()
        await until_committed(ledger, group, source, last, 4)

    await check(ledger, target, range(last))


async def a_moment(_record: Record) -> None:
    await asyncio.sleep(0.002)


async def test_a_partition_is_revoked_after_its_transaction(ledger, witness, new_app, group, recorder):
    """A rebalance waits for running handlers and their transaction; no record is handled twice."""
    source, target = ledger.topic(2), ledger.topic()
    fill(witness, source, range(40))
    # Transactions of the partition that stays end before, during and after the rebalance.
    app = new_app(transaction_timeout_ms=60_000, transaction_interval_ms=10)
    go, other = asyncio.Event(), new_app()

    async def hold(_record: Record) -> None:
        await go.wait()

    seen = passing_on(app, source, target, first=hold)
    seen_there = passing_on(other, source, target)
    async with app:
        await until(lambda: seen)
        async with other:
            await recorder.wait_for(PartitionsAssigned, 2)
            assert not recorder.of(PartitionsRevoked)
            go.set()
            await recorder.wait_for(PartitionsRevoked)
            await until_committed(ledger, group, source, 40, 2)

    assert not recorder.of(TransactionAborted)
    assert Counter(seen + seen_there) == Counter(range(40))
    await check(ledger, target, range(40))


@pytest.mark.parametrize("request_", [JoinGroupRequest, SyncGroupRequest])
async def test_a_commit_during_a_rebalance_aborts_no_transaction(  # noqa: PLR0917 - fixtures
    ledger, witness, new_app, own_server, proxy, group, recorder, request_
):
    """A commit during a rebalance is sent with the new generation, and its transaction is not aborted."""
    source, target = ledger.topic(2), ledger.topic()
    fill(witness, source, range(40))
    app = new_app(transaction_timeout_ms=60_000)
    other = new_app(bootstrap_servers=direct(own_server).bootstrap_servers, hooks=[])
    go, codes = asyncio.Event(), []

    async def hold(_record: Record) -> None:
        await go.wait()

    def note(answer: TxnOffsetCommitResponse) -> TxnOffsetCommitResponse:
        codes.extend(one.error_code for one in answer.partitions)
        return answer

    seen = passing_on(app, source, target, first=hold)
    seen_there = passing_on(other, source, target)
    async with app:
        await until(lambda: seen)
        with proxy.edit_answer(TxnOffsetCommitRequest, note, times=None), proxy.hold_answer(request_) as held:
            async with other:
                await held.wait_applied()
                codes.clear()
                go.set()
                await until(lambda: codes)
                held.release()
                await until_committed(ledger, group, source, 40, 2)

    # Between JoinGroup and SyncGroup the member already has the new generation.
    assert (codes[0] == ErrorCode.ILLEGAL_GENERATION) is (request_ is JoinGroupRequest)
    assert not recorder.of(TransactionAborted)
    assert Counter(seen + seen_there) == Counter(range(40))
    await check(ledger, target, range(40))


async def test_a_transaction_that_exceeds_rebalance_drain_ms_is_aborted(ledger, witness, new_app, group, recorder):
    """After rebalance_drain_ms the partition is revoked and its transaction aborted; its records are handled again."""
    source, target = ledger.topic(2), ledger.topic()
    fill(witness, source, range(40))
    go, app, other = asyncio.Event(), new_app(rebalance_drain_ms=300), new_app()

    async def hold(_record: Record) -> None:
        await go.wait()

    seen = passing_on(app, source, target, first=hold)
    passing_on(other, source, target)
    async with app:
        await until(lambda: seen)
        async with other:
            await recorder.wait_for(DrainTimedOut)
            await recorder.wait_for(TransactionAborted)
            go.set()
            await until_committed(ledger, group, source, 40, 2)

    await check(ledger, target, range(40))


async def test_records_finished_before_the_switch_to_exactly_once_are_skipped(
    ledger, witness, new_app, group, recorder
):
    """After a change from at-least-once, records that the last offset map lists as finished are skipped."""
    source, target = ledger.topic(), ledger.topic()
    fill(witness, source, range(40), keys=2)
    before = new_app(delivery="at_least_once", auto_commit_interval_ms=50, rebalance_drain_ms=500)
    done = []

    @before.handler(source, order_by="key")
    async def pass_some(record: Record) -> None:
        if record.value == b"10":
            await asyncio.Event().wait()
        done.append(int(record.value))

    async with before:
        await until(lambda: len(done) == 25)
    assert await offsets_now(ledger, group, source, 1) == {0: 10}

    after = new_app()
    seen = passing_on(after, source, target)
    async with after:
        await until_committed(ledger, group, source, 40)

    assert recorder.of(FinishedRecordsSkipped)
    assert sorted(done + seen) == [*range(40)]
    await check(ledger, target, seen)


async def test_records_that_an_earlier_owner_finished_are_skipped_after_an_abort(  # noqa: PLR0917 - fixtures
    own_server, ledger, witness, new_app, group, recorder
):
    """Records that are left out as finished stay finished if the transaction after a commit among them is aborted."""
    source, target = ledger.topic(), ledger.topic()
    fill(witness, source, range(40), keys=40)
    await commit_as_it_is(
        own_server.bootstrap_servers, group, source, 0, encode_metadata(OffsetMap(0, 40, (0, 7)), "", 4_096).text
    )
    app = new_app(max_queued_records=8, transaction_timeout_ms=3_000)
    seen: list[int] = []

    @app.handler(source, publish=target, order_by="key", concurrency=1, retry=Retry(attempts=2, backoff_ms=3_000))
    async def pass_on(record: Record) -> Message:
        seen.append(int(record.value))
        if record.value == b"0":
            # Longer than transaction_interval_ms, so that record 7 waits for the next transaction.
            await asyncio.sleep(0.3)
        elif seen.count(7) == 1:
            raise ValueError("the transaction is aborted, because the retry takes longer than its timeout")
        return Message(record.value, key=record.key)

    async with app:
        await until_committed(ledger, group, source, 40)

    assert recorder.of(TransactionAborted)
    assert (seen, recorder.of(OffsetMapIgnored)) == ([0, 7, 7], [])
    await check(ledger, target, [0, 7])


async def test_a_map_that_is_ignored_after_an_abort_is_reported(  # noqa: PLR0917 - fixtures
    own_server, ledger, witness, new_app, group, recorder
):
    """Each time records are read from a commit whose map cannot be used, an event tells it."""
    source, target = ledger.topic(), ledger.topic()
    fill(witness, source, range(4), keys=1)
    damaged = encode_metadata(OffsetMap(0, 4, (0,)), "", 4_096).text.replace("omap:1:", "omap:1:0", 1)
    await commit_as_it_is(own_server.bootstrap_servers, group, source, 0, damaged)
    app = new_app(transaction_timeout_ms=2_000, retry=Retry(attempts=2, backoff_ms=2_000, jitter=False))
    seen: list[int] = []

    async def first_fails_once(_record: Record) -> None:
        if seen == [0]:
            assert len(recorder.of(OffsetMapIgnored)) == 1
            raise ValueError("the transaction is aborted")

    seen = passing_on(app, source, target, first=first_fails_once)
    async with app:
        await until_committed(ledger, group, source, 4)

    assert [one.offset for one in recorder.of(OffsetMapIgnored)] == [0, 0]
    await check(ledger, target, range(4))


@pytest.mark.parametrize("protocol", ["classic", "consumer"])
async def test_the_start_position_is_committed_before_any_record(ledger, witness, new_app, group, protocol):
    """A new group commits its start position at once, so that "latest" skips no record after a restart."""
    source, target = ledger.topic(2), ledger.topic()
    fill(witness, source, range(20))
    for numbers in (range(0), range(20, 40)):
        app = new_app(auto_offset_reset="latest", group_protocol=protocol)
        seen = passing_on(app, source, target)
        async with app:
            await until_committed(ledger, group, source, 20 + len(numbers), 2)
        fill(witness, source, range(20, 40 - len(numbers)))

    assert sorted(seen) == [*range(20, 40)]
    await check(ledger, target, range(20, 40))


async def test_an_aborted_transaction_keeps_the_offsets_of_the_rebalance_callback(
    ledger, witness, new_app, group, proxy
):
    """Positions from post_rebalance_callback are kept after an aborted transaction: skipped records stay skipped."""
    source, target, tried = ledger.topic(), ledger.topic(), []
    fill(witness, source, range(5))
    before = new_app()
    passing_on(before, source, target)
    async with before:
        await until_committed(ledger, group, source, 5)
    fill(witness, source, range(5, 10))

    def pass_over(_consumer, _old, new):
        return dict.fromkeys(new, 8)

    after = new_app(post_rebalance_callback=pass_over, transaction_timeout_ms=500)

    @after.handler(source, publish=target, retry=Retry(attempts=2, backoff_ms=500, jitter=False))
    async def handle(record: Record) -> Message:
        tried.append(int(record.value))
        if tried == [8]:
            raise ValueError("not yet")
        return Message(record.value, key=record.key)

    with proxy.edit_answer(TxnOffsetCommitRequest, with_code(ErrorCode.UNKNOWN_MEMBER_ID)):
        async with after:
            await until_committed(ledger, group, source, 10)

    assert set(tried) == {8, 9}
    await check(ledger, target, [*range(5), 8, 9])
