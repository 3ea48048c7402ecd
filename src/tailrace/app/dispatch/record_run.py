"""A worker and the record that it is at, and what is held of a partition while some of its records run.

Rule of this file: values that ``app.dispatch.record_executor`` and ``app.dispatch.workers`` change, and nobody else.
"""

from __future__ import annotations

import asyncio
from contextvars import Context
from dataclasses import dataclass

from tailrace.app.publish.abandonment import HandlerTask
from tailrace.core.delivery.offset_tracker import OffsetTracker
from tailrace.core.delivery.progress import Position
from tailrace.core.dispatch.lanes import QueuedRecord
from tailrace.records import Record

__all__ = ["RecordPartition", "Worker"]


@dataclass(slots=True, eq=False)
class RecordPartition:
    """What is held of one partition since its last beginning."""

    position: Position
    tracker: OffsetTracker
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
    """A task that runs records, and the one that it is at.

    Args:
        context: the context of the task.
    """

    __slots__ = ("context", "has_paused", "has_rested", "publishing", "record", "rested", "since", "work")

    def __init__(self, context: Context) -> None:
        self.publishing = HandlerTask(context)
        self.context = context.copy()
        """The context that each record begins in."""
        self.record: Record | None = None
        self.work: QueuedRecord[RecordPartition] | None = None
        """Of the record, once that is suspended or was parked before."""
        self.since: float | None = None
        """When it was suspended first; None while it waits for its next attempt."""
        self.rested: asyncio.Future[None] | None = None
        self.has_rested = False
        """Whether the event loop has had its turn while the last record was suspended."""
        self.has_paused = False
        """Whether that one has waited for another attempt."""

    @property
    def records(self) -> list[Record]:
        """The record that it runs, if any."""
        return [] if self.record is None else [self.record]
