"""Deadline of each call of a handler with ``timeout_ms``."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import TypeVar

from tailrace.awaitables import resolve_result
from tailrace.observe.events import HandlerOverdue
from tailrace.observe.hooks import Observer
from tailrace.records import Record

__all__ = ["OverdueCalls", "timeout_error", "with_deadline"]

WorkT = TypeVar("WorkT", bound=Record | list[Record])

_GRACE_S = 1.0
"""Seconds that a canceled handler has to clean up before its call counts as overdue."""


def timeout_error(seconds: float) -> TimeoutError:
    """Return the error of a call that was canceled after ``seconds``."""
    return TimeoutError(f"the handler took longer than timeout_ms={seconds * 1000:.0f}")


class OverdueCalls:
    """Counter of one handler's overdue calls, which still run after ``timeout_ms`` and the time to clean up.

    Attributes:
        count: number of overdue calls.
    """

    def __init__(self, handler: str, observer: Observer) -> None:
        self._handler, self._observer = handler, observer
        self.count = 0

    def start(self, first: Record, timeout_s: float) -> None:
        """Count a call as overdue, and emit HandlerOverdue for its first record."""
        self.count += 1
        self._observer.emit(HandlerOverdue(self._handler, first.topic_partition, first.offset, timeout_s))

    def end(self) -> None:
        """Count an overdue call as ended."""
        self.count -= 1


class _Deadline:
    """Variant of ``asyncio.timeout`` for handlers that may swallow their cancellation or run in a thread."""

    def __init__(self, seconds: float, overdue_calls: OverdueCalls, first: Record, *, may_cancel: bool) -> None:
        self._seconds, self._overdue_calls = seconds, overdue_calls
        self._first, self._may_cancel = first, may_cancel
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
            self._overdue_calls.end()
        took_s = self._loop.time() - self._began_at
        if not self._may_cancel:
            if error is None and took_s > self._seconds:
                raise TimeoutError(
                    f"the handler took {took_s:.1f} s, longer than timeout_ms={self._seconds * 1000:.0f}, and a thread"
                    " cannot be canceled"
                )
        elif self._has_expired:
            is_only_cancellation = self._task.uncancel() <= self._cancelling
            if kind is None:
                raise TimeoutError(
                    f"the handler took {took_s:.1f} s, longer than timeout_ms={self._seconds * 1000:.0f}, and swallowed"
                    " its cancellation"
                )
            if is_only_cancellation and issubclass(kind, asyncio.CancelledError):
                raise timeout_error(self._seconds) from error

    def _expire(self) -> None:
        self._has_expired = True
        if self._may_cancel:
            self._task.cancel()
        self._timer = self._loop.call_later(_GRACE_S, self._report_overdue)

    def _report_overdue(self) -> None:
        self._is_overdue = True
        self._overdue_calls.start(self._first, self._seconds)


def with_deadline(
    call: Callable[[WorkT], Awaitable[object]],
    seconds: float,
    where: str,
    overdue_calls: OverdueCalls,
    *,
    is_async: bool,
) -> Callable[[WorkT], Awaitable[object]]:
    """Return a call that raises TimeoutError if ``call`` takes longer than ``seconds``.

    An async handler is canceled at its deadline, and fails even if it returns a result after that. A plain handler
    fails only when it returns, because its thread cannot be stopped, and the next attempt must not run concurrently.
    ``overdue_calls`` counts calls that still run one second after the deadline.
    """

    async def within(work: WorkT) -> object:
        async with _Deadline(seconds, overdue_calls, _first_record(work), may_cancel=is_async):
            returned = await call(work)
            return returned if returned is None else await resolve_result(returned, where)

    return within


def _first_record(work: Record | Sequence[Record]) -> Record:
    return work if isinstance(work, Record) else work[0]
