"""Results of tasks that run handlers: errors, self-cancellation, and their common end."""

from __future__ import annotations

import asyncio
from collections.abc import Collection
from typing import Any

import anyio

from tailrace.awaitables import abandon
from tailrace.errors import HandlerFailedError

__all__ = ["self_cancellation_failure", "stop_all", "task_error"]


def task_error(task: asyncio.Task[Any]) -> Exception | None:
    """Return the error that ended a task, as one that may end an app; asyncio re-raises SystemExit itself."""
    error = None if task.cancelled() else task.exception()
    if error is None or isinstance(error, Exception):
        return error
    failure = HandlerFailedError(f"a handler raised {type(error).__name__}: {error}")
    failure.__cause__ = error
    return failure


def self_cancellation_failure() -> HandlerFailedError:
    """Clear the cancellation that a handler requested of its own task, and return it as a failure of the handler."""
    task = asyncio.current_task()
    while task is not None and task.cancelling():
        task.uncancel()
    return HandlerFailedError("the handler raised CancelledError without being canceled")


async def stop_all(tasks: Collection[asyncio.Task[Any]], within_s: float) -> bool:
    """Cancel tasks and wait at most ``within_s`` for them; abandon the others, and return True if there are none.

    A canceled scope does not interrupt the wait, since it is such a scope that stops the tasks: what they depend on
    stays open until they have cleaned up.
    """
    for task in tasks:
        task.cancel()
    if tasks:
        with anyio.CancelScope(shield=True):
            _, left = await asyncio.wait(tasks, timeout=within_s)
        for task in left:
            abandon(task)
        return not left
    return True
