"""Wait that can be ended early, for the next records of a consumer."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from typing import TypeVar

__all__ = ["InterruptibleWait"]

ResultT = TypeVar("ResultT")


class InterruptibleWait:
    """Wait of one task for an awaitable; at most one wait runs at a time."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._waiting: asyncio.Timeout | None = None

    @property
    def is_waiting(self) -> bool:
        """True during a wait."""
        return self._waiting is not None

    async def wait(self, awaitable: Awaitable[ResultT], until: float | None) -> ResultT | None:
        """Return the result of an awaitable; cancel it and return None at ``until`` or when ``end`` is called.

        Args:
            awaitable: awaitable that loses nothing if it is canceled.
            until: event loop time; None for no limit.
        """
        try:
            async with asyncio.timeout_at(until) as self._waiting:
                return await awaitable
        except TimeoutError:
            return None
        finally:
            self._waiting = None

    def end(self) -> None:
        """End the current wait, if there is one."""
        if self._waiting is not None and not self._waiting.expired():
            self._waiting.reschedule(self._loop.time())
