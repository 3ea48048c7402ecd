"""Signal handlers that call all listeners of the process, and ``run``, which cancels its coroutine at SIGTERM.

A listener is one use of ``handle_signals``, for example by an app. One SIGTERM reaches all apps of a process, whether
they run in one event loop or in several.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import socket
import sys
import threading
from collections.abc import Callable, Collection, Coroutine, Iterator
from dataclasses import dataclass
from types import FrameType, TracebackType
from typing import Any, TypeVar

from tailrace.context_managers import contextmanager
from tailrace.errors import BrokerConnectionError, ConfigurationError

__all__ = ["exit_on_signals", "handle_signals", "run", "undo_exit_on_signals"]


@dataclass(eq=False)
class _Listener:
    """Arguments of one call of ``handle_signals``."""

    numbers: Collection[signal.Signals]
    loop: asyncio.AbstractEventLoop | None
    on_first: Callable[[], object]
    on_second: Callable[[], object] | None
    was_called: bool = False
    """True after ``on_first`` was called."""


_listeners: tuple[_Listener, ...] = ()
_replaced_handlers: dict[int, Any] = {}
"""Handlers that this module has replaced, by signal number."""
_exit_signals: set[int] = set()
"""Signals that raise SystemExit while no listener handles them."""
_wakeup_fds: list[int] = []
"""File descriptors of sockets that wake an event loop; Python writes a byte to the newest one at each signal."""


@contextmanager
def handle_signals(
    numbers: Collection[signal.Signals],
    on_first: Callable[[], object],
    on_second: Callable[[], object] | None = None,
) -> Iterator[None]:
    """Install signal handlers for the duration of a context.

    Each caller is a listener of the signals ``numbers``. The first signal calls ``on_first`` of all its listeners: in
    the event loop that was running when ``handle_signals`` was called, or without a loop in the signal handler itself.
    A second signal calls each ``on_second`` in the signal handler, and ends the process. If no listener has
    ``on_second``, the second signal has the default action of the operating system, which ends the process even while
    the event loop is blocked. When the last listener leaves the context, the previous handlers are restored.

    Only the main thread can install handlers. A listener in another thread is called only if a listener in the main
    thread has installed the handler of the same signal.
    """
    global _listeners  # noqa: PLW0603 - signal handlers belong to the process
    try:
        loop: asyncio.AbstractEventLoop | None = asyncio.get_running_loop()
    except RuntimeError:
        loop = None
    listener = _Listener(numbers, loop, on_first, on_second)
    _listeners = (*_listeners, listener)
    for number in numbers:
        # ValueError: not the main thread.
        with contextlib.suppress(ValueError):
            replaced = signal.signal(number, _on_signal)
            # If there are other listeners, the replaced handler may be SIG_DFL, which this module sets after a first
            # signal.
            if replaced is not _on_signal and len(_listeners_of(number)) == 1:
                _replaced_handlers[number] = replaced
    try:
        with _wake_on_signals(loop):
            yield
    finally:
        _listeners = tuple(one for one in _listeners if one is not listener)
        for number in numbers:
            with contextlib.suppress(ValueError):
                _set_idle_handler(number)


@contextmanager
def _wake_on_signals(loop: asyncio.AbstractEventLoop | None) -> Iterator[None]:
    """Wake ``loop`` at each signal for the duration of a context; do nothing outside the main thread.

    Python calls signal handlers between two instructions of the main thread. Without a wakeup, a signal that arrives
    just before the loop waits for events would be handled only after the next event.
    """
    if loop is None or threading.current_thread() is not threading.main_thread():
        yield
        return
    reader, writer = socket.socketpair()
    with reader, writer:
        reader.setblocking(False)
        writer.setblocking(False)
        try:
            loop.add_reader(reader, reader.recv, 4096)
        except NotImplementedError:  # Windows, where signals wake ProactorEventLoop anyway
            yield
            return
        _wakeup_fds.append(writer.fileno())
        _set_wakeup_fd(*_wakeup_fds)
        try:
            yield
        finally:
            fds_before = tuple(_wakeup_fds)
            _wakeup_fds.remove(writer.fileno())
            _set_wakeup_fd(*fds_before)
            with contextlib.suppress(RuntimeError):  # the loop is closed
                loop.remove_reader(reader)


def _set_wakeup_fd(*replaceable: int) -> None:
    """Set the wakeup descriptor of the process to the newest of ``_wakeup_fds``, or to -1 if there is none.

    Keep a descriptor that another part of the program has set, which is not in ``replaceable``.
    """
    current = signal.set_wakeup_fd(-1)
    if current in {-1, *replaceable}:
        current = _wakeup_fds[-1] if _wakeup_fds else -1
    signal.set_wakeup_fd(current, warn_on_full_buffer=False)


def exit_on_signals(numbers: Collection[signal.Signals]) -> None:
    """Raise SystemExit at these signals while they have no other handler, so that ``atexit`` functions run.

    Call this function in the main thread.
    """
    _exit_signals.update(numbers)
    for number in numbers:
        _set_idle_handler(number)


def undo_exit_on_signals(numbers: Collection[signal.Signals]) -> None:
    """Undo ``exit_on_signals``. Call this function in the main thread."""
    _exit_signals.difference_update(numbers)
    for number in numbers:
        _set_idle_handler(number)


def _on_signal(number: int, _frame: FrameType | None) -> None:
    if number in _exit_signals and not _listeners_of(number):
        sys.exit(128 + number)
    uncalled = [one for one in _listeners_of(number) if not one.was_called]
    for one in uncalled:
        one.was_called = True
        if one.loop is None:
            one.on_first()
            continue
        # RuntimeError: the listener's thread has closed the loop.
        with contextlib.suppress(RuntimeError):
            one.loop.call_soon_threadsafe(one.on_first)
    if not uncalled:
        for one in _listeners_of(number):
            if one.on_second is not None:
                one.on_second()
        _restore_replaced(number) if not _listeners_of(number) else signal.signal(number, signal.SIG_DFL)
        os.kill(os.getpid(), number)
        return
    if any(one.on_second is not None for one in _listeners):
        return
    # From now on, a second signal ends the process even while the event loop is blocked.
    for other in _replaced_handlers:
        if _listeners_of(other) and all(one.was_called for one in _listeners_of(other)):
            signal.signal(other, signal.SIG_DFL)


def _listeners_of(number: int) -> list[_Listener]:
    return [one for one in _listeners if number in one.numbers]


def _set_idle_handler(number: int) -> None:
    """Set the handler of a signal that has no listeners: ``_on_signal`` for an exit signal, else the replaced handler.

    Keep a handler that the program has set after this module.
    """
    if _listeners_of(number):
        return
    current = signal.getsignal(number)
    if number in _exit_signals and _replaced_handlers.get(number, current) is signal.SIG_DFL:
        _replaced_handlers[number] = signal.SIG_DFL
        signal.signal(number, _on_signal)
    elif current in {_on_signal, signal.SIG_DFL}:
        _restore_replaced(number)
    else:
        # The program has set a handler of its own.
        _replaced_handlers.pop(number, None)


def _restore_replaced(number: int) -> None:
    # A handler that was not installed from Python is None and cannot be restored from Python.
    if (handler := _replaced_handlers.get(number)) is not None:
        signal.signal(number, handler)
    _replaced_handlers.pop(number, None)


# ---- run -------------------------------------------------------------------------------------------------------------

ResultT = TypeVar("ResultT")

_LIBRARIES = ("tailrace", "asyncio", "anyio", "contextlib")


class _Interrupted(KeyboardInterrupt, SystemExit):
    """KeyboardInterrupt with which Python exits as after ``sys.exit(130)``, without a traceback."""


def _exit_without_traceback() -> None:
    """Let Python 3.14 and newer, which handle KeyboardInterrupt first, treat ``_Interrupted`` as SystemExit, too."""
    replaced = sys.excepthook
    if getattr(replaced, "exits_at_interrupt", False):
        return

    def excepthook(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
        if isinstance(error, _Interrupted):
            sys.exit(error.code)
        replaced(kind, error, trace)

    excepthook.exits_at_interrupt = True  # type: ignore[attr-defined]
    sys.excepthook = excepthook


def run(main: Coroutine[Any, Any, ResultT], *, debug: bool | None = None) -> ResultT | None:
    """Run ``main`` in a new event loop and return its result, or None if SIGTERM ended it.

    SIGTERM cancels ``main``, so that each ``async with Consumer(...)`` commits and leaves its group. A second SIGTERM
    ends the process immediately. SIGINT (Ctrl-C) cancels ``main`` and raises KeyboardInterrupt, as by ``asyncio.run``;
    if it is not caught, the process exits with 130, without a traceback. In the traceback of an error that the
    environment causes, such as an unreachable broker, only the program's own frames are left.
    """
    try:
        return asyncio.run(_until_sigterm(main), debug=debug)
    except KeyboardInterrupt:
        interrupted = _Interrupted()
        interrupted.code = 130
        if sys.version_info >= (3, 14):
            _exit_without_traceback()
        raise interrupted from None
    except (BrokerConnectionError, ConfigurationError) as error:
        raise error.with_traceback(_frames_of_program(error.__traceback__)) from None


def _frames_of_program(traceback: TracebackType | None) -> TracebackType | None:
    """Return a traceback without the frames of this package and of those through which it calls the program."""
    frames = []
    while traceback is not None:
        if traceback.tb_frame.f_globals.get("__name__", "").partition(".")[0] not in _LIBRARIES:
            frames.append(traceback)
        traceback = traceback.tb_next
    kept = None
    for one in reversed(frames):
        kept = TracebackType(kept, one.tb_frame, one.tb_lasti, one.tb_lineno)
    return kept


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
