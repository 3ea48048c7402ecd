"""Exceptions of users are never changed, however unusual they are, and no exception of a handler ends the app."""

# ruff: noqa: N818 - the names say what is unusual

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import Annotated

import pytest

from tailrace import App, Depends, Record, Retry
from tailrace.errors import HandlerFailedError
from tailrace.observe.events import AppFailed, HandlerFailedPermanently, RecordDeadLettered
from tailrace.testing import TestApp


@dataclass(frozen=True)
class Frozen(Exception):
    code: str


class Locked(Exception):
    """Exception that refuses all changes, with a dictionary that must not be written."""

    __slots__ = ()

    def __setattr__(self, name, value):
        raise AttributeError(f"cannot set {name}")

    def __delattr__(self, name):
        raise AttributeError(f"cannot delete {name}")

    def with_traceback(self, _trace):
        raise AttributeError("cannot set the traceback")

    def add_note(self, _note):
        raise AttributeError("cannot add a note")


class Speechless(Exception):
    def __str__(self):
        raise ValueError("no text")

    __repr__ = __str__


class Wordless(Exception):
    def __str__(self):
        return 7  # noqa: PLE0307 - on purpose


class Unreadable(Exception):
    """Exception whose attributes raise when they are read."""

    @property
    def __notes__(self):
        raise ValueError("no notes")

    @property
    def __cause__(self):
        raise ValueError("no cause")


@dataclass
class Unhashable(Exception):
    code: str

    def __eq__(self, other):
        raise TypeError("cannot be compared")

    __hash__ = None


class Rude(BaseException):
    """Exception that is no Exception, as panics of libraries written in Rust are."""


def cycle():
    first, second = ValueError("first"), ValueError("second")
    first.__context__, second.__context__ = second, first
    return first


def causes_in_a_circle():
    first, second = ValueError("first"), ValueError("second")
    first.__cause__, second.__cause__ = second, first
    return first


def long_chain():
    error = ValueError("last")
    for number in range(20_000):
        outer = ValueError(f"{number}")
        outer.__context__ = outer.__cause__ = error
        error = outer
    return error


def deep_group():
    error = ValueError("innermost")
    for number in range(2_000):
        error = ExceptionGroup(f"{number}", [error])
    return error


def doubling_group():
    error = ValueError("innermost")
    for number in range(60):
        error = ExceptionGroup(f"{number}", [error, error])
    return error


def wide_group():
    return ExceptionGroup("wide", [ValueError(str(number)) for number in range(5_000)])


def frozen():
    return Frozen("a")


def unhashable():
    return Unhashable("a")


def rude_group():
    return BaseExceptionGroup("rude", [Rude()])


def frozen_group():
    return ExceptionGroup("frozen", [Frozen("a"), Locked()])


def long_message():
    return ValueError("x" * 1_000_000)


UNUSUAL = [
    frozen,
    Locked,
    Speechless,
    Wordless,
    Unreadable,
    unhashable,
    cycle,
    causes_in_a_circle,
    long_chain,
    deep_group,
    doubling_group,
    wide_group,
    long_message,
    StopIteration,
    StopAsyncIteration,
    asyncio.CancelledError,
    frozen_group,
]


def state_of(error):
    return (
        BaseException.__dict__["__cause__"].__get__(error),
        BaseException.__dict__["__context__"].__get__(error),
        BaseException.__dict__["__suppress_context__"].__get__(error),
        dict(error.__dict__),
    )


def yielding():
    yield "resource"


async def yielding_async():
    yield "resource"


def around(call):
    async def called(record):
        return await call(record)

    return called


KINDS = ["async", "plain", "batch", "plain batch", "dependencies", "middleware", "timeout", "plain dependencies"]


def declare(app, kind, act):
    """Declare a handler of ``t`` that calls ``act``."""
    resources = Annotated[str, Depends(yielding)], Annotated[str, Depends(yielding_async)]
    options = {"middleware": [around]} if kind == "middleware" else {"timeout_ms": 60_000} if kind == "timeout" else {}

    async def handle(value: bytes) -> None:
        act()

    def handle_plain(value: bytes) -> None:
        act()

    async def handle_batch(values: list[bytes]) -> None:
        act()

    def handle_plain_batch(values: list[bytes]) -> None:
        act()

    async def handle_with(value: bytes, one, other) -> None:
        act()

    def handle_plain_with(value: bytes, one, other) -> None:
        act()

    for function in (handle_with, handle_plain_with):
        function.__annotations__.update(one=resources[0], other=resources[1])
    functions = {
        "plain": handle_plain,
        "batch": handle_batch,
        "plain batch": handle_plain_batch,
        "dependencies": handle_with,
        "plain dependencies": handle_plain_with,
    }
    if "batch" in kind:
        options["max_wait_ms"] = 1
    declared = app.batch_handler if "batch" in kind else app.handler
    declared("t", **options)(functions.get(kind, handle))


