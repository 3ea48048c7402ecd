"""Context managers that leave the exceptions passing through them unchanged.

``contextlib`` sets ``__traceback__`` and ``__context__`` of exceptions by assignment. An exception of a user may refuse
that, as a frozen dataclass does, and its error then replaces the exception.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Generator, Iterator
from contextlib import AbstractAsyncContextManager, AbstractContextManager
from types import TracebackType
from typing import Any, Generic, ParamSpec, TypeVar, cast

__all__ = ["AsyncExitStack", "asynccontextmanager", "contextmanager"]

P = ParamSpec("P")
ValueT = TypeVar("ValueT")
ValueT_co = TypeVar("ValueT_co", covariant=True)


def contextmanager(function: Callable[P, Iterator[ValueT]]) -> Callable[P, AbstractContextManager[ValueT, bool | None]]:
    """Do the same as ``contextlib.contextmanager``, without changing exceptions."""

    @functools.wraps(function)
    def make(*args: P.args, **kwargs: P.kwargs) -> AbstractContextManager[ValueT, bool | None]:
        return _Context(cast("Generator[ValueT, None, object]", function(*args, **kwargs)))

    return make


def asynccontextmanager(
    function: Callable[P, AsyncIterator[ValueT]],
) -> Callable[P, AbstractAsyncContextManager[ValueT, bool | None]]:
    """Do the same as ``contextlib.asynccontextmanager``, without changing exceptions."""

    @functools.wraps(function)
    def make(*args: P.args, **kwargs: P.kwargs) -> AbstractAsyncContextManager[ValueT, bool | None]:
        return _AsyncContext(cast("AsyncGenerator[ValueT, None]", function(*args, **kwargs)))

    return make


class _Context(AbstractContextManager[ValueT_co, "bool | None"], Generic[ValueT_co]):
    __slots__ = ("_generator",)

    def __init__(self, generator: Generator[ValueT_co, None, object]) -> None:
        self._generator = generator

    def __enter__(self) -> ValueT_co:
        try:
            return next(self._generator)
        except StopIteration:
            raise RuntimeError("generator didn't yield") from None

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None, /
    ) -> bool:
        try:
            if error is None:
                next(self._generator)
            else:
                self._generator.throw(error)
        except StopIteration as stop:
            return error is not None and stop is not error
        except BaseException as raised:
            if error is None or not _is_same(raised, error):
                raise
            _restore_traceback(error, trace)
            return False
        try:
            raise RuntimeError("generator didn't stop" if error is None else "generator didn't stop after throw()")
        finally:
            self._generator.close()


class _AsyncContext(AbstractAsyncContextManager[ValueT_co, "bool | None"], Generic[ValueT_co]):
    __slots__ = ("_generator",)

    def __init__(self, generator: AsyncGenerator[ValueT_co, None]) -> None:
        self._generator = generator

    async def __aenter__(self) -> ValueT_co:
        try:
            return await anext(self._generator)
        except StopAsyncIteration:
            raise RuntimeError("generator didn't yield") from None

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None, /
    ) -> bool:
        try:
            if error is None:
                await anext(self._generator)
            else:
                await self._generator.athrow(error)
        except StopAsyncIteration as stop:
            return error is not None and stop is not error
        except BaseException as raised:
            if error is None or not _is_same(raised, error):
                raise
            _restore_traceback(error, trace)
            return False
        try:
            raise RuntimeError("generator didn't stop" if error is None else "generator didn't stop after athrow()")
        finally:
            await self._generator.aclose()


class AsyncExitStack(contextlib.AsyncExitStack):
    """Stack that closes as nested ``with`` statements do, without changing exceptions."""

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None, /
    ) -> bool | None:
        callbacks: Any = self._exit_callbacks  # type: ignore[attr-defined]
        return await _exit(callbacks, error) and error is not None


async def _exit(callbacks: Any, error: BaseException | None) -> bool:  # noqa: ANN401 - private type of contextlib
    """Call the callbacks, the last first; return True if one of them suppressed an exception.

    An exception that a callback raises is passed on to the others while it is handled, so that Python sets the contexts
    of further exceptions as in nested ``with`` statements.
    """
    is_suppressed = False
    while callbacks:
        is_sync, callback = callbacks.pop()
        details = (None, None, None) if error is None else (type(error), error, error.__traceback__)
        try:
            returned: Awaitable[object] | object = callback(*details)
            if (returned if is_sync else await cast("Awaitable[object]", returned)) and error is not None:
                error, is_suppressed = None, True
        except BaseException as raised:
            if await _exit(callbacks, raised):
                return True
            raise
    return is_suppressed


def _is_same(raised: BaseException, error: BaseException) -> bool:
    """Return True if a generator raised the exception that was thrown into it.

    Python raises RuntimeError in place of the iterations' own exceptions.
    """
    if raised is error:
        return True
    is_wrapped = isinstance(raised, RuntimeError) and isinstance(error, StopIteration | StopAsyncIteration)
    return is_wrapped and raised.__cause__ is error


def _restore_traceback(error: BaseException, trace: TracebackType | None) -> None:
    """Remove the entries that throwing the exception into a generator has added to its traceback."""
    # The method of the base class, because the class of the exception may override it, or refuse to set attributes.
    BaseException.with_traceback(error, trace)
