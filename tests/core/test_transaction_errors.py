"""What each error code means to a transaction, by request."""

from __future__ import annotations

import pytest

from penstock.core import transactions
from penstock.core.transaction_errors import Asked, Reaction, error_of, event_of, reaction_to, worst_of
from penstock.core.transaction_events import (
    Failed,
    Fenced,
    Moved,
    MustAbort,
    NoTransaction,
    TryAgain,
    Unanswered,
)
from penstock.error_codes import RETRIABLE, ErrorCode
from penstock.errors import CommitFailedError, FencedMemberError, PublishError, PublishTooLargeError

EVENTS = {
    Reaction.DONE: type(None),
    Reaction.RETRY_SOON: TryAgain,
    Reaction.RETRY: TryAgain,
    Reaction.LOOK_UP: Moved,
    Reaction.ABORT: MustAbort,
    Reaction.ABORT_AND_RENEW: MustAbort,
    Reaction.LOOK_BACK: NoTransaction,
    Reaction.FENCED: Fenced,
    Reaction.FAIL: Failed,
}

OF_COORDINATORS = (Asked.INIT, Asked.ADD_PARTITIONS, Asked.ADD_OFFSETS, Asked.COMMIT_OFFSETS, Asked.END)
IN_TRANSACTION = (Asked.ADD_PARTITIONS, Asked.PRODUCE, Asked.ADD_OFFSETS, Asked.COMMIT_OFFSETS, Asked.END)

CASES = [
    (ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, OF_COORDINATORS, Reaction.RETRY),
    (ErrorCode.COORDINATOR_NOT_AVAILABLE, OF_COORDINATORS, Reaction.LOOK_UP),
    (ErrorCode.NOT_COORDINATOR, OF_COORDINATORS, Reaction.LOOK_UP),
    (ErrorCode.REQUEST_TIMED_OUT, OF_COORDINATORS, Reaction.LOOK_UP),
    (ErrorCode.CONCURRENT_TRANSACTIONS, tuple(Asked), Reaction.RETRY_SOON),
    (ErrorCode.INVALID_PRODUCER_EPOCH, tuple(Asked), Reaction.FENCED),
    (ErrorCode.PRODUCER_FENCED, tuple(Asked), Reaction.FENCED),
    (ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED, tuple(Asked), Reaction.FAIL),
    (ErrorCode.CLUSTER_AUTHORIZATION_FAILED, tuple(Asked), Reaction.FAIL),
    (ErrorCode.UNSUPPORTED_FOR_MESSAGE_FORMAT, tuple(Asked), Reaction.FAIL),
    (ErrorCode.INVALID_TRANSACTION_TIMEOUT, (Asked.INIT,), Reaction.FAIL),
    (ErrorCode.TRANSACTION_ABORTABLE, IN_TRANSACTION, Reaction.ABORT),
    (ErrorCode.TRANSACTION_ABORTABLE, (Asked.INIT,), Reaction.FAIL),
    (ErrorCode.UNKNOWN_PRODUCER_ID, IN_TRANSACTION, Reaction.ABORT_AND_RENEW),
    (ErrorCode.INVALID_PRODUCER_ID_MAPPING, IN_TRANSACTION, Reaction.ABORT_AND_RENEW),
    (ErrorCode.INVALID_TXN_STATE, (Asked.ADD_PARTITIONS, Asked.ADD_OFFSETS, Asked.COMMIT_OFFSETS), Reaction.FAIL),
    (ErrorCode.INVALID_TXN_STATE, (Asked.END,), Reaction.LOOK_BACK),
    (ErrorCode.INVALID_TXN_STATE, (Asked.PRODUCE,), Reaction.ABORT_AND_RENEW),
    # Partitions.
    (ErrorCode.OPERATION_NOT_ATTEMPTED, (Asked.ADD_PARTITIONS,), Reaction.RETRY),
    (ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, (Asked.ADD_PARTITIONS,), Reaction.RETRY),
    (ErrorCode.TOPIC_AUTHORIZATION_FAILED, (Asked.ADD_PARTITIONS, Asked.PRODUCE), Reaction.ABORT),
    (ErrorCode.DUPLICATE_SEQUENCE_NUMBER, (Asked.PRODUCE,), Reaction.DONE),
    (ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER, (Asked.PRODUCE,), Reaction.ABORT_AND_RENEW),
    (ErrorCode.NOT_LEADER_OR_FOLLOWER, (Asked.PRODUCE,), Reaction.LOOK_UP),
    (ErrorCode.LEADER_NOT_AVAILABLE, (Asked.PRODUCE,), Reaction.LOOK_UP),
    (ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, (Asked.PRODUCE,), Reaction.LOOK_UP),
    (ErrorCode.KAFKA_STORAGE_ERROR, (Asked.PRODUCE,), Reaction.LOOK_UP),
    (ErrorCode.NOT_ENOUGH_REPLICAS, (Asked.PRODUCE,), Reaction.RETRY),
    (ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND, (Asked.PRODUCE,), Reaction.RETRY),
    (ErrorCode.REQUEST_TIMED_OUT, (Asked.PRODUCE,), Reaction.RETRY),
    (ErrorCode.CORRUPT_MESSAGE, (Asked.PRODUCE,), Reaction.RETRY),
    (ErrorCode.MESSAGE_TOO_LARGE, (Asked.PRODUCE,), Reaction.ABORT),
    (ErrorCode.INVALID_RECORD, (Asked.PRODUCE,), Reaction.ABORT),
    (ErrorCode.UNSUPPORTED_COMPRESSION_TYPE, (Asked.PRODUCE,), Reaction.ABORT),
    # A group's offsets.
    (ErrorCode.ILLEGAL_GENERATION, (Asked.COMMIT_OFFSETS,), Reaction.ABORT),
    (ErrorCode.UNKNOWN_MEMBER_ID, (Asked.COMMIT_OFFSETS,), Reaction.ABORT),
    (ErrorCode.FENCED_INSTANCE_ID, (Asked.COMMIT_OFFSETS,), Reaction.ABORT),
    (ErrorCode.REBALANCE_IN_PROGRESS, (Asked.COMMIT_OFFSETS,), Reaction.ABORT),
    (ErrorCode.STALE_MEMBER_EPOCH, (Asked.COMMIT_OFFSETS,), Reaction.ABORT),
    (ErrorCode.FENCED_MEMBER_EPOCH, (Asked.COMMIT_OFFSETS,), Reaction.ABORT),
    (ErrorCode.OFFSET_METADATA_TOO_LARGE, (Asked.COMMIT_OFFSETS,), Reaction.ABORT),
    (ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, (Asked.COMMIT_OFFSETS,), Reaction.RETRY),
    (
        ErrorCode.GROUP_AUTHORIZATION_FAILED,
        (Asked.FIND, Asked.ADD_OFFSETS, Asked.COMMIT_OFFSETS),
        Reaction.ABORT,
    ),
    # A number that nobody knows.
    (999, (Asked.ADD_PARTITIONS, Asked.PRODUCE), Reaction.ABORT),
    (999, (Asked.INIT, Asked.ADD_OFFSETS, Asked.COMMIT_OFFSETS, Asked.END), Reaction.FAIL),
]


