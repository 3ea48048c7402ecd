"""Transactional producer: transition table and examples."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tailrace.core.group_requests import Identity
from tailrace.errors import CommitFailedError, ProducerFencedError, PublishError
from tailrace.producer import transaction_machine as transaction_events
from tailrace.producer.transaction_machine import (
    OVER,
    REQUESTING,
    TABLE,
    AbortTransaction,
    AddPartitions,
    AdmitPartitions,
    BeginTransaction,
    CallCanceled,
    CallTimedOut,
    ChooseVersion,
    CommitTransaction,
    CompletePendingWork,
    CoordinatorMoved,
    DeliverRecords,
    DiscardRecords,
    GenerationRefused,
    GroupOffsets,
    LookUpCoordinator,
    MustAbort,
    NoOpenTransaction,
    OffsetsAdded,
    OffsetsStored,
    PartitionsAdded,
    ProducerFenced,
    ProducerId,
    ProducerIdReceived,
    ProducerState,
    RecordsSettled,
    ReportError,
    SendAddOffsets,
    SendAddPartitions,
    SendEnd,
    SendInit,
    SendOffsets,
    TransactionEnded,
    TransactionEvent,
    TransactionFailed,
    TransactionMachine,
    TryAgain,
    Unanswered,
)
from tailrace.protocol.groups import CommitOffset
from tests.support.simulation.driven_machine import check_events, effects_after
from tests.support.simulation.transactional_member import FIRST, NOW, SECOND, member

WHO = ProducerId(7, 3)
OFFSETS = GroupOffsets("g", Identity("m", 5, "i"), (CommitOffset("in", 0, 42),))
REFUSED = PublishError("refused")
ABORT_UNANSWERED = (
    "the abort was not acknowledged in time - call abort() again, or begin(), to complete it; last error: silence"
)
SETTLED = RecordsSettled(needs_new_epoch=False)

EVENTS: dict[type[TransactionEvent], TransactionEvent] = {
    type(one): one
    for one in (
        CompletePendingWork(60.0),
        ChooseVersion(1, 60.0),
        BeginTransaction(),
        AddPartitions((FIRST,), 60.0),
        CommitTransaction(OFFSETS, 60.0),
        AbortTransaction(60.0),
        ProducerIdReceived(WHO),
        PartitionsAdded(),
        SETTLED,
        OffsetsAdded(),
        OffsetsStored(),
        TransactionEnded(),
        TryAgain("not now"),
        CoordinatorMoved("elsewhere"),
        Unanswered("silence"),
        MustAbort(REFUSED),
        GenerationRefused(REFUSED),
        NoOpenTransaction(REFUSED),
        ProducerFenced("fenced"),
        TransactionFailed(REFUSED),
        CallTimedOut(),
        CallCanceled(),
    )
}

WAY: list[tuple[ProducerState, tuple[TransactionEvent, ...]]] = [
    (ProducerState.UNINITIALIZED, (CompletePendingWork(60.0),)),
    (ProducerState.READY, (ProducerIdReceived(WHO),)),
    (ProducerState.IN_TRANSACTION, (BeginTransaction(), AddPartitions((FIRST,), 60.0), PartitionsAdded())),
    (ProducerState.COMMITTING, (CommitTransaction(OFFSETS, 60.0),)),
]
"""Events from each state to the next; records are being delivered in the last one."""


def member_in(state: ProducerState) -> TransactionMachine:
    """Return a machine in ``state`` since NOW, whose effects so far are performed."""
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
        one.receive(EVENTS[ProducerFenced if state is ProducerState.FENCED else TransactionFailed], NOW)
    assert one.state is state
    list(one.effects())
    return one


def aborting() -> TransactionMachine:
    """Return a machine that has sent its abort."""
    one = member_in(ProducerState.ABORTING)
    effects_after(one, SETTLED)
    return one


def data_of(one: TransactionMachine) -> dict:
    """Return the data of a machine."""
    return {name: str(value) if name == "_transaction" else value for name, value in vars(one).items()}


# ---- the table -------------------------------------------------------------------------------------------------


def test_the_examples_leave_out_no_event():
    check_events(transaction_events, TransactionEvent, TABLE, EVENTS)


@pytest.mark.parametrize("state", ProducerState)
@pytest.mark.parametrize("event", EVENTS.values(), ids=lambda event: type(event).__name__)
def test_every_event_is_handled_in_every_state(state, event):
    """In every state the table has a transition for an event, or the machine raises and is unchanged."""
    one = member_in(state)
    before = data_of(one)
    rule = TABLE.get((state, type(event)))
    assert one.allows(type(event)) is (rule is not None or state in OVER)

    if state in OVER:
        assert effects_after(one, event) == []
        assert one.state is state
    elif rule is None:
        with pytest.raises(ValueError, match=f"{type(event).__name__} cannot happen while {state}"):
            one.receive(event, NOW)
        assert data_of(one) == before
        assert list(one.effects()) == []
    else:
        one.receive(event, NOW)
        assert one.state in {rule.then, *rule.exceptions}


def test_every_state_is_reached_and_left():
    """Each state is reached, and each except the last two is left."""
    ways = {(state, then) for (state, _), rule in TABLE.items() for then in (rule.then, *rule.exceptions)}

    assert {then for state, then in ways if state is not then} == set(ProducerState)
    assert {state for state, then in ways if state is not then} == set(ProducerState) - OVER


# ---- a transaction ---------------------------------------------------------------------------------------------


def test_a_transaction_sends_its_requests_in_order():
    """A transaction adds partitions, delivers records, adds and stores offsets, and sends the commit, in this order."""
    one = member()
    assert effects_after(one, CompletePendingWork(30.0)) == [SendInit(ProducerId(), 20.0)]
    assert effects_after(one, ProducerIdReceived(WHO), BeginTransaction()) == []

    assert effects_after(one, AddPartitions((FIRST, SECOND), 60.0)) == [SendAddPartitions(WHO, (FIRST, SECOND), 20.0)]
    assert effects_after(one, PartitionsAdded()) == []
    assert effects_after(one, CommitTransaction(OFFSETS, 60.0)) == [DeliverRecords(20.0)]
    assert effects_after(one, SETTLED) == [SendAddOffsets(WHO, "g", 20.0)]
    assert effects_after(one, OffsetsAdded()) == [SendOffsets(WHO, OFFSETS, 20.0)]
    assert effects_after(one, OffsetsStored()) == [SendEnd(WHO, is_commit=True, timeout_s=20.0)]
    assert effects_after(one, TransactionEnded()) == []
    assert (one.state, one.next_deadline(), one.error, one.aborted_by) == (ProducerState.READY, None, None, None)


def test_partitions_may_be_added_during_the_commit():
    """A partition may be added during a commit, after which the delivery of records continues."""
    one = member_in(ProducerState.COMMITTING)

    assert effects_after(one, AddPartitions((SECOND,), 60.0)) == [SendAddPartitions(WHO, (SECOND,), 20.0)]
    assert effects_after(one, PartitionsAdded()) == [DeliverRecords(20.0)]


@pytest.mark.parametrize(
    ("ending", "over"), [(CommitTransaction(None, 60.0), SETTLED), (AbortTransaction(60.0), SETTLED)]
)
def test_an_empty_transaction_sends_nothing(ending, over):
    """Neither commit nor abort sends EndTxn for a transaction without partitions and offsets."""
    one = member_in(ProducerState.READY)

    (effect,) = effects_after(one, BeginTransaction(), ending)

    assert isinstance(effect, DeliverRecords | DiscardRecords)
    assert effects_after(one, over) == []
    assert one.state is ProducerState.READY


def test_offsets_alone_are_a_transaction():
    """A transaction may store offsets without records."""
    one = member_in(ProducerState.READY)
    effects_after(one, BeginTransaction(), CommitTransaction(OFFSETS, 60.0))

    effects = effects_after(one, SETTLED, OffsetsAdded(), OffsetsStored(), TransactionEnded())

    assert [type(effect) for effect in effects] == [SendAddOffsets, SendOffsets, SendEnd]
    assert one.state is ProducerState.READY


# ---- failures --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "trouble", [TryAgain("busy"), CoordinatorMoved("elsewhere"), Unanswered("silence")], ids=lambda t: t.reason
)
def test_a_failed_request_is_sent_again_unchanged(trouble):
    """A failed request is sent again after a growing pause (KIP-580), to a coordinator that is looked up again."""
    one = member_in(ProducerState.READY)
    question = SendAddPartitions(WHO, (FIRST,), 20.0)
    assert effects_after(one, BeginTransaction(), AddPartitions((FIRST,), 60.0)) == [question]

    now, pauses = NOW, []
    for _ in range(6):
        effects = effects_after(one, trouble, now=now)
        assert effects == ([] if isinstance(trouble, TryAgain) else [LookUpCoordinator(question, trouble.reason)])
        pauses.append(one.next_deadline() - now)
        one.handle_timer(now)
        assert list(one.effects()) == []
        now = one.next_deadline()
        one.handle_timer(now)
        assert list(one.effects()) == [question]

    assert pauses == pytest.approx([0.1, 0.2, 0.4, 0.8, 1.0, 1.0])


def test_records_that_take_long_are_waited_for_again():
    """Unacknowledged records are awaited again without a coordinator lookup."""
    one = member_in(ProducerState.COMMITTING)

    assert effects_after(one, TryAgain("records are not acknowledged")) == []
    one.handle_timer(one.next_deadline())
    assert list(one.effects()) == [DeliverRecords(20.0)]


def test_the_end_of_the_previous_transaction_is_awaited_briefly():
    """While the coordinator still writes markers, the next request follows within milliseconds."""
    one = member_in(ProducerState.READY)
    effects_after(one, BeginTransaction(), AddPartitions((FIRST,), 60.0), TryAgain("concurrent", is_soon=True))

    assert one.next_deadline() == pytest.approx(NOW + 0.005)


@pytest.mark.parametrize(
    "ending",
    [
        (CommitTransaction(None, 60.0), SETTLED, TransactionEnded()),
        (AbortTransaction(60.0), SETTLED, TransactionEnded()),
        (MustAbort(REFUSED), SETTLED, TransactionEnded()),
    ],
    ids=["commit", "abort", "refused"],
)
def test_after_a_request_without_an_answer_the_epoch_is_new(ending):
    """After a request without a response the next transaction has a new epoch, as it may still arrive (KIP-360)."""
    one = member_in(ProducerState.IN_TRANSACTION)
    effects_after(one, AddPartitions((SECOND,), 60.0), Unanswered("silence"))
    one.handle_timer(one.next_deadline())
    effects_after(one, PartitionsAdded())

    effects_after(one, *ending)

    assert one.state is ProducerState.UNINITIALIZED
    assert effects_after(one, CompletePendingWork(60.0)) == [SendInit(WHO, 20.0)]
    effects_after(one, ProducerIdReceived(ProducerId(7, 4)), BeginTransaction())
    assert effects_after(one, AddPartitions((FIRST,), 60.0)) == [SendAddPartitions(ProducerId(7, 4), (FIRST,), 20.0)]
    effects_after(one, PartitionsAdded(), CommitTransaction(None, 60.0), SETTLED, TransactionEnded())
    assert one.state is ProducerState.READY


@pytest.mark.parametrize(
    "ending",
    [
        (CommitTransaction(None, 60.0), RecordsSettled(needs_new_epoch=True), TransactionEnded()),
        (AbortTransaction(60.0), RecordsSettled(needs_new_epoch=True), TransactionEnded()),
        (MustAbort(REFUSED, needs_new_epoch=True), SETTLED, TransactionEnded()),
    ],
    ids=["late batch", "gap", "lost by the broker"],
)
def test_a_broken_sequence_continues_in_a_new_epoch(ending):
    """After a broken sequence the next epoch starts with sequence zero."""
    one = member_in(ProducerState.IN_TRANSACTION)

    effects_after(one, *ending)

    assert one.state is ProducerState.UNINITIALIZED
    assert effects_after(one, CompletePendingWork(60.0)) == [SendInit(WHO, 20.0)]


@pytest.mark.parametrize("state", [ProducerState.IN_TRANSACTION, ProducerState.COMMITTING])
def test_a_transaction_that_cannot_be_committed_is_aborted(state):
    """A transaction that cannot be committed is aborted, its records are discarded, and then the cause is reported."""
    one = member_in(state)
    error = CommitFailedError("the group has gone on")

    assert effects_after(one, MustAbort(error)) == [DiscardRecords(2.5)]
    assert (one.state, one.aborted_by) == (ProducerState.ABORTING, error)
    assert effects_after(one, SETTLED) == [SendEnd(WHO, is_commit=False, timeout_s=5.0)]
    assert effects_after(one, TransactionEnded()) == [ReportError(error)]
    assert one.state is ProducerState.READY
    one.receive(BeginTransaction(), NOW)
    assert one.aborted_by is None


def test_the_abort_of_a_transaction_that_the_coordinator_never_knew_succeeds():
    """An abort succeeds if AddPartitionsToTxn was refused or lost, as there may be nothing to abort."""
    one = member_in(ProducerState.READY)
    effects_after(one, BeginTransaction(), AddPartitions((FIRST,), 60.0))

    assert effects_after(one, MustAbort(REFUSED), SETTLED) == [
        DiscardRecords(2.5),
        SendEnd(WHO, is_commit=False, timeout_s=5.0),
    ]
    assert effects_after(one, NoOpenTransaction(PublishError("no such transaction"))) == [ReportError(REFUSED)]
    assert one.state is ProducerState.READY


def test_an_acknowledged_transaction_that_the_coordinator_lost_ends_the_producer():
    """A coordinator that loses a transaction whose partitions it has acknowledged ends the producer."""
    one = aborting()
    error = PublishError("no such transaction")

    assert effects_after(one, NoOpenTransaction(error)) == [ReportError(error)]
    assert one.state is ProducerState.FAILED


def test_a_refused_abort_takes_a_new_epoch_or_fails_the_producer():
    """After a refused abort a producer takes a new epoch if it was forgotten, and fails if it is not permitted."""
    forgotten, forbidden = aborting(), aborting()

    assert effects_after(forgotten, MustAbort(PublishError("who?"), needs_new_epoch=True)) == [ReportError(REFUSED)]
    assert forgotten.state is ProducerState.UNINITIALIZED
    effects_after(forbidden, MustAbort(PublishError("no")))
    assert forbidden.state is ProducerState.FAILED


@pytest.mark.parametrize("state", REQUESTING)
def test_a_fenced_producer_stops(state):
    """A fenced producer sends nothing more and reports its error once."""
    one = member_in(state)

    (effect,) = effects_after(one, ProducerFenced("EndTxn: PRODUCER_FENCED"))

    assert isinstance(effect, ReportError)
    assert effect.error is one.error
    assert isinstance(one.error, ProducerFencedError)
    assert "another process has the same transactional_id 'me'" in str(one.error)
    assert "EndTxn: PRODUCER_FENCED" in str(one.error)
    assert (one.state, one.is_over, one.next_deadline()) == (ProducerState.FENCED, True, None)


def test_a_transaction_timeout_is_distinguished_from_a_second_producer():
    """If a producer is fenced after a transaction timeout, the error names the timeout and not a second process."""
    one = member_in(ProducerState.IN_TRANSACTION)

    effects_after(one, ProducerFenced("fenced"), now=NOW + 61.0)

    assert "took 61.0 s" in str(one.error)
    assert "raise transaction_timeout_ms" in str(one.error)


def storing() -> TransactionMachine:
    """Return a machine that has sent its offsets."""
    one = member_in(ProducerState.COMMITTING)
    effects_after(one, SETTLED, OffsetsAdded())
    return one


def test_offsets_are_sent_again_under_a_newer_generation():
    """A member that kept its partitions in a rebalance commits with the generation that it has joined meanwhile."""
    one = storing()
    newer = Identity("m", 6, "i")

    assert effects_after(one, GenerationRefused(REFUSED, newer)) == [
        SendOffsets(WHO, replace(OFFSETS, identity=newer), 20.0)
    ]
    assert effects_after(one, OffsetsStored()) == [SendEnd(WHO, is_commit=True, timeout_s=20.0)]


def test_offsets_are_sent_again_when_the_newer_generation_is_known():
    """Refused offsets are sent again when the member learns of a newer generation."""
    one = storing()
    newer = Identity("m", 6, "i")

    assert effects_after(one, GenerationRefused(REFUSED, OFFSETS.identity)) == []
    assert one.next_deadline() == pytest.approx(NOW + 0.005)
    one.handle_timer(NOW + 0.005)
    assert list(one.effects()) == [SendOffsets(WHO, OFFSETS, pytest.approx(20.0))]
    assert effects_after(one, GenerationRefused(REFUSED, newer)) == [
        SendOffsets(WHO, replace(OFFSETS, identity=newer), 20.0)
    ]


def test_offsets_of_partitions_that_are_no_longer_owned_abort():
    """A commit of partitions that are no longer owned is aborted, as their next owner handles the records again."""
    one = storing()

    assert effects_after(one, GenerationRefused(REFUSED, None), SETTLED, TransactionEnded()) == [
        DiscardRecords(2.5),
        SendEnd(WHO, is_commit=False, timeout_s=5.0),
        ReportError(REFUSED),
    ]


def test_offsets_refused_until_the_timeout_abort_the_transaction():
    """A commit whose generation is refused until its timeout is aborted, with the refusal as the reason."""
    one = storing()
    effects_after(one, GenerationRefused(REFUSED, OFFSETS.identity), now=NOW + 59.999)

    one.handle_timer(NOW + 60.0)

    assert one.state is ProducerState.ABORTING
    assert "last error: refused" in str(one.aborted_by)


# ---- time ------------------------------------------------------------------------------------------------------


def test_a_commit_that_takes_too_long_is_aborted():
    """A commit that exceeds its time is aborted, and the reason is reported after the abort."""
    one = member_in(ProducerState.COMMITTING)
    effects_after(one, TryAgain("too few replicas"), now=NOW + 59.95)
    assert one.next_deadline() == NOW + 60.0

    one.handle_timer(NOW + 60.0)

    assert list(one.effects()) == [DiscardRecords(2.5)]
    (end, effect) = effects_after(one, SETTLED, TransactionEnded(), now=NOW + 60.1)
    assert end == SendEnd(WHO, is_commit=False, timeout_s=pytest.approx(4.9))
    assert "last error: too few replicas" in str(effect.error)


def test_no_request_lasts_longer_than_its_call():
    """A request has the remaining time of its call, and is not sent if there is none."""
    one = member_in(ProducerState.COMMITTING)

    assert effects_after(one, SETTLED, now=NOW + 57.0) == [SendAddOffsets(WHO, "g", 3.0)]
    assert effects_after(one, OffsetsAdded(), now=NOW + 60.0) == []
    one.handle_timer(one.next_deadline())
    assert list(one.effects()) == [DiscardRecords(2.5)]


def in_doubt() -> TransactionMachine:
    """Return a machine whose commit was sent and not answered, and whose call is over."""
    one = member_in(ProducerState.COMMITTING)
    effects_after(one, SETTLED, OffsetsAdded(), OffsetsStored())
    effects_after(one, Unanswered("silence"), now=NOW + 59.99)
    one.handle_timer(NOW + 60.0)
    (effect,) = one.effects()
    assert "not known whether it has succeeded" in str(effect.error)
    assert one.next_deadline() is None
    return one


def test_a_commit_in_doubt_cannot_be_aborted():
    """A commit that was sent and not answered cannot be aborted, and the next calls repeat it."""
    for event in (CommitTransaction(None, 60.0), CompletePendingWork(60.0)):
        one = in_doubt()
        assert one.is_in_doubt
        assert not one.allows(AbortTransaction)
        assert not one.allows(BeginTransaction)

        assert effects_after(one, event, now=NOW + 70.0) == [SendEnd(WHO, is_commit=True, timeout_s=20.0)]
        assert effects_after(one, TransactionEnded(), now=NOW + 70.0) == []
        assert not one.is_in_doubt
        assert one.state is ProducerState.UNINITIALIZED


@pytest.mark.parametrize(
    "event",
    [ProducerFenced("fenced"), TransactionFailed(REFUSED), NoOpenTransaction(REFUSED)],
    ids=lambda e: type(e).__name__,
)
def test_an_error_with_a_commit_in_doubt_says_that_it_may_have_succeeded(event):
    """If a producer ends with a commit in doubt, its error says that the commit may have succeeded."""
    one = in_doubt()

    effects_after(one, CommitTransaction(None, 60.0), event)

    assert "it is not known whether the last commit has succeeded" in str(one.error)


def test_a_commit_that_is_refused_at_once_is_not_in_doubt():
    """If the first EndTxn is answered with a fenced epoch, as after a timeout, nothing was committed."""
    one = member_in(ProducerState.COMMITTING)
    effects_after(one, SETTLED, OffsetsAdded(), OffsetsStored())

    effects_after(one, ProducerFenced("EndTxn: INVALID_TXN_STATE"), now=NOW + 61.0)

    assert "took 61.0 s" in str(one.error)
    assert "not known" not in str(one.error)


def test_an_abort_that_takes_too_long_is_left_to_the_next_call():
    """An abort that times out reports its cause, if any, and continues with the next transaction or abort."""
    asked_for, forced = member_in(ProducerState.IN_TRANSACTION), aborting()
    effects_after(asked_for, AbortTransaction(5.0), SETTLED)

    for one, words in ((asked_for, ABORT_UNANSWERED), (forced, "refused")):
        effects_after(one, Unanswered("silence"), now=NOW + 4.99)
        one.handle_timer(NOW + 5.0)
        (effect,) = one.effects()

        assert str(effect.error) == words
        assert one.state is ProducerState.ABORTING
        assert effects_after(one, CompletePendingWork(60.0), now=NOW + 9.0) == [
            SendEnd(WHO, is_commit=False, timeout_s=20.0)
        ]
        assert effects_after(one, TransactionEnded()) == []


def test_a_refused_producer_id_raises():
    """A start whose producer id is refused raises, and may be repeated."""
    one = member()
    effects_after(one, CompletePendingWork(1.0), TryAgain("loading"))
    one.handle_timer(NOW + 1.0)

    (effect,) = one.effects()

    assert str(effect.error) == (
        "the brokers gave no producer id in time - check that they are reachable; last error: loading"
    )
    assert effects_after(one, CompletePendingWork(1.0), now=NOW + 2.0) == [SendInit(ProducerId(), 1.0)]


# ---- canceled calls --------------------------------------------------------------------------------------------


def test_partitions_whose_request_was_canceled_are_added_by_the_commit():
    """Partitions whose request was canceled are added by the commit, and the next epoch is new."""
    one = member_in(ProducerState.IN_TRANSACTION)
    effects_after(one, AddPartitions((SECOND,), 60.0), CallCanceled())

    assert one.state is ProducerState.IN_TRANSACTION
    assert effects_after(one, CommitTransaction(None, 60.0)) == [SendAddPartitions(WHO, (SECOND,), 20.0)]
    assert effects_after(one, PartitionsAdded()) == [DeliverRecords(20.0)]
    effects_after(one, SETTLED, TransactionEnded())
    assert one.state is ProducerState.UNINITIALIZED


@pytest.mark.parametrize("done", [(), (SETTLED,), (SETTLED, OffsetsAdded())], ids=["records", "offsets", "stored"])
def test_a_commit_that_was_canceled_before_end_txn_is_an_abort(done):
    """A commit canceled before EndTxn was sent is aborted by the next call."""
    one = member_in(ProducerState.COMMITTING)
    effects_after(one, *done)

    assert effects_after(one, CallCanceled()) == []
    assert one.state is ProducerState.ABORTING
    assert "its commit was canceled" in str(one.aborted_by)
    assert effects_after(one, CompletePendingWork(60.0)) == [DiscardRecords(10.0)]
    assert effects_after(one, SETTLED) == [SendEnd(WHO, is_commit=False, timeout_s=20.0)]
    assert effects_after(one, TransactionEnded()) == []


def test_a_commit_that_was_canceled_after_end_txn_is_in_doubt():
    """A commit that was canceled after EndTxn was sent is in doubt."""
    one = member_in(ProducerState.COMMITTING)
    effects_after(one, SETTLED, OffsetsAdded(), OffsetsStored(), CallCanceled())

    assert one.is_in_doubt
    assert effects_after(one, CompletePendingWork(60.0)) == [SendEnd(WHO, is_commit=True, timeout_s=20.0)]


# ---- version 2 (KIP-890) ---------------------------------------------------------------------------------------

NEXT = ProducerId(7, 4)


def open_in_version_2() -> TransactionMachine:
    """Return a machine with an open transaction of version 2, whose first partition may be sent."""
    one = member_in(ProducerState.READY)
    effects_after(one, ChooseVersion(2, 60.0), BeginTransaction(), AddPartitions((FIRST,), 60.0), PartitionsAdded())
    return one


def test_version_2_sends_no_request_before_the_offsets():
    """In version 2, no request adds partitions or the group, and the epoch of EndTxn's answer is used next."""
    one = member_in(ProducerState.READY)

    assert effects_after(one, ChooseVersion(2, 60.0), BeginTransaction()) == []
    assert effects_after(one, AddPartitions((FIRST, SECOND), 60.0)) == [AdmitPartitions((FIRST, SECOND))]
    assert effects_after(one, PartitionsAdded()) == []
    assert effects_after(one, CommitTransaction(OFFSETS, 60.0)) == [DeliverRecords(20.0)]
    assert effects_after(one, SETTLED) == [SendOffsets(WHO, OFFSETS, 20.0, version=2)]
    assert effects_after(one, OffsetsStored()) == [SendEnd(WHO, is_commit=True, timeout_s=20.0, version=2)]
    assert effects_after(one, TransactionEnded(NEXT)) == []
    assert (one.state, one.producer) == (ProducerState.READY, NEXT)


