"""A worker and the record that it is at, and what is held of a partition while some of its records run.

Rule of this file: values that ``app.line`` and ``app.workers`` change, and nobody else.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

from penstock.core.lanes import Work
from penstock.core.positions import Position
from penstock.core.tracker import Tracker
from penstock.records import Record

__all__ = ["Held", "Worker"]


@dataclass(slots=True, eq=False)
class Held:
    """What is held of one partition since its last beginning."""

    position: Position
    tracker: Tracker
    """Told of records that are suspended, or parked behind one that is."""
    is_halted: bool = False
    """Whether nothing more of it is begun here, and nothing that failed is tried again."""
    left: int | None = None
    """Since then: the lowest offset that was not taken up, or will not be done here."""

    def leave(self, offset: int) -> None:
        """A record that was begun will not be done here, so that nobody waits for it."""
        self.tracker.abandon(offset)
        self.left = offset if self.left is None else min(self.left, offset)
        if self.position.tracker is self.tracker and self.position.delivered is not None:
            self.position.delivered = min(self.position.delivered, self.left)


class Worker:
    """A task that runs records, and the one that it is at."""

    __slots__ = ("has_paused", "has_rested", "record", "rested", "since", "work")

    def __init__(self) -> None:
        self.record: Record | None = None
        self.work: Work[Held] | None = None
        """Of the record, once that is suspended or was parked before."""
        self.since: float | None = None
        """When it was suspended first; None while it waits for its next attempt."""
        self.rested: asyncio.Future[None] | None = None
        self.has_rested = False
        """Whether the event loop has had its turn while the last record was suspended."""
        self.has_paused = False
        """Whether that one has waited for another attempt."""
