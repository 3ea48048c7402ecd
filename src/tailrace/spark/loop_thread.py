"""Event loop in a daemon thread, for synchronous callers in the driver and in Spark's Python workers.

If an asyncio task ends the loop, for example by ``sys.exit()``, callers get an error instead of waiting forever.
"""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import threading
from collections.abc import Coroutine
from concurrent.futures import CancelledError, wait
from typing import Any, TypeVar

from tailrace.errors import TailraceError

__all__ = ["LoopThread"]

ResultT = TypeVar("ResultT")

_JOIN_TIMEOUT_S = 5.0
_POLL_INTERVAL_S = 0.2
"""Interval at which a waiting caller checks that the loop still runs."""


class LoopThread:
    """Event loop that runs coroutines for synchronous callers until it is closed.

    The loop also runs between calls, so that background tasks and connections continue.

    Attributes:
        loop: event loop.
        ended_by: SystemExit or KeyboardInterrupt that an asyncio task raised, which ended the loop; None otherwise.
    """

    def __init__(self, name: str) -> None:
        self.loop = asyncio.new_event_loop()
        self.ended_by: BaseException | None = None
        self._closing = asyncio.Event()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def call(self, coroutine: Coroutine[Any, Any, ResultT]) -> ResultT:
        """Run a coroutine in the loop and return its result; cancel the coroutine if the caller is interrupted.

        There is no timeout: the coroutine must limit its own waits.

        Raises:
            TailraceError: the loop has ended; the message names the cause.
        """
        if not self._is_running():
            coroutine.close()
            raise self._ended_error()
        future = asyncio.run_coroutine_threadsafe(coroutine, self.loop)
        try:
            while self._is_running() and not wait((future,), _POLL_INTERVAL_S).done:
                pass
            return future.result(0)
        except BaseException as error:
            # At its end, the loop cancels its tasks, and does not start a coroutine that was submitted just before.
            if not self._is_running() and isinstance(error, CancelledError | SystemExit | TimeoutError):
                # Let the tasks of the loop clean up before the caller continues.
                self._thread.join(_JOIN_TIMEOUT_S)
                if not self._thread.is_alive():
                    coroutine.close()
                raise self._ended_error() from self.ended_by
            future.cancel()
            raise

    def close(self) -> None:
        """Cancel all tasks of the loop, and wait up to five seconds until they and the loop have ended."""
        if self._thread.is_alive():
            with contextlib.suppress(RuntimeError):  # the loop was closed in the meantime
                self.loop.call_soon_threadsafe(self._closing.set)
            self._thread.join(_JOIN_TIMEOUT_S)

    # ---- inside ------------------------------------------------------------------------------------------------

    def _run(self) -> None:
        with asyncio.Runner(loop_factory=lambda: self.loop):
            self._run_until_ended(self._closing.wait())
            canceled: set[asyncio.Task[Any]] = set()
            # Cancel each task once, because a second cancellation would interrupt its cleanup. Do not cancel a task
            # before its first step: anyio wraps the coroutine of a task in another coroutine, which would then end
            # without awaiting the wrapped one.
            while running := asyncio.all_tasks(self.loop):
                started = {task for task in running if not _is_unstarted(task)}
                for task in started - canceled:
                    task.cancel()
                canceled |= started
                self._run_until_ended(asyncio.wait(running) if started == running else asyncio.sleep(0))

    def _run_until_ended(self, coroutine: Coroutine[Any, Any, object]) -> None:
        """Run the loop until the coroutine returns or a task raises SystemExit or KeyboardInterrupt."""
        try:
            self.loop.run_until_complete(coroutine)
        except (SystemExit, KeyboardInterrupt) as error:
            self.ended_by = self.ended_by or error

    def _is_running(self) -> bool:
        return self.ended_by is None and self._thread.is_alive()

    def _ended_error(self) -> TailraceError:
        cause = "" if self.ended_by is None else f" by {type(self.ended_by).__name__}: {self.ended_by}"
        return TailraceError(f"the event loop of thread {self._thread.name!r} was ended{cause}")


def _is_unstarted(task: asyncio.Task[Any]) -> bool:
    coroutine = task.get_coro()
    return inspect.iscoroutine(coroutine) and inspect.getcoroutinestate(coroutine) == inspect.CORO_CREATED
