"""An event loop's clock that jumps: when nothing can go on, it is at once the next moment at which something can.

Rule of this file: only the loop it is given is touched, and only between ``enter`` and ``exit``. Packages that do this
for tests patch every loop of a test run from then on; here other tests keep their own time.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable, Iterator
from typing import Any

from tailrace.errors import ConfigurationError

__all__ = ["VirtualTime"]

_A_MOMENT_S = 0.01
"""How long answers from threads, and bytes for sockets that are open, are waited for in real time."""


class VirtualTime:
    """The clock of one loop, within ``running``."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        if not isinstance(loop, asyncio.SelectorEventLoop):
            raise ConfigurationError(
                f"virtual time needs asyncio's own event loop, and this is a {type(loop).__name__}"
                " - use that in tests, or say TestApp(..., virtual_time=False)"
            )
        self._loop: Any = loop
        self._now = loop.time()
        self._held = 0
        self._selector: Any = None
        self._run_in_executor: Any = None

    @contextlib.contextmanager
    def running(self) -> Iterator[None]:
        """Let it jump."""
        loop = self._loop
        self._selector, self._run_in_executor = loop._selector, loop.run_in_executor  # noqa: SLF001 - no other way in
        loop.time, loop.run_in_executor = lambda: self._now, self._in_executor
        loop._selector = self  # noqa: SLF001
        try:
            yield
        finally:
            loop._selector = self._selector  # noqa: SLF001
            # Its own again, which the class has.
            del loop.time, loop.run_in_executor

    @contextlib.contextmanager
    def held(self) -> Iterator[None]:
        """While somebody is awaited of whom the loop knows nothing, such as a thread, time passes as it does."""
        self._held += 1
        try:
            yield
        finally:
            self._held -= 1

    # ---- as the loop wants its selector ------------------------------------------------------------------------

    def __getattr__(self, name: str) -> Any:  # noqa: ANN401
        return getattr(self._selector, name)

    def select(self, timeout: float | None = None) -> list[Any]:
        """What is ready; when nothing is, the time until the next timer has passed."""
        ready: list[Any] = self._selector.select(0)
        if ready or timeout == 0:
            return ready
        if timeout is None:
            return list(self._selector.select(None))
        # One file is the loop's own, by which threads wake it.
        if not self._held and len(self._selector.get_map()) <= 1:
            self._now += timeout
            return []
        began = time.monotonic()
        ready = self._selector.select(min(timeout, _A_MOMENT_S))
        passed = time.monotonic() - began
        self._now += passed if ready or self._held else timeout
        return ready

    def _in_executor(self, executor: Any, function: Callable[..., Any], *arguments: Any) -> Any:  # noqa: ANN401
        future = self._run_in_executor(executor, function, *arguments)
        self._held += 1
        future.add_done_callback(self._come_back)
        return future

    def _come_back(self, _future: object) -> None:
        self._held -= 1
