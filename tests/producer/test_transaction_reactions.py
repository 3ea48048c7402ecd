"""Reactions of a transactional producer to error codes, by request."""

from __future__ import annotations

import pytest

from tailrace.error_codes import RETRIABLE, ErrorCode
from tailrace.errors import CommitFailedError, FencedMemberError, PublishError, PublishTooLargeError
from tailrace.producer import transaction_machine as transactions
from tailrace.producer.transaction_machine import (
    CoordinatorMoved,
    GenerationRefused,
    MustAbort,
    NoOpenTransaction,
    ProducerFenced,
    TransactionFailed,
    TryAgain,
    Unanswered,
)
from tailrace.producer.transaction_reactions import (
    REACTIONS,
    TransactionReaction,
    TransactionRequestKind,
    error_of,
    event_of,
    worst_of,
)

EVENTS = {
    TransactionReaction.RETRY_SOON: TryAgain,
    TransactionReaction.RETRY: TryAgain,
    TransactionReaction.LOOK_UP: CoordinatorMoved,
    TransactionReaction.REPEAT: Unanswered,
    TransactionReaction.RESEND_OFFSETS: GenerationRefused,
    TransactionReaction.ABORT: MustAbort,
    TransactionReaction.ABORT_AND_RENEW: MustAbort,
    TransactionReaction.END_IF_UNKNOWN: NoOpenTransaction,
    TransactionReaction.FENCED: ProducerFenced,
    TransactionReaction.FAIL: TransactionFailed,
}

OF_COORDINATORS = (
    TransactionRequestKind.INIT,
    TransactionRequestKind.ADD_PARTITIONS,
    TransactionRequestKind.ADD_OFFSETS,
    TransactionRequestKind.COMMIT_OFFSETS,
    TransactionRequestKind.END,
)
IN_TRANSACTION = (
    TransactionRequestKind.ADD_PARTITIONS,
    TransactionRequestKind.PRODUCE,
    TransactionRequestKind.ADD_OFFSETS,
    TransactionRequestKind.COMMIT_OFFSETS,
    TransactionRequestKind.END,
)

