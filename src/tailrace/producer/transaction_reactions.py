"""Reactions of a transactional producer to broker error codes. Pure: no clock, IO or logging.

A code that has no entry here and is not retriable aborts the transaction if it answers AddPartitionsToTxn or Produce,
since the next transaction may have other partitions. In answers to other requests, such a code stops the producer.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from enum import StrEnum

from tailrace.error_codes import ErrorCode, ReactionTable, name_of
from tailrace.errors import (
    CommitFailedError,
    FencedMemberError,
    PublishError,
    PublishTooLargeError,
    TailraceError,
    broker_error,
)
from tailrace.producer.transaction_machine import (
    CoordinatorMoved,
    GenerationRefused,
    MustAbort,
    NoOpenTransaction,
    ProducerFenced,
    TransactionEvent,
    TransactionFailed,
    TryAgain,
    Unanswered,
)

__all__ = [
    "REACTIONS",
    "TransactionReaction",
    "TransactionRequestKind",
    "error_of",
    "event_of",
    "worst_of",
]

# ---- reactions of a transactional producer to broker error codes -----------------------------------------------------


class TransactionRequestKind(StrEnum):
    """Kind of request of a transactional producer."""

    FIND = "FindCoordinator"
    INIT = "InitProducerId"
    ADD_PARTITIONS = "AddPartitionsToTxn"
    PRODUCE = "Produce"
    ADD_OFFSETS = "AddOffsetsToTxn"
    COMMIT_OFFSETS = "TxnOffsetCommit"
    END = "EndTxn"


class TransactionReaction(StrEnum):
    """Reaction to an error code; "stop" ends the producer for good."""

    RETRY_SOON = "send the request again in a moment"
    RETRY = "send the request again after a backoff"
    LOOK_UP = "look up the coordinator, then send the request again"
    RESEND_OFFSETS = "send the offsets again with the newer generation if their partitions are still owned, else abort"
    ABORT = "abort the transaction"
    ABORT_AND_RENEW = "abort the transaction, and use a new producer epoch"
    REPEAT = "look up the coordinator, then send the request again, because it may have had an effect"
    END_IF_UNKNOWN = "end the abort if the coordinator never acknowledged the transaction, else stop"
    FENCED = "stop, because a newer producer has the same transactional id"
    FAIL = "stop, and report the error"


_GENERAL: Mapping[int, TransactionReaction] = {
    ErrorCode.COORDINATOR_LOAD_IN_PROGRESS: TransactionReaction.RETRY,
    ErrorCode.COORDINATOR_NOT_AVAILABLE: TransactionReaction.LOOK_UP,
    ErrorCode.NOT_COORDINATOR: TransactionReaction.LOOK_UP,
    ErrorCode.REQUEST_TIMED_OUT: TransactionReaction.LOOK_UP,
    # The broker has not written the end of the previous transaction to all partitions yet.
    ErrorCode.CONCURRENT_TRANSACTIONS: TransactionReaction.RETRY_SOON,
    ErrorCode.INVALID_PRODUCER_EPOCH: TransactionReaction.FENCED,
    ErrorCode.PRODUCER_FENCED: TransactionReaction.FENCED,
    ErrorCode.INVALID_TXN_STATE: TransactionReaction.FAIL,
    ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED: TransactionReaction.FAIL,
    ErrorCode.CLUSTER_AUTHORIZATION_FAILED: TransactionReaction.FAIL,
    ErrorCode.UNSUPPORTED_VERSION: TransactionReaction.FAIL,
    ErrorCode.UNSUPPORTED_FOR_MESSAGE_FORMAT: TransactionReaction.FAIL,
    ErrorCode.TRANSACTION_ABORTABLE: TransactionReaction.ABORT,
    # Brokers forget a producer that has not written for days. A new epoch makes it known again (KIP-360).
    ErrorCode.UNKNOWN_PRODUCER_ID: TransactionReaction.ABORT_AND_RENEW,
    ErrorCode.INVALID_PRODUCER_ID_MAPPING: TransactionReaction.ABORT_AND_RENEW,
}

_BY_REQUEST: Mapping[TransactionRequestKind, Mapping[int, TransactionReaction]] = {
    TransactionRequestKind.FIND: {ErrorCode.GROUP_AUTHORIZATION_FAILED: TransactionReaction.ABORT},
    # No transaction is open, so ABORT is not possible.
    TransactionRequestKind.INIT: {
        ErrorCode.TRANSACTION_ABORTABLE: TransactionReaction.FAIL,
        ErrorCode.UNKNOWN_PRODUCER_ID: TransactionReaction.FAIL,
        ErrorCode.INVALID_PRODUCER_ID_MAPPING: TransactionReaction.FAIL,
    },
    # The broker returns this code for the valid partitions if it refuses another partition of the request.
    TransactionRequestKind.ADD_PARTITIONS: {ErrorCode.OPERATION_NOT_ATTEMPTED: TransactionReaction.RETRY},
    # Reactions if, according to `ProduceReaction`, the batch cannot be sent again unchanged.
    TransactionRequestKind.PRODUCE: {
        ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER: TransactionReaction.ABORT_AND_RENEW,
        # The leader has checked with the coordinator (KIP-890): the partition is not part of an open transaction.
        ErrorCode.INVALID_TXN_STATE: TransactionReaction.ABORT_AND_RENEW,
    },
    TransactionRequestKind.ADD_OFFSETS: {ErrorCode.GROUP_AUTHORIZATION_FAILED: TransactionReaction.ABORT},
    TransactionRequestKind.END: {
        ErrorCode.INVALID_TXN_STATE: TransactionReaction.END_IF_UNKNOWN,
        # The transaction may have ended or not. A coordinator answers a repeated EndTxn as it has answered the first.
        ErrorCode.UNKNOWN_SERVER_ERROR: TransactionReaction.REPEAT,
    },
    # The partitions are assigned to another member now, or the broker cannot store these offsets (KIP-447).
    TransactionRequestKind.COMMIT_OFFSETS: {
        # The member may have kept its partitions in a cooperative rebalance, or in a new member epoch (KIP-848).
        ErrorCode.ILLEGAL_GENERATION: TransactionReaction.RESEND_OFFSETS,
        ErrorCode.STALE_MEMBER_EPOCH: TransactionReaction.RESEND_OFFSETS,
        ErrorCode.UNKNOWN_MEMBER_ID: TransactionReaction.ABORT,
        ErrorCode.REBALANCE_IN_PROGRESS: TransactionReaction.ABORT,
        ErrorCode.FENCED_INSTANCE_ID: TransactionReaction.ABORT,
        ErrorCode.FENCED_MEMBER_EPOCH: TransactionReaction.ABORT,
        ErrorCode.GROUP_ID_NOT_FOUND: TransactionReaction.ABORT,
        ErrorCode.OFFSET_METADATA_TOO_LARGE: TransactionReaction.ABORT,
        ErrorCode.INVALID_COMMIT_OFFSET_SIZE: TransactionReaction.ABORT,
        ErrorCode.GROUP_AUTHORIZATION_FAILED: TransactionReaction.ABORT,
        ErrorCode.TOPIC_AUTHORIZATION_FAILED: TransactionReaction.ABORT,
    },
}

REACTIONS = ReactionTable(
    _GENERAL,
    TransactionReaction.RETRY,
    TransactionReaction.FAIL,
    _BY_REQUEST,
    {
        TransactionRequestKind.ADD_PARTITIONS: TransactionReaction.ABORT,
        TransactionRequestKind.PRODUCE: TransactionReaction.ABORT,
    },
)

_TOO_LARGE = frozenset({ErrorCode.MESSAGE_TOO_LARGE, ErrorCode.RECORD_LIST_TOO_LARGE})

_REBALANCED = frozenset(
    {
        ErrorCode.ILLEGAL_GENERATION,
        ErrorCode.UNKNOWN_MEMBER_ID,
        ErrorCode.REBALANCE_IN_PROGRESS,
        ErrorCode.FENCED_MEMBER_EPOCH,
        ErrorCode.STALE_MEMBER_EPOCH,
        ErrorCode.GROUP_ID_NOT_FOUND,
    }
)
"""Error codes that a broker returns if the group has rebalanced without this member."""


def event_of(  # noqa: C901, PLR0911 - one case for each reaction
    code: int, request: TransactionRequestKind, detail: str = ""
) -> TransactionEvent | None:
    """Return the event that an error code leads to; None if there is no error.

    Args:
        code: error code.
        request: kind of the request.
        detail: partition or group that the code is about, for messages.
    """
    if code == ErrorCode.NONE:
        return None
    message = f"{detail}: {request}: {name_of(code)}" if detail else f"{request}: {name_of(code)}"
    match REACTIONS.reaction_to(code, request):
        case TransactionReaction.RETRY_SOON:
            return TryAgain(message, is_soon=True)
        case TransactionReaction.RETRY:
            return TryAgain(message)
        case TransactionReaction.LOOK_UP:
            return CoordinatorMoved(message)
        case TransactionReaction.REPEAT:
            return Unanswered(message)
        case TransactionReaction.RESEND_OFFSETS:
            return GenerationRefused(error_of(code, request, detail))
        case TransactionReaction.ABORT:
            return MustAbort(error_of(code, request, detail))
        case TransactionReaction.ABORT_AND_RENEW:
            return MustAbort(error_of(code, request, detail), needs_new_epoch=True)
        case TransactionReaction.END_IF_UNKNOWN:
            return NoOpenTransaction(error_of(code, request, detail))
        case TransactionReaction.FENCED:
            return ProducerFenced(message)
        case TransactionReaction.FAIL:
            return TransactionFailed(error_of(code, request, detail))


def error_of(code: int, request: TransactionRequestKind, detail: str = "") -> TailraceError:
    """Return the error to raise for an error code; see ``event_of`` for the arguments."""
    if request is TransactionRequestKind.COMMIT_OFFSETS and code in _REBALANCED:
        return CommitFailedError(
            f"the transaction was aborted: the group has rebalanced without this member ({name_of(code)}, code {code})"
            " - its records are handled again by their new owners; if handling takes long, raise"
            " session_timeout_ms or max_poll_interval_ms"
        )
    if request is TransactionRequestKind.COMMIT_OFFSETS and code == ErrorCode.FENCED_INSTANCE_ID:
        return FencedMemberError(
            "the transaction was aborted: another member has joined with the same group_instance_id and fenced this one"
            f" ({name_of(code)}, code {code}) - give each process a group_instance_id of its own"
        )
    is_final = REACTIONS.reaction_to(code, request) in {TransactionReaction.FAIL, TransactionReaction.END_IF_UNKNOWN}
    outcome = "this producer cannot continue" if is_final else "the transaction was aborted"
    permission = "READ" if request is TransactionRequestKind.COMMIT_OFFSETS else "WRITE"
    refusal = broker_error(code, f"{detail or 'the transaction'}: {request} was refused", permission=permission)
    is_too_large = request is TransactionRequestKind.PRODUCE and code in _TOO_LARGE
    error_class = PublishTooLargeError if is_too_large else PublishError
    return error_class(f"{refusal} - {outcome}")


_BY_SEVERITY: tuple[type[TransactionEvent], ...] = (
    TryAgain,
    CoordinatorMoved,
    Unanswered,
    GenerationRefused,
    MustAbort,
    ProducerFenced,
    TransactionFailed,
)


def worst_of(failures: Iterable[TransactionEvent]) -> TransactionEvent | None:
    """Return the most severe of ``failures``, the events of partitions in one response; None if there are none."""
    return max(failures, key=lambda event: _BY_SEVERITY.index(type(event)), default=None)
