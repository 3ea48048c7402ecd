"""Record accumulator: batches, sequence numbers, and reactions to responses."""

from __future__ import annotations

import pytest

from tailrace.core.backoff import Backoff
from tailrace.error_codes import ErrorCode
from tailrace.errors import PublishError, PublishTooLargeError
from tailrace.producer.accumulator import (
    Appended,
    BatchAnswer,
    DeliveredBatch,
    FailedBatch,
    PendingBatch,
    ProducerSettings,
    RecordAccumulator,
)
from tailrace.producer.publisher import OutgoingRecord
from tailrace.producer.transaction_machine import ProducerId
from tailrace.records import TopicPartition
from tests.support.simulation.listed_batch import ListedBatch

PLACE = TopicPartition("t", 0)


class Bench:
    """Accumulator with one leader, and a clock."""

    def __init__(self, *, limit: int = 2, linger_s: float = 0.0, most_bytes: int = 1_000, requests: int = 5) -> None:
        settings = ProducerSettings(linger_s, 60.0, most_bytes, Backoff(1.0, 8.0))
        self.accumulator = RecordAccumulator(settings, lambda: ListedBatch(limit), lambda: 0.5)
        self.accumulator.producer = ProducerId(7, 0)
        self.requests, self.leader, self.now = requests, 1, 100.0

    def append(self, *values: int, place: TopicPartition = PLACE) -> list[Appended]:
        return [
            self.accumulator.append(place, OutgoingRecord(place.topic, value), value, self.now, self.now + 60)
            for value in values
        ]

    def take(self) -> list[PendingBatch]:
        taken = self.accumulator.take_requests(self.now, lambda _place: self.leader, lambda _leader: self.requests)
        return [batch for _, batches in taken for batch in batches]

    def answer(self, batch: PendingBatch, code: int = 0, offset: int = 0, **more: object) -> list:
        self.accumulator.end_request(1)
        return self.accumulator.handle_answer(batch, BatchAnswer(code, offset, **more), self.now)

    def confirmed(self) -> Bench:
        """Return the bench after one acknowledged record, so that several batches may be in flight."""
        self.append(-1)
        (batch,) = self.take()
        self.answer(batch)
        return self


def numbers(batches: list[PendingBatch]) -> list[tuple[int, int, int]]:
    """Return epoch, first sequence number and count of each batch."""
    return [(batch.producer.epoch, batch.sequence, len(batch.tickets)) for batch in batches]


def test_records_share_a_batch_until_it_is_full():
    """append() returns if a batch was opened, joined or filled."""
    assert Bench().append(1, 2, 3) == [Appended.OPENED, Appended.JOINED, Appended.FILLED]


def test_the_first_batch_of_an_epoch_goes_alone():
    """The first batch of an epoch is sent alone, since a broker without its state accepts any sequence number."""
    bench = Bench()
    bench.append(1, 2, 3, 4)

    (first,) = bench.take()
    assert numbers([first]) == [(0, 0, 2)]
    assert bench.take() == []
    bench.answer(first)
    assert numbers(bench.take()) == [(0, 2, 2)]


def test_without_a_producer_id_one_batch_of_a_partition_is_in_flight():
    """Without idempotence, batches have no sequence numbers, and go one after the other, also when sent again."""
    bench = Bench()
    bench.accumulator.producer = ProducerId()
    bench = bench.confirmed()
    bench.append(1, 2, 3, 4)

    (first,) = bench.take()
    assert (first.producer, first.sequence) == (ProducerId(), -1)
    assert bench.take() == []
    bench.accumulator.handle_no_answer(first, "lost", bench.now, was_sent=True)
    bench.now += 10
    assert bench.take() == [first]
    assert bench.take() == []
    assert bench.answer(first, offset=1) == [DeliveredBatch(first, 1)]
    (second,) = bench.take()
    assert (second.tickets, second.sequence) == ([3, 4], -1)


def test_without_a_producer_id_a_refused_batch_is_split():
    """Without idempotence, too, a batch that is too large is halved, and the halves keep their place."""
    bench = Bench(limit=4)
    bench.accumulator.producer = ProducerId()
    bench.append(1, 2, 3, 4, 5)

    (batch,) = bench.take()
    bench.answer(batch, ErrorCode.MESSAGE_TOO_LARGE)
    sent = []
    while taken := bench.take():
        (part,) = taken
        sent.append(part.tickets)
        bench.answer(part)

    assert sent == [[1, 2], [3, 4], [5]]


def test_five_batches_of_a_partition_are_in_flight_at_most():
    """At most five batches of a partition are in flight, as a broker remembers five."""
    bench = Bench(requests=10).confirmed()
    bench.append(*range(20))

    batches = bench.take()

    assert numbers(batches) == [(0, 1 + 2 * n, 2) for n in range(5)]
    bench.answer(batches[0])
    assert numbers(bench.take()) == [(0, 11, 2)]


