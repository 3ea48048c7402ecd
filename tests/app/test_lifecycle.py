"""Lifecycle of an app: hooks, middleware, brokers that become reachable later, stops and signals."""

from __future__ import annotations

import asyncio
import contextlib
import signal
import socket
import subprocess
import sys
from typing import Annotated

import pytest

from tailrace import (
    App,
    BrokerConnectionError,
    ConfigurationError,
    ConsumerStateError,
    Depends,
    Handlers,
    PublishError,
    Record,
    Retry,
)
from tailrace.observe.events import BrokersUnavailable
from tailrace.testing import FaultProxy
from tests.support.commands import environment
from tests.support.consumer_group import until

done: list[str] = []


async def open_bank():
    """Dependency of a handler."""
    done.append("bank opens")
    try:
        yield "bank"
    finally:
        done.append("bank closes")


@pytest.fixture
def new_app(kafka_server, group):
    def make(**options):
        return App(**{"bootstrap_servers": kafka_server.bootstrap_servers, "group_id": group, **options})

    return make


async def test_start_hooks_run_before_the_first_record_and_stop_hooks_after_the_last(new_app, new_topic, witness):
    """Start hooks run before the first record, stop hooks after the last one, and dependencies are open during both."""
    topic, out, app, module = new_topic(), new_topic(), new_app(), Handlers()
    done.clear()
    witness.produce(topic, [b"0"])

    @app.on_start
    async def announce():
        await app.publish(out, b"up")
        done.append("start")

    @app.on_stop
    async def first_declared():
        await app.publish(out, b"down")
        done.append("stop")

    @module.on_stop
    def declared_last():
        done.append("module stops")

    @module.handler(topic)
    async def handle(value: bytes, bank: Annotated[str, Depends(open_bank, scope="app")]):
        done.append(f"handled at {bank}")

    app.include(module)
    async with app:
        await until(lambda: len(done) == 3)

    assert done == ["bank opens", "start", "handled at bank", "module stops", "stop", "bank closes"]
    assert (await witness.ends(out, 1)) == {0: 2}


async def test_a_start_hook_that_raises_fails_the_start(new_app, new_topic):
    """The error of a start hook fails the start: no record is handled, and everything is closed again."""
    app = new_app()
    done.clear()

    @app.on_start
    def refuse():
        raise LookupError("no such table")

    @app.handler(new_topic())
    async def handle(value: bytes, bank: Annotated[str, Depends(open_bank, scope="app")]): ...

    with pytest.raises(Exception, match="no such table"):
        await app.start()

    assert done == ["bank opens", "bank closes"]


async def test_an_error_of_a_stop_hook_is_raised_after_the_others_were_called(new_app, new_topic):
    """The error of a stop hook is raised after the other hooks were called and everything is closed."""
    app, called = new_app(), []
    app.on_stop(lambda: called.append(True))

    @app.on_stop
    def refuse():
        raise LookupError("no such table")

    @app.handler(new_topic())
    async def handle(value: bytes): ...

    await app.start()
    with pytest.raises(Exception, match="no such table"):
        await app.stop()

    assert called == [True]


async def test_middleware_wraps_handlers(new_app, new_topic, witness):
    """The app's middleware wraps that of the handler; each sees the record, and the result or the error."""
    topic, steps = new_topic(), []

    def saying(name):
        def around(call):
            async def called(record: Record):
                steps.append(f"{name} before {record.value!r}")
                try:
                    result = await call(record)
                except ValueError:
                    steps.append(f"{name} sees a failure")
                    raise
                steps.append(f"{name} after {result}")
                return result

            return called

        return around

    app = new_app(middleware=[saying("app")], retry=Retry(attempts=1), on_failure="skip")
    witness.produce(topic, [b"1", b"2"])

    @app.handler(topic, middleware=[saying("handler")])
    async def handle(value: bytes) -> str:
        if value == b"2":
            raise ValueError
        return "done"

    async with app:
        await until(lambda: len(steps) == 8)

    assert steps == [
        "app before b'1'",
        "handler before b'1'",
        "handler after done",
        "app after done",
        "app before b'2'",
        "handler before b'2'",
        "handler sees a failure",
        "app sees a failure",
    ]


async def test_invalid_middleware_is_refused():
    """A function in place of a list, or an object that is not a function, is refused at once."""
    with pytest.raises(ConfigurationError, match="list of functions"):
        App(group_id="g", middleware=lambda call: call)  # type: ignore[arg-type]
    with pytest.raises(ConfigurationError, match="list of functions"):
        App(group_id="g").handler("t", middleware=["timed"])  # type: ignore[list-item]


