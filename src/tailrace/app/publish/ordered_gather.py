"""Several things at once, begun in order: what is published, or buried, of one batch."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Sequence
from typing import Any

__all__ = ["gather_in_order"]


async def gather_in_order(things: Sequence[Coroutine[Any, Any, None]]) -> None:
    """Run all of them; when one fails the others are cancelled.

    Raises:
        Exception: what the first of them raised.
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
