"""One handler at work: workers that take records from its lanes, one after the other.

Rule of this file: which record may run is ``core.lanes``'s to say. A worker runs records without a pause until a
handler suspends; only then is another worker woken, and only then is anything noted about the record. So a handler that
never suspends costs no task, no timer and no set for a record. At most one worker runs at any moment, since there is
one event loop; it is the one in ``_running`` until it gives the loop back.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from contextvars import copy_context
from dataclasses import dataclass, field
from typing import Any

from penstock.core.lanes import Lanes, OrderBy, Work
from penstock.core.positions import Position
from penstock.core.slices import is_too_long
from penstock.core.tracker import Tracker
from penstock.errors import HandlerFailedError
from penstock.records import Record, TopicPartition

__all__ = ["Line"]

Handle = Callable[[Record], Awaitable[object]]
Recover = Callable[[Record, Exception], Awaitable[None]]

_RECORDS_A_LOOK = 32
"""At most so many records are run between two looks at the clock; the first looks come sooner."""


@dataclass(slots=True, eq=False)
class _Held:
    """What is held of one partition since its last beginning."""

    position: Position
    tracker: Tracker
    """Told of records that are suspended, or parked behind one that is."""
    parked: set[int] = field(default_factory=set)
    """Offsets of those that did not run yet."""
    is_halted: bool = False
    """Whether nothing more of it is begun here, and nothing that failed is tried again."""
    left: int | None = None
    """Since then: the lowest offset that was not taken up, or will not be done here."""

    def leave(self, offset: int) -> None:
        """A record that was begun will not be done here, so that nobody waits for it."""
        self.tracker.abandon(offset)
        self.left = offset if self.left is None else min(self.left, offset)
        if self.position.tracker is self.tracker and self.position.delivered is not None:
            self.position.delivered = min(self.position.delivered, self.left)


class _Worker:
    """A task that runs records, and the one that it is at."""

    __slots__ = ("has_rested", "record", "rested", "since", "work")

    def __init__(self) -> None:
        self.record: Record | None = None
        self.work: Work[_Held] | None = None
        """Of the record, once that is suspended or was parked before."""
        self.since: float | None = None
        """When it was suspended first; None while it waits for its next attempt."""
        self.rested: asyncio.Future[None] | None = None
        self.has_rested = False
        """Whether the event loop has had its turn while the last record was suspended."""


class Line:
    """Runs one handler's records.

    Args:
        handle: runs a record to the end; what it raises is a failure.
        recover: is given what failed, and returns when that record is done with; what it raises ends the app.
        order_by: what is kept in order.
        concurrency: how many records run at once.
        window: how many may wait.
        on_progress: told when something is done.
        on_full: told of the last record that a lane takes: what it waits for holds its whole partition up.
    """

    def __init__(  # noqa: PLR0913 - the sides of a line
        self,
        handle: Handle,
        recover: Recover,
        *,
        order_by: OrderBy,
        concurrency: int,
        window: int,
        on_progress: Callable[[], None],
        on_full: Callable[[Record], None] = lambda _record: None,
    ) -> None:
        self._handle, self._recover = handle, recover
        self._concurrency, self._on_progress = concurrency, on_progress
        self._lanes: Lanes[_Held] = Lanes(
            order_by, window, on_parked=self._parked, on_full=lambda work: on_full(work.record)
        )
        self._held: dict[TopicPartition, _Held] = {}
        self._loop = asyncio.get_running_loop()
        self._workers: dict[asyncio.Task[None], _Worker] = {}
        self._idle: list[_Worker] = []
        self._running: _Worker | None = None
        self._is_looked_for = False
        self._context = copy_context()
        self._pauses: dict[asyncio.Future[None], Work[_Held]] = {}
        """Records that failed and wait for their next attempt."""
        self._is_held = False
        self._is_ending = False
        self._failed: asyncio.Future[None] = self._loop.create_future()

    @property
    def lane_limit(self) -> int:
        """How many records may wait in one lane before no more are taken of its partition."""
        return self._lanes.lane_limit

    # ---- what is handed in -------------------------------------------------------------------------------------

    def room_of(self, partition: TopicPartition) -> int:
        """How many records of a partition it takes now."""
        return 0 if self._is_held else self._lanes.room_of(partition)

    def add(self, position: Position, records: Sequence[Record]) -> None:
        """Run these, when their turn comes."""
        held = self._held.get(position.partition)
        if held is None or held.tracker is not position.tracker:
            assert position.tracker is not None
            held = self._held[position.partition] = _Held(position, position.tracker)
        self._lanes.add(position.partition, records, held)
        if self._running is None:
            self._wake_one()

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
        held.is_halted, held.left = True, self._lanes.next_offset(partition)
        self._lanes.drop(partition)
        not_begun = {*held.parked, *self._end_pauses(held)}
        held.parked.clear()
        for offset in not_begun:
            held.tracker.abandon(offset)
        return min(not_begun if held.left is None else {*not_begun, held.left}, default=None)

    def drop(self, partition: TopicPartition) -> None:
        """Forget a partition; what runs of it runs on and counts for nothing, what failed is not tried again."""
        self._settle()
        self._lanes.drop(partition)
        held = self._held.pop(partition, None)
        if held is not None:
            held.is_halted = True
            self._end_pauses(held)

    def _end_pauses(self, held: _Held) -> list[int]:
        """Have nobody wait for another attempt at a record that is another's now; gives their offsets."""
        ended = []
        for pause, work in self._pauses.items():
            if work.source is held and not pause.done():
                ended.append(work.record.offset)
                pause.set_result(None)
        return ended

    def is_ours(self, record: Record) -> bool:
        """Whether the record that this task runs is of a partition that was not dropped since it began."""
        task = asyncio.current_task()
        worker = self._workers.get(task) if task is not None else None
        if worker is None or worker.work is None:
            # It was not suspended, so nothing was dropped meanwhile.
            return True
        return self._held.get(record.topic_partition) is worker.work.source

    def hold(self) -> None:
        """Begin nothing more of any partition until ``release``; what runs goes on."""
        self._is_held = True

    def release(self) -> None:
        """Go on."""
        self._is_held = False
        if self._lanes.waiting and self._running is None:
            self._wake_one()
        self._on_progress()

    # ---- life --------------------------------------------------------------------------------------------------

    async def run(self) -> None:
        """Run until cancelled.

        Raises:
            HandlerFailedError: a record failed, and ``on_failure="stop"`` says so.
        """
        try:
            await self._failed
        finally:
            self._is_ending = True
            tasks = list(self._workers)
            for task in tasks:
                task.cancel()
            if tasks:
                await asyncio.wait(tasks)

    async def pause(self, record: Record, seconds: float) -> bool:
        """Wait before the next attempt at a record, in nobody's way but its lane's; False when it is another's now."""
        worker, work = self._suspended(record)
        if work.source.is_halted:
            work.source.leave(record.offset)
            return False
        self._concurrency += 1
        pause = self._loop.create_future()
        self._pauses[pause], worker.since = work, None
        try:
            if self._lanes.waiting:
                self._wake_one()
            async with asyncio.timeout(seconds):
                await pause
        except TimeoutError:
            return True
        finally:
            self._concurrency -= 1
            worker.since = self._loop.time()
            del self._pauses[pause]
        return False

    def _suspended(self, record: Record) -> tuple[_Worker, Work[_Held]]:
        """This task's worker and what it runs, which suspends now if it did not before."""
        self._settle()
        task = asyncio.current_task()
        assert task is not None
        worker = self._workers[task]
        assert worker.work is not None
        assert worker.work.record is record
        return worker, worker.work

    @property
    def longest_s(self) -> float:
        """For how long the record has run that was begun first of those that run, and do not wait to be tried again."""
        begun = [one.since for one in self._workers.values() if one.work is not None and one.since is not None]
        return self._loop.time() - min(begun) if begun else 0.0

    @property
    def runs(self) -> bool:
        """Whether a handler runs, or waits for its next attempt."""
        return any(worker.record is not None for worker in self._workers.values())

    @property
    def is_held(self) -> bool:
        """Whether it was told to hold."""
        return self._is_held

    @property
    def at_work(self) -> int:
        """How many records run, wait for their next attempt, or are about to be begun."""
        return len(self._workers) - len(self._idle)

    @property
    def has_failed(self) -> bool:
        """Whether a record of it ends the app: that is not done, and nothing else runs."""
        return self._failed.done()

    def record_of(self, task: asyncio.Task[Any] | None) -> Record | None:
        """The record whose handler runs in ``task``."""
        worker = self._workers.get(task) if task is not None else None
        return worker.record if worker is not None else None

    @property
    def running(self) -> Record | None:
        """The record whose handler has the event loop now."""
        return self._running.record if self._running is not None else None

    # ---- workers -----------------------------------------------------------------------------------------------

    def _wake_one(self) -> None:
        if self._idle:
            rested = self._idle.pop().rested
            if rested is not None and not rested.done():
                rested.set_result(None)
        elif len(self._workers) < self._concurrency:
            worker = _Worker()
            task = self._loop.create_task(self._work(worker), context=self._context.copy())
            self._workers[task] = worker
            task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[None]) -> None:
        del self._workers[task]
        error = None if task.cancelled() else task.exception()
        if error is not None and not isinstance(error, Exception):
            # asyncio has let SystemExit and KeyboardInterrupt through already; whatever else it is ends the app.
            fatal, error = error, HandlerFailedError(f"a handler raised {type(error).__name__}: {error}")
            error.__cause__ = fatal
        if error is not None and not self._failed.done():
            self._failed.set_exception(error)
        elif self._lanes.waiting and not self._failed.done():
            self._wake_one()

    async def _work(self, worker: _Worker) -> None:
        while True:
            await self._run_until_nothing(worker)
            self._on_progress()
            if copy_context() != self._context:
                # A handler has left something in the context: it goes with this worker, and touches nobody else.
                return
            if len(self._workers) > self._concurrency:
                return
            worker.rested = self._loop.create_future()
            self._idle.append(worker)
            await worker.rested

    async def _run_until_nothing(self, worker: _Worker) -> None:
        handle, context, began_at = self._handle, self._context, self._loop.time()
        while (work := self._take(worker)) is not None:
            worker.work = work if work.is_begun else None
            if worker.work is not None:
                work.source.parked.discard(work.record.offset)
                worker.since = self._loop.time()
            worker.record = work.record
            try:
                await handle(work.record)
            except (Exception, asyncio.CancelledError) as error:  # noqa: BLE001 - whatever a handler raises
                await self._go_on(work.record, error)
            if not self._finish_begun(worker) and copy_context() == context:
                await self._run_free(worker, began_at)
            worker.record = None
            if copy_context() != context:
                break
            if worker.has_rested:
                worker.has_rested, began_at = False, self._loop.time()
            elif self._is_too_long(began_at):
                self._rest()
                await asyncio.sleep(0)
                began_at = self._loop.time()
        self._rest()

    async def _run_free(self, worker: _Worker, began_at: float) -> None:
        """Run what needs no ``take``, until something suspends or it takes too long."""
        handle, context, look_at = self._handle, self._context, 1
        for count, record in enumerate(self._lanes.free, 1):
            worker.record = record
            try:
                await handle(record)
            except (Exception, asyncio.CancelledError) as error:  # noqa: BLE001 - whatever a handler raises
                await self._go_on(record, error)
            if self._finish_begun(worker) or copy_context() != context:
                break
            if count == look_at:
                if self._is_held or self._is_too_long(began_at):
                    break
                look_at += min(count, _RECORDS_A_LOOK)

    async def _go_on(self, record: Record, error: BaseException) -> None:
        """See that a record that failed is done with."""
        task = asyncio.current_task()
        assert task is not None
        if isinstance(error, Exception):
            await self._recover(record, error)
        elif self._is_ending:
            raise error
        else:
            # The handler cancelled its own task, or let out what it had cancelled: its failure, and not our end.
            while task.cancelling():
                task.uncancel()
            await self._recover(
                record, HandlerFailedError("the handler raised CancelledError, and nobody cancelled it")
            )

    def _is_too_long(self, began_at: float) -> bool:
        return is_too_long(self._loop.time() - began_at)

    def _take(self, worker: _Worker) -> Work[_Held] | None:
        """The next record for ``worker``, which runs from now on."""
        if self._running is not None:
            self._settle(worker)
        self._running = worker
        work = None if self._is_held else self._lanes.take()
        if work is not None and not self._is_looked_for:
            self._is_looked_for = True
            self._loop.call_soon(self._look)
        return work

    def _look(self) -> None:
        """The event loop has its turn: whoever runs still waits for something, so somebody else may run."""
        self._is_looked_for = False
        self._settle()
        if self._lanes.waiting:
            self._wake_one()
        else:
            # What ran last may be suspended for long, and would say so only when it is done.
            self._on_progress()

    def _settle(self, but: _Worker | None = None) -> None:
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

    def _parked(self, work: Work[_Held]) -> None:
        work.source.tracker.begin(work.record.offset)
        work.source.parked.add(work.record.offset)

    def _finish_begun(self, worker: _Worker) -> bool:
        """Whether the record was suspended or parked; then it is noted that it is done with."""
        work = worker.work
        if work is None:
            return False
        worker.has_rested = self._running is not worker
        if self._running is not None:
            self._settle(worker)
        worker.work = worker.record = None
        held = work.source
        self._lanes.finished(work)
        held.tracker.finish(work.record.offset)
        if held.is_halted or self._lanes.waiting < self._lanes.lane_limit:
            self._on_progress()
        return True
