"""An event loop in a thread of its own, for code that has none: a driver's calls, and Spark's Python workers.

Rule of this file: the thread is a daemon, so that a process may end without a word, as Spark's workers do. What ends
the loop is told to whoever calls: nobody waits for a loop that turns no more.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Coroutine
from concurrent.futures import CancelledError, wait
from typing import Any, TypeVar

from penstock.errors import PenstockError

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
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def call(self, coroutine: Coroutine[Any, Any, ResultT]) -> ResultT:
        """What the coroutine returns, or raises; it is cancelled when the caller is interrupted.

        How long that may take is the coroutine's to bound.

        Raises:
            PenstockError: the loop has ended, and what ended it.
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
                raise self._over() from self.ended_by
            future.cancel()
            raise

    def close(self) -> None:
        """End the loop, and with it whatever still runs in it."""
        if self._thread.is_alive():
            self.loop.call_soon_threadsafe(self.loop.stop)
            self._thread.join(_ENDING_S)

    # ---- inside ------------------------------------------------------------------------------------------------

    def _run(self) -> None:
        # These two end a loop from within, and the runner ends what is left in it.
        left_by = contextlib.suppress(SystemExit, KeyboardInterrupt)
        with left_by, asyncio.Runner(loop_factory=lambda: self.loop) as runner:
            try:
                runner.get_loop().run_forever()
            except (SystemExit, KeyboardInterrupt) as error:
                self.ended_by = error
                raise

    def _turns(self) -> bool:
        return self.ended_by is None and self._thread.is_alive()

    def _over(self) -> PenstockError:
        by = "" if self.ended_by is None else f" by {type(self.ended_by).__name__}: {self.ended_by}"
        return PenstockError(f"the event loop that this runs in was ended{by}")
