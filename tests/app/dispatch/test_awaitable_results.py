"""Coroutines, futures and generators that plain functions return are awaited or refused, never ignored."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import threading
from collections.abc import Awaitable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Annotated

import pytest

from tailrace import App, ConfigurationError, Consumer, Depends, Record, Retry
from tailrace.observe.events import RecordSkipped
from tailrace.testing import TestApp
from tests.support.consumer_group import until

ONCE = Retry(attempts=1)


@pytest.fixture
def new_app(kafka_server, group):
    def make(**options):
        return App(bootstrap_servers=kafka_server.bootstrap_servers, **{"group_id": group, **options})

    return make


class Work:
    """Work of a handler that suspends, and the thread in which it ended."""

    def __init__(self) -> None:
        self.done: list[bytes] = []
        self.threads: set[threading.Thread] = set()

    async def do(self, value: bytes) -> bytes:
        await asyncio.sleep(0.01)
        self.threads.add(threading.current_thread())
        self.done.append(value)
        return value

    def __call__(self, value: bytes) -> Awaitable[bytes]:
        return self.do(value)


def plain(work):
    def handle(value: bytes) -> Awaitable[bytes]:
        return work.do(value)

    return handle


def plain_without_annotation(work):
    def handle(value: bytes) -> None:
        return work.do(value)

    return handle


def partial(work):
    def handle(work, value: bytes):
        return work.do(value)

    return functools.partial(handle, work)


def called_object(work):
    return work


def wrapper(work):
    async def handle(value: bytes) -> None:
        await work.do(value)

    @functools.wraps(handle)
    def wrapped(*args, **kwargs):
        return handle(*args, **kwargs)

    return wrapped


def future_of_a_pool(work):
    def handle(value: bytes) -> Future[None]:
        return pool.submit(work.done.append, value)

    pool = ThreadPoolExecutor(1)
    return handle


@pytest.mark.parametrize("made", [plain, plain_without_annotation, partial, called_object, wrapper, future_of_a_pool])
async def test_the_result_of_a_plain_handler_is_awaited_before_the_commit(new_app, new_topic, witness, group, made):
    """A coroutine or a future is awaited on the event loop; the record is finished after that."""
    topic, app, work = new_topic(), new_app(), Work()
    witness.produce(topic, [b"0", b"1"])
    app.handler(topic)(made(work))

    async with app:
        await until(lambda: len(work.done) == 2)

    assert work.done == [b"0", b"1"]
    assert work.threads <= {threading.main_thread()}
    assert sum((await witness.committed(group, topic, 1)).values()) == 2


async def test_the_error_of_a_pool_future_fails_the_record(new_app, new_topic, witness, recorder):
    """The error of a concurrent.futures.Future that a plain handler returns fails its record."""
    topic, app = new_topic(), new_app(on_failure="skip", retry=ONCE, hooks=[recorder])
    witness.produce(topic, [b"0"])

    with ThreadPoolExecutor(1) as pool:

        @app.handler(topic)
        def handle(value: bytes) -> Future[int]:
            return pool.submit(int, "no number")

        async with app:
            skipped = await recorder.wait_for(RecordSkipped)

    assert "ValueError" in skipped.error


async def test_the_result_of_a_plain_batch_handler_is_awaited_before_the_commit(new_app, new_topic, witness, group):
    """A batch is finished when the coroutine that its handler returned has finished."""
    topic, app, work = new_topic(), new_app(), Work()
    witness.produce(topic, [b"0", b"1"])

    @app.batch_handler(topic)
    def handle(values: list[bytes]) -> Awaitable[list[bytes]]:
        return _all(work, values)

    async with app:
        await until(lambda: len(work.done) == 2)

    assert sum((await witness.committed(group, topic, 1)).values()) == 2


async def _all(work, values):
    return [await work.do(value) for value in values]


async def test_a_returned_coroutine_has_the_timeout_of_its_handler(new_app, new_topic, witness, recorder):
    """The coroutine of a plain handler is canceled after timeout_ms, and the record has failed."""
    topic, app, ended = new_topic(), new_app(on_failure="skip", retry=ONCE, hooks=[recorder]), []
    witness.produce(topic, [b"0"])

    async def wait() -> None:
        try:
            await asyncio.sleep(3600)
        finally:
            ended.append(True)

    @app.handler(topic, timeout_ms=50)
    def handle(value: bytes) -> Awaitable[None]:
        return wait()

    async with app:
        skipped = await recorder.wait_for(RecordSkipped)

    assert ended == [True]
    assert "TimeoutError: the handler took longer than timeout_ms=" in skipped.error


def generator_object(_loop):
    return (n for n in range(3))


def async_generator_object(_loop):
    async def generate():
        yield 1

    return generate()


def foreign_future(loop):
    return loop.create_future()


@pytest.mark.parametrize("returned", [generator_object, async_generator_object, foreign_future])
@pytest.mark.parametrize("is_async", [False, True], ids=["plain", "async"])
async def test_a_result_that_cannot_be_awaited_fails_the_record(  # noqa: PLR0917 - fixtures
    new_app, new_topic, witness, recorder, returned, is_async
):
    """A generator whose body never runs, or a future of another loop, fails the record and names the handler."""
    topic, app = new_topic(), new_app(on_failure="skip", retry=ONCE, hooks=[recorder])
    witness.produce(topic, [b"0"])
    other_loop = asyncio.new_event_loop()

    def handle(value: bytes):
        return returned(other_loop)

    async def handle_async(value: bytes):
        return returned(other_loop)

    app.handler(topic)(handle_async if is_async else handle)
    with contextlib.closing(other_loop):
        async with app:
            skipped = await recorder.wait_for(RecordSkipped)

    assert "handle" in skipped.error
    assert "another event loop" in skipped.error or "never ran" in skipped.error


words: list[str] = []


async def say(word: str) -> str:
    await asyncio.sleep(0)
    words.append(word)
    return word


def open_bank():
    """An app-scoped dependency."""
    return say("bank")


def teller():
    """A dependency of each record."""
    return say("teller")


async def test_awaitables_of_providers_middleware_and_hooks_are_awaited(new_app, new_topic, witness):
    """Plain functions may return coroutines wherever the app calls user-defined functions."""
    topic = new_topic()
    words.clear()

    def around(call):
        async def called(record: Record):
            return call(record)

        return called

    app = new_app(middleware=[around])
    app.on_start(lambda: say("start"))
    app.on_stop(functools.partial(say, "stop"))
    witness.produce(topic, [b"0"])

    @app.handler(topic)
    async def handle(
        value: bytes,
        bank: Annotated[str, Depends(open_bank, scope="app")],
        clerk: Annotated[str, Depends(teller)],
    ):
        assert (bank, clerk) == ("bank", "teller")
        return say("handled")

    async with app:
        await until(lambda: "handled" in words)

    assert words == ["bank", "start", "teller", "handled", "stop"]


@pytest.mark.parametrize("delivery", ["at_least_once", "exactly_once"])
@pytest.mark.parametrize("has_trace", [False, True], ids=["plain", "traced"])
async def test_a_coroutine_returned_by_an_async_handler_annotated_none_is_awaited(  # noqa: PLR0917 - fixtures
    new_app, new_topic, witness, group, delivery, has_trace
):
    """A coroutine that a handler annotated with None returns is awaited before the commit."""
    topic, work = new_topic(), Work()
    app = new_app(**({} if delivery == "at_least_once" else {"delivery": delivery}))
    headers = [("traceparent", b"00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01")] if has_trace else []
    witness.produce(topic, [b"0", b"1"], headers=headers)

    @app.handler(topic)
    async def handle(value: bytes) -> None:
        return work.do(value)  # type: ignore[return-value]

    async with app:
        await until(lambda: len(work.done) == 2)

    assert work.done == [b"0", b"1"]
    assert sum((await witness.committed(group, topic, 1)).values()) >= 2


async def test_the_error_of_a_returned_coroutine_fails_the_record(new_app, new_topic, witness, recorder):
    """The error of a coroutine that an async handler returns fails each attempt at its record."""
    topic, tries = new_topic(), []
    app = new_app(on_failure="skip", retry=Retry(attempts=2, backoff_ms=1), hooks=[recorder])
    witness.produce(topic, [b"0"])

    async def fail() -> None:
        await asyncio.sleep(0)
        tries.append(1)
        raise ValueError("no stock")

    @app.handler(topic)
    async def handle(value: bytes) -> None:
        return fail()  # type: ignore[return-value]

    async with app:
        skipped = await recorder.wait_for(RecordSkipped)

    assert len(tries) == 2
    assert "no stock" in skipped.error


def forgets(call):
    async def called(work) -> None:
        call(work)

    return called


def forgets_in_a_plain_function(call):
    def called(work) -> None:
        call(work)

    return called


def hands_to_a_task(call):
    async def called(work) -> None:
        tasks.append(asyncio.ensure_future(call(work)))
        await asyncio.sleep(0)

    return called


def returns_in_a_list(call):
    async def called(work):
        return [call(work)]

    return called


def awaits_the_first_of_two(call):
    async def called(work):
        await call(work)
        call(work)

    return called


def awaits(call):
    async def called(work):
        return await call(work)

    return called


tasks: list[asyncio.Task[object]] = []
CARELESS = [forgets, forgets_in_a_plain_function, hands_to_a_task, returns_in_a_list, awaits_the_first_of_two]


@pytest.mark.parametrize("around", CARELESS)
@pytest.mark.parametrize("others", [(), (awaits,)], ids=["alone", "outside of another"])
@pytest.mark.parametrize("kind", ["record", "batch"])
async def test_a_middleware_that_does_not_await_its_call_fails_the_record(  # noqa: PLR0917 - fixtures
    new_app, new_topic, witness, recorder, around, others, kind
):
    """A record whose handler never ran, or still runs, is not committed: it fails with the middleware's name."""
    topic, stays = new_topic(), asyncio.Event()
    app = new_app(on_failure="skip", retry=ONCE, hooks=[recorder])
    witness.produce(topic, [b"0"])
    declare = app.handler if kind == "record" else app.batch_handler

    async def handle(value) -> None:
        if around is hands_to_a_task:
            await stays.wait()

    handle.__annotations__["value"] = bytes if kind == "record" else list[bytes]
    declare(topic, middleware=[around, *others])(handle)
    async with app:
        try:
            skipped = await recorder.wait_for(RecordSkipped)
        finally:
            stays.set()
            await asyncio.gather(*tasks)
            tasks.clear()

    assert around.__name__ in skipped.error
    assert "await call(record)" in skipped.error


