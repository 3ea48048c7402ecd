"""Selection of the partitions whose end offsets have to be requested, because no fetch reports them."""

from __future__ import annotations

from collections.abc import Iterable

from tailrace.core.delivery.positions import Position
from tailrace.core.fetch.plan import FetchPlan

__all__ = ["positions_without_fetch"]


def positions_without_fetch(positions: Iterable[Position], in_flight: Iterable[FetchPlan]) -> list[Position]:
    """Return the positions of partitions that no fetch in flight includes, for example because they are paused.

    The answer to a fetch in flight reports the end offset of its partitions when it changes.
    """
    requested = {partition for plan in in_flight for partition in plan.partitions}
    return [one for one in positions if one.is_fetchable and one.partition not in requested]
