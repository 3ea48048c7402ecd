"""The one task in which all of a consumer's coroutines live.

``start`` and ``stop`` may come from different tasks (a web framework's lifespan does that), and a task group has to
be left by the task that entered it. So the group has a task of its own, owned by the supervisor: nobody else's
cancellation ends it half-way, and it never outlives ``stop``.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable

import anyio

__all__ = ["Supervisor"]


class Supervisor:
    """Runs ``body`` until it ends, is asked to stop, or takes too long to.

    Args:
        body: what to run; it sets ``ready`` when it is through with starting, and ends soon after ``stopping``.
        name: of the task.
    """

    def __init__(self, body: Callable[[Supervisor], Awaitable[None]], name: str) -> None:
        self.ready = asyncio.Event()
        self.stopping = asyncio.Event()
        self._body, self._name = body, name
        self._task: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Run the body until it is ready.

        Raises:
            Exception: what the body raised before it was ready.
        """
        self._task = asyncio.create_task(self._run(), name=self._name)
        ready = asyncio.ensure_future(self.ready.wait())
        try:
            await asyncio.wait({self._task, ready}, return_when=asyncio.FIRST_COMPLETED)
        except asyncio.CancelledError:
            await self._end()
            raise
        finally:
            ready.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await ready
        if self._task.done():
            self._task.result()

    @property
    def is_over(self) -> bool:
        """Whether the body was run and has ended."""
        return self._task is not None and self._task.done()

    async def stop(self, timeout_s: float) -> None:
        """Ask the body to end; after ``timeout_s`` it is cancelled. Whoever calls this is not cancelled meanwhile."""
        self.stopping.set()
        if self._task is None:
            return
        with anyio.CancelScope(shield=True):
            await asyncio.wait({self._task}, timeout=timeout_s)
            await self._end()

    async def _run(self) -> None:
        await self._body(self)

    async def _end(self) -> None:
        assert self._task is not None
        self._task.cancel()
        await asyncio.wait({self._task})
        if not self._task.cancelled():
            # The body has told its error where it belongs already.
            self._task.exception()
