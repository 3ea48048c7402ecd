"""Watchdog for records that wait too long for the commit of a transaction."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

__all__ = ["StallWatch"]


class StallWatch:
    """Timer that runs while records wait for a commit, and reports a stall after ``limit_s``.

    Args:
        limit_s: seconds without a commit that count as a stall.
        on_stall: called with the seconds since ``begin``, once for each stall.
    """

    def __init__(self, limit_s: float, on_stall: Callable[[float], None]) -> None:
        self._limit_s, self._on_stall = limit_s, on_stall
        self._loop = asyncio.get_running_loop()
        self._since: float | None = None
        self._timer: asyncio.TimerHandle | None = None

    @property
    def stalled_s(self) -> float:
        """Seconds since ``begin`` if the limit is reached; otherwise 0."""
        waited_s = 0.0 if self._since is None else self._loop.time() - self._since
        return waited_s if waited_s >= self._limit_s else 0.0

    def begin(self) -> None:
        """Start the timer unless it runs; called when records wait for a commit."""
        if self._since is None:
            self._since = self._loop.time()
            self._timer = self._loop.call_at(self._since + self._limit_s, self._report_stall)

    def end(self) -> None:
        """Stop the timer; called when records were committed, or wait for a reason that is reported otherwise."""
        self._since = None
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _report_stall(self) -> None:
        assert self._since is not None
        self._on_stall(self._loop.time() - self._since)
