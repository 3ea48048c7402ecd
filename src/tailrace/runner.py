"""Variant of ``asyncio.run`` that cancels its coroutine at SIGTERM."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Coroutine
from typing import Any, TypeVar

from tailrace.signals import handle_signals

__all__ = ["run"]

ResultT = TypeVar("ResultT")


def run(main: Coroutine[Any, Any, ResultT], *, debug: bool | None = None) -> ResultT | None:
    """Run ``main`` in a new event loop and return its result, or None if SIGTERM ended it.

    SIGTERM cancels ``main``, so that each ``async with Consumer(...)`` commits and leaves its group. A second SIGTERM
    ends the process immediately. SIGINT is handled as by ``asyncio.run``.
    """
    return asyncio.run(_until_sigterm(main), debug=debug)


async def _until_sigterm(main: Coroutine[Any, Any, ResultT]) -> ResultT | None:
    task = asyncio.ensure_future(main)
    is_terminated = False

    def terminate() -> None:
        nonlocal is_terminated
        is_terminated = True
        task.cancel()

    with handle_signals([signal.SIGTERM], terminate):
        try:
            return await task
        except asyncio.CancelledError:
            if is_terminated and task.cancelled():
                return None
            task.cancel()
            await asyncio.wait({task})
            raise
