"""Awaiting of results of user functions, which may be sync or async; a fast event; abandoning of tasks.

An object that can be awaited is not always meant to be: clients such as ``redis.asyncio.Redis`` return themselves when
they are awaited. Coroutines and futures have no other use, so they are awaited wherever a function returns them.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import functools
import inspect
from collections.abc import Coroutine
from types import GeneratorType
from typing import Any

from tailrace.errors import ConfigurationError

__all__ = [
    "AutoResetEvent",
    "abandon",
    "called_function",
    "is_coroutine",
    "is_coroutine_function",
    "must_resolve",
    "resolve_call",
    "resolve_result",
    "without_partial",
]

# ---- event -----------------------------------------------------------------------------------------------------------


class AutoResetEvent:
    """Event that ``wait`` clears before it returns. If the event is set already, ``wait`` returns immediately.

    Only one task may wait at a time.
    """

    # asyncio.Event takes three times as long to set, because any number of tasks may wait for it.
    __slots__ = ("_is_set", "_waiter")

    def __init__(self) -> None:
        self._is_set = False
        self._waiter: asyncio.Future[None] | None = None

    def set(self) -> None:
        """Set the event, and wake the waiting task."""
        self._is_set = True
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    async def wait(self, until: float | None = None) -> None:
        """Wait until the event is set or ``loop.time()`` reaches ``until`` (None: no limit), and clear the event."""
        if not self._is_set:
            self._waiter = asyncio.get_running_loop().create_future()
            try:
                if until is None:
                    await self._waiter
                else:
                    with contextlib.suppress(TimeoutError):
                        async with asyncio.timeout_at(until):
                            await self._waiter
            finally:
                self._waiter = None
        self._is_set = False


# ---- user functions and tasks ----------------------------------------------------------------------------------------


def without_partial(function: object) -> object:
    """Return the function inside of ``functools.partial`` objects."""
    while isinstance(function, functools.partial):
        function = function.func
    return function


def called_function(function: object) -> Any:  # noqa: ANN401 - any callable
    """Return the function that a call of ``function`` runs: without partials, and ``__call__`` of a callable object."""
    inner: Any = without_partial(function)
    return inner if isinstance(inner, type) or inspect.isroutine(inner) else inner.__call__


def is_coroutine_function(function: object) -> bool:
    """Return True if a call of ``function`` runs an ``async def``: a function, method, partial or ``__call__``."""
    return callable(function) and inspect.iscoroutinefunction(called_function(function))


def is_coroutine(result: object) -> bool:
    """Return True for a coroutine, also of compiled code or of ``types.coroutine``; False for other awaitables."""
    # The class is compared, because isinstance() also asks the object, and an object such as a proxy may raise then.
    kind = type(result)
    return issubclass(kind, Coroutine) or (kind is GeneratorType and inspect.isawaitable(result))


def must_resolve(result: object) -> bool:
    """Return True if ``resolve_result`` awaits or refuses the object; it returns any other object unchanged."""
    return _is_coroutine_or_future(result) or inspect.isgenerator(result) or inspect.isasyncgen(result)


async def resolve_call(returned: object, where: str) -> object:
    """Return the outcome of a call of the user's function: await what it returned, if that is awaitable.

    The outcome is resolved as by ``resolve_result``.

    Raises:
        ConfigurationError: see ``resolve_result``.
    """
    if returned is None:
        return None
    if not _is_coroutine_or_future(returned) and inspect.isawaitable(returned):
        returned = await returned
    return await resolve_result(returned, where)


async def resolve_result(result: object, where: str) -> object:
    """Await ``result`` while it is a coroutine or a future, and return the outcome, which must not be a generator.

    Args:
        result: outcome of the user's function, after its first ``await``.
        where: name of the function in error messages.

    Raises:
        ConfigurationError: the outcome is a generator, or ``result`` is a future of another event loop.
    """
    while _is_coroutine_or_future(result):
        if isinstance(result, concurrent.futures.Future):
            result = asyncio.wrap_future(result)
        if asyncio.isfuture(result) and result.get_loop() is not asyncio.get_running_loop():
            raise ConfigurationError(
                f"{where} returned {_kind(result)} of another event loop - return a coroutine, or a future of the loop"
                " that runs the app"
            )
        awaitable: Any = result
        result = await awaitable
    if inspect.isgenerator(result) or inspect.isasyncgen(result):
        raise ConfigurationError(
            f"{where} returned {_kind(result)}, whose body never ran - return a value or a list, without `yield`"
        )
    return result


def abandon(task: asyncio.Task[Any]) -> None:
    """Cancel a task that ignored an earlier cancellation, and unregister it: ``asyncio.run`` does not wait for it."""
    task.cancel()
    asyncio.tasks._unregister_task(task)


def _is_coroutine_or_future(result: object) -> bool:
    return is_coroutine(result) or asyncio.isfuture(result) or isinstance(result, concurrent.futures.Future)


def _kind(result: object) -> str:
    name = type(result).__name__
    return f"an {name}" if name[0].lower() in "aeiou" else f"a {name}"
