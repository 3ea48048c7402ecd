"""Size of slices, the records that are decoded and delivered together, so that the event loop is not blocked for long.

A handler that never suspends blocks the loop for a whole slice. The size of a slice therefore follows from the time
that the last slice took: slices are long if the handler does nothing, and have a single record if it computes for long.
"""

from __future__ import annotations

import math

__all__ = ["FIRST_SLICE", "MAX_HOLD_S", "is_too_long", "next_slice"]

MAX_HOLD_S = 0.005
"""Target duration of a slice in seconds. After this time, a busy worker lets other tasks of the event loop run."""

FIRST_SLICE = 16
"""Number of records in the first slice, before any duration is known."""


def next_slice(size: int, took_s: float, longest: int) -> int:
    """Return the size of the next slice, at most ``longest``, after a slice of ``size`` records took ``took_s``."""
    fitting = size * MAX_HOLD_S / took_s if took_s > 0 else math.inf
    return max(1, min(int(min(fitting, size * 2)), longest))


def is_too_long(held_s: float) -> bool:
    """Return True if the event loop was blocked for so long (``held_s``) that other tasks should run next."""
    return held_s >= MAX_HOLD_S
