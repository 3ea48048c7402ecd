"""Tasks of an executor, with the work that they run."""

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
    """Running tasks of one executor; each task starts in a copy of the context in which this object was created.

    Args:
        max_tasks: maximum number of tasks.
        on_end: called with the work of each task that has ended.

    Attributes:
        max_tasks: maximum number of tasks, which the executor enforces.
        is_ending: True once the executor ends; it starts no more work then.
        has_abandoned: True if a task was abandoned, because it still ran when the time to clean up was over.
        tasks: running tasks, each with its work.
        first_error: future that gets the error of the first task that fails.
    """

    def __init__(self, max_tasks: int, on_end: Callable[[WorkT], None]) -> None:
        self.max_tasks, self._on_end = max_tasks, on_end
        self._context = copy_context()
        self.is_ending = self.has_abandoned = False
        self._loop = asyncio.get_running_loop()
        self.tasks: dict[asyncio.Task[None], WorkT] = {}
        self.first_error: asyncio.Future[None] = self._loop.create_future()

    def __iter__(self) -> Iterator[WorkT]:
        return iter(self.tasks.values())

    def work_of(self, task: asyncio.Task[Any] | None) -> WorkT | None:
        """Return the work of ``task``; None if ``task`` does not belong to the executor. Thread-safe."""
        return self.tasks.get(task) if task is not None else None

    def start(self, make: Callable[[Context], WorkT], run: Callable[[WorkT], Coroutine[Any, Any, None]]) -> WorkT:
        """Create work with ``make``, start a task that runs it, and return it; the caller checks ``max_tasks``."""
        context = self._context.copy()
        work = make(context)
        task = self._loop.create_task(run(work), context=context)
        self.tasks[task] = work
        task.add_done_callback(self._ended)
        return work

    async def end(self, within_s: float) -> None:
        """Cancel all tasks, wait at most ``within_s`` seconds for them, and abandon tasks that still run."""
        self.is_ending = True
        self.has_abandoned = not await stop_all(list(self.tasks), within_s)
        for work in self:
            work.handler_task.is_abandoned = True

    def _ended(self, task: asyncio.Task[None]) -> None:
        work, error = self.tasks.pop(task), task_error(task)
        if error is not None and not self.first_error.done():
            self.first_error.set_exception(error)
        self._on_end(work)
