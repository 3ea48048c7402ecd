"""State of the loops that fetch from one broker."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

import anyio

from tailrace.auto_reset_event import AutoResetEvent
from tailrace.core.fetch.plan import FetcherSlot, FetchPlan

__all__ = ["FetchConnection", "FetchLoop"]


class FetchConnection(NamedTuple):
    """One connection to one broker."""

    node_id: int
    slot: FetcherSlot


@dataclass(slots=True)
class FetchLoop:
    """State shared by the two loops that fetch from one broker for one slot."""

    news: AutoResetEvent = field(default_factory=AutoResetEvent)
    added: AutoResetEvent = field(default_factory=AutoResetEvent)
    under_way: FetchPlan | None = None
    """Plan of the fetch in flight."""
    held_until: float = 0.0
    """Latest time at which the broker answers the fetch in flight."""
    held_added: FetchPlan | None = None
    """Plan of a fetch of added partitions that the broker may hold for long."""
    added_scope: anyio.CancelScope = field(default_factory=anyio.CancelScope)
    """Scope of the latest fetch of added partitions."""
