"""What a transactional producer does next: the table, and examples of it."""

from __future__ import annotations

import pytest

from tailrace.core.group.events import Identity
from tailrace.core.producer import events as transaction_events
from tailrace.core.producer.events import (
    AbortTransaction,
    BatchesAnswered,
    BeginTransaction,
    CommitTransaction,
    EmitTransactionEvent,
    Ended,
    Fenced,
    Filled,
    Flush,
    GroupOffsets,
    Interrupted,
    LookUpAgain,
    Moved,
    MustAbort,
    NoTransaction,
    OffsetsAdded,
    OffsetsStored,
    PartitionsAdded,
    ProducerBatch,
    ProducerId,
    ProducerIdGiven,
    SendAddOffsets,
    SendAddPartitions,
    SendBatches,
    SendEnd,
    SendInit,
    SendOffsets,
    Settle,
    TimeOver,
    TransactionEvent,
    TransactionFailed,
    TryAgain,
    Unanswered,
)
from tailrace.core.producer.states import ASKING, OVER, ProducerState
from tailrace.core.producer.transactional import TABLE, TransactionMachine
from tailrace.errors import CommitFailedError, ProducerFencedError, PublishError
from tailrace.protocol.committed_offsets import CommitOffset
from tests.support.simulation.driven_machine import check_events, told
from tests.support.simulation.transactional_member import FIRST, NOW, SECOND, member

WHO = ProducerId(7, 3)
OFFSETS = GroupOffsets("g", Identity("m", 5, "i"), (CommitOffset("in", 0, 42),))
REFUSED = PublishError("refused")

EVENTS: dict[type[TransactionEvent], TransactionEvent] = {
    type(one): one
    for one in (
        Settle(60.0),
        BeginTransaction(),
        Filled(FIRST, 10),
        Flush(60.0),
        CommitTransaction(OFFSETS, 60.0),
        AbortTransaction(60.0),
        ProducerIdGiven(WHO),
        PartitionsAdded(frozenset({FIRST})),
        BatchesAnswered(frozenset({FIRST})),
        OffsetsAdded(),
        OffsetsStored(),
        Ended(),
        TryAgain("not now"),
        Moved("elsewhere"),
        Unanswered("silence"),
        MustAbort(REFUSED),
        NoTransaction(REFUSED),
        Fenced("fenced"),
        TransactionFailed(REFUSED),
        TimeOver(),
        Interrupted(),
    )
}

WAY: list[tuple[ProducerState, tuple[TransactionEvent, ...]]] = [
    (ProducerState.UNINITIALISED, (Settle(60.0),)),
    (ProducerState.READY, (ProducerIdGiven(WHO),)),
    (
        ProducerState.IN_TRANSACTION,
        (BeginTransaction(), Filled(FIRST, 10), Flush(60.0), PartitionsAdded(frozenset({FIRST}))),
    ),
    (ProducerState.COMMITTING, (CommitTransaction(OFFSETS, 60.0),)),
]
"""How one comes from each state to the next; a batch is under way in the last two."""


def member_in(state: ProducerState) -> TransactionMachine:
    """One that has come to ``state`` at NOW, and whose effects so far are performed."""
    one = member()
    for there, events in WAY:
        for event in events:
            one.receive(event, NOW)
        if there is state:
            break
        if there is ProducerState.IN_TRANSACTION and state is ProducerState.ABORTING:
            one.receive(MustAbort(REFUSED), NOW)
            break
    if state in OVER:
        one.receive(EVENTS[Fenced if state is ProducerState.FENCED else TransactionFailed], NOW)
    assert one.state is state
    list(one.effects())
    return one


def picture(one: TransactionMachine) -> dict:
    """All there is to a member."""
    return {name: str(value) if name == "_transaction" else value for name, value in vars(one).items()}


# ---- the table -------------------------------------------------------------------------------------------------


