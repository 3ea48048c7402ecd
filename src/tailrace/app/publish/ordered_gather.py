"""Concurrent run of coroutines that start in order, such as the publishing of a batch's results or dead letters."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Sequence
from typing import Any

__all__ = ["gather_in_order"]


async def gather_in_order(things: Sequence[Coroutine[Any, Any, None]]) -> None:
    """Run coroutines concurrently; if one fails, cancel the others.

    Raises:
        Exception: the first error.
    """
    if len(things) == 1:
        await things[0]
        return
    tasks: list[asyncio.Task[None]] = []
    try:
        async with asyncio.TaskGroup() as group:
            tasks += [group.create_task(one) for one in things]
    except BaseExceptionGroup as errors:
        raise errors.exceptions[0] from errors.exceptions[0].__cause__
