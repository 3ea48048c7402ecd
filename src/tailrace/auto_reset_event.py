"""Event that is cleared when its waiter wakes up."""

from __future__ import annotations

import asyncio
import contextlib

__all__ = ["AutoResetEvent"]


class AutoResetEvent:
    """Event for one waiter at a time, which clears it on waking. After an earlier ``set``, ``wait`` returns at once."""

    __slots__ = ("_event",)

    def __init__(self) -> None:
        self._event = asyncio.Event()

    def set(self) -> None:
        """Set the event and wake the waiter."""
        self._event.set()

    async def wait(self, until: float | None = None) -> None:
        """Wait until the event is set or the loop's clock reaches ``until``, and clear the event."""
        if until is None:
            await self._event.wait()
        else:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout_at(until):
                    await self._event.wait()
        self._event.clear()
