"""Dependencies of handlers are opened once per scope, in order, and closed also after an error."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import Annotated

import msgspec
import pytest

from tailrace.app.declare.dependencies import open_into
from tailrace.app.declare.parameters import Depends, Header, Key
from tailrace.app.declare.prepared_handler import prepare
from tailrace.codecs.json_codec import JsonCodec
from tailrace.context_managers import AsyncExitStack
from tailrace.errors import ConfigurationError, ConsumerStateError, DecodeError
from tailrace.records import Record

CODEC = JsonCodec()
RECORD = Record("orders", 3, 17, b"ann", b"v", 0, [("trace", b"t-1")])

steps: list[object] = []
"""Actions of the providers, in order."""


@pytest.fixture(autouse=True)
def no_steps():
    steps.clear()


class Bank:
    """Bank that is compared by identity, opened and closed by a generator."""


async def open_bank() -> AsyncIterator[Bank]:
    steps.append("open bank")
    try:
        yield Bank()
    except BaseException as error:
        steps.append(repr(error))
        raise
    finally:
        steps.append("close bank")


def open_ledger(bank: Annotated[Bank, Depends(open_bank, scope="app")]) -> Iterator[tuple[str, Bank]]:
    steps.append("open ledger")
    yield "ledger", bank
    steps.append("close ledger")


def begin(
    bank: Annotated[Bank, Depends(open_bank, scope="app")],
    /,
    whole: Record,
    *,
    key: Annotated[str, Key],
    trace: Annotated[str | None, Header("trace")],
) -> Iterator[tuple[object, ...]]:
    steps.append("begin")
    try:
        yield bank, whole.offset, key, trace
    except ValueError as error:
        steps.append(f"roll back {error}")
        raise
    else:
        steps.append("commit")


def plain() -> str:
    return "plain"


def doubled(text: str) -> str:
    return text * 2


async def coroutine() -> str:
    await asyncio.sleep(0)
    return "coroutine"


def generator() -> Iterator[str]:
    yield "generator"


async def async_generator() -> AsyncIterator[str]:
    yield "async generator"


class Made:
    def __init__(self, key: Annotated[str, Key], limit: int = 3, *rest: int, **more: int) -> None:
        self.content = (key, limit, rest, more)


class Settings(msgspec.Struct):
    limit: int = 5


class Opener:
    """Object whose call and whose method are providers."""

    def __call__(self) -> str:
        return "object"

    async def method(self) -> str:
        return "method"


OPENER = Opener()


def needing(provider, scope="record", *, around=None):
    """Return a handler that returns the value of its provider."""

    async def handler(given):
        return around() if around else given

    handler.__annotations__ = {"given": Annotated[object, Depends(provider, scope=scope)]}
    return handler


@asynccontextmanager
async def open_dependencies(dependencies):
    async with AsyncExitStack() as stack:
        yield await open_into(stack, dependencies, None, {})


async def given_by(provider, scope="record", **options):
    prepared = prepare(needing(provider, scope), CODEC, **options)
    async with open_dependencies(prepared.app_dependencies) as opened:
        return await prepared.call(RECORD, opened)


# ---- kinds of providers ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("scope", ["record", "app"])
@pytest.mark.parametrize(
    ("provider", "expected"),
    [
        (plain, "plain"),
        (coroutine, "coroutine"),
        (generator, "generator"),
        (async_generator, "async generator"),
        (OPENER, "object"),
        (OPENER.method, "method"),
        (functools.partial(doubled, "par"), "parpar"),
        (lambda: "lambda", "lambda"),
        (Settings, Settings()),
    ],
)
async def test_every_kind_of_callable_is_a_provider(provider, expected, scope):
    """Functions, generators, classes, methods, objects and partials, also async ones, are providers in either scope."""
    assert await given_by(provider, scope) == expected


async def test_a_class_is_a_provider_by_the_signature_of_init():
    """A class is a provider by the signature of its __init__; unmarked parameters keep their defaults."""
    made = await given_by(Made)

    assert isinstance(made, Made)
    assert made.content == ("ann", 3, (), {})


async def test_a_provider_of_record_scope_may_take_the_record():
    """A provider of scope "record" may take the record, its key and headers, and other providers."""

    async def handler(tx: Annotated[tuple, Depends(begin)], whole: Record):
        return tx, whole

    prepared = prepare(handler, CODEC)
    async with open_dependencies(prepared.app_dependencies) as opened:
        (bank, *rest), whole = await prepared.call(RECORD, opened)

    assert isinstance(bank, Bank)
    assert (rest, whole) == ([17, "ann", "t-1"], RECORD)


# ---- scope "app" ----------------------------------------------------------------------------------------------------


async def pay(
    value: bytes,
    ledger: Annotated[tuple[str, Bank], Depends(open_ledger, scope="app")],
    bank: Annotated[Bank, Depends(open_bank, scope="app")],
):
    return ledger, bank


async def refund(bank: Annotated[Bank, Depends(open_bank, scope="app")]):
    return bank


async def test_an_app_scoped_dependency_is_opened_once():
    """An app-scoped dependency is opened once for all handlers and concurrent calls, and closed in reverse order."""
    first, second = prepare(pay, CODEC), prepare(refund, CODEC)

    async with open_dependencies([*first.app_dependencies, *second.app_dependencies]) as opened:
        results = await asyncio.gather(first.call(RECORD, opened), first.call(RECORD, opened))
        bank = await second.call(RECORD, opened)

    assert results == [(("ledger", bank), bank)] * 2
    assert steps == ["open bank", "open ledger", "close ledger", "close bank"]


async def test_a_handler_called_before_its_dependencies_are_open_raises():
    """Calling a handler before the app's dependencies are open raises ConsumerStateError."""
    with pytest.raises(ConsumerStateError, match="open_bank is not open"):
        await prepare(refund, CODEC).call(RECORD)


