"""State of the loops that fetch on one connection to a broker."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

import anyio

from tailrace.auto_reset_event import AutoResetEvent
from tailrace.core.fetch.plan import FetcherSlot, FetchPlan

__all__ = ["FetchConnection", "FetchLoop"]


class FetchConnection(NamedTuple):
    """Connection to a broker: the broker's node id, and which of its ``num_fetchers`` connections it is."""

    node_id: int
    slot: FetcherSlot


@dataclass(slots=True)
class FetchLoop:
    """State shared by the main loop of a connection and the loop that fetches partitions added meanwhile."""

    news: AutoResetEvent = field(default_factory=AutoResetEvent)
    """Set to plan the next fetch again."""
    added: AutoResetEvent = field(default_factory=AutoResetEvent)
    """Set when partitions may have been added while a fetch is in flight, and when the main loop ends."""
    under_way: FetchPlan | None = None
    """Plan of the fetch in flight."""
    held_until: float = 0.0
    """Latest time at which the broker answers the fetch in flight."""
    held_added: FetchPlan | None = None
    """Plan of the fetch of added partitions in flight, if the broker holds it for long; None otherwise."""
    added_scope: anyio.CancelScope = field(default_factory=anyio.CancelScope)
    """Cancel scope of the latest fetch of added partitions."""