CASES = [
    (ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, OF_COORDINATORS, TransactionReaction.RETRY),
    (ErrorCode.COORDINATOR_NOT_AVAILABLE, OF_COORDINATORS, TransactionReaction.LOOK_UP),
    (ErrorCode.NOT_COORDINATOR, OF_COORDINATORS, TransactionReaction.LOOK_UP),
    (ErrorCode.REQUEST_TIMED_OUT, OF_COORDINATORS, TransactionReaction.LOOK_UP),
    (ErrorCode.CONCURRENT_TRANSACTIONS, tuple(TransactionRequestKind), TransactionReaction.RETRY_SOON),
    (ErrorCode.INVALID_PRODUCER_EPOCH, tuple(TransactionRequestKind), TransactionReaction.FENCED),
    (ErrorCode.PRODUCER_FENCED, tuple(TransactionRequestKind), TransactionReaction.FENCED),
    (ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED, tuple(TransactionRequestKind), TransactionReaction.FAIL),
    (ErrorCode.CLUSTER_AUTHORIZATION_FAILED, tuple(TransactionRequestKind), TransactionReaction.FAIL),
    (ErrorCode.UNSUPPORTED_FOR_MESSAGE_FORMAT, tuple(TransactionRequestKind), TransactionReaction.FAIL),
    (ErrorCode.INVALID_TRANSACTION_TIMEOUT, (TransactionRequestKind.INIT,), TransactionReaction.FAIL),
    (ErrorCode.TRANSACTION_ABORTABLE, IN_TRANSACTION, TransactionReaction.ABORT),
    (ErrorCode.TRANSACTION_ABORTABLE, (TransactionRequestKind.INIT,), TransactionReaction.FAIL),
    (ErrorCode.UNKNOWN_PRODUCER_ID, IN_TRANSACTION, TransactionReaction.ABORT_AND_RENEW),
    (ErrorCode.INVALID_PRODUCER_ID_MAPPING, IN_TRANSACTION, TransactionReaction.ABORT_AND_RENEW),
    (
        ErrorCode.INVALID_TXN_STATE,
        (
            TransactionRequestKind.ADD_PARTITIONS,
            TransactionRequestKind.ADD_OFFSETS,
            TransactionRequestKind.COMMIT_OFFSETS,
        ),
        TransactionReaction.FAIL,
    ),
    (ErrorCode.INVALID_TXN_STATE, (TransactionRequestKind.END,), TransactionReaction.END_IF_UNKNOWN),
    (ErrorCode.INVALID_TXN_STATE, (TransactionRequestKind.PRODUCE,), TransactionReaction.ABORT_AND_RENEW),
    (ErrorCode.UNKNOWN_SERVER_ERROR, (TransactionRequestKind.END,), TransactionReaction.REPEAT),
    # Partitions.
    (ErrorCode.OPERATION_NOT_ATTEMPTED, (TransactionRequestKind.ADD_PARTITIONS,), TransactionReaction.RETRY),
    (ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, (TransactionRequestKind.ADD_PARTITIONS,), TransactionReaction.RETRY),
    (
        ErrorCode.TOPIC_AUTHORIZATION_FAILED,
        (TransactionRequestKind.ADD_PARTITIONS, TransactionRequestKind.PRODUCE),
        TransactionReaction.ABORT,
    ),
    (ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER, (TransactionRequestKind.PRODUCE,), TransactionReaction.ABORT_AND_RENEW),
    (ErrorCode.MESSAGE_TOO_LARGE, (TransactionRequestKind.PRODUCE,), TransactionReaction.ABORT),
    (ErrorCode.INVALID_RECORD, (TransactionRequestKind.PRODUCE,), TransactionReaction.ABORT),
    (ErrorCode.UNSUPPORTED_COMPRESSION_TYPE, (TransactionRequestKind.PRODUCE,), TransactionReaction.ABORT),
    # A group's offsets.
    (ErrorCode.ILLEGAL_GENERATION, (TransactionRequestKind.COMMIT_OFFSETS,), TransactionReaction.RESEND_OFFSETS),
    (ErrorCode.UNKNOWN_MEMBER_ID, (TransactionRequestKind.COMMIT_OFFSETS,), TransactionReaction.ABORT),
    (ErrorCode.FENCED_INSTANCE_ID, (TransactionRequestKind.COMMIT_OFFSETS,), TransactionReaction.ABORT),
    (ErrorCode.REBALANCE_IN_PROGRESS, (TransactionRequestKind.COMMIT_OFFSETS,), TransactionReaction.ABORT),
    (ErrorCode.STALE_MEMBER_EPOCH, (TransactionRequestKind.COMMIT_OFFSETS,), TransactionReaction.RESEND_OFFSETS),
    (ErrorCode.FENCED_MEMBER_EPOCH, (TransactionRequestKind.COMMIT_OFFSETS,), TransactionReaction.ABORT),
    (ErrorCode.OFFSET_METADATA_TOO_LARGE, (TransactionRequestKind.COMMIT_OFFSETS,), TransactionReaction.ABORT),
    (ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, (TransactionRequestKind.COMMIT_OFFSETS,), TransactionReaction.RETRY),
    (
        ErrorCode.GROUP_AUTHORIZATION_FAILED,
        (TransactionRequestKind.FIND, TransactionRequestKind.ADD_OFFSETS, TransactionRequestKind.COMMIT_OFFSETS),
        TransactionReaction.ABORT,
    ),
    # An unknown code.
    (999, (TransactionRequestKind.ADD_PARTITIONS, TransactionRequestKind.PRODUCE), TransactionReaction.ABORT),
    (
        999,
        (
            TransactionRequestKind.INIT,
            TransactionRequestKind.ADD_OFFSETS,
            TransactionRequestKind.COMMIT_OFFSETS,
            TransactionRequestKind.END,
        ),
        TransactionReaction.FAIL,
    ),
]


@pytest.mark.parametrize(("code", "asked", "reaction"), CASES)
def test_reactions_to_codes_of_transactions(code, asked, reaction):
    """Each error code of transactions has the listed reaction."""
    assert {REACTIONS.reaction_to(code, one) for one in asked} == {reaction}