async def test_an_error_at_opening_closes_earlier_dependencies():
    """An error of a provider at opening propagates, and the dependencies that were opened before are closed."""

    def broken(bank: Annotated[Bank, Depends(open_bank, scope="app")]) -> None:
        raise OSError("no ledger")

    handler = needing(broken, "app")

    with pytest.raises(OSError, match="no ledger"):
        async with open_dependencies(prepare(handler, CODEC).app_dependencies):
            pass
    assert steps == ["open bank", "OSError('no ledger')", "close bank"]


async def test_an_error_at_closing_propagates():
    """An error of a provider at closing propagates, and the dependencies that are still open are closed."""

    def failing(bank: Annotated[Bank, Depends(open_bank, scope="app")]) -> Iterator[None]:
        yield
        raise OSError("cannot close")

    with pytest.raises(OSError, match="cannot close"):
        async with open_dependencies(prepare(needing(failing, "app"), CODEC).app_dependencies):
            steps.append("body")
    assert steps == ["open bank", "body", "OSError('cannot close')", "close bank"]


# ---- scope "record" -------------------------------------------------------------------------------------------------


async def test_a_record_scoped_dependency_is_opened_once_per_call():
    """A record-scoped dependency is opened once per call, shared within it, and closed after the handler."""

    def account(bank: Annotated[Bank, Depends(open_bank)]) -> Bank:
        return bank

    async def handler(given, bank):
        steps.append("handle")
        return given, bank

    handler.__annotations__ = {
        "given": Annotated[Bank, Depends(account)],
        "bank": Annotated[Bank, Depends(open_bank)],
    }
    prepared = prepare(handler, CODEC)

    first, again = await prepared.call(RECORD)
    second, _ = await prepared.call(RECORD)

    assert first is again
    assert first is not second
    assert steps == ["open bank", "handle", "close bank"] * 2
    assert prepared.app_dependencies == ()


