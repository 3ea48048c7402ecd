"""Running a program of consumers: ``asyncio.run``, and an end that SIGTERM can ask for."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Coroutine
from typing import TypeVar

from tailrace.signals import handle_signals

__all__ = ["run"]

ResultT = TypeVar("ResultT")


def run(main: Coroutine[object, object, ResultT], *, debug: bool | None = None) -> ResultT | None:
    """Run ``main`` in an event loop of its own; SIGTERM ends it cleanly.

    SIGTERM cancels ``main``, so that each ``async with Consumer(...)`` commits, leaves its group and is through; then
    this returns None. A second SIGTERM ends the process at once. SIGINT is as with ``asyncio.run``.
    """
    return asyncio.run(_until_sigterm(main), debug=debug)


async def _until_sigterm(main: Coroutine[object, object, ResultT]) -> ResultT | None:
    task = asyncio.ensure_future(main)
    asked = False

    def end() -> None:
        nonlocal asked
        asked = True
        task.cancel()

    with handle_signals([signal.SIGTERM], end):
        try:
            return await task
        except asyncio.CancelledError:
            if asked and task.cancelled():
                return None
            task.cancel()
            await asyncio.wait({task})
            raise
