"""Number of records to decode at once, so that the event loop is never blocked for long.

A handler that never suspends blocks the loop for a whole slice. So the size of a slice follows from the time that the
last slice took: slices are long if the handler does nothing, and have a single record if it computes for long.
"""

from __future__ import annotations

import math

__all__ = ["FIRST_SLICE", "MAX_HOLD_S", "is_too_long", "next_slice"]

MAX_HOLD_S = 0.005
"""Target duration of a slice, and the time after which a busy worker lets other tasks of the event loop run."""

FIRST_SLICE = 16


def next_slice(size: int, took_s: float, longest: int) -> int:
    """Return the size of the next slice, at most ``longest``, after a slice of ``size`` records took ``took_s``."""
    fitting = size * MAX_HOLD_S / took_s if took_s > 0 else math.inf
    return max(1, min(int(min(fitting, size * 2)), longest))


def is_too_long(held_s: float) -> bool:
    """Return True if the loop was blocked so long that other tasks should get a turn."""
    return held_s >= MAX_HOLD_S
