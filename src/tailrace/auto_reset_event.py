"""Event that is cleared when a wait for it ends."""

from __future__ import annotations

import asyncio
import contextlib

__all__ = ["AutoResetEvent"]


class AutoResetEvent:
    """Event that ``wait`` clears before it returns. If the event is set already, ``wait`` returns immediately.

    Only one task may wait at a time.
    """

    # asyncio.Event takes three times as long to set, because any number of tasks may wait for it.
    __slots__ = ("_is_set", "_waiter")

    def __init__(self) -> None:
        self._is_set = False
        self._waiter: asyncio.Future[None] | None = None

    def set(self) -> None:
        """Set the event, and wake the waiting task."""
        self._is_set = True
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    async def wait(self, until: float | None = None) -> None:
        """Wait until the event is set or ``loop.time()`` reaches ``until`` (None: no limit), and clear the event."""
        if not self._is_set:
            self._waiter = asyncio.get_running_loop().create_future()
            try:
                if until is None:
                    await self._waiter
                else:
                    with contextlib.suppress(TimeoutError):
                        async with asyncio.timeout_at(until):
                            await self._waiter
            finally:
                self._waiter = None
        self._is_set = False
