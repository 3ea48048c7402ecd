"""Tasks of an executor."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterator
from contextvars import Context, copy_context
from typing import Any, Generic, TypeVar

from tailrace.app.dispatch.task_results import stop_all, task_error
from tailrace.app.dispatch.work import Work

__all__ = ["Workers"]

WorkT = TypeVar("WorkT", bound=Work)


class Workers(Generic[WorkT]):
    """Tasks of one executor, each with its own context.

    Args:
        most: maximum number of tasks.
        on_end: called when a task has ended.

    Attributes:
        most: maximum number of tasks; tasks in excess end after their current record.
        is_ending: True if the executor ends: no work is started any more, and running tasks are canceled.
        has_abandoned: True if a task still runs after its cancellation; the work of such a task is never finished here.
        tasks: running tasks, each with its work.
        failed: future that has the error of the first task that ended with one.
    """

    def __init__(self, most: int, on_end: Callable[[WorkT], None]) -> None:
        self.most, self._on_end = most, on_end
        self._context = copy_context()
        self.is_ending = self.has_abandoned = False
        self._loop = asyncio.get_running_loop()
        self.tasks: dict[asyncio.Task[None], WorkT] = {}
        self.failed: asyncio.Future[None] = self._loop.create_future()

    def __iter__(self) -> Iterator[WorkT]:
        return iter(self.tasks.values())

    def of(self, task: asyncio.Task[Any] | None) -> WorkT | None:
        """Return the work of ``task``. Thread-safe."""
        return self.tasks.get(task) if task is not None else None

    def start(self, make: Callable[[Context], WorkT], run: Callable[[WorkT], Coroutine[Any, Any, None]]) -> WorkT:
        """Start a task; the caller checks that there is room."""
        context = self._context.copy()
        work = make(context)
        task = self._loop.create_task(run(work), context=context)
        self.tasks[task] = work
        task.add_done_callback(self._ended)
        return work

    async def end(self, within_s: float) -> None:
        """Cancel all tasks, and wait at most ``within_s`` until they have ended."""
        self.is_ending = True
        self.has_abandoned = not await stop_all(list(self.tasks), within_s)
        for work in self:
            work.publishing.is_abandoned = True

    def _ended(self, task: asyncio.Task[None]) -> None:
        work, error = self.tasks.pop(task), task_error(task)
        if error is not None and not self.failed.done():
            self.failed.set_exception(error)
        self._on_end(work)