@pytest.mark.parametrize(("code", "asked", "reaction"), CASES)
def test_what_is_done_about_it(code, asked, reaction):
    """The codes that transactions live with, one by one."""
    assert {reaction_to(code, one) for one in asked} == {reaction}


@pytest.mark.parametrize("asked", Asked)
def test_what_may_heal_is_tried_again(asked):
    """No code of which Kafka says that another try may help ends a producer or a transaction."""
    gives_up = {Reaction.ABORT, Reaction.ABORT_AND_RENEW, Reaction.FENCED, Reaction.FAIL, Reaction.LOOK_BACK}

    assert [code for code in RETRIABLE if reaction_to(code, asked) in gives_up] == []


@pytest.mark.parametrize("asked", Asked)
def test_each_reaction_is_an_event(asked):
    """A code becomes the event of its reaction, with the request and Kafka's name of the code in its words."""
    assert event_of(ErrorCode.NONE, asked) is None
    for code in (*ErrorCode, 999):
        if code == ErrorCode.NONE:
            continue
        reaction = reaction_to(code, asked)
        event = event_of(code, asked, "orders[0]")

        assert type(event) is EVENTS[reaction]
        if isinstance(event, MustAbort):
            assert event.needs_new_epoch is (reaction is Reaction.ABORT_AND_RENEW)
        if isinstance(event, TryAgain):
            assert event.is_soon is (reaction is Reaction.RETRY_SOON)
        if isinstance(event, TryAgain | Moved | Fenced):
            assert f"orders[0]: {asked}: " in event.reason


@pytest.mark.parametrize("asked", Asked)
def test_each_event_may_happen_where_it_is_asked(asked):
    """Whatever a broker answers, the machine knows what to do in every state in which that is asked."""
    states = {
        Asked.FIND: transactions.ASKING,
        Asked.INIT: (transactions.State.UNINITIALISED,),
        Asked.ADD_PARTITIONS: transactions.OPEN,
        Asked.PRODUCE: transactions.OPEN,
        Asked.ADD_OFFSETS: (transactions.State.COMMITTING,),
        Asked.COMMIT_OFFSETS: (transactions.State.COMMITTING,),
        Asked.END: transactions.ENDING,
    }
    events = {type(event_of(code, asked)) for code in (*ErrorCode, 999)} - {type(None)}

    assert [
        (state, event) for state in states[asked] for event in events if (state, event) not in transactions.TABLE
    ] == []


def test_who_was_left_behind_is_told_so():
    """Offsets that are another's to commit are a CommitFailedError; a place that was taken is a FencedMemberError."""
    left_behind = error_of(ErrorCode.ILLEGAL_GENERATION, Asked.COMMIT_OFFSETS)
    replaced = error_of(ErrorCode.FENCED_INSTANCE_ID, Asked.COMMIT_OFFSETS)

    assert type(left_behind) is CommitFailedError
    assert "aborted: the group has gone on without this member (ILLEGAL_GENERATION, code 22)" in str(left_behind)
    assert type(replaced) is FencedMemberError
    assert "(FENCED_INSTANCE_ID, code 82)" in str(replaced)


def test_what_was_refused_is_told_with_what_follows():
    """A refusal names what it is about, the request, the code, and whether the next transaction may be better."""
    aborted = error_of(ErrorCode.MESSAGE_TOO_LARGE, Asked.PRODUCE, "orders[0]")
    over = error_of(ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED, Asked.INIT)

    assert type(aborted) is PublishTooLargeError
    assert type(over) is PublishError
    assert str(aborted) == "orders[0]: Produce was refused (MESSAGE_TOO_LARGE, code 10) - the transaction was aborted"
    assert str(over).startswith("the transaction: InitProducerId was refused (TRANSACTIONAL_ID_AUTHORIZATION_FAILED")
    assert str(over).endswith("- this producer cannot go on")


def test_the_worst_decides():
    """Of several troubles the one that leaves least room does; of none, none."""
    error = PublishError("no")
    in_order = (TryAgain("1"), Moved("2"), Unanswered("3"), MustAbort(error), Fenced("5"), Failed(error))

    assert worst_of(()) is None
    for count in range(1, len(in_order) + 1):
        assert worst_of(reversed(in_order[:count])) is in_order[count - 1]
