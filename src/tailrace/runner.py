"""Variant of ``asyncio.run`` that cancels its coroutine at SIGTERM."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Coroutine
from types import TracebackType
from typing import Any, TypeVar

from tailrace.errors import BrokerConnectionError, ConfigurationError
from tailrace.signals import handle_signals

__all__ = ["run"]

ResultT = TypeVar("ResultT")

_LIBRARIES = ("tailrace", "asyncio", "anyio", "contextlib")


class _Interrupted(KeyboardInterrupt, SystemExit):
    """KeyboardInterrupt with which Python exits as after ``sys.exit(130)``, without a traceback."""


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
