"""One batch handler at work: what is gathered, which batches run, and what is done.

Rule of this file: which records make a batch, and when, is ``core.dispatch.batching``'s to say. A batch has a task of
its own, so that what a handler does to its task touches no other batch. Nothing is noted of its records while batches
are done in order, each as a whole. Of a batch that others overtake, of what is left of one when some of it is done, and
of what is overtaken, or left to others, before it is in one, the partition's tracker is told record by record.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Awaitable, Callable, Sequence
from contextvars import copy_context
from typing import Any, TypeAlias

from tailrace.app.dispatch.batch_failures import Failed
from tailrace.app.dispatch.batch_run import Attempt, BatchPartition, BatchRun
from tailrace.app.dispatch.task_results import ended_by, no_end, stop_all
from tailrace.core.delivery.progress import Position
from tailrace.core.dispatch.batching import BatchAssembler, BatchLimits, HandlerBatch
from tailrace.core.dispatch.lanes import OrderBy
from tailrace.records import Record, TopicPartition

__all__ = ["BatchExecutor"]

Recover: TypeAlias = "Callable[[BatchExecutor, BatchRun, Failed], Awaitable[None]]"


class BatchExecutor:
    """Runs one handler's batches.

    Args:
        attempt: runs a batch, and gives what failed of it.
        recover: is given what failed, and returns when that is done with; what it raises ends the app.
        order_by: what is kept in order.
        limits: what makes a batch full.
        concurrency: how many batches run at once.
        window: how many records may wait to be in one, or for another attempt.
        on_progress: told when something is done, or there is room.
        on_full: told of a record that failed and how many wait as it does, or for it, when no more are wanted of its
            partition.

    Attributes:
        is_held: whether it was told to hold.
    """

    def __init__(  # noqa: PLR0913 - the sides of a line
        self,
        attempt: Attempt,
        recover: Recover,
        *,
        order_by: OrderBy,
        limits: BatchLimits,
        concurrency: int,
        window: int,
        on_progress: Callable[[], None],
        on_full: Callable[[Record, int], None] = lambda _record, _waiting: None,
    ) -> None:
        self._attempt, self._recover = attempt, recover
        self._concurrency, self._on_progress = concurrency, on_progress
        self._is_by_key = order_by == "key"
        self._batching: BatchAssembler[BatchPartition] = BatchAssembler(
            order_by, limits, window=window, ahead=concurrency * limits.max_records, on_full=on_full
        )
        self._held: dict[TopicPartition, BatchPartition] = {}
        self._loop = asyncio.get_running_loop()
        self._context = copy_context()
        self._tasks: dict[asyncio.Task[None], BatchRun] = {}
        self._fresh: BatchRun | None = None
        """The last one that was begun, while it has neither suspended nor ended."""
        self._timer: asyncio.TimerHandle | None = None
        self.is_held = self._may_not_start = False
        self._is_ending = self._has_abandoned = False
        self._failed: asyncio.Future[None] = self._loop.create_future()

    # ---- what is handed in -------------------------------------------------------------------------------------

    def room_of(self, partition: TopicPartition) -> int:
        """How many records of a partition it takes now."""
        # What is decoded before a batch has run would only be cold when its own turn comes.
        return 0 if self.is_held or self._fresh is not None else self._batching.room_of(partition)

    def add(self, position: Position, records: Sequence[Record]) -> None:
        """Gather these, and run them when their batch is due."""
        held = self._held.get(position.partition)
        if held is None or held.tracker is not position.tracker:
            assert position.tracker is not None
            held = self._held[position.partition] = BatchPartition(position, position.tracker)
        self._batching.add(position.partition, records, held, self._loop.time())
        self._begin_what_is_due()

    def next_of(self, position: Position) -> int | None:
        """The lowest offset that was handed in and of which the tracker does not know; None when there is none."""
        held = self._held.get(position.partition)
        if held is None or held.tracker is not position.tracker:
            return None
        lowest = held.left if held.is_halted else next(self._batching.offsets(position.partition, held.passed), None)
        if held.whole:
            first = min(held.whole.values())
            return first if lowest is None else min(lowest, first)
        return lowest

    def done_of(self, position: Position) -> int | None:
        """The lowest offset that is not done; None when there is none."""
        following, held = self.next_of(position), self._held.get(position.partition)
        if held is None or held.tracker is not position.tracker:
            return None
        lowest = held.tracker.lowest
        return following if lowest is None or (following is not None and following < lowest) else lowest

    def halt(self, partition: TopicPartition) -> int | None:
        """Begin nothing more of a partition; the lowest offset that was not begun, None when there is none."""
        held = self._held.get(partition)
        if held is None:
            return None
        held.is_halted = True
        for run in list(held.whole):
            # What runs is waited for, also behind what is left to others.
            self._track(run)
        left = list(self._batching.offsets(partition))
        held.tracker.leave(left)
        held.left = min(left if held.left is None else [*left, held.left], default=None)
        self._batching.drop(partition)
        self._leave_what_waits(partition, held)
        return held.left

    def held_of(self, partition: TopicPartition) -> BatchPartition | None:
        """What is held of a partition; None when it has no record of it."""
        return self._held.get(partition)

    def drop(self, partition: TopicPartition) -> None:
        """Forget a partition; what runs of it runs on and counts for nothing, what failed is not tried again."""
        self._batching.drop(partition)
        held = self._held.pop(partition, None)
        if held is not None:
            held.is_halted = True
            self._leave_what_waits(partition, held)

    def hold(self) -> None:
        """Begin nothing more of any partition until ``release``; what runs goes on."""
        self.is_held = True
        self._set_timer(None)
        self._on_progress()

    @property
    def holds_back(self) -> bool:
        """Whether it was told to hold, and has records that wait for it."""
        return self.is_held and self._batching.waiting > 0

    def release(self) -> None:
        """Go on."""
        self.is_held = False
        self._go_on()

    def hold_starts(self) -> None:
        """Start nothing more until ``allow_starts``, whoever else holds it: a transaction is about to be committed."""
        self._may_not_start = True
        self._set_timer(None)

    def allow_starts(self) -> None:
        """Go on, unless somebody else holds it."""
        if self._may_not_start:
            self._may_not_start = False
            self._begin_what_is_due()

    def unstarted(self, position: Position) -> tuple[int | None, list[int]]:
        """Return the lowest offset above which nothing is in a batch, and all offsets that are not, lowest first."""
        held = self._held.get(position.partition)
        if held is None or held.tracker is not position.tracker or held.is_halted:
            return None, []
        following = next(self._batching.offsets(position.partition, held.passed), None)
        return following, list(self._batching.offsets(position.partition))

    @property
    def gathers(self) -> bool:
        """Whether records wait for their batch."""
        return self._batching.waiting > 0

    def hurry(self) -> None:
        """Nothing more comes before what is gathered is done: let it wait for no more."""
        self._batching.hurry()
        self._begin_what_is_due()

    # ---- life --------------------------------------------------------------------------------------------------

    async def run(self, cleaning_up_s: float) -> None:
        """Run until cancelled; then handlers that run are cut short, and have so long to clean up.

        Raises:
            HandlerFailedError: a batch failed, and ``on_failure="stop"`` says so.
        """
        try:
            # When the event loop ends by SystemExit all is cancelled, and the reason has to outlive that.
            await asyncio.shield(self._failed)
        finally:
            self._is_ending = True
            self._set_timer(None)
            self._has_abandoned = not await stop_all(list(self._tasks), cleaning_up_s)
            for run in self._tasks.values():
                run.publishing.is_abandoned = True

    @property
    def longest_s(self) -> float:
        """For how long the batch has run that was begun first of those that run."""
        begun = [run.since for run in self._tasks.values() if run.since is not None]
        return self._loop.time() - min(begun) if begun else 0.0

    @property
    def runs(self) -> bool:
        """Whether a batch runs, or waits for its next attempt."""
        return bool(self._tasks)

    @property
    def runs_ours(self) -> bool:
        """The same, of a batch with a record whose partition was not dropped since."""
        return any(self._held.get(at) is held for run in self._tasks.values() for at, held in run.batch.sources.items())

    @property
    def waiting(self) -> int:
        """How many records were handed in and are in no batch."""
        return self._batching.waiting

    @property
    def at_work(self) -> int:
        """How many records run, wait for their next attempt, or will be begun by themselves."""
        at_work = sum(max(1, len(run.records)) for run in self._tasks.values())
        return at_work if self._timer is None else at_work + self._batching.waiting

    @property
    def has_failed(self) -> bool:
        """Whether a batch of it ends the app: that is not done, and nothing else runs."""
        return self._failed.done()

    @property
    def failure(self) -> BaseException | None:
        """The error of a batch that ends the app."""
        return self._failed.exception() if self._failed.done() else None

    def runs_in(self, task: asyncio.Task[Any]) -> bool:
        """Whether the handler runs in ``task``. Any thread may ask."""
        return task in self._tasks

    @property
    def under_way(self) -> list[Record]:
        """The first record of each batch whose handler has not ended."""
        return [run.records[0] for run in self._tasks.values() if run.records]

    # ---- for the batches under way -----------------------------------------------------------------------------

    async def attempt(self, run: BatchRun) -> Failed:
        """Run the handler; what it does to its task is a failure of the batch, and not our end.

        While all ends, it is cut short: whatever it makes of that, its records have not failed, and are not done.
        """
        run.since = self._loop.time()
        self._loop.call_soon(self._give_way, run)
        try:
            failed = await self._attempt(run.records)
        except asyncio.CancelledError:
            if self._is_ending:
                raise
            failed = dict.fromkeys(range(len(run.records)), no_end())
        finally:
            run.since = None
        if self._has_abandoned or (failed and self._is_ending):
            raise asyncio.CancelledError
        return failed

    def keep(self, run: BatchRun, records: Sequence[Record]) -> None:
        """All but ``records`` of a batch are done with; what was left to others is so still."""
        batch = run.batch
        kept = [record for record in records if record.topic_partition in batch.sources]
        if run.is_tracked:
            for record in _without(batch.records, kept):
                batch.sources[record.topic_partition].tracker.finish(record.offset)
        self._batching.shrink(batch, kept)
        if kept and not run.is_tracked:
            self._track(run)
        self._go_on()

    async def pause_all(self, run: BatchRun, seconds: float) -> bool:
        """Wait before the next attempt, or until nothing is left of the batch that is ours to run."""
        for partition, held in list(run.batch.sources.items()):
            if held.is_halted:
                self._leave(run, partition)
        if run.records:
            await self._wait(run, None, seconds)
        return bool(run.records)

    async def pause(self, record: Record, seconds: float) -> bool:
        """Wait before one record of a batch is given away again; False when it is another's meanwhile."""
        run = self._run_of(record)
        if run is None:
            return False
        if run.batch.sources[record.topic_partition].is_halted:
            self._leave(run, record.topic_partition)
            return False
        await self._wait(run, record.topic_partition, seconds)
        return self.is_ours(record)

    def is_ours(self, record: Record) -> bool:
        """Whether a record of a batch under way is of a partition that was not dropped since it was read."""
        run = self._run_of(record)
        return run is not None and self._held.get(record.topic_partition) is run.batch.sources[record.topic_partition]

    # ---- inside ------------------------------------------------------------------------------------------------

    def _go_on(self) -> None:
        """Something is done, or is in nobody's way any more."""
        self._begin_what_is_due()
        self._on_progress()

    def _begin_what_is_due(self) -> None:
        is_free = self._is_free
        while is_free and (batch := self._batching.take(self._loop.time())) is not None:
            self._begin(batch)
            is_free = self._is_free
        self._set_timer(self._batching.due_at if is_free else None)

    @property
    def _is_free(self) -> bool:
        if self.is_held or self._may_not_start or self._is_ending or self._failed.done():
            return False
        return sum(not run.waits for run in self._tasks.values()) < self._concurrency

    def _begin(self, batch: HandlerBatch[BatchPartition]) -> None:
        context = self._context.copy()
        run = BatchRun(batch, context)
        for partition, held in batch.sources.items():
            held.whole[run] = batch.lowest[partition]
            if self._is_by_key:
                self._pass_over(run, partition, held)
        task = self._loop.create_task(self._see_to_its_end(run), context=context)
        self._tasks[task], self._fresh = run, run
        task.add_done_callback(self._ended)

    def _pass_over(self, run: BatchRun, partition: TopicPartition, held: BatchPartition) -> None:
        """A batch begins behind records whose key is busy: the tracker has to know of those, and when they are done."""
        end = run.records[-1].offset
        for offset in itertools.takewhile(end.__gt__, self._batching.offsets(partition, held.passed)):
            held.tracker.begin(offset)
        if run.batch.lowest[partition] < held.passed:
            self._track(run)
        held.passed = max(held.passed, end)

    def _track(self, run: BatchRun) -> None:
        """Have the trackers know of each record of a batch: others may be done before it."""
        sources = run.batch.sources
        for record in run.records:
            sources[record.topic_partition].tracker.begin(record.offset)
        run.is_tracked = True
        for held in sources.values():
            held.whole.pop(run, None)

    async def _see_to_its_end(self, run: BatchRun) -> None:
        for partition, held in list(run.batch.sources.items()):
            if held.is_halted:
                # It went between the beginning of the batch and now.
                self._leave(run, partition)
        if run.records and (failed := await self.attempt(run)):
            await self._recover(self, run, failed)
        if run.is_tracked:
            for record in run.records:
                run.batch.sources[record.topic_partition].tracker.finish(record.offset)
        else:
            self._finish_whole(run)
        self._batching.finish(run.batch)

    def _finish_whole(self, run: BatchRun) -> None:
        """A batch is done as a whole; of others that are not, and begin before its end, the trackers have to know."""
        for partition, held in run.batch.sources.items():
            if held.whole.pop(run, None) is None or not held.whole:
                continue
            end = run.records[-1].offset if self._is_by_key else run.batch.lowest[partition]
            for other in [one for one, first in held.whole.items() if first < end]:
                self._track(other)

    def _ended(self, task: asyncio.Task[None]) -> None:
        if self._tasks.pop(task) is self._fresh:
            self._fresh = None
        error = ended_by(task)
        if error is not None and not self._failed.done():
            self._failed.set_exception(error)
        self._go_on()

    def _give_way(self, run: BatchRun) -> None:
        """The event loop has its turn, so that whoever ran waits for something, or is through."""
        if self._fresh is run:
            self._fresh = None
            self._on_progress()

    def _set_timer(self, due_at: float | None) -> None:
        """Look again at that time, or before."""
        if self._timer is not None:
            if due_at is not None and self._timer.when() <= due_at:
                return
            self._timer.cancel()
            self._timer = None
        if due_at is not None:
            self._timer = self._loop.call_at(due_at, self._timer_fired)

    def _timer_fired(self) -> None:
        self._timer = None
        self._go_on()

    async def _wait(self, run: BatchRun, partition: TopicPartition | None, seconds: float) -> None:
        ended = self._loop.create_future()
        self._batching.failed(run.batch)
        run.waits[ended] = partition
        self._go_on()
        try:
            async with asyncio.timeout(seconds):
                await ended
        except TimeoutError:
            pass
        finally:
            del run.waits[ended]

    def _run_of(self, record: Record) -> BatchRun | None:
        """The batch that a record is in, and not done with."""
        return next((run for run in self._tasks.values() if any(one is record for one in run.records)), None)

    def _leave_what_waits(self, partition: TopicPartition, held: BatchPartition) -> None:
        for run in self._tasks.values():
            if run.waits and run.batch.sources.get(partition) is held:
                self._leave(run, partition)

    def _leave(self, run: BatchRun, partition: TopicPartition) -> None:
        """What is left of a batch of that partition is not done here: it is its next owner's."""
        held = run.batch.sources[partition]
        lowest = run.batch.lowest.get(partition)
        if lowest is not None:
            held.leave(lowest)
        held.whole.pop(run, None)
        for record in run.records:
            if run.is_tracked and record.topic_partition == partition:
                held.tracker.abandon(record.offset)
        self._batching.shrink(run.batch, [one for one in run.records if one.topic_partition != partition])
        del run.batch.sources[partition]
        for wait, of in run.waits.items():
            if not wait.done() and (of == partition or not run.records):
                wait.set_result(None)


def _without(records: Sequence[Record], others: Sequence[Record]) -> list[Record]:
    passed = {id(record) for record in others}
    return [record for record in records if id(record) not in passed]