def test_every_event_there_is_is_tried():
    """The examples of this file leave none out."""
    check_events(transaction_events, TransactionEvent, TABLE, EVENTS)


@pytest.mark.parametrize("state", ProducerState)
@pytest.mark.parametrize("event", EVENTS.values(), ids=lambda event: type(event).__name__)
def test_every_event_in_every_state(state, event):
    """Either the table has a rule, or it raises and nothing has changed; what is over stays over."""
    one = member_in(state)
    before = picture(one)
    rule = TABLE.get((state, type(event)))
    assert one.allows(type(event)) is (rule is not None or state in OVER)

    if state in OVER:
        assert told(one, event) == []
        assert one.state is state
    elif rule is None:
        with pytest.raises(ValueError, match=f"{type(event).__name__} cannot happen while {state}"):
            one.receive(event, NOW)
        assert picture(one) == before
        assert list(one.effects()) == []
    else:
        one.receive(event, NOW)
        assert one.state in {rule.then, *rule.exceptions}


def test_every_state_is_reached_and_left():
    """No state but the last two is a dead end, and none is without a way to it."""
    ways = {(state, then) for (state, _), rule in TABLE.items() for then in (rule.then, *rule.exceptions)}

    assert {then for state, then in ways if state is not then} == set(ProducerState)
    assert {state for state, then in ways if state is not then} == set(ProducerState) - OVER


# ---- the usual way ---------------------------------------------------------------------------------------------


def test_a_transaction_from_begin_to_end():
    """Partitions are added, batches written, offsets added and stored, then the commit is sent; one by one."""
    one = member()
    assert told(one, Settle(30.0)) == [SendInit(ProducerId(), 20.0)]
    assert told(one, ProducerIdGiven(WHO), BeginTransaction(), Filled(SECOND, 4), Filled(FIRST, 3)) == []

    both = frozenset((FIRST, SECOND))
    assert told(one, CommitTransaction(OFFSETS, 60.0)) == [SendAddPartitions(WHO, (FIRST, SECOND), 20.0)]
    assert told(one, PartitionsAdded(both)) == [
        SendBatches(WHO, (ProducerBatch(SECOND, 0, 4), ProducerBatch(FIRST, 0, 3)), 20.0)
    ]
    assert told(one, BatchesAnswered(both)) == [SendAddOffsets(WHO, "g", 20.0)]
    assert told(one, OffsetsAdded()) == [SendOffsets(WHO, OFFSETS, 20.0)]
    assert told(one, OffsetsStored()) == [SendEnd(WHO, is_commit=True, timeout_s=20.0)]
    assert told(one, Ended()) == []
    assert (one.state, one.next_deadline(), one.error, one.aborted_by) == (ProducerState.READY, None, None, None)


def test_a_transaction_of_nothing_asks_nothing():
    """Neither commit nor abort bothers the coordinator with a transaction that it never heard of."""
    for ending in (CommitTransaction(None, 60.0), AbortTransaction(60.0)):
        one = member_in(ProducerState.READY)

        assert told(one, BeginTransaction(), ending) == []
        assert one.state is ProducerState.READY


def test_offsets_alone_are_a_transaction():
    """A transaction may store offsets and write no record."""
    one = member_in(ProducerState.READY)

    effects = told(one, BeginTransaction(), CommitTransaction(OFFSETS, 60.0), OffsetsAdded(), OffsetsStored(), Ended())

    assert [type(effect) for effect in effects] == [SendAddOffsets, SendOffsets, SendEnd]
    assert one.state is ProducerState.READY


