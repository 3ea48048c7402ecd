"""A consumer or app that is used in another event loop than its own raises a clear error."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator

import pytest

from tailrace import App, Consumer, ConsumerStateError


@pytest.fixture
def runner() -> Iterator[asyncio.Runner]:
    with asyncio.Runner() as first:
        yield first


async def within(call: Callable[[], Awaitable[object]]) -> None:
    async with asyncio.timeout(20):
        await call()


def test_a_consumer_belongs_to_its_event_loop(runner, kafka_server, new_topic):
    """Each call in a second loop raises at once, and the consumer goes on in the first."""
    consumer = Consumer(new_topic(), bootstrap_servers=kafka_server.bootstrap_servers)
    runner.run(consumer.start())

    async def first_record() -> None:
        async for _ in consumer:
            return

    for call in (
        consumer.getone,
        consumer.getmany,
        first_record,
        consumer.assigned,
        consumer.end_offsets,
        consumer.stop,
    ):
        with pytest.raises(ConsumerStateError, match="this consumer was started in another event loop"):
            asyncio.run(within(call))

    assert runner.run(consumer.getmany(timeout_ms=0)) == []
    runner.run(consumer.stop())


def test_a_consumer_of_a_loop_that_has_ended_can_be_stopped(kafka_server, new_topic):
    """stop() in a second asyncio.run() neither waits nor fails, and reading raises."""
    consumer = Consumer(new_topic(), bootstrap_servers=kafka_server.bootstrap_servers)
    asyncio.run(consumer.start())

    with pytest.raises(ConsumerStateError, match="another event loop"):
        asyncio.run(within(consumer.getone))
    asyncio.run(within(consumer.stop))

    assert repr(consumer).endswith("stopped>")


def test_an_app_belongs_to_its_event_loop(runner, kafka_server, new_topic):
    """Publishing and stopping in a second loop raise at once; repr() shows each state."""
    topic, app = new_topic(), App(bootstrap_servers=kafka_server.bootstrap_servers)
    states = [repr(app)]
    runner.run(app.start())
    states.append(repr(app))

    for call in (lambda: app.publish(topic, b"1"), app.stop):
        with pytest.raises(ConsumerStateError, match="this app was started in another event loop"):
            asyncio.run(within(call))

    runner.run(app.publish(topic, b"1"))
    runner.run(app.stop())
    states.append(repr(app))
    assert [one.split()[-1] for one in states] == ["new>", "started>", "stopped>"]
