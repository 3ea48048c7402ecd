"""How much of a thread's own time something takes, apart from what the tests before it have left.

A full garbage collection goes through everything that the process has, and takes long where thousands of tests were
collected and run; it falls into whatever is measured just then.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from time import thread_time


@contextmanager
def cpu_time() -> Iterator[Callable[[], float]]:
    """Ask what it gives for the seconds of this thread since the beginning; the garbage looked at is only its own."""
    gc.collect()
    gc.freeze()
    start = thread_time()
    try:
        yield lambda: thread_time() - start
    finally:
        gc.unfreeze()