def test_batches_of_a_partition_go_one_after_the_other():
    """The second batch is sent when the first is written, and has its place behind it; sequences go on for ever."""
    one = member_in(ProducerState.READY)

    told(one, BeginTransaction(), Filled(FIRST, 3), Filled(FIRST, 4), Flush(60.0), PartitionsAdded(frozenset({FIRST})))
    second = told(one, BatchesAnswered(frozenset({FIRST})))
    told(one, BatchesAnswered(frozenset({FIRST})), CommitTransaction(None, 60.0), Ended())
    told(one, BeginTransaction(), Filled(FIRST, 5), Flush(60.0))
    third = told(one, PartitionsAdded(frozenset({FIRST})))

    assert second == [SendBatches(WHO, (ProducerBatch(FIRST, 3, 4),), 20.0)]
    assert third == [SendBatches(WHO, (ProducerBatch(FIRST, 7, 5),), 20.0)]


def test_a_sequence_begins_anew_at_its_end():
    """After 2^31 records the count goes on at 0, as Kafka's does."""
    one = member_in(ProducerState.READY)
    told(one, BeginTransaction(), Filled(FIRST, (1 << 31) - 2), Filled(FIRST, 5), Filled(FIRST, 1), Flush(60.0))

    effects = told(one, PartitionsAdded(frozenset({FIRST})), *[BatchesAnswered(frozenset({FIRST}))] * 2)

    assert [one.batches[0].sequence for one in effects] == [0, (1 << 31) - 2, 3]


def test_partitions_are_added_once():
    """A flush of a partition that the transaction has already asks the coordinator nothing."""
    one = member_in(ProducerState.IN_TRANSACTION)
    told(one, BatchesAnswered(frozenset({FIRST})))

    assert told(one, Filled(FIRST, 1), Flush(60.0)) == [SendBatches(WHO, (ProducerBatch(FIRST, 10, 1),), 20.0)]
    assert told(one, Filled(SECOND, 1), BatchesAnswered(frozenset({FIRST}))) == [
        SendAddPartitions(WHO, (SECOND,), 20.0)
    ]


# ---- what goes wrong -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "trouble", [TryAgain("busy"), Moved("elsewhere"), Unanswered("silence")], ids=lambda t: t.reason
)
def test_what_failed_is_asked_again_as_it_was(trouble):
    """The same batches, under the same numbers, after a pause that grows (KIP-580)."""
    one = member_in(ProducerState.IN_TRANSACTION)
    question = SendBatches(WHO, (ProducerBatch(FIRST, 0, 10),), 20.0)

    now, pauses = NOW, []
    for _ in range(6):
        effects = told(one, BatchesAnswered(frozenset(), (trouble,)), now=now)
        assert effects == ([] if isinstance(trouble, TryAgain) else [LookUpAgain(question, trouble.reason)])
        pauses.append(one.next_deadline() - now)
        one.handle_timer(now)
        assert list(one.effects()) == []
        now = one.next_deadline()
        one.handle_timer(now)
        assert list(one.effects()) == [question]

    assert pauses == pytest.approx([0.1, 0.2, 0.4, 0.8, 1.0, 1.0])


def test_the_end_of_the_transaction_before_is_waited_for_briefly():
    """Before the coordinator is through with the last transaction, the next one asks again within milliseconds."""
    one = member_in(ProducerState.READY)
    told(one, BeginTransaction(), Filled(FIRST, 1), CommitTransaction(None, 60.0), TryAgain("concurrent", is_soon=True))

    assert one.next_deadline() == pytest.approx(NOW + 0.005)


def test_what_was_written_is_not_sent_again():
    """Of several partitions only those that failed are tried again."""
    one = member_in(ProducerState.READY)
    told(
        one,
        BeginTransaction(),
        Filled(FIRST, 1),
        Filled(SECOND, 2),
        Flush(60.0),
        PartitionsAdded(frozenset((FIRST, SECOND))),
    )

    told(one, BatchesAnswered(frozenset({FIRST}), (TryAgain("busy"),)))
    one.handle_timer(one.next_deadline())

    assert list(one.effects()) == [SendBatches(WHO, (ProducerBatch(SECOND, 0, 2),), 20.0 - 0.0)]


