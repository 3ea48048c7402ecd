"""Started work of an executor: a record or a batch, and the task that runs it."""

from __future__ import annotations

import asyncio
from contextvars import Context
from typing import Any, Protocol

from tailrace.app.publish.abandonment import HandlerTask
from tailrace.core.delivery.progress import Lease
from tailrace.core.dispatch.batching import HandlerBatch
from tailrace.core.dispatch.lanes import QueuedRecord
from tailrace.records import Record, TopicPartition

__all__ = ["RunningBatch", "Work", "Worker"]


class Work(Protocol):
    """A record or a batch that was started and is not finished, in a task.

    Attributes:
        queued: the record or batch, as it was taken out of the queue.
        publishing: mark of the task.
        since: time at which the handler was called; None while it is not called, or waits for another attempt.
        waits: pauses before another attempt, each of one partition; None for all of them.
    """

    queued: Any
    publishing: HandlerTask
    since: float | None
    waits: dict[asyncio.Future[None], TopicPartition | None]

    @property
    def records(self) -> list[Record]:
        """Records that are not finished, and not left to another owner."""

    @property
    def leases(self) -> list[Lease]:
        """Leases of ``records``."""


class Worker:
    """Task that runs one record after the other.

    Attributes:
        context: context in which each record starts.
        record: the record that it runs.
        queued: the same, once that is suspended or was parked before.
        rested: ends the worker's rest; None while it does not rest.
        has_rested: True if the event loop had its turn while the last record was suspended.
        has_paused: True if the last record waited for another attempt.
        is_left: True if the record is left to another owner.
    """

    __slots__ = (
        "context",
        "has_paused",
        "has_rested",
        "is_left",
        "publishing",
        "queued",
        "record",
        "rested",
        "since",
        "waits",
    )

    def __init__(self, context: Context) -> None:
        self.publishing = HandlerTask(context)
        self.context = context.copy()
        self.record: Record | None = None
        self.queued: QueuedRecord | None = None
        self.since: float | None = None
        self.waits: dict[asyncio.Future[None], TopicPartition | None] = {}
        self.rested: asyncio.Future[None] | None = None
        self.has_rested = self.has_paused = self.is_left = False

    @property
    def records(self) -> list[Record]:
        """The record that it runs, if any."""
        return [] if self.record is None or self.is_left else [self.record]

    @property
    def leases(self) -> list[Lease]:
        """The record's lease; none while the record was never suspended."""
        return [] if self.queued is None else [self.queued.lease]


class RunningBatch:
    """Task that runs one batch."""

    __slots__ = ("publishing", "queued", "since", "waits")

    def __init__(self, context: Context, batch: HandlerBatch) -> None:
        self.publishing, self.queued = HandlerTask(context), batch
        self.since: float | None = None
        self.waits: dict[asyncio.Future[None], TopicPartition | None] = {}

    @property
    def records(self) -> list[Record]:
        """Records of the batch that are not finished."""
        return self.queued.records

    @property
    def leases(self) -> list[Lease]:
        """Leases of the records."""
        return self.queued.leases
