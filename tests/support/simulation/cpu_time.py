"""CPU time of a thread, without the collection of garbage from earlier tests."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from time import thread_time


@contextmanager
def cpu_time() -> Iterator[Callable[[], float]]:
    """Yield a function that returns the CPU seconds of this thread."""
    gc.collect()
    start = thread_time()
    yield lambda: thread_time() - start
