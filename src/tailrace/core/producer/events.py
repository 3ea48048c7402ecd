"""What a transactional member is told and what it wants done.

Rule of this file: events go in, effects come out, and both are plain values, as in ``core.group.membership``.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple, TypeAlias

from tailrace.core.group.membership import Identity
from tailrace.errors import TailraceError
from tailrace.protocol.committed_offsets import CommitOffset
from tailrace.records import TopicPartition

__all__ = [
    "AbortTransaction",
    "BatchesAnswered",
    "BeginTransaction",
    "CommitTransaction",
    "Effect",
    "EmitTransactionEvent",
    "Ended",
    "Fenced",
    "Filled",
    "Flush",
    "GroupOffsets",
    "Interrupted",
    "LookUpAgain",
    "Moved",
    "MustAbort",
    "NoTransaction",
    "OffsetsAdded",
    "OffsetsStored",
    "PartitionsAdded",
    "ProducerBatch",
    "ProducerId",
    "ProducerIdGiven",
    "Question",
    "SendAddOffsets",
    "SendAddPartitions",
    "SendBatches",
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
    """Who writes, as the broker knows it; whoever comes later under the same transactional id has a higher epoch."""

    id: int = -1
    epoch: int = -1


class ProducerBatch(NamedTuple):
    """One batch of records, and its place in what this producer writes to its partition."""

    partition: TopicPartition
    sequence: int
    records: int


@dataclass(frozen=True, slots=True)
class GroupOffsets:
    """What a group has done, to be committed with the transaction, as that member of it (KIP-447)."""

    group_id: str
    identity: Identity
    offsets: tuple[CommitOffset, ...]


@dataclass(frozen=True, slots=True)
class TransactionSettings:
    """What the options say to a transactional member; times in seconds."""

    transactional_id: str
    transaction_timeout_s: float
    """The broker aborts a transaction that takes longer."""
    request_timeout_s: float
    abort_s: float
    """How long an abort that nobody asked for may take."""
    retry_first_s: float
    retry_longest_s: float
    soon_s: float = 0.005
    """The first pause while the broker still writes the end of the transaction before."""


# ---- events: what has happened ---------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class TransactionEvent:
    """The root of what a transactional member is told."""


@dataclass(frozen=True, slots=True)
class Settle(TransactionEvent):
    """Finish what is unfinished, so that a transaction may begin."""

    within_s: float


@dataclass(frozen=True, slots=True)
class BeginTransaction(TransactionEvent):
    """The user begins a transaction."""


@dataclass(frozen=True, slots=True)
class Filled(TransactionEvent):
    """A batch for a partition is full, or is to go as it is."""

    partition: TopicPartition
    records: int


@dataclass(frozen=True, slots=True)
class Flush(TransactionEvent):
    """Write what was filled."""

    within_s: float


@dataclass(frozen=True, slots=True)
class CommitTransaction(TransactionEvent):
    """Write what was filled, store the offsets, and make it all visible at once."""

    offsets: GroupOffsets | None
    within_s: float


@dataclass(frozen=True, slots=True)
class AbortTransaction(TransactionEvent):
    """Take it all back."""

    within_s: float


@dataclass(frozen=True, slots=True)
class ProducerIdGiven(TransactionEvent):
    """Everybody who had the transactional id before is fenced."""

    producer: ProducerId


@dataclass(frozen=True, slots=True)
class PartitionsAdded(TransactionEvent):
    """The coordinator knows that the transaction writes to them."""

    partitions: frozenset[TopicPartition]


@dataclass(frozen=True, slots=True)
class BatchesAnswered(TransactionEvent):
    """Some of the batches are written, and of the others this is known."""

    written: frozenset[TopicPartition]
    troubles: tuple[TransactionEvent, ...] = ()


@dataclass(frozen=True, slots=True)
class OffsetsAdded(TransactionEvent):
    """The coordinator knows that the transaction stores offsets of a group."""


@dataclass(frozen=True, slots=True)
class OffsetsStored(TransactionEvent):
    """The group has the offsets, and will show them when the transaction is committed."""


@dataclass(frozen=True, slots=True)
class Ended(TransactionEvent):
    """The coordinator has written down how the transaction ends; nothing changes that any more."""


@dataclass(frozen=True, slots=True)
class TryAgain(TransactionEvent):
    """It could not be done now."""

    reason: str
    is_soon: bool = False
    """Whether it will be possible in a moment: the end of the transaction before is being written."""


@dataclass(frozen=True, slots=True)
class Moved(TransactionEvent):
    """Somebody else is in charge, coordinator or leader; nothing was done."""

    reason: str


@dataclass(frozen=True, slots=True)
class Unanswered(TransactionEvent):
    """It may have been done, or may yet be."""

    reason: str


@dataclass(frozen=True, slots=True)
class MustAbort(TransactionEvent):
    """This transaction cannot be committed; the next one may."""

    error: TailraceError
    needs_new_epoch: bool = False
    """Whether the broker lost track of our sequences, which a new epoch begins anew (KIP-360)."""


@dataclass(frozen=True, slots=True)
class NoTransaction(TransactionEvent):
    """To the coordinator there is nothing to end; if it never heard of the transaction, that is as it should be."""

    error: TailraceError


@dataclass(frozen=True, slots=True)
class Fenced(TransactionEvent):
    """The epoch is not the newest of its transactional id any more."""

    reason: str


@dataclass(frozen=True, slots=True)
class TransactionFailed(TransactionEvent):
    """No other try would help, nor another transaction."""

    error: TailraceError


@dataclass(frozen=True, slots=True)
class TimeOver(TransactionEvent):
    """What the user asked for took too long; the member tells itself so."""


@dataclass(frozen=True, slots=True)
class Interrupted(TransactionEvent):
    """Whoever waited for the effect under way was cancelled: its outcome will never be told."""


# ---- effects: what is to be done -------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class SendInit:
    """Ask for a producer id, or with one for its next epoch."""

    producer: ProducerId
    timeout_s: float


@dataclass(frozen=True, slots=True)
class SendAddPartitions:
    """Say which partitions the transaction will write to."""

    producer: ProducerId
    partitions: tuple[TopicPartition, ...]
    timeout_s: float


@dataclass(frozen=True, slots=True)
class SendBatches:
    """Write one batch to each of several partitions."""

    producer: ProducerId
    batches: tuple[ProducerBatch, ...]
    timeout_s: float


@dataclass(frozen=True, slots=True)
class SendAddOffsets:
    """Say that the transaction will store offsets of a group."""

    producer: ProducerId
    group_id: str
    timeout_s: float


@dataclass(frozen=True, slots=True)
class SendOffsets:
    """Store a group's offsets."""

    producer: ProducerId
    offsets: GroupOffsets
    timeout_s: float


@dataclass(frozen=True, slots=True)
class SendEnd:
    """Say how the transaction ends."""

    producer: ProducerId
    is_commit: bool
    timeout_s: float


Question: TypeAlias = SendInit | SendAddPartitions | SendBatches | SendAddOffsets | SendOffsets | SendEnd
"""What is answered with an event."""


@dataclass(frozen=True, slots=True)
class LookUpAgain:
    """Find out anew who is in charge of what was asked."""

    asked: Question
    reason: str


@dataclass(frozen=True, slots=True)
class EmitTransactionEvent:
    """Have the user's call raise this."""

    error: TailraceError


Effect: TypeAlias = Question | LookUpAgain | EmitTransactionEvent
