"""How often an event loop turns: what has nothing to do waits, and what cannot wait turns as often as it can."""

from __future__ import annotations

import asyncio
import time
from typing import Self


class LoopTurns:
    """Counts the turns of the running loop of asyncio; ``with Turns() as turns``.

    Unlike the time that the processor was busy, it is the same on a slow machine, beside other threads, and while
    garbage is collected.
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
    def per_second(self) -> float:
        """How often it has turned in a second."""
        return self._count / self._took_s