async def test_middleware_may_skip_repeat_or_defer_the_call(new_app, new_topic, witness, recorder):
    """Middleware may skip the call, repeat a failed call, or call in a task, and none of these fails the record."""
    topic, seen = new_topic(), []
    app = new_app(on_failure="skip", retry=ONCE, hooks=[recorder])
    witness.produce(topic, [b"drop", b"again", b"task"])

    def around(call):
        async def called(record: Record):
            if record.value == b"again":
                with contextlib.suppress(ValueError):
                    await call(record)
            if record.value != b"drop":
                return await asyncio.ensure_future(call(record))
            return None

        return called

    @app.handler(topic, middleware=[around, awaits])
    async def handle(value: bytes) -> None:
        seen.append(value)
        if seen.count(b"again") == 1 and value == b"again":
            raise ValueError

    async with app:
        await until(lambda: b"task" in seen)

    assert seen == [b"again", b"again", b"task"]
    assert not recorder.of(RecordSkipped)


async def test_middleware_receives_the_result_of_a_returned_coroutine(new_app, new_topic, witness):
    """Middleware of a handler that returns a coroutine receives the coroutine's result."""
    topic, app, seen, work = new_topic(), new_app(), [], Work()
    witness.produce(topic, [b"0"])

    def around(call):
        async def called(given):
            seen.append(await call(given))

        return called

    @app.handler(topic, middleware=[around])
    async def handle(value: bytes):
        return work.do(value)

    @app.batch_handler(topic, group_id=f"{topic}-batches", middleware=[around])
    async def handle_batch(values: list[bytes]):
        return _all(work, values)

    async with app:
        await until(lambda: len(seen) == 2)

    assert sorted(seen, key=str) == [[b"0"], b"0"]


