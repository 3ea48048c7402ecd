"""Health of an app during faults."""

from __future__ import annotations

import asyncio
import threading
import time
from typing import Annotated

import pytest

from tailrace import App, Depends, HandlerFailedError, Retry
from tailrace.observe.events import LoopBlocked
from tailrace.testing import TestApp
from tests.support.consumer_group import until


@pytest.fixture
def new_app(kafka_server, group):
    def make(**options):
        return App(bootstrap_servers=kafka_server.bootstrap_servers, **{"group_id": group, **options})

    return make


async def test_an_app_is_ready_from_its_first_assignment_on(new_app, new_topic):
    """A starting app is live and not ready; from its first assignment on it is ready."""
    app = new_app()

    @app.handler(new_topic())
    async def handle(value: bytes) -> None: ...

    assert (app.health().status, app.health().is_ready, app.health().is_live) == ("starting", False, True)
    async with app:
        await app.wait_ready()
        assert app.health().status == "ok"


async def test_a_waiting_lane_degrades_health_and_stays_live(new_app, new_topic, witness):
    """A record that failed for good and blocks its lane degrades health; the app stays live and ready."""
    topic, app = new_topic(), new_app(retry=Retry(attempts=1, max_backoff_ms=60_000))
    witness.produce(topic, [b"poison"])

    @app.handler(topic)
    async def handle(value: bytes) -> None:
        raise ValueError("no")

    async with app:
        await until(lambda: app.health().status == "degraded")

        health = app.health()
        assert health.is_live
        assert health.is_ready
        detail = next(one.detail for one in health.checks if one.name == "records")
        assert detail == "records that failed for good, block their lanes and are retried at intervals: 1"


@pytest.mark.parametrize("attempts", [1, 2], ids=["given up", "tried again"])
async def test_pauses_between_attempts_do_not_count_as_running(attempts):
    """The time for which a handler runs does not include the pauses between its attempts."""
    retry = Retry(attempts=attempts, backoff_ms=400_000, max_backoff_ms=400_000, jitter=False)
    app = App(group_id="g", max_poll_interval_ms=300_000, retry=retry, on_failure="pause")
    begun = 0

    @app.handler("t")
    async def handle(value: bytes) -> None:
        nonlocal begun
        begun += 1
        await asyncio.sleep(1 if begun == 1 else 1_000)
        raise ValueError("no")

    async with TestApp(app):
        await app.publish("t", b"poison")
        lives = []
        # The handler fails after a second; its retry 400 seconds later runs for too long.
        for seconds in (390, 200, 200):
            await asyncio.sleep(seconds)
            lives.append((begun, app.health().is_live))

    assert lives == [(1, True), (2, True), (2, False)]


@pytest.mark.parametrize("kind", ["at once", "after an await", "in a batch, after an await"])
async def test_a_handler_that_blocks_the_loop_is_named_meanwhile(new_app, new_topic, witness, recorder, kind):
    """While a handler blocks the loop, the app is not live, and an event names the handler and its file."""
    topic, app = new_topic(), new_app(heartbeat_interval_ms=100, hooks=[recorder])
    witness.produce(topic, [b"0"])
    seen, begun, over = [], threading.Event(), threading.Event()

    def by_the_handler() -> list[LoopBlocked]:
        # On a busy machine the loop may have been blocked before.
        return [one for one in recorder.of(LoopBlocked) if one.handler is not None and begun.is_set()]

    def look() -> None:
        while not over.is_set() and not by_the_handler():
            time.sleep(0.01)
        seen.append(app.health().is_live)
        over.set()

    async def block() -> None:
        if "await" in kind:
            await asyncio.sleep(0.05)
        begun.set()
        over.wait(30)
        over.set()

    if "batch" in kind:

        @app.batch_handler(topic)
        async def handle_batch(values: list[bytes]) -> None:
            await block()

    else:

        @app.handler(topic)
        async def handle(value: bytes) -> None:
            await block()

    async with app:
        await asyncio.to_thread(look)
        await until(lambda: app.health().is_live)

    blocked = by_the_handler()[-1]
    assert seen == [False]
    assert "handle" in blocked.handler
    assert "test_health_under_faults.py" in blocked.where


async def test_a_stopping_app_is_not_ready():
    """An app that stops or has stopped is live but not ready, as a restart would not help."""
    app, begun, let_go, states = App(group_id="g"), asyncio.Event(), asyncio.Event(), []

    def look() -> None:
        health = app.health()
        states.append((health.status, health.is_live, health.is_ready))

    @app.handler("t")
    async def handle(value: bytes) -> None:
        begun.set()
        await let_go.wait()

    async with TestApp(app):
        await app.publish("t", b"0")
        await begun.wait()
        look()
        stopping = asyncio.create_task(app.stop())
        await until(lambda: app.health().status != "ok")
        look()
        let_go.set()
        await stopping
        look()

    assert states == [("ok", True, True), ("stopping", True, False), ("stopping", True, False)]


looks: list[tuple[bool, bool]] = []
watched: list[App] = []


async def open_bank():
    """Dependency that reads the app's health while it closes."""
    try:
        yield "bank"
    finally:
        health = watched[0].health()
        looks.append((health.is_live, health.is_ready))


async def test_health_is_failed_before_dependencies_are_closed():
    """When an app ends with an error, its health is failed before dependencies are closed, which may take long."""
    app = App(group_id="g", retry=Retry(attempts=1), on_failure="stop")
    looks.clear()
    watched[:] = [app]

    @app.handler("t")
    async def handle(value: bytes, bank: Annotated[str, Depends(open_bank, scope="app")]) -> None:
        raise ValueError("no")

    with pytest.raises(HandlerFailedError):
        async with TestApp(app) as kafka:
            await kafka.send("t", b"0")

    assert looks == [(False, False)]
    assert not app.health().is_live


async def test_health_is_served(new_app, new_topic):
    """`health_app` answers /readyz with the result of health()."""
    app, sent = new_app(), []

    @app.handler(new_topic())
    async def handle(value: bytes) -> None: ...

    async def send(message):
        sent.append(message)

    scope = {"type": "http", "path": "/readyz", "method": "GET"}
    await app.health_app(scope, None, send)
    async with app:
        await app.wait_ready()
        await app.health_app(scope, None, send)

    assert [message["status"] for message in sent if message["type"] == "http.response.start"] == [503, 200]
