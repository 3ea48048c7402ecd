"""Handlers of a topic that is deleted and recreated while its records are in flight."""

from __future__ import annotations

import asyncio

import pytest

from tailrace import App, Consumer
from tailrace.observe.events import PartitionsRevoked, TopicRecreated
from tests.support.consumer_group import until


@pytest.mark.parametrize("protocol", ["classic", "consumer"])
@pytest.mark.parametrize("kind", ["record", "batch"])
async def test_finished_old_records_are_not_committed_to_the_new_topic(  # noqa: PLR0917 - fixtures
    kafka_server, witness, new_topic, group, recorder, kind, protocol
):
    """Records finished after their topic was recreated are not committed: the next member begins at offset 0."""
    topic = new_topic()
    witness.produce(topic, (b"old %d" % n for n in range(100)))
    options = {"bootstrap_servers": kafka_server.bootstrap_servers, "group_id": group, "group_protocol": protocol}
    app = App(**options, auto_commit_interval_ms=500, stop_timeout_ms=4000, hooks=[recorder])
    at_10, at_50, is_new, seen = asyncio.Event(), asyncio.Event(), asyncio.Event(), asyncio.Event()

    async def handle(value: bytes) -> None:
        if value == b"old 10":
            seen.set()
            await at_10.wait()
        elif value == b"old 50":
            await at_50.wait()
        elif value.startswith(b"new"):
            is_new.set()
            await asyncio.Event().wait()

    if kind == "record":
        app.handler(topic)(handle)
    else:

        @app.batch_handler(topic, max_records=10, max_wait_ms=100)
        async def handle_all(values: list[bytes]) -> None:
            for value in values:
                await handle(value)

    async with asyncio.timeout(90), app:
        await seen.wait()
        await asyncio.to_thread(recreate, kafka_server, witness, topic)
        at_10.set()
        await until(lambda: recorder.of(TopicRecreated) or recorder.of(PartitionsRevoked), 60)
        at_50.set()
        await is_new.wait()

    async with Consumer(topic, **options) as second, asyncio.timeout(60):
        record = await second.getone()
    assert (record.offset, record.value) == (0, b"new 0")


def recreate(server, witness, topic):
    server.delete_topic(topic)
    server.create_topic(topic, 1)
    witness.produce(topic, (b"new %d" % n for n in range(100)))
