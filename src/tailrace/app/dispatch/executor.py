"""Base class of the executors for records and for batches.

``Lanes`` and ``BatchAssembler`` decide which work may start. If a handler cancels its own task or changes the context
variables of its task, other work is not affected.
"""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Collection, Coroutine, Iterator, Sequence
from contextvars import Context, copy_context
from dataclasses import dataclass
from typing import Any, ClassVar, Generic, TypeAlias, TypeVar

import anyio

from tailrace.app.dispatch.batching import BatchAssembler
from tailrace.app.dispatch.lanes import Lanes
from tailrace.app.failures.policy import FailuresByIndex
from tailrace.app.policies import OrderBy
from tailrace.app.publish.results import HandlerTask
from tailrace.awaitables import abandon
from tailrace.core.metrics import CallMeter
from tailrace.core.progress import Lease, Progress
from tailrace.errors import HandlerFailedError
from tailrace.records import Record, TopicPartition
from tailrace.user_exceptions import error_text

__all__ = [
    "Executor",
    "ExecutorOptions",
    "Recover",
    "Worker",
    "Workers",
    "self_cancellation_failure",
    "stop_all",
    "task_error",
]

# ---- end of tasks that run user code ---------------------------------------------------------------------------------


def task_error(task: asyncio.Task[Any]) -> Exception | None:
    """Return the error that ended a task, or None.

    A BaseException such as SystemExit becomes a HandlerFailedError. asyncio itself raises SystemExit again.
    """
    error = None if task.cancelled() else task.exception()
    if error is None or isinstance(error, Exception):
        return error
    failure = HandlerFailedError(f"a handler raised {error_text(error)}")
    failure.__cause__ = error
    return failure


def self_cancellation_failure() -> HandlerFailedError:
    """Return the failure of a handler that raised CancelledError, and clear the cancellation requests of its task."""
    task = asyncio.current_task()
    while task is not None and task.cancelling():
        task.uncancel()
    return HandlerFailedError(
        "the handler raised CancelledError without being canceled - let it return or raise another exception"
    )


async def stop_all(tasks: Collection[asyncio.Task[Any]], within_s: float) -> bool:
    """Cancel tasks, wait at most ``within_s`` seconds, and abandon tasks that still run; return True if all ended.

    The wait is shielded from the cancellation of the calling task, so that resources of the tasks stay open until the
    tasks have cleaned up.
    """
    for task in tasks:
        task.cancel()
    if tasks:
        with anyio.CancelScope(shield=True):
            _, left = await asyncio.wait(tasks, timeout=within_s)
        for task in left:
            abandon(task)
        return not left
    return True


# ---- tasks of an executor, with the records that they run ------------------------------------------------------------


class Worker(ABC):
    """Task of an executor, with the record or batch that it runs.

    Attributes:
        handler_task: identifies the task to publishers, which refuse its messages once the task is abandoned.
        since: event loop time at which the running call began; None if no call runs.
        waits: futures that end a pause before another attempt, each with the partition whose records wait; None instead
            of the partition if all records of the worker wait.
    """

    __slots__ = ("handler_task", "since", "waits")
    queued: Any
    """Entry of the record or batch in the queue that it was taken from."""

    def __init__(self, context: Context) -> None:
        self.handler_task = HandlerTask(context)
        self.since: float | None = None
        self.waits: dict[asyncio.Future[None], TopicPartition | None] = {}

    @property
    @abstractmethod
    def records(self) -> list[Record]:
        """Records that are neither finished nor left to another owner of their partition."""

    @property
    @abstractmethod
    def leases(self) -> list[Lease]:
        """Leases of ``records``, as far as they are in a queue: none for a record whose task has never suspended."""


WorkerT = TypeVar("WorkerT", bound=Worker)


