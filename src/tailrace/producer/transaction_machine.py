"""State machine of a transactional producer. Pure: no clock, IO or logging.

The record sender sends the records; this machine sends all other requests, one at a time. The next request follows from
the state (``_next_effect``), so a request whose outcome is unknown is sent again unchanged. Once a commit was sent, it
is repeated until it is answered, and never replaced by an abort.

A request that was not answered may still arrive after its transaction has ended. So the next transaction has a new
producer epoch: brokers then refuse the late request, and sequence numbers start from zero (KIP-360).

In transactions of version 2 (KIP-890), each EndTxn returns a new epoch, and brokers add partitions and groups to the
transaction themselves. The version of a transaction is fixed when it begins. Before the first transaction of version 2
after one of version 1, the machine requests a new epoch, as Java's producer does: a late request of the former
transaction could otherwise add its partition to the new one.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Any, NamedTuple, TypeAlias

from tailrace.core.backoff import Backoff
from tailrace.core.group_requests import Identity
from tailrace.core.machine import Row, StateMachine, TransitionTable
from tailrace.errors import ProducerFencedError, PublishError, TailraceError
from tailrace.protocol.groups import CommitOffset
from tailrace.records import TopicPartition
from tailrace.values import Value

__all__ = [
    "ENDING",
    "OPEN",
    "OVER",
    "REQUESTING",
    "TABLE",
    "AbortTransaction",
    "AddPartitions",
    "AdmitPartitions",
    "BeginTransaction",
    "CallCanceled",
    "CallTimedOut",
    "ChooseVersion",
    "CommitTransaction",
    "CompletePendingWork",
    "CoordinatorMoved",
    "CoordinatorRequest",
    "DeliverRecords",
    "DiscardRecords",
    "Effect",
    "GenerationRefused",
    "GroupOffsets",
    "LookUpCoordinator",
    "MustAbort",
    "NoOpenTransaction",
    "OffsetsAdded",
    "OffsetsStored",
    "PartitionsAdded",
    "PendingRequest",
    "ProducerFenced",
    "ProducerId",
    "ProducerIdReceived",
    "ProducerState",
    "RecordsSettled",
    "ReportError",
    "SendAddOffsets",
    "SendAddPartitions",
    "SendEnd",
    "SendInit",
    "SendOffsets",
    "TransactionEnded",
    "TransactionEvent",
    "TransactionFailed",
    "TransactionMachine",
    "TransactionSettings",
    "TryAgain",
    "Unanswered",
    "abort_unanswered_error",
    "commit_canceled_error",
    "fenced_error",
    "no_producer_id_error",
    "timeout_error",
    "transaction_over_error",
    "unknown_outcome_error",
    "user_aborted_error",
]

# ---- states of a transactional producer ------------------------------------------------------------------------------


class ProducerState(StrEnum):
    """State of a transactional producer."""

    UNINITIALIZED = "uninitialized"
    """The producer has no producer id, or has an epoch that must not be used any more."""
    READY = "ready"
    IN_TRANSACTION = "in transaction"
    COMMITTING = "committing"
    ABORTING = "aborting"
    FENCED = "fenced"
    FAILED = "failed"


OPEN = (ProducerState.IN_TRANSACTION, ProducerState.COMMITTING)
"""States in which records are sent."""

ENDING = (ProducerState.COMMITTING, ProducerState.ABORTING)
"""States in which a transaction is ended."""

REQUESTING = (ProducerState.UNINITIALIZED, *OPEN, ProducerState.ABORTING)
"""States in which a request to a coordinator may be in flight."""

OVER = frozenset({ProducerState.FENCED, ProducerState.FAILED})
"""Final states."""


# ---- values in events and effects ------------------------------------------------------------------------------------


class ProducerId(NamedTuple):
    """Producer id and epoch, both -1 if unknown; brokers refuse requests with an older epoch of the same id."""

    id: int = -1
    epoch: int = -1


@dataclass(frozen=True, slots=True)
class GroupOffsets:
    """Offsets of a group to commit with the transaction, and the member that commits them (KIP-447)."""

    group_id: str
    identity: Identity
    offsets: tuple[CommitOffset, ...]


@dataclass(frozen=True, slots=True)
class TransactionSettings:
    """Settings of a transactional producer; times in seconds."""

    transactional_id: str
    transaction_timeout_s: float
    """Time after which the broker aborts an open transaction."""
    request_timeout_s: float
    """Maximum time of one request."""
    abort_s: float
    """Time limit of an abort that the user did not request."""
    retry_first_s: float
    """Pause before the second attempt of a request."""
    retry_longest_s: float
    """Limit of the pauses between attempts."""
    soon_s: float = 0.005
    """Pause before the second attempt, if the broker is still ending the previous transaction."""


# ---- calls of the user -----------------------------------------------------------------------------------------------


class TransactionEvent(Value):
    """Base class of events.

    In the events that begin a call, ``within_s`` is the time limit of the call in seconds.
    """


class CompletePendingWork(TransactionEvent):
    """A call requests what is missing before a transaction can begin: a producer id, or the previous one's end."""

    within_s: float


