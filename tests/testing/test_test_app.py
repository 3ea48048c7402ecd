"""TestApp runs handlers as in production, without a broker and without delays in real time."""

from __future__ import annotations

import asyncio
import itertools
import queue
import sys
import threading
import time
from typing import Annotated

import anyio.to_thread
import msgspec
import pytest

from tailrace import (
    App,
    ConfigurationError,
    Depends,
    HandlerFailedError,
    Handlers,
    Header,
    Key,
    Message,
    Record,
    Reject,
    Retry,
)
from tailrace.app.failures.dead_letters import replay_record
from tailrace.testing import TestApp


class Order(msgspec.Struct):
    customer: str
    total: int


class Invoice(msgspec.Struct):
    customer: str
    total: int


async def open_bank():
    yield "the real bank"


def open_fake_bank():
    return "a bank of straw"


billing = App(group_id="billing", dead_letter="{topic}.{group}.dead")
banks: list[str] = []


@billing.handler("orders", order_by="key", publish="invoices", retry=Retry(attempts=3))
async def charge(order: Order, bank: Annotated[str, Depends(open_bank, scope="app")]) -> Invoice:
    banks.append(bank)
    if order.total < 0:
        raise Reject("negative total")
    return Invoice(order.customer, order.total)


async def test_a_rejected_record_is_dead_lettered_when_send_returns():
    """When send() returns, a rejected record is dead-lettered and committed, and nothing is published for it."""
    async with TestApp(billing, overrides={open_bank: open_fake_bank}) as kafka:
        await kafka.send("orders", Order(customer="ann", total=-5))

        assert kafka.dead_letters("orders")[0].reason == "negative total"
        assert kafka.published("invoices") == []
        assert kafka.committed("orders") == 1

    assert banks[-1] == "a bank of straw"


async def test_one_app_serves_many_tests():
    """Each TestApp starts the app again with empty topics."""
    for total in (1, 2):
        async with TestApp(billing) as kafka:
            await kafka.send("orders", Order("ann", total), key="ann", headers=[("shop", "berlin")])

            assert kafka.published("invoices", Invoice) == [Invoice("ann", total)]
            assert kafka.committed("orders") == 1

    assert banks[-1] == "the real bank"


async def test_pauses_between_attempts_take_no_time():
    """A minute of pauses between attempts passes at once, in order on the event loop's clock."""
    app, tried = App(group_id="g"), []
    began = time.monotonic()

    @app.handler("t", retry=Retry(attempts=4, backoff_ms=20_000, max_backoff_ms=20_000, jitter=False))
    async def handle(value: bytes):
        tried.append(asyncio.get_running_loop().time())
        if len(tried) < 4:
            raise OSError("not yet")

    async with TestApp(app) as kafka:
        await kafka.send("t", b"0")

        assert kafka.committed("t") == 1

    assert [round(after - before) for before, after in itertools.pairwise(tried)] == [20, 20, 20]
    assert time.monotonic() - began < 10


async def test_deadlines_are_kept_in_virtual_time():
    """A handler that exceeds its timeout in virtual time fails at once."""
    app = App(group_id="g", dead_letter="dead", retry=Retry(attempts=1))

    @app.handler("t", timeout_ms=30_000)
    async def handle(value: bytes):
        await asyncio.sleep(60)

    async with TestApp(app) as kafka:
        await kafka.send("t", b"0")

        (letter,) = kafka.dead_letters("t")
        assert letter.error_type == "TimeoutError"


async def test_the_clock_stops_while_a_handler_runs_in_a_thread():
    """While a handler runs in a thread, its deadline is in real time."""
    app, done = App(group_id="g"), []

    @app.handler("t", timeout_ms=30_000)
    def handle(value: bytes):
        time.sleep(0.05)
        done.append(value)

    async with TestApp(app) as kafka:
        await kafka.send("t", b"0")

    assert done == [b"0"]


async def test_the_clock_stops_while_a_batch_handler_runs_in_a_thread():
    """While a batch handler runs in a thread, its deadline is in real time."""
    app, seen = App(group_id="g", dead_letter="dead", retry=Retry(attempts=1)), []

    @app.batch_handler("t", timeout_ms=30_000)
    def handle(values: list[bytes]):
        time.sleep(0.2)
        seen.append(values)

    async with TestApp(app) as kafka:
        await kafka.send("t", b"0")

        assert seen == [[b"0"]]
        assert kafka.dead_letters("t") == []


