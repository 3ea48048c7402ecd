"""What a broker's error code means to a transaction, by request: the one table.

Rule of this file: data. A code that is not listed means what Kafka says of it in general: another try, if it is
retriable; else the end of the transaction, where the request is about some partitions only (they may be wrong while
the next transaction's are right), and the end of the producer everywhere else.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from enum import StrEnum

from penstock.core.transaction_events import (
    Failed,
    Fenced,
    Moved,
    MustAbort,
    NoTransaction,
    TransactionEvent,
    TryAgain,
    Unanswered,
)
from penstock.error_codes import RETRIABLE, ErrorCode, name_of
from penstock.errors import (
    CommitFailedError,
    FencedMemberError,
    PenstockError,
    PublishError,
    PublishTooLargeError,
    broker_error,
)

__all__ = ["Asked", "Reaction", "error_of", "event_of", "reaction_to", "worst_of"]


class Asked(StrEnum):
    """Which request was answered with an error."""

    FIND = "FindCoordinator"
    INIT = "InitProducerId"
    ADD_PARTITIONS = "AddPartitionsToTxn"
    PRODUCE = "Produce"
    ADD_OFFSETS = "AddOffsetsToTxn"
    COMMIT_OFFSETS = "TxnOffsetCommit"
    END = "EndTxn"


class Reaction(StrEnum):
    """What is done about it."""

    DONE = "go on: it was done by an earlier try"
    RETRY_SOON = "ask again in a moment"
    RETRY = "ask again after a pause"
    LOOK_UP = "find who is in charge, coordinator or leader, then ask again"
    ABORT = "abort the transaction"
    ABORT_AND_RENEW = "abort the transaction and take a new epoch"
    LOOK_BACK = "if the coordinator never heard of the transaction, there is nothing to abort; else stop"
    FENCED = "stop: the epoch is not the newest of its transactional id"
    FAIL = "stop: tell the user"


_IN_GENERAL: Mapping[int, Reaction] = {
    ErrorCode.COORDINATOR_LOAD_IN_PROGRESS: Reaction.RETRY,
    ErrorCode.COORDINATOR_NOT_AVAILABLE: Reaction.LOOK_UP,
    ErrorCode.NOT_COORDINATOR: Reaction.LOOK_UP,
    ErrorCode.REQUEST_TIMED_OUT: Reaction.LOOK_UP,
    # The end of the transaction before is not written everywhere yet.
    ErrorCode.CONCURRENT_TRANSACTIONS: Reaction.RETRY_SOON,
    ErrorCode.INVALID_PRODUCER_EPOCH: Reaction.FENCED,
    ErrorCode.PRODUCER_FENCED: Reaction.FENCED,
    ErrorCode.INVALID_TXN_STATE: Reaction.FAIL,
    ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED: Reaction.FAIL,
    ErrorCode.CLUSTER_AUTHORIZATION_FAILED: Reaction.FAIL,
    ErrorCode.UNSUPPORTED_VERSION: Reaction.FAIL,
    ErrorCode.UNSUPPORTED_FOR_MESSAGE_FORMAT: Reaction.FAIL,
    ErrorCode.TRANSACTION_ABORTABLE: Reaction.ABORT,
    # The broker forgot the producer, which has written nothing for days: a new epoch makes it known again (KIP-360).
    ErrorCode.UNKNOWN_PRODUCER_ID: Reaction.ABORT_AND_RENEW,
    ErrorCode.INVALID_PRODUCER_ID_MAPPING: Reaction.ABORT_AND_RENEW,
}

_OF_REQUEST: Mapping[Asked, Mapping[int, Reaction]] = {
    Asked.FIND: {ErrorCode.GROUP_AUTHORIZATION_FAILED: Reaction.ABORT},
    # There is no transaction yet that could be aborted.
    Asked.INIT: {
        ErrorCode.TRANSACTION_ABORTABLE: Reaction.FAIL,
        ErrorCode.UNKNOWN_PRODUCER_ID: Reaction.FAIL,
        ErrorCode.INVALID_PRODUCER_ID_MAPPING: Reaction.FAIL,
    },
    # Said of every partition that is all right, when another is not.
    Asked.ADD_PARTITIONS: {ErrorCode.OPERATION_NOT_ATTEMPTED: Reaction.RETRY},
    Asked.PRODUCE: {
        ErrorCode.DUPLICATE_SEQUENCE_NUMBER: Reaction.DONE,
        ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER: Reaction.ABORT_AND_RENEW,
        # The leader asked the coordinator (KIP-890): to it, the partition is in no transaction of ours.
        ErrorCode.INVALID_TXN_STATE: Reaction.ABORT_AND_RENEW,
        # Not all replicas have it; the leader may.
        ErrorCode.REQUEST_TIMED_OUT: Reaction.RETRY,
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION: Reaction.LOOK_UP,
        ErrorCode.LEADER_NOT_AVAILABLE: Reaction.LOOK_UP,
        ErrorCode.NOT_LEADER_OR_FOLLOWER: Reaction.LOOK_UP,
        ErrorCode.REPLICA_NOT_AVAILABLE: Reaction.LOOK_UP,
        ErrorCode.KAFKA_STORAGE_ERROR: Reaction.LOOK_UP,
        ErrorCode.FENCED_LEADER_EPOCH: Reaction.LOOK_UP,
        ErrorCode.UNKNOWN_LEADER_EPOCH: Reaction.LOOK_UP,
    },
    Asked.ADD_OFFSETS: {ErrorCode.GROUP_AUTHORIZATION_FAILED: Reaction.ABORT},
    Asked.END: {ErrorCode.INVALID_TXN_STATE: Reaction.LOOK_BACK},
    # The offsets are another's to commit now, or cannot be stored as they are (KIP-447).
    Asked.COMMIT_OFFSETS: {
        ErrorCode.ILLEGAL_GENERATION: Reaction.ABORT,
        ErrorCode.UNKNOWN_MEMBER_ID: Reaction.ABORT,
        ErrorCode.REBALANCE_IN_PROGRESS: Reaction.ABORT,
        ErrorCode.FENCED_INSTANCE_ID: Reaction.ABORT,
        ErrorCode.FENCED_MEMBER_EPOCH: Reaction.ABORT,
        ErrorCode.STALE_MEMBER_EPOCH: Reaction.ABORT,
        ErrorCode.GROUP_ID_NOT_FOUND: Reaction.ABORT,
        ErrorCode.OFFSET_METADATA_TOO_LARGE: Reaction.ABORT,
        ErrorCode.INVALID_COMMIT_OFFSET_SIZE: Reaction.ABORT,
        ErrorCode.GROUP_AUTHORIZATION_FAILED: Reaction.ABORT,
        ErrorCode.TOPIC_AUTHORIZATION_FAILED: Reaction.ABORT,
    },
}

_ABOUT_PARTITIONS = frozenset({Asked.ADD_PARTITIONS, Asked.PRODUCE})

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
"""What a group says to a member without which it has gone on."""


def reaction_to(code: int, asked: Asked) -> Reaction:
    """What to do about ``code`` in the answer to ``asked``."""
    for table in (_OF_REQUEST.get(asked, {}), _IN_GENERAL):
        if code in table:
            return table[code]
    if code in RETRIABLE:
        return Reaction.RETRY
    return Reaction.ABORT if asked in _ABOUT_PARTITIONS else Reaction.FAIL


def event_of(  # noqa: C901, PLR0911 - one for each reaction
    code: int, asked: Asked, detail: str = ""
) -> TransactionEvent | None:
    """The same as the event that a transactional member is told; None when all is well."""
    if code == ErrorCode.NONE:
        return None
    said = f"{detail}: {asked}: {name_of(code)}" if detail else f"{asked}: {name_of(code)}"
    match reaction_to(code, asked):
        case Reaction.DONE:
            return None
        case Reaction.RETRY_SOON:
            return TryAgain(said, is_soon=True)
        case Reaction.RETRY:
            return TryAgain(said)
        case Reaction.LOOK_UP:
            return Moved(said)
        case Reaction.ABORT:
            return MustAbort(error_of(code, asked, detail))
        case Reaction.ABORT_AND_RENEW:
            return MustAbort(error_of(code, asked, detail), needs_new_epoch=True)
        case Reaction.LOOK_BACK:
            return NoTransaction(error_of(code, asked, detail))
        case Reaction.FENCED:
            return Fenced(said)
        case Reaction.FAIL:
            return Failed(error_of(code, asked, detail))


def error_of(code: int, asked: Asked, detail: str = "") -> PenstockError:
    """What the user is told."""
    if asked is Asked.COMMIT_OFFSETS and code in _LEFT_BEHIND:
        return CommitFailedError(
            f"the transaction was aborted: the group has gone on without this member ({name_of(code)}, code {code})"
            " - its records are handled again by whoever owns them now; if handling takes long, raise"
            " session_timeout_ms or max_poll_interval_ms"
        )
    if asked is Asked.COMMIT_OFFSETS and code == ErrorCode.FENCED_INSTANCE_ID:
        return FencedMemberError(
            "the transaction was aborted: another member has joined with the same group_instance_id and took this"
            f" one's place ({name_of(code)}, code {code}) - give each process a name of its own"
        )
    is_final = reaction_to(code, asked) in {Reaction.FAIL, Reaction.LOOK_BACK}
    outcome = "this producer cannot go on" if is_final else "the transaction was aborted"
    refusal = broker_error(code, f"{detail or 'the transaction'}: {asked} was refused")
    kind = PublishTooLargeError if asked is Asked.PRODUCE and code in _TOO_LARGE else PublishError
    return kind(f"{refusal} - {outcome}")


_WORST_LAST: tuple[type[TransactionEvent], ...] = (TryAgain, Moved, Unanswered, MustAbort, Fenced, Failed)


def worst_of(troubles: Iterable[TransactionEvent]) -> TransactionEvent | None:
    """Of what went wrong with the parts of a request, what decides about the whole; None if nothing did."""
    return max(troubles, key=lambda one: _WORST_LAST.index(type(one)), default=None)
