"""Started records and batches, with the tasks that run them."""

from __future__ import annotations

import asyncio
from contextvars import Context
from typing import Any, Protocol

from tailrace.app.dispatch.batching import HandlerBatch
from tailrace.app.dispatch.lanes import QueuedRecord
from tailrace.app.publish.results import HandlerTask
from tailrace.core.metrics import UnmeasuredRun
from tailrace.core.progress import Lease
from tailrace.records import Record, TopicPartition

__all__ = ["RunningBatch", "Work", "Worker"]


class Work(Protocol):
    """Record or batch that was started and is not finished, with its task.

    Attributes:
        queued: entry of the record or batch in the queue that it was taken from.
        handler_task: identifies the task to publishers, which refuse its messages once the task is abandoned.
        since: event loop time at which the running call began; None if no call runs.
        waits: futures that end a pause before another attempt, each with the partition whose records wait; None instead
            of the partition if all records of the work wait.
    """

    queued: Any
    handler_task: HandlerTask
    since: float | None
    waits: dict[asyncio.Future[None], TopicPartition | None]

    @property
    def records(self) -> list[Record]:
        """Records that are neither finished nor left to another owner of their partition."""

    @property
    def leases(self) -> list[Lease]:
        """Leases of ``records``, as far as they are in a queue: none for a record whose task has never suspended."""


class Worker:
    """Task that runs one record after the other.

    Attributes:
        context: context of the task.
        initial_context: copy of ``context`` at the start of the task.
        record: record that the task runs; None while the task is idle.
        queued: entry of the record in the lanes; None unless the record was suspended or parked.
        wakeup: future that wakes the idle worker; None before the worker was first idle.
        has_yielded: True if the last finished record had suspended, so the event loop has run other tasks meanwhile.
        unmeasured: calls of the worker that are not in the meter yet.
        has_left_record: True if the record is left to another owner of its partition.
    """

    __slots__ = (
        "context",
        "handler_task",
        "has_left_record",
        "has_yielded",
        "initial_context",
        "queued",
        "record",
        "since",
        "unmeasured",
        "waits",
        "wakeup",
    )

    def __init__(self, context: Context) -> None:
        self.handler_task = HandlerTask(context)
        self.context, self.initial_context = context, context.copy()
        self.record: Record | None = None
        self.queued: QueuedRecord | None = None
        self.since: float | None = None
        self.waits: dict[asyncio.Future[None], TopicPartition | None] = {}
        self.wakeup: asyncio.Future[None] | None = None
        self.has_yielded = self.has_left_record = False
        self.unmeasured = UnmeasuredRun()

    @property
    def has_changed_context(self) -> bool:
        """True if a handler has changed a context variable, so that the next record needs a new task."""
        return self.context != self.initial_context

    @property
    def records(self) -> list[Record]:
        """List of the record that the task runs; empty if it has none or has left it to another owner."""
        return [] if self.record is None or self.has_left_record else [self.record]

    @property
    def leases(self) -> list[Lease]:
        """List of the record's lease; empty unless the record was suspended or parked."""
        return [] if self.queued is None else [self.queued.lease]


class RunningBatch:
    """Task that runs one batch."""

    __slots__ = ("handler_task", "queued", "since", "waits")

    def __init__(self, context: Context, batch: HandlerBatch) -> None:
        self.handler_task, self.queued = HandlerTask(context), batch
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
