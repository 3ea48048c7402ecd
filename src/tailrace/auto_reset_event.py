"""Something may have changed: said by anybody, waited for by one."""

from __future__ import annotations

import asyncio
import contextlib

__all__ = ["AutoResetEvent"]


class AutoResetEvent:
    """A flag that is taken down by whoever was waiting for it; it never forgets a ``set`` that came too early."""

    __slots__ = ("_event",)

    def __init__(self) -> None:
        self._event = asyncio.Event()

    def set(self) -> None:
        """Something may have changed."""
        self._event.set()

    async def wait(self, until: float | None = None) -> None:
        """Wait until something may have changed, or it is ``until`` on the loop's clock."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout_at(until):
                await self._event.wait()
        self._event.clear()
