"""Started records and batches, and the tasks that run them."""

from __future__ import annotations

import asyncio
from contextvars import Context
from typing import Any, Protocol

from tailrace.app.publish.abandonment import HandlerTask
from tailrace.core.delivery.progress import Lease
from tailrace.core.dispatch.batching import HandlerBatch
from tailrace.core.dispatch.lanes import QueuedRecord
from tailrace.core.metrics import UnmeasuredRun
from tailrace.records import Record, TopicPartition

__all__ = ["RunningBatch", "Work", "Worker"]


class Work(Protocol):
    """Record or batch that was started and is not finished, with its task.

    Attributes:
        queued: record or batch, as it was taken from the queue.
        publishing: marks messages of this task, which are refused once the task is abandoned.
        since: event loop time at which the handler was called; None while it is not running.
        waits: pauses before another attempt, each with the partition that waits, or None if all partitions wait.
    """

    queued: Any
    publishing: HandlerTask
    since: float | None
    waits: dict[asyncio.Future[None], TopicPartition | None]

    @property
    def records(self) -> list[Record]:
        """Records that are neither finished nor left to another owner."""

    @property
    def leases(self) -> list[Lease]:
        """Leases of ``records``."""


class Worker:
    """Task that runs one record after the other.

    Attributes:
        context: context of the task.
        initial_context: copy of ``context``, as each record must find it.
        record: record that the task runs.
        queued: entry of the record in the lanes; None unless the record was suspended or parked.
        wakeup: future that wakes the idle worker; None before the worker was first idle.
        has_yielded: True if the last finished record was suspended, so that the event loop has iterated.
        unmeasured: calls of the worker that the meter does not contain yet.
        is_left: True if the record is left to another owner.
    """

    __slots__ = (
        "context",
        "has_yielded",
        "initial_context",
        "is_left",
        "publishing",
        "queued",
        "record",
        "since",
        "unmeasured",
        "waits",
        "wakeup",
    )

    def __init__(self, context: Context) -> None:
        self.publishing = HandlerTask(context)
        self.context, self.initial_context = context, context.copy()
        self.record: Record | None = None
        self.queued: QueuedRecord | None = None
        self.since: float | None = None
        self.waits: dict[asyncio.Future[None], TopicPartition | None] = {}
        self.wakeup: asyncio.Future[None] | None = None
        self.has_yielded = self.is_left = False
        self.unmeasured = UnmeasuredRun()

    @property
    def has_changed_context(self) -> bool:
        """True if a handler has changed the context, so that the next record must start in a new task."""
        return self.context != self.initial_context

    @property
    def records(self) -> list[Record]:
        """Record that the task runs, as a list; empty without a record or after its partition was given up."""
        return [] if self.record is None or self.is_left else [self.record]

    @property
    def leases(self) -> list[Lease]:
        """Lease of the record, as a list; empty unless the record was suspended or parked."""
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
