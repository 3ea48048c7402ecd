"""State of the two loops that fetch for one connection to a broker."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

import anyio

from tailrace.auto_reset_event import AutoResetEvent
from tailrace.core.fetch.plan import FetcherSlot, FetchPlan

__all__ = ["FetchConnection", "FetchLoop"]


class FetchConnection(NamedTuple):
    """One of the ``num_fetchers`` connections to a broker."""

    node_id: int
    slot: FetcherSlot


@dataclass(slots=True)
class FetchLoop:
    """State shared by the main loop of a connection and the loop of added partitions.

    Added partitions are those that become fetchable while the main loop's fetch is in flight.
    """

    wakeup: AutoResetEvent = field(default_factory=AutoResetEvent)
    """Set when the main loop must plan its next fetch again."""
    added_wakeup: AutoResetEvent = field(default_factory=AutoResetEvent)
    """Set when there may be added partitions, and when the main loop ends."""
    sent_plan: FetchPlan | None = None
    """Plan of the main loop's fetch in flight; None without one."""
    held_until: float = 0.0
    """Time of the event loop until which the broker may hold the main loop's fetch in flight."""
    held_added: FetchPlan | None = None
    """Plan of the fetch of added partitions that is in flight, if the broker may hold it for long; otherwise None."""
    added_scope: anyio.CancelScope = field(default_factory=anyio.CancelScope)
    """Cancel scope of the latest fetch of added partitions."""