@pytest.mark.parametrize(
    "ending",
    [
        (CommitTransaction(None, 60.0), BatchesAnswered(frozenset({FIRST})), Ended()),
        (AbortTransaction(60.0), Ended()),
        (MustAbort(REFUSED), Ended()),
    ],
    ids=["commit", "abort", "refused"],
)
def test_after_a_request_without_an_answer_the_epoch_is_new(ending):
    """What may still be on its way must not get into the next transaction: a new epoch first (KIP-360)."""
    one = member_in(ProducerState.IN_TRANSACTION)
    told(one, BatchesAnswered(frozenset(), (Unanswered("silence"),)))
    one.handle_timer(one.next_deadline())

    told(one, *ending)

    assert one.state is ProducerState.UNINITIALISED
    assert told(one, Settle(60.0)) == [SendInit(WHO, 20.0)]
    told(one, ProducerIdGiven(ProducerId(7, 4)), BeginTransaction(), Filled(FIRST, 1), Flush(60.0))
    assert told(one, PartitionsAdded(frozenset({FIRST}))) == [
        SendBatches(ProducerId(7, 4), (ProducerBatch(FIRST, 0, 1),), 20.0)
    ]
    assert told(one, BatchesAnswered(frozenset({FIRST})), CommitTransaction(None, 60.0), Ended())
    assert one.state is ProducerState.READY


def test_a_broker_that_lost_count_is_given_a_new_epoch():
    """Sequences that the broker does not follow any more begin anew under a new epoch."""
    one = member_in(ProducerState.IN_TRANSACTION)

    effects = told(one, BatchesAnswered(frozenset(), (MustAbort(REFUSED, needs_new_epoch=True),)), Ended())

    assert effects == [SendEnd(WHO, is_commit=False, timeout_s=5.0), EmitTransactionEvent(REFUSED)]
    assert one.state is ProducerState.UNINITIALISED


@pytest.mark.parametrize("state", [ProducerState.IN_TRANSACTION, ProducerState.COMMITTING])
def test_what_cannot_be_committed_is_aborted(state):
    """The abort is sent at once and what it was for is told when it is through; the next transaction may begin."""
    one = member_in(state)
    told(one, BatchesAnswered(frozenset({FIRST})))
    error = CommitFailedError("the group has gone on")

    assert told(one, MustAbort(error)) == [SendEnd(WHO, is_commit=False, timeout_s=5.0)]
    assert (one.state, one.aborted_by) == (ProducerState.ABORTING, error)
    assert told(one, Ended()) == [EmitTransactionEvent(error)]
    assert one.state is ProducerState.READY
    one.receive(BeginTransaction(), NOW)
    assert one.aborted_by is None


@pytest.mark.parametrize("trouble", [TryAgain("too few replicas"), MustAbort(REFUSED)], ids=lambda t: type(t).__name__)
def test_the_place_of_a_batch_that_may_be_written_is_not_anothers(trouble):
    """Sent and not acknowledged, then aborted: under the same epoch the broker would take the next batch for this."""
    one = member_in(ProducerState.IN_TRANSACTION)
    told(one, BatchesAnswered(frozenset(), (trouble,)))
    if one.state is ProducerState.IN_TRANSACTION:
        told(one, AbortTransaction(60.0))

    told(one, Ended())

    assert one.state is ProducerState.UNINITIALISED
    assert told(one, Settle(60.0)) == [SendInit(WHO, 20.0)]


def test_an_abort_of_what_the_coordinator_never_heard_of_is_done():
    """When adding the partitions was refused or got lost, there may be nothing to abort; that is as it should be."""
    one = member_in(ProducerState.READY)
    told(one, BeginTransaction(), Filled(FIRST, 1), Flush(60.0))

    assert told(one, MustAbort(REFUSED)) == [SendEnd(WHO, is_commit=False, timeout_s=5.0)]
    assert told(one, NoTransaction(PublishError("no such transaction"))) == [EmitTransactionEvent(REFUSED)]
    assert one.state is ProducerState.READY


