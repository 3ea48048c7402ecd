"""``timeout_ms``: how long a handler may take for what it is given."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TypeVar

__all__ = ["with_deadline"]

WorkT = TypeVar("WorkT")


def with_deadline(
    call: Callable[[WorkT], Awaitable[object]], seconds: float, *, is_async: bool
) -> Callable[[WorkT], Awaitable[object]]:
    """``call``, which raises TimeoutError when its time is over: then, or in a thread when it comes back.

    A thread cannot be ended, and nothing may run beside it.
    """

    async def cut_short(work: WorkT) -> object:
        async with asyncio.timeout(seconds):
            return await call(work)

    async def waited_for(work: WorkT) -> object:
        loop = asyncio.get_running_loop()
        began_at = loop.time()
        result = await call(work)
        if (took_s := loop.time() - began_at) > seconds:
            raise TimeoutError(f"it took {took_s:.1f} s of {seconds:.1f} s, and a thread cannot be cut short")
        return result

    return cut_short if is_async else waited_for
