"""Helpers for awaiting the results of user functions, which may be sync or async, and for abandoning tasks."""

from __future__ import annotations

import asyncio
import concurrent.futures
import inspect
from typing import Any

from tailrace.errors import ConfigurationError

__all__ = ["abandon", "resolve_awaitables", "resolve_result"]


async def resolve_awaitables(result: object, where: str) -> object:
    """Await ``result`` until the outcome is not awaitable, and return the outcome.

    Args:
        result: return value of the user's function.
        where: name of the function in error messages.

    Raises:
        ConfigurationError: ``result`` is a future of another event loop.
    """
    while True:
        if isinstance(result, concurrent.futures.Future):
            result = asyncio.wrap_future(result)
        if not inspect.isawaitable(result):
            return result
        if asyncio.isfuture(result) and result.get_loop() is not asyncio.get_running_loop():
            raise ConfigurationError(
                f"{where} returned {_kind(result)} of another event loop - return a coroutine, or a future of the loop"
                " that runs the app"
            )
        result = await result


async def resolve_result(result: object, where: str) -> object:
    """Await ``result`` as ``resolve_awaitables`` does, and return the outcome, which must not be a generator.

    Raises:
        ConfigurationError: the outcome is a generator, or ``result`` is a future of another event loop.
    """
    result = await resolve_awaitables(result, where)
    if inspect.isgenerator(result) or inspect.isasyncgen(result):
        raise ConfigurationError(
            f"{where} returned {_kind(result)}, whose body never ran - return a value or a list, without `yield`"
        )
    return result


def abandon(task: asyncio.Task[Any]) -> None:
    """Cancel a task that ignored an earlier cancellation, and unregister it: ``asyncio.run`` does not wait for it."""
    task.cancel()
    asyncio.tasks._unregister_task(task)  # noqa: SLF001 - documented in Python's "Extending asyncio"


def _kind(result: object) -> str:
    name = type(result).__name__
    return f"an {name}" if name[0].lower() in "aeiou" else f"a {name}"
