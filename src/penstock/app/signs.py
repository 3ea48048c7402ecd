"""What an app hears of its consumers, kept for whoever asks how it is."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable

from penstock.observe.events import (
    ConnectionOpened,
    Event,
    GroupJoined,
    MetadataRefreshFailed,
    PartitionsAssigned,
    RebalanceStarted,
)

__all__ = ["Signs"]


class Signs:
    """A hook: which groups have their first assignment, which rebalance, whether the cluster can be talked to.

    Attributes:
        assigned: set when each group has given its first assignment, even an empty one.
        broker_error: why the cluster cannot be talked to; empty while it can.
    """

    def __init__(self, group_ids: Iterable[str]) -> None:
        self._missing = set(group_ids)
        self._rebalancing: set[str] = set()
        self.assigned = asyncio.Event()
        self.broker_error = ""

    @property
    def is_rebalancing(self) -> bool:
        """Whether a group deals out partitions now."""
        return bool(self._rebalancing)

    def on_event(self, event: Event) -> None:
        """Take note."""
        match event:
            case PartitionsAssigned(group_id=group_id):
                self._missing.discard(group_id)
                if not self._missing:
                    self.assigned.set()
            case RebalanceStarted(group_id=group_id):
                self._rebalancing.add(group_id)
            case GroupJoined(group_id=group_id):
                self._rebalancing.discard(group_id)
            case MetadataRefreshFailed(reason=error):
                self.broker_error = error
            case ConnectionOpened():
                self.broker_error = ""
            case _:
                pass
