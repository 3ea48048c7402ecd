"""App(delivery="exactly_once") whose source topic is deleted and recreated while its records are in flight."""

from __future__ import annotations

import asyncio

import pytest

from tailrace import Consumer
from tailrace.observe.events import OffsetsCommitted, TransactionAborted
from tailrace.protocol.transactions import EndTxnRequest, TxnOffsetCommitRequest
from tests.support.pipelines import fill, offsets_now, passing_on, until_committed


@pytest.mark.parametrize("held", [TxnOffsetCommitRequest, EndTxnRequest])
@pytest.mark.parametrize("protocol", ["classic", "consumer"])
async def test_offsets_of_the_deleted_topic_are_not_committed_to_the_new_one(  # noqa: PLR0917 - fixtures
    ledger, witness, proxy, new_app, group, recorder, own_server, protocol, held
):
    """Offsets of a topic are not committed if the topic is recreated before they are sent, or in their transaction.

    A broker removes offsets of a deleted topic, those of open transactions included.
    """
    source, target = ledger.topic(), ledger.topic()
    fill(witness, source, range(10))
    app = new_app(group_protocol=protocol)
    seen = passing_on(app, source, target)

    async with app:
        await until_committed(ledger, group, source, 10)
        recorder.events.clear()
        with proxy.hold_request(held) as commit:
            fill(witness, source, range(10, 50))
            async with asyncio.timeout(30):
                await commit.wait_applied()
            await asyncio.to_thread(recreate, own_server, witness, source)
            # Else the position of the new topic would be committed soon after.
            with proxy.hold_request(TxnOffsetCommitRequest) as next_commit:
                commit.release()
                await recorder.wait_for(OffsetsCommitted if held is EndTxnRequest else TransactionAborted)
                async with asyncio.timeout(30):
                    await next_commit.wait_applied()
                # 0 is the start of the new topic: the request may have old offsets, sent again after a rebalance.
                assert (await offsets_now(ledger, group, source, 1)).get(0, 0) == 0
                next_commit.release()
        await until_committed(ledger, group, source, 100)

    assert sorted(n for n in seen if n >= 1_000) == list(range(1_000, 1_100))
    published = [int(value) for value in await ledger.values(target)]
    assert sorted(n for n in published if n >= 1_000) == list(range(1_000, 1_100))
    assert len(set(published)) == len(published)


@pytest.mark.parametrize("kind", ["record", "batch"])
@pytest.mark.parametrize("protocol", ["classic", "consumer"])
async def test_the_next_member_begins_at_the_first_record_of_the_new_topic(  # noqa: PLR0917 - fixtures
    ledger, witness, new_app, group, recorder, own_server, kind, protocol
):
    """Records handled after their topic was recreated are not committed, and no record of the new topic is skipped."""
    source = ledger.topic()
    fill(witness, source, range(100))
    app, at_10, at_50, seen, is_new = new_app(group_protocol=protocol, stop_timeout_ms=4_000), *events(4)

    async def handle(number: int) -> None:
        if number == 10:
            seen.set()
            await at_10.wait()
        elif number == 50:
            await at_50.wait()
        elif number >= 1_000:
            is_new.set()
            await asyncio.Event().wait()

    if kind == "record":

        @app.handler(source, order_by="partition")
        async def handle_one(value: bytes) -> None:
            await handle(int(value))
    else:

        @app.batch_handler(source, max_records=10, max_wait_ms=100)
        async def handle_all(values: list[bytes]) -> None:
            for value in values:
                await handle(int(value))

    async with asyncio.timeout(90), app:
        await seen.wait()
        await asyncio.to_thread(recreate, own_server, witness, source)
        recorder.events.clear()
        at_10.set()
        await recorder.wait_for(OffsetsCommitted)
        at_50.set()
        await is_new.wait()

    options = {"bootstrap_servers": own_server.bootstrap_servers, "group_id": group, "group_protocol": protocol}
    async with Consumer(source, **options) as second, asyncio.timeout(60):
        record = await second.getone()
    assert (record.offset, record.value) == (0, b"1000")


def events(count):
    return [asyncio.Event() for _ in range(count)]


def recreate(server, witness, topic):
    server.delete_topic(topic)
    server.create_topic(topic, 1)
    fill(witness, topic, range(1_000, 1_100))
