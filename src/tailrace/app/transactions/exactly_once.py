"""Source of records for exactly-once delivery: offsets and results of records are committed in one transaction.

``app.transactions.window`` decides when a transaction is committed or aborted; the window is the state of the open
transaction. For the consumer, all records of the open transaction are in flight, even finished records, so the
revocation of a partition waits for the commit. Only the task that calls ``next_slice`` begins, commits and aborts
transactions.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections.abc import Awaitable, Callable, Sequence
from typing import TypeVar

from tailrace.app.failures.dead_letters import due_at
from tailrace.app.failures.delayed_records import wait_ms
from tailrace.app.policies import FailureCounts
from tailrace.app.refused_records import RefusedRecords
from tailrace.app.sources import HandlerGroup
from tailrace.app.transactions.attempts import Attempts
from tailrace.app.transactions.partitions import (
    GroupSource,
    GroupView,
    TransactionCommitter,
    TransactionPartitions,
    UndeliveredRecords,
)
from tailrace.app.transactions.window import DeferredRecords, Window, WindowSettings, WindowStep
from tailrace.awaitables import AutoResetEvent
from tailrace.consumer.partition import Partition
from tailrace.consumer.sink_consumer import SinkConsumer
from tailrace.core.backoff import Backoff
from tailrace.core.progress import Lease
from tailrace.errors import (
    AuthenticationError,
    BrokerConnectionError,
    BrokerError,
    PublishError,
    PublishTooLargeError,
    TailraceError,
    TopicRecreatedError,
)
from tailrace.observe.events import OffsetsCommitted, TopicRecreated, TransactionAborted, TransactionsStalled
from tailrace.observe.hooks import Observer
from tailrace.producer.publisher import OutgoingRecord
from tailrace.records import Record, TopicPartition

__all__ = ["GroupTransactions", "InterruptibleWait", "StallWatch", "TransactionDelivery", "TransactionalSource"]

ResultT = TypeVar("ResultT")
WorkT = TypeVar("WorkT")

_MAX_PAUSE_MS = 5_000
"""Maximum pause in milliseconds after an abort."""
_IDENTITY_CHECK_S = 0.02
"""Seconds between two checks whether the member is in a generation of the group; without one, it cannot commit."""
_CLOSING_S = 5.0
"""Maximum time in seconds for the abort of the open transaction when the source stops."""
_STALLED_TIMEOUTS = 3
"""Time without a commit after which transactions count as stalled, as a multiple of the transaction timeout."""

# ---- source before its start -----------------------------------------------------------------------------------------


class TransactionalSource:
    """Source whose records are handled in transactions, which begin at its start.

    Args:
        source: source that reads the records and commits no offsets.
        producer: producer of the transactions.
        settings: limits of transactions.
        observer: receives events.

    Attributes:
        transactions: transactions of the group; None before the start.
    """

    def __init__(
        self, source: GroupSource, producer: TransactionCommitter, settings: WindowSettings, observer: Observer
    ) -> None:
        self._source, self._producer, self._settings, self._observer = source, producer, settings, observer
        self.transactions: GroupTransactions | None = None

    async def start(self, sink: HandlerGroup) -> int:
        """Start the producer, then the consumer; return the maximum number of records that may wait for one handler.

        Raises:
            TailraceError: see ``TransactionalProducer.start`` and ``Consumer.start``.
        """
        await self._producer.start()
        partitions = TransactionPartitions(sink, self._producer.max_metadata_bytes)
        max_waiting = await self._source.start(partitions)
        self.transactions = GroupTransactions(self._source, partitions, self._producer, self._settings, self._observer)
        return max_waiting

    async def stop(self) -> None:
        """Abort the open transaction and leave the group."""
        if self.transactions is not None:
            self.transactions.stall.end()
        try:
            await self._producer.close(_CLOSING_S)
        finally:
            await self._source.stop()

    @property
    def reader(self) -> GroupTransactions:
        """Transactions of the group, after the start."""
        assert self.transactions is not None
        return self.transactions

    def halt(self) -> None:
        """Deliver and start no more records, and commit when the started records are finished."""
        self.reader.halt()

    def wall_clock(self) -> float:
        return self._source.wall_clock()

    @property
    def consumer(self) -> SinkConsumer | None:
        return self._source.consumer


# ---- transactions of a started source --------------------------------------------------------------------------------


class GroupTransactions:
    """Transactions of one group, one at a time, from the start of its consumer until its end.

    ``next_slice`` takes the steps of a transaction in order: it delivers records into the transaction, waits until they
    are finished, and commits their offsets and messages. An aborted transaction's records are read again.

    Args:
        source: started source of the records.
        partitions: partitions of the open transaction, which the source informs of revoked partitions.
        producer: started producer of the transactions.
        settings: limits of transactions.
        observer: receives events.

    Attributes:
        failure_counts: failures of each record, including those in aborted transactions.
        refusals: records whose results or dead letters were too large for their topic.
        stall: timer that runs while records wait for a commit.
    """

    def __init__(
        self,
        source: GroupSource,
        partitions: TransactionPartitions,
        producer: TransactionCommitter,
        settings: WindowSettings,
        observer: Observer,
    ) -> None:
        self._source, self._partitions, self._producer, self._observer = source, partitions, producer, observer
        self._handler_group, self._group_view = partitions.handler_group, source.group_view()
        self._settings, self._window = settings, Window(settings)
        self._deferred_records = DeferredRecords(source.routes.delays_ms, self._wait_s)
        self._delivery = TransactionDelivery(source, self._group_view, partitions, self._deferred_records, self._window)
        self.failure_counts = FailureCounts()
        self.refusals = RefusedRecords()
        self._attempts = Attempts(producer, self._window, self.failure_counts, self.refusals, self._on_failure)
        self._backoff = Backoff.of_ms(100, _MAX_PAUSE_MS)
        self._failures = 0
        """Number of aborts with a backoff since the last commit."""
        self._is_committing = self._is_stopping = False
        self._loop = asyncio.get_running_loop()
        self._wakeup = AutoResetEvent()
        self._no_transaction_open = asyncio.Event()
        """Set while no transaction is open."""
        self._no_transaction_open.set()
        self._abort_reason = ""
        """Reason of the last abort since the last commit; empty if there was none."""
        self.stall = StallWatch(settings.timeout_s * _STALLED_TIMEOUTS, self._report_stall)
        partitions.on_halt, partitions.on_drop = self._commit_soon, self._on_drop

    # ---- one transaction after another -------------------------------------------------------------------------

    async def next_slice(self, room_of: Callable[[TopicPartition], int]) -> tuple[Partition, Lease]:
        """Deliver the next records of one partition, and return them; before that, end transactions that are due.

        Args:
            room_of: returns how many records of a partition the handlers accept now.

        Raises:
            TailraceError: reading has failed, or no transaction can be begun any more.
        """
        while True:
            now, gathers = self._loop.time(), self._partitions.are_gathering
            # ``are_finished`` is slow with many partitions, so it is evaluated only if no more records are delivered.
            takes = self._window.takes_records(now, is_gathering=gathers)
            is_done = not takes and self._partitions.are_finished
            is_idle = not takes and not self._partitions.are_running and not self._partitions.waits_for_paused_handler
            step = self._window.step(now, is_done=is_done, is_idle=is_idle, is_gathering=gathers)
            match step:
                case WindowStep.FEED if self._is_stopping and not self._window.is_open:
                    await self._wakeup.wait()
                case WindowStep.FEED:
                    await self._producer.begin()
                    found = await self._delivery.next(room_of)
                    if self._window.is_open:
                        self._no_transaction_open.clear()
                        if self._window.count:
                            self.stall.begin()
                    if found is not None:
                        return found
                case WindowStep.COMMIT:
                    self._handler_group.hold_starts()
                    await self._commit()
                case WindowStep.ABORT:
                    await self._abort()
                case WindowStep.DRAIN | WindowStep.CUT:
                    await self._wait_for_records(step, now)

    async def _wait_for_records(self, step: WindowStep, now: float) -> None:
        """Wait for a finished record or the next deadline; with ``WindowStep.CUT``, start no more records meanwhile.

        If records wait for a paused handler, have the transaction aborted instead.
        """
        if self._partitions.waits_for_paused_handler:
            self._abort_soon(PublishError("records of the transaction wait for a paused handler"), needs_backoff=False)
            return
        if step is WindowStep.CUT:
            self._handler_group.hold_starts()
        else:
            self._partitions.hurry()
        await self._wakeup.wait(self._window.next_deadline(now))

    async def _commit(self) -> None:
        """Commit the transaction unless there is nothing to commit; wait while the member is in no generation.

        If the commit fails, or the member is in no generation for too long, have the transaction aborted.
        """
        group_view = self._group_view
        identity = group_view.identity
        if identity is None:
            # The group rebalances, or this member is about to lose its partitions.
            until = self._loop.time() + _IDENTITY_CHECK_S
            if self._window.abort_at is not None and until >= self._window.abort_at:
                self._abort_soon(
                    PublishError("the member was in no generation of the group for too long"), needs_backoff=False
                )
            else:
                await self._wakeup.wait(until)
            return
        self._partitions.add_advanced(group_view.advanced_partitions())
        self._is_committing = True
        began_at = self._loop.time()
        try:
            offsets = self._partitions.offsets()
            if not self._attempts.has_sent and not self._partitions.have_changed(offsets):
                self._window.end_empty(self._loop.time(), self._count_carried())
                self._after_end()
                return
            await self._producer.commit(
                offsets,
                identity,
                self._partitions.topic_ids(),
                lambda: (group_view.identity or identity) if self._partitions.are_owned(group_view) else None,
            )
        except TailraceError as error:
            self._on_failure(error)
            return
        finally:
            self._is_committing = False
        took_s = self._loop.time() - began_at
        self._failures, self._abort_reason = 0, ""
        self.stall.end()
        up_to = {topic_partition: committed.offset for topic_partition, committed in offsets.items()}
        self._observer.emit(OffsetsCommitted(group_view.group_id, up_to, took_s))
        self._partitions.note_committed(offsets)
        self._deferred_records.forget_committed(up_to)
        self.failure_counts.forget_committed(up_to)
        self.refusals.forget_committed(up_to)
        if (single := self._delivery.single_record) is not None:
            topic_partition, offset = single
            if up_to.get(topic_partition, 0) > offset:
                self._deferred_records.finish(topic_partition)
                self._delivery.single_record = None
        self._window.end_committed(self._loop.time(), carried=self._count_carried(), is_searching=bool(self.refusals))
        if self._window.is_open:
            # The unstarted records belong to the next transaction, which must be open when their handlers publish.
            await self._producer.begin()
        self._after_end()

    def _count_carried(self) -> int:
        """Return the number of unstarted records, which move to the next transaction.

        While the source stops, leave these records to the next owners of their partitions and return 0 instead.
        """
        if self._is_stopping:
            self._partitions.leave_unstarted()
        return self._handler_group.unstarted if self._partitions else 0

    def _after_end(self, *, is_failure: bool = False) -> None:
        """Continue after the end of a window; with ``is_failure``, the time of the stall watch goes on."""
        self._attempts.has_dead_letter = self._attempts.has_sent = False
        if self._window.is_open:
            self.stall.begin()
            if self._delivery.single_record is not None:
                self._window.close()
        else:
            self._delivery.single_record = None
            self._no_transaction_open.set()
            if is_failure:
                self.stall.begin()
            else:
                self.stall.end()
        if not self._is_stopping:
            self._handler_group.allow_starts()
        # Wake the revocation of partitions, which waits for the commit.
        self._source.reader.progressed()

    # ---- aborting ----------------------------------------------------------------------------------------------

    async def _abort(self) -> None:
        """Abort the transaction, and read again from the committed offsets.

        Raises:
            TailraceError: no transaction can be begun any more, or the committed offsets cannot be fetched.
        """
        error = self._window.abort_cause
        assert error is not None
        self._abort_reason = str(error)
        self._observer.emit(TransactionAborted(self._group_view.group_id, self._window.count, str(error), error))
        for topic_partition in self._partitions.partitions():
            self._handler_group.halt(topic_partition)
        await self._producer.abort(error, is_timed_out=self._window.is_timed_out(self._loop.time()))
        # Wait for running handlers, whose messages must not join the next transaction.
        until = self._loop.time() + self._settings.timeout_s
        while self._partitions.are_running and self._loop.time() < until:
            await self._wakeup.wait(until)
        self._attempts.discard_running()
        if self._window.needs_backoff:
            self._failures += 1
            pause_s = self._backoff.pause_s(self._failures, random.random())  # noqa: S311 - for jitter
            until = self._loop.time() + pause_s
            while self._loop.time() < until:
                await self._wakeup.wait(until)
        await self._read_again()
        self._note_too_large(error)
        is_failure = self._window.needs_backoff or self._window.is_late or isinstance(error, PublishTooLargeError)
        self._window.end_aborted(shrink=is_failure and self._delivery.single_record is None)
        self._delivery.single_record = None
        self._after_end(is_failure=is_failure)

    async def _read_again(self) -> None:
        """Have the records of the transaction read again from the committed offsets; retry until these are fetched.

        Raises:
            BrokerError: the error is not retriable.
            AuthenticationError: the brokers refuse the credentials.
        """
        failures = 0
        while self._partitions:
            try:
                committed = await self._group_view.committed_offsets(self._partitions.partitions())
            except (BrokerError, BrokerConnectionError) as error:
                if isinstance(error, AuthenticationError) or (isinstance(error, BrokerError) and not error.retriable):
                    raise
                failures += 1
                await asyncio.sleep(self._backoff.pause_s(failures, random.random()))  # noqa: S311 - for jitter
            else:
                self._partitions.read_again(self._group_view, committed)

    def _note_too_large(self, error: TailraceError) -> None:
        """Note that a message was too large, if the transaction had a single record, which the message belongs to."""
        if (
            isinstance(error, PublishTooLargeError)
            and self._window.count == 1
            and self._delivery.last_delivered is not None
        ):
            self.refusals.note_refusal(
                *self._delivery.last_delivered, error, is_dead_letter=self._attempts.has_dead_letter
            )

    # ---- reasons to end the transaction ----------------------------------------------------------------------

    def _commit_soon(self) -> None:
        self._window.cut()
        self._check_window_soon()

    def _abort_soon(self, error: TailraceError, *, needs_backoff: bool) -> None:
        self._window.require_abort(error, needs_backoff=needs_backoff)
        self._check_window_soon()

    def _on_failure(self, error: TailraceError) -> None:
        if isinstance(error, TopicRecreatedError):
            for one in self._partitions:
                if one.partition.topic_partition in error.partitions:
                    self._observer.emit(TopicRecreated(one.partition.topic_partition, one.end_offset))
        # Two errors need no backoff: after PublishTooLargeError, smaller transactions isolate the record with the large
        # result; after TopicRecreatedError, the new topic is read.
        self._abort_soon(error, needs_backoff=not isinstance(error, PublishTooLargeError | TopicRecreatedError))

    def _check_window_soon(self) -> None:
        """Make ``next_slice`` check the window now."""
        self._wakeup.set()
        self._delivery.interrupt()

    def _on_drop(self, topic_partition: TopicPartition, was_in_transaction: bool) -> None:  # noqa: FBT001 - a callback
        self._deferred_records.forget(topic_partition)
        self.failure_counts.forget(topic_partition)
        self.refusals.forget(topic_partition)
        # If the commit was sent already, the coordinator decides whether it succeeds.
        if was_in_transaction and not self._is_committing:
            self._abort_soon(
                PublishError(f"{topic_partition} was lost before its transaction was committed"), needs_backoff=False
            )

    # ---- called by handlers and the group runtime, see ``Transactions`` ----------------------------------------

    async def publish(self, record: OutgoingRecord) -> None:
        await self._attempts.publish(record)

    def wrap_call(self, handle: Callable[[WorkT], Awaitable[object]]) -> Callable[[WorkT], Awaitable[object]]:
        return self._attempts.wrap_call(self, handle)

    def has_time(self, pause_s: float, work_s: float) -> bool:
        if self._delivery.single_record is not None and pause_s > self._settings.interval_s:
            # While the transaction of a single record is open, no other record is handled, so the record must not wait.
            return False
        return self._window.has_time(pause_s + work_s, self._loop.time())

    def set_aside(self, record: Record, seconds: float, *, is_given_up: bool) -> None:
        if record.topic_partition not in self._partitions.partitions():
            # The partition was revoked.
            return
        self.refusals.forget_record(record.topic_partition, record.offset)
        due_at = self._loop.time() + seconds
        self._deferred_records.defer(record.topic_partition, record.offset, due_at, is_given_up=is_given_up)
        # The worker of this record continues at once, and must not start later records of the partition.
        self._handler_group.halt(record.topic_partition)
        reason = (
            f"{record.topic_partition} offset {record.offset} failed; the records before it are handled again in a"
            " transaction without it"
        )
        self._abort_soon(PublishError(reason), needs_backoff=False)

    def default_timeout_ms(self, max_wait_ms: int) -> int:
        return max(1, round(self._settings.default_handler_timeout_s(max_wait_ms / 1000) * 1000))

    @property
    def stalled_s(self) -> float:
        return self.stall.stalled_s

    @property
    def waiting(self) -> int:
        return self._deferred_records.count_given_up

    @property
    def are_settled(self) -> bool:
        if self._window.is_open or len(self._deferred_records) > self._deferred_records.count_given_up:
            return False
        undelivered = self._partitions.undelivered.values()
        return all(
            self._deferred_records.reaches(one.partition.topic_partition, one.first.offset) for one in undelivered
        )

    def progressed(self) -> None:
        self._delivery.progressed()
        self._wakeup.set()
        self._source.reader.progressed()

    def halt(self) -> None:
        """Deliver and start no more records, and commit when the started records are finished."""
        self._is_stopping = True
        self._commit_soon()

    async def wait_until_no_transaction(self, until: float) -> None:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout_at(until):
                await self._no_transaction_open.wait()

    # ---- inside ----------------------------------------------------------------------------------------------

    def _wait_s(self, record: Record) -> float:
        """Return the seconds until a record that waits for a delay is due, at most the delay of its topic."""
        delay_ms, now_ms = self._source.routes.delays_ms[record.topic], int(self._source.wall_clock() * 1000)
        return wait_ms(due_at(record), written_at_ms=record.timestamp, delay_ms=delay_ms, now_ms=now_ms) / 1000

    def _report_stall(self, seconds: float) -> None:
        reason = self._abort_reason or "no record was finished"
        self._observer.emit(TransactionsStalled(self._group_view.group_id, seconds, reason))


# ---- delivery of records from a consumer into the open transaction ---------------------------------------------------


class TransactionDelivery:
    """Delivery of one group's records from its consumer into the open transaction.

    A start offset that is not committed yet is committed in a transaction without records, before any record of its
    partition is delivered. Otherwise another member could start at a different offset after an abort.

    Args:
        source: started consumer.
        group_view: membership and partitions of the consumer.
        partitions: partitions of the open transaction.
        deferred_records: records that must not join the open transaction.
        window: state of the open transaction, and limits for it.

    Attributes:
        single_record: partition and offset of the only record of the open transaction, if this record must have a
            transaction of its own; otherwise None.
        last_delivered: partition and offset of the last delivered record; None before the first delivery.
    """

    def __init__(
        self,
        source: GroupSource,
        group_view: GroupView,
        partitions: TransactionPartitions,
        deferred_records: DeferredRecords,
        window: Window,
    ) -> None:
        self._source, self._group_view, self._partitions = source, group_view, partitions
        self._deferred_records, self._window = deferred_records, window
        self._loop = asyncio.get_running_loop()
        self._slice_wait = InterruptibleWait()
        self.single_record: tuple[TopicPartition, int] | None = None
        self.last_delivered: tuple[TopicPartition, int] | None = None
        self._may_have_moved = True
        """True if a position may have changed since the last check."""
        group_view.watch(self._on_position_change)

    async def next(self, room_of: Callable[[TopicPartition], int]) -> tuple[Partition, Lease] | None:
        """Deliver the next records into the transaction, and return them; None if the window must be checked first.

        Args:
            room_of: returns how many records of a partition the handlers accept now.
        """
        if self._may_have_moved and self._add_start_offsets():
            return None
        undelivered = self._partitions.undelivered

        def room(topic_partition: TopicPartition) -> int:
            return 0 if topic_partition in undelivered else self._room(topic_partition, None, room_of)

        # Read the time before looking for records, so that the wait ends at once if a record becomes due meanwhile.
        now = self._loop.time()
        until = self._window.next_deadline(now)
        if until is None:
            first = [one.first for one in undelivered.values()]
            until = self._deferred_records.next_due_at(now, self._group_view.delivered_offsets(), first)
        if (found := self._deliver_undelivered(room_of)) is not None:
            return found
        if (received := await self._slice_wait.wait(self._source.reader.next_slice(room), until)) is None:
            return None
        partition, lease = received
        if partition.has_stale_commit or self._deferred_records.may_hold_back(partition.topic_partition):
            self._may_have_moved |= partition.has_stale_commit
            undelivered[partition.topic_partition] = UndeliveredRecords(partition, lease)
            self._deferred_records.note_read(lease.rest, self._loop.time())
            return self._deliver_undelivered(room_of)
        self._add_delivered(partition, lease)
        return partition, lease

    def interrupt(self) -> None:
        """End the wait of ``next``, so that the window is checked."""
        self._slice_wait.end()

    def progressed(self) -> None:
        """Look again for records to deliver, because records were finished or there is room for more."""
        if self._slice_wait.is_waiting and (self._partitions.undelivered or self._is_open_without_work):
            # ``next`` waits for the consumer, which knows neither the undelivered records nor the window.
            self._slice_wait.end()

    # ---- inside ------------------------------------------------------------------------------------------------

    def _on_position_change(self) -> None:
        self._may_have_moved = True
        self._slice_wait.end()

    def _add_start_offsets(self) -> bool:
        """Add uncommitted start offsets to the transaction, and have it committed; return True if there are any.

        If there are none, a partition that advanced past control records or gaps opens a transaction without records.
        """
        starts = self._group_view.uncommitted_starts()
        self._may_have_moved = bool(starts)
        if starts:
            if not self._window.is_open:
                self._window.add(0, self._loop.time())
            self._partitions.add_start_offsets(starts)
            self._window.cut()
        elif not self._window.is_open:
            undelivered = self._partitions.undelivered
            if any(one.topic_partition not in undelivered for one in self._group_view.advanced_partitions()):
                # Records that arrive within ``transaction_interval_ms`` join the transaction.
                self._window.add(0, self._loop.time())
        return self._may_have_moved

    def _deliver_undelivered(self, room_of: Callable[[TopicPartition], int]) -> tuple[Partition, Lease] | None:
        """Deliver records of ``undelivered`` of one partition, and return them; None if none may be delivered now."""
        now = self._loop.time()

        def count_of(records: Sequence[Record]) -> int:
            room = self._room(records[0].topic_partition, records[0].offset, room_of)
            return len(self._deferred_records.first_of(records, room, now)) if room else 0

        if (found := self._partitions.take_undelivered(count_of)) is None:
            return None
        partition, lease = found
        self._add_delivered(partition, lease)
        first = lease.records[0].offset
        if self._deferred_records.reaches(partition.topic_partition, first):
            self.single_record = partition.topic_partition, first
            self._window.close()
        return partition, lease

    def _room(
        self, topic_partition: TopicPartition, delivered: int | None, room_of: Callable[[TopicPartition], int]
    ) -> int:
        """Return how many records of a partition may be delivered from the offset ``delivered`` on.

        If ``delivered`` is None, it is the next offset to deliver of the consumer.
        """
        room = 0 if self._partitions.is_full(topic_partition) else min(room_of(topic_partition), self._window.room)
        if topic_partition not in self._deferred_records or not room:
            return room
        if delivered is None:
            delivered = self._group_view.delivered_offsets().get(topic_partition)
        return self._deferred_records.room(
            topic_partition, delivered, room, self._loop.time(), is_open=self._window.is_open
        )

    def _add_delivered(self, partition: Partition, lease: Lease) -> None:
        self._window.add(lease.count, self._loop.time())
        self._partitions.add_delivered(partition, lease)
        self.last_delivered = partition.topic_partition, lease.records[-1].offset

    @property
    def _is_open_without_work(self) -> bool:
        """True if the window is open past its interval, no incomplete batch waits, and no handler runs."""
        has_work = self._partitions.are_gathering or self._partitions.are_running
        return self._window.is_kept_open(self._loop.time()) and not has_work


class InterruptibleWait:
    """Wait of one task for an awaitable; at most one wait runs at a time."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._waiting: asyncio.Timeout | None = None

    @property
    def is_waiting(self) -> bool:
        """True during a wait."""
        return self._waiting is not None

    async def wait(self, awaitable: Awaitable[ResultT], until: float | None) -> ResultT | None:
        """Return the result of an awaitable; cancel it and return None at ``until`` or when ``end`` is called.

        Args:
            awaitable: awaitable that loses nothing if it is canceled.
            until: event loop time; None for no limit.
        """
        try:
            async with asyncio.timeout_at(until) as self._waiting:
                return await awaitable
        except TimeoutError:
            return None
        finally:
            self._waiting = None

    def end(self) -> None:
        """End the current wait, if there is one."""
        if self._waiting is not None and not self._waiting.expired():
            self._waiting.reschedule(self._loop.time())


