"""``timeout_ms``: deadline of one call of a handler."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import TypeVar

from tailrace.awaitables import settled
from tailrace.observe.events import HandlerOverdue
from tailrace.observe.hooks import Observer
from tailrace.records import Record

__all__ = ["Overdue", "with_deadline"]

WorkT = TypeVar("WorkT", bound=Record | list[Record])

_GRACE_S = 1.0
"""Seconds that a canceled handler has to clean up before its call counts as overdue."""


class Overdue:
    """Calls of one handler that still run after ``timeout_ms``.

    Attributes:
        count: number of calls that still run.
    """

    def __init__(self, handler: str, observer: Observer) -> None:
        self._handler, self._observer = handler, observer
        self.count = 0

    def start(self, first: Record, timeout_s: float) -> None:
        """Count a call as overdue, and emit an event."""
        self.count += 1
        self._observer.emit(HandlerOverdue(self._handler, first.topic_partition, first.offset, timeout_s))

    def end(self) -> None:
        """Count an overdue call as ended."""
        self.count -= 1


class _Deadline:
    """Variant of ``asyncio.timeout`` for handlers that may swallow their cancellation or run in a thread."""

    def __init__(self, seconds: float, overdue: Overdue, first: Record, *, may_cancel: bool) -> None:
        self._seconds, self._overdue, self._first, self._may_cancel = seconds, overdue, first, may_cancel
        self._has_expired = self._is_overdue = False

    async def __aenter__(self) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._task, self._cancelling, self._loop = task, task.cancelling(), asyncio.get_running_loop()
        self._began_at = self._loop.time()
        self._timer = self._loop.call_later(self._seconds, self._expire)

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, _trace: object) -> None:
        self._timer.cancel()
        if self._is_overdue:
            self._overdue.end()
        took_s = self._loop.time() - self._began_at
        if not self._may_cancel:
            if error is None and took_s > self._seconds:
                raise TimeoutError(
                    f"the handler took {took_s:.1f} s, longer than timeout_ms={self._seconds * 1000:.0f}, and a thread"
                    " cannot be canceled"
                )
        elif self._has_expired:
            is_ours = self._task.uncancel() <= self._cancelling
            if kind is None:
                raise TimeoutError(
                    f"the handler took {took_s:.1f} s, longer than timeout_ms={self._seconds * 1000:.0f}, and swallowed"
                    " its cancellation"
                )
            if is_ours and issubclass(kind, asyncio.CancelledError):
                raise TimeoutError from error

    def _expire(self) -> None:
        self._has_expired = True
        if self._may_cancel:
            self._task.cancel()
        self._timer = self._loop.call_later(_GRACE_S, self._report_overdue)

    def _report_overdue(self) -> None:
        self._is_overdue = True
        self._overdue.start(self._first, self._seconds)


def with_deadline(
    call: Callable[[WorkT], Awaitable[object]], seconds: float, where: str, overdue: Overdue, *, is_async: bool
) -> Callable[[WorkT], Awaitable[object]]:
    """Return ``call`` with a deadline, after which it raises TimeoutError.

    An async handler is canceled at its deadline, and has failed even if it returns a result. A plain handler fails only
    when it returns, because its thread cannot be stopped and no other attempt may run concurrently. ``overdue`` counts
    calls that still run after the deadline.
    """

    async def within(work: WorkT) -> object:
        async with _Deadline(seconds, overdue, _first(work), may_cancel=is_async):
            returned = await call(work)
            return returned if returned is None else await settled(returned, where)

    return within


def _first(work: Record | Sequence[Record]) -> Record:
    return work if isinstance(work, Record) else work[0]
