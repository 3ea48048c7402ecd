"""Tasks of one handler's executor, with the records that they run, wait to retry, or have left to another owner.

If a handler cancels its own task or changes the context variables of its task, other work is not affected.
"""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Collection, Coroutine, Iterator
from contextvars import Context, copy_context
from typing import Any, Generic, Literal, TypeAlias, TypeVar

import anyio

from tailrace.app.failures.policy import FailuresByIndex
from tailrace.app.publish.results import HandlerTask
from tailrace.awaitables import abandon
from tailrace.core.progress import Lease
from tailrace.errors import HandlerFailedError
from tailrace.records import Record, TopicPartition
from tailrace.user_exceptions import error_text

__all__ = ["Hold", "Recover", "Worker", "Workers", "stop_all", "task_error"]

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


def _self_cancellation_failure() -> HandlerFailedError:
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


# ---- one task, with the record or batch that it runs -----------------------------------------------------------------


class Worker(ABC):
    """Task of an executor, with the record or batch that it runs.

    Attributes:
        handler_task: identifies the task to publishers, which refuse its messages once the task is abandoned.
        since: event loop time at which the running call began; None if no call runs.
        waits: futures that end a pause before another attempt, each with the partition whose records wait; None instead
            of the partition if all records of the worker wait.
    """

    __slots__ = ("_workers", "handler_task", "since", "waits")

    def __init__(self, workers: Workers[Any], context: Context) -> None:
        self._workers, self.handler_task = workers, HandlerTask(context)
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

    @abstractmethod
    def abandon(self, partition: TopicPartition, /) -> None:
        """Remove the records of a partition without finishing them; the next owner of the partition gets them."""

    def leave(self, partition: TopicPartition) -> None:
        """Leave the records of a partition to its next owner, and end their waits."""
        self.abandon(partition)
        for wait, waiting_partition in self.waits.items():
            if not wait.done() and (waiting_partition == partition or not self.records):
                wait.set_result(None)

    def leave_halted(self) -> None:
        """Leave the records of halted and dropped partitions to their next owners."""
        for partition in {lease.partition for lease in self.leases if lease.progress.is_halted}:
            self.leave(partition)

    # ---- failed records, for ``FailurePolicy`` -------------------------------------------------------------------

    async def pause_all(self, seconds: float) -> bool:
        """Wait ``seconds`` for the next attempt; return False if all partitions of the work are halted or dropped."""
        self.leave_halted()
        if self.records:
            await self._wait(None, seconds)
        return bool(self.records)

    async def pause(self, record: Record, seconds: float) -> bool:
        """Wait ``seconds`` before a failed record is sent again; return False if its partition is halted or dropped."""
        partition = record.topic_partition
        if any(one.partition == partition and one.progress.is_halted for one in self.leases):
            self.leave(partition)
        else:
            await self._wait(partition, seconds)
        return self.is_ours(record)

    def is_ours(self, record: Record) -> bool:
        """Return False if the partition of a started record was dropped, or the record was left to another owner."""
        # A worker without a lease has not suspended, so its partition cannot have been dropped since its start.
        leases = (lease for lease in self.leases if lease.partition == record.topic_partition)
        return any(one is record for one in self.records) and not any(lease.progress.is_over for lease in leases)

    async def _wait(self, partition: TopicPartition | None, seconds: float) -> None:
        """Wait for ``seconds``, or until ``partition`` is halted or dropped; let other work run meanwhile.

        Without ``partition``, wait until all partitions of the worker are halted or dropped.
        """
        workers, ended = self._workers, asyncio.get_running_loop().create_future()
        workers.max_tasks += not self.waits
        self.waits[ended] = partition
        workers.on_wait(self)
        self.since = None
        try:
            async with asyncio.timeout(seconds):
                await ended
        except TimeoutError:
            pass
        finally:
            del self.waits[ended]
            workers.max_tasks -= not self.waits


WorkerT = TypeVar("WorkerT", bound=Worker)
Recover: TypeAlias = Callable[[Any, Any, FailuresByIndex], Awaitable[None]]
"""Retries or gives up failed records; called with executor, worker and failures. If it raises, the app ends."""

# ---- all tasks of an executor ----------------------------------------------------------------------------------------

Hold: TypeAlias = Literal["paused", "transaction ends", "app stops", "failed"]
"""Reason why no record or batch starts: ``App.pause``, the end of a transaction, the stop, or a failure."""