def test_an_abort_of_what_is_there_must_be_known():
    """The coordinator said that it has the partitions: then it has no business to know of no transaction."""
    one = member_in(ProducerState.ABORTING)
    error = PublishError("no such transaction")

    assert told(one, NoTransaction(error)) == [EmitTransactionEvent(error)]
    assert one.state is ProducerState.FAILED


def test_an_abort_that_is_refused_ends_in_a_new_epoch_or_not_at_all():
    """A producer that the coordinator has forgotten has nothing open there; one that may not abort cannot go on."""
    forgotten, forbidden = member_in(ProducerState.ABORTING), member_in(ProducerState.ABORTING)

    assert told(forgotten, MustAbort(PublishError("who?"), needs_new_epoch=True)) == [EmitTransactionEvent(REFUSED)]
    assert forgotten.state is ProducerState.UNINITIALISED
    told(forbidden, MustAbort(PublishError("no")))
    assert forbidden.state is ProducerState.FAILED


@pytest.mark.parametrize("state", ASKING)
def test_fenced_is_the_end(state):
    """Who is fenced asks nothing more, tells why once, and remembers it."""
    one = member_in(state)

    (effect,) = told(one, Fenced("EndTxn: PRODUCER_FENCED"))

    assert isinstance(effect, EmitTransactionEvent)
    assert effect.error is one.error
    assert isinstance(one.error, ProducerFencedError)
    assert "another process has the same transactional_id 'me'" in str(one.error)
    assert "EndTxn: PRODUCER_FENCED" in str(one.error)
    assert (one.state, one.is_over, one.next_deadline()) == (ProducerState.FENCED, True, None)


def test_a_transaction_that_took_too_long_is_told_from_a_rival():
    """The broker fences those too whose transaction was open for too long; the words tell which it was."""
    one = member_in(ProducerState.IN_TRANSACTION)

    told(one, Fenced("fenced"), now=NOW + 61.0)

    assert "took 61.0 s" in str(one.error)
    assert "raise transaction_timeout_ms" in str(one.error)


# ---- time ------------------------------------------------------------------------------------------------------


def test_a_flush_that_takes_too_long_is_aborted():
    """When its time is over the transaction is taken back, and the user is told why when it is."""
    one = member_in(ProducerState.IN_TRANSACTION)
    told(one, BatchesAnswered(frozenset(), (TryAgain("too few replicas"),)), now=NOW + 59.95)
    assert one.next_deadline() == NOW + 60.0

    one.handle_timer(NOW + 60.0)

    assert list(one.effects()) == [SendEnd(WHO, is_commit=False, timeout_s=5.0)]
    (effect,) = told(one, Ended(), now=NOW + 60.1)
    assert "not through in time; last: too few replicas" in str(effect.error)


def test_no_question_outlives_the_call():
    """What is asked late has no longer than what is left of the call, and with nothing left it is not asked."""
    one = member_in(ProducerState.COMMITTING)

    assert told(one, BatchesAnswered(frozenset({FIRST})), now=NOW + 57.0) == [SendAddOffsets(WHO, "g", 3.0)]
    assert told(one, OffsetsAdded(), now=NOW + 60.0) == []
    one.handle_timer(one.next_deadline())
    assert list(one.effects()) == [SendEnd(WHO, is_commit=False, timeout_s=5.0)]


def in_doubt() -> TransactionMachine:
    """One whose commit was sent and not answered, and whose call is over."""
    one = member_in(ProducerState.COMMITTING)
    told(one, BatchesAnswered(frozenset({FIRST})), OffsetsAdded(), OffsetsStored())
    told(one, Unanswered("silence"), now=NOW + 59.99)
    one.handle_timer(NOW + 60.0)
    (effect,) = one.effects()
    assert "not known whether it is done" in str(effect.error)
    assert one.next_deadline() is None
    return one


