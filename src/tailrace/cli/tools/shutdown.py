"""Run of a command until it completes, a signal arrives, or the reader of stdout closes the pipe."""

from __future__ import annotations

import os
import sys
from collections.abc import Coroutine

from tailrace.signals import run

__all__ = ["has_reader", "run_to_exit_code"]

_SIGTERM_EXIT_CODE = 143


def run_to_exit_code(work: Coroutine[object, object, int]) -> int:
    """Run ``work`` and return its exit code, 143 after SIGTERM, or 0 if the reader of stdout closed the pipe.

    Raises:
        KeyboardInterrupt: SIGINT arrived.
    """
    try:
        exit_code = run(work)
        sys.stdout.flush()
    except BrokenPipeError:
        # Redirect stdout, or Python reports the error again when it flushes at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    return _SIGTERM_EXIT_CODE if exit_code is None else exit_code


def has_reader() -> bool:
    """Return False if the reader of stdout has closed the pipe, and True if not, or if this cannot be determined."""
    try:
        from select import POLLERR, poll  # noqa: PLC0415 - not on Windows

        poller = poll()
        poller.register(sys.stdout.fileno(), 0)
        return not any(event & POLLERR for _, event in poller.poll(0))
    except (ImportError, OSError, ValueError):
        return True  # stdout has no file descriptor, or the platform has no poll()