class ChooseVersion(TransactionEvent):
    """The next transaction has this version, which may require another epoch."""

    version: int
    within_s: float


class BeginTransaction(TransactionEvent):
    """The user begins a transaction."""


class CommitTransaction(TransactionEvent):
    """The user commits the transaction."""

    offsets: GroupOffsets | None
    """Offsets to commit with the transaction; None if there are none."""
    within_s: float


class AbortTransaction(TransactionEvent):
    """The user aborts the transaction."""

    within_s: float


class CallTimedOut(TransactionEvent):
    """The time limit of the call has passed."""


class CallCanceled(TransactionEvent):
    """The call was canceled, so the outcome of the effect in progress will not be reported."""


# ---- producer id: InitProducerId, with its answer --------------------------------------------------------------------


class SendInit(Value):
    """Request a producer id, or the next epoch of ``producer`` (InitProducerId)."""

    producer: ProducerId
    timeout_s: float


class ProducerIdReceived(TransactionEvent):
    """InitProducerId succeeded; all earlier producers with the transactional id are fenced."""

    producer: ProducerId


# ---- partitions of the transaction: AddPartitionsToTxn, with its answer; no request in version 2 ---------------------


class AddPartitions(TransactionEvent):
    """Records wait for their partitions to become part of the transaction."""

    partitions: tuple[TopicPartition, ...]
    within_s: float


class SendAddPartitions(Value):
    """Add partitions to the transaction (AddPartitionsToTxn)."""

    producer: ProducerId
    partitions: tuple[TopicPartition, ...]
    timeout_s: float


class AdmitPartitions(Value):
    """Let the batches of partitions be sent; their leaders add them to the transaction (version 2)."""

    partitions: tuple[TopicPartition, ...]


class PartitionsAdded(TransactionEvent):
    """AddPartitionsToTxn succeeded, or the partitions were admitted."""


# ---- records of the transaction, which the record sender delivers or discards ----------------------------------------


class DeliverRecords(Value):
    """Wait until all records are stored, a record has failed, or one needs a partition to be added."""

    timeout_s: float


class DiscardRecords(Value):
    """Fail all records that are not stored, and wait for the requests in flight."""

    timeout_s: float


class RecordsSettled(TransactionEvent):
    """No record of the transaction is queued or in flight: all are stored, or after ``DiscardRecords``, discarded."""

    needs_new_epoch: bool
    """True if the sequence numbers of a partition have a gap, or a batch may still arrive at a broker."""


# ---- offsets of a group: AddOffsetsToTxn (only in version 1) and TxnOffsetCommit, with their answers -----------------


class SendAddOffsets(Value):
    """Add a group's offsets to the transaction (AddOffsetsToTxn)."""

    producer: ProducerId
    group_id: str
    timeout_s: float


class OffsetsAdded(TransactionEvent):
    """AddOffsetsToTxn succeeded."""


class SendOffsets(Value):
    """Store a group's offsets in the transaction (TxnOffsetCommit)."""

    producer: ProducerId
    offsets: GroupOffsets
    timeout_s: float
    version: int = 1
    """Version of the transaction."""


class OffsetsStored(TransactionEvent):
    """TxnOffsetCommit succeeded; the offsets become visible with the commit."""


class GenerationRefused(TransactionEvent):
    """The offsets were sent with an old generation, or member epoch, of the group."""

    error: TailraceError
    current: Identity | None = None
    """Current identity of this member; None if it no longer owns all partitions of the offsets."""


# ---- end of the transaction: EndTxn, with its answers ----------------------------------------------------------------


