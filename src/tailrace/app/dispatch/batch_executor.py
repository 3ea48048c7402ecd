"""Executor for batches: each due batch (``app.dispatch.batching``) runs in its own task."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from contextvars import Context

from tailrace.app.dispatch.batching import BatchAssembler, HandlerBatch
from tailrace.app.dispatch.call import BatchCall
from tailrace.app.dispatch.workers import Hold, Recover, Worker, Workers
from tailrace.app.failures.policy import FailuresByIndex
from tailrace.core.metrics import CallMeter
from tailrace.core.progress import Lease
from tailrace.records import Record, TopicPartition

__all__ = ["BatchExecutor", "BatchWorker"]


class BatchWorker(Worker):
    """Task that runs one batch."""

    __slots__ = ("_batching", "batch")

    def __init__(
        self, workers: Workers[BatchWorker], context: Context, batch: HandlerBatch, batching: BatchAssembler
    ) -> None:
        super().__init__(workers, context)
        self.batch, self._batching = batch, batching

    @property
    def records(self) -> list[Record]:
        """Records of the batch that are not finished."""
        return self.batch.records

    @property
    def leases(self) -> list[Lease]:
        """Leases of the records."""
        return self.batch.leases

    def abandon(self, partition: TopicPartition) -> None:
        self._batching.abandon(self.batch, partition)


class BatchExecutor:
    """Executor for the batches of one handler.

    Args:
        batching: queue of the records, from which batches are taken.
        call: call of the handler.
        recover: retries or gives up failed records.
        concurrency: maximum number of batches that run at once.
        on_progress: called when a batch is finished or there is room for more records.

    Attributes:
        workers: running tasks, one for each batch.
        meter: durations and outcomes of the handler's calls.
    """

    def __init__(
        self,
        batching: BatchAssembler,
        call: BatchCall,
        recover: Recover,
        concurrency: int,
        on_progress: Callable[[], None],
    ) -> None:
        self._batching, self._call, self._recover, self._on_progress = batching, call, recover, on_progress
        self._loop = asyncio.get_running_loop()
        self.workers = Workers(concurrency, self._waits, self._ended)
        self.meter = CallMeter()
        self._last_started: BatchWorker | None = None
        """Worker of the batch that was started last; None once its handler has suspended or ended."""
        self._timer: asyncio.TimerHandle | None = None
        """Timer for the next batch that is due."""

    # ---- adding and starting -----------------------------------------------------------------------------------

    def room_of(self, partition: TopicPartition) -> int:
        """Return how many records of a partition may be added now.

        After the start of a batch, that is 0 until its handler suspends or ends.
        """
        # If records were decoded earlier, they would no longer be in the CPU's cache when their handler runs.
        return 0 if self.is_paused or self._last_started is not None else self._batching.room_of(partition)

    def add(self, lease: Lease) -> None:
        """Add the next records of a partition, and start the batches that are due."""
        self._batching.add(lease, self._loop.time())
        self._start_due()

    def hurry(self) -> None:
        """Start incomplete batches; call this if no more records come before all delivered records are finished."""
        self._batching.hurry()
        self._start_due()

    def _start_due(self) -> None:
        """Start all due batches, and set the timer for the next batch."""
        while self._has_room and (batch := self._batching.take(self._loop.time())) is not None:
            self._start(batch)
        self._set_timer(self._batching.due_at if self._has_room else None)

    @property
    def _has_room(self) -> bool:
        return not self.workers.holds and len(self.workers.tasks) < self.workers.max_tasks

    def _start(self, batch: HandlerBatch) -> None:
        self._last_started = self.workers.start(
            lambda context: BatchWorker(self.workers, context, batch, self._batching), self._run_batch
        )

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

    async def run(self, cleanup_s: float) -> None:
        """Start batches until canceled; then cancel the running handlers and wait up to ``cleanup_s`` seconds for them.

        Raises:
            Exception: an error ends the app, such as HandlerFailedError with ``on_failure="stop"``.
        """
        try:
            # SystemExit in a handler makes asyncio cancel all tasks. The shield keeps the error in this future.
            await asyncio.shield(self.workers.first_error)
        finally:
            self.hold("app stops")
            await self.workers.end(cleanup_s)

    # ---- running batches -----------------------------------------------------------------------------------------

    async def _run_batch(self, worker: BatchWorker) -> None:
        # Partitions of the batch may have been halted after this task was created and before it started to run.
        worker.leave_halted()
        if worker.records and (failed := await self.attempt(worker)):
            await self._recover(self, worker, failed)
        self._batching.finish(worker.batch)
        # Thus more records are read in the next iteration of the event loop; ``_ended`` is called one iteration later.
        self._allow_more_records(worker)

    async def attempt(self, worker: BatchWorker) -> FailuresByIndex:
        """Call the handler; return the failures."""
        count, began_at = len(worker.records), self._loop.time()
        worker.since = began_at
        failed: FailuresByIndex
        # If the event loop calls this before the handler has ended, the handler has suspended.
        self._loop.call_soon(self._allow_more_records, worker)
        try:
            failed = await self._call(worker.records)
        except (Exception, asyncio.CancelledError) as error:  # noqa: BLE001 - a handler may raise any exception
            failed = dict.fromkeys(range(len(worker.records)), self.workers.failure_of(error))
        finally:
            worker.since = None
        self.meter.note_batch(count, self._loop.time() - began_at, failed=len(failed))
        return self.workers.check_attempt(failed)

    def keep_only(self, worker: BatchWorker, records: Sequence[Record]) -> None:
        """Finish all records of a batch except ``records``."""
        kept_partitions = {lease.partition for lease in worker.leases}
        self._batching.shrink(worker.batch, [record for record in records if record.topic_partition in kept_partitions])
        self._start_due()
        self._on_progress()

    def _waits(self, worker: BatchWorker) -> None:
        """Run other batches while ``worker`` waits for another attempt."""
        self._batching.failed(worker.batch)
        self._start_due()
        self._on_progress()

    def _ended(self, worker: BatchWorker) -> None:
        """Start other batches after a task has ended."""
        if self._last_started is worker:
            self._last_started = None
        self._start_due()
        self._on_progress()

    def _allow_more_records(self, worker: BatchWorker) -> None:
        """Allow more records if ``worker`` was started last, because its handler has suspended or ended."""
        if self._last_started is worker:
            self._last_started = None
            self._on_progress()

    # ---- holding and halting -------------------------------------------------------------------------------------

    def hold(self, reason: Hold) -> None:
        """Start no more batches until ``release``; started batches continue."""
        if reason not in self.workers.holds:
            self.workers.holds.add(reason)
            self._start_due()
            self._on_progress()

    def release(self, reason: Hold) -> None:
        """End ``hold`` for this reason."""
        if reason in self.workers.holds:
            self.workers.holds.remove(reason)
            self._start_due()
            self._on_progress()

    def halt(self, partition: TopicPartition) -> None:
        """Start no more records of a partition, and leave its records that do not run to the next owner."""
        for lease in self._batching.drop(partition):
            lease.abandon()
        self.workers.leave(partition)

    def drop(self, partition: TopicPartition) -> None:
        """Forget a partition that was revoked, lost, sought or reset; retry none of its failed records."""
        self._batching.drop(partition)
        self.workers.leave(partition)

    # ---- state -------------------------------------------------------------------------------------------------

    @property
    def is_paused(self) -> bool:
        """True while the user has paused the handler."""
        return "paused" in self.workers.holds

    @property
    def waiting(self) -> int:
        """Number of records that were added and have not started."""
        return self._batching.waiting

    @property
    def started(self) -> list[Record]:
        """Records that run or wait for their next attempt."""
        return [record for worker in self.workers for record in worker.records]

    @property
    def started_or_due(self) -> int:
        """Number of records that run, wait for their next attempt, or wait in a batch with a due time."""
        started = sum(max(1, len(worker.records)) for worker in self.workers)
        return started if self._timer is None else started + self._batching.waiting
