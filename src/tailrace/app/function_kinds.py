"""Kinds of functions that a user gives: plain, async or generators, behind partials, methods and objects."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from enum import Enum
from typing import Any

from tailrace.errors import ConfigurationError

__all__ = [
    "FunctionKind",
    "called_by",
    "check_hook",
    "handler_kind",
    "kind_of",
    "name_of",
]


class FunctionKind(Enum):
    """What calling a function gives."""

    PLAIN = "a plain function"
    COROUTINE = "an async function"
    GENERATOR = "a generator"
    ASYNC_GENERATOR = "an async generator"


def name_of(function: object) -> str:
    """A function as its errors name it: ``shop.billing.charge``."""
    inner = _without_partial(function)
    named: Any = inner if hasattr(inner, "__qualname__") else type(inner)
    return ".".join(part for part in (named.__module__, named.__qualname__) if part)


def kind_of(function: Callable[..., object], where: str) -> FunctionKind:
    """What calling it gives.

    Raises:
        ConfigurationError: a plain function is wrapped around a generator, so that the kind is unknown.
    """
    called = called_by(function)
    kind, inner = _kind(called), _kind(inspect.unwrap(called))
    if kind is FunctionKind.PLAIN and inner in {FunctionKind.GENERATOR, FunctionKind.ASYNC_GENERATOR}:
        raise ConfigurationError(
            f"{where} is a plain function wrapped around {inner.value} - give the generator itself"
        )
    return kind


def handler_kind(function: object) -> FunctionKind:
    """Return whether a handler is plain or async.

    Raises:
        ConfigurationError: ``function`` cannot be called for a record: no function, or a generator.
    """
    where = f"handler {name_of(function)}"
    if not callable(function) or isinstance(function, type):
        raise ConfigurationError(f"{where} is no function - give a function, a method, or an object that can be called")
    kind = kind_of(function, where)
    if kind not in {FunctionKind.PLAIN, FunctionKind.COROUTINE}:
        raise ConfigurationError(f"{where} is {kind.value} - return what it publishes, one or a list, without `yield`")
    return kind


def check_hook(function: object, name: str) -> None:
    """Refuse a hook that cannot be called, needs arguments, or is a generator.

    Raises:
        ConfigurationError: naming the hook and what to write instead.
    """
    if not callable(function):
        raise ConfigurationError(f"{name} takes a function, not {function!r}")
    where = f"{name} hook {name_of(function)}"
    kind = kind_of(function, where)
    if kind not in {FunctionKind.PLAIN, FunctionKind.COROUTINE}:
        raise ConfigurationError(
            f"{where} is {kind.value} - write a function without `yield`; what has to be closed is opened by Depends"
        )
    try:
        inspect.signature(function).bind()
    except ValueError:
        return  # a function of C, say, which shows no signature
    except TypeError as error:
        raise ConfigurationError(f"{where} is called without arguments: {error}") from error


def _without_partial(function: object) -> object:
    while isinstance(function, functools.partial):
        function = function.func
    return function


def called_by(function: object) -> Callable[..., object]:
    """The code that a call runs: of an object, its ``__call__``."""
    inner: Any = _without_partial(function)
    called: Callable[..., object] = inner if isinstance(inner, type) or inspect.isroutine(inner) else inner.__call__
    return called


def _kind(function: Callable[..., object]) -> FunctionKind:
    if inspect.iscoroutinefunction(function):
        return FunctionKind.COROUTINE
    if inspect.isasyncgenfunction(function):
        return FunctionKind.ASYNC_GENERATOR
    return FunctionKind.GENERATOR if inspect.isgeneratorfunction(function) else FunctionKind.PLAIN
