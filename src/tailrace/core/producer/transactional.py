"""One transactional producer: the table of its transitions and their steps.

One request at a time. The next request follows from the state (``_next_question``), so a request whose outcome is
unknown is sent again unchanged: the same batches with the same sequence numbers, the same end of the transaction. Once
a commit was sent, the commit is repeated until it is answered, never replaced by an abort.

A request that was not answered may still arrive after its transaction has ended, and a batch that was not acknowledged
may have been written. The next transaction therefore takes a new producer epoch, with which brokers refuse late
requests and count sequence numbers from zero (KIP-360).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from tailrace.core.machine import Row, StateMachine, TransitionTable
from tailrace.core.producer import error_messages as words
from tailrace.core.producer.error_reactions import worst_of
from tailrace.core.producer.events import (
    AbortTransaction,
    BatchesAnswered,
    BeginTransaction,
    CommitTransaction,
    Effect,
    EmitTransactionEvent,
    Ended,
    Fenced,
    Filled,
    Flush,
    Interrupted,
    LookUpAgain,
    Moved,
    MustAbort,
    NoTransaction,
    OffsetsAdded,
    OffsetsStored,
    PartitionsAdded,
    ProducerId,
    ProducerIdGiven,
    Question,
    SendAddOffsets,
    SendAddPartitions,
    SendEnd,
    SendInit,
    Settle,
    TimeOver,
    TransactionEvent,
    TransactionFailed,
    TransactionSettings,
    TryAgain,
    Unanswered,
)
from tailrace.core.producer.pending_request import PendingRequest
from tailrace.core.producer.states import ASKING, ENDING, OPEN, OVER, ProducerState
from tailrace.core.producer.transaction import OpenTransaction
from tailrace.errors import PublishError, TailraceError
from tailrace.records import TopicPartition

__all__ = ["TABLE", "TransactionMachine"]


class TransactionMachine(StateMachine[ProducerState, TransactionEvent, Effect]):
    """Transactional producer, driven by one coroutine.

    Args:
        settings: settings of the producer.
        chance: returns a number in [0, 1) for jitter.

    Attributes:
        producer: producer id and epoch.
        error: cause of the final state; None before it.
        aborted_by: cause of the last transaction's abort, unless the user asked for it; None once the next begins.
    """

    def __init__(self, settings: TransactionSettings, chance: Callable[[], float]) -> None:
        super().__init__(TABLE, ProducerState.UNINITIALISED)
        self._settings = settings
        self._pending = PendingRequest(settings, chance)
        self._sequences: dict[TopicPartition, int] = {}
        self._needs_new_epoch = False
        self._transaction = OpenTransaction(self._sequences)
        self.producer = ProducerId()
        self.error: TailraceError | None = None
        self.aborted_by: TailraceError | None = None

    def __repr__(self) -> str:
        return f"<TransactionMachine {self._settings.transactional_id} {self.state} {tuple(self.producer)}>"

    @property
    def is_in_doubt(self) -> bool:
        """True if a commit was sent and not answered."""
        return self.state is ProducerState.COMMITTING and self._transaction.is_end_sent

    def allows(self, event: type[TransactionEvent]) -> bool:
        """Return True if the event may happen in this state."""
        return self.is_over or (self.state, event) in TABLE

    def handle_timer(self, now: float) -> None:
        """Send the pending request again, or give it up after its timeout."""
        due_at = self._pending.due_at
        if due_at is None or now < due_at:
            return
        self._pending.forget()
        if self._pending.is_too_late(now):
            self.receive(TimeOver(), now)
        else:
            self._proceed(self.state, now)

    def next_deadline(self) -> float | None:
        """Return the time at which ``handle_timer`` is due; None while a request is in flight or none is pending."""
        return self._pending.due_at

    # ---- steps -------------------------------------------------------------------------------------------------

    def resume(self, event: Settle | Flush | CommitTransaction | AbortTransaction, now: float) -> None:
        """Continue unfinished work, within the timeout of the event."""
        self._resume(self.state, event.within_s, now)

    def adopt(self, event: ProducerIdGiven, _now: float) -> None:
        """Adopt the producer id and epoch; sequence numbers start from zero."""
        self._pending.heard()
        self.producer = event.producer
        self._sequences.clear()
        self._needs_new_epoch = False

    def begin(self, _event: BeginTransaction, _now: float) -> None:
        """Begin a transaction; the coordinator learns of it with the first partition."""
        self.aborted_by = None
        self._transaction = OpenTransaction(self._sequences)

    def take(self, event: Filled, _now: float) -> None:
        """Give the batch its sequence number and append it to those of its partition."""
        self._transaction.fill(event.partition, event.records)

    def commit(self, event: CommitTransaction, now: float) -> ProducerState:
        """Write the remaining batches, store the offsets, commit; an empty transaction just ends."""
        self._transaction.offsets = event.offsets
        if self._transaction.is_empty:
            return ProducerState.READY
        return self._resume(ProducerState.COMMITTING, event.within_s, now)

    def abort(self, event: AbortTransaction, now: float) -> ProducerState:
        """Abort the transaction, as the user asked."""
        return self._abort(None, event.within_s, now)

    def abort_for(self, event: MustAbort, now: float) -> ProducerState:
        """Abort the transaction and report the error."""
        self._pending.heard()
        self._needs_new_epoch |= event.needs_new_epoch
        return self._abort(event.error, self._settings.abort_s, now)

    def added(self, event: PartitionsAdded, now: float) -> None:
        """Write to the partitions, which are part of the transaction now."""
        self._transaction.added(event.partitions)
        self._go_on(now)

    def acknowledge(self, event: BatchesAnswered, now: float) -> ProducerState | None:
        """Record the written batches; the worst trouble of the others decides the transition."""
        self._transaction.written(event.written)
        if event.written:
            self._pending.progressed()
        self._needs_new_epoch |= any(isinstance(one, Unanswered) for one in event.troubles)
        trouble = worst_of(event.troubles)
        if trouble is not None:
            return TABLE.next_state(self, self.state, trouble, now)
        self._go_on(now)
        return None

    def offsets_added(self, _event: OffsetsAdded, now: float) -> None:
        """Store the offsets of the group, which is part of the transaction now."""
        self._transaction.offsets_added()
        self._go_on(now)

    def offsets_stored(self, _event: OffsetsStored, now: float) -> None:
        """End the transaction, now that its offsets are stored."""
        self._transaction.offsets_stored()
        self._go_on(now)

    def end(self, _event: TransactionEvent, _now: float) -> ProducerState:
        """Finish the transaction."""
        return self._end()

    def miss(self, event: NoTransaction, now: float) -> ProducerState:
        """Finish a transaction that the coordinator does not know, if it never acknowledged one; else fail."""
        is_expected = self.state is ProducerState.ABORTING and not self._transaction.is_known_for_sure
        return self._end() if is_expected else self.fail(event, now)

    def begin_anew(self, event: MustAbort, now: float) -> ProducerState:
        """Take a new epoch if the broker has forgotten the transaction that is being aborted; else fail."""
        if not event.needs_new_epoch:
            return self.fail(event, now)
        self._needs_new_epoch = True
        return self._end()

    def try_later(self, event: TryAgain | Moved | Unanswered, now: float) -> None:
        """Send the request again after an exponential backoff."""
        if isinstance(event, Moved | Unanswered) and self._pending.awaited is not None:
            self._effects.append(LookUpAgain(self._pending.awaited, event.reason))
        self._needs_new_epoch |= isinstance(event, Unanswered)
        self._pending.came_to_nothing(event, now)

    def give_up(self, _event: TimeOver, now: float) -> ProducerState | None:
        """Abort if no commit was sent; leave everything else as it is, and report it."""
        trouble = self._pending.trouble
        match self.state:
            case ProducerState.IN_TRANSACTION | ProducerState.COMMITTING if not self.is_in_doubt:
                return self._abort(words.not_in_time(trouble), self._settings.abort_s, now)
            case ProducerState.COMMITTING:
                self._effects.append(EmitTransactionEvent(words.not_known(trouble)))
            case state:
                what = words.not_begun if state is ProducerState.UNINITIALISED else words.not_aborted
                cause, self._transaction.cause = self._transaction.cause, None
                self._effects.append(EmitTransactionEvent(cause or what(trouble)))
        return None

    def interrupt(self, _event: Interrupted, _now: float) -> ProducerState | None:
        """Forget the request in flight; it is repeated at the next call. A commit that was not sent is aborted."""
        self._needs_new_epoch |= self._pending.awaited is not None
        self._pending.forget()
        self._effects.clear()
        self._transaction.cause = None
        if self.state is not ProducerState.COMMITTING or self._transaction.is_end_sent:
            return None
        self._needs_new_epoch |= self._transaction.drop()
        self.aborted_by = words.not_committed()
        return ProducerState.ABORTING

    def fence(self, event: Fenced, now: float) -> None:
        """Stop: another producer has this transactional id, or the broker has ended the transaction."""
        known_at = self._transaction.known_at
        open_s = None if known_at is None else now - known_at
        self._stop(words.fenced(self._settings, open_s, self._doubt, event.reason))

    def fail(self, event: TransactionFailed | MustAbort | NoTransaction, _now: float) -> ProducerState:
        """Stop: repeating the request would not help."""
        self._stop(PublishError(f"{event.error}{self._doubt}") if self._doubt else event.error)
        return ProducerState.FAILED

    # ---- inside ------------------------------------------------------------------------------------------------

    def _resume(self, state: ProducerState, within_s: float, now: float) -> ProducerState:
        self._pending.begin(within_s, now)
        self._proceed(state, now)
        return state

    def _go_on(self, now: float) -> None:
        self._pending.heard()
        self._proceed(self.state, now)

    def _proceed(self, state: ProducerState, now: float) -> None:
        """Send the next request of ``state``, if there is one."""
        timeout_s = self._pending.timeout_s(now)
        if timeout_s is not None and (question := self._next_question(state, timeout_s)) is not None:
            if isinstance(question, SendAddPartitions | SendAddOffsets) and self._transaction.known_at is None:
                self._transaction.known_at = now
            self._transaction.is_end_sent |= isinstance(question, SendEnd)
            self._pending.awaited = question
            self._effects.append(question)

    def _next_question(self, state: ProducerState, timeout_s: float) -> Question | None:
        match state:
            case ProducerState.UNINITIALISED:
                return SendInit(self.producer, timeout_s)
            case ProducerState.COMMITTING:
                return self._transaction.next_of_commit(self.producer, timeout_s)
            case ProducerState.ABORTING:
                return SendEnd(self.producer, is_commit=False, timeout_s=timeout_s)
            case _:
                return self._transaction.next_write(self.producer, timeout_s)

    def _abort(self, error: TailraceError | None, within_s: float, now: float) -> ProducerState:
        self.aborted_by = self._transaction.cause = error
        self._needs_new_epoch |= self._transaction.drop()
        self._pending.forget()
        if self._transaction.known_at is None:
            return self._end()
        return self._resume(ProducerState.ABORTING, within_s, now)

    def _end(self) -> ProducerState:
        self._pending.heard()
        if (cause := self._transaction.cause) is not None:
            self._effects.append(EmitTransactionEvent(cause))
        return ProducerState.UNINITIALISED if self._needs_new_epoch else ProducerState.READY

    def _stop(self, error: TailraceError) -> None:
        self._pending.forget()
        self.error = error
        self._effects.append(EmitTransactionEvent(error))

    @property
    def _doubt(self) -> str:
        return words.DOUBT if self.is_in_doubt else ""


def _rows() -> Iterator[Row[Any, ProducerState, Any]]:
    on, do = ProducerState, TransactionMachine
    given_up = (on.READY, on.UNINITIALISED, on.ABORTING)

    # The producer id.
    yield Row((on.UNINITIALISED,), Settle, do.resume)
    yield Row((on.UNINITIALISED,), ProducerIdGiven, do.adopt, on.READY)
    # A transaction.
    yield Row((on.READY,), BeginTransaction, do.begin, on.IN_TRANSACTION)
    yield Row((on.IN_TRANSACTION,), Filled, do.take)
    yield Row((on.IN_TRANSACTION,), Flush, do.resume)
    yield Row(OPEN, PartitionsAdded, do.added)
    yield Row(OPEN, BatchesAnswered, do.acknowledge, None, (*given_up, on.FENCED, on.FAILED))
    # Its end.
    yield Row((on.IN_TRANSACTION,), CommitTransaction, do.commit, on.COMMITTING, (on.READY,))
    yield Row((on.COMMITTING,), OffsetsAdded, do.offsets_added)
    yield Row((on.COMMITTING,), OffsetsStored, do.offsets_stored)
    yield Row((on.IN_TRANSACTION,), AbortTransaction, do.abort, on.ABORTING, (on.READY, on.UNINITIALISED))
    yield Row(OPEN, MustAbort, do.abort_for, on.ABORTING, (on.READY, on.UNINITIALISED))
    yield Row(ENDING, Ended, do.end, on.READY, (on.UNINITIALISED,))
    yield Row((on.COMMITTING,), NoTransaction, do.miss, on.FAILED)
    yield Row((on.ABORTING,), NoTransaction, do.miss, on.FAILED, (on.READY, on.UNINITIALISED))
    yield Row((on.ABORTING,), MustAbort, do.begin_anew, on.UNINITIALISED, (on.FAILED,))
    # Unfinished work.
    yield Row(ENDING, Settle, do.resume)
    yield Row((on.COMMITTING,), CommitTransaction, do.resume)
    yield Row((on.ABORTING,), AbortTransaction, do.resume)
    yield Row((on.READY,), Settle, do.ignore)
    yield Row((on.UNINITIALISED, on.READY), AbortTransaction, do.ignore)
    # Errors.
    yield Row(ASKING, (TryAgain, Moved, Unanswered), do.try_later)
    yield Row(ASKING, TimeOver, do.give_up, None, given_up)
    yield Row((*ASKING, on.READY), Interrupted, do.interrupt, None, (on.ABORTING,))
    yield Row(ASKING, Fenced, do.fence, on.FENCED)
    yield Row(ASKING, TransactionFailed, do.fail, on.FAILED)
    yield Row((on.UNINITIALISED,), MustAbort, do.fail, on.FAILED)


TABLE = TransitionTable(_rows(), OVER)
"""Every transition of a transactional producer."""
