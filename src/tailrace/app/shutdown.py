"""Wait for the first of several events."""

from __future__ import annotations

import asyncio

import anyio

__all__ = ["first_of"]


async def first_of(*events: asyncio.Event) -> None:
    """Wait until any of the events is set."""
    async with anyio.create_task_group() as tasks:

        async def wait(event: asyncio.Event) -> None:
            await event.wait()
            tasks.cancel_scope.cancel()

        for event in events:
            tasks.start_soon(wait, event)
