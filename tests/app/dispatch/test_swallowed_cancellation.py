"""Handlers that swallow their cancellation are reported at once and abandoned at the end, without a commit."""

from __future__ import annotations

import asyncio
import signal
import subprocess
import sys
import threading
import time

import pytest

from tailrace import App, PublishError, Retry
from tailrace.observe.events import HandlerAbandoned, HandlerOverdue, RecordSkipped
from tests.support.commands import environment
from tests.support.consumer_group import until
from tests.support.topic_contents import contents_of

ONCE = Retry(attempts=1)


@pytest.fixture
def new_app(kafka_server, group):
    def make(**options):
        return App(bootstrap_servers=kafka_server.bootstrap_servers, **{"group_id": group, **options})

    return make


def declared(app, topic, kind, swallow, **options):
    if kind == "batch":

        @app.batch_handler(topic, **options)
        async def handle_batch(values: list[bytes]) -> None:
            await swallow()

    else:

        @app.handler(topic, **options)
        async def handle_record(value: bytes) -> None:
            await swallow()


@pytest.mark.parametrize("kind", ["record", "batch"])
async def test_an_overdue_handler_is_reported_and_degrades_health(  # noqa: PLR0917 - fixtures
    new_app, new_topic, witness, recorder, group, kind
):
    """An overdue handler emits one event and degrades health; when the handler ends, its record has failed."""
    topic, let_go = new_topic(), asyncio.Event()
    app = new_app(on_failure="skip", retry=ONCE, hooks=[recorder])
    witness.produce(topic, [b"0"])

    async def swallow() -> None:
        while not let_go.is_set():
            try:
                await let_go.wait()
            except asyncio.CancelledError:
                continue

    declared(app, topic, kind, swallow, timeout_ms=50)
    async with app:
        overdue = await recorder.wait_for(HandlerOverdue)
        while_it_runs = app.health()
        let_go.set()
        skipped = await recorder.wait_for(RecordSkipped)
        await until(lambda: app.health().status == "ok")

    assert (overdue.partition.topic, overdue.offset, overdue.timeout_s) == (topic, 0, 0.05)
    assert while_it_runs.status == "degraded"
    assert while_it_runs.is_live
    assert any(f"handle_{kind}" in check.detail for check in while_it_runs.checks)
    assert "TimeoutError" in skipped.error
    assert len(recorder.of(HandlerOverdue)) == 1


async def test_an_overdue_plain_handler_is_reported(new_app, new_topic, witness, recorder):
    """A plain handler, whose thread cannot be canceled, is reported as early as a coroutine."""
    topic, let_go = new_topic(), threading.Event()
    app = new_app(on_failure="skip", retry=ONCE, hooks=[recorder])
    witness.produce(topic, [b"0"])

    @app.handler(topic, timeout_ms=50)
    def handle(value: bytes) -> None:
        let_go.wait(60)

    async with app:
        await recorder.wait_for(HandlerOverdue)
        assert app.health().status == "degraded"
        let_go.set()
        await recorder.wait_for(RecordSkipped)


async def test_a_handler_that_returns_after_its_cancellation_has_failed(new_app, new_topic, witness, recorder):
    """A handler that catches the cancellation of timeout_ms and returns has not handled its record."""
    topic, app = new_topic(), new_app(on_failure="skip", retry=ONCE, hooks=[recorder])
    witness.produce(topic, [b"0"])

    @app.handler(topic, timeout_ms=50)
    async def handle(value: bytes) -> None:
        try:
            await asyncio.sleep(3600)
        except asyncio.CancelledError:
            return

    async with app:
        skipped = await recorder.wait_for(RecordSkipped)

    assert "swallowed its cancellation" in skipped.error


@pytest.mark.parametrize("kind", ["record", "batch"])
@pytest.mark.parametrize("way", ["itself", "a task of its own", "its result"])
async def test_an_abandoned_handler_cannot_publish(  # noqa: PLR0917 - fixtures
    new_app, new_topic, witness, recorder, kind, way
):
    """An abandoned handler cannot publish, as its record is delivered again; stop hooks still can."""
    topic, out, handles = new_topic(), new_topic(), asyncio.Event()
    let_go, errors, tasks = asyncio.Event(), [], []
    app = new_app(hooks=[recorder], rebalance_drain_ms=500, stop_timeout_ms=8_000)
    witness.produce(topic, [b"0"])

    async def handle() -> bytes | None:
        tasks.append(asyncio.current_task())
        handles.set()
        while not let_go.is_set():
            try:
                await let_go.wait()
            except asyncio.CancelledError:
                continue
        if way == "its result":
            return b"late"
        publishing = app.publish(out, b"late")
        try:
            await (publishing if way == "itself" else asyncio.ensure_future(publishing))
        except PublishError as error:
            errors.append(str(error))
        return None

    if kind == "record":

        @app.handler(topic, publish=out)
        async def handle_record(value: bytes) -> bytes | None:
            return await handle()

    else:

        @app.batch_handler(topic, publish=out)
        async def handle_batch(values: list[bytes]) -> bytes | None:
            return await handle()

    @app.on_stop
    async def let_it_go_on() -> None:
        let_go.set()
        await asyncio.wait(tasks)
        await app.publish(out, b"stopped")

    async with app:
        await handles.wait()

    assert [message.value() for message in await contents_of(witness, out)] == [b"stopped"]
    assert len(recorder.of(HandlerAbandoned)) == 1
    assert ["still runs after its cancellation" in error for error in errors] == ([] if way == "its result" else [True])
    assert sum((await witness.committed(app.options["group_id"], topic, 1)).values()) <= 0


PROGRAM = """
import asyncio, logging, sys
from tailrace import App

logging.basicConfig(level="ERROR")
app = App(bootstrap_servers=sys.argv[1], group_id=sys.argv[2], stop_timeout_ms=2_000)

@app.{decorator}(sys.argv[2])
async def handle({parameter}) -> None:
    print("handles", flush=True)
    while True:
        try:
            await asyncio.sleep(3600)
        except asyncio.CancelledError:
            pass

asyncio.run(app.run())
"""


@pytest.mark.parametrize(("decorator", "parameter"), [("handler", "value: bytes"), ("batch_handler", "v: list[bytes]")])
async def test_a_process_ends_without_a_handler_that_swallows_its_cancellation(
    kafka_server, new_topic, witness, decorator, parameter
):
    """After SIGTERM a process with such a handler ends in time with a nonzero code, and does not commit the record."""
    topic = new_topic()
    witness.produce(topic, [b"0"])
    program = PROGRAM.format(decorator=decorator, parameter=parameter)
    command = [sys.executable, "-c", program, kafka_server.bootstrap_servers, topic]
    with subprocess.Popen(  # noqa: ASYNC220 - it is read in threads
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment()
    ) as process:
        assert process.stdout is not None
        try:
            assert await asyncio.to_thread(process.stdout.readline) == "handles\n"
            process.send_signal(signal.SIGTERM)
            began_at = time.monotonic()
            _, errors = await asyncio.to_thread(process.communicate, timeout=60)
            took_s = time.monotonic() - began_at
        finally:
            process.kill()

    assert process.returncode == 1
    assert took_s < 20
    assert "handler abandoned" in errors
    assert "HandlerFailedError: handlers that ignored their cancellation were abandoned: handle;" in errors
    assert sum((await witness.committed(topic, topic, 1)).values()) <= 0
