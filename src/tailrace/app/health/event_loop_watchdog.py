"""Detection of a blocked event loop, and of the line that blocks it, while the loop is blocked.

The loop calls ``_tick`` at regular intervals. A thread checks whether the next tick is overdue, and reads the stack of
the loop only then. The thread also emits the events, because a blocked loop cannot. Times are on the loop's clock.
"""

from __future__ import annotations

import asyncio
import logging
import sys
import threading
from collections.abc import Callable
from typing import NamedTuple

from tailrace.app.stack_frames import StackFrame, frame_position, innermost_user_frame
from tailrace.core.metrics import DurationMeter
from tailrace.observe.events import LoopBlocked, LoopUnblocked
from tailrace.observe.statistics import Durations

__all__ = ["Watchdog"]

_CHECKS_PER_LIMIT = 4
"""Number of ticks of the loop, and of checks by the thread, in ``limit_s``."""
_JOIN_TIMEOUT_S = 1.0
_MAX_FRAMES = 40

_log = logging.getLogger("tailrace")


class _Tick(NamedTuple):
    """Call of ``_tick`` by the event loop."""

    next_due_at: float
    """Time at which the next tick is due."""
    thread_id: int
    """Thread in which the loop runs."""
    depth: int
    """Number of stack frames of the loop itself, below the frames of a callback."""


class Watchdog:
    """Watches one event loop from ``start`` to ``stop``.

    A block of the loop that is shorter than ``limit_s`` is never reported; a block of at least 1.5 times ``limit_s`` is
    always reported.

    Args:
        limit_s: maximum time in seconds for which the loop may be blocked.
        running_handler: returns the name of the running handler, or None; called in the watchdog's thread.
        on_event: called once while the loop is blocked, and again when it runs again; called in the watchdog's thread.
    """

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        limit_s: float,
        *,
        running_handler: Callable[[], str | None],
        on_event: Callable[[LoopBlocked | LoopUnblocked], None],
    ) -> None:
        self._loop, self._limit_s, self._running_handler, self._on_event = loop, limit_s, running_handler, on_event
        self._pause_s = limit_s / _CHECKS_PER_LIMIT
        self._last_tick: _Tick | None = None
        self._blocked_since: float | None = None
        """Beginning of the block that was reported last; None once its end was reported."""
        self._unblocked_at: float | None = None
        """End of that block; None while the loop is blocked."""
        self._stopping = threading.Event()
        self._next_tick: asyncio.Handle | None = None
        self._thread: threading.Thread | None = None
        self._lag = DurationMeter()

    def __repr__(self) -> str:
        state = "stopped" if self._thread is None else f"blocked for {self.blocked_s:.1f} s" if self.blocked_s else "ok"
        return f"<Watchdog {self._limit_s:g} s {state}>"

    @property
    def blocked_s(self) -> float:
        """Seconds for which the loop has been blocked; 0 if it is not blocked. Thread-safe."""
        since = self._blocked_since
        return 0.0 if since is None or self._unblocked_at is not None else self._loop.time() - since

    @property
    def lag(self) -> Durations:
        """Distribution of the delays with which the loop runs its ticks."""
        return self._lag.durations

    def start(self) -> None:
        """Start watching; do nothing if started already. Must be called in the loop."""
        if self._thread is not None:
            return
        stopping = self._stopping = threading.Event()
        self._blocked_since = self._unblocked_at = None
        self._last_tick = _Tick(self._loop.time() + self._pause_s, threading.get_ident(), 0)
        self._next_tick = self._loop.call_soon(self._tick, stopping)
        # With a daemon thread, a program that does not stop the watchdog can exit.
        self._thread = threading.Thread(target=self._watch, args=(stopping,), name="tailrace watchdog", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Stop watching, and wait at most a second until the thread has ended.

        Must be called in the loop.
        """
        self._stopping.set()
        if self._next_tick is not None:
            self._next_tick.cancel()
            self._next_tick = None
        thread, self._thread = self._thread, None
        if thread is not None and thread is not threading.current_thread():
            thread.join(_JOIN_TIMEOUT_S)

    # ---- in the loop -------------------------------------------------------------------------------------------

    def _tick(self, stopping: threading.Event) -> None:
        if stopping.is_set():
            return
        now, depth, frame = self._loop.time(), 0, sys._getframe().f_back
        while frame is not None:
            depth, frame = depth + 1, frame.f_back
        if self._last_tick is not None:
            self._lag.note(max(0.0, now - self._last_tick.next_due_at))
        self._last_tick = _Tick(now + self._pause_s, threading.get_ident(), depth)
        if self._blocked_since is not None and self._unblocked_at is None:
            self._unblocked_at = now
        self._next_tick = self._loop.call_later(self._pause_s, self._tick, stopping)

    # ---- in the thread -----------------------------------------------------------------------------------------

    def _watch(self, stopping: threading.Event) -> None:
        while not stopping.wait(self._pause_s):
            if self._loop.is_closed():
                self._blocked_since = None
                return
            self._check(self._loop.time())

    def _check(self, now: float) -> None:
        if not self._loop.is_running():
            # A loop that does not run is not blocked. It ticks again when it runs again.
            self._last_tick, self._unblocked_at = None, self._unblocked_at or now
        last = self._last_tick
        if self._blocked_since is not None:
            if self._unblocked_at is not None:
                self._emit(LoopUnblocked(self._unblocked_at - self._blocked_since))
                self._blocked_since = self._unblocked_at = None
        elif last is not None and now - last.next_due_at >= self._limit_s:
            self._report(last, now)

    def _report(self, last: _Tick, now: float) -> None:
        stack = _stack(last)
        if not stack or self._last_tick is not last:
            return  # The loop is idle, or has ticked since the check.
        self._unblocked_at, self._blocked_since = None, last.next_due_at
        where = str(innermost_user_frame(stack) or stack[0])
        lines = (f"{frame.file}:{frame.line} in {frame.function}" for frame in reversed(stack[:_MAX_FRAMES]))
        self._emit(LoopBlocked(now - last.next_due_at, self._running_handler_name(), where, tuple(lines)))

    def _running_handler_name(self) -> str | None:
        try:
            return self._running_handler()
        except Exception:  # noqa: BLE001 - logged; the watchdog continues
            _log.exception("the watchdog could not determine the running handler")
            return None

    def _emit(self, event: LoopBlocked | LoopUnblocked) -> None:
        try:
            self._on_event(event)
        except Exception:  # noqa: BLE001 - logged; the watchdog continues
            _log.exception("the watchdog could not emit %s", event)


# ---- stacks ----------------------------------------------------------------------------------------------------


def _stack(last: _Tick) -> list[StackFrame]:
    """Return the frames above the loop's own frames, innermost first; an empty list while the loop is idle."""
    frame = sys._current_frames().get(last.thread_id)
    frames = []
    while frame is not None:
        frames.append(frame_position(frame))
        frame = frame.f_back
    return frames[: max(len(frames) - last.depth, 0)]