class SendEnd(Value):
    """End the transaction (EndTxn)."""

    producer: ProducerId
    is_commit: bool
    timeout_s: float
    version: int = 1
    """Version of the transaction."""


class TransactionEnded(TransactionEvent):
    """EndTxn succeeded: the transaction is committed or aborted."""

    producer: ProducerId = ProducerId()
    """Producer id and epoch of the next transaction (version 2); the default to keep those of this transaction."""


class NoOpenTransaction(TransactionEvent):
    """The coordinator answered EndTxn with an error: it knows no open transaction that may end so."""

    error: TailraceError


# ---- outcomes that a request may have in place of its answer ---------------------------------------------------------


class TryAgain(TransactionEvent):
    """The effect failed for a temporary reason."""

    reason: str
    is_soon: bool = False
    """True if a retry is expected to succeed in a moment, as while the broker ends the previous transaction."""


class CoordinatorMoved(TransactionEvent):
    """The coordinator must be looked up again; the request had no effect."""

    reason: str


class Unanswered(TransactionEvent):
    """The request was not answered; it may have had an effect, or may still have one."""

    reason: str


class MustAbort(TransactionEvent):
    """The transaction cannot be committed, but a later transaction may be."""

    error: TailraceError
    needs_new_epoch: bool = False
    """True if the broker has lost the sequence numbers, so that they must start from zero in a new epoch (KIP-360)."""


class ProducerFenced(TransactionEvent):
    """The producer's epoch is not the newest epoch of its transactional id."""

    reason: str


class TransactionFailed(TransactionEvent):
    """A request failed, and neither another attempt nor a later transaction would succeed."""

    error: TailraceError


# ---- coordinators and reports ----------------------------------------------------------------------------------------


CoordinatorRequest: TypeAlias = SendInit | SendAddPartitions | SendAddOffsets | SendOffsets | SendEnd
"""Request to a coordinator; its outcome is reported as an event."""


class LookUpCoordinator(Value):
    """Look up a coordinator again before the next request to it."""

    request: CoordinatorRequest
    """Failed request, which determines the coordinator: that of the group, or that of transactions."""
    reason: str


class ReportError(Value):
    """Raise an error from the call in progress."""

    error: TailraceError


Effect: TypeAlias = (
    CoordinatorRequest | AdmitPartitions | DeliverRecords | DiscardRecords | LookUpCoordinator | ReportError
)


# ---- errors of the transactional producer; ``last_error`` is the reason why the last request has failed --------------

DOUBT = "; it is not known whether the last commit has succeeded, because its request was not answered"


def timeout_error(last_error: str) -> PublishError:
    """Return the error of a transaction that was aborted because its requests were not answered in time."""
    return PublishError(
        "the transaction was aborted, because it was not completed in time - check that the brokers are reachable, or"
        f" raise max_block_ms; last error: {last_error}"
    )


def unknown_outcome_error(last_error: str) -> PublishError:
    """Return the error of a commit that was sent and not answered."""
    return PublishError(
        "the commit was sent and not answered in time, so it is not known whether it has succeeded"
        f" - call commit() again, or begin(), to find out; last error: {last_error}"
    )


def no_producer_id_error(last_error: str) -> PublishError:
    """Return the error of a call that got no producer id in time."""
    return PublishError(
        f"the brokers gave no producer id in time - check that they are reachable; last error: {last_error}"
    )


def abort_unanswered_error(last_error: str) -> PublishError:
    """Return the error of an abort that was not acknowledged in time."""
    return PublishError(
        "the abort was not acknowledged in time - call abort() again, or begin(), to complete it; last error:"
        f" {last_error}"
    )


def commit_canceled_error() -> PublishError:
    """Return the error of a transaction that was aborted because its commit was canceled before EndTxn was sent."""
    return PublishError("the transaction was aborted: its commit was canceled")


def user_aborted_error() -> PublishError:
    """Return the error of the records in a transaction that the user has aborted."""
    return PublishError("the transaction was aborted")


def transaction_over_error(cause: TailraceError) -> TailraceError:
    """Return the error of a call after the transaction was aborted by ``cause``; it has the type of ``cause``."""
    error = copy.copy(cause)
    error.args = (f"the transaction is over: {cause}",)
    return error


