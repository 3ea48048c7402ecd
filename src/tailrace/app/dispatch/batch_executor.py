"""Executor for batches: each due batch runs in its own task."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from contextvars import Context
from typing import TypeAlias

from tailrace.app.dispatch.batching import BatchAssembler, HandlerBatch
from tailrace.app.dispatch.executor import Executor, ExecutorOptions, Recover, Worker
from tailrace.app.failures.policy import FailuresByIndex
from tailrace.app.policies import Batch
from tailrace.core.progress import Lease
from tailrace.records import Record, TopicPartition

__all__ = ["BatchExecutor", "BatchWorker"]

Attempt: TypeAlias = Callable[[list[Record]], Awaitable[FailuresByIndex]]
"""Calls the handler for a batch; returns the failures."""


class BatchWorker(Worker):
    """Task that runs one batch."""

    __slots__ = ("queued",)

    def __init__(self, context: Context, batch: HandlerBatch) -> None:
        super().__init__(context)
        self.queued: HandlerBatch = batch

    @property
    def records(self) -> list[Record]:
        """Records of the batch that are not finished."""
        return self.queued.records

    @property
    def leases(self) -> list[Lease]:
        """Leases of the records."""
        return self.queued.leases


class BatchExecutor(Executor[BatchWorker]):
    """Executor for the batches of one handler."""

    handles_batches = True

    def __init__(self, attempt: Attempt, recover: Recover, options: ExecutorOptions, limits: Batch) -> None:
        self._attempt = attempt
        self._batching = BatchAssembler(
            options.order_by,
            limits,
            window=options.window,
            ahead=options.concurrency * limits.max_records,
            on_full=options.on_full,
        )
        super().__init__(self._batching, recover, options)
        self._last_started: BatchWorker | None = None
        """Worker of the batch that was started last; None once its handler has suspended or ended."""
        self._timer: asyncio.TimerHandle | None = None

    def room_of(self, partition: TopicPartition) -> int:
        """Return how many records of a partition may be added now.

        After the start of a batch, that is 0 until its handler suspends or ends.
        """
        # If records were decoded earlier, they would no longer be in the CPU's cache when their handler runs.
        return 0 if self._last_started is not None else super().room_of(partition)

    @property
    def is_gathering(self) -> bool:
        """True while records wait for more records of their batch."""
        return self._batching.waiting > 0

    def hurry(self) -> None:
        """Start incomplete batches; call this if no more records come before all delivered records are finished."""
        self._batching.hurry()
        self._start_due()

    @property
    def started_or_due(self) -> int:
        """Number of records that run, wait for their next attempt, or wait in a batch with a due time."""
        started = sum(max(1, len(worker.records)) for worker in self._workers)
        return started if self._timer is None else started + self._batching.waiting

    def keep_only(self, worker: BatchWorker, records: Sequence[Record]) -> None:
        """Finish all records of a batch except ``records``."""
        kept_partitions = {lease.partition for lease in worker.leases}
        self._batching.shrink(
            worker.queued, [record for record in records if record.topic_partition in kept_partitions]
        )
        self._start_due()
        self._on_progress()

    # ---- starts --------------------------------------------------------------------------------------------------

    def _start_due(self) -> None:
        """Start all due batches, and set the timer for the next batch."""
        while self._has_room and (batch := self._batching.take(self._loop.time())) is not None:
            self._start(batch)
        self._set_timer(self._batching.due_at if self._has_room else None)

    @property
    def _has_room(self) -> bool:
        return self._may_start and len(self._workers.tasks) < self._workers.max_tasks

    def _start(self, batch: HandlerBatch) -> None:
        self._last_started = self._workers.start(lambda context: BatchWorker(context, batch), self._run_batch)

    def _set_timer(self, due_at: float | None) -> None:
        """Make the timer fire at ``due_at`` or earlier; stop the timer if ``due_at`` is None."""
        if self._timer is not None:
            if due_at is not None and self._timer.when() <= due_at:
                return
            self._timer.cancel()
            self._timer = None
        if due_at is not None:
            self._timer = self._loop.call_at(due_at, self._timer_fired)

    def _timer_fired(self) -> None:
        self._timer = None
        self._start_due()
        self._on_progress()

    # ---- running batches -----------------------------------------------------------------------------------------

    async def _run_batch(self, worker: BatchWorker) -> None:
        # Partitions of the batch may have been halted after this task was created and before it started to run.
        self._leave_halted_partitions(worker)
        if worker.records and (failed := await self.attempt(worker)):
            await self._recover(self, worker, failed)
        self._batching.finish(worker.queued)
        # Thus more records are read in the next iteration of the event loop; ``_ended`` is called one iteration later.
        self._allow_more_records(worker)

    async def _call(self, worker: BatchWorker) -> FailuresByIndex:
        worker.since = self._loop.time()
        # If the event loop calls this before the handler has ended, the handler has suspended.
        self._loop.call_soon(self._allow_more_records, worker)
        try:
            return await self._attempt(worker.records)
        finally:
            worker.since = None

    def _allow_more_records(self, worker: BatchWorker) -> None:
        """Allow more records if ``worker`` was started last, because its handler has suspended or ended."""
        if self._last_started is worker:
            self._last_started = None
            self._on_progress()

    def _remove(self, worker: BatchWorker, partition: TopicPartition) -> None:
        self._batching.abandon(worker.queued, partition)

    def _ended(self, worker: BatchWorker) -> None:
        if self._last_started is worker:
            self._last_started = None
        super()._ended(worker)
