"""Records of a transaction: when batches are sent, and which failures end the transaction."""

from __future__ import annotations

import pytest

from tailrace.core.backoff import Backoff
from tailrace.error_codes import ErrorCode
from tailrace.errors import AuthenticationError, PublishError, PublishTooLargeError
from tailrace.producer.accumulator import (
    BatchAnswer,
    DeliveredBatch,
    PendingBatch,
    ProduceReaction,
    ProducerSettings,
    TransactionAccumulator,
    reaction_to,
)
from tailrace.producer.publisher import OutgoingRecord
from tailrace.producer.transaction_machine import MustAbort, ProducerFenced, ProducerId, TransactionFailed
from tailrace.producer.transaction_reactions import TransactionRequestKind, event_of
from tailrace.records import TopicPartition
from tests.support.simulation.listed_batch import ListedBatch

PLACE, OTHER = TopicPartition("t", 0), TopicPartition("t", 1)


class Bench:
    """Accumulator in a transaction, with one leader and a clock."""

    def __init__(self, *added: TopicPartition) -> None:
        limits = ProducerSettings(0.0, 60.0, 1_000, Backoff(1.0, 8.0))
        self.records = TransactionAccumulator(limits, lambda: ListedBatch(2), lambda: 0.5)
        self.records.adopt(ProducerId(7, 3))
        self.records.begin()
        self.records.add_partitions(added)
        self.now = 100.0

    def append(self, *values: int, place: TopicPartition = PLACE) -> None:
        for value in values:
            self.records.append(place, OutgoingRecord(place.topic, value), value, self.now, self.now + 60)

    def take(self) -> list[PendingBatch]:
        taken = self.records.take_requests(self.now, lambda _place: 1, lambda _leader: 5)
        return [batch for _, batches in taken for batch in batches]

    def answer(self, batch: PendingBatch, code: int = 0, offset: int = 0, detail: str = "") -> list:
        self.records.end_request(1)
        return self.records.handle_answer(batch, BatchAnswer(code, offset, detail), self.now)


def test_batches_wait_until_their_partition_is_added():
    """The batches of a partition are sent after its AddPartitionsToTxn, and do not delay those of other partitions."""
    bench = Bench(PLACE)
    bench.append(1)
    bench.append(2, place=OTHER)

    assert bench.records.new_partitions == (OTHER,)
    assert [batch.partition for batch in bench.take()] == [PLACE]
    assert bench.take() == []
    bench.records.add_partitions([OTHER])
    assert [batch.partition for batch in bench.take()] == [OTHER]
    assert bench.records.new_partitions == ()


def test_partitions_are_added_to_each_transaction():
    """Each transaction adds its partitions again, while epoch and sequence continue."""
    bench = Bench(PLACE)
    bench.append(1)
    (batch,) = bench.take()
    bench.answer(batch)
    assert bench.records.is_empty

    bench.records.begin()
    bench.append(2)
    assert bench.records.new_partitions == (PLACE,)
    bench.records.add_partitions([PLACE])
    (batch,) = bench.take()
    assert (batch.producer, batch.sequence) == (ProducerId(7, 3), 1)


def test_several_batches_of_a_partition_are_in_flight():
    """Several batches of a partition may be in flight in a transaction, too."""
    bench = Bench(PLACE)
    bench.append(0)
    bench.answer(bench.take()[0])

    bench.append(*range(1, 20))

    assert [(batch.producer.epoch, batch.sequence) for batch in bench.take()] == [(3, 1 + 2 * n) for n in range(5)]


FINAL = [
    code
    for code in ErrorCode
    if reaction_to(code) not in {ProduceReaction.STORED, ProduceReaction.RETRY, ProduceReaction.LOOK_UP}
]


@pytest.mark.parametrize("code", FINAL, ids=lambda code: code.name)
def test_a_batch_that_cannot_be_stored_ends_the_transaction(code):
    """A batch that cannot be stored ends the transaction: nothing more is sent, and records wait to be discarded."""
    bench = Bench(PLACE, OTHER)
    bench.append(1, 2)
    (batch,) = bench.take()
    bench.append(3, place=OTHER)

    assert bench.answer(batch, code) == []

    assert isinstance(bench.records.failure, MustAbort | ProducerFenced | TransactionFailed)
    assert type(bench.records.failure) is type(event_of(code, TransactionRequestKind.PRODUCE))
    bench.now += 30
    assert bench.take() == []
    assert bench.records.needs_new_epoch
    failed = bench.records.fail_all(PublishError("aborted"))
    assert sorted(ticket for one in failed for ticket in one.batch.tickets) == [1, 2, 3]
    assert bench.records.is_empty
    assert bench.records.buffered_bytes == 0