async def test_trace_headers_are_copied_to_published_messages(new_app, new_topic, witness, kafka_server):
    """Trace headers of a record are copied to its results; other headers are not."""
    topic, out = new_topic(), new_topic()
    app = new_app()
    trace = b"00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
    witness.produce(topic, [b"0"], headers=[("traceparent", trace), ("shop", b"berlin")])
    seen: asyncio.Future[Record] = asyncio.get_running_loop().create_future()

    @app.handler(topic, publish=out)
    async def handle(value: bytes) -> bytes:
        return value

    @app.handler(out)
    async def look(record: Record):
        seen.set_result(record)

    async with app, asyncio.timeout(30):
        record = await seen

    assert list(record.headers) == [("traceparent", trace)]


@contextlib.asynccontextmanager
async def door_to(bootstrap_servers: str, door: socket.socket):
    """Forward connections to ``door``, which is bound and refuses them before, to the broker."""
    host, _, behind = bootstrap_servers.partition(":")

    async def carry(reader, writer):
        with contextlib.suppress(OSError):
            while data := await reader.read(65_536):
                writer.write(data)
                await writer.drain()
        writer.close()

    async def opened(reader, writer):
        inner_reader, inner_writer = await asyncio.open_connection(host, int(behind))
        await asyncio.gather(carry(reader, inner_writer), carry(inner_reader, writer))

    async with await asyncio.start_server(opened, sock=door):
        yield


async def test_an_app_may_start_before_kafka(new_app, new_topic, witness, kafka_server, recorder):
    """With require_broker=False an app starts without a broker, refuses to publish, and begins once one answers."""
    topic, handled, hooked, door = new_topic(), [], [], socket.socket()
    # No other process gets this port, and connections are refused until a server listens.
    door.bind(("127.0.0.1", 0))
    app = new_app(
        bootstrap_servers="{}:{}".format(*door.getsockname()),
        require_broker=False,
        start_timeout_ms=200,
        hooks=[recorder],
    )
    app.on_start(lambda: hooked.append(True))
    witness.produce(topic, [b"0"])

    @app.handler(topic)
    async def handle(value: bytes):
        handled.append(value)

    with door:
        async with app:
            early = app.health()
            with pytest.raises(PublishError, match="no broker was reached yet"):
                await app.publish(topic, b"too early")
            await recorder.wait_for(BrokersUnavailable, 2)
            async with door_to(kafka_server.bootstrap_servers, door):
                await until(lambda: handled == [b"0"])

    assert (early.is_live, early.is_ready) == (True, True)
    assert hooked == [True]


async def test_a_start_waits_for_its_brokers(new_app, new_topic, kafka_server):
    """A start waits for its brokers for `start_timeout_ms`."""
    door = socket.socket()
    door.bind(("127.0.0.1", 0))
    app = new_app(bootstrap_servers="{}:{}".format(*door.getsockname()))

    @app.handler(new_topic())
    async def handle(value: bytes): ...

    with door:
        starting = asyncio.create_task(app.start())
        await asyncio.wait({starting}, timeout=0.5)
        assert not starting.done()
        async with door_to(kafka_server.bootstrap_servers, door):
            await starting
            await app.stop()


async def test_a_retried_start_keeps_the_whole_stop_timeout(  # noqa: PLR0917 - fixtures
    new_app, new_topic, witness, kafka_server, group, recorder
):
    """Time spent on a retried start does not count for stop_timeout_ms."""
    host, port = kafka_server.bootstrap_servers.split(":")
    topic, handled = new_topic(), []
    witness.produce(topic, [b"0"])
    with FaultProxy(host, int(port)) as proxy:
        app = new_app(
            bootstrap_servers=proxy.address,
            require_broker=False,
            start_timeout_ms=200,
            stop_timeout_ms=6_000,
            hooks=[recorder],
        )
        app.on_start(proxy.refuse)

        @app.handler(topic)
        async def handle(value: bytes):
            handled.append(value)

        async with app:
            await recorder.wait_for(BrokersUnavailable)
            # Long enough to use up the stop timeout, if it counted from the first attempt.
            await asyncio.sleep(4.6)
            proxy.restore()
            await until(lambda: handled == [b"0"])
            await until(lambda: app.health().status == "ok")

    assert await witness.committed(group, topic, 1) == {0: 1}


async def test_an_app_that_never_reaches_a_broker_can_be_stopped(group):
    """Stopping does not wait for an unreachable broker."""
    app = App(bootstrap_servers="127.0.0.1:1", group_id=group, require_broker=False, start_timeout_ms=100)

    @app.handler("orders")
    async def handle(value: bytes): ...

    async with asyncio.timeout(10):
        await app.start()
        begun = app.health()
        await app.stop()

    assert (begun.is_live, begun.is_ready) == (True, True)
    with pytest.raises(ConsumerStateError, match="this app has ended"):
        await app.publish("orders", b"too late")


