"""Base of the executors of records and batches.

``core.dispatch`` decides which work may start. If a handler changes or cancels its task, no other work is affected.
"""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Generic, TypeAlias, TypeVar

from tailrace.app.dispatch.batch_failures import Failed
from tailrace.app.dispatch.task_results import self_cancellation_failure
from tailrace.app.dispatch.work import Work
from tailrace.app.dispatch.workers import Workers
from tailrace.core.delivery.progress import Lease, Progress
from tailrace.core.dispatch.batching import BatchAssembler
from tailrace.core.dispatch.lanes import Lanes, OrderBy
from tailrace.core.metrics import CallMeter
from tailrace.records import Record, TopicPartition

__all__ = ["Executor", "ExecutorOptions", "Recover"]

WorkT = TypeVar("WorkT", bound=Work)

Recover: TypeAlias = Callable[[Any, Any, Failed], Awaitable[None]]
"""Finishes failed work; called with the executor, the work and its failures. An error that it raises ends the app."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ExecutorOptions:
    """Order and limits of a handler's work.

    Attributes:
        order_by: order in which records are handled.
        concurrency: maximum number of records, or batches, that run at once.
        window: maximum number of records that wait in the executor to run or for another attempt.
        on_progress: called when work is finished or there is room for more records.
        on_full: called with a record and the number of records waiting with it, if these hold up their partition.
    """

    order_by: OrderBy
    concurrency: int
    window: int
    on_progress: Callable[[], None]
    on_full: Callable[[Record, int], object] = lambda _record, _waiting: None


class Executor(ABC, Generic[WorkT]):
    """Executor of the records or batches of one handler.

    Args:
        queue: holds the waiting records, and decides which work starts next.
        recover: finishes failed work.

    Attributes:
        is_held: True between ``hold`` and ``release``.
        is_of_batches: True if each call is for a batch.
        meter: durations and outcomes of the handler's calls.
    """

    is_of_batches: ClassVar[bool] = False

    def __init__(
        self,
        queue: Lanes | BatchAssembler,
        recover: Recover,
        options: ExecutorOptions,
    ) -> None:
        self._queue, self._recover, self._on_progress = queue, recover, options.on_progress
        self._progress: dict[TopicPartition, Progress] = {}
        """Progress of the assignment epoch in which records of each partition were last added."""
        self._loop = asyncio.get_running_loop()
        self._workers: Workers[WorkT] = Workers(options.concurrency, self._ended)
        self.is_held = self._are_starts_held = False
        self._may_start = True
        self.meter = CallMeter()

    # ---- partitions ----------------------------------------------------------------------------------------------

    def room_of(self, partition: TopicPartition) -> int:
        """Return how many records of a partition may be added now."""
        return 0 if self.is_held else self._queue.room_of(partition)

    def add(self, lease: Lease) -> None:
        """Add the next records of a partition; they start when their turn comes."""
        self._progress[lease.partition] = lease.progress
        self._queue.add(lease, self._loop.time())
        self._start_due()

    def halt(self, partition: TopicPartition) -> None:
        """Start no more records of a partition, and leave records that have not started to the next owner."""
        self._mark_suspended()
        if (progress := self._progress.get(partition)) is not None:
            progress.halt()
            leases, parked = self._queue.drop(partition)
            for lease in leases:
                lease.abandon_left()
            for queued in parked:
                progress.abandon(queued.record.offset)
            self._leave_waiting(partition)

    def drop(self, partition: TopicPartition) -> None:
        """Forget a partition; its running records are not committed, and its failed records are not retried."""
        self._mark_suspended()
        self._queue.drop(partition)
        if (progress := self._progress.pop(partition, None)) is not None:
            progress.halt()
            self._leave_waiting(partition)

    # ---- starts --------------------------------------------------------------------------------------------------

    def hold(self) -> None:
        """Start no more work until ``release``; running work continues."""
        # A handler may call this. Its worker is marked as suspended, and so checks ``is_held`` before its next record.
        self._mark_suspended()
        self.is_held = True
        self._update_starts()
        self._on_progress()

    def release(self) -> None:
        """Start records again."""
        self.is_held = False
        self._update_starts()
        self._on_progress()

    def hold_starts(self) -> None:
        """Start no work until ``allow_starts``, not even after ``release``; a transaction is about to be committed."""
        self._mark_suspended()
        self._are_starts_held = True
        self._update_starts()

    def allow_starts(self) -> None:
        """End ``hold_starts``."""
        if self._are_starts_held:
            self._are_starts_held = False
            self._update_starts()

    @property
    def gathers(self) -> bool:
        """True while records wait for more records of their batch."""
        return False

    def hurry(self) -> None:
        """Start incomplete batches, because no more records are delivered until all delivered records are finished."""

    def _update_starts(self) -> None:
        """Update ``_may_start``, and start work.

        ``_may_start`` is a plain attribute instead of a property, because it is read for each suspended record.
        """
        workers = self._workers
        self._may_start = not (self.is_held or self._are_starts_held or workers.is_ending or workers.first_error.done())
        self._start_due()

    # ---- life ----------------------------------------------------------------------------------------------------

    async def run(self, cleaning_up_s: float) -> None:
        """Run until canceled; after that, cancel running handlers and give them ``cleaning_up_s`` to clean up.

        Raises:
            HandlerFailedError: a record failed, and ``on_failure="stop"`` is set.
        """
        try:
            # If SystemExit ends the event loop, all tasks are canceled, but this future must keep its error.
            await asyncio.shield(self._workers.first_error)
        finally:
            self._mark_suspended()
            self._workers.is_ending = True
            self._update_starts()
            await self._workers.end(cleaning_up_s)

    @property
    @abstractmethod
    def at_work(self) -> int:
        """Number of records that are running, waiting for their next attempt, or about to start."""

    @property
    def waiting(self) -> int:
        """Number of records that were added and have not started."""
        return self._queue.waiting

    @property
    def holds_back(self) -> bool:
        """True if records wait for ``release``."""
        return self.is_held and self._queue.waiting > 0

    @property
    def longest_s(self) -> float:
        """Seconds for which the longest running call has run; pauses between attempts do not count."""
        since = [work.since for work in self._workers if work.since is not None]
        return self._loop.time() - min(since) if since else 0.0

    @property
    def started(self) -> list[Record]:
        """Unfinished records that were taken out of their leases, apart from those that wait for an earlier record."""
        return [record for work in self._workers for record in work.records]

    @property
    def in_flight(self) -> int:
        """Number of records that run, or wait for their next attempt."""
        return sum(len(work.records) for work in self._workers)

    @property
    def runs(self) -> bool:
        """True if a handler runs, or waits for its next attempt."""
        return any(work.records for work in self._workers)

    @property
    def runs_ours(self) -> bool:
        """True if ``runs`` is true for work with a partition that was not dropped after the work had started."""
        running = [work.leases for work in self._workers if work.records]
        # Work without a lease was never suspended, so that its partition cannot have been dropped.
        return any(not leases or any(lease.is_current for lease in leases) for leases in running)

    @property
    def under_way(self) -> list[Record]:
        """Unfinished started records; for a batch, only the first of its unfinished records."""
        return [work.records[0] for work in self._workers if work.records]

    def runs_in(self, task: asyncio.Task[Any]) -> bool:
        """Return True if the handler runs in ``task``. Thread-safe."""
        work = self._workers.work_of(task)
        return work is not None and bool(work.records)

    @property
    def has_failed(self) -> bool:
        """True if failed work ends the app. That work is not finished, and no other work starts."""
        return self._workers.first_error.done()

    @property
    def failure(self) -> BaseException | None:
        """Error that ends the app."""
        return self._workers.first_error.exception() if self._workers.first_error.done() else None

    # ---- failed work ---------------------------------------------------------------------------------------------

    async def attempt(self, work: WorkT) -> Failed:
        """Call the handler; return the failed records.

        A CancelledError counts as a failure of the handler. While the executor ends, this method raises CancelledError
        instead, and the records neither fail nor are finished.
        """
        began_at, count = self._loop.time(), len(work.records)
        try:
            failed = await self._call(work)
        except (Exception, asyncio.CancelledError) as error:  # noqa: BLE001 - a handler may raise any
            failed = dict.fromkeys(range(len(work.records)), self._failure(error))
        self.meter.note_call(count, self._loop.time() - began_at, failed=len(failed), is_batch=self.is_of_batches)
        if self._workers.has_abandoned or (failed and self._workers.is_ending):
            raise asyncio.CancelledError
        return failed

    def _failure(self, error: Exception | asyncio.CancelledError) -> Exception:
        """Return the failure for an error that a handler raised; raise CancelledError while the executor ends."""
        if self._workers.is_ending:
            raise error if isinstance(error, asyncio.CancelledError) else asyncio.CancelledError from error
        return error if isinstance(error, Exception) else self_cancellation_failure()

    async def pause_all(self, work: WorkT, seconds: float) -> bool:
        """Wait before the next attempt; return False if no record is left to retry here."""
        self._mark_suspended()
        self._leave_halted(work)
        if work.records:
            await self._wait(work, None, seconds)
        return bool(work.records)

    async def pause(self, record: Record, seconds: float) -> bool:
        """Wait before a failed record is sent again; return False if its partition has another owner afterwards."""
        self._mark_suspended()
        work, partition = self._work_of(record), record.topic_partition
        if work is None:
            return False
        if _lease_of(work, partition).progress.is_halted:
            self._leave(work, partition)
            return False
        await self._wait(work, partition, seconds)
        return self.is_ours(record)

    def is_ours(self, record: Record) -> bool:
        """Return True if the partition of a started record was not dropped after the record had started."""
        work, partition = self._work_of(record), record.topic_partition
        # Work without a lease was never suspended, so that its partition cannot have been dropped.
        return work is not None and (not work.leases or _lease_of(work, partition).is_current)

    async def _wait(self, work: WorkT, partition: TopicPartition | None, seconds: float) -> None:
        """Wait, and let other work run in place of this work meanwhile."""
        ended = self._loop.create_future()
        self._queue.failed(work.queued)
        self._workers.max_tasks += not work.waits
        work.waits[ended] = partition
        since, work.since = work.since, None
        self._start_due()
        self._on_progress()
        try:
            async with asyncio.timeout(seconds):
                await ended
        except TimeoutError:
            pass
        finally:
            del work.waits[ended]
            self._workers.max_tasks -= not work.waits
            work.since = None if since is None else self._loop.time()

    def _work_of(self, record: Record) -> WorkT | None:
        """Return the work that contains an unfinished record; None if the record was left to another owner."""
        ours = self._workers.work_of(asyncio.current_task())
        works = self._workers if ours is None else [ours]
        return next((work for work in works if any(one is record for one in work.records)), None)

    def _leave_halted(self, work: WorkT) -> None:
        for partition in {lease.partition for lease in work.leases if lease.progress.is_halted}:
            self._leave(work, partition)

    def _leave_waiting(self, partition: TopicPartition) -> None:
        for work in self._workers:
            if work.waits and any(lease.partition == partition and lease.progress.is_halted for lease in work.leases):
                self._leave(work, partition)

    def _leave(self, work: WorkT, partition: TopicPartition) -> None:
        """Leave the unfinished records of a partition to the next owner, and end their waits."""
        self._remove(work, partition)
        for wait, of in work.waits.items():
            if not wait.done() and (of == partition or not work.records):
                wait.set_result(None)

    # ---- records or batches --------------------------------------------------------------------------------------

    @abstractmethod
    def _start_due(self) -> None:
        """Start the work whose turn has come, if work may start."""

    @abstractmethod
    async def _call(self, work: WorkT) -> Failed:
        """Call the handler; return the failed records, or raise if all of them failed."""

    @abstractmethod
    def keep(self, work: WorkT, records: Sequence[Record]) -> None:
        """Finish all records of failed work except ``records``."""

    @abstractmethod
    def _remove(self, work: WorkT, partition: TopicPartition, /) -> None:
        """Remove the records of a partition from ``work`` without finishing them."""

    def _mark_suspended(self) -> None:
        """Mark the running record as suspended; called before any other change of state."""

    def _ended(self, _work: WorkT) -> None:
        """Start other work after the end of a task."""
        self._update_starts()
        self._on_progress()


def _lease_of(work: Work, partition: TopicPartition) -> Lease:
    return next(lease for lease in work.leases if lease.partition == partition)
