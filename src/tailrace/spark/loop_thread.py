"""An event loop in a thread of its own, for code that has none: a driver's calls, and Spark's Python workers.

Rule of this file: the thread is a daemon, so that a process may end without a word, as Spark's workers do. What ends
the loop is told to whoever calls: nobody waits for a loop that turns no more.
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

_ENDING_S = 5.0
_LOOK_S = 0.2
"""So often a caller looks whether the loop still turns."""


class LoopThread:
    """Runs coroutines until it is closed.

    It turns between two calls, too: connections are kept, and what has to be done in the background is done.

    Attributes:
        ended_by: what ended the loop instead of ``close``: a task has called ``sys.exit()``, or was interrupted.
    """

    def __init__(self, name: str) -> None:
        self.loop = asyncio.new_event_loop()
        self.ended_by: BaseException | None = None
        self._closing = asyncio.Event()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def call(self, coroutine: Coroutine[Any, Any, ResultT]) -> ResultT:
        """What the coroutine returns, or raises; it is cancelled when the caller is interrupted.

        How long that may take is the coroutine's to bound.

        Raises:
            TailraceError: the loop has ended, and what ended it.
        """
        if not self._turns():
            coroutine.close()
            raise self._over()
        future = asyncio.run_coroutine_threadsafe(coroutine, self.loop)
        try:
            while self._turns() and not wait((future,), _LOOK_S).done:
                pass
            return future.result(0)
        except BaseException as error:
            # A loop that ends cancels what is left in it, and does not look at what came last.
            if not self._turns() and isinstance(error, CancelledError | SystemExit | TimeoutError):
                # What was open in the loop is closed when the caller goes on.
                self._thread.join(_ENDING_S)
                if not self._thread.is_alive():
                    coroutine.close()
                raise self._over() from self.ended_by
            future.cancel()
            raise

    def close(self) -> None:
        """Cancel whatever still runs in the loop, and end it when that has ended."""
        if self._thread.is_alive():
            with contextlib.suppress(RuntimeError):  # it has just closed by itself
                self.loop.call_soon_threadsafe(self._closing.set)
            self._thread.join(_ENDING_S)

    # ---- inside ------------------------------------------------------------------------------------------------

    def _run(self) -> None:
        with asyncio.Runner(loop_factory=lambda: self.loop):
            self._run_until_ended(self._closing.wait())
            canceled: set[asyncio.Task[Any]] = set()
            # Once each: a second cancellation would cut short how a task ends. And not before its first step: anyio
            # wraps a coroutine in another one, which would end without awaiting it.
            while running := asyncio.all_tasks(self.loop):
                started = {task for task in running if not _is_new(task)}
                for task in started - canceled:
                    task.cancel()
                canceled |= started
                self._run_until_ended(asyncio.wait(running) if started == running else asyncio.sleep(0))

    def _run_until_ended(self, coroutine: Coroutine[Any, Any, object]) -> None:
        """Run the loop until the coroutine returns, or one more task ends the loop by ``sys.exit()``."""
        try:
            self.loop.run_until_complete(coroutine)
        except (SystemExit, KeyboardInterrupt) as error:
            self.ended_by = self.ended_by or error

    def _turns(self) -> bool:
        return self.ended_by is None and self._thread.is_alive()

    def _over(self) -> TailraceError:
        by = "" if self.ended_by is None else f" by {type(self.ended_by).__name__}: {self.ended_by}"
        return TailraceError(f"the event loop that this runs in was ended{by}")


def _is_new(task: asyncio.Task[Any]) -> bool:
    coroutine = task.get_coro()
    return inspect.iscoroutine(coroutine) and inspect.getcoroutinestate(coroutine) == inspect.CORO_CREATED