def test_a_record_that_is_too_large_is_named():
    """The event of a record that is too large has the partition and the broker's message."""
    bench = Bench(PLACE)
    bench.append(1)
    bench.answer(bench.take()[0], ErrorCode.MESSAGE_TOO_LARGE, detail="1,000 bytes")

    failure = bench.records.failure
    assert isinstance(failure, MustAbort)
    assert isinstance(failure.error, PublishTooLargeError)
    assert "t[0] (1,000 bytes): Produce was refused (MESSAGE_TOO_LARGE" in str(failure.error)


def test_a_gap_ends_the_transaction_only_if_nothing_before_it_is_unsettled():
    """A sequence error after an unsettled batch is retried, since the batch has only overtaken it."""
    bench = Bench(PLACE)
    bench.append(0)
    bench.answer(bench.take()[0])
    bench.append(1, 2, 3, 4)
    bench.records.finish()
    first, second = bench.take()

    bench.answer(first, ErrorCode.NOT_ENOUGH_REPLICAS)
    bench.answer(second, ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER)
    assert bench.records.failure is None
    bench.now += 1
    assert bench.take() == [first]
    assert bench.answer(first, offset=1) == [DeliveredBatch(first, 1)]
    assert bench.take() == [second]
    bench.answer(second, ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER)
    assert isinstance(bench.records.failure, MustAbort)
    assert bench.records.failure.needs_new_epoch


def test_the_worst_failure_counts():
    """The gravest failure is reported: a fenced producer is not reported as an abortable transaction."""
    bench = Bench(PLACE, OTHER)
    bench.append(1)
    bench.append(2, place=OTHER)
    first, second = bench.take()

    bench.answer(first, ErrorCode.MESSAGE_TOO_LARGE)
    bench.records.handle_answer(second, BatchAnswer(ErrorCode.INVALID_PRODUCER_EPOCH), bench.now)

    assert isinstance(bench.records.failure, ProducerFenced)


def test_an_error_that_no_retry_resolves_ends_the_producer():
    """An error that no retry resolves, such as refused credentials, ends the producer."""
    bench = Bench(PLACE)
    bench.append(1)
    error = AuthenticationError("no")

    assert bench.records.fail_batch(bench.take()[0], error) == []

    assert bench.records.failure == TransactionFailed(error)


def test_a_record_that_takes_too_long_ends_the_transaction():
    """A record that is not delivered in time ends the transaction; the reason has its last error."""
    bench = Bench(PLACE)
    bench.append(1)
    (batch,) = bench.take()
    bench.answer(batch, ErrorCode.NOT_ENOUGH_REPLICAS)
    assert bench.records.next_deadline(bench.now) == 101.0
    bench.now = 160.0

    assert bench.records.expire(bench.now) == []

    failure = bench.records.failure
    assert isinstance(failure, MustAbort)
    assert "last error: t[0]: NOT_ENOUGH_REPLICAS" in str(failure.error)
    assert bench.take() == []
    assert bench.records.next_deadline(bench.now) is None


def test_discarded_records_in_flight_end_at_once():
    """Discarded records in flight end at once, and a later response decides if their sequence has a gap."""
    bench = Bench(PLACE)
    bench.append(1)
    (batch,) = bench.take()
    (failed,) = bench.records.fail_all(PublishError("aborted"))
    assert failed.batch is batch
    assert not bench.records.is_empty

    assert bench.answer(batch) == []

    assert bench.records.is_empty
    assert not bench.records.needs_new_epoch


@pytest.mark.parametrize("code", [ErrorCode.NOT_ENOUGH_REPLICAS, ErrorCode.MESSAGE_TOO_LARGE])
def test_a_discarded_batch_that_was_not_stored_leaves_a_gap(code):
    """A discarded batch that was refused or not answered leaves a gap in the sequence."""
    bench = Bench(PLACE)
    bench.append(1)
    (batch,) = bench.take()
    bench.records.fail_all(PublishError("aborted"))

    bench.answer(batch, code)

    assert bench.records.needs_new_epoch


@pytest.mark.parametrize("was_sent", [True, False])
def test_after_a_batch_without_an_answer_the_epoch_is_new(was_sent):
    """A batch without an answer requires a new epoch, even if its copy was stored; an unsent one does not."""
    bench = Bench(PLACE)
    bench.append(1)
    (batch,) = bench.take()
    bench.records.end_request(1)
    bench.records.handle_no_answer(batch, "lost", bench.now, was_sent=was_sent)
    bench.now += 1
    (again,) = bench.take()
    bench.answer(again)

    assert bench.records.needs_new_epoch is was_sent
    bench.records.adopt(ProducerId(7, 4))
    assert not bench.records.needs_new_epoch
    bench.records.begin()
    bench.records.add_partitions([PLACE])
    bench.append(2)
    (batch,) = bench.take()
    assert (batch.producer, batch.sequence) == (ProducerId(7, 4), 0)
