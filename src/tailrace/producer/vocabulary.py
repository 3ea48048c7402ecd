"""Events and effects of the state machine of a transactional producer, as plain values.

Pure: no clock, IO or logging.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import NamedTuple, TypeAlias

from tailrace.core.group_requests import Identity
from tailrace.errors import TailraceError
from tailrace.protocol.groups import CommitOffset
from tailrace.records import TopicPartition

__all__ = [
    "ENDING",
    "OPEN",
    "OVER",
    "REQUESTING",
    "AbortTransaction",
    "AddPartitions",
    "BeginTransaction",
    "CallCanceled",
    "CallTimedOut",
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
    "ProducerFenced",
    "ProducerId",
    "ProducerIdReceived",
    "ProducerState",
    "RecordsDelivered",
    "RecordsDiscarded",
    "ReportError",
    "SendAddOffsets",
    "SendAddPartitions",
    "SendEnd",
    "SendInit",
    "SendOffsets",
    "TransactionEnded",
    "TransactionEvent",
    "TransactionFailed",
    "TransactionSettings",
    "TryAgain",
    "Unanswered",
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


# ---- events and effects of the state machine of a transactional producer, as plain values ----------------------------


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


# ---- events ----------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class TransactionEvent:
    """Base class of events.

    In the events that begin a call, ``within_s`` is the time limit of the call in seconds.
    """


@dataclass(frozen=True, slots=True)
class CompletePendingWork(TransactionEvent):
    """A call requests what is missing before a transaction can begin: a producer id, or the previous one's end."""

    within_s: float


@dataclass(frozen=True, slots=True)
class BeginTransaction(TransactionEvent):
    """The user begins a transaction."""


@dataclass(frozen=True, slots=True)
class AddPartitions(TransactionEvent):
    """Records wait for their partitions to become part of the transaction."""

    partitions: tuple[TopicPartition, ...]
    within_s: float


@dataclass(frozen=True, slots=True)
class CommitTransaction(TransactionEvent):
    """The user commits the transaction."""

    offsets: GroupOffsets | None
    """Offsets to commit with the transaction; None if there are none."""
    within_s: float


@dataclass(frozen=True, slots=True)
class AbortTransaction(TransactionEvent):
    """The user aborts the transaction."""

    within_s: float


@dataclass(frozen=True, slots=True)
class ProducerIdReceived(TransactionEvent):
    """InitProducerId succeeded; all earlier producers with the transactional id are fenced."""

    producer: ProducerId


@dataclass(frozen=True, slots=True)
class PartitionsAdded(TransactionEvent):
    """AddPartitionsToTxn succeeded."""


@dataclass(frozen=True, slots=True)
class RecordsDelivered(TransactionEvent):
    """All records of the transaction are stored."""

    needs_new_epoch: bool
    """True if an unanswered request may still reach the broker with a second copy of a stored batch."""


@dataclass(frozen=True, slots=True)
class RecordsDiscarded(TransactionEvent):
    """No record of the transaction is queued or in flight any more."""

    needs_new_epoch: bool
    """True if the sequence numbers of a partition have a gap, or a batch may still arrive at a broker."""


@dataclass(frozen=True, slots=True)
class OffsetsAdded(TransactionEvent):
    """AddOffsetsToTxn succeeded."""


@dataclass(frozen=True, slots=True)
class OffsetsStored(TransactionEvent):
    """TxnOffsetCommit succeeded; the offsets become visible with the commit."""


@dataclass(frozen=True, slots=True)
class TransactionEnded(TransactionEvent):
    """EndTxn succeeded: the transaction is committed or aborted."""


@dataclass(frozen=True, slots=True)
class TryAgain(TransactionEvent):
    """The effect failed for a temporary reason."""

    reason: str
    is_soon: bool = False
    """True if a retry is expected to succeed in a moment, as while the broker ends the previous transaction."""


@dataclass(frozen=True, slots=True)
class CoordinatorMoved(TransactionEvent):
    """The coordinator must be looked up again; the request had no effect."""

    reason: str


@dataclass(frozen=True, slots=True)
class Unanswered(TransactionEvent):
    """The request was not answered; it may have had an effect, or may still have one."""

    reason: str


@dataclass(frozen=True, slots=True)
class MustAbort(TransactionEvent):
    """The transaction cannot be committed, but a later transaction may be."""

    error: TailraceError
    needs_new_epoch: bool = False
    """True if the broker has lost the sequence numbers, so that they must start from zero in a new epoch (KIP-360)."""


@dataclass(frozen=True, slots=True)
class GenerationRefused(TransactionEvent):
    """The offsets were sent with an old generation, or member epoch, of the group."""

    error: TailraceError
    current: Identity | None = None
    """Current identity of this member; None if it no longer owns all partitions of the offsets."""


@dataclass(frozen=True, slots=True)
class NoOpenTransaction(TransactionEvent):
    """The coordinator answered EndTxn with an error: it knows no open transaction."""

    error: TailraceError


@dataclass(frozen=True, slots=True)
class ProducerFenced(TransactionEvent):
    """The producer's epoch is not the newest epoch of its transactional id."""

    reason: str


@dataclass(frozen=True, slots=True)
class TransactionFailed(TransactionEvent):
    """A request failed, and neither another attempt nor a later transaction would succeed."""

    error: TailraceError


@dataclass(frozen=True, slots=True)
class CallTimedOut(TransactionEvent):
    """The time limit of the call has passed."""


@dataclass(frozen=True, slots=True)
class CallCanceled(TransactionEvent):
    """The call was canceled, so the outcome of the effect in progress will not be reported."""


# ---- effects ---------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class SendInit:
    """Request a producer id, or the next epoch of ``producer`` (InitProducerId)."""

    producer: ProducerId
    timeout_s: float


@dataclass(frozen=True, slots=True)
class SendAddPartitions:
    """Add partitions to the transaction (AddPartitionsToTxn)."""

    producer: ProducerId
    partitions: tuple[TopicPartition, ...]
    timeout_s: float


@dataclass(frozen=True, slots=True)
class DeliverRecords:
    """Wait until all records are stored, a record has failed, or one needs a partition to be added."""

    timeout_s: float


@dataclass(frozen=True, slots=True)
class DiscardRecords:
    """Fail all records that are not stored, and wait for the requests in flight."""

    timeout_s: float


@dataclass(frozen=True, slots=True)
class SendAddOffsets:
    """Add a group's offsets to the transaction (AddOffsetsToTxn)."""

    producer: ProducerId
    group_id: str
    timeout_s: float


@dataclass(frozen=True, slots=True)
class SendOffsets:
    """Store a group's offsets in the transaction (TxnOffsetCommit)."""

    producer: ProducerId
    offsets: GroupOffsets
    timeout_s: float


@dataclass(frozen=True, slots=True)
class SendEnd:
    """End the transaction (EndTxn)."""

    producer: ProducerId
    is_commit: bool
    timeout_s: float


CoordinatorRequest: TypeAlias = SendInit | SendAddPartitions | SendAddOffsets | SendOffsets | SendEnd
"""Request to a coordinator; its outcome is reported as an event."""


@dataclass(frozen=True, slots=True)
class LookUpCoordinator:
    """Look up a coordinator again before the next request to it."""

    request: CoordinatorRequest
    """Failed request, which determines the coordinator: that of the group, or that of transactions."""
    reason: str


@dataclass(frozen=True, slots=True)
class ReportError:
    """Raise an error from the call in progress."""

    error: TailraceError


Effect: TypeAlias = CoordinatorRequest | DeliverRecords | DiscardRecords | LookUpCoordinator | ReportError
