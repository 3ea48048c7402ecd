"""Record accumulator and a partition's leader under random answers, errors and losses."""

from __future__ import annotations

from collections import deque
from typing import NamedTuple

from hypothesis import given, settings
from hypothesis import strategies as st

from tailrace.core.backoff import Backoff
from tailrace.error_codes import ErrorCode
from tailrace.errors import PublishError, PublishTooLargeError
from tailrace.producer.accumulator import (
    BatchAnswer,
    DeliveredBatch,
    Outcome,
    PendingBatch,
    ProducerSettings,
    RecordAccumulator,
)
from tailrace.producer.publisher import OutgoingRecord
from tailrace.producer.transaction_machine import ProducerId
from tailrace.records import TopicPartition
from tests.support.simulation.listed_batch import ListedBatch

PLACES = [TopicPartition("t", 0), TopicPartition("t", 1)]
BAD = 10
"""Every tenth record is refused."""


class Stored(NamedTuple):
    """Batch that the leader remembers."""

    epoch: int
    sequence: int
    count: int
    offset: int


class PartitionLog:
    """Log of one partition, with the checks that a broker makes of batches with a producer id (KIP-98, KIP-360)."""

    def __init__(self) -> None:
        self.values: list[int] = []
        self.last: deque[Stored] = deque(maxlen=5)

    def append(self, epoch: int, sequence: int, values: list[int]) -> tuple[int, int]:
        """Return error code and offset."""
        if any(value % BAD == 7 for value in values):
            return ErrorCode.MESSAGE_TOO_LARGE, -1
        if sequence < 0:
            self.values += values
            return ErrorCode.NONE, len(self.values) - len(values)
        for one in self.last:
            if (one.epoch, one.sequence, one.count) == (epoch, sequence, len(values)):
                return ErrorCode.NONE, one.offset
        if self.last:
            newest = self.last[-1]
            if epoch < newest.epoch:
                return ErrorCode.INVALID_PRODUCER_EPOCH, -1
            expected = newest.sequence + newest.count if epoch == newest.epoch else 0
            if sequence != expected:
                return ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER, -1
        if self.last and epoch > self.last[-1].epoch:
            self.last.clear()
        self.last.append(Stored(epoch, sequence, len(values), len(self.values)))
        self.values += values
        return ErrorCode.NONE, len(self.values) - len(values)


class Request(NamedTuple):
    """Batches as they were written to the connection."""

    batches: list[tuple[PendingBatch, int, int, list[int]]]