@pytest.mark.parametrize("make", UNUSUAL)
@pytest.mark.parametrize("kind", KINDS)
async def test_an_unusual_exception_fails_its_record_only_and_stays_as_it_was(kind, make, recorder):
    """A record whose handler raises any exception is retried and becomes a dead letter; the exception is unchanged."""
    app = App(group_id="g", dead_letter="dead", retry=Retry(attempts=2, backoff_ms=1), hooks=[recorder])
    raised, before = [], []

    def act():
        if len(raised) < 2:
            error = make()
            raised.append(error)
            before.append(state_of(error))
            raise error

    declare(app, kind, act)
    async with asyncio.timeout(60), TestApp(app, virtual_time=False) as kafka:
        await kafka.send("t", b"bad")
        await kafka.send("t", b"good")
        assert [letter.value for letter in kafka.dead_letters("t")] == [b"bad"]
        assert kafka.committed("t") == 2

    assert len(raised) == 2
    if make not in (long_chain, StopIteration):
        assert [state_of(error) for error in raised] == before
    (event,) = recorder.of(RecordDeadLettered)
    assert len(event.error) < 5_000
    if isinstance(raised[-1], Exception) and make is not StopIteration:
        expected = raised[-1]
        assert event.exception is expected or event.exception.__cause__ is expected


@pytest.mark.parametrize("make", [Rude, rude_group, GeneratorExit])
@pytest.mark.parametrize("kind", ["async", "batch", "dependencies", "middleware", "timeout"])
async def test_an_exception_that_is_no_exception_of_a_program_ends_the_app_and_is_named(kind, make, recorder):
    """A subclass of BaseException only, as libraries use for panics and exits, ends the app with its name."""
    app, raised = App(group_id="g", dead_letter="dead", hooks=[recorder]), []

    def act():
        raised.append(make())
        raise raised[-1]

    declare(app, kind, act)
    with pytest.raises(HandlerFailedError, match=f"a handler raised {type(make()).__name__}"):
        async with asyncio.timeout(30), TestApp(app, virtual_time=False) as kafka:
            await kafka.send("t", b"bad")

    assert len(raised) == 1
    assert recorder.of(AppFailed)[0].exception.__cause__ is raised[0]


async def test_a_provider_receives_and_may_replace_an_exception_that_cannot_be_changed(recorder):
    """Providers are closed with the handler's exception, and may raise another one, whose context is the first."""
    app = App(group_id="g", dead_letter="dead", retry=Retry(attempts=1), hooks=[recorder])
    seen, frozen, other = [], Frozen("handler"), Frozen("provider")

    async def outer():
        try:
            yield "outer"
        except Frozen as error:
            seen.append(error)
            raise

    def inner():
        try:
            yield "inner"
        except Frozen as error:
            seen.append(error)
            raise other from error

    async def handle(value: bytes, one, two) -> None:
        raise frozen

    handle.__annotations__.update(one=Annotated[str, Depends(outer)], two=Annotated[str, Depends(inner)])
    app.handler("t")(handle)
    async with TestApp(app) as kafka:
        await kafka.send("t", b"1")

    assert seen == [frozen, other]
    assert seen[1] is other
    assert other.__context__ is frozen
    (event,) = recorder.of(HandlerFailedPermanently)
    assert event.exception is other
    assert event.logged_exception.code == "provider"
    assert event.logged_exception.__cause__.code == "handler"


async def test_later_failures_have_no_earlier_failure_as_context():
    """An exception of a later attempt, or of a later record, does not refer to the one before."""
    app = App(group_id="g", dead_letter="dead", retry=Retry(attempts=3, backoff_ms=1))
    raised = []

    @app.handler("t")
    async def handle(value: bytes) -> None:
        raised.append(ValueError(value))
        raise raised[-1]

    async with TestApp(app) as kafka:
        await kafka.send("t", b"1")
        await kafka.send("t", b"2")

    assert len(raised) == 6
    assert [error.__context__ for error in raised] == [None] * 6


async def test_the_context_that_an_exception_had_is_kept():
    """A module's own exception with a context that is raised in each attempt keeps its context."""
    app = App(group_id="g", dead_letter="dead", retry=Retry(attempts=3, backoff_ms=1))
    error, context = ValueError("again"), KeyError("why")
    error.__context__ = context

    @app.handler("t")
    async def handle(record: Record) -> None:
        raise error

    async with TestApp(app) as kafka:
        await kafka.send("t", b"1")

    assert error.__context__ is context


@pytest.mark.parametrize("make", [frozen, Locked, Speechless, Rude])
@pytest.mark.parametrize("where", ["start", "stop", "app provider", "body"])
async def test_an_unusual_exception_of_a_hook_or_provider_is_reported(where, make):
    """The error of the app names the exception that a hook or provider raised, not an error of contextlib."""
    app, error = App(group_id="g"), make()

    def fail():
        raise error

    def provide():
        yield "resource"
        if where == "app provider":
            raise error

    @app.handler("t")
    async def handle(value: bytes, given: Annotated[str, Depends(provide, scope="app")]) -> None: ...

    handle.__annotations__["given"] = Annotated[str, Depends(provide, scope="app")]
    if where in {"start", "stop"}:
        (app.on_start if where == "start" else app.on_stop)(fail)
    with pytest.raises(BaseException) as caught:  # noqa: PT011, PT012 - any error, from the body or the end
        async with TestApp(app):
            if where == "body":
                raise error
    if where == "body":
        assert caught.value is error
    else:
        assert type(error).__name__ in str(caught.value)
        assert "Frozen" + "Instance" not in str(caught.value)


async def test_a_long_message_is_shortened_in_the_log(caplog):
    """The traceback in the log of an exception with a long message is short, and names its type."""
    app = App(group_id="long", on_failure="skip", retry=Retry(attempts=1))

    @app.handler("t")
    async def handle(_: bytes) -> None:
        raise ValueError("x" * 1_000_000)

    async with TestApp(app) as kafka:
        await kafka.send("t", b"1")

    assert "ValueError: xxx" in caplog.text
    assert "characters omitted" in caplog.text
    assert "in handle" in caplog.text
    assert len(caplog.text) < 20_000
