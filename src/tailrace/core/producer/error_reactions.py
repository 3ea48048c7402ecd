"""Reactions of a transactional producer to broker error codes.

A code that has no entry and is not retriable aborts the transaction if the request names partitions, since the
partitions of the next transaction may be valid. After any other request, such a code ends the producer.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from enum import StrEnum

from tailrace.core.error_reactions import ReactionTable
from tailrace.core.producer.events import (
    Fenced,
    GenerationRefused,
    Moved,
    MustAbort,
    NoTransaction,
    TransactionEvent,
    TransactionFailed,
    TryAgain,
    Unanswered,
)
from tailrace.error_codes import ErrorCode, name_of
from tailrace.errors import (
    CommitFailedError,
    FencedMemberError,
    PublishError,
    PublishTooLargeError,
    TailraceError,
    broker_error,
)

__all__ = ["REACTIONS", "TransactionReaction", "TransactionRequestKind", "error_of", "event_of", "worst_of"]


class TransactionRequestKind(StrEnum):
    """Requests of a transactional producer."""

    FIND = "FindCoordinator"
    INIT = "InitProducerId"
    ADD_PARTITIONS = "AddPartitionsToTxn"
    PRODUCE = "Produce"
    ADD_OFFSETS = "AddOffsetsToTxn"
    COMMIT_OFFSETS = "TxnOffsetCommit"
    END = "EndTxn"


class TransactionReaction(StrEnum):
    """Reaction to an error code."""

    RETRY_SOON = "send it again in a moment"
    RETRY = "send it again after a backoff"
    LOOK_UP = "find the coordinator, then send it again"
    REJOINED = "send it again under the newer generation, if the partitions are still owned; else abort"
    ABORT = "abort the transaction"
    ABORT_AND_RENEW = "abort the transaction and take a new epoch"
    LOOK_BACK = "nothing to abort if the coordinator never acknowledged the transaction; else stop"
    FENCED = "stop: the epoch is not the newest of its transactional id"
    FAIL = "stop and report the error"


_GENERAL: Mapping[int, TransactionReaction] = {
    ErrorCode.COORDINATOR_LOAD_IN_PROGRESS: TransactionReaction.RETRY,
    ErrorCode.COORDINATOR_NOT_AVAILABLE: TransactionReaction.LOOK_UP,
    ErrorCode.NOT_COORDINATOR: TransactionReaction.LOOK_UP,
    ErrorCode.REQUEST_TIMED_OUT: TransactionReaction.LOOK_UP,
    # The end of the previous transaction is not written to all partitions yet.
    ErrorCode.CONCURRENT_TRANSACTIONS: TransactionReaction.RETRY_SOON,
    ErrorCode.INVALID_PRODUCER_EPOCH: TransactionReaction.FENCED,
    ErrorCode.PRODUCER_FENCED: TransactionReaction.FENCED,
    ErrorCode.INVALID_TXN_STATE: TransactionReaction.FAIL,
    ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED: TransactionReaction.FAIL,
    ErrorCode.CLUSTER_AUTHORIZATION_FAILED: TransactionReaction.FAIL,
    ErrorCode.UNSUPPORTED_VERSION: TransactionReaction.FAIL,
    ErrorCode.UNSUPPORTED_FOR_MESSAGE_FORMAT: TransactionReaction.FAIL,
    ErrorCode.TRANSACTION_ABORTABLE: TransactionReaction.ABORT,
    # Brokers forget a producer that has written nothing for days. A new epoch makes the producer known again (KIP-360).
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
    # The broker answers so for the valid partitions if another partition is refused.
    TransactionRequestKind.ADD_PARTITIONS: {ErrorCode.OPERATION_NOT_ATTEMPTED: TransactionReaction.RETRY},
    # Batches that can be sent again are handled by `produce_reactions`; these codes are for all other batches.
    TransactionRequestKind.PRODUCE: {
        ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER: TransactionReaction.ABORT_AND_RENEW,
        # The leader has asked the coordinator (KIP-890), where the partition is not part of an open transaction.
        ErrorCode.INVALID_TXN_STATE: TransactionReaction.ABORT_AND_RENEW,
    },
    TransactionRequestKind.ADD_OFFSETS: {ErrorCode.GROUP_AUTHORIZATION_FAILED: TransactionReaction.ABORT},
    TransactionRequestKind.END: {ErrorCode.INVALID_TXN_STATE: TransactionReaction.LOOK_BACK},
    # The partitions belong to another member now, or the offsets cannot be stored as they are (KIP-447).
    TransactionRequestKind.COMMIT_OFFSETS: {
        # A member may keep its partitions in a cooperative rebalance, and in each new member epoch (KIP-848).
        ErrorCode.ILLEGAL_GENERATION: TransactionReaction.REJOINED,
        ErrorCode.STALE_MEMBER_EPOCH: TransactionReaction.REJOINED,
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

_LEFT_BEHIND = frozenset(
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


def event_of(  # noqa: C901, PLR0911 - one for each reaction
    code: int, asked: TransactionRequestKind, detail: str = ""
) -> TransactionEvent | None:
    """Return the event of an error code; None if there is no error. ``detail`` names the partition or group."""
    if code == ErrorCode.NONE:
        return None
    message = f"{detail}: {asked}: {name_of(code)}" if detail else f"{asked}: {name_of(code)}"
    match REACTIONS.reaction_to(code, asked):
        case TransactionReaction.RETRY_SOON:
            return TryAgain(message, is_soon=True)
        case TransactionReaction.RETRY:
            return TryAgain(message)
        case TransactionReaction.LOOK_UP:
            return Moved(message)
        case TransactionReaction.REJOINED:
            return GenerationRefused(error_of(code, asked, detail))
        case TransactionReaction.ABORT:
            return MustAbort(error_of(code, asked, detail))
        case TransactionReaction.ABORT_AND_RENEW:
            return MustAbort(error_of(code, asked, detail), needs_new_epoch=True)
        case TransactionReaction.LOOK_BACK:
            return NoTransaction(error_of(code, asked, detail))
        case TransactionReaction.FENCED:
            return Fenced(message)
        case TransactionReaction.FAIL:
            return TransactionFailed(error_of(code, asked, detail))


def error_of(code: int, asked: TransactionRequestKind, detail: str = "") -> TailraceError:
    """Return the error that the user gets."""
    if asked is TransactionRequestKind.COMMIT_OFFSETS and code in _LEFT_BEHIND:
        return CommitFailedError(
            f"the transaction was aborted: the group has gone on without this member ({name_of(code)}, code {code})"
            " - its records are handled again by their new owners; if handling takes long, raise"
            " session_timeout_ms or max_poll_interval_ms"
        )
    if asked is TransactionRequestKind.COMMIT_OFFSETS and code == ErrorCode.FENCED_INSTANCE_ID:
        return FencedMemberError(
            "the transaction was aborted: another member has joined with the same group_instance_id and fenced this one"
            f" ({name_of(code)}, code {code}) - give each process a group_instance_id of its own"
        )
    is_final = REACTIONS.reaction_to(code, asked) in {TransactionReaction.FAIL, TransactionReaction.LOOK_BACK}
    outcome = "this producer cannot go on" if is_final else "the transaction was aborted"
    refusal = broker_error(code, f"{detail or 'the transaction'}: {asked} was refused")
    kind = PublishTooLargeError if asked is TransactionRequestKind.PRODUCE and code in _TOO_LARGE else PublishError
    return kind(f"{refusal} - {outcome}")


_WORST_LAST: tuple[type[TransactionEvent], ...] = (
    TryAgain,
    Moved,
    Unanswered,
    GenerationRefused,
    MustAbort,
    Fenced,
    TransactionFailed,
)


def worst_of(troubles: Iterable[TransactionEvent]) -> TransactionEvent | None:
    """Return the worst of ``troubles``, the events of the parts of a request; None if no part failed."""
    return max(troubles, key=lambda one: _WORST_LAST.index(type(one)), default=None)
