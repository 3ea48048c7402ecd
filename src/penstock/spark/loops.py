"""An event loop in a thread of its own, for code that has none: a driver's calls, and Spark's Python workers.

Rule of this file: the thread is a daemon, so that a process may end without a word, as Spark's workers do.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Coroutine
from typing import Any, TypeVar

__all__ = ["LoopThread"]

ResultT = TypeVar("ResultT")

_ENDING_S = 5.0


class LoopThread:
    """Runs coroutines until it is closed.

    It turns between two calls, too: connections are kept, and what has to be done in the background is done.
    """

    def __init__(self, name: str) -> None:
        self.loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def call(self, coroutine: Coroutine[Any, Any, ResultT]) -> ResultT:
        """What the coroutine returns, or raises; it is cancelled when the caller is interrupted.

        How long that may take is the coroutine's to bound.
        """
        future = asyncio.run_coroutine_threadsafe(coroutine, self.loop)
        try:
            return future.result()
        except BaseException:
            future.cancel()
            raise

    def close(self) -> None:
        """End the loop, and with it whatever still runs in it."""
        if self._thread.is_alive():
            self.loop.call_soon_threadsafe(self.loop.stop)
            self._thread.join(_ENDING_S)

    def _run(self) -> None:
        with asyncio.Runner(loop_factory=lambda: self.loop) as runner:
            # The runner ends what is left when the loop is stopped.
            runner.get_loop().run_forever()
