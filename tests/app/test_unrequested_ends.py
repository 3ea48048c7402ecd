"""An unrequested end of an app or consumer emits one event at level ERROR, and health is failed."""

from __future__ import annotations

import asyncio
import logging
import subprocess
import sys

import pytest

from tailrace import App, Consumer, HandlerFailedError, TailraceError
from tailrace.observe.events import AppFailed, ConsumerFailed
from tests.support.commands import environment


class Abort(BaseException):
    """BaseException that is not an Exception, such as the Exit of a server framework."""


@pytest.fixture
def new_app(kafka_server, group, recorder):
    def make(**options):
        return App(
            **{"bootstrap_servers": kafka_server.bootstrap_servers, "group_id": group, "hooks": [recorder], **options}
        )

    return make


def tracebacks(caplog: pytest.LogCaptureFixture) -> list[tuple[str, str]]:
    """Return the event and the exception type of each log entry with a traceback."""
    return [
        (record.tailrace["event"], type(record.exc_info[1]).__name__)
        for record in caplog.records
        if record.name == "tailrace" and record.levelno == logging.ERROR and record.exc_info
    ]


@pytest.mark.parametrize("is_batch", [False, True])
async def test_a_handler_that_raises_a_base_exception_ends_the_app_with_an_event(  # noqa: PLR0917 - fixtures
    new_app, new_topic, witness, recorder, caplog, is_batch
):
    """A BaseException of a handler emits one event before stop(), is logged with its traceback, and fails health."""
    topic, app = new_topic(), new_app()
    witness.produce(topic, [b"0"])

    if is_batch:

        @app.batch_handler(topic, max_wait_ms=1)
        async def handle_all(values: list[bytes]) -> None:
            raise Abort("no more")

    else:

        @app.handler(topic)
        async def handle(value: bytes) -> None:
            raise Abort("no more")

    with caplog.at_level(logging.INFO, "tailrace"):
        await app.start()
        failed = await recorder.wait_for(AppFailed)
        health = app.health()
        with pytest.raises(HandlerFailedError, match="Abort: no more"):
            await app.stop()

    assert "Abort: no more" in failed.error
    assert isinstance(failed.exception.__cause__, Abort)
    assert not health.is_live
    assert len(recorder.of(AppFailed)) == 1
    assert tracebacks(caplog) == [("app failed", "HandlerFailedError")]


EXITING = """
import asyncio, logging, sys
from tailrace import App

logging.basicConfig(level=logging.ERROR, stream=sys.stdout)
app = App(bootstrap_servers=sys.argv[1], group_id=sys.argv[2], stop_timeout_ms=5_000)

@app.handler(sys.argv[3])
async def handle(value: bytes):
    sys.exit(3)

asyncio.run(app.run())
"""


def test_a_handler_that_calls_sys_exit_is_logged(kafka_server, new_topic, witness, group):
    """sys.exit() in a handler is logged with handler and traceback, and the process ends with that exit code."""
    topic = new_topic()
    witness.produce(topic, [b"0"])

    ended = subprocess.run(
        [sys.executable, "-c", EXITING, kafka_server.bootstrap_servers, group, topic],
        env=environment(),
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )

    assert ended.returncode == 3
    assert ended.stdout.count("ERROR:tailrace:app failed") == 1
    assert "SystemExit: 3" in ended.stdout
    assert "in handle" in ended.stdout


async def test_a_consumer_that_fails_logs_the_traceback(kafka_server, new_topic, group, recorder, caplog):
    """A rebalance callback that raises ends the consumer, with one event that contains the exception."""

    async def refuse(*_: object) -> None:
        raise LookupError("no such table")

    consumer = Consumer(
        new_topic(),
        bootstrap_servers=kafka_server.bootstrap_servers,
        group_id=group,
        hooks=[recorder],
        post_rebalance_callback=refuse,
    )
    with caplog.at_level(logging.INFO, "tailrace"):
        await consumer.start()
        failed = await recorder.wait_for(ConsumerFailed)
        with pytest.raises(TailraceError, match="no such table"):
            await asyncio.wait_for(consumer.getone(), 30)
        health = consumer.health()
        await consumer.stop()

    assert health.status == "failed"
    assert "no such table" in str(failed.exception)
    assert [message for message, _ in tracebacks(caplog)] == ["consumer failed"]


async def test_a_failed_start_raises_and_emits_no_event(new_app, caplog, recorder):
    """A start that fails raises its error, and emits no event with a traceback."""
    app = new_app(bootstrap_servers="127.0.0.1:1", start_timeout_ms=100)

    @app.handler("orders")
    async def handle(value: bytes) -> None: ...

    with caplog.at_level(logging.INFO, "tailrace"), pytest.raises(TailraceError):
        await app.start()

    assert not recorder.of(AppFailed)
    assert not tracebacks(caplog)
