"""How a tool ends: by itself, by SIGTERM, by Ctrl-C, or because nobody reads what it writes any more."""

from __future__ import annotations

import os
import sys
from collections.abc import Coroutine

from tailrace.runner import run

__all__ = ["finished", "is_read"]

_SIGTERM = 143


def finished(work: Coroutine[object, object, int]) -> int:
    """Run ``work`` to its end; gives its exit code, or 143 after a SIGTERM.

    A reader that has gone, such as ``head`` when it has what it wants, is an end like any other: 0.
    """
    try:
        done = run(work)
        sys.stdout.flush()
    except BrokenPipeError:
        # Python would complain once more when it flushes at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    return _SIGTERM if done is None else done


def is_read() -> bool:
    """Whether somebody still reads what is written to stdout, as far as the system can say before the next write."""
    try:
        from select import POLLERR, poll  # noqa: PLC0415 - not on Windows

        looking = poll()
        looking.register(sys.stdout.fileno(), 0)
        return not any(event & POLLERR for _, event in looking.poll(0))
    except (ImportError, OSError, ValueError):
        return True  # no file with a number, or a system that cannot say
