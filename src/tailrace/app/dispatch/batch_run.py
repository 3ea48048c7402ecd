"""A batch under way, and what is held of a partition while batches of it are.

Rule of this file: values that ``app.dispatch.batch_executor`` changes, and nobody else.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextvars import Context
from dataclasses import dataclass, field
from typing import TypeAlias

from tailrace.app.dispatch.batch_failures import Failed
from tailrace.app.publish.abandonment import HandlerTask
from tailrace.core.delivery.offset_tracker import OffsetTracker
from tailrace.core.delivery.progress import Position
from tailrace.core.dispatch.batching import HandlerBatch
from tailrace.records import Record, TopicPartition

__all__ = ["Attempt", "BatchPartition", "BatchRun"]

Attempt: TypeAlias = Callable[[list[Record]], Awaitable[Failed]]
"""Runs a batch, and gives what failed of it."""


@dataclass(slots=True, eq=False)
class BatchPartition:
    """What is held of one partition since its last beginning."""

    position: Position
    tracker: OffsetTracker
    whole: dict[BatchRun, int] = field(default_factory=dict)
    """The batches of which its tracker was not told, and of each the lowest offset."""
    passed: int = 0
    """By key: of what is gathered below, which other batches have overtaken, its tracker was told."""
    is_halted: bool = False
    """Whether nothing more of it is begun here, and nothing that failed is tried again."""
    left: int | None = None
    """Since then: the lowest offset that will not be done here."""

    def leave(self, offset: int) -> None:
        """What is at ``offset`` will not be done here, so that nobody waits for it."""
        self.left = offset if self.left is None else min(self.left, offset)
        if self.position.tracker is self.tracker and self.position.delivered is not None:
            self.position.delivered = min(self.position.delivered, self.left)


class BatchRun:
    """A batch under way, until all its records are done with.

    Attributes:
        batch: its records, and where they came from.
        since: when the handler was called; None while it is not at work.
        is_tracked: whether the trackers know of each of its records.
        publishing: the mark of its task.
        waits: what it waits for without being in the way, and of which partition; None for all of them.
    """

    __slots__ = ("batch", "is_tracked", "publishing", "since", "waits")

    def __init__(self, batch: HandlerBatch[BatchPartition], context: Context) -> None:
        self.batch, self.publishing = batch, HandlerTask(context)
        self.since: float | None = None
        self.is_tracked = False
        self.waits: dict[asyncio.Future[None], TopicPartition | None] = {}

    @property
    def records(self) -> list[Record]:
        """Those that are not done with."""
        return self.batch.records
