"""End of tasks that run user code: their errors, tasks that cancel themselves, and the stop of several tasks."""

from __future__ import annotations

import asyncio
from collections.abc import Collection
from typing import Any

import anyio

from tailrace.awaitables import abandon
from tailrace.errors import HandlerFailedError
from tailrace.user_exceptions import error_text

__all__ = ["self_cancellation_failure", "stop_all", "task_error"]


def task_error(task: asyncio.Task[Any]) -> Exception | None:
    """Return the error that ended a task, or None.

    A BaseException such as SystemExit becomes a HandlerFailedError. asyncio itself raises SystemExit again.
    """
    error = None if task.cancelled() else task.exception()
    if error is None or isinstance(error, Exception):
        return error
    failure = HandlerFailedError(f"a handler raised {error_text(error)}")
    failure.__cause__ = error
    return failure


def self_cancellation_failure() -> HandlerFailedError:
    """Return the failure of a handler that raised CancelledError, and clear the cancellation requests of its task."""
    task = asyncio.current_task()
    while task is not None and task.cancelling():
        task.uncancel()
    return HandlerFailedError(
        "the handler raised CancelledError without being canceled - let it return or raise another exception"
    )


async def stop_all(tasks: Collection[asyncio.Task[Any]], within_s: float) -> bool:
    """Cancel tasks, wait at most ``within_s`` seconds, and abandon tasks that still run; return True if all ended.

    The wait is shielded from the cancellation of the calling task, so that resources of the tasks stay open until the
    tasks have cleaned up.
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