async def test_wait_ready_raises_when_the_app_ends():
    """wait_ready() raises the error that ended the app, or ConsumerStateError if the app was stopped."""
    options = {"bootstrap_servers": "127.0.0.1:1", "group_id": "g", "start_timeout_ms": 100}
    broken, stopped = App(**options), App(**options, require_broker=False)
    for app in (broken, stopped):

        @app.handler("orders")
        async def handle(value: bytes): ...

    with pytest.raises(BrokerConnectionError):
        await broken.start()
    await stopped.start()
    ready = asyncio.create_task(stopped.wait_ready())
    await asyncio.sleep(0)
    await stopped.stop()

    with pytest.raises(BrokerConnectionError):
        await broken.wait_ready()
    with pytest.raises(ConsumerStateError, match="ended before it was ready"):
        await ready


waiting: list[asyncio.Event] = []


async def open_slowly():
    """Wait forever, like a database that does not answer."""
    done.append("database is asked")
    try:
        waiting[0].set()
        await asyncio.sleep(3600)
        yield "database"
    finally:
        done.append("database is left")


@contextlib.asynccontextmanager
async def silence(is_asked: asyncio.Event):
    """Provide a port that accepts connections and never answers."""
    gone = asyncio.Event()

    async def opened(_reader, writer):
        is_asked.set()
        await gone.wait()
        writer.close()

    async with await asyncio.start_server(opened, "127.0.0.1", 0) as server:
        yield f"127.0.0.1:{server.sockets[0].getsockname()[1]}"
        gone.set()


@pytest.mark.parametrize("how", ["SIGTERM", "stop()"])
@pytest.mark.parametrize("at", ["a dependency", "a start hook", "the brokers"])
async def test_a_hanging_start_can_be_stopped_at_once(new_app, new_topic, at, how):
    """A signal or a stop() from another task ends a start that hangs, and opened dependencies are closed."""
    hangs = asyncio.Event()
    waiting[:], done[:] = [hangs], []
    async with silence(hangs) as address:
        patient = {"start_timeout_ms": 90_000, "stop_timeout_ms": 90_000}
        app = new_app(**patient, **{"bootstrap_servers": address} if at == "the brokers" else {})
        app.on_stop(lambda: done.append("stop hook"))

        @app.handler(new_topic())
        async def handle(value: bytes, bank: Annotated[str, Depends(open_bank, scope="app")]): ...

        if at == "a dependency":

            @app.handler(new_topic())
            async def handle_slowly(value: bytes, base: Annotated[str, Depends(open_slowly, scope="app")]): ...

        if at == "a start hook":

            @app.on_start
            async def hang():
                hangs.set()
                await asyncio.sleep(3600)

        running = asyncio.create_task(app.run() if how == "SIGTERM" else app.start())
        async with asyncio.timeout(30):
            await hangs.wait()
        async with asyncio.timeout(15):
            if how == "SIGTERM":
                signal.raise_signal(signal.SIGTERM)
                await running
            else:
                await app.stop()
                with pytest.raises(ConsumerStateError, match="stopped before it had started"):
                    await running

    between = {
        "a dependency": ["database is asked", "database is left"],
        "a start hook": ["stop hook"],
        "the brokers": [],
    }
    assert done == ["bank opens", *between[at], "bank closes"]
    assert (app.health().is_live, app.health().is_ready) == (True, False)


@pytest.fixture
def topic_with_one(new_topic, witness):
    topic = new_topic()
    witness.produce(topic, [b"0"])
    return topic


STUCK = """
import asyncio, sys, time
from tailrace import App

app = App(bootstrap_servers=sys.argv[1], group_id=sys.argv[2])

@app.handler(sys.argv[3])
async def hang(value: bytes):
    print("hangs", flush=True)
    {how}

asyncio.run(app.run())
"""


@pytest.mark.parametrize(
    ("how", "number"), [("time.sleep(300)", signal.SIGTERM), ("await asyncio.sleep(300)", signal.SIGINT)]
)
def test_a_second_signal_ends_the_process_at_once(kafka_server, topic_with_one, how, number):
    """A second signal ends the process at once, also while handlers hang or block the event loop."""
    topic = topic_with_one
    program = [sys.executable, "-c", STUCK.format(how=how), kafka_server.bootstrap_servers, topic, topic]
    with subprocess.Popen(program, stdout=subprocess.PIPE, text=True, env=environment()) as process:
        assert process.stdout is not None
        try:
            assert process.stdout.readline() == "hangs\n"
            while process.poll() is None:
                # Two signals in quick succession may be delivered as one.
                process.send_signal(number)
                with contextlib.suppress(subprocess.TimeoutExpired):
                    process.wait(timeout=0.2)
        finally:
            process.kill()

    assert process.returncode == -number