async def test_a_provider_has_one_instance_in_each_scope():
    """A provider used in the scopes "app" and "record" has a separate instance in each."""

    async def handler(
        shared: Annotated[Bank, Depends(open_bank, scope="app")], own: Annotated[Bank, Depends(open_bank)]
    ):
        return shared is own

    prepared = prepare(handler, CODEC)
    async with open_dependencies(prepared.app_dependencies) as opened:
        assert await prepared.call(RECORD, opened) is False


async def test_the_error_of_the_handler_is_thrown_into_the_generator():
    """The handler's error is thrown into the generator at its yield, then propagates."""

    async def handler(tx: Annotated[tuple, Depends(begin)]):
        raise ValueError("no money")

    prepared = prepare(handler, CODEC)
    async with open_dependencies(prepared.app_dependencies) as opened:
        with pytest.raises(ValueError, match="no money"):
            await prepared.call(RECORD, opened)

    assert steps == ["open bank", "begin", "roll back no money", "close bank"]


async def test_a_generator_may_suppress_the_error_of_the_handler():
    """A generator that catches the handler's error suppresses it, as in contextlib."""

    def forgiving() -> Iterator[None]:
        try:
            yield
        except ValueError:
            steps.append("forgiven")

    def fail() -> None:
        raise ValueError

    assert await prepare(needing(forgiving, around=fail), CODEC).call(RECORD) is None
    assert steps == ["forgiven"]


async def test_a_canceled_call_closes_its_dependencies():
    """Cancellation of a handler closes its dependencies."""
    started = asyncio.Event()

    async def handler(bank: Annotated[Bank, Depends(open_bank)]) -> None:
        started.set()
        await asyncio.Event().wait()

    async with asyncio.timeout(5):
        task = asyncio.create_task(prepare(handler, CODEC).call(RECORD))
        await started.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
    assert steps == ["open bank", "CancelledError()", "close bank"]


async def test_a_missing_header_of_a_provider_raises_a_decode_error():
    """A header that a provider requires and a record lacks raises a DecodeError that names handler and provider."""

    def traced(bank: Annotated[Bank, Depends(open_bank)], trace: Annotated[str, Header("span")]) -> str:
        return trace

    with pytest.raises(
        DecodeError, match=r"orders\[3\] at offset 17: handler \S+: provider \S+traced: .*header 'span'"
    ):
        await prepare(needing(traced), CODEC).call(RECORD)
    assert steps[-1] == "close bank"


async def test_dependencies_of_a_plain_handler_are_opened_around_its_call():
    """Dependencies of a plain handler are opened before the call in a thread, and closed after it."""

    def handler(value: bytes, *, tx: Annotated[tuple, Depends(begin)]) -> object:
        steps.append("handle")
        return value, tx[1:]

    prepared = prepare(handler, CODEC)
    async with (
        open_dependencies(prepared.app_dependencies) as opened,
        prepared.opened_for(RECORD, opened) as everything,
    ):
        args, kwargs = prepared.bind(RECORD, everything)
        result = await asyncio.to_thread(prepared.function, *args, **kwargs)

    assert result == (b"v", (17, "ann", "t-1"))
    assert steps == ["open bank", "begin", "handle", "commit", "close bank"]


async def test_a_record_scoped_dependency_is_opened_once_per_batch():
    """In a batch handler, a dependency of scope "record" is opened once per batch."""

    async def handler(values: list[bytes], bank: Annotated[Bank, Depends(open_bank)]):
        steps.append("handle")
        return values, bank

    prepared = prepare(handler, CODEC, is_batch=True)

    values, bank = await prepared.call([RECORD, RECORD])

    assert (values, type(bank)) == ([b"v", b"v"], Bank)
    assert prepared.direct_call is None
    assert steps == ["open bank", "handle", "close bank"]


# ---- overrides ------------------------------------------------------------------------------------------------------


class FakeBank(Bank):
    """Replacement for Bank in tests."""


