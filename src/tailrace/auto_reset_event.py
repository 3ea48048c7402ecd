"""Event that is cleared when a wait for it ends."""

from __future__ import annotations

import asyncio
import contextlib

__all__ = ["AutoResetEvent"]


class AutoResetEvent:
    """Event that ``wait`` clears before it returns. If the event is set already, ``wait`` returns immediately.

    Only one task may wait at a time.
    """

    __slots__ = ("_event",)

    def __init__(self) -> None:
        self._event = asyncio.Event()

    def set(self) -> None:
        """Set the event, and wake the waiting task."""
        self._event.set()

    async def wait(self, until: float | None = None) -> None:
        """Wait until the event is set or ``loop.time()`` reaches ``until`` (None: no limit), and clear the event."""
        if until is None:
            await self._event.wait()
        else:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout_at(until):
                    await self._event.wait()
        self._event.clear()
