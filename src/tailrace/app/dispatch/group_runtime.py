"""Runtime of one consumer group of an app: its source, and its running handlers, each with an executor.

A record goes to the first handler whose ``when=`` matches it: from ``GroupRuntime._read_records`` to ``add`` of its
executor (``app.dispatch.record_executor``, ``app.dispatch.batch_executor``), which keeps the order of records, calls
the handler, and passes failed records to ``app.failures.policy``. ``app.failures.delayed_records`` delays the records
of retry topics, and delayed messages.
"""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

import anyio

from tailrace.app.declare.arguments import Opened
from tailrace.app.dispatch.batch_executor import BatchExecutor
from tailrace.app.dispatch.batching import BatchAssembler
from tailrace.app.dispatch.call import GroupParts, OverdueCalls, batch_call, matches, record_call
from tailrace.app.dispatch.lanes import FEW_RECORDS, Lanes
from tailrace.app.dispatch.record_executor import RecordExecutor
from tailrace.app.failures.dead_letter_publisher import DeadLetterPublisher
from tailrace.app.failures.dead_letters import as_first_read, handler_of
from tailrace.app.failures.delayed_records import DelayedDelivery
from tailrace.app.failures.policy import FailurePolicy
from tailrace.app.function_kinds import identity_of
from tailrace.app.handlers import Handler, ResolvedHandler
from tailrace.app.publish.delays import PublishDelays
from tailrace.app.publish.results import instrumented
from tailrace.app.sources import Source, Transactions
from tailrace.app.topics.routes import Routes
from tailrace.awaitables import AutoResetEvent
from tailrace.core.progress import Lease, Progress
from tailrace.observe.events import (
    BatchFailed,
    Event,
    HandlerAbandoned,
    HandlerFailed,
    HandlersOverlap,
    PartitionReadPaused,
    RecordDeadLettered,
    RecordDelayed,
    RecordSkipped,
    RecordUnmatched,
)
from tailrace.observe.hooks import Observer, instrumentations_of
from tailrace.observe.statistics import ConsumerStatistics, GroupStatistics, HandlerStatistics
from tailrace.producer.publisher import Publisher
from tailrace.records import Record, TopicPartition

__all__ = ["AppParts", "Connect", "Executor", "GroupRuntime", "HandlerEvents", "RunningHandler", "running_handler"]

# ---- counts of one handler's failures, taken from its events ---------------------------------------------------------


class HandlerEvents:
    """Hook that receives the events of one handler.

    Attributes:
        failures: number of failed attempts; each failed record of a batch counts.
        delayed: number of records published to a retry topic.
        dead_letters: number of records published to the dead-letter topic.
        skipped: number of records skipped after they failed.
    """

    def __init__(self) -> None:
        self.failures = self.delayed = self.dead_letters = self.skipped = 0

    def on_event(self, event: Event) -> None:
        """Count an event."""
        match event:
            case HandlerFailed():
                self.failures += 1
            case BatchFailed(failed=failed):
                self.failures += failed
            case RecordDelayed():
                self.delayed += 1
            case RecordDeadLettered():
                self.dead_letters += 1
            case RecordSkipped():
                self.skipped += 1
            case _:
                pass


# ---- running handlers ------------------------------------------------------------------------------------------------

Executor: TypeAlias = RecordExecutor | BatchExecutor


@dataclass(frozen=True, slots=True, eq=False)
class RunningHandler:
    """Handler while its app runs: the resolved handler, and the parts that run it."""

    handler: ResolvedHandler
    executor: Executor
    policy: FailurePolicy
    overdue_calls: OverdueCalls
    events: HandlerEvents

    @property
    def is_gathering(self) -> bool:
        """True while records wait for more records of their batch."""
        return self.handler.batch is not None and self.executor.waiting > 0

    @property
    def has_paused_records(self) -> bool:
        """True if the handler is paused and records wait for it."""
        return self.executor.is_paused and self.executor.waiting > 0

    def statistics(self) -> HandlerStatistics:
        """Return the statistics of the handler."""
        handler, executor, events, meter = self.handler, self.executor, self.events, self.executor.meter
        return HandlerStatistics(
            group_id=handler.group_id,
            handler=handler.name,
            concurrency=handler.concurrency,
            records=meter.records,
            batches=None if handler.batch is None else meter.batches,
            calls=meter.durations,
            in_flight=executor.workers.in_flight,
            waiting=executor.waiting,
            failures=events.failures,
            retries=self.policy.retries,
            delayed=events.delayed,
            dead_letters=events.dead_letters,
            skipped=events.skipped,
            is_paused=executor.is_paused,
        )


