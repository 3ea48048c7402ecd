"""One transactional producer: the whole machine as one table.

Rule 1: every transition stands in ``TABLE``: a state, what happened, what to do, the state after it. What is not in
the table cannot happen, raises, and changes nothing.
Rule 2: one question at a time. What is asked next follows from what is known (``_proceed``), so a question whose
outcome got lost is asked again as it was: the same batches with the same sequence numbers, the same end.
Rule 3: once a commit was sent, it is the commit that is asked for until it is answered, never the abort.
Rule 4: a request that nobody answered may still arrive, at a broker where the transaction is over by then; and a batch
that was not acknowledged may be written. So after such a transaction the next one has a new epoch, with which the
broker refuses whatever comes late and counts sequences anew (KIP-360).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from penstock.core import transaction_words as words
from penstock.core.open_transaction import Transaction
from penstock.core.transaction_asking import Asking
from penstock.core.transaction_errors import worst_of
from penstock.core.transaction_events import (
    Abort,
    BatchesAnswered,
    Begin,
    Commit,
    Effect,
    Ended,
    Failed,
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
    Tell,
    TimeOver,
    TransactionEvent,
    TransactionSettings,
    TryAgain,
    Unanswered,
)
from penstock.core.transaction_states import ASKING, ENDING, OPEN, OVER, State
from penstock.errors import PenstockError, PublishError
from penstock.records import TopicPartition

__all__ = ["TABLE", "Rule", "TransactionalMember"]


Step: TypeAlias = Callable[["TransactionalMember", TransactionEvent, float], None]


@dataclass(frozen=True, slots=True)
class Rule:
    """One line of the table."""

    step: Step
    then: State
    elsewhere: tuple[State, ...] = ()
    """Where the step may lead besides."""


class TransactionalMember:
    """The machine. It has no clock, does no IO, and is asked by one coroutine.

    Args:
        settings: what the options say.
        chance: gives a number in [0, 1) for jitter, passed in because chance is not decided here.

    Attributes:
        state: where it stands.
        producer: who it is to the brokers.
        error: why it is over; None while it is not.
        aborted_by: what ended the last transaction against the user's will, until the next begins.
    """

    def __init__(self, settings: TransactionSettings, chance: Callable[[], float]) -> None:
        self._settings = settings
        self._asking = Asking(settings, chance)
        self._effects: deque[Effect] = deque()
        self._sequences: dict[TopicPartition, int] = {}
        self._needs_new_epoch = False
        self._transaction = Transaction(self._sequences)
        self.state = State.UNINITIALISED
        self.producer = ProducerId()
        self.error: PenstockError | None = None
        self.aborted_by: PenstockError | None = None

    def __repr__(self) -> str:
        return f"<TransactionalMember {self._settings.transactional_id} {self.state} {tuple(self.producer)}>"

    # ---- being driven ------------------------------------------------------------------------------------------

    @property
    def is_over(self) -> bool:
        """Whether nothing more will happen."""
        return self.state in OVER

    @property
    def is_in_doubt(self) -> bool:
        """Whether a commit was sent and not answered."""
        return self.state is State.COMMITTING and self._transaction.is_end_sent

    def allows(self, event: type[TransactionEvent]) -> bool:
        """Whether that may happen now."""
        return self.is_over or (self.state, event) in TABLE

    def receive(self, event: TransactionEvent, now: float) -> None:
        """Something has happened.

        Raises:
            ValueError: that cannot happen in this state; nothing has changed.
        """
        if self.is_over:
            return
        rule = TABLE.get((self.state, type(event)))
        if rule is None:
            raise ValueError(f"{type(event).__name__} cannot happen while {self.state}")
        before = self.state
        rule.step(self, event, now)
        # A step that had to go elsewhere has set the state itself.
        if self.state is before:
            self.state = rule.then

    def handle_timer(self, now: float) -> None:
        """Time has passed: it is time to ask again, or too late."""
        due_at = self._asking.due_at
        if due_at is None or now < due_at:
            return
        self._asking.forget()
        if self._asking.is_too_late(now):
            self.receive(TimeOver(), now)
        else:
            self._proceed(now)

    def next_deadline(self) -> float | None:
        """When ``handle_timer`` has something to do; None while a question is under way, and when all is done."""
        return self._asking.due_at

    def effects(self) -> Iterator[Effect]:
        """What is to be done now, each once."""
        while self._effects:
            yield self._effects.popleft()

    # ---- steps, named by what is done --------------------------------------------------------------------------

    def ignore(self, event: TransactionEvent, now: float) -> None:
        """There is nothing to do."""

    def resume(self, event: TransactionEvent, now: float) -> None:
        """Go on with what is unfinished."""
        assert isinstance(event, Settle | Flush | Commit | Abort)
        self._asking.begin(event.within_s, now)
        self._proceed(now)

    def adopt(self, event: TransactionEvent, _now: float) -> None:
        """Be whom the coordinator says; a new epoch begins all sequences anew."""
        assert isinstance(event, ProducerIdGiven)
        self._asking.heard()
        self.producer = event.producer
        self._sequences.clear()
        self._needs_new_epoch = False

    def begin(self, _event: TransactionEvent, _now: float) -> None:
        """A transaction is open; the coordinator hears of it with its first partition."""
        self.aborted_by = None
        self._transaction = Transaction(self._sequences)

    def take(self, event: TransactionEvent, _now: float) -> None:
        """Number the batch and put it behind those of its partition."""
        assert isinstance(event, Filled)
        self._transaction.fill(event.partition, event.records)

    def commit(self, event: TransactionEvent, now: float) -> None:
        """Write what is left, store the offsets, end."""
        assert isinstance(event, Commit)
        self._transaction.offsets = event.offsets
        if self._transaction.is_empty:
            self.state = State.READY
            return
        self.state = State.COMMITTING
        self.resume(event, now)

    def abort(self, event: TransactionEvent, now: float) -> None:
        """Take it all back."""
        assert isinstance(event, Abort)
        self._take_back(None, event.within_s, now)

    def abort_for(self, event: TransactionEvent, now: float) -> None:
        """Take it all back, and tell why."""
        assert isinstance(event, MustAbort)
        self._asking.heard()
        self._needs_new_epoch |= event.needs_new_epoch
        self._take_back(event.error, self._settings.abort_s, now)

    def added(self, event: TransactionEvent, now: float) -> None:
        """These may be written to."""
        assert isinstance(event, PartitionsAdded)
        self._transaction.added(event.partitions)
        self._go_on(now)

    def acknowledge(self, event: TransactionEvent, now: float) -> None:
        """What is written is behind us; the worst of what went wrong with the rest decides what follows."""
        assert isinstance(event, BatchesAnswered)
        self._transaction.written(event.written)
        if event.written:
            self._asking.progressed()
        self._needs_new_epoch |= any(isinstance(one, Unanswered) for one in event.troubles)
        trouble = worst_of(event.troubles)
        if trouble is None:
            self._go_on(now)
        else:
            self.receive(trouble, now)

    def offsets_added(self, _event: TransactionEvent, now: float) -> None:
        """The group's offsets may be stored."""
        self._transaction.offsets_added()
        self._go_on(now)

    def offsets_stored(self, _event: TransactionEvent, now: float) -> None:
        """All is in place: end."""
        self._transaction.offsets_stored()
        self._go_on(now)

    def end(self, _event: TransactionEvent, _now: float) -> None:
        """The transaction is over, as it was asked for."""
        self._asking.heard()
        if (cause := self._transaction.cause) is not None:
            self._effects.append(Tell(cause))
        self.state = State.UNINITIALISED if self._needs_new_epoch else State.READY

    def miss(self, event: TransactionEvent, now: float) -> None:
        """The coordinator knows of no transaction: no wonder, if it never said that it does."""
        if self.state is State.COMMITTING or self._transaction.is_known_for_sure:
            self.fail(event, now)
        else:
            self.end(event, now)

    def begin_anew(self, event: TransactionEvent, now: float) -> None:
        """The broker has forgotten the transaction that was to be aborted, or does not even let us abort it."""
        assert isinstance(event, MustAbort)
        if event.needs_new_epoch:
            self._needs_new_epoch = True
            self.end(event, now)
        else:
            self.fail(event, now)

    def try_later(self, event: TransactionEvent, now: float) -> None:
        """Ask again after a pause that grows."""
        assert isinstance(event, TryAgain | Moved | Unanswered)
        if isinstance(event, Moved | Unanswered) and self._asking.awaited is not None:
            self._effects.append(LookUpAgain(self._asking.awaited, event.reason))
        self._needs_new_epoch |= isinstance(event, Unanswered)
        self._asking.came_to_nothing(event, now)

    def give_up(self, _event: TransactionEvent, now: float) -> None:
        """It took too long: what can be taken back is, what cannot is left as it stands."""
        if self.state is State.IN_TRANSACTION or (self.state is State.COMMITTING and not self._transaction.is_end_sent):
            self._take_back(words.not_in_time(self._asking.trouble), self._settings.abort_s, now)
        elif self.state is State.COMMITTING:
            self._effects.append(Tell(words.not_known(self._asking.trouble)))
        else:
            what = words.not_begun if self.state is State.UNINITIALISED else words.not_aborted
            cause, self._transaction.cause = self._transaction.cause, None
            self._effects.append(Tell(cause or what(self._asking.trouble)))

    def interrupt(self, _event: TransactionEvent, _now: float) -> None:
        """Forget what is under way; it is asked again when somebody waits again, but for a commit not sent yet."""
        self._needs_new_epoch |= self._asking.awaited is not None
        self._asking.forget()
        self._effects.clear()
        self._transaction.cause = None
        if self.state is State.COMMITTING and not self._transaction.is_end_sent:
            self._needs_new_epoch |= self._transaction.drop()
            self.aborted_by = words.not_committed()
            self.state = State.ABORTING

    def fence(self, event: TransactionEvent, now: float) -> None:
        """Somebody is ahead of us: the transaction is theirs to end, or the broker has ended it."""
        assert isinstance(event, Fenced)
        known_at = self._transaction.known_at
        open_s = None if known_at is None else now - known_at
        self._stop(words.fenced(self._settings, open_s, self._in_doubt(), event.reason), State.FENCED)

    def fail(self, event: TransactionEvent, _now: float) -> None:
        """No other try would help."""
        assert isinstance(event, Failed | MustAbort | NoTransaction)
        doubt = self._in_doubt()
        self._stop(PublishError(f"{event.error}{doubt}") if doubt else event.error, State.FAILED)

    # ---- inside ------------------------------------------------------------------------------------------------

    def _go_on(self, now: float) -> None:
        self._asking.heard()
        self._proceed(now)

    def _proceed(self, now: float) -> None:
        """Ask what is to be asked next, if anything is."""
        timeout_s = self._asking.timeout_s(now)
        if timeout_s is not None and (question := self._next_question(timeout_s)) is not None:
            if isinstance(question, SendAddPartitions | SendAddOffsets) and self._transaction.known_at is None:
                self._transaction.known_at = now
            self._transaction.is_end_sent |= isinstance(question, SendEnd)
            self._asking.awaited = question
            self._effects.append(question)

    def _next_question(self, timeout_s: float) -> Question | None:
        match self.state:
            case State.UNINITIALISED:
                return SendInit(self.producer, timeout_s)
            case State.COMMITTING:
                return self._transaction.next_of_commit(self.producer, timeout_s)
            case State.ABORTING:
                return SendEnd(self.producer, is_commit=False, timeout_s=timeout_s)
            case _:
                return self._transaction.next_write(self.producer, timeout_s)

    def _take_back(self, error: PenstockError | None, within_s: float, now: float) -> None:
        self.aborted_by = self._transaction.cause = error
        self._needs_new_epoch |= self._transaction.drop()
        self._asking.forget()
        if self._transaction.known_at is None:
            self.end(Ended(), now)
            return
        self.state = State.ABORTING
        self.resume(Abort(within_s), now)

    def _stop(self, error: PenstockError, state: State) -> None:
        self._asking.forget()
        self.error, self.state = error, state
        self._effects.append(Tell(error))

    def _in_doubt(self) -> str:
        return words.DOUBT if self.is_in_doubt else ""