async def test_topics_matched_by_a_pattern_exist_from_their_first_record():
    """A topic that a pattern matches exists from its first record on, and no handler reads its dead letters."""
    app, seen = App(group_id="g", dead_letter="{topic}.{group}.dead", retry=Retry(attempts=1)), []

    @app.handler(pattern="t.*")
    async def handle(record: Record):
        seen.append((record.topic, record.offset))
        raise ValueError("never")

    async with TestApp(app) as kafka:
        await kafka.send("t-1", b"0")
        assert seen == [("t-1", 0)]
        await kafka.send("t-1.g.replay", b"0", headers=replay_record(*kafka.dead_letters("t-1")).headers)
        assert seen == [("t-1", 0)] * 2
        assert [one.deaths for one in kafka.dead_letters("t-1")] == [1, 2]
        assert kafka.committed("t-1") == kafka.committed("t-1.g.replay") == 1
        with pytest.raises(ConfigurationError, match=r"no handler reads .*dead. - this app reads t[.][*]"):
            await kafka.send("t-1.g.dead", b"0")


async def test_send_returns_when_a_failed_record_waits():
    """send() ends when a failed record blocks its lane; other lanes continue, and the record succeeds later."""
    app, is_broken = App(group_id="g", retry=Retry(attempts=2)), True

    @app.handler("t", order_by="key")
    async def handle(value: bytes):
        if is_broken and value == b"poison":
            raise OSError("no")

    async with TestApp(app) as kafka:
        with pytest.raises(HandlerFailedError, match="OSError: no"):
            await kafka.send("t", b"poison", key="a")
        await kafka.send("t", b"behind it", key="a")
        await kafka.send("t", b"beside it", key="b")
        assert kafka.committed("t") == 0
        assert app.health().status == "degraded"

        is_broken = False
        await asyncio.sleep(60)

        assert kafka.committed("t") == 3


async def test_a_failure_that_stops_the_app_is_raised():
    """With on_failure="stop", a failure ends the app, and TestApp raises it."""
    app = App(group_id="g", on_failure="stop", retry=Retry(attempts=1))

    @app.handler("t")
    async def handle(value: bytes):
        raise OSError("no")

    with pytest.raises(HandlerFailedError, match="on_failure='stop'"):
        async with TestApp(app) as kafka:
            await kafka.send("t", b"0")


async def test_order_and_concurrency_are_those_of_the_app():
    """Records of one key are handled one after another, and those of other keys concurrently."""
    app, running, most, seen = App(group_id="g"), 0, 0, []

    @app.handler("t", order_by="key", concurrency=3)
    async def handle(value: bytes, key: Annotated[str, Key]):
        nonlocal running, most
        running += 1
        most = max(most, running)
        await asyncio.sleep(1)
        seen.append((key, value))
        running -= 1

    async with TestApp(app, partitions={"t": 2}) as kafka:
        async with asyncio.TaskGroup() as sending:
            for number in range(20):
                sending.create_task(kafka.send("t", b"%d" % number, key=f"k{number % 5}", partition=number % 5 % 2))

        assert (kafka.committed("t", 0), kafka.committed("t", 1)) == (12, 8)

    for key in range(5):
        assert [value for of, value in seen if of == f"k{key}"] == [b"%d" % n for n in range(key, 20, 5)]
    assert most == 3


async def test_send_waits_for_records_published_to_the_app():
    """send() returns after records that handlers publish to topics of the app were handled."""
    app, module, seen = App(group_id="g"), Handlers(), []

    @module.handler("a", publish="b")
    async def first(value: bytes, shop: Annotated[str, Header("shop")]) -> list[Message]:
        return [Message(value + b"1", key=shop), Message(value + b"2")]

    @module.handler("b", group_id="other")
    async def second(record: Record):
        await asyncio.sleep(5)
        seen.append((record.key, record.value))
        await app.publish("c", b"done", partition=0)

    app.include(module)
    async with TestApp(app) as kafka:
        record = await kafka.send("a", b"x", headers=[("shop", "berlin")])

        assert seen == [(b"berlin", b"x1"), (None, b"x2")]
        assert [one.value for one in kafka.published("c")] == [b"done", b"done"]
        assert (record.topic, record.offset, record.value) == ("a", 0, b"x")
        assert kafka.committed("b") == 2


async def test_a_record_that_cannot_be_decoded_is_dead_lettered():
    """A record that the app's codec cannot decode is dead-lettered with its raw bytes after one attempt."""
    async with TestApp(billing) as kafka:
        await kafka.send("orders", b'{"customer": 1}')

        (letter,) = kafka.dead_letters("orders")
        assert (letter.value, letter.attempts, letter.error_type) == (
            b'{"customer": 1}',
            1,
            "tailrace.errors.DecodeError",
        )


