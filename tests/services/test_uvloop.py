"""tailrace on uvloop, which servers such as uvicorn use if it is installed."""

from __future__ import annotations

import asyncio
import uuid

import pytest
import uvloop

from tailrace import App, BrokerConnectionError, Consumer
from tailrace.testing import KafkaServer


@pytest.fixture(params=["PLAINTEXT", "SSL"])
def server(request, kafka_server):
    if request.param == "PLAINTEXT":
        yield kafka_server
    else:
        with KafkaServer(security=request.param) as secured:
            yield secured


def test_records_are_published_and_handled_on_uvloop(server):
    """Records of all sizes, with and without TLS, are published and handled once on uvloop."""
    topic, sizes, handled = f"t-{uuid.uuid4().hex[:12]}", [1, 100, 300_000, 5, 700_000], []
    server.create_topic(topic)

    async def work() -> str:
        app = App(**server.client_options, group_id=topic)
        everything = asyncio.Event()

        @app.handler(topic)
        async def handle(value: bytes) -> None:
            handled.append(len(value))
            await asyncio.sleep(0)
            if len(handled) == len(sizes):
                everything.set()

        async with asyncio.timeout(60), app:
            for size in sizes:
                await app.publish(topic, b"." * size)
            await everything.wait()
        return type(asyncio.get_running_loop()).__module__

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        loop = runner.run(work())

    assert loop.startswith("uvloop")
    assert handled == sizes


@pytest.mark.parametrize("address", ["127.0.0.1:1", "localhost:1"])
def test_a_refused_connection_is_reported_on_uvloop(address):
    """A refused connection raises the same error on uvloop as on asyncio's own loop."""

    async def try_to() -> None:
        async with Consumer("t", bootstrap_servers=address, start_timeout_ms=200):
            pass

    with (
        asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner,
        pytest.raises(BrokerConnectionError, match="connection refused - is the broker running"),
    ):
        runner.run(try_to())
