"""Virtual time of an event loop: the loop's clock jumps to the next timer when all tasks wait.

Only the given loop is patched, and only within ``running``, so that other tests keep real time.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable, Iterator
from typing import Any

from tailrace.errors import ConfigurationError

__all__ = ["VirtualTime"]

_REAL_WAIT_S = 0.01
"""Maximum real time to wait at once for results of threads and for bytes on open sockets."""


class VirtualTime:
    """Virtual clock of an event loop."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        if not isinstance(loop, asyncio.SelectorEventLoop):
            raise ConfigurationError(
                f"virtual time requires asyncio's event loop, not {type(loop).__name__}"
                " - use it in tests, or pass virtual_time=False to TestApp"
            )
        self._loop: Any = loop
        self._now = loop.time()
        self._held = 0
        self._selector: Any = None
        self._run_in_executor: Any = None

    @contextlib.contextmanager
    def running(self) -> Iterator[None]:
        """Use virtual time for the duration of a context."""
        loop = self._loop
        self._selector, self._run_in_executor = loop._selector, loop.run_in_executor  # noqa: SLF001 - no public access
        loop.time, loop.run_in_executor = lambda: self._now, self._in_executor
        loop._selector = self  # noqa: SLF001
        try:
            yield
        finally:
            loop._selector = self._selector  # noqa: SLF001
            # Deleting the instance attributes uncovers the methods of the class.
            del loop.time, loop.run_in_executor

    @contextlib.contextmanager
    def held(self) -> Iterator[None]:
        """Use real time for the duration of a context, while the loop waits for a thread."""
        self._held += 1
        try:
            yield
        finally:
            self._held -= 1

    # ---- interface of a selector -------------------------------------------------------------------------------

    def __getattr__(self, name: str) -> Any:  # noqa: ANN401
        return getattr(self._selector, name)

    def select(self, timeout: float | None = None) -> list[Any]:
        """Return the ready files; if there are none, advance the clock to the next timer."""
        ready: list[Any] = self._selector.select(0)
        if ready or timeout == 0:
            return ready
        if timeout is None:
            return list(self._selector.select(None))
        # The loop itself has one registered file, through which threads wake the loop.
        if not self._held and len(self._selector.get_map()) <= 1:
            self._now += timeout
            return []
        began = time.monotonic()
        ready = self._selector.select(min(timeout, _REAL_WAIT_S))
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
