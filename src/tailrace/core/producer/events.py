"""Events and effects of a transactional producer, as plain values."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple, TypeAlias

from tailrace.core.group.membership import Identity
from tailrace.errors import TailraceError
from tailrace.protocol.committed_offsets import CommitOffset
from tailrace.records import TopicPartition

__all__ = [
    "AbortTransaction",
    "AddPartitions",
    "BeginTransaction",
    "CommitTransaction",
    "DeliverRecords",
    "DiscardRecords",
    "Effect",
    "Ended",
    "Fenced",
    "GenerationRefused",
    "GroupOffsets",
    "Interrupted",
    "LookUpAgain",
    "Moved",
    "MustAbort",
    "NoTransaction",
    "OffsetsAdded",
    "OffsetsStored",
    "PartitionsAdded",
    "ProducerId",
    "ProducerIdGiven",
    "Question",
    "RecordsDelivered",
    "RecordsDiscarded",
    "ReportError",
    "SendAddOffsets",
    "SendAddPartitions",
    "SendEnd",
    "SendInit",
    "SendOffsets",
    "Settle",
    "TimeOver",
    "TransactionEvent",
    "TransactionFailed",
    "TransactionSettings",
    "TryAgain",
    "Unanswered",
]


class ProducerId(NamedTuple):
    """Producer id and epoch; brokers refuse requests with an older epoch of the same id."""

    id: int = -1
    epoch: int = -1


@dataclass(frozen=True, slots=True)
class GroupOffsets:
    """Offsets of a group to be committed with the transaction, and the member that commits them (KIP-447)."""

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
    abort_s: float
    """Time limit of an abort that the user did not request."""
    retry_first_s: float
    retry_longest_s: float
    soon_s: float = 0.005
    """First pause while the broker still writes the end of the previous transaction."""


# ---- events ----------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class TransactionEvent:
    """Base class of events."""


@dataclass(frozen=True, slots=True)
class Settle(TransactionEvent):
    """A call waits until work left from the previous transaction is complete, before a new one begins."""

    within_s: float


@dataclass(frozen=True, slots=True)
class BeginTransaction(TransactionEvent):
    """The user begins a transaction."""


@dataclass(frozen=True, slots=True)
class AddPartitions(TransactionEvent):
    """Records wait because their partitions are not yet part of the transaction."""

    partitions: tuple[TopicPartition, ...]
    within_s: float


@dataclass(frozen=True, slots=True)
class CommitTransaction(TransactionEvent):
    """The user commits the transaction."""

    offsets: GroupOffsets | None
    within_s: float


@dataclass(frozen=True, slots=True)
class AbortTransaction(TransactionEvent):
    """The user aborts the transaction."""

    within_s: float


@dataclass(frozen=True, slots=True)
class ProducerIdGiven(TransactionEvent):
    """InitProducerId succeeded; every earlier producer with the transactional id is fenced."""

    producer: ProducerId


@dataclass(frozen=True, slots=True)
class PartitionsAdded(TransactionEvent):
    """AddPartitionsToTxn succeeded."""


@dataclass(frozen=True, slots=True)
class RecordsDelivered(TransactionEvent):
    """All records of the transaction are stored."""

    needs_new_epoch: bool
    """True if an unanswered request may still bring a second copy of a batch that is already stored."""


@dataclass(frozen=True, slots=True)
class RecordsDiscarded(TransactionEvent):
    """No record of the transaction is queued or in flight any more."""

    needs_new_epoch: bool
    """True if a sequence has a gap, or a batch may still arrive."""


@dataclass(frozen=True, slots=True)
class OffsetsAdded(TransactionEvent):
    """AddOffsetsToTxn succeeded."""


@dataclass(frozen=True, slots=True)
class OffsetsStored(TransactionEvent):
    """TxnOffsetCommit succeeded; the offsets become visible with the commit."""


@dataclass(frozen=True, slots=True)
class Ended(TransactionEvent):
    """EndTxn succeeded; the outcome of the transaction is decided."""


@dataclass(frozen=True, slots=True)
class TryAgain(TransactionEvent):
    """The request failed for a temporary reason."""

    reason: str
    is_soon: bool = False
    """True if the request will succeed in a moment, when the end of the previous transaction is written."""


@dataclass(frozen=True, slots=True)
class Moved(TransactionEvent):
    """The coordinator has to be looked up again; the request had no effect."""

    reason: str


@dataclass(frozen=True, slots=True)
class Unanswered(TransactionEvent):
    """The request got no answer; it may have taken effect, or may still take effect."""

    reason: str


@dataclass(frozen=True, slots=True)
class MustAbort(TransactionEvent):
    """The transaction cannot be committed, but the next transaction may be."""

    error: TailraceError
    needs_new_epoch: bool = False
    """True if the broker has lost the sequence numbers, so that they must start from zero in a new epoch (KIP-360)."""


@dataclass(frozen=True, slots=True)
class GenerationRefused(TransactionEvent):
    """The offsets were sent with an old generation, or member epoch, of the group."""

    error: TailraceError
    current: Identity | None = None
    """Current identity of this member; None if the member no longer owns all partitions of the offsets."""


@dataclass(frozen=True, slots=True)
class NoTransaction(TransactionEvent):
    """The coordinator knows no open transaction to end."""

    error: TailraceError


@dataclass(frozen=True, slots=True)
class Fenced(TransactionEvent):
    """The producer's epoch is not the newest epoch of its transactional id."""

    reason: str


@dataclass(frozen=True, slots=True)
class TransactionFailed(TransactionEvent):
    """Neither another attempt nor another transaction would succeed."""

    error: TailraceError


@dataclass(frozen=True, slots=True)
class TimeOver(TransactionEvent):
    """The time of the call is over."""


@dataclass(frozen=True, slots=True)
class Interrupted(TransactionEvent):
    """The call was canceled: the outcome of the effect in progress will not be reported."""


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
    """Wait until all records are stored; if they cannot be stored, another event ends the wait early."""

    timeout_s: float


@dataclass(frozen=True, slots=True)
class DiscardRecords:
    """Drop queued records and wait for the records in flight."""

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


Question: TypeAlias = SendInit | SendAddPartitions | SendAddOffsets | SendOffsets | SendEnd
"""Request to a coordinator; its outcome is an event."""


@dataclass(frozen=True, slots=True)
class LookUpAgain:
    """Look up the coordinator again before the next request of this kind."""

    asked: Question
    reason: str


@dataclass(frozen=True, slots=True)
class ReportError:
    """Raise an error from the call in progress."""

    error: TailraceError


Effect: TypeAlias = Question | DeliverRecords | DiscardRecords | LookUpAgain | ReportError
