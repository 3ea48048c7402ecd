"""State machine of a transactional producer.

Records are sent by the accumulator and its sender; this machine sends everything else, one request at a time. The next
request follows from the state (``_next_effect``), so a request whose outcome is unknown is sent again unchanged. Once a
commit was sent, it is repeated until it is answered, never replaced by an abort.

A request that was not answered may still arrive after its transaction has ended. The next transaction therefore takes
a new producer epoch. Brokers then refuse the late request, and sequence numbers start from zero (KIP-360).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

from tailrace.core.machine import Row, StateMachine, TransitionTable
from tailrace.core.producer import error_messages as words
from tailrace.core.producer.events import (
    AbortTransaction,
    AddPartitions,
    BeginTransaction,
    CommitTransaction,
    DeliverRecords,
    DiscardRecords,
    Effect,
    Ended,
    Fenced,
    GenerationRefused,
    GroupOffsets,
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
    RecordsDelivered,
    RecordsDiscarded,
    ReportError,
    SendAddOffsets,
    SendAddPartitions,
    SendEnd,
    SendInit,
    SendOffsets,
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
from tailrace.errors import PublishError, TailraceError
from tailrace.records import TopicPartition

__all__ = ["TABLE", "TransactionMachine"]


@dataclass(slots=True)
class _OpenTransaction:
    """Progress of one transaction."""

    new_partitions: tuple[TopicPartition, ...] = ()
    """Partitions to add."""
    offsets: GroupOffsets | None = None
    are_records_over: bool = False
    """True once all records are delivered, or discarded."""
    are_offsets_added: bool = False
    are_offsets_stored: bool = False
    known_at: float | None = None
    """Time at which the coordinator may first have learned of the transaction; None before that time."""
    is_known_for_sure: bool = False
    """True if the coordinator has acknowledged the transaction."""
    is_end_sent: bool = False
    cause: TailraceError | None = None
    """Cause of the abort, to be reported when the abort is complete."""


class TransactionMachine(StateMachine[ProducerState, TransactionEvent, Effect]):
    """Transactional producer, driven by one coroutine at a time.

    Args:
        settings: settings of the producer.
        chance: returns a number in [0, 1) for jitter.

    Attributes:
        producer: producer id and epoch.
        error: cause of the final state; None in all other states.
        aborted_by: cause of the last transaction's abort; None if the user asked for the abort, and once the next
            transaction begins.
    """

    def __init__(self, settings: TransactionSettings, chance: Callable[[], float]) -> None:
        super().__init__(TABLE, ProducerState.UNINITIALIZED)
        self._settings = settings
        self._pending = PendingRequest(settings, chance)
        self._needs_new_epoch = False
        self._transaction = _OpenTransaction()
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
        """Send the pending request again, or give the request up if the time of the call is over."""
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

    def resume(self, event: Settle | CommitTransaction | AbortTransaction, now: float) -> None:
        """Continue unfinished work, within the timeout of the event."""
        self._resume(self.state, event.within_s, now)

    def adopt(self, event: ProducerIdGiven, _now: float) -> None:
        """Adopt the producer id and epoch."""
        self._pending.succeeded()
        self.producer = event.producer
        self._needs_new_epoch = False

    def begin(self, _event: BeginTransaction, _now: float) -> None:
        """Begin a transaction; the coordinator learns of it with the first partition."""
        self.aborted_by = None
        self._transaction = _OpenTransaction()

    def add(self, event: AddPartitions, now: float) -> None:
        """Add partitions, within the timeout of the event."""
        self._transaction.new_partitions = event.partitions
        self._resume(self.state, event.within_s, now)

    def add_at_commit(self, event: AddPartitions, now: float) -> None:
        """Add partitions, within the timeout of the commit."""
        self._transaction.new_partitions = event.partitions
        self._go_on(now)

    def commit(self, event: CommitTransaction, now: float) -> None:
        """Deliver the remaining records, store the offsets, commit."""
        self._transaction.offsets = event.offsets
        self._resume(ProducerState.COMMITTING, event.within_s, now)

    def abort(self, event: AbortTransaction, now: float) -> None:
        """Abort the transaction, as the user asked."""
        self._abort(None, event.within_s, now)

    def abort_for(self, event: MustAbort, now: float) -> None:
        """Abort the transaction and report the error."""
        self._pending.succeeded()
        self._needs_new_epoch |= event.needs_new_epoch
        self._abort(event.error, self._settings.abort_s, now)

    def added(self, _event: PartitionsAdded, now: float) -> None:
        """Note that the coordinator knows the partitions."""
        self._transaction.new_partitions, self._transaction.is_known_for_sure = (), True
        self._go_on(now)

    def finish_records(self, event: RecordsDelivered | RecordsDiscarded, now: float) -> ProducerState | None:
        """Continue with the offsets or EndTxn; end without a request if the coordinator cannot know the transaction."""
        self._transaction.are_records_over = True
        self._needs_new_epoch |= event.needs_new_epoch
        return self._end_if_unknown(now)

    def offsets_added(self, _event: OffsetsAdded, now: float) -> None:
        """Store the offsets of the group, now that the group is part of the transaction."""
        self._transaction.are_offsets_added = self._transaction.is_known_for_sure = True
        self._go_on(now)

    def offsets_stored(self, _event: OffsetsStored, now: float) -> None:
        """End the transaction, now that its offsets are stored."""
        self._transaction.are_offsets_stored = True
        self._go_on(now)

    def rejoin(self, event: GenerationRefused, now: float) -> ProducerState | None:
        """Send the offsets again under the newer generation; abort if a partition of theirs is no longer owned."""
        offsets = self._transaction.offsets
        if event.current is None or offsets is None:
            self.abort_for(MustAbort(event.error), now)
            return ProducerState.ABORTING
        if event.current == offsets.identity:
            # The answer to the join or heartbeat, with the newer generation, is still on its way.
            self._pending.failed(TryAgain(str(event.error), is_soon=True), now)
            return None
        self._transaction.offsets = replace(offsets, identity=event.current)
        self._go_on(now)
        return None

    def end(self, _event: TransactionEvent, _now: float) -> ProducerState:
        """Finish the transaction."""
        return self._end()

    def miss(self, event: NoTransaction, now: float) -> ProducerState:
        """Finish the transaction if it is being aborted and the coordinator never acknowledged it; else fail."""
        is_expected = self.state is ProducerState.ABORTING and not self._transaction.is_known_for_sure
        return self._end() if is_expected else self.fail(event, now)

    def renew(self, event: MustAbort, now: float) -> ProducerState:
        """Take a new epoch if the broker has forgotten the transaction that is being aborted; else fail."""
        if not event.needs_new_epoch:
            return self.fail(event, now)
        self._needs_new_epoch = True
        return self._end()

    def try_later(self, event: TryAgain | Moved | Unanswered, now: float) -> None:
        """Send the request again after an exponential backoff."""
        awaited = self._pending.awaited
        if isinstance(event, Moved | Unanswered) and isinstance(awaited, Question):
            self._effects.append(LookUpAgain(awaited, event.reason))
        self._needs_new_epoch |= isinstance(event, Unanswered)
        self._pending.failed(event, now)

    def give_up(self, _event: TimeOver, now: float) -> ProducerState | None:
        """Abort the transaction if no commit was sent; in all other cases keep the state and report an error."""
        trouble = self._pending.trouble
        match self.state:
            case ProducerState.IN_TRANSACTION | ProducerState.COMMITTING if not self.is_in_doubt:
                self._abort(words.not_in_time(trouble), self._settings.abort_s, now)
                return ProducerState.ABORTING
            case ProducerState.COMMITTING:
                self._effects.append(ReportError(words.not_known(trouble)))
            case state:
                what = words.not_begun if state is ProducerState.UNINITIALIZED else words.not_aborted
                cause, self._transaction.cause = self._transaction.cause, None
                self._effects.append(ReportError(cause or what(trouble)))
        return None

    def interrupt(self, _event: Interrupted, _now: float) -> ProducerState | None:
        """Forget the request in flight, which the next call repeats; abort if a commit was begun but not sent."""
        self._needs_new_epoch |= self._pending.awaited is not None
        self._pending.forget()
        self._effects.clear()
        self._transaction.cause = None
        if self.state is not ProducerState.COMMITTING or self._transaction.is_end_sent:
            return None
        self._transaction.are_records_over = False
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

    def _resume(self, state: ProducerState, within_s: float, now: float) -> None:
        self._pending.begin(within_s, now)
        self._proceed(state, now)

    def _go_on(self, now: float) -> None:
        self._pending.succeeded()
        self._proceed(self.state, now)

    def _proceed(self, state: ProducerState, now: float) -> None:
        """Append the next effect of ``state``, if there is one."""
        timeout_s = self._pending.timeout_s(now)
        if timeout_s is not None and (effect := self._next_effect(state, timeout_s)) is not None:
            if isinstance(effect, SendAddPartitions | SendAddOffsets) and self._transaction.known_at is None:
                self._transaction.known_at = now
            self._transaction.is_end_sent |= isinstance(effect, SendEnd)
            self._pending.awaited = effect
            self._effects.append(effect)

    def _next_effect(self, state: ProducerState, timeout_s: float) -> Effect | None:
        it = self._transaction
        match state:
            case ProducerState.UNINITIALIZED:
                return SendInit(self.producer, timeout_s)
            case ProducerState.ABORTING if not it.are_records_over:
                # Half of the time is left for EndTxn.
                return DiscardRecords(timeout_s / 2)
            case ProducerState.ABORTING:
                return SendEnd(self.producer, is_commit=False, timeout_s=timeout_s)
            case _ if it.new_partitions:
                return SendAddPartitions(self.producer, it.new_partitions, timeout_s)
            case ProducerState.COMMITTING:
                return self._next_of_commit(timeout_s)
            case _:
                return None

    def _next_of_commit(self, timeout_s: float) -> Effect:
        it = self._transaction
        if not it.are_records_over:
            return DeliverRecords(timeout_s)
        if it.offsets is not None and not it.are_offsets_added:
            return SendAddOffsets(self.producer, it.offsets.group_id, timeout_s)
        if it.offsets is not None and not it.are_offsets_stored:
            return SendOffsets(self.producer, it.offsets, timeout_s)
        return SendEnd(self.producer, is_commit=True, timeout_s=timeout_s)

    def _abort(self, error: TailraceError | None, within_s: float, now: float) -> None:
        self.aborted_by = self._transaction.cause = error
        self._transaction.are_records_over = False
        self._pending.forget()
        self._resume(ProducerState.ABORTING, within_s, now)

    def _end_if_unknown(self, now: float) -> ProducerState | None:
        it = self._transaction
        if it.known_at is None and (it.offsets is None or self.state is ProducerState.ABORTING):
            return self._end()
        self._go_on(now)
        return None

    def _end(self) -> ProducerState:
        self._pending.succeeded()
        if (cause := self._transaction.cause) is not None:
            self._effects.append(ReportError(cause))
        return ProducerState.UNINITIALIZED if self._needs_new_epoch else ProducerState.READY

    def _stop(self, error: TailraceError) -> None:
        self._pending.forget()
        self.error = error
        self._effects.append(ReportError(error))

    @property
    def _doubt(self) -> str:
        return words.DOUBT if self.is_in_doubt else ""


def _rows() -> Iterator[Row[Any, ProducerState, Any]]:
    on, do = ProducerState, TransactionMachine
    ended = (on.READY, on.UNINITIALIZED)

    # The producer id.
    yield Row((on.UNINITIALIZED,), Settle, do.resume)
    yield Row((on.UNINITIALIZED,), ProducerIdGiven, do.adopt, on.READY)
    # A transaction.
    yield Row((on.READY,), BeginTransaction, do.begin, on.IN_TRANSACTION)
    yield Row((on.IN_TRANSACTION,), AddPartitions, do.add)
    yield Row((on.COMMITTING,), AddPartitions, do.add_at_commit)
    yield Row(OPEN, PartitionsAdded, do.added)
    # The end of a transaction.
    yield Row((on.IN_TRANSACTION,), CommitTransaction, do.commit, on.COMMITTING)
    yield Row((on.COMMITTING,), RecordsDelivered, do.finish_records, None, ended)
    yield Row((on.COMMITTING,), OffsetsAdded, do.offsets_added)
    yield Row((on.COMMITTING,), OffsetsStored, do.offsets_stored)
    yield Row((on.COMMITTING,), GenerationRefused, do.rejoin, None, (on.ABORTING,))
    yield Row((on.IN_TRANSACTION,), AbortTransaction, do.abort, on.ABORTING)
    yield Row(OPEN, MustAbort, do.abort_for, on.ABORTING)
    yield Row((on.ABORTING,), RecordsDiscarded, do.finish_records, None, ended)
    yield Row(ENDING, Ended, do.end, on.READY, (on.UNINITIALIZED,))
    yield Row((on.COMMITTING,), NoTransaction, do.miss, on.FAILED)
    yield Row((on.ABORTING,), NoTransaction, do.miss, on.FAILED, ended)
    yield Row((on.ABORTING,), MustAbort, do.renew, on.UNINITIALIZED, (on.FAILED,))
    # Unfinished work.
    yield Row(ENDING, Settle, do.resume)
    yield Row((on.COMMITTING,), CommitTransaction, do.resume)
    yield Row((on.ABORTING,), AbortTransaction, do.resume)
    yield Row((on.READY,), Settle, do.ignore)
    yield Row((on.UNINITIALIZED, on.READY), AbortTransaction, do.ignore)
    # Errors.
    yield Row(ASKING, (TryAgain, Moved, Unanswered), do.try_later)
    yield Row(ASKING, TimeOver, do.give_up, None, (on.ABORTING,))
    yield Row((*ASKING, on.READY), Interrupted, do.interrupt, None, (on.ABORTING,))
    yield Row(ASKING, Fenced, do.fence, on.FENCED)
    yield Row(ASKING, TransactionFailed, do.fail, on.FAILED)
    yield Row((on.UNINITIALIZED,), MustAbort, do.fail, on.FAILED)


TABLE = TransitionTable(_rows(), OVER)
"""Every transition of a transactional producer."""
