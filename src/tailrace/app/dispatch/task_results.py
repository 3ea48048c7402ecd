"""How the tasks end in which handlers run: by themselves, by what they raise, or all together.

Rule of this file: a handler may do to its task what it likes, and whoever owns that task goes on.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection
from typing import Any

import anyio

from tailrace.awaitables import abandon
from tailrace.errors import HandlerFailedError

__all__ = ["ended_by", "no_end", "stop_all"]


def ended_by(task: asyncio.Task[Any]) -> Exception | None:
    """What a task has raised, as an error that may end an app; asyncio has let SystemExit through already."""
    error = None if task.cancelled() else task.exception()
    if error is None or isinstance(error, Exception):
        return error
    failure = HandlerFailedError(f"a handler raised {type(error).__name__}: {error}")
    failure.__cause__ = error
    return failure


def no_end() -> HandlerFailedError:
    """That a handler has cancelled its own task, or let out what it had cancelled: its failure, and not our end."""
    task = asyncio.current_task()
    while task is not None and task.cancelling():
        task.uncancel()
    return HandlerFailedError("the handler raised CancelledError without being canceled")


async def stop_all(tasks: Collection[asyncio.Task[Any]], within_s: float) -> bool:
    """Cancel tasks and wait until they have ended, for so long at most; return True if all have.

    A task that goes on is abandoned.

    A cancelled scope around it does not cut that short, since it is such a scope that has them stopped: what they
    stand on is there until they have cleaned up.
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