async def test_a_paused_handler_waits():
    """A paused handler starts no record and continues when it is resumed."""
    app, seen = App(group_id="g"), []

    @app.handler("t")
    async def handle(value: bytes):
        seen.append(value)

    async with TestApp(app) as kafka:
        await kafka.send("t", b"0")
        app.pause(handle)
        await kafka.send("t", b"1")
        assert (seen, app.is_paused(handle), kafka.committed("t")) == ([b"0"], True, 1)

        app.resume(handle)
        await kafka.settled()

        assert (seen, app.is_paused(handle), kafka.committed("t")) == ([b"0", b"1"], False, 2)


async def test_a_handler_that_pauses_itself_starts_no_record():
    """A handler that pauses itself starts no more records until it is resumed."""
    app, seen = App(group_id="g"), []

    @app.handler("t")
    async def handle(n: int):
        seen.append(n)
        if n == 40:
            app.pause(handle)

    async with TestApp(app) as kafka:
        await asyncio.gather(*(kafka.send("t", n) for n in range(100)))
        assert (seen, kafka.committed("t")) == (list(range(41)), 41)

        app.resume(handle)
        await kafka.settled()

        assert (seen, kafka.committed("t")) == (list(range(100)), 100)


async def test_wrong_topics_partitions_and_groups_raise_errors():
    """A topic without a handler, a missing partition and an ambiguous or wrong group raise errors that name them."""
    app = App(group_id="g")

    @app.handler("t")
    async def handle(value: bytes): ...

    @app.handler("t", group_id="other")
    async def handle_too(value: bytes): ...

    async with TestApp(app) as kafka:
        with pytest.raises(ConfigurationError, match="no handler reads 'tt' - this app reads t"):
            await kafka.send("tt", b"0")
        with pytest.raises(Exception, match="t has no partition 3"):
            await kafka.send("t", b"0", partition=3)
        with pytest.raises(ConfigurationError, match="several groups read 't': g, other - pass group_id="):
            kafka.committed("t")
        with pytest.raises(ConfigurationError, match="group 'third' does not read 't' - groups that read it: g, other"):
            kafka.committed("t", group_id="third")
        with pytest.raises(ConfigurationError, match="no handler reads 'tt'"):
            kafka.committed("tt")
        assert kafka.committed("t", group_id="other") == 0


async def test_an_app_without_a_required_broker_is_started():
    """With require_broker=False, start hooks have run before the first record is handled."""
    app, seen = App(group_id="g", require_broker=False), []

    @app.on_start
    async def slowly():
        await asyncio.sleep(1)
        seen.append("begun")

    @app.handler("t")
    async def handle(number: int):
        seen.append(number)

    async with TestApp(app) as kafka:
        await kafka.send("t", 1)

    assert seen == ["begun", 1]


async def test_virtual_time_can_be_switched_off():
    """With virtual_time=False, handlers may wait for a real server."""
    app, seen = App(group_id="g"), []

    async def answer(_reader, writer):
        writer.write(b"42")
        writer.close()

    async with await asyncio.start_server(answer, "127.0.0.1", 0) as server:
        port = server.sockets[0].getsockname()[1]

        @app.handler("t", timeout_ms=20_000)
        async def handle(value: bytes):
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            seen.append(await reader.read())
            writer.close()
            await writer.wait_closed()

        async with TestApp(app, virtual_time=False) as kafka:
            await kafka.send("t", b"0")

    assert seen == [b"42"]


async def test_committed_is_zero_before_the_first_record():
    """committed() returns 0 for a topic of a pattern before its first record."""
    app, seen = App(group_id="g"), []

    @app.handler(pattern="orders-.*")
    async def handle(value: bytes) -> None:
        seen.append(value)

    async with TestApp(app) as kafka:
        before = kafka.committed("orders-eu")
        await kafka.send("orders-eu", b"1")
        after = kafka.committed("orders-eu")

    assert (before, seen, after) == (0, [b"1"], 1)


@pytest.mark.parametrize("kind", ["record", "batch", "plain"])
@pytest.mark.parametrize("delivery", ["at_least_once", "exactly_once"])
async def test_send_raises_if_a_handler_fails_for_good(kind, delivery):
    """Without a dead-letter topic, send() raises the failure of a handler, so that the test fails; once per failure."""
    app = App(group_id="g", retry=Retry(attempts=2, backoff_ms=1), delivery=delivery)
    tried = []

    if kind == "batch":

        @app.batch_handler("t")
        async def handle_batch(values: list[bytes]) -> None:
            tried.extend(values)
            raise ValueError("wrong")

    elif kind == "plain":

        @app.handler("t")
        def handle_plain(value: bytes) -> None:
            tried.append(value)
            raise ValueError("wrong")

    else:

        @app.handler("t")
        async def handle(value: bytes) -> None:
            tried.append(value)
            raise ValueError("wrong")

    async with TestApp(app) as kafka:
        with pytest.raises(HandlerFailedError, match=r"failed at t\[0\] offset 0: ValueError: wrong") as caught:
            await kafka.send("t", b"1")
        assert isinstance(caught.value.__cause__, ValueError)
        assert tried == [b"1"] * 2
        await kafka.settled()
        assert not app.health().is_live or app.health().status == "degraded"
        assert kafka.committed("t") == 0


