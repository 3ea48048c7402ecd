"""Checks of arguments that users pass: codecs, middleware, ``when=`` predicates, strings and patterns."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable
from typing import Any

from tailrace.app.function_kinds import FunctionKind, kind_of, name_of
from tailrace.awaitables import is_coroutine_function
from tailrace.errors import ConfigurationError

__all__ = ["accepts", "check_codec", "check_middleware", "check_text", "check_when", "compile_pattern"]


def check_codec(codec: object, where: str) -> None:
    """Check that ``codec`` has ``encode``, and ``decoder`` or ``decode``.

    Args:
        codec: object that should be a ``Codec`` or a ``RecordCodec``.
        where: beginning of the error message, such as the name of the handler.

    Raises:
        ConfigurationError: ``codec`` is a class, or one of its methods is missing, takes other arguments or is a
            coroutine function.
    """
    argument_counts = {"encode": 1, **({"decoder": 1} if hasattr(codec, "decoder") else {"decode": 3})}
    if isinstance(codec, type) or not all(
        callable(method := getattr(codec, name, None)) and accepts(method, count)
        for name, count in argument_counts.items()
    ):
        raise ConfigurationError(
            f"{where}: codec must be an object with decode(data, annotation, record) or decoder(annotation), and with"
            f" encode(value), not {codec!r} - correct it, or leave out codec= for JSON"
        )
    for name in argument_counts:
        if is_coroutine_function(getattr(codec, name)):
            raise ConfigurationError(
                f"{where}: {name} of the codec is `async def` and would not be awaited - make it a plain function"
            )


def check_middleware(middleware: object) -> None:
    """Check that ``middleware`` is a list or tuple of plain functions of one parameter.

    Raises:
        ConfigurationError: ``middleware`` is not a list or tuple of functions, or one of the functions has other
            parameters, or is a coroutine function or a generator.
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
                " `def timed(call):` with `async def called(record): return await call(record)` inside, and end it with"
                " `return called`"
            )


def check_when(when: object) -> None:
    """Check that a ``when=`` predicate is a plain function of a record.

    Raises:
        ConfigurationError: ``when`` cannot be called with one argument, or is a coroutine function.
    """
    if not callable(when) or not accepts(when, 1) or is_coroutine_function(when):
        raise ConfigurationError(f"when must be a plain function of a record that returns a bool, not {when!r}")


def check_text(name: str, value: object) -> None:
    """Check that the value of the option ``name`` is a non-empty string.

    Raises:
        ConfigurationError: ``value`` is empty or not a string.
    """
    if not isinstance(value, str) or not value:
        raise ConfigurationError(f"{name} must be a non-empty string, not {value!r}")


def compile_pattern(pattern: object) -> re.Pattern[str]:
    """Compile a regular expression; return ``pattern`` unchanged if it is compiled already.

    Raises:
        ConfigurationError: ``pattern`` is not a regular expression, or matches bytes instead of strings.
    """
    try:
        expression: Any = re.compile(pattern) if isinstance(pattern, str) else pattern
    except re.error as error:
        raise ConfigurationError(f"pattern={pattern!r} is not a valid regular expression: {error}") from error
    if not isinstance(expression, re.Pattern) or not isinstance(expression.pattern, str):
        raise ConfigurationError(f"pattern must be a regular expression such as 'orders[.].*', not {pattern!r}")
    return expression


def accepts(function: Callable[..., object], count: int) -> bool:
    """Return True unless ``function`` is known not to accept ``count`` positional arguments."""
    try:
        inspect.signature(function).bind(*[None] * count)
    except TypeError:
        return False
    except ValueError:
        return True  # Some functions written in C have no signature.
    return True
