"""Number of records to decode at once, so that the event loop is never blocked for long.

A handler that never suspends blocks the loop for a whole slice. So the size of a slice follows from the time of the
last one: long for ``pass``, one record for a handler that computes.
"""

from __future__ import annotations

import math

__all__ = ["FIRST_SLICE", "MAX_HOLD_S", "is_too_long", "next_slice"]

MAX_HOLD_S = 0.005
"""Target time of a slice, and the time of work after which the loop gets a turn."""

FIRST_SLICE = 16


def next_slice(size: int, took_s: float, longest: int) -> int:
    """Return the size of the next slice, at most ``longest``, when the last one of ``size`` records took ``took_s``."""
    fitting = size * MAX_HOLD_S / took_s if took_s > 0 else math.inf
    return max(1, min(int(min(fitting, size * 2)), longest))


def is_too_long(held_s: float) -> bool:
    """Return True if the loop was blocked so long that other tasks should get a turn."""
    return held_s >= MAX_HOLD_S