class Simulation:
    """Simulation of a leader and a connection with random faults."""

    def __init__(self, linger_s: float, *, is_idempotent: bool) -> None:
        limits = ProducerSettings(linger_s, 30.0, 100_000, Backoff(1.0, 4.0), max_request_bytes=40)
        self.accumulator = RecordAccumulator(limits, lambda: ListedBatch(3), lambda: 0.5)
        self.is_idempotent = is_idempotent
        if is_idempotent:
            self.accumulator.producer = ProducerId(7, 0)
        self.logs = {place: PartitionLog() for place in PLACES}
        self.requests: deque[Request] = deque()
        self.outcomes: dict[int, int | Exception] = {}
        self.appended: dict[TopicPartition, list[int]] = {place: [] for place in PLACES}
        self.now, self.count = 0.0, 0

    # Steps.

    def append(self, which: int, count: int) -> None:
        place = PLACES[which % 2]
        for _ in range(count % 5 + 1):
            value = self.count = self.count + 1
            self.appended[place].append(value)
            self.accumulator.append(place, OutgoingRecord(place.topic, value), value, self.now, self.now + 30)

    def pump(self, *_: int) -> None:
        self.note(self.accumulator.expire(self.now))
        for _, batches in self.accumulator.take_requests(self.now, lambda _place: 1, lambda _leader: 5):
            frozen = [(one, one.producer.epoch, one.sequence, list(one.content.values)) for one in batches]
            assert self.is_idempotent or all(one.producer == ProducerId() for one in batches)
            self.requests.append(Request(frozen))

    def answer(self, *_: int) -> None:
        if self.requests:
            for batch, epoch, sequence, values in self.ended():
                code, offset = self.logs[batch.partition].append(epoch, sequence, values)
                self.note(self.accumulator.handle_answer(batch, BatchAnswer(code, offset), self.now))

    def refuse(self, which: int, stores: int) -> None:
        """Respond with a retriable error, possibly after storing the batches."""
        codes = [ErrorCode.REQUEST_TIMED_OUT, ErrorCode.NOT_LEADER_OR_FOLLOWER, ErrorCode.NOT_ENOUGH_REPLICAS]
        if self.requests:
            for batch, epoch, sequence, values in self.ended():
                code = codes[which % 3]
                if stores % 2:
                    refused, _ = self.logs[batch.partition].append(epoch, sequence, values)
                    code = refused or code
                self.note(self.accumulator.handle_answer(batch, BatchAnswer(code), self.now))

    def lose(self, arrived: int, written: int) -> None:
        """Break the connection; some requests have arrived."""
        for number in range(len(self.requests)):
            for batch, epoch, sequence, values in self.ended():
                if number < arrived % 6:
                    self.logs[batch.partition].append(epoch, sequence, values)
                was_sent = bool(number < arrived % 6 or written % 2)
                self.note(self.accumulator.handle_no_answer(batch, "lost", self.now, was_sent=was_sent))

    def forget(self, which: int, _: int) -> None:
        """Let the leader forget the producer, as after a long time without records."""
        place = PLACES[which % 2]
        if not any(batch.partition == place for batch in self.accumulator.batches()) and not self.requests:
            self.logs[place].last.clear()
            self.now += 60.0

    def wait(self, seconds: int, _: int) -> None:
        self.now += seconds % 12

    # Checks.

    def ended(self) -> list[tuple[PendingBatch, int, int, list[int]]]:
        self.accumulator.end_request(1)
        return self.requests.popleft().batches

    def note(self, outcomes: list[Outcome]) -> None:
        for outcome in outcomes:
            for at, value in enumerate(outcome.batch.tickets):
                assert value not in self.outcomes, "a record has one outcome"
                self.outcomes[value] = (
                    outcome.base_offset + at if isinstance(outcome, DeliveredBatch) else outcome.error
                )

    def finish(self) -> None:
        self.accumulator.flush()
        self.accumulator.is_flushing = True
        for _ in range(500):
            self.pump()
            self.answer()
            self.now += 0.5
            if not list(self.accumulator.batches()) and not self.requests:
                break

    def check(self) -> None:
        assert self.accumulator.buffered_bytes == 0
        assert self.outcomes.keys() == set(range(1, self.count + 1)), "no record is lost"
        for place, log in self.logs.items():
            stored_first = list(dict.fromkeys(log.values))
            assert not self.is_idempotent or stored_first == log.values, "no record is stored twice"
            assert stored_first == sorted(stored_first), "no record overtakes another"
            for value in self.appended[place]:
                match self.outcomes[value]:
                    case int() as offset:
                        assert log.values[offset] == value
                    case PublishTooLargeError():
                        assert value % BAD == 7
                    case PublishError() as error:
                        assert "no acknowledgement" in str(error)


ACTIONS = [
    Simulation.append,
    Simulation.append,
    Simulation.pump,
    Simulation.pump,
    Simulation.answer,
    Simulation.answer,
    Simulation.refuse,
    Simulation.lose,
    Simulation.forget,
    Simulation.wait,
]
actions = st.lists(st.tuples(st.sampled_from(ACTIONS), st.integers(0, 30), st.integers(0, 30)), max_size=60)


@settings(max_examples=300, deadline=None)
@given(actions, st.sampled_from([0.0, 2.0]))
def test_every_record_is_stored_once_in_order_or_fails(steps, linger_s):
    """Under any faults, each record has one outcome, is stored at most once, and stays in order in its partition."""
    run(Simulation(linger_s, is_idempotent=True), steps)


@settings(max_examples=300, deadline=None)
@given(actions, st.sampled_from([0.0, 2.0]))
def test_without_idempotence_every_record_is_stored_in_order_or_fails(steps, linger_s):
    """Without a producer id, a record may be stored again, but none is lost, and none precedes an earlier one."""
    run(Simulation(linger_s, is_idempotent=False), steps)


def run(simulation: Simulation, steps: list) -> None:
    for step, first, second in steps:
        step(simulation, first, second)
    simulation.finish()
    simulation.check()
