"""Middleware around the call of a handler."""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Sequence
from contextvars import ContextVar
from types import CoroutineType
from typing import Any, TypeVar, cast

from tailrace.app.function_kinds import name_of
from tailrace.awaitables import settled
from tailrace.errors import ConfigurationError

__all__ = ["wrapped_by"]

WorkT = TypeVar("WorkT")


_calls: ContextVar[list[CoroutineType[Any, Any, object] | None] | None] = ContextVar("tailrace_calls", default=None)
"""Calls of ``call(record)`` by the run of a middleware in this context; the last one is None when that has ended."""


def wrapped_by(
    call: Callable[[WorkT], Coroutine[Any, Any, object]],
    middleware: Sequence[Callable[[Callable[[WorkT], Awaitable[object]]], Callable[[WorkT], Awaitable[object]]]],
) -> Callable[[WorkT], Coroutine[Any, Any, object]]:
    """Return ``call`` within ``middleware``, the outermost first.

    Raises:
        ConfigurationError: one of them returns no function.
    """
    for around in reversed(middleware):
        where = f"middleware {name_of(around)}"
        wrapped = _wrapped(around, _noted(call))
        if not callable(wrapped):
            if inspect.iscoroutine(wrapped):
                wrapped.close()
            raise ConfigurationError(
                f"{where} returned {wrapped!r} - a middleware is a plain function that is given call and returns an"
                " `async def` of one parameter, which awaits call(record)"
            )
        call = _checked(wrapped, where)
    return call


def _wrapped(around: Callable[..., Any], call: object) -> Any:  # noqa: ANN401 - whatever the user's function returns
    return around(call)


def _noted(call: Callable[[WorkT], Coroutine[Any, Any, object]]) -> Callable[[WorkT], Coroutine[Any, Any, object]]:
    def noted(work: WorkT) -> Coroutine[Any, Any, object]:
        coming, calls = call(work), _calls.get()
        # A task that a middleware keeps for later records has the list of the first one in its context.
        if calls is not None and None not in calls:
            calls.append(cast("CoroutineType[Any, Any, object]", coming))
        return coming

    return noted


def _checked(call: Callable[[WorkT], Awaitable[object]], where: str) -> Callable[[WorkT], Coroutine[Any, Any, object]]:
    """Return ``call`` with its awaitable results awaited; it fails if it returns before its inner calls have ended."""

    async def called(work: WorkT) -> object:
        calls: list[CoroutineType[Any, Any, object] | None] = []
        token = _calls.set(calls)
        try:
            coming: object = call(work)
            # The first check is the cheaper one.
            if type(coming) is not CoroutineType and not inspect.isawaitable(coming):
                _close(calls)
                raise ConfigurationError(
                    f"{where}: its function returned {coming!r}, and not an awaitable - write it as `async def`, and"
                    " return `await call(record)`"
                )
            returned = await cast("Awaitable[object]", coming)
            if returned is not None:
                returned = await settled(returned, where)
            for one in calls:
                if one is not None and one.cr_frame is not None:
                    raise _unawaited(calls, where)
        finally:
            _calls.reset(token)
            calls.append(None)
        return returned

    return called


def _unawaited(calls: Iterable[CoroutineType[Any, Any, object] | None], where: str) -> ConfigurationError:
    _close(calls)
    return ConfigurationError(f"{where} returned before its call(record) had ended - write `return await call(record)`")


def _close(calls: Iterable[CoroutineType[Any, Any, object] | None]) -> None:
    """Close coroutines that have not started: one that a task is about to run would run beside the next attempt."""
    for one in calls:
        if one is not None and inspect.getcoroutinestate(one) == inspect.CORO_CREATED:
            one.close()