def running_handler(handler: ResolvedHandler, group: GroupParts) -> RunningHandler:
    """Build the parts that run a handler; in transactions, a handler without ``timeout_ms`` gets a default."""
    limits, concurrency, transactions = handler.batch, handler.concurrency, group.transactions
    if transactions is not None and handler.timeout_ms is None:
        timeout_ms = transactions.default_timeout_ms(0 if limits is None else limits.max_wait_ms)
        handler = replace(handler, timeout_ms=timeout_ms)
    events = HandlerEvents()
    observer = group.observer.with_hooks(events)
    overdue_calls = OverdueCalls(handler.name, observer)
    policy = FailurePolicy(
        handler,
        dead_letter_publisher=group.dead_letter_publisher,
        observer=observer,
        transactions=transactions,
        delay_of=group.delay_of,
    )
    on_full = functools.partial(group.on_full, handler)
    executor: Executor
    if limits is None:
        lanes = Lanes(handler.order_by, group.window, on_full=on_full, is_shared=handler.when is not None)
        call = record_call(handler, group, overdue_calls)
        executor = RecordExecutor(lanes, call, policy.recover, concurrency, group.on_progress)
    else:
        ahead = concurrency * limits.max_records
        batching = BatchAssembler(handler.order_by, limits, window=group.window, ahead=ahead, on_full=on_full)
        batches = batch_call(handler, group, overdue_calls)
        executor = BatchExecutor(batching, batches, policy.recover, concurrency, group.on_progress)
    return RunningHandler(handler, executor, policy, overdue_calls, events)


# ---- runtime of one consumer group of an app: its source, and an executor for each handler ---------------------------

_READ_PAUSED_INTERVAL_S = 60.0
"""Minimum time in seconds between two PartitionReadPaused events of one partition."""

Connect: TypeAlias = Callable[[Routes], Source]
"""Returns the source of a group's records: a ``ConsumerSource``, which reads with a consumer's ``Reader``, a
``TransactionalSource`` around one, or a substitute for Kafka."""


@dataclass(frozen=True, slots=True)
class AppParts:
    """Objects of an app that its groups share."""

    opened: Opened
    """Values of app-scoped dependencies."""
    publisher: Publisher
    """Publisher of messages outside of transactions."""
    delays: PublishDelays | None
    """Declared delays of delayed messages; None if there are none."""


