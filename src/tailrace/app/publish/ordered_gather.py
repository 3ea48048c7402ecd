"""Concurrent execution of coroutines that are started in order."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Sequence
from typing import Any

__all__ = ["gather_in_order"]


async def gather_in_order(coroutines: Sequence[Coroutine[Any, Any, None]]) -> None:
    """Start coroutines in order and run them concurrently; if one fails, cancel the others.

    Raises:
        Exception: the error of the coroutine that failed first.
    """
    if len(coroutines) == 1:
        await coroutines[0]
        return
    tasks: list[asyncio.Task[None]] = []
    try:
        async with asyncio.TaskGroup() as group:
            tasks += [group.create_task(one) for one in coroutines]
    except BaseExceptionGroup as errors:
        raise errors.exceptions[0] from errors.exceptions[0].__cause__