class Workers(Generic[WorkerT]):
    """Running workers of one executor; each task starts in a copy of the context in which this object was created.

    Attributes:
        max_tasks: maximum number of tasks, which the executor enforces.
        is_ending: True once the executor ends; it starts no more work then.
        has_abandoned: True if a task was abandoned, because it still ran when the time to clean up was over.
        tasks: running tasks, each with its worker.
        first_error: future that gets the error of the first task that fails.
    """

    def __init__(self, max_tasks: int, on_end: Callable[[WorkerT], None]) -> None:
        self.max_tasks, self._on_end = max_tasks, on_end
        self._context = copy_context()
        self.is_ending = self.has_abandoned = False
        self._loop = asyncio.get_running_loop()
        self.tasks: dict[asyncio.Task[None], WorkerT] = {}
        self.first_error: asyncio.Future[None] = self._loop.create_future()

    def __iter__(self) -> Iterator[WorkerT]:
        return iter(self.tasks.values())

    def worker_in(self, task: asyncio.Task[Any] | None) -> WorkerT | None:
        """Return the worker whose task is ``task``; None if there is none. Thread-safe."""
        return self.tasks.get(task) if task is not None else None

    def start(self, make: Callable[[Context], WorkerT], run: Callable[[WorkerT], Coroutine[Any, Any, None]]) -> WorkerT:
        """Create a worker with ``make``, start its task, and return it; the caller checks ``max_tasks``."""
        context = self._context.copy()
        worker = make(context)
        task = self._loop.create_task(run(worker), context=context)
        self.tasks[task] = worker
        task.add_done_callback(self._ended)
        return worker

    async def end(self, within_s: float) -> None:
        """Cancel all tasks, wait at most ``within_s`` seconds for them, and abandon tasks that still run."""
        self.is_ending = True
        self.has_abandoned = not await stop_all(list(self.tasks), within_s)
        for worker in self:
            worker.handler_task.is_abandoned = True

    def _ended(self, task: asyncio.Task[None]) -> None:
        worker, error = self.tasks.pop(task), task_error(task)
        if error is not None and not self.first_error.done():
            self.first_error.set_exception(error)
        self._on_end(worker)


# ---- base class of the executors for records and for batches ---------------------------------------------------------


