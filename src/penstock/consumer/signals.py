"""Signals that an event loop heeds for as long as something runs in it."""

from __future__ import annotations

import asyncio
import contextlib
import signal
from collections.abc import Callable, Iterable, Iterator

__all__ = ["heeded"]


@contextlib.contextmanager
def heeded(numbers: Iterable[signal.Signals], heard: Callable[[signal.Signals], None]) -> Iterator[None]:
    """Have ``heard`` called in this event loop at each of these signals.

    Where a loop cannot heed any, on Windows and beside the main thread, they do what they do by default.
    """
    loop, taken = asyncio.get_running_loop(), []
    for number in numbers:
        with contextlib.suppress(NotImplementedError, ValueError, RuntimeError):
            loop.add_signal_handler(number, heard, number)
            taken.append(number)
    try:
        yield
    finally:
        for number in taken:
            loop.remove_signal_handler(number)