class Workers(Generic[WorkerT]):
    """Running workers of one executor; each task starts in a copy of the context in which this object was created.

    Args:
        max_tasks: maximum number of tasks.
        on_wait: called when a worker begins to wait for another attempt.
        on_end: called when the task of a worker has ended.

    Attributes:
        max_tasks: maximum number of tasks, which the executor enforces; a worker that waits does not count.
        holds: reasons why the executor starts no record or batch at present.
        has_abandoned: True if a task was abandoned, because it still ran when the time to clean up was over.
        tasks: running tasks, each with its worker.
        first_error: future that gets the error of the first task that fails. This error ends the app.
    """

    def __init__(self, max_tasks: int, on_wait: Callable[[WorkerT], None], on_end: Callable[[WorkerT], None]) -> None:
        self.max_tasks, self.on_wait, self._on_end = max_tasks, on_wait, on_end
        self._context = copy_context()
        self.holds: set[Hold] = set()
        self.has_abandoned = False
        self._loop = asyncio.get_running_loop()
        self.tasks: dict[asyncio.Task[None], WorkerT] = {}
        self.first_error: asyncio.Future[None] = self._loop.create_future()

    def __iter__(self) -> Iterator[WorkerT]:
        return iter(self.tasks.values())

    # ---- tasks ---------------------------------------------------------------------------------------------------

    def start(self, make: Callable[[Context], WorkerT], run: Callable[[WorkerT], Coroutine[Any, Any, None]]) -> WorkerT:
        """Create a worker with ``make``, start its task, and return it; the caller checks ``max_tasks``."""
        context = self._context.copy()
        worker = make(context)
        task = self._loop.create_task(run(worker), context=context)
        self.tasks[task] = worker
        task.add_done_callback(self._ended)
        return worker

    def _ended(self, task: asyncio.Task[None]) -> None:
        worker, error = self.tasks.pop(task), task_error(task)
        if error is not None and not self.first_error.done():
            self.first_error.set_exception(error)
            self.holds.add("failed")
        self._on_end(worker)

    async def end(self, within_s: float) -> None:
        """Cancel all tasks, wait at most ``within_s`` seconds for them, and abandon tasks that still run."""
        self.has_abandoned = not await stop_all(list(self.tasks), within_s)
        for worker in self:
            worker.handler_task.is_abandoned = True

    # ---- failed calls and halted partitions ----------------------------------------------------------------------

    def failure_of(self, error: Exception | asyncio.CancelledError) -> Exception:
        """Return an error of the handler as a failure; raise CancelledError instead while the app stops.

        A CancelledError that the handler raises counts as a failure.
        """
        if "app stops" in self.holds:
            raise error if isinstance(error, asyncio.CancelledError) else asyncio.CancelledError from error
        return error if isinstance(error, Exception) else _self_cancellation_failure()

    def check_attempt(self, failed: FailuresByIndex) -> FailuresByIndex:
        """Return the failures of another attempt.

        Raises:
            CancelledError: a record has failed while the app stops, or a task was abandoned; the records stay
                unfinished.
        """
        if self.has_abandoned or (failed and "app stops" in self.holds):
            raise asyncio.CancelledError
        return failed

    def leave(self, partition: TopicPartition) -> None:
        """Leave the records of a halted or dropped partition that wait for another attempt to its next owner."""
        for worker in self:
            if worker.waits and any(one.partition == partition and one.progress.is_halted for one in worker.leases):
                worker.leave(partition)

    # ---- state ---------------------------------------------------------------------------------------------------

    @property
    def longest_s(self) -> float:
        """Seconds since the start of the oldest running call; 0 if no call runs."""
        since = [worker.since for worker in self if worker.since is not None]
        return self._loop.time() - min(since) if since else 0.0

    @property
    def in_flight(self) -> int:
        """Number of records that run, or wait for their next attempt."""
        return sum(len(worker.records) for worker in self)

    @property
    def run_current_records(self) -> bool:
        """True if a record runs or waits for its next attempt, unless its partition was dropped since its start."""
        running = [worker.leases for worker in self if worker.records]
        # A worker without a lease has not suspended, so its partition cannot have been dropped since its start.
        return any(not leases or not all(lease.progress.is_over for lease in leases) for leases in running)

    @property
    def first_unfinished(self) -> list[Record]:
        """Unfinished records that have started; of each batch, only the first unfinished record."""
        return [worker.records[0] for worker in self if worker.records]

    def has_task(self, task: asyncio.Task[Any]) -> bool:
        """Return True if the handler runs in ``task``. Thread-safe."""
        worker = self.tasks.get(task)
        return worker is not None and bool(worker.records)

    @property
    def error(self) -> BaseException | None:
        """Error with which the handler has ended the app; None if there is none."""
        return self.first_error.exception() if self.first_error.done() else None
