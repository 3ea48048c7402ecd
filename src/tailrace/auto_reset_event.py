"""Event that resets when a waiter wakes up."""

from __future__ import annotations

import asyncio
import contextlib

__all__ = ["AutoResetEvent"]


class AutoResetEvent:
    """Flag with one waiter, which clears the flag on waking. A ``set`` before the wait is not lost."""

    __slots__ = ("_event",)

    def __init__(self) -> None:
        self._event = asyncio.Event()

    def set(self) -> None:
        """Set the flag and wake the waiter."""
        self._event.set()

    async def wait(self, until: float | None = None) -> None:
        """Wait until the flag is set or the loop's clock reaches ``until``, and clear the flag."""
        if until is None:
            await self._event.wait()
        else:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout_at(until):
                    await self._event.wait()
        self._event.clear()
