"""Declarations that would have no effect are refused, and handlers are found whatever refers to them."""

from __future__ import annotations

import functools
from typing import Annotated

import fastapi
import pytest

from tailrace import App, ConfigurationError, ConsumerStateError, Depends, Handlers, Key
from tailrace.testing import TestApp


def bank():
    return "bank"


class TaskiqDepends:
    """Stand-in for a marker of a framework that is not installed here."""


TaskiqDepends.__module__ = "taskiq_dependencies.dependency"


class Context:
    """Stand-in for the marker of FastStream."""


Context.__module__ = "faststream.params"


def default_of(marker):
    async def handle(value: bytes, one: str = marker) -> None: ...

    return handle


def keyword_of(marker):
    async def handle(value: bytes, *, one: str = marker) -> None: ...

    return handle


def key_of(marker):
    async def handle(value: bytes, key: str = marker) -> None: ...

    handle.__annotations__["key"] = Annotated[str, Key]
    return handle


def annotation_of(marker):
    async def handle(value: bytes, one=None) -> None: ...

    handle.__annotations__["one"] = Annotated[str, marker]
    return handle


def value_of(marker):
    async def handle(value) -> None: ...

    handle.__annotations__["value"] = Annotated[bytes, marker]
    return handle


def provider_of(marker):
    def provide(one: str = marker) -> str:
        return one

    async def handle(value: bytes, given) -> None: ...

    handle.__annotations__["given"] = Annotated[str, Depends(provide)]
    return handle


@pytest.mark.parametrize(
    "marker",
    [fastapi.Depends(bank), fastapi.Header(), fastapi.Query("x"), fastapi.Security(bank), TaskiqDepends(), Context()],
    ids=["Depends", "Header", "Query", "Security", "TaskiqDepends", "Context"],
)
@pytest.mark.parametrize("place", [default_of, keyword_of, key_of, annotation_of, value_of, provider_of])
async def test_markers_of_other_frameworks_are_refused(marker, place):
    """The start names a parameter whose marker belongs to another framework, instead of passing the marker."""
    app = App(group_id="g")
    app.handler("t")(place(marker))

    with pytest.raises(ConfigurationError, match=r"has a marker of (fastapi|taskiq_dependencies|faststream)"):
        async with TestApp(app):
            pass


DECLARATIONS = {
    "handler": lambda app: app.handler("late")(default_of(1)),
    "batch handler": lambda app: app.batch_handler("late")(default_of(1)),
    "start hook": lambda app: app.on_start(bank),
    "stop hook": lambda app: app.on_stop(bank),
    "include": lambda app: app.include(Handlers()),
    "configure": lambda app: app.configure(client_id="late"),
    "handler of an included collection": lambda app: app.outer.handler("late")(default_of(1)),
    "handler of a nested collection": lambda app: app.inner.handler("late")(default_of(1)),
    "hook of a nested collection": lambda app: app.inner.on_stop(bank),
}


@pytest.mark.parametrize("declare", DECLARATIONS.values(), ids=DECLARATIONS)
async def test_a_started_app_refuses_declarations(declare):
    """A handler or hook that is declared after the start would never be called, so the declaration raises an error."""
    app = App(group_id="g")
    app.inner, app.outer = Handlers(), Handlers()
    app.outer.include(app.inner)
    app.include(app.outer)

    @app.handler("t")
    async def handle(value: bytes) -> None: ...

    async with TestApp(app):
        with pytest.raises(ConsumerStateError, match="this app is started"):
            declare(app)
    assert len(app.declared) == 1
    assert not app.inner.declared
    assert not app.inner.stop_hooks

    declare(app)


async def test_a_start_hook_cannot_declare_handlers():
    """A start hook that declares a handler ends the start, because the handler would never be called."""
    app = App(group_id="g")

    @app.on_start
    def declare():
        app.handler("late")(default_of(1))

    with pytest.raises(Exception, match="this app is started"):
        async with TestApp(app):
            pass


async def test_handlers_that_are_declared_after_include_are_called():
    """A collection may be included first and filled later, and again by another app."""
    seen, handlers, app, other = [], Handlers(), App(group_id="g"), App(group_id="other")
    app.include(handlers)
    other.include(handlers)

    @handlers.handler("t")
    async def handle(value: bytes) -> None:
        seen.append(value)

    for one in (app, other):
        async with TestApp(one) as kafka:
            await kafka.send("t", b"1")

    assert seen == [b"1"] * 2
    with pytest.raises(ConfigurationError, match="include"):
        handlers.include(app)
    with pytest.raises(ConfigurationError, match="include"):
        handlers.include(handlers)


class Service:
    """Object whose methods are handlers."""

    def __init__(self):
        self.seen: list[bytes] = []

    async def on(self, value: bytes) -> None:
        self.seen.append(value)

    def on_plain(self, value: bytes) -> None:
        self.seen.append(value)

    @classmethod
    async def on_class(cls, value: bytes) -> None: ...

    @staticmethod
    async def on_static(value: bytes) -> None: ...

    def __eq__(self, other):
        return True

    __hash__ = None


class Callable:
    async def __call__(self, value: bytes) -> None: ...


CALLABLE = Callable()
PARTIAL = functools.partial(Service.on_static)


@pytest.mark.parametrize(
    "handler_of",
    [
        lambda service: service.on,
        lambda service: service.on_plain,
        lambda service: service.on_class,
        lambda service: service.on_static,
        lambda _service: CALLABLE,
        lambda _service: PARTIAL,
    ],
    ids=["method", "plain method", "class method", "static method", "object", "partial"],
)
async def test_a_handler_is_paused_by_whatever_refers_to_it(handler_of):
    """A bound method is a new object at each access; it pauses the handler of its object, and of no equal object."""
    service, other, app = Service(), Service(), App(group_id="g")
    app.handler("t")(handler_of(service))
    app.handler("u")(other.on)

    async with TestApp(app):
        app.pause(handler_of(service))
        assert app.is_paused(handler_of(service))
        assert not app.is_paused(other.on)
        app.resume(handler_of(service))
        assert not app.is_paused(handler_of(service))
        with pytest.raises(ConsumerStateError, match="not a running handler"):
            app.pause(Service().on)