def test_the_epoch_of_the_end_replaces_another_request_for_an_epoch():
    """In version 2, an unanswered request needs no InitProducerId, because the end of the transaction fences it."""
    one = open_in_version_2()
    effects_after(one, CommitTransaction(OFFSETS, 60.0), SETTLED)

    effects_after(one, Unanswered("silence"))
    one.handle_timer(NOW + 1.0)
    effects_after(one, OffsetsStored(), TransactionEnded(NEXT))

    assert (one.state, one.producer) == (ProducerState.READY, NEXT)


def test_a_refused_transaction_of_version_2_is_aborted_with_a_new_epoch():
    """An abort of version 2 is sent although the coordinator may not know the transaction, and returns an epoch."""
    one = open_in_version_2()

    assert effects_after(one, MustAbort(REFUSED), SETTLED) == [
        DiscardRecords(2.5),
        SendEnd(WHO, is_commit=False, timeout_s=5.0, version=2),
    ]
    assert effects_after(one, TransactionEnded(NEXT)) == [ReportError(REFUSED)]
    assert (one.state, one.producer) == (ProducerState.READY, NEXT)


def test_a_finalized_version_2_begins_with_a_new_epoch():
    """After a transaction of version 1, the first one of version 2 has a new epoch; no later one asks for it."""
    one = member_in(ProducerState.READY)
    effects_after(one, ChooseVersion(1, 60.0), BeginTransaction(), AbortTransaction(60.0), SETTLED)

    assert effects_after(one, ChooseVersion(2, 60.0)) == [SendInit(WHO, 20.0)]
    assert effects_after(one, ProducerIdReceived(NEXT)) == []
    assert effects_after(one, ChooseVersion(2, 60.0)) == []
    assert (one.state, one.version) == (ProducerState.READY, 2)


def test_a_transaction_keeps_the_version_it_has_begun_with():
    """A downgrade is used from the next transaction on, and needs no other epoch."""
    one = open_in_version_2()
    effects_after(one, CommitTransaction(None, 60.0))

    assert effects_after(one, SETTLED) == [SendEnd(WHO, is_commit=True, timeout_s=20.0, version=2)]
    assert effects_after(one, TransactionEnded(NEXT), ChooseVersion(1, 60.0), BeginTransaction()) == []
    assert effects_after(one, AddPartitions((FIRST,), 60.0)) == [SendAddPartitions(NEXT, (FIRST,), 20.0)]


@pytest.mark.parametrize(("age_s", "state"), [(60.0, ProducerState.FENCED), (59.0, ProducerState.FAILED)])
def test_a_commit_after_the_transaction_timeout_is_known_as_such(age_s, state):
    """In version 2, the coordinator refuses the commit of a transaction that it has aborted as an invalid state."""
    one = open_in_version_2()
    effects_after(one, CommitTransaction(None, 120.0), SETTLED)

    one.receive(NoOpenTransaction(REFUSED), NOW + age_s)

    assert (one.state, one.has_timed_out) == (state, state is ProducerState.FENCED)