def _table() -> dict[tuple[State, type[TransactionEvent]], Rule]:
    on, do, stays = State, TransactionalMember, None
    idle = (on.UNINITIALISED, on.READY)
    given_up = (on.READY, on.UNINITIALISED, on.ABORTING)
    rows: Sequence[tuple[Sequence[State], Sequence[type[TransactionEvent]], Step, State | None, tuple[State, ...]]] = (
        # Who we are.
        ((on.UNINITIALISED,), (Settle,), do.resume, stays, ()),
        ((on.UNINITIALISED,), (ProducerIdGiven,), do.adopt, on.READY, ()),
        # A transaction.
        ((on.READY,), (Begin,), do.begin, on.IN_TRANSACTION, ()),
        ((on.IN_TRANSACTION,), (Filled,), do.take, stays, ()),
        ((on.IN_TRANSACTION,), (Flush,), do.resume, stays, ()),
        (OPEN, (PartitionsAdded,), do.added, stays, ()),
        (OPEN, (BatchesAnswered,), do.acknowledge, stays, (*given_up, on.FENCED, on.FAILED)),
        # Its end.
        ((on.IN_TRANSACTION,), (Commit,), do.commit, on.COMMITTING, (on.READY,)),
        ((on.COMMITTING,), (OffsetsAdded,), do.offsets_added, stays, ()),
        ((on.COMMITTING,), (OffsetsStored,), do.offsets_stored, stays, ()),
        ((on.IN_TRANSACTION,), (Abort,), do.abort, on.ABORTING, (on.READY, on.UNINITIALISED)),
        (OPEN, (MustAbort,), do.abort_for, on.ABORTING, (on.READY, on.UNINITIALISED)),
        (ENDING, (Ended,), do.end, on.READY, (on.UNINITIALISED,)),
        ((on.COMMITTING,), (NoTransaction,), do.miss, on.FAILED, ()),
        ((on.ABORTING,), (NoTransaction,), do.miss, on.FAILED, (on.READY, on.UNINITIALISED)),
        ((on.ABORTING,), (MustAbort,), do.begin_anew, on.UNINITIALISED, (on.FAILED,)),
        # What is unfinished.
        (ENDING, (Settle,), do.resume, stays, ()),
        ((on.COMMITTING,), (Commit,), do.resume, stays, ()),
        ((on.ABORTING,), (Abort,), do.resume, stays, ()),
        ((on.READY,), (Settle,), do.ignore, stays, ()),
        (idle, (Abort,), do.ignore, stays, ()),
        # What goes wrong.
        (ASKING, (TryAgain, Moved, Unanswered), do.try_later, stays, ()),
        (ASKING, (TimeOver,), do.give_up, stays, given_up),
        ((*ASKING, on.READY), (Interrupted,), do.interrupt, stays, (on.ABORTING,)),
        (ASKING, (Fenced,), do.fence, on.FENCED, ()),
        (ASKING, (Failed,), do.fail, on.FAILED, ()),
        ((on.UNINITIALISED,), (MustAbort,), do.fail, on.FAILED, ()),
    )
    return {
        (state, event): Rule(step, then or state, elsewhere)
        for states, events, step, then, elsewhere in rows
        for state in states
        for event in events
    }


TABLE: Mapping[tuple[State, type[TransactionEvent]], Rule] = _table()
"""Every transition there is."""