async def test_send_raises_the_failure_of_a_later_handler():
    """A record that a handler publishes, and that another handler fails on, fails the send of the first."""
    app = App(group_id="g", retry=Retry(attempts=1))

    @app.handler("t", publish="u")
    async def pass_on(value: bytes) -> bytes:
        return value

    @app.handler("u")
    async def fail(value: bytes) -> None:
        raise ValueError("later")

    async with TestApp(app) as kafka:
        with pytest.raises(HandlerFailedError, match=r"u\[0\] offset 0: ValueError: later"):
            await kafka.send("t", b"1")


@pytest.mark.parametrize("ends_first", ["first", "last"])
async def test_several_apps_share_the_virtual_time_of_a_loop(ends_first):
    """TestApps of one event loop overlap in any order, and the loop has its own clock again after the last one."""
    apps, tried = [App(group_id=name, dead_letter="dead") for name in "ab"], []
    loop = asyncio.get_running_loop()

    async def handle(value: bytes) -> None:
        tried.append(value)
        if len(tried) % 2:
            await asyncio.sleep(3600)
            raise ValueError("an hour later")

    for app in apps:
        app.handler("t", retry=Retry(attempts=2, backoff_ms=20_000, max_backoff_ms=20_000))(handle)
    began = time.monotonic()
    entered = [await TestApp(app).__aenter__() for app in apps]
    for kafka in entered:
        await kafka.send("t", b"1")
    for kafka in entered if ends_first == "first" else entered[::-1]:
        await kafka.__aexit__(None, None, None)

    assert len(tried) == 4
    assert time.monotonic() - began < 20
    assert abs(loop.time() - time.monotonic()) < 1
    assert "time" not in vars(loop)


class ThreadedLibrary:
    """Library with a thread of its own, which is idle between two calls, as a connection of aiosqlite."""

    def __init__(self):
        self._calls = queue.SimpleQueue()
        threading.Thread(target=self._work, daemon=True).start()

    def _work(self):
        while (call := self._calls.get()) is not None:
            future, seconds = call
            time.sleep(seconds)
            future.get_loop().call_soon_threadsafe(future.set_result, "answer")

    async def ask(self, seconds):
        future = asyncio.get_running_loop().create_future()
        self._calls.put((future, seconds))
        return await future

    def close(self):
        self._calls.put(None)


async def ask_a_thread():
    library = ThreadedLibrary()
    try:
        await library.ask(0.05)
        return await library.ask(0.05)
    finally:
        library.close()


async def ask_anyio():
    return await anyio.to_thread.run_sync(lambda: time.sleep(0.1) or "answer")


async def ask_a_subprocess():
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-c", "import time; time.sleep(0.1); print('answer')", stdout=asyncio.subprocess.PIPE
    )
    said, _ = await process.communicate()
    return said.decode().strip()


@pytest.mark.parametrize("ask", [ask_a_thread, ask_anyio, ask_a_subprocess])
async def test_virtual_time_waits_for_libraries_with_threads_and_subprocesses(ask, monkeypatch):
    """A deadline does not pass while a library works in a thread or subprocess of its own."""
    # A slow machine starts a process in more than half a second.
    monkeypatch.setattr("tailrace.testing.virtual_time._REAL_WAIT_FOR_WORKERS_S", 10.0)
    app, seen = App(group_id="g", retry=Retry(attempts=1)), []

    @app.handler("t", timeout_ms=30_000)
    async def handle(value: bytes) -> None:
        seen.append(await ask())

    async with TestApp(app) as kafka:
        await kafka.send("t", b"1")

    assert seen == ["answer"]


async def test_settled_raises_a_failure_that_no_send_has_raised():
    """settled() raises the failure of a record that the app itself published."""
    app = App(group_id="g", retry=Retry(attempts=1))

    @app.handler("t")
    async def handle(value: bytes) -> None:
        raise ValueError("wrong")

    async with TestApp(app) as kafka:
        await app.publish("t", b"1")
        with pytest.raises(HandlerFailedError, match="ValueError: wrong"):
            await kafka.settled()