class GroupRuntime:
    """Reads the records of one group, and passes each record to its handler.

    Attributes:
        source: source of records; ``source.reader.next_slice`` is the call by which the group reads.
        unmatched: number of records skipped because no handler matches them.
        left_behind: names of handlers that were canceled by the stop and still run.
    """

    def __init__(
        self,
        group_id: str,
        handlers: Sequence[ResolvedHandler],
        app: AppParts,
        observer: Observer,
        connect: Connect,
    ) -> None:
        self.group_id = group_id
        self._handlers, self._app, self._observer = handlers, app, observer
        self._routes = Routes(group_id, handlers)
        self.source = connect(self._routes)
        self._transactions: Transactions | None = None
        self._delayed = DelayedDelivery(
            self._routes.delays_ms,
            deliver=self._dispatch,
            room_of=self._room_in_executors,
            on_empty=self._on_progress,
            wall_clock=self.source.wall_clock,
        )
        self._running: list[RunningHandler] = []
        self._running_by_topic: dict[str, list[RunningHandler]] = {}
        self._progress: dict[TopicPartition, Progress] = {}
        """Progress of each partition's latest assignment epoch."""
        self._wakeup = AutoResetEvent()
        """Set when a record is finished or there is room for more records, for ``finish``."""
        self._next_read_paused_at: dict[TopicPartition, float] = {}
        """Earliest time of the next PartitionReadPaused event of each partition."""
        self._is_ending = False
        self.unmatched = 0
        self.left_behind: list[str] = []

    async def start(self) -> None:
        """Start the source and build the executors; ``run`` reads the records.

        Raises:
            TailraceError: see ``Consumer.start``.
        """
        window = await self.source.start(self)
        self._transactions = self.source.transactions
        publisher = self._app.publisher
        if self._transactions is not None:
            publisher = instrumented(self._transactions, instrumentations_of(self._observer))
        parts = GroupParts(
            opened=self._app.opened,
            publisher=publisher,
            delays=self._app.delays,
            dead_letter_publisher=DeadLetterPublisher(self._routes, publisher, self.source.wall_clock),
            transactions=self._transactions,
            observer=self._observer,
            # A set is faster for the look-up of each record, but it does not contain topics that match a pattern.
            own_topics=self._routes if self._routes.patterns else self._routes.own_topics,
            delay_of=self._delayed.delay_of,
            window=window,
            on_progress=self._on_progress,
            on_full=self._emit_read_paused,
        )
        self._running = [running_handler(one, parts) for one in self._handlers]

    async def run(self, cleanup_s: float) -> None:
        """Handle records until canceled; then cancel running handlers and wait up to ``cleanup_s`` seconds for them.

        Raises:
            HandlerFailedError: a record failed for good, and ``on_failure="stop"`` is set.
            TailraceError: the source cannot continue.
        """
        async with anyio.create_task_group() as tasks:
            for one in self._running:
                tasks.start_soon(self._run_handler, one, cleanup_s)
            tasks.start_soon(self._read_records)
            tasks.start_soon(self._delayed.run)

    async def _read_records(self) -> None:
        count = 0
        while True:
            _, lease = await self.source.reader.next_slice(self.room_of)
            count += lease.count
            self._progress[lease.partition] = lease.progress
            if lease.partition.topic in self._routes.delays_ms:
                self._delayed.hold(lease)
            else:
                self._dispatch(lease)
            if count >= FEW_RECORDS:
                # Let the handlers run before more records are read, because those that do not suspend make room.
                count = 0
                await asyncio.sleep(0)

    def _dispatch(self, lease: Lease) -> None:
        handlers = self._running_of(lease.partition.topic)
        if len(handlers) == 1 and handlers[0].handler.when is None:
            handlers[0].executor.add(lease)
            return
        shares: dict[int, list[Record]] = {}
        is_own_topic = lease.partition.topic in self._routes
        for record in lease.rest:
            original, order = record, list(range(len(handlers)))
            if is_own_topic:
                original, failed_in = as_first_read(record), handler_of(record)
                # The handler in which the record failed comes first.
                order.sort(key=lambda n: handlers[n].handler.name != failed_in)
            matching = (n for n in order if matches(handlers[n].handler, original))
            # A record that matches no handler goes to a handler with unmatched="fail", whose call rejects the record.
            rejecting = (n for n in order if handlers[n].handler.unmatched == "fail")
            chosen = next(matching, next(rejecting, None))
            if chosen is None:
                self.unmatched += 1
                self._observer.emit(RecordUnmatched(record.topic_partition, record.offset))
            else:
                shares.setdefault(chosen, []).append(record)
        for number, share in zip(shares, lease.split(shares.values()), strict=True):
            handlers[number].executor.add(share)

    def _running_of(self, topic: str) -> list[RunningHandler]:
        found = self._running_by_topic.get(topic)
        if found is None:
            found = self._running_by_topic[topic] = [self._running[number] for number in self._routes.receivers(topic)]
            if (pair := self._routes.overlapping_handlers(topic)) is not None:
                self._observer.emit(HandlersOverlap(self.group_id, topic, (pair[0].name, pair[1].name)))
        return found

    def room_of(self, partition: TopicPartition) -> int:
        """Return how many records of a partition may be read now."""
        if self._is_ending:
            return 0
        room = self._room_in_executors(partition)
        return self._delayed.limit(partition, room) if partition.topic in self._routes.delays_ms else room

    def _room_in_executors(self, partition: TopicPartition) -> int:
        first, *others = self._running_of(partition.topic)
        room = first.executor.room_of(partition)
        return min([room, *(one.executor.room_of(partition) for one in others)]) if others else room

    def _on_progress(self) -> None:
        self._wakeup.set()
        self.source.reader.progressed()
        if self._routes.delays_ms:
            self._delayed.room_changed()

    def _emit_read_paused(self, handler: Handler, record: Record, waiting: int) -> None:
        now, partition = asyncio.get_running_loop().time(), record.topic_partition
        if now >= self._next_read_paused_at.get(partition, now):
            self._next_read_paused_at[partition] = now + _READ_PAUSED_INTERVAL_S
            self._observer.emit(PartitionReadPaused(handler.name, partition, record.key, waiting))

    async def _run_handler(self, running: RunningHandler, cleanup_s: float) -> None:
        try:
            await running.executor.run(cleanup_s)
        finally:
            for record in running.executor.workers.first_unfinished:
                name, partition = running.handler.name, record.topic_partition
                self.left_behind.append(name)
                self._observer.emit(HandlerAbandoned(name, partition, record.offset, cleanup_s))

    async def finish(self, timeout_s: float) -> None:
        """Start no more records, and wait at most ``timeout_s`` seconds for started records to finish."""
        until = asyncio.get_running_loop().time() + timeout_s
        # room_of() returns 0 from now on, so that records of newly assigned partitions do not start either.
        self._is_ending = True
        self.source.halt()
        if self._transactions is not None:
            await self._transactions.wait_until_no_transaction(until)
        while self.is_running and asyncio.get_running_loop().time() < until:
            await self._wakeup.wait(until)

    # ---- state -----------------------------------------------------------------------------------------------------

    def handler_in(self, task: asyncio.Task[Any]) -> str | None:
        """Return the name of the handler that runs in ``task``, or None. Thread-safe."""
        return next((one.handler.name for one in self._running if one.executor.workers.has_task(task)), None)

    @property
    def failure(self) -> BaseException | None:
        """Error with which a handler has ended the app; None if there is none."""
        return next(filter(None, (one.executor.workers.error for one in self._running)), None)

    @property
    def is_settled(self) -> bool:
        """True if each unfinished record has failed for good, or waits for a record that has failed for good."""
        if self._transactions is not None and not self._transactions.are_settled:
            return False
        return (
            not self._delayed
            and self.failure is None
            and all(one.executor.started_or_due == one.policy.waiting for one in self._running)
        )

    def executors_of(self, function: Callable[..., object]) -> list[Executor]:
        """Return the executors of a handler; several if it was declared more than once."""
        identity = identity_of(function)
        return [one.executor for one in self._running if identity_of(one.handler.function) == identity]

    @property
    def slowest(self) -> tuple[float, str]:
        """Seconds since the start of the oldest running call, and the name of its handler; 0 and "" if no call runs."""
        return max(((one.executor.workers.longest_s, one.handler.name) for one in self._running), default=(0.0, ""))

    @property
    def overdue(self) -> Sequence[str]:
        """Names of handlers that still run after their ``timeout_ms``."""
        return [one.handler.name for one in self._running if one.overdue_calls.count]

    @property
    def waiting(self) -> int:
        """Number of records that failed for good and block their lane until another attempt or write succeeds."""
        deferred = 0 if self._transactions is None else self._transactions.waiting
        return deferred + sum(one.policy.waiting for one in self._running)

    @property
    def unreadable(self) -> list[str]:
        """Descriptions of the partitions that wait at a batch that cannot be read."""
        batches = {} if self.source.consumer is None else self.source.consumer.unreadable_batches
        return [
            f"{partition} waits at offset {batch.offset}: {batch.reason} - {batch.advice}"
            for partition, batch in batches.items()
        ]

    @property
    def stalled_s(self) -> float:
        """Seconds without a commit of a transaction although records wait for one; see ``TransactionsStalled``."""
        return 0.0 if self._transactions is None else self._transactions.stalled_s

    def handler_statistics(self) -> list[HandlerStatistics]:
        """Return the statistics of each handler."""
        return [one.statistics() for one in self._running]

    def statistics(self) -> GroupStatistics:
        """Return the statistics of the group."""
        return GroupStatistics(
            group_id=self.group_id, unmatched=self.unmatched, blocked=self.waiting, stalled_s=self.stalled_s
        )

    def consumer_statistics(self) -> ConsumerStatistics | None:
        """Return the statistics of the group's consumer; None if a substitute for Kafka is used."""
        if self.source.consumer is None:
            return None
        return self.source.consumer.statistics_with(
            [record for one in self._running for record in one.executor.started]
        )

    # ---- for the source of records, see ``HandlerGroup`` ---------------------------------------------------------

    @property
    def is_running(self) -> bool:
        return any(one.executor.workers.in_flight for one in self._running)

    @property
    def runs_current_records(self) -> bool:
        return any(one.executor.workers.run_current_records for one in self._running)

    @property
    def unstarted(self) -> int:
        return bool(self._delayed) + sum(one.executor.waiting for one in self._running)

    def hold_starts(self) -> None:
        for one in self._running:
            one.executor.hold("transaction ends")

    def allow_starts(self) -> None:
        for one in self._running:
            one.executor.release("transaction ends")

    @property
    def waits_for_paused_handler(self) -> bool:
        return not self.is_running and any(one.has_paused_records for one in self._running)

    @property
    def is_gathering(self) -> bool:
        return any(one.is_gathering for one in self._running)

    def hurry(self) -> None:
        for one in self._running:
            if isinstance(one.executor, BatchExecutor):
                one.executor.hurry()

    def halt(self, partition: TopicPartition) -> None:
        if (progress := self._progress.get(partition)) is not None:
            progress.halt()
        self._delayed.halt(partition)
        for one in self._running:
            one.executor.halt(partition)

    def drop(self, partition: TopicPartition) -> None:
        if (progress := self._progress.pop(partition, None)) is not None:
            progress.halt()
        self._delayed.drop(partition)
        for one in self._running:
            one.executor.drop(partition)