async def test_an_override_replaces_its_provider_everywhere():
    """An override replaces its provider in either scope, in handlers and in other providers."""
    prepared = prepare(pay, CODEC, overrides={open_bank: FakeBank})

    async with open_dependencies(prepared.app_dependencies) as opened:
        (_, through), bank = await prepared.call(RECORD, opened)

    assert type(bank) is FakeBank
    assert through is bank
    assert type(await given_by(open_bank, overrides={open_bank: FakeBank})) is FakeBank
    assert steps == ["open ledger", "close ledger"]


async def test_overrides_match_providers_by_identity():
    """Overrides match providers by identity, not equality; methods of one object are the same provider."""

    class Equal:
        def __init__(self, name: str) -> None:
            self.name = name

        def __eq__(self, other: object) -> bool:
            return isinstance(other, Equal)

        def __hash__(self) -> int:
            return 1

        def __call__(self) -> str:
            return self.name

        def method(self) -> str:
            return f"method of {self.name}"

    one, two = Equal("one"), Equal("two")

    assert await given_by(one, overrides={two: plain}) == "one"
    assert await given_by(one, overrides={one: plain}) == "plain"
    assert await given_by(one.method, overrides={two.method: plain}) == "method of one"
    assert await given_by(one.method, overrides={one.method: plain}) == "plain"


async def test_an_override_is_called_by_its_own_signature():
    """An override is called by its own signature, not by that of its provider."""

    async def fake(key: Annotated[str, Key], text: Annotated[str, Depends(plain)]) -> str:
        return f"{key} {text}"

    assert await given_by(generator, overrides={generator: fake}) == "ann plain"


# ---- refused at the start -------------------------------------------------------------------------------------------


def of_one_record(whole: Record) -> None: ...
def with_key(key: Annotated[str, Key]) -> None: ...
def with_header(trace: Annotated[str, Header("x")]) -> None: ...
def on_record_scope(bank: Annotated[Bank, Depends(open_bank)]) -> None: ...
def with_value(order: dict) -> None: ...
def of_nowhere(order: Annotated[Nowhere, Key] = 3) -> None: ...  # noqa: F821
def there(it: Annotated[None, Depends(back)]) -> None: ...
def back(it: Annotated[None, Depends(there)]) -> None: ...
def itself(it: Annotated[None, Depends(itself)]) -> None: ...


@contextmanager
def a_manager() -> Iterator[None]:
    yield


@asynccontextmanager
async def an_async_manager() -> AsyncIterator[None]:
    yield


@functools.cache
def cached() -> object:
    return object()


@pytest.mark.parametrize(
    ("provider", "scope", "words"),
    [
        (Bank(), "record", r"parameter 'given': \S+Bank.* is not callable - write Depends\(provider\) with"),
        (plain, "session", "parameter 'given': scope must be 'record' or 'app', not 'session'"),
        (of_one_record, "app", "provider .*of_one_record: parameter 'whole' needs a record.* scope='record'"),
        (with_key, "app", "provider .*with_key: parameter 'key' needs a record"),
        (with_header, "app", "provider .*with_header: parameter 'trace' needs a record"),
        (on_record_scope, "app", "parameter 'bank': .*open_bank has scope='record', but .* the same scope"),
        (with_value, "record", "parameter 'order' of a provider gets no argument - mark it with .*Depends"),
        (there, "record", r"providers depend on each other in a cycle: \S+there -> \S+back -> \S+there"),
        (itself, "record", r"in a cycle: \S+itself -> \S+itself"),
        (of_nowhere, "record", "provider .*of_nowhere: parameter 'order': the name 'Nowhere' .* cannot be resolved"),
        (
            a_manager,
            "record",
            "provider .*a_manager is a plain function wrapped around a generator - pass the generator function",
        ),
        (an_async_manager, "app", "an_async_manager is a plain function wrapped around an async generator"),
        (dict, "record", "provider builtins.dict: the signature cannot be read.* - wrap it in a function"),
    ],
)
def test_an_invalid_provider_is_refused(provider, scope, words):
    """An invalid provider raises ConfigurationError with handler, provider, parameter and advice."""
    with pytest.raises(ConfigurationError, match=rf"^handler \S+handler: .*{words}"):
        prepare(needing(provider, scope), CODEC)


