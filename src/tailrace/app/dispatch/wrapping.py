"""Middleware around the call of a handler."""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Sequence
from contextvars import ContextVar
from types import CoroutineType
from typing import Any, TypeVar, cast

from tailrace.app.function_kinds import name_of
from tailrace.awaitables import resolve_result
from tailrace.errors import ConfigurationError

__all__ = ["wrapped_by"]

WorkT = TypeVar("WorkT")


_calls: ContextVar[list[CoroutineType[Any, Any, object] | None] | None] = ContextVar("tailrace_calls", default=None)
"""Coroutines that the current call of a middleware has created by ``call(record)``; None follows once it has ended."""


def wrapped_by(
    call: Callable[[WorkT], Coroutine[Any, Any, object]],
    middleware: Sequence[Callable[[Callable[[WorkT], Awaitable[object]]], Callable[[WorkT], Awaitable[object]]]],
) -> Callable[[WorkT], Coroutine[Any, Any, object]]:
    """Return ``call`` wrapped in ``middleware``; the first function of ``middleware`` is the outermost.

    Raises:
        ConfigurationError: a middleware does not return a function.
    """
    for wrap in reversed(middleware):
        where = f"middleware {name_of(wrap)}"
        wrapped = _wrapped(wrap, _recording(call))
        if not callable(wrapped):
            if inspect.iscoroutine(wrapped):
                wrapped.close()
            raise ConfigurationError(
                f"{where} returned {wrapped!r} - write a plain function of one parameter `call`, which returns"
                " an `async def` of one parameter `record`, which awaits `call(record)`"
            )
        call = _checked(wrapped, where)
    return call


def _wrapped(wrap: Callable[..., Any], call: object) -> Any:  # noqa: ANN401 - the user's function may return anything
    return wrap(call)


def _recording(call: Callable[[WorkT], Coroutine[Any, Any, object]]) -> Callable[[WorkT], Coroutine[Any, Any, object]]:
    def recording(work: WorkT) -> Coroutine[Any, Any, object]:
        awaitable, calls = call(work), _calls.get()
        # In a long-lived task of a middleware, the context may still hold the list of an earlier call, which ends with
        # None.
        if calls is not None and None not in calls:
            calls.append(cast("CoroutineType[Any, Any, object]", awaitable))
        return awaitable

    return recording


def _checked(call: Callable[[WorkT], Awaitable[object]], where: str) -> Callable[[WorkT], Coroutine[Any, Any, object]]:
    """Return ``call`` with a check: it raises if the middleware returns before its ``call(record)`` has ended.

    A plain function that returns ``call(record)`` without ``await`` passes, because its result is awaited here.
    """

    async def checked_call(work: WorkT) -> object:
        calls: list[CoroutineType[Any, Any, object] | None] = []
        token = _calls.set(calls)
        try:
            result: object = call(work)
            # Comparing the type first is cheaper.
            if type(result) is not CoroutineType and not inspect.isawaitable(result):
                _close(calls)
                raise ConfigurationError(
                    f"{where}: its function returned {result!r}, which is not awaitable - write it as `async def`, with"
                    " `return await call(record)`"
                )
            returned = await cast("Awaitable[object]", result)
            if returned is not None:
                returned = await resolve_result(returned, where)
            for inner in calls:
                if inner is not None and inner.cr_frame is not None:
                    raise _unawaited(calls, where)
        finally:
            _calls.reset(token)
            calls.append(None)
        return returned

    return checked_call


def _unawaited(calls: Iterable[CoroutineType[Any, Any, object] | None], where: str) -> ConfigurationError:
    _close(calls)
    return ConfigurationError(f"{where} returned before its call(record) had ended - write `return await call(record)`")


def _close(calls: Iterable[CoroutineType[Any, Any, object] | None]) -> None:
    """Close coroutines that have not started, so that they cannot run later, while the record is tried again."""
    for inner in calls:
        if inner is not None and inspect.getcoroutinestate(inner) == inspect.CORO_CREATED:
            inner.close()