async def test_a_rebalance_callback_that_returns_a_generator_ends_the_consumer(kafka_server, new_topic, group):
    """A callback that returns a generator ends the consumer with an error, because the generator never runs."""

    def place(new):
        yield from new

    consumer = Consumer(
        new_topic(),
        bootstrap_servers=kafka_server.bootstrap_servers,
        group_id=group,
        post_rebalance_callback=lambda _consumer, _old, new: place(new),
    )
    with pytest.raises(Exception, match=r"post_rebalance_callback.*generator, whose body never ran"):
        async with asyncio.timeout(30), consumer:
            await consumer.getone()


async def test_a_plain_rebalance_callback_may_return_a_coroutine(kafka_server, new_topic, group, witness):
    """If the callback returns a coroutine, the coroutine's offsets are applied before the first record is delivered."""
    topic = new_topic()
    witness.produce(topic, [b"0", b"1", b"2"])

    async def place(new):
        await asyncio.sleep(0.01)
        return dict.fromkeys(new, 2)

    async with Consumer(
        topic,
        bootstrap_servers=kafka_server.bootstrap_servers,
        group_id=group,
        post_rebalance_callback=lambda _consumer, _old, new: place(new),
    ) as consumer:
        async with asyncio.timeout(30):
            record = await consumer.getone()

    assert record.value == b"2"


