"""Timer of the event loop, to tell what is late from what a slow machine delays."""

from __future__ import annotations

import asyncio


class LoopTimer:
    """Fires in the running event loop after ``seconds``.

    A slow machine, or one that stands still for a moment, delays the timer as it delays the code under test.
    """

    def __init__(self, seconds: float) -> None:
        self._loop = asyncio.get_running_loop()
        self._due_at = self._loop.time() + seconds
        self._fired_at: float | None = None
        self._loop.call_at(self._due_at, self._fire)

    def _fire(self) -> None:
        self._fired_at = self._loop.time()

    @property
    def late_s(self) -> float:
        """Seconds since it fired; before that, the negative number of seconds until it is due."""
        return self._loop.time() - (self._due_at if self._fired_at is None else self._fired_at)
