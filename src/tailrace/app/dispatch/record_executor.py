"""One handler at work: workers that take records from its lanes, one after the other.

Rule of this file: which record may run is ``core.dispatch.lanes``'s to say. A worker runs records without a pause until
a handler suspends; only then is another worker woken, and only then is anything noted about the record. So a handler
that never suspends costs no task, no timer and no set for a record. At most one worker runs at any moment, since there
is one event loop; it is the one in ``_running`` until it gives the loop back.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from contextvars import copy_context
from typing import Any, TypeAlias

from tailrace.app.dispatch.batch_failures import Failed
from tailrace.app.dispatch.call import Finish
from tailrace.app.dispatch.record_run import RecordPartition, Worker
from tailrace.app.dispatch.task_results import no_end
from tailrace.app.dispatch.workers import Workers
from tailrace.core.delivery.progress import Position
from tailrace.core.delivery.slice_size import is_too_long
from tailrace.core.dispatch.lanes import Lanes, OrderBy, QueuedRecord
from tailrace.records import Record, TopicPartition

__all__ = ["RecordExecutor"]

Handle = Callable[[Record], Awaitable[object]]
Recover: TypeAlias = "Callable[[RecordExecutor, Worker, Failed], Awaitable[None]]"

_RECORDS_A_LOOK = 32
"""At most so many records are run between two looks at the clock; the first looks come sooner."""


class RecordExecutor:
    """Runs one handler's records.

    Args:
        handle: runs a record; what it raises is a failure.
        finish: called with the result of ``handle`` unless that is None; what it raises is a failure, too.
        recover: is given what failed, and returns when that record is done with; what it raises ends the app.
        order_by: what is kept in order.
        concurrency: how many records run at once.
        window: how many may wait.
        on_progress: told when something is done.
        on_full: told of the last record that a lane or a partition takes, and how many wait there: what they wait for
            holds their whole partition up.
        is_shared: others take records of the same partitions.
    """

    def __init__(  # noqa: PLR0913 - the sides of a line
        self,
        handle: Handle,
        recover: Recover,
        *,
        finish: Finish,
        order_by: OrderBy,
        concurrency: int,
        window: int,
        on_progress: Callable[[], None],
        on_full: Callable[[Record, int], None] = lambda _record, _waiting: None,
        is_shared: bool = False,
    ) -> None:
        self._handle, self._finish, self._recover = handle, finish, recover
        self._on_progress = on_progress
        self._lanes: Lanes[RecordPartition] = Lanes(
            order_by,
            window,
            on_parked=self._parked,
            on_full=lambda work, waiting: on_full(work.record, waiting),
            is_shared=is_shared,
        )
        self._held: dict[TopicPartition, RecordPartition] = {}
        self._loop = asyncio.get_running_loop()
        self._workers = Workers(concurrency, self._run_until_nothing, lambda: self._lanes.waiting)
        self._running: Worker | None = None
        self._is_looked_for = False
        self._pauses: dict[asyncio.Future[None], QueuedRecord[RecordPartition]] = {}
        """Records that failed and wait for their next attempt."""
        self._is_held = self._may_not_start = False

    # ---- what is handed in -------------------------------------------------------------------------------------

    def room_of(self, partition: TopicPartition) -> int:
        """How many records of a partition it takes now."""
        return 0 if self._is_held else self._lanes.room_of(partition)

    def add(self, position: Position, records: Sequence[Record]) -> None:
        """Run these, when their turn comes."""
        held = self._held.get(position.partition)
        if held is None or held.tracker is not position.tracker:
            assert position.tracker is not None
            held = self._held[position.partition] = RecordPartition(position, position.tracker)
        self._lanes.add(position.partition, records, held)
        if self._running is None:
            self._workers.wake_one()

    def next_of(self, position: Position) -> int | None:
        """The lowest offset that was handed in and not taken up; None when there is none."""
        self._settle()
        held = self._held.get(position.partition)
        if held is None or held.tracker is not position.tracker:
            return None
        return held.left if held.is_halted else self._lanes.next_offset(position.partition)

    def done_of(self, position: Position) -> int | None:
        """The lowest offset that is not done; None when there is none."""
        following, held = self.next_of(position), self._held.get(position.partition)
        if held is None or held.tracker is not position.tracker:
            return None
        lowest = held.tracker.lowest
        return following if lowest is None or (following is not None and following < lowest) else lowest

    def halt(self, partition: TopicPartition) -> int | None:
        """Begin nothing more of a partition; the lowest offset that was not begun, None when there is none."""
        self._settle()
        held = self._held.get(partition)
        if held is None:
            return None
        held.is_halted = True
        left = [*(record.offset for record in self._lanes.drop(partition)), *self._end_pauses(held)]
        held.tracker.leave(left)
        held.left = min(left if held.left is None else [*left, held.left], default=None)
        return held.left

    def held_of(self, partition: TopicPartition) -> RecordPartition | None:
        """What is held of a partition; None when it has no record of it."""
        return self._held.get(partition)

    def drop(self, partition: TopicPartition) -> None:
        """Forget a partition; what runs of it runs on and counts for nothing, what failed is not tried again."""
        self._settle()
        self._lanes.drop(partition)
        held = self._held.pop(partition, None)
        if held is not None:
            held.is_halted = True
            self._end_pauses(held)

    def _end_pauses(self, held: RecordPartition) -> list[int]:
        """Have nobody wait for another attempt at a record that is another's now; gives their offsets."""
        ended = []
        for pause, work in self._pauses.items():
            if work.source is held and not pause.done():
                ended.append(work.record.offset)
                pause.set_result(None)
        return ended

    def is_ours(self, record: Record) -> bool:
        """Whether the record that this task runs is of a partition that was not dropped since it began."""
        worker = self._workers.of(asyncio.current_task())
        if worker is None or worker.work is None:
            # It was not suspended, so nothing was dropped meanwhile.
            return True
        return self._held.get(record.topic_partition) is worker.work.source

    def hold(self) -> None:
        """Begin nothing more of any partition until ``release``; what runs goes on."""
        # Who holds itself counts as suspended, so that its worker looks before it takes the next one.
        self._settle()
        self._is_held = True
        self._on_progress()

    def release(self) -> None:
        """Go on."""
        self._is_held = False
        if self._lanes.waiting and self._running is None:
            self._workers.wake_one()
        self._on_progress()

    def hold_starts(self) -> None:
        """Start nothing more until ``allow_starts``, whoever else holds it: a transaction is about to be committed."""
        self._settle()
        self._may_not_start = True

    def allow_starts(self) -> None:
        """Go on, unless somebody else holds it."""
        if self._may_not_start:
            self._may_not_start = False
            if self._lanes.waiting and not self._is_held and self._running is None:
                self._workers.wake_one()

    def unstarted(self, position: Position) -> tuple[int | None, list[int]]:
        """Return the lowest offset above which nothing was taken up, and all offsets that were not, lowest first."""
        self._settle()
        held = self._held.get(position.partition)
        if held is None or held.tracker is not position.tracker or held.is_halted:
            return None, []
        offsets = list(self._lanes.offsets(position.partition))
        return (offsets[0] if offsets else None), offsets

    # ---- life --------------------------------------------------------------------------------------------------

    async def run(self, cleaning_up_s: float) -> None:
        """Run until cancelled; then handlers that run are cut short, and have so long to clean up.

        Raises:
            HandlerFailedError: a record failed, and ``on_failure="stop"`` says so.
        """
        try:
            # When the event loop ends by SystemExit all is cancelled, and the reason has to outlive that.
            await asyncio.shield(self._workers.failed)
        finally:
            self._settle()
            await self._workers.end(cleaning_up_s)

    async def attempt(self, worker: Worker) -> Failed:
        """Call the handler again for a record that failed."""
        record = worker.record
        assert record is not None
        try:
            if (returned := await self._handle(record)) is not None:
                await self._finish(record, returned)
        except (Exception, asyncio.CancelledError) as error:  # noqa: BLE001 - whatever a handler raises
            return {0: self._failure(error)}
        return {}

    def keep(self, _worker: Worker, _records: Sequence[Record]) -> None:
        """Finish nothing yet: a record is finished as a whole, by its worker."""

    async def pause_all(self, worker: Worker, seconds: float) -> bool:
        """Wait before the next attempt at a record; return False if it may not be tried again here."""
        assert worker.record is not None
        return await self.pause(worker.record, seconds)

    async def pause(self, record: Record, seconds: float) -> bool:
        """Wait before the next attempt at a record, in nobody's way but its lane's; False when it is another's now."""
        worker, work = self._suspended(record)
        if _is_left(work):
            return False
        self._lanes.failed(work)
        self._workers.most += 1
        pause = self._loop.create_future()
        self._pauses[pause], worker.since = work, None
        try:
            if self._lanes.waiting:
                self._workers.wake_one()
            async with asyncio.timeout(seconds):
                await pause
        except TimeoutError:
            # Its partition may have gone at this very moment.
            return not _is_left(work)
        finally:
            self._workers.most -= 1
            worker.since, worker.has_paused = self._loop.time(), True
            del self._pauses[pause]
        return False

    def _suspended(self, record: Record) -> tuple[Worker, QueuedRecord[RecordPartition]]:
        """This task's worker and what it runs, which suspends now if it did not before."""
        self._settle()
        worker = self._workers.of(asyncio.current_task())
        assert worker is not None
        assert worker.work is not None
        assert worker.work.record is record
        return worker, worker.work

    @property
    def longest_s(self) -> float:
        """For how long the record has run that was begun first of those that run, and do not wait to be tried again."""
        begun = [one.since for one in self._workers if one.work is not None and one.since is not None]
        return self._loop.time() - min(begun) if begun else 0.0

    @property
    def runs(self) -> bool:
        """Whether a handler runs, or waits for its next attempt."""
        return any(worker.record is not None for worker in self._workers)

    @property
    def runs_ours(self) -> bool:
        """The same, of a record whose partition was not dropped since."""
        return any(worker.record is not None and self._is_current(worker) for worker in self._workers)

    def _is_current(self, worker: Worker) -> bool:
        return worker.work is None or self._held.get(worker.work.record.topic_partition) is worker.work.source

    @property
    def waiting(self) -> int:
        """How many records were handed in and have not started."""
        return self._lanes.waiting

    @property
    def is_held(self) -> bool:
        """Whether it was told to hold."""
        return self._is_held

    @property
    def holds_back(self) -> bool:
        """Whether it was told to hold, and has records that wait for it."""
        return self._is_held and self._lanes.waiting > 0

    @property
    def at_work(self) -> int:
        """How many records run, wait for their next attempt, or are about to be begun."""
        return self._workers.at_work

    @property
    def has_failed(self) -> bool:
        """Whether a record of it ends the app: that is not done, and nothing else runs."""
        return self._workers.failed.done()

    @property
    def failure(self) -> BaseException | None:
        """The error of a record that ends the app."""
        return self._workers.failed.exception() if self._workers.failed.done() else None

    def runs_in(self, task: asyncio.Task[Any]) -> bool:
        """Whether the handler runs in ``task``. Any thread may ask."""
        worker = self._workers.of(task)
        return worker is not None and worker.record is not None

    @property
    def under_way(self) -> list[Record]:
        """The records whose handlers have not ended."""
        return [worker.record for worker in self._workers if worker.record is not None]

    # ---- what a worker does ------------------------------------------------------------------------------------

    async def _run_until_nothing(self, worker: Worker) -> None:
        handle, finish, context, began_at = self._handle, self._finish, worker.context, self._loop.time()
        while (work := self._take(worker)) is not None:
            try:
                if (returned := await handle(work.record)) is not None:
                    await finish(work.record, returned)
            except (Exception, asyncio.CancelledError) as error:  # noqa: BLE001 - whatever a handler raises
                await self._go_on(worker, error)
            if not self._finish_begun(worker) and copy_context() == context:
                await self._run_free(worker, began_at)
            worker.record = None
            if copy_context() != context:
                break
            if worker.has_rested:
                worker.has_rested, began_at = False, self._loop.time()
                if worker.has_paused:
                    worker.has_paused = False
                    if self._workers.are_too_many:
                        # It had made room for another, which goes on instead.
                        break
            elif self._is_too_long(began_at):
                self._rest()
                await asyncio.sleep(0)
                began_at = self._loop.time()
        self._rest()
        self._on_progress()

    async def _run_free(self, worker: Worker, began_at: float) -> None:
        """Run what needs no ``take``, until something suspends or it takes too long."""
        handle, finish, context, look_at = self._handle, self._finish, worker.context, 1
        for count, record in enumerate(self._lanes.free, 1):
            worker.record = record
            try:
                if (returned := await handle(record)) is not None:
                    await finish(record, returned)
            except (Exception, asyncio.CancelledError) as error:  # noqa: BLE001 - whatever a handler raises
                await self._go_on(worker, error)
            if self._finish_begun(worker) or copy_context() != context:
                break
            if count == look_at:
                if self._is_held or self._may_not_start or self._is_too_long(began_at):
                    break
                look_at += min(count, _RECORDS_A_LOOK)

    async def _go_on(self, worker: Worker, error: Exception | asyncio.CancelledError) -> None:
        """See that a record that failed is done with."""
        await self._recover(self, worker, {0: self._failure(error)})
        if worker.work is not None:
            self._lanes.recovered(worker.work)

    def _failure(self, error: Exception | asyncio.CancelledError) -> Exception:
        """What a handler has let out, as a failure of its record; while all ends it is none, and goes on to end it."""
        if self._workers.is_ending:
            # Whatever the handler makes of being cut short: its record has not failed, and is not done.
            raise error if isinstance(error, asyncio.CancelledError) else asyncio.CancelledError from error
        return error if isinstance(error, Exception) else no_end()

    def _is_too_long(self, began_at: float) -> bool:
        return is_too_long(self._loop.time() - began_at)

    def _take(self, worker: Worker) -> QueuedRecord[RecordPartition] | None:
        """The next record for ``worker``, which runs from now on."""
        if self._running is not None:
            self._settle(worker)
        self._running = worker
        may_start = not (self._is_held or self._may_not_start or self._workers.is_ending)
        work = self._lanes.take() if may_start else None
        if work is None:
            return None
        worker.record, worker.work = work.record, work if work.is_begun else None
        if worker.work is not None:
            worker.since = self._loop.time()
        if not self._is_looked_for:
            self._is_looked_for = True
            self._loop.call_soon(self._look)
        return work

    def _look(self) -> None:
        """The event loop has its turn: whoever runs still waits for something, so somebody else may run."""
        self._is_looked_for = False
        self._settle()
        if self._lanes.waiting:
            self._workers.wake_one()
        else:
            # What ran last may be suspended for long, and would say so only when it is done.
            self._on_progress()

    def _settle(self, but: Worker | None = None) -> None:
        """Whoever ran and has given the loop to somebody else is suspended: note its record, before anything else."""
        running, self._running = self._running, None
        if running is None or running is but or running.record is None or running.work is not None:
            return
        work = running.work = self._lanes.work_of(running.record)
        running.since = self._loop.time()
        self._lanes.suspended(work)
        work.source.tracker.begin(work.record.offset)

    def _rest(self) -> None:
        """The worker gives the loop back with nothing in hand."""
        self._running = None

    def _parked(self, work: QueuedRecord[RecordPartition]) -> None:
        work.source.tracker.begin(work.record.offset)

    def _finish_begun(self, worker: Worker) -> bool:
        """Whether the record was suspended or parked; then it is noted that it is done with."""
        work = worker.work
        if work is None:
            return False
        worker.has_rested = self._running is not worker
        if self._running is not None:
            self._settle(worker)
        worker.work = worker.record = None
        if self._workers.has_abandoned:
            return True
        held = work.source
        self._lanes.finished(work)
        held.tracker.finish(work.record.offset)
        if held.is_halted or self._lanes.waiting < self._lanes.lane_limit:
            self._on_progress()
        return True


def _is_left(work: QueuedRecord[RecordPartition]) -> bool:
    """Whether a record that failed is not to be tried again here, and is its next owner's."""
    if work.source.is_halted:
        work.source.leave(work.record.offset)
    return work.source.is_halted