Recover: TypeAlias = Callable[[Any, Any, FailuresByIndex], Awaitable[None]]
"""Retries or gives up failed records; called with executor, worker and failures. If it raises, the app ends."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ExecutorOptions:
    """Order and limits of a handler's work.

    Attributes:
        order_by: order in which records are handled.
        concurrency: maximum number of records, or batches, that run at once.
        window: maximum number of records that wait in the executor for their first or another attempt.
        on_progress: called when work is finished or there is room for more records.
        on_full: called when so many records wait for a record that no more records of its partition are added. The
            arguments are that record, and the number of records that wait in its lane or partition.
    """

    order_by: OrderBy
    concurrency: int
    window: int
    on_progress: Callable[[], None]
    on_full: Callable[[Record, int], object] = lambda _record, _waiting: None


class Executor(ABC, Generic[WorkerT]):
    """Executor for the records or batches of one handler, each of which is run by a ``Worker``.

    Attributes:
        is_paused: True from ``pause_handler`` to ``resume_handler``.
        handles_batches: True if the handler is called with batches.
        meter: durations and outcomes of the handler's calls.
    """

    handles_batches: ClassVar[bool] = False

    def __init__(
        self,
        queue: Lanes | BatchAssembler,
        recover: Recover,
        options: ExecutorOptions,
    ) -> None:
        self._queue, self._recover, self._on_progress = queue, recover, options.on_progress
        self._latest_progress: dict[TopicPartition, Progress] = {}
        """Progress of each partition's latest assignment epoch."""
        self._loop = asyncio.get_running_loop()
        self._workers: Workers[WorkerT] = Workers(options.concurrency, self._ended)
        self.is_paused = self._are_starts_held = False
        self._may_start = True
        self.meter = CallMeter()

    # ---- partitions ----------------------------------------------------------------------------------------------

    def room_of(self, partition: TopicPartition) -> int:
        """Return how many records of a partition may be added now."""
        return 0 if self.is_paused else self._queue.room_of(partition)

    def add(self, lease: Lease) -> None:
        """Add the next records of a partition, and start the work that may start now."""
        self._latest_progress[lease.partition] = lease.progress
        self._queue.add(lease, self._loop.time())
        self._start_due()

    def halt(self, partition: TopicPartition) -> None:
        """Start no more records of a partition, and leave its records that do not run to the next owner."""
        self._mark_suspended()
        if (progress := self._latest_progress.get(partition)) is not None:
            progress.halt()
            leases, parked = self._queue.drop(partition)
            for lease in leases:
                lease.abandon()
            for queued in parked:
                progress.abandon(queued.record.offset)
            self._leave_paused_work(partition)

    def drop(self, partition: TopicPartition) -> None:
        """Forget a partition that was revoked, lost, sought or reset; retry none of its failed records."""
        self._mark_suspended()
        self._queue.drop(partition)
        if (progress := self._latest_progress.pop(partition, None)) is not None:
            progress.halt()
            self._leave_paused_work(partition)

    # ---- starts --------------------------------------------------------------------------------------------------

    def pause_handler(self) -> None:
        """Accept and start no more records until ``resume_handler``; started records continue."""
        # A handler may call this. Its worker then counts as suspended, and checks ``is_paused`` before its next record.
        self._mark_suspended()
        self.is_paused = True
        self._update_starts()
        self._on_progress()

    def resume_handler(self) -> None:
        """End ``pause_handler``."""
        self.is_paused = False
        self._update_starts()
        self._on_progress()

    def hold_starts(self) -> None:
        """Start no work from now to ``allow_starts``, even if the handler is resumed; used while a transaction ends."""
        self._mark_suspended()
        self._are_starts_held = True
        self._update_starts()

    def allow_starts(self) -> None:
        """End ``hold_starts``."""
        if self._are_starts_held:
            self._are_starts_held = False
            self._update_starts()

    @property
    def is_gathering(self) -> bool:
        """True while an incomplete batch waits for more records."""
        return False

    def hurry(self) -> None:
        """Start incomplete batches, because no more records are delivered before all delivered records are finished."""

    def _update_starts(self) -> None:
        """Update ``_may_start``, and start the work that may start now."""
        # ``_may_start`` is an attribute instead of a property, because it is read for each record.
        workers = self._workers
        self._may_start = not (
            self.is_paused or self._are_starts_held or workers.is_ending or workers.first_error.done()
        )
        self._start_due()

    # ---- run and state -------------------------------------------------------------------------------------------

    async def run(self, cleanup_s: float) -> None:
        """Start work until canceled; then cancel the running handlers and wait up to ``cleanup_s`` seconds for them.

        Raises:
            Exception: an error ends the app, such as HandlerFailedError with ``on_failure="stop"``.
        """
        try:
            # SystemExit in a handler makes asyncio cancel all tasks. The shield keeps the error in this future.
            await asyncio.shield(self._workers.first_error)
        finally:
            self._mark_suspended()
            self._workers.is_ending = True
            self._update_starts()
            await self._workers.end(cleanup_s)

    @property
    @abstractmethod
    def started_or_due(self) -> int:
        """Number of records that run, wait for their next attempt, or are about to start."""

    @property
    def waiting(self) -> int:
        """Number of records that were added and have not started."""
        return self._queue.waiting

    @property
    def has_paused_records(self) -> bool:
        """True if the handler is paused and records wait for it."""
        return self.is_paused and self._queue.waiting > 0

    @property
    def longest_s(self) -> float:
        """Seconds since the start of the oldest running call; 0 if no call runs."""
        since = [worker.since for worker in self._workers if worker.since is not None]
        return self._loop.time() - min(since) if since else 0.0

    @property
    def started(self) -> list[Record]:
        """Records that run, wait for their next attempt, or were taken from their lease to run next."""
        return [record for worker in self._workers for record in worker.records]

    @property
    def in_flight(self) -> int:
        """Number of records that run, or wait for their next attempt."""
        return sum(len(worker.records) for worker in self._workers)

    @property
    def is_running(self) -> bool:
        """True if a record runs or waits for its next attempt."""
        return any(worker.records for worker in self._workers)

    @property
    def runs_current_records(self) -> bool:
        """True if a record runs or waits for its next attempt, unless its partition was dropped since its start."""
        running = [worker.leases for worker in self._workers if worker.records]
        # A worker without a lease has not suspended, so its partition cannot have been dropped since its start.
        return any(not leases or not all(lease.progress.is_over for lease in leases) for leases in running)

    @property
    def first_unfinished(self) -> list[Record]:
        """Unfinished records that have started; of each batch, only the first unfinished record."""
        return [worker.records[0] for worker in self._workers if worker.records]

    def runs_in(self, task: asyncio.Task[Any]) -> bool:
        """Return True if the handler runs in ``task``. Thread-safe."""
        worker = self._workers.worker_in(task)
        return worker is not None and bool(worker.records)

    @property
    def has_failed(self) -> bool:
        """True if an error ends the app. The failed work stays unfinished, and no other work starts."""
        return self._workers.first_error.done()

    @property
    def failure(self) -> BaseException | None:
        """Error with which the handler has ended the app; None if there is none."""
        return self._workers.first_error.exception() if self._workers.first_error.done() else None

    # ---- failed work ---------------------------------------------------------------------------------------------

    async def attempt(self, worker: WorkerT) -> FailuresByIndex:
        """Call the handler; return the failures.

        A CancelledError that the handler raises counts as a failure. This method raises CancelledError, and the records
        stay unfinished, if a record fails while the executor ends, or if the task was abandoned.
        """
        began_at, count = self._loop.time(), len(worker.records)
        try:
            failed = await self._call(worker)
        except (Exception, asyncio.CancelledError) as error:  # noqa: BLE001 - a handler may raise any exception
            failed = dict.fromkeys(range(len(worker.records)), self._failure(error))
        self.meter.note_call(count, self._loop.time() - began_at, failed=len(failed), is_batch=self.handles_batches)
        if self._workers.has_abandoned or (failed and self._workers.is_ending):
            raise asyncio.CancelledError
        return failed

    def _failure(self, error: Exception | asyncio.CancelledError) -> Exception:
        """Return an error of the handler as a failure; raise CancelledError instead while the executor ends."""
        if self._workers.is_ending:
            raise error if isinstance(error, asyncio.CancelledError) else asyncio.CancelledError from error
        return error if isinstance(error, Exception) else self_cancellation_failure()

    async def pause_all(self, worker: WorkerT, seconds: float) -> bool:
        """Wait ``seconds`` for the next attempt; return False if all partitions of ``worker`` are halted or dropped."""
        self._mark_suspended()
        self._leave_halted_partitions(worker)
        if worker.records:
            await self._wait(worker, None, seconds)
        return bool(worker.records)

    async def pause(self, record: Record, seconds: float) -> bool:
        """Wait ``seconds`` before a failed record is sent again; return False if its partition is halted or dropped."""
        self._mark_suspended()
        worker, partition = self._worker_of(record), record.topic_partition
        if worker is None:
            return False
        if _lease_of(worker, partition).progress.is_halted:
            self._leave_partition(worker, partition)
            return False
        await self._wait(worker, partition, seconds)
        return self.is_ours(record)

    def is_ours(self, record: Record) -> bool:
        """Return False if the partition of a started record was dropped, or the record was left to another owner."""
        worker, partition = self._worker_of(record), record.topic_partition
        # A worker without a lease has not suspended, so its partition cannot have been dropped since its start.
        return worker is not None and (not worker.leases or not _lease_of(worker, partition).progress.is_over)

    async def _wait(self, worker: WorkerT, partition: TopicPartition | None, seconds: float) -> None:
        """Wait for ``seconds``, or until ``partition`` is halted or dropped; let other work run meanwhile.

        Args:
            worker: worker that waits.
            partition: partition that the worker waits for; None to wait until all its partitions are halted or dropped.
            seconds: longest time to wait.
        """
        ended = self._loop.create_future()
        self._queue.failed(worker.queued)
        self._workers.max_tasks += not worker.waits
        worker.waits[ended] = partition
        since, worker.since = worker.since, None
        self._start_due()
        self._on_progress()
        try:
            async with asyncio.timeout(seconds):
                await ended
        except TimeoutError:
            pass
        finally:
            del worker.waits[ended]
            self._workers.max_tasks -= not worker.waits
            worker.since = None if since is None else self._loop.time()

    def _worker_of(self, record: Record) -> WorkerT | None:
        """Return the worker of an unfinished record; None if the record was left to another owner."""
        current = self._workers.worker_in(asyncio.current_task())
        workers = self._workers if current is None else [current]
        return next((worker for worker in workers if any(unfinished is record for unfinished in worker.records)), None)

    def _leave_halted_partitions(self, worker: WorkerT) -> None:
        for partition in {lease.partition for lease in worker.leases if lease.progress.is_halted}:
            self._leave_partition(worker, partition)

    def _leave_paused_work(self, partition: TopicPartition) -> None:
        for worker in self._workers:
            if worker.waits and any(
                lease.partition == partition and lease.progress.is_halted for lease in worker.leases
            ):
                self._leave_partition(worker, partition)

    def _leave_partition(self, worker: WorkerT, partition: TopicPartition) -> None:
        """Leave the unfinished records of a partition to its next owner, and end their waits."""
        self._remove(worker, partition)
        for wait, waiting_partition in worker.waits.items():
            if not wait.done() and (waiting_partition == partition or not worker.records):
                wait.set_result(None)

    # ---- for subclasses ------------------------------------------------------------------------------------------

    @abstractmethod
    def _start_due(self) -> None:
        """Start the work that may start now."""

    @abstractmethod
    async def _call(self, worker: WorkerT) -> FailuresByIndex:
        """Call the handler; return the failures, or raise an error with which all records fail."""

    @abstractmethod
    def keep_only(self, worker: WorkerT, records: Sequence[Record]) -> None:
        """Finish all records of ``worker`` except ``records``."""

    @abstractmethod
    def _remove(self, worker: WorkerT, partition: TopicPartition, /) -> None:
        """Remove the records of a partition from ``worker`` without finishing them."""

    def _mark_suspended(self) -> None:
        """Mark the running record as suspended; called before other changes of state. Batches need no mark."""

    def _ended(self, _worker: WorkerT) -> None:
        """Start other work after a task has ended."""
        self._update_starts()
        self._on_progress()


def _lease_of(worker: Worker, partition: TopicPartition) -> Lease:
    return next(lease for lease in worker.leases if lease.partition == partition)
