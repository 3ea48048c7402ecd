"""Task in which all coroutines of a consumer run.

Different tasks may call ``start`` and ``stop``, as in a web framework's lifespan, but a task group must be exited by
the task that entered it. The task group therefore runs in a separate task, which the supervisor owns. Canceling another
task does not end the supervisor's task half-way, and ``stop`` waits until the supervisor's task has ended.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable

import anyio

from tailrace.awaitables import abandon
from tailrace.errors import ConsumerStateError, TailraceError
from tailrace.user_exceptions import error_text, first_error

__all__ = ["Supervisor", "as_tailrace_error"]

_ENDING_S = 5.0
"""Time in seconds that a canceled body has to end, before it is abandoned."""
_CANCELLATIONS = 2
"""Number of cancellations: the first ends the work, the second ends a clean-up that hangs."""


class Supervisor:
    """Runs ``body`` until it ends, or until ``stop``.

    Args:
        body: coroutine function to run. The body sets ``ready`` once it has started, and ends soon after ``stopping``
            is set.
        name: name of the task.

    Attributes:
        ready: set by the body once it has started.
        stopping: set when the body should end.
    """

    def __init__(self, body: Callable[[Supervisor], Awaitable[None]], name: str) -> None:
        self.ready: asyncio.Event = asyncio.Event()
        self.stopping: asyncio.Event = asyncio.Event()
        self._body, self._name = body, name
        self._task: asyncio.Task[None] | None = None

    async def start(self, give_up: asyncio.Event | None = None, *, ending_s: float = _ENDING_S) -> None:
        """Start the body and wait until it is ready.

        Args:
            give_up: event that ends the wait. The body keeps running, and the caller must stop it.
            ending_s: time in seconds that the body has to end, if this call is canceled.

        Raises:
            ConsumerStateError: the body was stopped before it was ready.
            Exception: the body raised before it was ready.
        """
        self._task = asyncio.create_task(self._run(), name=self._name)
        waiting = [asyncio.ensure_future(event.wait()) for event in (self.ready, give_up) if event is not None]
        try:
            await asyncio.wait({self._task, *waiting}, return_when=asyncio.FIRST_COMPLETED)
        except asyncio.CancelledError as cancelled:
            if not await self._cancel(ending_s):
                cancelled.add_note(self._still_running(ending_s))
            raise
        finally:
            for one in waiting:
                one.cancel()
                with contextlib.suppress(asyncio.CancelledError):
                    await one
        if self._task.cancelled():
            raise ConsumerStateError(f"{self._name} was stopped before it had started")
        if self._task.done():
            self._task.result()

    @property
    def loop(self) -> asyncio.AbstractEventLoop | None:
        """Event loop in which the body runs; None before the start and once the body has ended."""
        return None if self._task is None or self._task.done() else self._task.get_loop()

    def check_loop(self, what: str) -> None:
        """Check that the running event loop, if there is one, is the one in which the body was started.

        Raises:
            ConsumerStateError: it is another one; ``what`` names the user's object.
        """
        if self._task is None:
            return
        try:
            loop = asyncio.get_running_loop()
        except RuntimeError:
            return
        if loop is not self._task.get_loop():
            raise ConsumerStateError(
                f"{what} was started in another event loop - use it in one asyncio.run() only, or create one for each"
                " event loop"
            )

    @property
    def is_over(self) -> bool:
        return self._task is not None and self._task.done()

    async def stop(self, timeout_s: float, *, ending_s: float = _ENDING_S) -> None:
        """Ask the body to end, and cancel it after ``timeout_s`` seconds, or when the calling task is canceled.

        Canceling a surrounding anyio scope or task group does not cancel the body.

        Raises:
            TailraceError: the body still runs ``ending_s`` seconds after its cancellation, and is abandoned.
        """
        self.stopping.set()
        if self._task is None:
            return
        with anyio.CancelScope(shield=True):
            try:
                await asyncio.wait({self._task}, timeout=timeout_s)
            except asyncio.CancelledError as cancelled:
                if not await self._cancel(ending_s):
                    cancelled.add_note(self._still_running(ending_s))
                raise
            if not await self._cancel(ending_s):
                raise TailraceError(self._still_running(ending_s))

    async def _run(self) -> None:
        await self._body(self)

    async def _cancel(self, within_s: float) -> bool:
        """Cancel the body, twice if necessary, and return True; if it still runs, abandon it and return False."""
        assert self._task is not None
        for _ in range(_CANCELLATIONS):
            self._task.cancel()
            await asyncio.wait({self._task}, timeout=within_s / _CANCELLATIONS)
        if not self._task.done():
            abandon(self._task)
            return False
        if not self._task.cancelled():
            # Mark the error as retrieved: the body has reported it.
            self._task.exception()
        return True

    def _still_running(self, within_s: float) -> str:
        return f"{self._name} has not ended {within_s:g} s after it was canceled, and is abandoned"


def as_tailrace_error(error: BaseException, text: str = "a defect in tailrace: {} - please report it") -> TailraceError:
    """Return ``error``, or the first error of an exception group.

    An error of another class becomes the cause of a TailraceError, whose message is ``text`` with the error in place of
    the braces.
    """
    error = first_error(error)
    if isinstance(error, TailraceError):
        return error
    wrapped = TailraceError(text.format(error_text(error)))
    wrapped.__cause__ = error
    return wrapped
