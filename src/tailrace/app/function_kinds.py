"""Kinds of user functions: plain, async or generator. Partials, methods and callable objects are functions, too."""

from __future__ import annotations

import inspect
import types
from collections.abc import Callable
from enum import Enum
from typing import Any

from tailrace.awaitables import called_function, without_partial
from tailrace.codecs.annotations import signature_of
from tailrace.errors import ConfigurationError

__all__ = [
    "FunctionKind",
    "check_hook",
    "handler_kind",
    "identity_of",
    "kind_of",
    "name_of",
]


class FunctionKind(Enum):
    """Kind of a function, by the result of a call."""

    PLAIN = "a plain function"
    COROUTINE = "an async function"
    GENERATOR = "a generator"
    ASYNC_GENERATOR = "an async generator"


def name_of(function: object) -> str:
    """Return the name of a function for error messages, such as ``shop.billing.charge``."""
    inner = without_partial(function)
    named: Any = inner if hasattr(inner, "__qualname__") else type(inner)
    return ".".join(part for part in (named.__module__, named.__qualname__) if part)


def identity_of(function: object) -> tuple[int | str, ...]:
    """Return a key that identifies a function; equal for two accesses to the same bound method."""
    if isinstance(function, types.MethodType):
        return id(function.__self__), id(function.__func__)
    if isinstance(function, types.BuiltinMethodType) and not isinstance(function.__self__, types.ModuleType | None):
        return id(function.__self__), function.__name__
    return (id(function),)


def kind_of(function: Callable[..., object], where: str) -> FunctionKind:
    """Return the kind of ``function``; ``where`` names the function in the error message.

    Raises:
        ConfigurationError: ``function`` is a plain function that wraps a generator function, so its kind is unknown.
    """
    called = called_function(function)
    kind, inner = _kind(called), _kind(inspect.unwrap(called))
    if kind is FunctionKind.PLAIN and inner in {FunctionKind.GENERATOR, FunctionKind.ASYNC_GENERATOR}:
        raise ConfigurationError(
            f"{where} is a plain function wrapped around {inner.value} - pass the generator function itself"
        )
    return kind


def handler_kind(function: object) -> FunctionKind:
    """Return the kind of a handler: PLAIN or COROUTINE.

    Raises:
        ConfigurationError: ``function`` is not callable, is a class, or is a generator function.
    """
    where = f"handler {name_of(function)}"
    if not callable(function) or isinstance(function, type):
        raise ConfigurationError(f"{where} is not a function - pass a function, a method or a callable object")
    kind = kind_of(function, where)
    if kind not in {FunctionKind.PLAIN, FunctionKind.COROUTINE}:
        raise ConfigurationError(f"{where} is {kind.value} - return the messages to publish, without `yield`")
    return kind


def check_hook(function: object, name: str) -> None:
    """Check that a hook of the decorator ``name`` is a function without required arguments.

    Raises:
        ConfigurationError: ``function`` is not callable, requires arguments, or is a generator function.
    """
    if not callable(function):
        raise ConfigurationError(f"{name} must be called with a function, not {function!r}")
    where = f"{name} hook {name_of(function)}"
    kind = kind_of(function, where)
    if kind not in {FunctionKind.PLAIN, FunctionKind.COROUTINE}:
        raise ConfigurationError(
            f"{where} is {kind.value} - write a function without `yield`, and open resources with Depends, which closes"
            " them"
        )
    try:
        signature_of(function).bind()
    except ValueError:
        return  # Some functions written in C have no signature.
    except TypeError as error:
        raise ConfigurationError(f"{where} must be callable without arguments: {error}") from error


def _kind(function: Callable[..., object]) -> FunctionKind:
    if inspect.iscoroutinefunction(function):
        return FunctionKind.COROUTINE
    if inspect.isasyncgenfunction(function):
        return FunctionKind.ASYNC_GENERATOR
    return FunctionKind.GENERATOR if inspect.isgeneratorfunction(function) else FunctionKind.PLAIN