@pytest.mark.parametrize("asked", TransactionRequestKind)
def test_retriable_codes_are_retried(asked):
    """No retriable code of Kafka ends a producer or a transaction."""
    gives_up = {
        TransactionReaction.ABORT,
        TransactionReaction.ABORT_AND_RENEW,
        TransactionReaction.FENCED,
        TransactionReaction.FAIL,
        TransactionReaction.END_IF_UNKNOWN,
    }

    assert [code for code in RETRIABLE if REACTIONS.reaction_to(code, asked) in gives_up] == []


@pytest.mark.parametrize("asked", TransactionRequestKind)
def test_each_reaction_is_an_event(asked):
    """A code becomes the event of its reaction, with the request and the name of the code."""
    assert event_of(ErrorCode.NONE, asked) is None
    for code in (*ErrorCode, 999):
        if code == ErrorCode.NONE:
            continue
        reaction = REACTIONS.reaction_to(code, asked)
        event = event_of(code, asked, "orders[0]")

        assert type(event) is EVENTS[reaction]
        if isinstance(event, MustAbort):
            assert event.needs_new_epoch is (reaction is TransactionReaction.ABORT_AND_RENEW)
        if isinstance(event, TryAgain):
            assert event.is_soon is (reaction is TransactionReaction.RETRY_SOON)
        if isinstance(event, TryAgain | CoordinatorMoved | ProducerFenced):
            assert f"orders[0]: {asked}: " in event.reason


@pytest.mark.parametrize("asked", TransactionRequestKind)
def test_each_event_has_a_transition_where_it_occurs(asked):
    """The table has a transition for each error code in each state in which its request is sent."""
    states = {
        TransactionRequestKind.FIND: transactions.REQUESTING,
        TransactionRequestKind.INIT: (transactions.ProducerState.UNINITIALIZED,),
        TransactionRequestKind.ADD_PARTITIONS: transactions.OPEN,
        TransactionRequestKind.PRODUCE: transactions.OPEN,
        TransactionRequestKind.ADD_OFFSETS: (transactions.ProducerState.COMMITTING,),
        TransactionRequestKind.COMMIT_OFFSETS: (transactions.ProducerState.COMMITTING,),
        TransactionRequestKind.END: transactions.ENDING,
    }
    events = {type(event_of(code, asked)) for code in (*ErrorCode, 999)} - {type(None)}

    assert [
        (state, event) for state in states[asked] for event in events if (state, event) not in transactions.TABLE
    ] == []


def test_a_member_of_an_old_generation_gets_a_typed_error():
    """CommitFailedError is raised after a rebalance, FencedMemberError if another member has the instance id."""
    left_behind = error_of(ErrorCode.ILLEGAL_GENERATION, TransactionRequestKind.COMMIT_OFFSETS)
    replaced = error_of(ErrorCode.FENCED_INSTANCE_ID, TransactionRequestKind.COMMIT_OFFSETS)

    assert type(left_behind) is CommitFailedError
    assert "aborted: the group has rebalanced without this member (ILLEGAL_GENERATION, code 22)" in str(left_behind)
    assert type(replaced) is FencedMemberError
    assert "(FENCED_INSTANCE_ID, code 82)" in str(replaced)


def test_a_refusal_names_its_consequences():
    """An error names partition, request and code, and if the producer can continue."""
    aborted = error_of(ErrorCode.MESSAGE_TOO_LARGE, TransactionRequestKind.PRODUCE, "orders[0]")
    over = error_of(ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED, TransactionRequestKind.INIT)

    assert type(aborted) is PublishTooLargeError
    assert type(over) is PublishError
    assert str(aborted) == "orders[0]: Produce was refused (MESSAGE_TOO_LARGE, code 10) - the transaction was aborted"
    assert str(over).startswith("the transaction: InitProducerId was refused (TRANSACTIONAL_ID_AUTHORIZATION_FAILED")
    assert str(over).endswith("- this producer cannot continue")


def test_the_gravest_event_decides():
    """worst_of() returns the gravest of several events, and None if there are none."""
    error = PublishError("no")
    in_order = (
        TryAgain("1"),
        CoordinatorMoved("2"),
        Unanswered("3"),
        GenerationRefused(error),
        MustAbort(error),
        ProducerFenced("6"),
        TransactionFailed(error),
    )

    assert worst_of(()) is None
    for count in range(1, len(in_order) + 1):
        assert worst_of(reversed(in_order[:count])) is in_order[count - 1]