def fenced_error(settings: TransactionSettings, open_s: float | None, doubt: str, reason: str) -> ProducerFencedError:
    """Return the error of a fenced producer.

    Args:
        settings: settings of the producer.
        open_s: age of the transaction in seconds; None if the coordinator knows of none.
        doubt: ``DOUBT`` if a commit was sent and not answered; otherwise empty.
        reason: error of the broker.
    """
    limit_s = settings.transaction_timeout_s
    if open_s is not None and open_s >= limit_s:
        why = (
            f"the transaction took {open_s:.1f} s, and the broker aborts transactions that take longer than"
            f" {limit_s:g} s - raise transaction_timeout_ms, or do less in one transaction, and start a new producer"
        )
    else:
        why = (
            f"another process has the same transactional_id {settings.transactional_id!r} and fenced this producer"
            " - give each process a transactional_id of its own"
        )
    return ProducerFencedError(f"{why}{doubt} ({reason})")


# ---- request that a transactional producer waits for, and the time of its next attempt -------------------------------


class PendingRequest:
    """Attempts of the requests that a call of the user needs, such as ``commit()``, within the time limit of the call.

    One request is attempted at a time.

    Args:
        settings: settings of the producer.
        chance: returns a number in [0, 1) for jitter.

    Attributes:
        awaited: effect whose outcome is awaited; None if there is none.
        last_error: reason for which the last failed attempt has failed.
    """

    def __init__(self, settings: TransactionSettings, chance: Callable[[], float]) -> None:
        self._longest_s, self._chance = settings.request_timeout_s, chance
        self._backoff = Backoff(settings.retry_first_s, settings.retry_longest_s)
        self._soon = Backoff(settings.soon_s, settings.retry_longest_s)
        self._retry_at: float | None = None
        self._deadline = 0.0
        self._failures = 0
        self.awaited: Effect | None = None
        self.last_error = "no answer"

    def begin(self, within_s: float, now: float) -> None:
        """Begin a call with a time limit of ``within_s`` seconds."""
        self._deadline = now + within_s
        self._failures = 0

    def timeout_s(self, now: float) -> float | None:
        """Return the timeout of the next request in seconds.

        If the time limit of the call has passed, return None and make the timer due, which then ends the call.
        """
        left_s = min(self._longest_s, self._deadline - now)
        if left_s > 0:
            return left_s
        self._retry_at = now
        return None

    def note_success(self) -> None:
        """Await no outcome, because the request has succeeded, and reset the backoff."""
        self.awaited = None
        self._failures = 0

    def note_failure(self, event: TryAgain | CoordinatorMoved | Unanswered, now: float) -> None:
        """Schedule another attempt with exponential backoff."""
        self.awaited = None
        self.last_error = event.reason
        self._failures += 1
        backoff = self._soon if isinstance(event, TryAgain) and event.is_soon else self._backoff
        self._retry_at = now + backoff.pause_s(self._failures, self._chance())

    def forget(self) -> None:
        """Forget the awaited effect and the scheduled attempt."""
        self.awaited = self._retry_at = None

    @property
    def due_at(self) -> float | None:
        """Time of the next attempt, or of the call's time limit if it is earlier; None if no attempt is scheduled."""
        return None if self._retry_at is None else min(self._retry_at, self._deadline)

    def is_too_late(self, now: float) -> bool:
        """Return True if the time limit of the call has passed."""
        return now >= self._deadline


# ---- state machine of a transactional producer -----------------------------------------------------------------------


@dataclass(slots=True)
class _OpenTransaction:
    """Progress of one transaction, until its commit or abort is complete."""

    version: int = 1
    """Version of the transaction (KIP-890)."""
    new_partitions: tuple[TopicPartition, ...] = ()
    """Partitions that are not yet part of the transaction."""
    offsets: GroupOffsets | None = None
    are_records_settled: bool = False
    """True once every record is delivered (before a commit) or discarded (before an abort)."""
    are_offsets_added: bool = False
    are_offsets_stored: bool = False
    known_at: float | None = None
    """Time of the first request that may have told the coordinator of the transaction; None before."""
    is_acknowledged: bool = False
    """True if the coordinator has acknowledged the transaction."""
    is_end_sent: bool = False
    """True once EndTxn was sent."""
    is_end_repeated: bool = False
    """True once EndTxn was sent again, because the first attempt was not answered, or its answer was not final."""
    cause: TailraceError | None = None
    """Cause of the abort, to report when the abort is complete; None if the user asked for the abort."""