# ---- watchdog for records that wait too long for the commit of a transaction -----------------------------------------


class StallWatch:
    """Timer that runs while records wait for a commit, and reports a stall after ``limit_s``.

    Args:
        limit_s: seconds without a commit that count as a stall.
        on_stall: called with the seconds since ``begin``, once for each stall.
    """

    def __init__(self, limit_s: float, on_stall: Callable[[float], None]) -> None:
        self._limit_s, self._on_stall = limit_s, on_stall
        self._loop = asyncio.get_running_loop()
        self._since: float | None = None
        self._timer: asyncio.TimerHandle | None = None

    @property
    def stalled_s(self) -> float:
        """Seconds since ``begin`` if the limit is reached; otherwise 0."""
        waited_s = 0.0 if self._since is None else self._loop.time() - self._since
        return waited_s if waited_s >= self._limit_s else 0.0

    def begin(self) -> None:
        """Start the timer unless it runs; called when records wait for a commit."""
        if self._since is None:
            self._since = self._loop.time()
            self._timer = self._loop.call_at(self._since + self._limit_s, self._report_stall)

    def end(self) -> None:
        """Stop the timer; called when records were committed, or wait for a reason that is reported otherwise."""
        self._since = None
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _report_stall(self) -> None:
        assert self._since is not None
        self._on_stall(self._loop.time() - self._since)
