"""Waits for several events."""

from __future__ import annotations

import asyncio

import anyio

__all__ = ["wait_for_any"]


async def wait_for_any(*events: asyncio.Event) -> None:
    """Wait until at least one of the events is set."""
    async with anyio.create_task_group() as tasks:

        async def wait(event: asyncio.Event) -> None:
            await event.wait()
            tasks.cancel_scope.cancel()

        for event in events:
            tasks.start_soon(wait, event)