def test_an_override_that_is_not_callable_is_refused():
    """An override that is not callable raises ConfigurationError."""
    with pytest.raises(ConfigurationError, match=r"\S+Bank overrides \S+open_bank and is not callable"):
        prepare(refund, CODEC, overrides={open_bank: Bank()})


async def test_a_functools_wrapper_is_a_provider():
    """A provider may be a function wrapped by functools; one with a cache provides the same object each time."""
    assert await given_by(cached) is await given_by(cached)


async def test_annotations_of_defaults_are_not_resolved():
    """The annotation of a parameter that keeps its default is not resolved, so its names may be undefined."""

    class Client:
        def __init__(self, verify: SSLContext | bool = True) -> None:  # noqa: F821, FBT001, FBT002
            self.verify = verify

    assert (await given_by(Client, "app")).verify is True


async def test_a_provider_that_needs_a_record_is_refused_for_batches():
    """A provider that needs a single record is refused in a batch handler."""

    async def handler(values: list[bytes], key: Annotated[str, Depends(with_key)]) -> None: ...

    with pytest.raises(
        ConfigurationError, match="with_key: parameter 'key' needs a single record, but a batch handler receives many"
    ):
        prepare(handler, CODEC, is_batch=True)


class Client:
    """Client that returns itself when it is awaited, as ``redis.asyncio.Redis`` and ``asyncpg.Pool`` do."""

    def __await__(self):
        steps.append("await client")
        yield from asyncio.sleep(0).__await__()
        return self

    @classmethod
    def make(cls):
        return cls()

    @classmethod
    async def make_later(cls):
        return cls()

    @classmethod
    def yielded(cls):
        yield cls()

    @classmethod
    async def yielded_later(cls):
        yield cls()

    @classmethod
    def wrapped(cls):
        """Return the coroutine of an async function, as decorators do."""
        return cls.make_later()

    def __call__(self):
        return type(self)()


async def start_task():
    return asyncio.ensure_future(asyncio.sleep(0, "result"))


@pytest.mark.parametrize(
    "provider",
    [
        Client,
        Client.make,
        Client.make_later,
        Client.yielded,
        Client.yielded_later,
        Client.wrapped,
        Client(),
        functools.partial(Client.make_later),
    ],
)
@pytest.mark.parametrize("scope", ["record", "app"])
async def test_an_awaitable_dependency_is_passed_on_and_not_awaited(provider, scope):
    """A client that can be awaited is the argument itself, however its provider returns it."""

    async def handle(value: bytes, client) -> None:
        steps.append(type(client))

    handle.__annotations__["client"] = Annotated[object, Depends(provider, scope=scope)]
    prepared = prepare(handle, CODEC)
    async with asyncio.timeout(10), open_dependencies(prepared.app_dependencies) as opened:
        await prepared.call(RECORD, opened)

    assert steps == [Client]


async def test_a_task_is_passed_on_as_a_dependency():
    """A task that an async provider returns is the argument, so that handlers await it when they need its result."""

    async def handle(value: bytes, task: Annotated[asyncio.Task[str], Depends(start_task)]) -> None:
        assert isinstance(task, asyncio.Task)
        steps.append(await task)

    await prepare(handle, CODEC).call(RECORD)

    assert steps == ["result"]


async def test_a_yielded_coroutine_is_passed_on():
    """A coroutine that a generator yields is the argument, which the handler awaits."""

    async def later():
        return "later"

    def provide():
        yield later()

    async def handle(value: bytes, given) -> None:
        steps.append(await given)

    handle.__annotations__["given"] = Annotated[object, Depends(provide)]
    await prepare(handle, CODEC).call(RECORD)

    assert steps == ["later"]
