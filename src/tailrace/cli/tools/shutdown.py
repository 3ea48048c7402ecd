"""Exit of commands: on completion, on a signal, or when the reader of stdout closes the pipe."""

from __future__ import annotations

import os
import sys
from collections.abc import Coroutine

from tailrace.runner import run

__all__ = ["finished", "has_reader"]

_SIGTERM = 143


def finished(work: Coroutine[object, object, int]) -> int:
    """Run ``work`` and return its exit code, or 143 after SIGTERM.

    If the reader of the output, such as ``head``, closes the pipe, the exit code is 0.
    """
    try:
        done = run(work)
        sys.stdout.flush()
    except BrokenPipeError:
        # Redirect stdout, or Python reports the error again when it flushes at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    return _SIGTERM if done is None else done


def has_reader() -> bool:
    """Return False if the reader of stdout is known to have closed the pipe; this is checked without a write."""
    try:
        from select import POLLERR, poll  # noqa: PLC0415 - not on Windows

        poller = poll()
        poller.register(sys.stdout.fileno(), 0)
        return not any(event & POLLERR for _, event in poller.poll(0))
    except (ImportError, OSError, ValueError):
        return True  # stdout has no file descriptor, or the platform has no poll()
