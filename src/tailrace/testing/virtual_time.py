"""Virtual time of an event loop: the loop's clock jumps to the next timer when all tasks wait."""

from __future__ import annotations

import asyncio
import os
import stat
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

from tailrace.context_managers import contextmanager
from tailrace.errors import ConfigurationError

__all__ = ["VirtualTime", "virtual_time_of"]

_REAL_WAIT_S = 0.01
"""Real time in seconds to wait for results of threads and for data on open sockets, before the clock may jump."""
_REAL_WAIT_FOR_WORKERS_S = 0.5
"""Real time in seconds to wait for threads and subprocesses of other libraries, before the clock may jump."""
_OWN_THREADS = ("tailrace", "asyncio_", "ThreadPoolExecutor")
"""Beginnings of the names of threads for whose results the clock waits in real time, or that give none."""

_clocks: dict[asyncio.AbstractEventLoop, VirtualTime] = {}
"""Installed clocks."""


@contextmanager
def virtual_time_of(loop: asyncio.AbstractEventLoop) -> Iterator[VirtualTime]:
    """Give a loop virtual time for the duration of a context; contexts that overlap share the clock."""
    clock = _clocks.get(loop)
    if clock is None:
        clock = _clocks[loop] = VirtualTime(loop)
        clock.install()
    clock.users += 1
    try:
        yield clock
    finally:
        clock.users -= 1
        if not clock.users:
            del _clocks[loop]
            clock.uninstall()


class VirtualTime:
    """Virtual clock of an event loop.

    Attributes:
        users: number of contexts that use the clock.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        if not isinstance(loop, asyncio.SelectorEventLoop):
            raise ConfigurationError(
                f"virtual time requires asyncio's event loop, not {type(loop).__name__}"
                " - use it in tests, or pass virtual_time=False to TestApp"
            )
        self._loop: Any = loop
        self._now = loop.time()
        self._real_time_users = 0
        self._selector: Any = None
        self._run_in_executor: Any = None
        self._known_threads: set[threading.Thread] = set()
        self.users = 0

    def install(self) -> None:
        """Replace the clock of the loop, and of no other loop."""
        loop = self._loop
        self._known_threads = set(threading.enumerate())
        self._selector, self._run_in_executor = loop._selector, loop.run_in_executor
        loop.time, loop.run_in_executor = lambda: self._now, self._in_executor
        loop._selector = self

    def uninstall(self) -> None:
        """Give the loop its own clock again."""
        loop = self._loop
        loop._selector = self._selector
        # Without the attributes of the instance, the methods of the class are used again.
        del loop.time, loop.run_in_executor

    @contextmanager
    def real_time(self) -> Iterator[None]:
        """Use real time for the duration of a context, in which a task waits for a thread."""
        self._real_time_users += 1
        try:
            yield
        finally:
            self._real_time_users -= 1

    # ---- interface of a selector -------------------------------------------------------------------------------

    def __getattr__(self, name: str) -> Any:  # noqa: ANN401
        return getattr(self._selector, name)

    def select(self, timeout: float | None = None) -> list[Any]:
        """Return the files that are ready; if there are none, advance the clock by ``timeout``, to the next timer.

        While real time is used, advance the clock only by the time that has passed. If sockets are open, wait for data
        for up to ``_REAL_WAIT_S`` first.
        """
        ready: list[Any] = self._selector.select(0)
        if ready or timeout == 0:
            return ready
        if timeout is None:
            return list(self._selector.select(None))
        limit_s = _REAL_WAIT_FOR_WORKERS_S if self._has_workers() else _REAL_WAIT_S
        # The loop has always registered one file, with which threads wake the loop.
        if not self._real_time_users and limit_s == _REAL_WAIT_S and len(self._selector.get_map()) <= 1:
            self._now += timeout
            return []
        began = time.monotonic()
        ready = self._selector.select(min(timeout, limit_s))
        passed = time.monotonic() - began
        self._now += passed if ready or self._real_time_users else timeout
        return ready

    def _has_workers(self) -> bool:
        """Return True if a library may work in a thread that was started since, or in a subprocess.

        Such threads belong, for example, to connections of aiosqlite and to functions of ``anyio.to_thread``.
        """
        new = (one for one in threading.enumerate() if one not in self._known_threads)
        if any(not one.name.startswith(_OWN_THREADS) for one in new):
            return True
        return any(_is_pipe(key.fd) for key in self._selector.get_map().values())

    def _in_executor(self, executor: Any, function: Callable[..., Any], *arguments: Any) -> Any:  # noqa: ANN401
        future = self._run_in_executor(executor, function, *arguments)
        self._real_time_users += 1
        future.add_done_callback(self._end_real_time)
        return future

    def _end_real_time(self, _future: object) -> None:
        self._real_time_users -= 1


def _is_pipe(fd: int) -> bool:
    """Return True for a pipe, such as the output of a subprocess."""
    try:
        return stat.S_ISFIFO(os.fstat(fd).st_mode)
    except OSError:
        return False
