"""The wait for a consumer's next records, which may be cut short.

Rule of this file: a record that has come is not lost with the wait for it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from typing import TypeVar

__all__ = ["InterruptibleWait"]

ResultT = TypeVar("ResultT")


class InterruptibleWait:
    """One such wait after the other."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._waiting: asyncio.Timeout | None = None

    @property
    def is_waiting(self) -> bool:
        """Whether one is under way."""
        return self._waiting is not None

    async def wait(self, coming: Awaitable[ResultT], until: float | None) -> ResultT | None:
        """What comes; None when it is ``until``, or somebody has cut it short."""
        try:
            async with asyncio.timeout_at(until) as self._waiting:
                return await coming
        except TimeoutError:
            return None
        finally:
            self._waiting = None

    def cut(self) -> None:
        """Wait no longer."""
        if self._waiting is not None and not self._waiting.expired():
            self._waiting.reschedule(self._loop.time())