def test_sequence_numbers_continue_at_zero_after_the_last():
    """After sequence number 2,147,483,647, also within a batch, the next is 0, as brokers expect."""
    bench = Bench(limit=3).confirmed()
    bench.accumulator._queues[PLACE]._sequence = 2**31 - 5
    bench.append(*range(10))

    assert [batch.sequence for batch in bench.take()] == [2**31 - 5, 2**31 - 2, 1]


def test_requests_in_flight_to_a_broker_are_limited():
    """Batches of one leader share its requests, whose number is limited."""
    bench = Bench(requests=1)
    places = [TopicPartition("t", n) for n in range(3)]
    for place in places:
        bench.append(1, place=place)

    requests = bench.accumulator.take_requests(bench.now, lambda _place: 1, lambda _leader: 1)

    assert [[batch.partition for batch in batches] for _, batches in requests] == [places]
    bench.append(2, place=places[0])
    assert bench.take() == []


def test_a_batch_that_is_not_full_waits_for_linger():
    """A batch is sent when it is full, after ``linger_s``, or at once on flush()."""
    bench = Bench(linger_s=2.0)
    bench.append(1)
    assert bench.take() == []
    assert bench.accumulator.next_deadline(bench.now) == 102.0
    bench.now = 102.0
    (batch,) = bench.take()
    bench.answer(batch)

    bench.append(2)
    bench.accumulator.flush()
    assert len(bench.take()) == 1


def test_a_delay_is_told_once_until_a_batch_is_stored():
    """A partition is delayed if a batch was sent or due long ago and none was stored since; it is returned once."""
    bench = Bench(linger_s=5.0, limit=10)
    bench.append(1)
    bench.now += 6.0
    (batch,) = bench.take()

    def delays() -> list[tuple[TopicPartition, str]]:
        return bench.accumulator.take_delays(bench.now - 3.0)

    assert delays() == []  # The batch has waited for linger_ms, and was sent just now.
    bench.now += 3.0
    assert delays() == [(PLACE, "")]
    bench.answer(batch, ErrorCode.NOT_ENOUGH_REPLICAS)
    bench.now += 10.0
    assert delays() == []
    (batch,) = bench.take()
    bench.answer(batch)
    bench.append(2)
    bench.now += 8.0
    assert delays() == [(PLACE, "")]


def test_a_batch_that_is_not_full_waits_for_the_one_in_flight():
    """While a batch is in flight, an incomplete batch collects records, and is sent after the response."""
    bench = Bench(limit=10).confirmed()
    bench.append(1)
    (first,) = bench.take()
    bench.append(2, 3)
    assert bench.take() == []
    bench.answer(first)
    assert numbers(bench.take()) == [(0, 2, 2)]


def test_an_outcome_names_offset_and_tickets():
    """An outcome has the batch's offset and tickets, and a delivered batch releases its memory."""
    bench = Bench()
    bench.append(1, 2)
    assert bench.accumulator.buffered_bytes == 20
    (batch,) = bench.take()

    assert bench.answer(batch, offset=5) == [DeliveredBatch(batch, 5)]
    assert batch.tickets == [1, 2]
    assert bench.accumulator.buffered_bytes == 0
    assert list(bench.accumulator.batches()) == []


def test_batches_after_a_failed_batch_are_sent_again_in_order():
    """After a retriable error the batches are sent again one by one, in order, with their sequence numbers."""
    bench = Bench().confirmed()
    bench.append(*range(6))
    bench.accumulator.flush()
    first, second, third = bench.take()
    bench.answer(first, ErrorCode.NOT_ENOUGH_REPLICAS)
    bench.answer(second, ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER)
    bench.answer(third, ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER)
    assert bench.take() == []

    bench.now += 1.0
    for batch in (first, second, third):
        assert bench.take() == [batch]
        assert bench.take() == []
        bench.answer(batch)
    assert numbers([first, second, third]) == [(0, 1, 2), (0, 3, 2), (0, 5, 2)]


@pytest.mark.parametrize(
    "code",
    [
        ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER,
        ErrorCode.UNKNOWN_PRODUCER_ID,
        ErrorCode.INVALID_PRODUCER_EPOCH,
    ],
)
def test_a_log_that_lost_the_producer_gets_another_epoch(code):
    """A partition whose log lost the producer state raises its epoch and restarts at sequence zero (KIP-360)."""
    bench = Bench().confirmed()
    bench.append(*range(4))
    bench.accumulator.flush()
    first, second = bench.take()
    bench.answer(first, code)
    bench.now += 1.0
    assert bench.take() == []
    bench.answer(second, ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER)

    (again,) = bench.take()
    assert numbers([again]) == [(1, 0, 2)]
    bench.answer(again)
    assert numbers(bench.take()) == [(1, 2, 2)]


def test_a_new_producer_id_replaces_one_without_epochs_left():
    """A new producer id is requested after epoch 32767, the last one."""
    bench = Bench()
    bench.accumulator.producer = ProducerId(7, 32_767)
    bench.append(1)
    (batch,) = bench.take()
    bench.answer(batch, ErrorCode.UNKNOWN_PRODUCER_ID)
    bench.now += 1.0
    assert bench.take() == []
    assert bench.accumulator.needs_producer_id

    bench.accumulator.producer = ProducerId(8, 0)
    (batch,) = bench.take()
    assert (batch.producer, batch.sequence) == (ProducerId(8, 0), 0)
    assert not bench.accumulator.needs_producer_id


