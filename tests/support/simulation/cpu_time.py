"""CPU time of a thread, independent of objects from earlier tests.

A full garbage collection examines all objects of the process, which takes long after thousands of tests, and may occur
during any measurement.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from time import thread_time


@contextmanager
def cpu_time() -> Iterator[Callable[[], float]]:
    """Yield a function that returns the CPU seconds of this thread; only new objects are examined meanwhile."""
    gc.freeze()
    start = thread_time()
    try:
        yield lambda: thread_time() - start
    finally:
        gc.unfreeze()