def test_a_commit_in_doubt_is_a_commit_still():
    """Sent and not answered, it may be done: it cannot be aborted, and is asked for again whatever comes next."""
    for event in (CommitTransaction(None, 60.0), Settle(60.0)):
        one = in_doubt()
        assert one.is_in_doubt
        assert not one.allows(AbortTransaction)
        assert not one.allows(BeginTransaction)

        assert told(one, event, now=NOW + 70.0) == [SendEnd(WHO, is_commit=True, timeout_s=20.0)]
        assert told(one, Ended(), now=NOW + 70.0) == []
        assert not one.is_in_doubt
        assert one.state is ProducerState.UNINITIALISED


@pytest.mark.parametrize(
    "event", [Fenced("fenced"), TransactionFailed(REFUSED), NoTransaction(REFUSED)], ids=lambda e: type(e).__name__
)
def test_a_doubt_that_stays_is_told(event):
    """Who is fenced or fails with a commit in doubt is told that it may have been done."""
    one = in_doubt()

    told(one, CommitTransaction(None, 60.0), event)

    assert "whether the commit that was sent before is done is not known" in str(one.error)


def test_an_abort_that_takes_too_long_is_left_to_the_next_call():
    """It is told and goes on with the next transaction or abort; one with a cause tells that."""
    asked_for, forced = member_in(ProducerState.IN_TRANSACTION), member_in(ProducerState.ABORTING)
    told(asked_for, AbortTransaction(5.0))

    for one, words in ((asked_for, "the abort was not acknowledged in time; last: silence"), (forced, "refused")):
        told(one, Unanswered("silence"), now=NOW + 4.99)
        one.handle_timer(NOW + 5.0)
        (effect,) = one.effects()

        assert str(effect.error) == words
        assert one.state is ProducerState.ABORTING
        assert told(one, Settle(60.0), now=NOW + 9.0) == [SendEnd(WHO, is_commit=False, timeout_s=20.0)]
        assert told(one, Ended()) == []


def test_a_producer_id_that_is_not_given_is_told():
    """The start ends in time, and another try may follow."""
    one = member()
    told(one, Settle(1.0), TryAgain("loading"))
    one.handle_timer(NOW + 1.0)

    (effect,) = one.effects()

    assert str(effect.error) == "no producer id was given in time; last: loading"
    assert told(one, Settle(1.0), now=NOW + 2.0) == [SendInit(ProducerId(), 1.0)]


# ---- who waits is cancelled ------------------------------------------------------------------------------------


def test_a_flush_that_was_cancelled_goes_on_with_the_next_call():
    """The batch under way keeps its number and is sent again; it may have arrived."""
    one = member_in(ProducerState.IN_TRANSACTION)
    told(one, Interrupted())

    assert one.state is ProducerState.IN_TRANSACTION
    assert told(one, CommitTransaction(None, 60.0)) == [SendBatches(WHO, (ProducerBatch(FIRST, 0, 10),), 20.0)]
    told(one, BatchesAnswered(frozenset({FIRST})), Ended())
    assert one.state is ProducerState.UNINITIALISED


def test_a_commit_that_was_cancelled_before_it_was_sent_is_an_abort():
    """Nobody waits for it, so it is not made; the next call takes it back."""
    one = member_in(ProducerState.COMMITTING)

    assert told(one, Interrupted()) == []
    assert one.state is ProducerState.ABORTING
    assert "its commit was cancelled" in str(one.aborted_by)
    assert told(one, Settle(60.0)) == [SendEnd(WHO, is_commit=False, timeout_s=20.0)]
    assert told(one, Ended()) == []


def test_a_commit_that_was_cancelled_after_it_was_sent_is_in_doubt():
    """What was sent cannot be called back."""
    one = member_in(ProducerState.COMMITTING)
    told(one, BatchesAnswered(frozenset({FIRST})), OffsetsAdded(), OffsetsStored(), Interrupted())

    assert one.is_in_doubt
    assert told(one, Settle(60.0)) == [SendEnd(WHO, is_commit=True, timeout_s=20.0)]
