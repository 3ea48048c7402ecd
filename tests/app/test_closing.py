"""An app with stop hooks or providers that do not end stops in time and names them."""

from __future__ import annotations

import asyncio
import signal
import subprocess
import sys
from typing import Annotated

import pytest

from tailrace import App, Depends, TailraceError
from tailrace.observe.events import ShutdownTimedOut
from tests.support.commands import environment
from tests.support.consumer_group import until
from tests.support.loop_timer import LoopTimer

FOREVER_S = 3600
STOP_TIMEOUT_S = 4


async def hang() -> None:
    await asyncio.sleep(FOREVER_S)


async def swallow() -> None:
    """Ignore all cancellations until the test ends."""
    task = asyncio.current_task()
    going_on.add(task)
    task.add_done_callback(going_on.discard)
    while not let_go.is_set():
        try:
            await let_go.wait()
        except asyncio.CancelledError:
            continue


let_go = asyncio.Event()


@pytest.fixture(autouse=True)
async def ending():
    """End calls of ``swallow`` when the test ends, before its event loop closes."""
    global let_go  # noqa: PLW0603 - for providers, which are functions of this module
    let_go = asyncio.Event()
    ended.clear()
    yield
    let_go.set()
    await until(lambda: not going_on)


going_on: set[object] = set()


ended: list[str] = []
ways = [hang]


async def open_bank():
    """Provide a bank that closes at once."""
    try:
        yield "bank"
    finally:
        ended.append("bank")


async def open_ledger(bank: Annotated[str, Depends(open_bank, scope="app")]):
    """Provide a ledger whose close hangs."""
    yield bank
    await ways[0]()


@pytest.fixture
def new_app(kafka_server, group, recorder):
    def make(topic, **options):
        options = {"stop_timeout_ms": STOP_TIMEOUT_S * 1000, "hooks": [recorder], **options}
        app = App(bootstrap_servers=kafka_server.bootstrap_servers, group_id=group, **options)

        @app.handler(topic)
        async def handle(value: bytes) -> None: ...

        return app

    return make


@pytest.mark.parametrize("way", [hang, swallow])
async def test_a_stop_hook_that_does_not_end_is_named_and_the_others_are_called(new_app, new_topic, recorder, way):
    """stop() ends within stop_timeout_ms and raises; later hooks are called and providers are closed all the same."""
    app = new_app(new_topic())

    @app.handler(new_topic())
    async def pay(value: bytes, bank: Annotated[str, Depends(open_bank, scope="app")]) -> None: ...

    app.on_stop(lambda: ended.append("first declared"))

    @app.on_stop
    async def flush() -> None:
        await way()

    await app.start()
    in_time = LoopTimer(STOP_TIMEOUT_S)
    with pytest.raises(TailraceError, match=r"on_stop hook .*flush did not end within"):
        await app.stop()

    assert in_time.late_s < 0.5
    (cut,) = recorder.of(ShutdownTimedOut)
    assert "flush" in cut.step
    assert cut.is_abandoned is (way is swallow)
    assert ended == ["first declared", "bank"]


@pytest.mark.parametrize("way", [hang, swallow])
async def test_a_provider_whose_close_hangs_is_named(new_app, new_topic, recorder, way):
    """stop() ends within stop_timeout_ms, and raises an error that names a provider whose close hangs."""
    ways[:] = [way]
    app = new_app(new_topic())

    @app.handler(new_topic())
    async def pay(value: bytes, ledger: Annotated[str, Depends(open_ledger, scope="app")]) -> None: ...

    await app.start()
    in_time = LoopTimer(STOP_TIMEOUT_S)
    with pytest.raises(TailraceError, match=r"provider .*open_ledger did not end within|is abandoned"):
        await app.stop()

    assert in_time.late_s < 1
    (cut,) = recorder.of(ShutdownTimedOut)
    assert "open_ledger" in cut.step
    assert cut.is_abandoned is (way is swallow)
    assert ended == ([] if way is swallow else ["bank"])
    assert asyncio.all_tasks() == {asyncio.current_task()}


PROGRAM = """
import asyncio, logging, sys
from typing import Annotated
from tailrace import App, Depends

logging.basicConfig(level="ERROR")
app = App(bootstrap_servers=sys.argv[1], group_id=sys.argv[2], stop_timeout_ms=3_000)

async def swallow():
    while True:
        try:
            await asyncio.sleep(3600)
        except asyncio.CancelledError:
            pass

async def open_ledger():
    yield
    if sys.argv[3] == "provider":
        await swallow()

@app.handler(sys.argv[2])
async def handle(value: bytes, ledger: Annotated[None, Depends(open_ledger, scope="app")]) -> None:
    print("handles", flush=True)

@app.on_stop
async def flush():
    if sys.argv[3] == "hook":
        await swallow()

asyncio.run(app.run())
"""


@pytest.mark.parametrize(("what", "named"), [("hook", "flush"), ("provider", "open_ledger")])
async def test_a_process_ends_without_a_hook_or_provider_that_swallows_its_cancellation(
    kafka_server, new_topic, witness, what, named
):
    """After SIGTERM the process ends in time with a nonzero code, and names the hook or provider."""
    topic = new_topic()
    witness.produce(topic, [b"0"])
    command = [sys.executable, "-c", PROGRAM, kafka_server.bootstrap_servers, topic, what]
    with subprocess.Popen(  # noqa: ASYNC220 - it is read in threads
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment()
    ) as process:
        assert process.stdout is not None
        try:
            assert await asyncio.to_thread(process.stdout.readline) == "handles\n"
            process.send_signal(signal.SIGTERM)
            _, errors = await asyncio.to_thread(process.communicate, timeout=20)
        finally:
            process.kill()

    assert process.returncode == 1
    assert "shutdown timed out" in errors
    assert named in errors
