"""Source of records for exactly-once handling: their offsets and results are committed in one transaction.

``core.transactions.window`` decides when a transaction opens and closes. To the consumer, all records of an open
transaction are in flight, even finished ones, so the revocation of a partition waits for the commit. Transactions are
begun, committed and aborted only in the task that calls ``next_slice``.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from typing import TypeVar

from tailrace.app.sources import HandlerGroup
from tailrace.app.topics.retry_topics import RetryTopic
from tailrace.app.transactions.attempts import Attempts, PendingRecord
from tailrace.app.transactions.deferred_records import DeferredRecords
from tailrace.app.transactions.delivery import TransactionDelivery
from tailrace.app.transactions.interfaces import GroupSource, GroupView, TransactionCommitter
from tailrace.app.transactions.partitions import TransactionPartitions
from tailrace.app.transactions.rewind import rewind
from tailrace.app.transactions.stall_watch import StallWatch
from tailrace.auto_reset_event import AutoResetEvent
from tailrace.core.backoff import Backoff
from tailrace.core.delivery.positions import Position
from tailrace.core.delivery.progress import Lease
from tailrace.core.failures.failure_counts import FailureCounts
from tailrace.core.transactions.refused_records import RefusedRecords
from tailrace.core.transactions.window import Window, WindowSettings, WindowStep
from tailrace.errors import PublishError, PublishTooLargeError, TailraceError, TopicRecreatedError
from tailrace.observe.events import OffsetsCommitted, TopicRecreated, TransactionAborted, TransactionsStalled
from tailrace.observe.hooks import Observer
from tailrace.observe.statistics import ConsumerStatistics
from tailrace.records import Record, TopicPartition

__all__ = ["TransactionalSource"]

WorkT = TypeVar("WorkT")

_LONGEST_PAUSE_MS = 5_000
_LOOK_AGAIN_S = 0.02
"""Pause while the member is in no generation."""
_CLOSING_S = 5.0
"""Longest time for the abort of the open transaction when the source stops."""
_STALLED_TIMEOUTS = 3
"""Transaction timeouts without a commit after which the transactions count as stalled."""


class TransactionalSource:
    """Source whose records are handled in transactions.

    Args:
        source: consumer, which does not commit.
        retry_topics: retry topics, whose records are delivered when they are due.
        transactor: producer of the transactions.
        settings: limits of transactions.
        observer: receives events.
        metadata_bytes: largest size of an offset map.
    """

    def __init__(  # noqa: PLR0913 - options
        self,
        source: GroupSource,
        retry_topics: Mapping[str, RetryTopic],
        *,
        transactor: TransactionCommitter,
        settings: WindowSettings,
        observer: Observer,
        metadata_bytes: int = 4_096,
    ) -> None:
        self._source, self._deferred_records = source, DeferredRecords(retry_topics, source.wall_clock)
        self._transactor, self._observer = transactor, observer
        self._settings, self._window, self._metadata_bytes = settings, Window(settings), metadata_bytes
        self._deferred_offsets = self._deferred_records.deferred_offsets
        self._failure_counts = FailureCounts()
        self._refusals = RefusedRecords()
        self._attempts = Attempts(transactor, self._window, self._failure_counts, self._refusals, self._failed)
        self._backoff = Backoff.of_ms(100, _LONGEST_PAUSE_MS)
        self._failures = 0
        self._is_committing = self._is_stopping = False
        self._handler_group_or_none: HandlerGroup | None = None
        self._partitions_or_none: TransactionPartitions | None = None
        self._group_view_or_none: GroupView | None = None
        self._delivery_or_none: TransactionDelivery | None = None
        self._loop = asyncio.get_running_loop()
        self._progress = AutoResetEvent()
        self._shut = asyncio.Event()
        """Set while no transaction is open."""
        self._shut.set()
        self._reason = ""
        """Reason of the last abort since the last commit."""
        self._stall = StallWatch(settings.timeout_s * _STALLED_TIMEOUTS, self._stalled)

    @property
    def transactions(self) -> TransactionalSource:
        """This source."""
        return self

    def wall_clock(self) -> float:
        """Return the wall-clock time of the source."""
        return self._source.wall_clock()

    def statistics(self, started: Iterable[Record]) -> ConsumerStatistics | None:
        """Return the statistics of the consumer."""
        return self._source.statistics(started)

    # ---- for the handler group ---------------------------------------------------------------------------------

    async def start(self, sink: HandlerGroup) -> int:
        """Start the producer, then the consumer; return the maximum number of records that may wait in one executor.

        Raises:
            TailraceError: see ``TransactionalProducer.start`` and ``Consumer.start``.
        """
        self._handler_group_or_none = sink
        self._partitions_or_none = TransactionPartitions(
            sink, on_halt=self._close_soon, on_loss=self._lost, metadata_bytes=self._metadata_bytes
        )
        await self._transactor.start()
        max_waiting = await self._source.start(self._partitions)
        self._group_view_or_none = self._source.group_view()
        self._delivery_or_none = TransactionDelivery(
            self._source, self._group_view, self._partitions, self._deferred_records, self._window
        )
        return max_waiting

    async def stop(self) -> None:
        """Abort the open transaction and leave the group."""
        self._stall.end()
        try:
            await self._transactor.close(_CLOSING_S)
        finally:
            await self._source.stop()

    def progressed(self) -> None:
        """Check again for records to deliver: some were finished, or there is room for more."""
        if self._delivery_or_none is not None:
            self._delivery_or_none.progressed()
        self._progress.set()
        self._source.progressed()

    def halt(self) -> None:
        """Deliver and start no more records, and commit when the running handlers have finished."""
        self._is_stopping = True
        self._close_soon()

    async def settled(self, until: float) -> None:
        """Wait until no transaction is open, at most until ``until``."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout_at(until):
                await self._shut.wait()

    async def next_slice(self, room_of: Callable[[TopicPartition], int]) -> tuple[Position, Lease]:
        """Return records of one partition, in an open transaction.

        Raises:
            TailraceError: reading has failed, or no more transactions can begin.
        """
        while True:
            now, gathers = self._loop.time(), self._partitions.are_gathering
            # are_done is slow with many partitions, so it is evaluated only if the window takes no more records.
            takes = self._window.takes_records(now, is_gathering=gathers)
            is_done = not takes and self._partitions.are_done
            is_idle = not takes and not self._partitions.are_running and not self._partitions.are_held_back
            step = self._window.step(now, is_done=is_done, is_idle=is_idle, is_gathering=gathers)
            match step:
                case WindowStep.FEED if self._is_stopping and not self._window.is_open:
                    await self._progress.wait()
                case WindowStep.FEED:
                    await self._transactor.begin()
                    found = await self._delivery.next(room_of)
                    if self._window.is_open:
                        self._shut.clear()
                        if self._window.count:
                            self._stall.begin()
                    if found is not None:
                        return found
                case WindowStep.COMMIT:
                    self._handler_group.hold_starts()
                    await self._commit()
                case WindowStep.ABORT:
                    await self._abort()
                case WindowStep.DRAIN | WindowStep.CUT:
                    await self._finish(step, now)

    # ---- for handlers ------------------------------------------------------------------------------------------

    async def publish(  # noqa: PLR0913 - a record
        self,
        topic: str,
        value: bytes | None,
        *,
        key: bytes | None = None,
        headers: Sequence[tuple[str, bytes | None]] = (),
        partition: int | None = None,
        timestamp_ms: int | None = None,
    ) -> None:
        """Publish one record, see ``Attempts.publish``."""
        await self._attempts.publish(PendingRecord(topic, value, key, headers, partition, timestamp_ms))

    def around(self, handle: Callable[[WorkT], Awaitable[object]]) -> Callable[[WorkT], Awaitable[object]]:
        """Return ``handle`` with its records published only if it succeeds."""
        return self._attempts.around(self, handle)

    @property
    def failure_counts(self) -> FailureCounts:
        """Failures of records, including those in aborted transactions."""
        return self._failure_counts

    @property
    def refusals(self) -> RefusedRecords:
        """Records whose results were too large."""
        return self._refusals

    def has_time(self, pause_s: float, work_s: float) -> bool:
        """Return True if a record may wait for its next attempt within the open transaction."""
        if self._delivery.alone is not None and pause_s > self._settings.interval_s:
            # A record that is alone in the transaction leaves it, so that other records are handled during the pause.
            return False
        return self._window.has_time(pause_s + work_s, self._loop.time())

    def set_aside(self, record: Record, seconds: float, *, is_given_up: bool) -> None:
        """Mark the open transaction to be aborted; its other records are then handled again without this record.

        This record is delivered again after ``seconds`` at the earliest, in a transaction of its own. Later records of
        its partition wait for it.
        """
        if record.topic_partition not in self._partitions.partitions():
            # The partition was revoked.
            return
        self._refusals.forget_record(record.topic_partition, record.offset)
        due_at = self._loop.time() + seconds
        self._deferred_offsets.put(record.topic_partition, record.offset, due_at, is_given_up=is_given_up)
        # The worker continues at once, and must not start the records after this one.
        self._handler_group.halt(record.topic_partition)
        reason = (
            f"{record.topic_partition} offset {record.offset} failed; the records before it are handled again and"
            " committed without it"
        )
        self._doom(PublishError(reason), is_at_fault=False)

    def work_share_ms(self, gathers_ms: int) -> int:
        """Return the timeout of a handler without ``timeout_ms`` whose batches are gathered for ``gathers_ms``."""
        return max(1, round(self._settings.default_handler_timeout_s(gathers_ms / 1000) * 1000))

    @property
    def stalled_s(self) -> float:
        """Seconds without a commit although records wait for one; 0 below the limit."""
        return self._stall.stalled_s

    @property
    def waiting(self) -> int:
        """Number of records that have failed permanently and wait to be delivered again."""
        return self._deferred_offsets.count_given_up

    @property
    def are_settled(self) -> bool:
        """True if no transaction is open and each waiting record has failed permanently or comes after one that has."""
        if self._window.is_open or len(self._deferred_offsets) > self._deferred_offsets.count_given_up:
            return False
        undelivered = self._partitions.undelivered.values()
        return all(self._deferred_offsets.reaches(one.position.partition, one.first.offset) for one in undelivered)

    # ---- closing -----------------------------------------------------------------------------------------------

    def _close_soon(self) -> None:
        self._window.cut()
        self._look_again()

    def _doom(self, error: TailraceError, *, is_at_fault: bool) -> None:
        self._window.require_abort(error, needs_backoff=is_at_fault)
        self._look_again()

    def _failed(self, error: TailraceError) -> None:
        if isinstance(error, TopicRecreatedError):
            for one in self._partitions:
                if one.position.partition in error.partitions:
                    self._observer.emit(TopicRecreated(one.position.partition, one.following))
        # No backoff while searching for the record with too large results, or before reading a recreated topic.
        self._doom(error, is_at_fault=not isinstance(error, PublishTooLargeError | TopicRecreatedError))

    def _look_again(self) -> None:
        """Let ``next_slice`` check the window now."""
        self._progress.set()
        if self._delivery_or_none is not None:
            self._delivery_or_none.look_again()

    def _lost(self, partition: TopicPartition, was_in_transaction: bool) -> None:  # noqa: FBT001 - a callback
        self._deferred_offsets.remove(partition)
        self._failure_counts.forget(partition)
        self._refusals.forget(partition)
        # During a commit, the coordinator decides whether it succeeds.
        if was_in_transaction and not self._is_committing:
            self._doom(PublishError(f"{partition} was lost before its transaction was committed"), is_at_fault=False)

    async def _finish(self, step: WindowStep, now: float) -> None:
        """Wait for the delivered records to finish; on a cut, for the running ones only."""
        if self._partitions.are_held_back:
            self._doom(PublishError("a handler is paused, and its records wait"), is_at_fault=False)
            return
        if step is WindowStep.CUT:
            self._handler_group.hold_starts()
        else:
            self._partitions.hurry()
        await self._progress.wait(self._window.next_deadline(now))

    async def _commit(self) -> None:
        """Commit, or doom the window with the reason."""
        group_view = self._group_view
        identity = group_view.identity
        if identity is None:
            # A rebalance is under way, or the partitions are about to be lost.
            until = self._loop.time() + _LOOK_AGAIN_S
            if self._window.abort_at is not None and until >= self._window.abort_at:
                self._doom(
                    PublishError("this member was in no generation of the group for too long"), is_at_fault=False
                )
            else:
                await self._progress.wait(until)
            return
        self._partitions.passed(group_view.passed())
        self._is_committing = True
        began_at = self._loop.time()
        try:
            offsets = self._partitions.offsets()
            if not self._attempts.has_sent and not self._partitions.have_changed(offsets):
                self._carry_on()
                return
            await self._transactor.commit(
                offsets,
                identity,
                self._partitions.topic_ids(),
                lambda: (group_view.identity or identity) if self._partitions.are_owned(group_view) else None,
            )
        except TailraceError as error:
            self._failed(error)
            return
        finally:
            self._is_committing = False
        took_s = self._loop.time() - began_at
        self._failures, self._reason = 0, ""
        self._stall.end()
        up_to = {at: one.offset for at, one in offsets.items()}
        self._observer.emit(OffsetsCommitted(group_view.group_id, up_to, took_s))
        self._partitions.committed(offsets)
        self._failure_counts.forget_committed(up_to)
        self._refusals.forget_committed(up_to)
        if (alone := self._delivery.alone) is not None and up_to.get(alone[0], 0) > alone[1]:
            self._deferred_offsets.remove(alone[0])
            self._delivery.alone = None
        self._window.end_committed(self._loop.time(), carried=self._carried(), is_searching=bool(self._refusals))
        if self._window.is_open:
            # Remaining records publish into this transaction as soon as they may start.
            await self._transactor.begin()
        self._end()

    def _carried(self) -> int:
        """Return the number of unstarted records, which move to the next transaction.

        While stopping, it is 0: these records are left to the next owners of their partitions.
        """
        if self._is_stopping:
            self._partitions.leave()
        return self._handler_group.unstarted if self._partitions else 0

    def _carry_on(self) -> None:
        """Keep the transaction open: there is nothing to commit."""
        self._window.end_empty(self._loop.time(), self._carried())
        self._end()

    def _end(self, *, is_failure: bool = False) -> None:
        """Clean up after a commit or an abort; ``is_failure`` is True for an abort that counts towards a stall."""
        self._attempts.has_letter = self._attempts.has_sent = False
        if self._window.is_open:
            self._stall.begin()
            if self._delivery.alone is not None:
                self._window.close()
        else:
            self._delivery.alone = None
            self._shut.set()
            if is_failure:
                self._stall.begin()
            else:
                self._stall.end()
        if not self._is_stopping:
            self._handler_group.allow_starts()
        # Wake revocations that wait for the commit.
        self._source.progressed()

    # ---- aborting ----------------------------------------------------------------------------------------------

    async def _abort(self) -> None:
        """Abort, and read again from the committed offsets.

        Raises:
            TailraceError: no more transactions can begin.
        """
        error = self._window.abort_cause
        assert error is not None
        self._reason = str(error)
        self._observer.emit(TransactionAborted(self._group_view.group_id, self._window.count, str(error), error))
        for partition in self._partitions.partitions():
            self._handler_group.halt(partition)
        await self._transactor.abort(error, is_timed_out=self._window.is_timed_out(self._loop.time()))
        # Wait for running handlers, whose results are dropped and must not join the next transaction.
        until = self._loop.time() + self._settings.timeout_s
        while self._partitions.are_running and self._loop.time() < until:
            await self._progress.wait(until)
        self._attempts.disown()
        if self._window.needs_backoff:
            self._failures += 1
            until = self._loop.time() + self._backoff.pause_s(self._failures, random.random())  # noqa: S311 - for jitter
            while self._loop.time() < until:
                await self._progress.wait(until)
        await rewind(self._partitions, self._group_view, self._backoff)
        self._blame(error)
        is_failure = self._window.needs_backoff or self._window.is_late or isinstance(error, PublishTooLargeError)
        self._window.end_aborted(shrink=is_failure and self._delivery.alone is None)
        self._delivery.alone = None
        self._end(is_failure=is_failure)

    def _blame(self, error: TailraceError) -> None:
        """Mark a record as too large if it was alone in the transaction, so that it fails at its next delivery."""
        if isinstance(error, PublishTooLargeError) and self._window.count == 1 and self._delivery.last is not None:
            self._refusals.note_refusal(*self._delivery.last, error, is_dead_letter=self._attempts.has_letter)

    def _stalled(self, seconds: float) -> None:
        reason = self._reason or "no record was finished"
        self._observer.emit(TransactionsStalled(self._group_view.group_id, seconds, reason))

    # ---- inside ------------------------------------------------------------------------------------------------

    @property
    def _handler_group(self) -> HandlerGroup:
        assert self._handler_group_or_none is not None
        return self._handler_group_or_none

    @property
    def _partitions(self) -> TransactionPartitions:
        assert self._partitions_or_none is not None
        return self._partitions_or_none

    @property
    def _delivery(self) -> TransactionDelivery:
        assert self._delivery_or_none is not None
        return self._delivery_or_none

    @property
    def _group_view(self) -> GroupView:
        assert self._group_view_or_none is not None
        return self._group_view_or_none