def test_the_records_that_the_broker_names_fail_alone():
    """Records that the broker names as invalid fail; the others of the batch are sent again, in order."""
    bench = Bench(limit=4)
    bench.append(0, 1, 2, 3)
    (batch,) = bench.take()

    (failed,) = bench.answer(batch, ErrorCode.INVALID_RECORD, detail="no key", refused_records=[1, 3])

    assert failed.batch.tickets == [1, 3]
    assert isinstance(failed.error, PublishError)
    assert "no key" in str(failed.error)
    (rest,) = bench.take()
    assert (rest.tickets, rest.content.values) == ([0, 2], [0, 2])


def test_a_batch_that_is_too_large_is_halved_until_one_record_is_too_large():
    """A batch that is too large is split until only the record that is too large by itself fails."""
    bench = Bench(limit=4)
    bench.append(0, 1, 2, 3)
    stored, failed = [], []
    for _ in range(10):
        for batch in bench.take():
            is_bad = 2 in batch.tickets
            for outcome in bench.answer(batch, ErrorCode.MESSAGE_TOO_LARGE if is_bad else 0):
                (failed if isinstance(outcome, FailedBatch) else stored).append(outcome)

    assert [one.batch.tickets for one in stored] == [[0, 1], [3]]
    assert [(one.batch.tickets, type(one.error)) for one in failed] == [([2], PublishTooLargeError)]
    assert bench.accumulator.buffered_bytes == 0


def test_a_batch_expires_in_flight_and_leaves_when_it_is_answered():
    """A batch in flight fails at its deadline, and its memory is released by a later response, which has no effect."""
    bench = Bench()
    bench.append(1)
    (batch,) = bench.take()
    bench.now += 60

    (failed,) = bench.accumulator.expire(bench.now)

    assert failed.batch is batch
    assert "no acknowledgement within 60 s" in str(failed.error)
    assert bench.accumulator.expire(bench.now) == []
    assert bench.answer(batch) == []
    assert bench.accumulator.buffered_bytes == 0


def test_unanswered_batches_are_settled_before_the_epoch_is_raised():
    """After an unanswered batch expired, later ones are settled under the old epoch, so that none is stored twice."""
    bench = Bench().confirmed()
    bench.append(1, 2)
    (first,) = bench.take()
    bench.now += 30
    bench.append(3, 4, 5)
    (second,) = bench.take()
    for batch in (first, second):
        bench.accumulator.end_request(1)
        bench.accumulator.handle_no_answer(batch, "lost", bench.now, was_sent=True)
    bench.now += 30
    assert [one.batch for one in bench.accumulator.expire(bench.now)] == [first]

    assert bench.take() == [second]
    assert numbers([second]) == [(0, 3, 2)]
    bench.answer(second, ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER)
    bench.now += 8
    assert bench.take() == [second]
    assert numbers([second]) == [(1, 0, 2)]
    bench.answer(second)
    assert numbers(bench.take()) == [(1, 2, 1)]


def test_a_partition_without_a_leader_waits():
    """A partition without a leader waits, and requests a metadata refresh."""
    bench = Bench()
    bench.leader = -1
    bench.append(1)
    assert bench.take() == []
    assert bench.accumulator.needs_leaders


def test_a_partition_without_records_for_an_hour_is_forgotten():
    """An idle partition is removed after an hour; later batches have an epoch that it has not used."""
    bench, other = Bench(), TopicPartition("t", 1)
    for code in (ErrorCode.UNKNOWN_PRODUCER_ID, 0):
        bench.append(1) if code else None
        bench.answer(*bench.take(), code)
        bench.now += 1
    assert repr(PLACE) in repr(bench.accumulator._queues)

    bench.now += 4_000
    bench.append(2, place=other)
    (batch,) = bench.take()
    assert bench.accumulator._queues.keys() == {other}
    assert numbers([batch]) == [(2, 0, 1)]
    bench.answer(batch)
    bench.append(3)
    assert numbers(bench.take()) == [(2, 0, 1)]


@pytest.mark.parametrize("is_in_flight", [True, False])
def test_a_partition_with_records_is_not_forgotten(is_in_flight):
    """A partition with an undelivered batch, or idle for less than an hour, is kept."""
    bench = Bench()
    bench.append(1)
    (batch,) = bench.take()
    if not is_in_flight:
        bench.answer(batch)
    bench.now += 4_000 if is_in_flight else 3_000

    bench.append(2, place=TopicPartition("t", 1))

    assert PLACE in bench.accumulator._queues


def test_fail_all_fails_queued_and_sent_records():
    """fail_all() fails each record, queued or in flight."""
    bench = Bench().confirmed()
    bench.append(*range(5))
    bench.take()
    bench.append(5)

    failed = bench.accumulator.fail_all(PublishError("closed"))

    assert sorted(ticket for one in failed for ticket in one.batch.tickets) == list(range(6))
    assert bench.accumulator.buffered_bytes == 0