class TransactionMachine(StateMachine[ProducerState, TransactionEvent, Effect]):
    """Transactional producer, driven by one coroutine at a time.

    Args:
        settings: settings of the producer.
        chance: returns a number in [0, 1) for jitter.

    Attributes:
        producer: producer id and epoch.
        version: version of the next transaction; an open transaction keeps the version with which it has begun.
        error: cause of the final state; None in all other states.
        aborted_by: cause of the last abort; None if the user asked for it, or if a transaction has begun since.
        has_timed_out: True if the producer was fenced when its transaction was older than the transaction timeout, so
            that the broker may have aborted the transaction and fenced the producer itself.
    """

    def __init__(self, settings: TransactionSettings, chance: Callable[[], float]) -> None:
        super().__init__(TABLE, ProducerState.UNINITIALIZED)
        self._settings = settings
        self._pending = PendingRequest(settings, chance)
        self._needs_new_epoch = False
        self._has_used_epoch = False
        """True if a transaction of version 1 has begun in the current epoch."""
        self._transaction = _OpenTransaction()
        self.producer = ProducerId()
        self.version = 1
        self.error: TailraceError | None = None
        self.aborted_by: TailraceError | None = None
        self.has_timed_out = False

    def __repr__(self) -> str:
        return f"<TransactionMachine {self._settings.transactional_id} {self.state} {tuple(self.producer)}>"

    @property
    def is_in_doubt(self) -> bool:
        """True if EndTxn with a commit was sent and not answered."""
        return self.state is ProducerState.COMMITTING and self._transaction.is_end_sent

    def allows(self, event: type[TransactionEvent]) -> bool:
        """Return True if ``receive`` accepts events of this type in the current state."""
        return self.is_over or (self.state, event) in TABLE

    def handle_timer(self, now: float) -> None:
        """Make a scheduled attempt that is due; give up instead if the time limit of the call has passed."""
        due_at = self._pending.due_at
        if due_at is None or now < due_at:
            return
        self._pending.forget()
        if self._pending.is_too_late(now):
            self.receive(CallTimedOut(), now)
        else:
            self._proceed(self.state, now)

    def next_deadline(self) -> float | None:
        """Return the time at which ``handle_timer`` must be called; None while no attempt is scheduled."""
        return self._pending.due_at

    # ---- steps -------------------------------------------------------------------------------------------------

    def resume(self, event: CompletePendingWork | CommitTransaction | AbortTransaction, now: float) -> None:
        """Continue work that an earlier call has left, within the time limit of the event."""
        self._resume(self.state, event.within_s, now)

    def choose_version(self, event: ChooseVersion, now: float) -> ProducerState | None:
        """Set the version of the next transaction; request another epoch after transactions of version 1."""
        self.version = event.version
        if event.version == 1 or not self._has_used_epoch:
            return None
        self._resume(ProducerState.UNINITIALIZED, event.within_s, now)
        return ProducerState.UNINITIALIZED

    def adopt(self, event: ProducerIdReceived, _now: float) -> None:
        """Use the new producer id and epoch."""
        self._pending.note_success()
        self._use(event.producer)

    def begin(self, _event: BeginTransaction, _now: float) -> None:
        """Begin a transaction without a request; the coordinator learns of it with the first partition."""
        self.aborted_by = None
        self._transaction = _OpenTransaction(self.version)
        self._has_used_epoch |= self.version == 1

    def add(self, event: AddPartitions, now: float) -> None:
        """Add partitions to the transaction, within the time limit of the event."""
        self._transaction.new_partitions = event.partitions
        self._resume(self.state, event.within_s, now)

    def add_at_commit(self, event: AddPartitions, now: float) -> None:
        """Add partitions to the transaction during its commit, within the time limit of the commit."""
        self._transaction.new_partitions = event.partitions
        self._continue(now)

    def commit(self, event: CommitTransaction, now: float) -> None:
        """Deliver the remaining records, store the offsets, and send EndTxn."""
        self._transaction.offsets = event.offsets
        self._resume(ProducerState.COMMITTING, event.within_s, now)

    def abort(self, event: AbortTransaction, now: float) -> None:
        """Abort the transaction, as the user asked."""
        self._abort(None, event.within_s, now)

    def abort_for(self, event: MustAbort, now: float) -> None:
        """Abort the transaction, and report the error when the abort is complete."""
        self._pending.note_success()
        self._needs_new_epoch |= event.needs_new_epoch
        self._abort(event.error, self._settings.abort_s, now)

    def continue_with_partitions(self, _event: PartitionsAdded, now: float) -> None:
        """Continue after the new partitions have become part of the transaction, or may become so (version 2)."""
        self._transaction.new_partitions = ()
        self._transaction.is_acknowledged |= self._transaction.version == 1
        self._continue(now)

    def finish_records(self, event: RecordsSettled, now: float) -> ProducerState | None:
        """Store the offsets or send EndTxn; end without a request if the coordinator cannot know the transaction."""
        self._transaction.are_records_settled = True
        self._needs_new_epoch |= event.needs_new_epoch
        return self._end_or_continue(now)

    def store_offsets(self, _event: OffsetsAdded, now: float) -> None:
        """Store the offsets, after the group has become part of the transaction."""
        self._transaction.are_offsets_added = self._transaction.is_acknowledged = True
        self._continue(now)

    def send_end(self, _event: OffsetsStored, now: float) -> None:
        """Send EndTxn, after the offsets were stored."""
        self._transaction.are_offsets_stored = True
        self._continue(now)

    def resend_offsets(self, event: GenerationRefused, now: float) -> ProducerState | None:
        """Send the offsets again with the current generation; abort if the member no longer owns their partitions."""
        offsets = self._transaction.offsets
        if event.current is None or offsets is None:
            self.abort_for(MustAbort(event.error), now)
            return ProducerState.ABORTING
        if event.current == offsets.identity:
            # The response to JoinGroup or a heartbeat, which contains the newer generation, has not arrived yet.
            self._pending.note_failure(TryAgain(str(event.error), is_soon=True), now)
            return None
        self._transaction.offsets = replace(offsets, identity=event.current)
        self._continue(now)
        return None

    def end(self, event: TransactionEnded, _now: float) -> ProducerState:
        """Finish the transaction, and use the epoch of the answer, which fences all requests of this transaction."""
        if event.producer.id >= 0:
            self._use(event.producer)
        return self._end()

    def end_if_unknown(self, event: NoOpenTransaction, now: float) -> ProducerState:
        """Finish the abort of a transaction that the coordinator never acknowledged; otherwise stop."""
        if self.state is ProducerState.ABORTING and not self._transaction.is_acknowledged:
            self._needs_new_epoch |= self._transaction.version > 1
            return self._end()
        if self._transaction.version > 1 and self._is_older_than_timeout(now):
            # The broker has aborted the transaction, and accepts the epoch before the current one for an abort only.
            self.fence(ProducerFenced(str(event.error)), now)
            return ProducerState.FENCED
        return self.fail(event, now)

    def renew_epoch(self, event: MustAbort, now: float) -> ProducerState:
        """Finish the abort, and require a new epoch, if the broker has forgotten the producer; otherwise stop."""
        if not event.needs_new_epoch:
            return self.fail(event, now)
        self._needs_new_epoch = True
        return self._end()

    def try_later(self, event: TryAgain | CoordinatorMoved | Unanswered, now: float) -> None:
        """Schedule another attempt with exponential backoff; look the coordinator up again if it may have moved."""
        awaited = self._pending.awaited
        if isinstance(event, CoordinatorMoved | Unanswered) and isinstance(awaited, CoordinatorRequest):
            self._effects.append(LookUpCoordinator(awaited, event.reason))
        self._needs_new_epoch |= isinstance(event, Unanswered)
        self._pending.note_failure(event, now)

    def give_up(self, _event: CallTimedOut, now: float) -> ProducerState | None:
        """Abort the transaction if its commit was not sent; in all other cases, keep the state and report an error."""
        last_error = self._pending.last_error
        match self.state:
            case ProducerState.IN_TRANSACTION | ProducerState.COMMITTING if not self.is_in_doubt:
                self._abort(timeout_error(last_error), self._settings.abort_s, now)
                return ProducerState.ABORTING
            case ProducerState.COMMITTING:
                self._effects.append(ReportError(unknown_outcome_error(last_error)))
            case state:
                is_start = state is ProducerState.UNINITIALIZED
                new_error = no_producer_id_error if is_start else abort_unanswered_error
                cause, self._transaction.cause = self._transaction.cause, None
                self._effects.append(ReportError(cause or new_error(last_error)))
        return None

    def interrupt(self, _event: CallCanceled, _now: float) -> ProducerState | None:
        """Forget the effect in progress, which the next call repeats; abort if a commit has not sent EndTxn yet."""
        self._needs_new_epoch |= self._pending.awaited is not None
        self._pending.forget()
        self._effects.clear()
        self._transaction.cause = None
        if self.state is not ProducerState.COMMITTING or self._transaction.is_end_sent:
            return None
        self._transaction.are_records_settled = False
        self.aborted_by = commit_canceled_error()
        return ProducerState.ABORTING

    def fence(self, event: ProducerFenced, now: float) -> None:
        """Stop, because another producer has this transactional id, or the broker has aborted the transaction."""
        # In answer to InitProducerId, no transaction is open.
        open_s = None if self.state is ProducerState.UNINITIALIZED else self._open_s(now)
        self.has_timed_out = open_s is not None and open_s >= self._settings.transaction_timeout_s
        # This is an answer: without an earlier attempt, it says that the transaction is not committed.
        doubt = self._doubt if self._transaction.is_end_repeated else ""
        self._stop(fenced_error(self._settings, open_s, doubt, event.reason))

    def fail(self, event: TransactionFailed | MustAbort | NoOpenTransaction, _now: float) -> ProducerState:
        """Stop, because the request would fail again."""
        self._stop(PublishError(f"{event.error}{self._doubt}") if self._doubt else event.error)
        return ProducerState.FAILED

    # ---- effects -----------------------------------------------------------------------------------------------

    def _resume(self, state: ProducerState, within_s: float, now: float) -> None:
        self._pending.begin(within_s, now)
        self._proceed(state, now)

    def _continue(self, now: float) -> None:
        self._pending.note_success()
        self._proceed(self.state, now)

    def _proceed(self, state: ProducerState, now: float) -> None:
        """Append the next effect of ``state``, if there is one and the time limit of the call has not passed."""
        timeout_s = self._pending.timeout_s(now)
        if timeout_s is not None and (effect := self._next_effect(state, timeout_s)) is not None:
            if isinstance(effect, _FIRST_EFFECTS) and self._transaction.known_at is None:
                self._transaction.known_at = now
            if isinstance(effect, SendEnd):
                self._transaction.is_end_repeated |= self._transaction.is_end_sent
                self._transaction.is_end_sent = True
            self._pending.awaited = effect
            self._effects.append(effect)

    def _next_effect(self, state: ProducerState, timeout_s: float) -> Effect | None:
        transaction = self._transaction
        match state:
            case ProducerState.UNINITIALIZED:
                return SendInit(self.producer, timeout_s)
            case ProducerState.ABORTING if not transaction.are_records_settled:
                # The other half of the time is for EndTxn.
                return DiscardRecords(timeout_s / 2)
            case ProducerState.ABORTING:
                return SendEnd(self.producer, is_commit=False, timeout_s=timeout_s, version=transaction.version)
            case _ if transaction.new_partitions:
                admit, new = AdmitPartitions(transaction.new_partitions), transaction.new_partitions
                return admit if transaction.version > 1 else SendAddPartitions(self.producer, new, timeout_s)
            case ProducerState.COMMITTING:
                return self._next_commit_effect(timeout_s)
            case _:
                return None

    def _next_commit_effect(self, timeout_s: float) -> Effect:
        transaction = self._transaction
        if not transaction.are_records_settled:
            return DeliverRecords(timeout_s)
        if transaction.offsets is not None and not transaction.are_offsets_added and transaction.version == 1:
            return SendAddOffsets(self.producer, transaction.offsets.group_id, timeout_s)
        if transaction.offsets is not None and not transaction.are_offsets_stored:
            return SendOffsets(self.producer, transaction.offsets, timeout_s, transaction.version)
        return SendEnd(self.producer, is_commit=True, timeout_s=timeout_s, version=transaction.version)

    def _abort(self, error: TailraceError | None, within_s: float, now: float) -> None:
        self.aborted_by = self._transaction.cause = error
        self._transaction.are_records_settled = False
        self._pending.forget()
        self._resume(ProducerState.ABORTING, within_s, now)

    def _end_or_continue(self, now: float) -> ProducerState | None:
        transaction = self._transaction
        if transaction.known_at is None and (transaction.offsets is None or self.state is ProducerState.ABORTING):
            return self._end()
        self._continue(now)
        return None

    def _end(self) -> ProducerState:
        self._pending.note_success()
        if (cause := self._transaction.cause) is not None:
            self._effects.append(ReportError(cause))
        return ProducerState.UNINITIALIZED if self._needs_new_epoch else ProducerState.READY

    def _use(self, producer: ProducerId) -> None:
        self.producer = producer
        self._needs_new_epoch = self._has_used_epoch = False

    def _open_s(self, now: float) -> float | None:
        """Return the age of the transaction; None if the coordinator cannot know of it."""
        known_at = self._transaction.known_at
        return None if known_at is None else now - known_at

    def _is_older_than_timeout(self, now: float) -> bool:
        open_s = self._open_s(now)
        return open_s is not None and open_s >= self._settings.transaction_timeout_s

    def _stop(self, error: TailraceError) -> None:
        self._pending.forget()
        self.error = error
        self._effects.append(ReportError(error))

    @property
    def _doubt(self) -> str:
        return DOUBT if self.is_in_doubt else ""


