"""Choice of the partitions whose end offsets no fetch brings."""

from __future__ import annotations

from collections.abc import Iterable

from tailrace.core.delivery.positions import Position
from tailrace.core.fetch.plan import FetchPlan

__all__ = ["without_fetch"]


def without_fetch(positions: Iterable[Position], in_flight: Iterable[FetchPlan]) -> list[Position]:
    """Return the positions that no fetch in flight includes: paused ones, and those whose share of the buffer is full.

    A fetch in flight brings the end offset when it changes.
    """
    requested = {partition for plan in in_flight for partition in plan.partitions}
    return [one for one in positions if one.is_fetchable and one.partition not in requested]
