"""Counter of event loop iterations, to detect busy waiting."""

from __future__ import annotations

import asyncio
import time
from typing import Self


class LoopTurns:
    """Counts the iterations of the running asyncio loop within a ``with`` block.

    Unlike CPU time, the count does not depend on the speed of the machine, other threads or garbage collection.
    """

    def __enter__(self) -> Self:
        self._selector = asyncio.get_running_loop()._selector
        self._count, self._began_at = 0, time.monotonic()
        select = self._selector.select

        def counted(timeout: float | None = None) -> list:
            self._count += 1
            return select(timeout)

        self._selector.select = counted
        return self

    def __exit__(self, *_: object) -> None:
        del self._selector.select
        self._took_s = time.monotonic() - self._began_at

    @property
    def count(self) -> int:
        """Number of iterations so far."""
        return self._count

    @property
    def per_second(self) -> float:
        """Return the iterations per second so far."""
        return self._count / self._took_s
