"""Executor for records: workers that take one record after the other from the lanes (``app.dispatch.lanes``).

A worker runs records one after the other until a handler suspends. Only then is another worker woken and the state of
the suspended record kept, so a handler that never suspends costs no task, no timer and no set entry per record. All
workers share one event loop, so at most one worker runs at any moment: ``_running``, until its handler suspends.

How a record is finished:

- A record whose handler does not suspend is finished without a call. It is the record taken last from the iterator of
  its ``Lease``, and the lease counts all records taken before the last one as finished. So taking the next record
  finishes it, in ``_run`` and in its compiled version, too. If no record of the lease is taken next,
  ``Lanes.finish_last`` finishes it, or the end of the slice.
- A record whose handler suspends must be tracked by its offset before any other record is taken. ``_mark_suspended``
  does that (``Lanes.suspended``, ``Lease.start``) and sets ``worker.queued``. It is called by ``_on_loop_iteration``,
  which the event loop cannot run before the handler suspends, and before all else that takes records or changes the
  state of the executor, for code that runs earlier in the same iteration. A second call changes nothing.
- A record with ``worker.queued``, because it was suspended or parked, is finished by ``_finish_started``.

So at most one record is taken and neither finished nor tracked: the record of ``_running`` without ``queued``.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextvars import Context
from functools import partial
from itertools import islice
from operator import length_hint

from tailrace.app.dispatch.call import HandlerCall, UnitCall
from tailrace.app.dispatch.lanes import Lanes, QueuedRecord
from tailrace.app.dispatch.workers import Hold, Recover, Worker, Workers
from tailrace.app.failures.policy import FailuresByIndex
from tailrace.awaitables import must_resolve
from tailrace.consumer.delivery.reader import is_too_long
from tailrace.core.metrics import CallMeter, UnmeasuredRun
from tailrace.core.progress import Lease
from tailrace.installation import handler_run
from tailrace.producer.traces import is_opentelemetry_imported
from tailrace.records import Record, TopicPartition

__all__ = ["RecordExecutor", "RecordWorker"]

_MAX_RECORDS_PER_CLOCK_READING = 32
"""Maximum number of records that run between two readings of the clock; the number begins with 1 and doubles."""


class RecordWorker(Worker):
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
        "has_left_record",
        "has_yielded",
        "initial_context",
        "queued",
        "record",
        "unmeasured",
        "wakeup",
    )

    def __init__(self, workers: Workers[RecordWorker], context: Context) -> None:
        super().__init__(workers, context)
        self.context, self.initial_context = context, context.copy()
        self.record: Record | None = None
        self.queued: QueuedRecord | None = None
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

    def abandon(self, _partition: TopicPartition) -> None:
        assert self.record is not None
        for lease in self.leases:
            lease.progress.abandon(self.record.offset)
        self.has_left_record = True


class RecordExecutor:
    """Executor for the records of one handler.

    Args:
        lanes: queue of the records.
        call: call of the handler.
        recover: retries or gives up a failed record.
        concurrency: maximum number of records that run at once.
        on_progress: called when a record is finished or there is room for more records.

    Attributes:
        workers: running tasks; ``add`` starts the first one.
        meter: durations and outcomes of the handler's calls.
    """

    def __init__(
        self, lanes: Lanes, call: HandlerCall, recover: Recover, concurrency: int, on_progress: Callable[[], None]
    ) -> None:
        self._lanes, self._recover, self._on_progress = lanes, recover, on_progress
        self._handle, self._publish_result, self._value_call, self._collected = call
        self._loop = asyncio.get_running_loop()
        self.workers = Workers(concurrency, self._waits, self._ended)
        self.meter = CallMeter()
        self._idle: list[RecordWorker] = []
        self._running: RecordWorker | None = None
        """Worker whose handler runs and has not suspended yet."""
        self._is_iteration_awaited = False
        """True if a call of ``_on_loop_iteration`` is scheduled."""

    # ---- adding ------------------------------------------------------------------------------------------------

    def room_of(self, partition: TopicPartition) -> int:
        """Return how many records of a partition may be added now."""
        return 0 if self.is_paused else self._lanes.room_of(partition)

    def add(self, lease: Lease) -> None:
        """Add the next records of a partition, and start the work that may start now."""
        self._lanes.add(lease)
        self._start_due()

    def _start_due(self) -> None:
        """Wake or start one worker; when its handler suspends, ``_on_loop_iteration`` wakes the next worker."""
        if self._running is not None or not self._lanes.waiting or self.workers.holds:
            return
        if self._idle:
            wakeup = self._idle.pop().wakeup
            if wakeup is not None and not wakeup.done():
                wakeup.set_result(None)
        elif len(self.workers.tasks) < self.workers.max_tasks:
            self.workers.start(partial(RecordWorker, self.workers), self._run_worker)

    async def run(self, cleanup_s: float) -> None:
        """Start records until canceled; then cancel the running handlers and wait up to ``cleanup_s`` seconds for them.

        Raises:
            Exception: an error ends the app, such as HandlerFailedError with ``on_failure="stop"``.
        """
        try:
            # SystemExit in a handler makes asyncio cancel all tasks. The shield keeps the error in this future.
            await asyncio.shield(self.workers.first_error)
        finally:
            self.hold("app stops")
            await self.workers.end(cleanup_s)

    # ---- a worker takes one record after the other -------------------------------------------------------------

    async def _run_worker(self, worker: RecordWorker) -> None:
        workers = self.workers
        while True:
            await self._run_records(worker)
            if "app stops" in workers.holds or worker.has_changed_context or len(workers.tasks) > workers.max_tasks:
                return
            worker.wakeup = self._loop.create_future()
            self._idle.append(worker)
            await worker.wakeup

    async def _run_records(self, worker: RecordWorker) -> None:
        handle, publish_result, workers = self._handle, self._publish_result, self.workers
        began_at = self._loop.time()
        while (record := self._take(worker)) is not None:
            failure: Exception | None = None
            try:
                if (returned := await handle(record)) is not None:
                    await publish_result(record, returned)
            except (Exception, asyncio.CancelledError) as error:  # noqa: BLE001 - a handler may raise any exception
                failure = workers.failure_of(error)
            # Outside of the ``except`` block, so that this failure does not become the context of later exceptions.
            if failure is not None:
                await self._recover_record(worker, failure)
                failure = None
            if not self._finish_started(worker) and not worker.has_changed_context:
                await self._run_free(worker, began_at)
            self.meter.note_run(*worker.unmeasured.end(self._loop.time()))
            worker.record = None
            if worker.has_changed_context:
                break
            if worker.has_yielded:
                worker.has_yielded, began_at = False, self._loop.time()
                if len(workers.tasks) > workers.max_tasks:
                    # While the record waited for its next attempt, another worker was started, which continues instead.
                    break
            elif is_too_long(self._loop.time() - began_at):
                self._note_yield()
                await asyncio.sleep(0)
                began_at = self._loop.time()
        self._note_yield()
        self._on_progress()

    async def _run_free(self, worker: RecordWorker, began_at: float) -> None:
        """Run the records of ``Lanes.free`` until one suspends or changes the context, or the event loop must run."""
        free, holds, count = self._lanes.free, self.workers.holds, 1
        worker.unmeasured.count_records(free)
        while length_hint(free) and not holds and not is_too_long(self._loop.time() - began_at):
            failure: Exception | None = None
            try:
                if (returned := await self._run_next(worker, free, count)) is not None:
                    assert worker.record is not None
                    await self._publish_result(worker.record, returned)
            except (Exception, asyncio.CancelledError) as error:  # noqa: BLE001 - a handler may raise any exception
                failure = self.workers.failure_of(error)
            if failure is not None:
                await self._recover_record(worker, failure)
                failure = None
            if worker.queued is not None or worker.has_changed_context:
                self._finish_started(worker)
                return
            count = min(2 * count, _MAX_RECORDS_PER_CLOCK_READING)

    def _run_next(self, worker: RecordWorker, free: Iterator[Record], count: int) -> Awaitable[object]:
        """Return an awaitable that does the same as ``_run``, with compiled code if it is installed."""
        if handler_run is None:
            return _run(worker, free, count, self._handle, self._collected)
        call = None if self._value_call is None or is_opentelemetry_imported() else self._value_call
        return handler_run(
            worker, free, count, self._handle, call and call.function, call and call.decode, self._collected
        )

    def _take(self, worker: RecordWorker) -> Record | None:
        """Make ``worker`` the running worker; return its next record, or None if no record may run now."""
        if self._running is not None:
            self._mark_suspended(worker)
        self._running = worker
        queued = self._lanes.take() if not self.workers.holds else None
        if queued is None:
            return None
        worker.record, worker.has_left_record = queued.record, False
        now = self._loop.time()
        worker.unmeasured.begin(now)
        if queued.is_started:
            worker.queued, worker.since = queued, now
        if not self._is_iteration_awaited:
            self._is_iteration_awaited = True
            self._loop.call_soon(self._on_loop_iteration)
        return queued.record

    def _finish_started(self, worker: RecordWorker) -> bool:
        """Finish the worker's record if it was suspended or parked; return False if it was neither."""
        queued = worker.queued
        if queued is None:
            return False
        worker.has_yielded = self._running is not worker
        if self._running is not None:
            self._mark_suspended(worker)
        worker.queued = worker.record = worker.since = None
        if self.workers.has_abandoned:
            return True
        self._lanes.finished(queued)
        if queued.lease.progress.is_halted or self._lanes.waiting < self._lanes.lane_limit:
            self._on_progress()
        return True

    def _note_yield(self) -> None:
        """Note that the running worker is about to yield to the event loop, without a record in flight."""
        self._running = None
        self._lanes.finish_last()

    # ---- handlers that suspend ---------------------------------------------------------------------------------

    def _on_loop_iteration(self) -> None:
        """Wake another worker: since the event loop calls this, the running handler has suspended or ended."""
        self._is_iteration_awaited = False
        self._mark_suspended()
        if self._lanes.waiting and not self.workers.holds:
            self._start_due()
        else:
            # Report progress now, because the suspended record may take long to finish.
            self._on_progress()

    def _mark_suspended(self, except_worker: RecordWorker | None = None) -> None:
        """Track the running record by its offset, because its handler has suspended; do nothing if it is tracked."""
        running, self._running = self._running, None
        if running is None or running is except_worker or running.record is None or running.queued is not None:
            return
        running.queued = self._lanes.last_taken(running.record)
        running.since = now = self._loop.time()
        self.meter.note_run(*running.unmeasured.suspend(now))
        self._lanes.suspended(running.queued)

    # ---- failed records ----------------------------------------------------------------------------------------

    async def _recover_record(self, worker: RecordWorker, failure: Exception) -> None:
        self.meter.note_run(*worker.unmeasured.end(self._loop.time()), failed=1)
        await self._recover(self, worker, {0: failure})
        if worker.queued is not None:
            self._lanes.recovered(worker.queued)

    async def attempt(self, worker: RecordWorker) -> FailuresByIndex:
        """Call the handler again, and return the failure."""
        assert worker.record is not None
        worker.since, failed = self._loop.time(), {}
        try:
            if (returned := await self._handle(worker.record)) is not None:
                await self._publish_result(worker.record, returned)
        except (Exception, asyncio.CancelledError) as error:  # noqa: BLE001 - a handler may raise any exception
            failed = {0: self.workers.failure_of(error)}
        self.meter.note_run(1, self._loop.time() - worker.since, failed=len(failed))
        return self.workers.check_attempt(failed)

    def keep_only(self, _worker: RecordWorker, _records: Sequence[Record]) -> None:
        """Do nothing, because the worker finishes its only record after the recovery."""

    def _waits(self, worker: RecordWorker) -> None:
        """Run other records while ``worker`` waits for another attempt."""
        self._mark_suspended()
        assert worker.queued is not None
        self._lanes.failed(worker.queued)
        self._start_due()
        self._on_progress()

    def _ended(self, worker: RecordWorker) -> None:
        """Start other records after a task has ended."""
        if self._running is worker:
            self._running = None
        self._start_due()
        self._on_progress()

    # ---- holding and halting -------------------------------------------------------------------------------------

    def hold(self, reason: Hold) -> None:
        """Start no more records until ``release``; started records continue."""
        # A handler may call this. Its worker then counts as suspended, and checks ``holds`` before its next record.
        self._mark_suspended()
        if reason not in self.workers.holds:
            self.workers.holds.add(reason)
            self._on_progress()

    def release(self, reason: Hold) -> None:
        """End ``hold`` for this reason."""
        if reason in self.workers.holds:
            self.workers.holds.remove(reason)
            self._start_due()
            self._on_progress()

    def halt(self, partition: TopicPartition) -> None:
        """Start no more records of a partition, and leave its records that do not run to the next owner."""
        self._mark_suspended()
        leases, parked = self._lanes.drop(partition)
        for lease in leases:
            lease.abandon()
        for queued in parked:
            queued.lease.progress.abandon(queued.record.offset)
        self.workers.leave(partition)

    def drop(self, partition: TopicPartition) -> None:
        """Forget a partition that was revoked, lost, sought or reset; retry none of its failed records."""
        self._mark_suspended()
        self._lanes.drop(partition)
        self.workers.leave(partition)

    # ---- state -------------------------------------------------------------------------------------------------

    @property
    def is_paused(self) -> bool:
        """True while the user has paused the handler."""
        return "paused" in self.workers.holds

    @property
    def waiting(self) -> int:
        """Number of records that were added and have not started."""
        return self._lanes.waiting

    @property
    def started(self) -> list[Record]:
        """Records that run, wait for their next attempt, or were taken from their lease to run next."""
        return [*(record for worker in self.workers for record in worker.records), *self._lanes.ready]

    @property
    def started_or_due(self) -> int:
        """Number of records that run, wait for their next attempt, or are about to start."""
        return len(self.workers.tasks) - len(self._idle)


async def _run(
    worker: RecordWorker,
    records: Iterator[Record],
    count: int,
    handle: UnitCall,
    collected: list[object] | None = None,
) -> object:
    """Handle up to ``count`` records, and return the result of the last record.

    A record that suspends, returns a result that cannot be appended to ``collected``, or changes the context is the
    last one. ``tailrace._native.HandlerRun`` is the compiled version of this function.
    """
    context, initial_context, resolved = worker.context, worker.initial_context, None
    for record in islice(records, count):
        worker.record = record
        returned = await handle(record)
        # This is ``has_changed_context`` without the cost of the property.
        if worker.queued is not None or context != initial_context:
            return returned
        if returned is not None:
            if collected is None or (type(returned) is not resolved and must_resolve(returned)):
                return returned
            resolved = type(returned)
            collected.extend((record, returned))
    return None