def yields(value: bytes):
    yield value


async def yields_async(value: bytes):
    yield value


@pytest.mark.parametrize("function", [yields, yields_async, functools.partial(yields), functools.partial(yields_async)])
def test_generators_are_refused_at_the_declaration(function):
    """The declaration of a handler, batch handler or hook that contains `yield` raises, as its body would never run."""
    app = App(group_id="g")
    declarations = (app.handler("t"), app.batch_handler("t"), app.on_start, app.on_stop)
    for declare in declarations:
        with pytest.raises(ConfigurationError, match=r"yields.* is an? .*generator.*without `yield`"):
            declare(function)


async def test_a_when_that_returns_a_coroutine_fails_the_record(new_app, new_topic, witness, recorder):
    """A `when` that returns a coroutine fails the record, as a coroutine is true for each record."""
    topic, app, seen = new_topic(), new_app(on_failure="skip", retry=ONCE, hooks=[recorder]), []
    witness.produce(topic, [b"0"])

    async def answer() -> bool:
        return False

    def no(_record: Record):
        return answer()

    @app.handler(topic, when=no)
    async def handle(value: bytes) -> None:
        seen.append(value)

    async with app:
        skipped = await recorder.wait_for(RecordSkipped)

    assert seen == []
    assert "when=" in skipped.error


class Client:
    """Client that returns itself when it is awaited, as ``redis.asyncio.Redis`` does."""

    def __await__(self):
        words.append("awaited")
        yield from asyncio.sleep(0).__await__()
        return self


async def test_a_client_that_returns_itself_is_no_result_without_end():
    """A client that async handlers and hooks return stays as it is; plain functions' awaitables are awaited once."""
    words.clear()
    seen: list[str] = []
    app = App(group_id="g")

    async def connect():
        return Client()

    app.on_start(connect)
    app.on_start(Client)

    @app.handler("async")
    async def handle(value: bytes):
        seen.append("async")
        return Client()

    @app.handler("plain")
    def handle_plain(value: bytes):
        seen.append("plain")
        return Client()

    async with asyncio.timeout(30), TestApp(app, virtual_time=False) as kafka:
        assert words == ["awaited"]
        await kafka.send("async", b"1")
        await kafka.send("plain", b"1")

    assert seen == ["async", "plain"]
    assert words == ["awaited"] * 2


async def sleepy(value: object) -> object:
    return value


class AsyncCall:
    async def __call__(self, value: object) -> object:
        return value


@pytest.mark.parametrize("function", [sleepy, AsyncCall(), functools.partial(sleepy), functools.partial(AsyncCall())])
def test_async_functions_are_refused_where_they_are_not_awaited(function):
    """An async deserializer, ``when=`` or method of a codec is refused, because its coroutine would not be awaited."""

    class Codec:
        decoder = staticmethod(lambda _annotation: bytes)
        encode = staticmethod(function)

    with pytest.raises(ConfigurationError, match="value_deserializer"):
        Consumer("t", bootstrap_servers="localhost:9", value_deserializer=function)
    with pytest.raises(ConfigurationError, match="when must be a plain function"):
        App(group_id="g").handler("t", when=function)
    with pytest.raises(ConfigurationError, match="encode of the codec"):
        App(group_id="g", codec=Codec())
