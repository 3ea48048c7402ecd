"""The workers of one line: tasks that are woken one by one, rest when there is nothing to do, and end together.

Rule of this file: how many there are, and when one ends. What a worker does is ``app.dispatch.record_executor``'s.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from contextvars import copy_context
from typing import Any

from tailrace.app.dispatch.record_run import Worker
from tailrace.app.dispatch.task_results import ended_by, stop_all

__all__ = ["Workers"]


class Workers:
    """Those of one line.

    Args:
        most: how many there may be.
        run: what one does that was woken, until it finds nothing to do.
        has_more: whether there is something to do.

    Attributes:
        most: how many there may be; those beyond it end when they are through.
        is_ending: whether no record is begun any more, and those that run are cut short.
        has_abandoned: whether one went on after that; its record is not finished here any more.
        failed: done when one of them has ended by an error.
    """

    def __init__(self, most: int, run: Callable[[Worker], Awaitable[None]], has_more: Callable[[], int]) -> None:
        self.most, self._run, self._has_more = most, run, has_more
        self._context = copy_context()
        self.is_ending = self.has_abandoned = False
        self._loop = asyncio.get_running_loop()
        self._of: dict[asyncio.Task[None], Worker] = {}
        self._idle: list[Worker] = []
        self.failed: asyncio.Future[None] = self._loop.create_future()

    def __iter__(self) -> Iterator[Worker]:
        return iter(self._of.values())

    @property
    def are_too_many(self) -> bool:
        """Whether those that are through have to end."""
        return len(self._of) > self.most

    @property
    def at_work(self) -> int:
        """How many do not rest."""
        return len(self._of) - len(self._idle)

    def of(self, task: asyncio.Task[Any] | None) -> Worker | None:
        """The one that is ``task``. Any thread may ask."""
        return self._of.get(task) if task is not None else None

    def wake_one(self) -> None:
        """Have one more look for something to do, if there is one that rests or room for a new one."""
        if self.is_ending:
            return
        if self._idle:
            rested = self._idle.pop().rested
            if rested is not None and not rested.done():
                rested.set_result(None)
        elif len(self._of) < self.most:
            context = self._context.copy()
            worker = Worker(context)
            task = self._loop.create_task(self._live(worker), context=context)
            self._of[task] = worker
            task.add_done_callback(self._ended)

    async def end(self, within_s: float) -> None:
        """Cut short what runs, and wait until all have ended, for so long at most."""
        self.is_ending = True
        self.has_abandoned = not await stop_all(list(self._of), within_s)
        for worker in self:
            worker.publishing.is_abandoned = True

    async def _live(self, worker: Worker) -> None:
        while True:
            await self._run(worker)
            # A handler has changed the context: the next record begins in a new task.
            if self.is_ending or copy_context() != worker.context or self.are_too_many:
                return
            worker.rested = self._loop.create_future()
            self._idle.append(worker)
            await worker.rested

    def _ended(self, task: asyncio.Task[None]) -> None:
        del self._of[task]
        error = ended_by(task)
        if error is not None and not self.failed.done():
            self.failed.set_exception(error)
        elif self._has_more() and not self.failed.done():
            self.wake_one()
