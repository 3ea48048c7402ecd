"""Checks of arguments that users pass: codecs, middleware, ``when=`` predicates, topics."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable
from typing import Any

from tailrace.app.function_kinds import FunctionKind, called_by, kind_of, name_of
from tailrace.errors import ConfigurationError

__all__ = ["accepts", "check_codec", "check_condition", "check_middleware", "check_text", "compiled"]


def check_codec(codec: object, where: str) -> None:
    """Check that ``codec`` can decode and encode values.

    Raises:
        ConfigurationError: a method is missing, takes other arguments, or is a coroutine function.
    """
    name, count = ("decoder", 1) if hasattr(codec, "decoder") else ("decode", 3)
    methods = {name: count, "encode": 1}
    if isinstance(codec, type) or not all(
        callable(method := getattr(codec, one, None)) and accepts(method, number) for one, number in methods.items()
    ):
        raise ConfigurationError(
            f"{where}: codec must be an object with decode(data, annotation, record) and encode(value), not {codec!r}"
            " - leave it out for JSON"
        )
    for one in methods:
        if inspect.iscoroutinefunction(getattr(codec, one)):
            raise ConfigurationError(
                f"{where}: {one} of the codec is `async def` and would not be awaited - make it a plain function"
            )


def check_middleware(middleware: object) -> None:
    """Check that ``middleware`` is a list or tuple of plain functions of one parameter.

    Raises:
        ConfigurationError: ``middleware`` is something else; the message names the first invalid function.
    """
    if not isinstance(middleware, list | tuple) or not all(map(callable, middleware)):
        raise ConfigurationError(
            f"middleware must be a list of functions, each of which wraps the handler's call, not {middleware!r}"
        )
    for function in middleware:
        where = f"middleware {name_of(function)}"
        if kind_of(function, where) is not FunctionKind.PLAIN or not accepts(function, 1):
            raise ConfigurationError(
                f"{where} must be a plain function of one parameter that returns an `async def` - write"
                " `def timed(call):` with `async def called(record): return await call(record)` inside"
            )


def check_condition(when: object) -> None:
    """Check that a ``when=`` predicate is a plain function of a record.

    Raises:
        ConfigurationError: ``when`` cannot be called with one argument, or is a coroutine function.
    """
    if not callable(when) or not accepts(when, 1) or inspect.iscoroutinefunction(called_by(when)):
        raise ConfigurationError(f"when must be a plain function of a record that returns a bool, not {when!r}")


def check_text(name: str, value: object) -> None:
    """Check that an option is a non-empty string.

    Raises:
        ConfigurationError: ``value`` is something else.
    """
    if not isinstance(value, str) or not value:
        raise ConfigurationError(f"{name} must be a non-empty string, not {value!r}")


def compiled(pattern: object) -> re.Pattern[str]:
    """Return ``pattern`` as a compiled regular expression.

    Raises:
        ConfigurationError: ``pattern`` is not a regular expression, or is a regular expression for bytes.
    """
    try:
        found: Any = re.compile(pattern) if isinstance(pattern, str) else pattern
    except re.error as error:
        raise ConfigurationError(f"pattern={pattern!r} is not a regular expression: {error}") from error
    if not isinstance(found, re.Pattern) or not isinstance(found.pattern, str):
        raise ConfigurationError(f"pattern must be a regular expression such as 'orders[.].*', not {pattern!r}")
    return found


def accepts(function: Callable[..., object], count: int) -> bool:
    """Return True unless ``function`` is known not to accept ``count`` positional arguments."""
    try:
        inspect.signature(function).bind(*[None] * count)
    except TypeError:
        return False
    except ValueError:
        return True  # some C functions have no signature
    return True
