"""How a program is told to end: by signals, and by whatever comes first."""

from __future__ import annotations

import asyncio
import contextlib
import signal
from collections.abc import Callable, Iterator
from types import FrameType

import anyio

__all__ = ["asked_by_signals", "first_of"]

_SIGNALS = (signal.SIGTERM, signal.SIGINT)


@contextlib.contextmanager
def asked_by_signals(ask: Callable[[], object]) -> Iterator[None]:
    """Call ``ask`` in the event loop when SIGTERM or SIGINT comes; a second one ends the process at once.

    The second is the operating system's to carry out, so it works while the event loop is blocked. Where signals may
    not be handled (another thread than the main one), nothing is done.
    """
    loop = asyncio.get_running_loop()

    def told(_number: int, _frame: FrameType | None) -> None:
        for name in _SIGNALS:
            signal.signal(name, signal.SIG_DFL)
        loop.call_soon_threadsafe(ask)

    try:
        before = {name: signal.signal(name, told) for name in _SIGNALS}
    except ValueError:
        yield
        return
    try:
        yield
    finally:
        for name, handler in before.items():
            signal.signal(name, handler)


async def first_of(*events: asyncio.Event) -> None:
    """Wait for any of them."""
    async with anyio.create_task_group() as tasks:

        async def wait(event: asyncio.Event) -> None:
            await event.wait()
            tasks.cancel_scope.cancel()

        for event in events:
            tasks.start_soon(wait, event)
