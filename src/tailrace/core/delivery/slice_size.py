"""How many records to decode at once, so that the event loop is never held for long.

A handler that never suspends keeps the loop for a whole slice. So a slice is as long as what a few milliseconds are
enough for, as seen from the one before: long for ``pass``, one record for a handler that computes.
"""

from __future__ import annotations

import math

__all__ = ["FIRST_SLICE", "MAX_HOLD_S", "is_too_long", "next_slice"]

MAX_HOLD_S = 0.005
"""How long a slice should take, and after how much work the loop is given a turn."""

FIRST_SLICE = 16


def next_slice(size: int, took_s: float, longest: int) -> int:
    """The next slice's size, when the last one of ``size`` records took ``took_s``; at most ``longest``."""
    fitting = size * MAX_HOLD_S / took_s if took_s > 0 else math.inf
    return max(1, min(int(min(fitting, size * 2)), longest))


def is_too_long(held_s: float) -> bool:
    """Whether the loop has been held for so long that others should have a turn."""
    return held_s >= MAX_HOLD_S