_FIRST_EFFECTS = (SendAddPartitions, SendAddOffsets, AdmitPartitions, SendOffsets)
"""Effects with which the coordinator may learn of a transaction."""


def _rows() -> Iterator[Row[Any, ProducerState, Any]]:
    on, do = ProducerState, TransactionMachine
    ended = (on.READY, on.UNINITIALIZED)

    # The producer id.
    yield Row((on.UNINITIALIZED,), CompletePendingWork, do.resume)
    yield Row((on.UNINITIALIZED,), ProducerIdReceived, do.adopt, on.READY)
    yield Row((on.READY,), ChooseVersion, do.choose_version, None, (on.UNINITIALIZED,))
    # A transaction.
    yield Row((on.READY,), BeginTransaction, do.begin, on.IN_TRANSACTION)
    yield Row((on.IN_TRANSACTION,), AddPartitions, do.add)
    yield Row((on.COMMITTING,), AddPartitions, do.add_at_commit)
    yield Row(OPEN, PartitionsAdded, do.continue_with_partitions)
    # The end of a transaction.
    yield Row((on.IN_TRANSACTION,), CommitTransaction, do.commit, on.COMMITTING)
    yield Row(ENDING, RecordsSettled, do.finish_records, None, ended)
    yield Row((on.COMMITTING,), OffsetsAdded, do.store_offsets)
    yield Row((on.COMMITTING,), OffsetsStored, do.send_end)
    yield Row((on.COMMITTING,), GenerationRefused, do.resend_offsets, None, (on.ABORTING,))
    yield Row((on.IN_TRANSACTION,), AbortTransaction, do.abort, on.ABORTING)
    yield Row(OPEN, MustAbort, do.abort_for, on.ABORTING)
    yield Row(ENDING, TransactionEnded, do.end, on.READY, (on.UNINITIALIZED,))
    yield Row((on.COMMITTING,), NoOpenTransaction, do.end_if_unknown, on.FAILED, (on.FENCED,))
    yield Row((on.ABORTING,), NoOpenTransaction, do.end_if_unknown, on.FAILED, (*ended, on.FENCED))
    yield Row((on.ABORTING,), MustAbort, do.renew_epoch, on.UNINITIALIZED, (on.FAILED,))
    # Unfinished work.
    yield Row(ENDING, CompletePendingWork, do.resume)
    yield Row((on.COMMITTING,), CommitTransaction, do.resume)
    yield Row((on.ABORTING,), AbortTransaction, do.resume)
    yield Row((on.READY,), CompletePendingWork, do.ignore)
    yield Row((on.UNINITIALIZED, on.READY), AbortTransaction, do.ignore)
    # Errors.
    yield Row(REQUESTING, (TryAgain, CoordinatorMoved, Unanswered), do.try_later)
    yield Row(REQUESTING, CallTimedOut, do.give_up, None, (on.ABORTING,))
    yield Row((*REQUESTING, on.READY), CallCanceled, do.interrupt, None, (on.ABORTING,))
    yield Row(REQUESTING, ProducerFenced, do.fence, on.FENCED)
    yield Row(REQUESTING, TransactionFailed, do.fail, on.FAILED)
    yield Row((on.UNINITIALIZED,), MustAbort, do.fail, on.FAILED)


TABLE = TransitionTable(_rows(), OVER)
"""Every transition of a transactional producer."""
