"""CPU time of a thread, independent of garbage from earlier tests.

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
    """Yield a function that returns the CPU seconds of this thread; only new garbage is collected meanwhile."""
    gc.collect()
    gc.freeze()
    start = thread_time()
    try:
        yield lambda: thread_time() - start
    finally:
        gc.unfreeze()
