"""Records that are handled exactly once: handed out inside transactions, committed with what was published for them.

Rule of this file: when to open and close is ``core.transaction_windows``'s to say. It stands between a consumer, of
which it is the taker, and a group of handlers, which takes from it. To the consumer all records of an open transaction
are in hand, finished or not; so a partition that has to be given back waits until the transaction is committed. All of
it is done by whoever calls ``next_slice``; there is no task behind it.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import TypeVar

from penstock.app.attempts import Attempts, Outgoing
from penstock.app.delays import RetryTopic
from penstock.app.sources import Crew
from penstock.app.transactions.going_back import go_back
from penstock.app.transactions.handing_out import HandingOut
from penstock.app.transactions.outside import Outside
from penstock.app.transactions.seams import Committer, FootedSource, Foothold
from penstock.app.transactions.shares import Shares
from penstock.consumer.wake import Wake
from penstock.core.backoff import Backoff
from penstock.core.positions import Position
from penstock.core.setbacks import Setbacks
from penstock.core.transaction_refusals import Refusals
from penstock.core.transaction_windows import Step, Window, WindowSettings
from penstock.errors import PenstockError, PublishError, PublishTooLargeError
from penstock.observe.events import OffsetsCommitted, TransactionAborted
from penstock.observe.hooks import Observer
from penstock.records import Record, TopicPartition

__all__ = ["TransactionalSource"]

WorkT = TypeVar("WorkT")

_LONGEST_PAUSE_MS = 5_000
_LOOK_AGAIN_S = 0.02
"""While the group counts us in no generation."""
_CLOSING_S = 5.0


class TransactionalSource:
    """A consumer whose records are handled in transactions.

    Args:
        source: the consumer, which commits nothing by itself.
        retry_topics: those whose records are not handed out before they are due.
        transactor: commits.
        settings: when.
        observer: told what becomes of transactions.
    """

    def __init__(
        self,
        source: FootedSource,
        retry_topics: Mapping[str, RetryTopic],
        *,
        transactor: Committer,
        settings: WindowSettings,
        observer: Observer,
    ) -> None:
        self._source, self._outside = source, Outside(retry_topics, source.wall_clock)
        self._transactor, self._observer = transactor, observer
        self._settings, self._window = settings, Window(settings)
        self._aside = self._outside.aside
        self._setbacks = Setbacks()
        self._refusals = Refusals()
        self._attempts = Attempts(transactor, self._window, self._setbacks, self._refusals, self._failed)
        self._backoff = Backoff.of_ms(100, _LONGEST_PAUSE_MS)
        self._failures = 0
        self._is_committing = self._is_stopping = False
        self._crew: Crew | None = None
        self._shares: Shares | None = None
        self._foothold: Foothold | None = None
        self._handing: HandingOut | None = None
        self._loop = asyncio.get_running_loop()
        self._progress = Wake()
        self._shut = asyncio.Event()
        self._shut.set()

    @property
    def transactions(self) -> TransactionalSource:
        """Itself."""
        return self

    def wall_clock(self) -> float:
        """As whoever gives the records has it."""
        return self._source.wall_clock()

    # ---- as a group wants it -----------------------------------------------------------------------------------

    async def start(self, taker: Crew) -> int:
        """Get a producer id, start the consumer.

        Raises:
            PenstockError: as ``TransactionalProducer.start`` and ``Consumer.start`` do.
        """
        self._crew = taker
        self._shares = Shares(taker, on_halt=self._close_soon, on_loss=self._lost)
        await self._transactor.start()
        window = await self._source.start(self._shares)
        self._foothold = self._source.foothold()
        self._handing = HandingOut(self._source, self._foothold, self._shares, self._outside, self._window)
        return window

    async def stop(self) -> None:
        """Take back what is not committed, leave the group."""
        try:
            await self._transactor.close(_CLOSING_S)
        finally:
            await self._source.stop()

    def progressed(self) -> None:
        """Something is finished, or there is room where there was none."""
        if self._handing is not None:
            self._handing.progressed()
        self._progress.set()
        self._source.progressed()

    def halt(self) -> None:
        """Hand out nothing more, and commit when what was handed out is finished."""
        self._is_stopping = True
        self._close_soon()

    async def settled(self, until: float) -> None:
        """Wait until no transaction is open, or it is ``until``."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout_at(until):
                await self._shut.wait()

    async def next_slice(self, room_of: Callable[[TopicPartition], int]) -> tuple[Position, Sequence[Record]]:
        """Records of one partition, in a transaction that is open.

        Raises:
            PenstockError: as a consumer's reader has it; or no transaction may be made any more.
        """
        while True:
            now, gathers = self._loop.time(), self._held.are_gathering
            # To see whether all is finished takes time with many partitions: not while it does not matter.
            is_done = not self._window.takes(now, is_gathering=gathers) and self._held.are_done
            match self._window.step(now, is_done=is_done, is_gathering=gathers):
                case Step.FEED if self._is_stopping and not self._window.is_open:
                    await self._progress.wait()
                case Step.FEED:
                    await self._transactor.begin()
                    found = await self._out.next(room_of)
                    if self._window.is_open:
                        self._shut.clear()
                    if found is not None:
                        return found
                case Step.DRAIN if self._held.are_held_back:
                    self._doom(PublishError("a handler is paused, and its records wait for it"), is_at_fault=False)
                case Step.DRAIN:
                    self._held.hurry()
                    await self._progress.wait(self._window.next_deadline(now))
                case Step.COMMIT:
                    await self._commit()
                case Step.ABORT:
                    await self._abort()

    # ---- as handlers want it -----------------------------------------------------------------------------------

    async def publish(  # noqa: PLR0913 - what a record has
        self,
        topic: str,
        value: bytes | None,
        *,
        key: bytes | None = None,
        headers: Sequence[tuple[str, bytes | None]] = (),
        partition: int | None = None,
        timestamp_ms: int | None = None,
    ) -> None:
        """As ``Attempts`` has it."""
        await self._attempts.publish(Outgoing(topic, value, key, headers, partition, timestamp_ms))

    def around(self, handle: Callable[[WorkT], Awaitable[object]]) -> Callable[[WorkT], Awaitable[object]]:
        """``handle``, of which what it publishes counts if it succeeds."""
        return self._attempts.around(self, handle)

    @property
    def setbacks(self) -> Setbacks:
        """How often its records have failed, in transactions that were taken back, too."""
        return self._setbacks

    @property
    def refusals(self) -> Refusals:
        """What was too large of its records."""
        return self._refusals

    def has_time(self, pause_s: float, work_s: float) -> bool:
        """Whether a record may wait for its next attempt within the open transaction, while nothing else is begun."""
        if self._out.alone is not None and pause_s > self._settings.interval_s:
            # It comes alone again and again: what others there is goes on in between.
            return False
        return self._window.has_time(pause_s + work_s, self._loop.time())

    def set_aside(self, record: Record, seconds: float, *, is_given_up: bool) -> None:
        """A record has to wait: commit what comes before it, and try it again later, alone."""
        if record.topic_partition not in self._held.partitions():
            # It is another's by now.
            return
        self._refusals.lift(record.topic_partition, record.offset)
        due_at = self._loop.time() + seconds
        self._aside.put(record.topic_partition, record.offset, due_at, is_given_up=is_given_up)
        if self._crew is not None:
            # Its worker goes on at once, and what is behind it may not be begun.
            self._crew.halt(record.topic_partition)
        reason = f"{record.topic_partition} offset {record.offset} failed, and what comes before it goes without it"
        self._doom(PublishError(reason), is_at_fault=False)

    @property
    def waiting(self) -> int:
        """Records that failed for good, and were set aside."""
        return self._aside.given_up

    @property
    def are_settled(self) -> bool:
        """Whether none is open, and what waits outside of them waits for what failed for good."""
        if self._window.is_open or len(self._aside) > self._aside.given_up:
            return False
        rests = self._held.rests.values()
        return all(self._aside.is_stopped_at(one.position.partition, one.records[0].offset) for one in rests)

    # ---- closing -----------------------------------------------------------------------------------------------

    def _close_soon(self) -> None:
        self._window.close()
        self._look_again()

    def _doom(self, error: PenstockError, *, is_at_fault: bool) -> None:
        self._window.doom(error, is_at_fault=is_at_fault)
        self._look_again()

    def _failed(self, error: PenstockError) -> None:
        # What is too large is looked for, and not waited for.
        self._doom(error, is_at_fault=not isinstance(error, PublishTooLargeError))

    def _look_again(self) -> None:
        """Have ``next_slice`` look at the window now."""
        self._progress.set()
        if self._handing is not None:
            self._handing.look_again()

    def _lost(self, partition: TopicPartition, was_shared: bool) -> None:  # noqa: FBT001 - as Shares tells it
        self._aside.lift(partition)
        self._setbacks.forget(partition)
        self._refusals.forget(partition)
        # What the broker says of a commit that is under way counts.
        if was_shared and not self._is_committing:
            self._doom(PublishError(f"{partition} went before its transaction was committed"), is_at_fault=False)

    async def _commit(self) -> None:
        """Commit, or say why that cannot be."""
        identity = self._at.identity
        if identity is None:
            # A rebalance is under way, or the partitions are about to be lost.
            until = self._loop.time() + _LOOK_AGAIN_S
            if self._window.gives_up_at is not None and until >= self._window.gives_up_at:
                self._doom(PublishError("the group has not counted this member in for too long"), is_at_fault=False)
            else:
                await self._progress.wait(until)
            return
        self._held.passed(self._at.passed())
        offsets = self._held.offsets()
        self._is_committing = True
        try:
            await self._transactor.commit(offsets, identity)
        except PenstockError as error:
            self._failed(error)
            return
        finally:
            self._is_committing = False
        self._failures = 0
        up_to = {at: one.offset for at, one in offsets.items()}
        self._observer.tell(OffsetsCommitted(self._at.group_id, up_to))
        self._held.committed(offsets)
        self._setbacks.committed(up_to)
        self._refusals.committed(up_to)
        if self._out.alone is not None:
            self._aside.lift(self._out.alone)
        self._window.committed(is_searching=bool(self._refusals))
        self._end()

    def _end(self) -> None:
        """No transaction is open."""
        self._out.alone, self._attempts.has_letter = None, False
        self._shut.set()
        # Whoever waits to give partitions back looks again.
        self._source.progressed()

    # ---- taking back -------------------------------------------------------------------------------------------

    async def _abort(self) -> None:
        """Take back what was published, and read again from what is committed.

        Raises:
            PenstockError: no other transaction may be made.
        """
        error, crew = self._window.doomed_by, self._crew
        assert error is not None
        assert crew is not None
        self._observer.tell(TransactionAborted(self._at.group_id, self._window.count, str(error)))
        for partition in self._held.partitions():
            crew.halt(partition)
        await self._transactor.abort(error, is_timed_out=self._window.is_timed_out(self._loop.time()))
        # What runs still publishes into nothing; what it would publish later must not come into the next transaction.
        while crew.runs:
            await self._progress.wait()
        if self._window.is_at_fault:
            self._failures += 1
            until = self._loop.time() + self._backoff.pause_s(self._failures, random.random())  # noqa: S311 - for jitter
            while self._loop.time() < until:
                await self._progress.wait(until)
        await go_back(self._held, self._at, self._backoff)
        self._blame(error)
        self._window.aborted(was_too_much=isinstance(error, PublishTooLargeError) and self._out.alone is None)
        self._end()

    def _blame(self, error: PenstockError) -> None:
        """Of a transaction of one record it is known whose fault it is: that fails when it comes again."""
        if isinstance(error, PublishTooLargeError) and self._window.count == 1 and self._out.last is not None:
            self._refusals.blame(*self._out.last, error, is_letter=self._attempts.has_letter)

    # ---- inside ------------------------------------------------------------------------------------------------

    @property
    def _held(self) -> Shares:
        assert self._shares is not None
        return self._shares

    @property
    def _out(self) -> HandingOut:
        assert self._handing is not None
        return self._handing

    @property
    def _at(self) -> Foothold:
        assert self._foothold is not None
        return self._foothold
