"""Transactions under random losses, delays, refusals and canceled calls."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from random import Random
from typing import NamedTuple, TypeVar

from hypothesis import given, settings
from hypothesis import strategies as st

from tailrace.core.backoff import Backoff
from tailrace.core.group_requests import Identity
from tailrace.error_codes import ErrorCode
from tailrace.errors import PublishError
from tailrace.producer.accumulator import (
    BatchAnswer,
    DeliveredBatch,
    Outcome,
    PendingBatch,
    ProducerSettings,
    TransactionAccumulator,
)
from tailrace.producer.publisher import OutgoingRecord
from tailrace.producer.transaction_machine import (
    AbortTransaction,
    AddPartitions,
    AdmitPartitions,
    BeginTransaction,
    CallCanceled,
    ChooseVersion,
    CommitTransaction,
    CompletePendingWork,
    CoordinatorMoved,
    CoordinatorRequest,
    DeliverRecords,
    DiscardRecords,
    Effect,
    GroupOffsets,
    LookUpCoordinator,
    MustAbort,
    PartitionsAdded,
    ProducerId,
    ProducerIdReceived,
    ProducerState,
    RecordsSettled,
    ReportError,
    SendAddPartitions,
    SendEnd,
    SendInit,
    TransactionEnded,
    TransactionEvent,
    TryAgain,
    Unanswered,
)
from tailrace.protocol.groups import CommitOffset
from tailrace.records import TopicPartition
from tests.support.simulation.listed_batch import ListedBatch
from tests.support.simulation.transaction_brokers import Brokers, Stage
from tests.support.simulation.transactional_member import FIRST, NOW, SECOND, member

T = TypeVar("T")
Pick = Callable[[Sequence[T]], T]
Name = tuple[int, int]
"""Transaction and number of a record."""

LIMITS = ProducerSettings(0.005, 60.0, 100_000, Backoff(0.1, 1.0), max_request_bytes=60)


class Frozen(NamedTuple):
    """Batch as written to the connection."""

    batch: PendingBatch
    producer: ProducerId
    sequence: int
    values: list[Name]
    version: int
    """Version of the transaction."""


class Life:
    """Simulation of a producer, its user and the network; ``pick`` chooses the next event.

    When the producer is fenced, another takes its place, as in an application.
    """

    FATES = ("fine",) * 8 + (
        "lost",
        "unheard",
        "late",
        "late",
        "late",
        "moved",
        "busy",
        "half done",
        "refused",
        "canceled",
    )
    PRODUCED = ("fine",) * 8 + ("busy", "half done", "refused", "break", "break", "waits", "canceled")

    def __init__(self, pick: Pick, versions: Sequence[int] = (1, 2)) -> None:
        self.versions = versions
        self.pick, self.now, self.is_calm = pick, NOW, False
        self.brokers = Brokers()
        self.late: list[Callable[[], object]] = []
        self.has_been_late = False
        self.count = 0
        self.in_doubt: int | None = None
        self.sent: dict[Name, TopicPartition] = {}
        self.outcomes: dict[Name, Outcome | None] = {}
        self.committed: list[int] = []
        self.unknown: set[int] = set()
        self.most_in_flight = 0
        self.start()

    def start(self) -> None:
        self.machine = member()
        self.records = TransactionAccumulator(LIMITS, lambda: ListedBatch(2), lambda: 0.5)
        self.requests: deque[list[Frozen]] = deque()

    # user

    def transaction(self) -> None:
        """Send some records, then end the transaction as the user wants; note the outcome of a commit."""
        self.settle()
        # The cluster may finalize another version between two transactions.
        while True:
            self.learn(self.call(ChooseVersion(self.pick(self.versions), 60.0)))
            if self.is_ready:
                break
            self.settle()
        self.count += 1
        self.call(BeginTransaction())
        self.records.begin()
        for number in range(self.pick(range(12))):
            name, partition = (self.count, number), self.pick((FIRST, SECOND))
            self.sent[name] = partition
            self.records.append(partition, OutgoingRecord(partition.topic, name), name, self.now, self.now + 60.0)
            for _ in range(self.pick((0, 0, 1, 3))):
                self.tend()
                if self.machine.state is not ProducerState.IN_TRANSACTION:
                    return
        if not self.pick((True, True, True, False)):
            self.call(AbortTransaction(60.0))
            return
        self.in_doubt = self.count
        offsets = GroupOffsets("g", Identity("m", 1), (CommitOffset("in", 0, self.count),))
        self.learn(self.call(CommitTransaction(offsets, 60.0)))

    def settle(self) -> None:
        """Complete unfinished work, in as many calls as it takes."""
        while not self.is_ready:
            self.learn(self.call(CompletePendingWork(60.0)))
            if self.machine.is_over:
                # A late request for a partition that was added after the end, for example.
                assert self.machine.state is ProducerState.FENCED, self.machine.error
                assert self.has_been_late, self.machine.error
                self.drop_records(PublishError("fenced"))
                self.start()

    @property
    def is_ready(self) -> bool:
        return self.machine.state is ProducerState.READY

    def learn(self, error: Exception | None) -> None:
        """Record the outcome of a commit as soon as it is known."""
        if self.in_doubt is None or self.machine.is_in_doubt:
            return
        if self.machine.is_over:
            self.unknown.add(self.in_doubt)
        elif error is None:
            self.committed.append(self.in_doubt)
        self.in_doubt = None

    # producer

    def tend(self) -> None:
        """Let some time pass while the transaction is open, as the task beside the sender does."""
        self.exchange()
        if (event := self.event_of_records()) is not None:
            self.call(event)

    def event_of_records(self) -> TransactionEvent | None:
        if self.records.failure is not None:
            return self.records.failure
        return AddPartitions(new, 60.0) if (new := self.records.new_partitions) else None

    def call(self, event: TransactionEvent) -> Exception | None:
        """Return the error that a call raises."""
        reported: Exception | None = None
        self.machine.receive(event, self.now)
        while True:
            for effect in self.machine.effects():
                if isinstance(effect, ReportError):
                    reported = effect.error
                elif not isinstance(effect, LookUpCoordinator):
                    outcome = self.perform(effect)
                    if outcome is None:
                        self.machine.receive(CallCanceled(), self.now)
                        return InterruptedError()
                    self.machine.receive(outcome, self.now)
            at = self.machine.next_deadline()
            if at is None:
                return reported
            self.now = max(self.now, at)
            self.machine.handle_timer(self.now)

    def perform(self, effect: Effect) -> TransactionEvent | None:
        match effect:
            case DeliverRecords(timeout_s=timeout_s):
                return self.deliver(self.now + timeout_s)
            case DiscardRecords():
                self.drop_records(PublishError("aborted"))
                return RecordsSettled(self.records.needs_new_epoch)
            case AdmitPartitions(partitions=partitions):
                self.records.add_partitions(partitions)
                return PartitionsAdded()
        outcome = self.ask(effect)
        if isinstance(effect, SendAddPartitions) and isinstance(outcome, PartitionsAdded):
            self.records.add_partitions(effect.partitions)
        elif isinstance(outcome, ProducerIdReceived | TransactionEnded) and outcome.producer.id >= 0:
            self.records.adopt(outcome.producer)
        return outcome

    def deliver(self, until: float) -> TransactionEvent | None:
        self.records.finish()
        while (event := self.event_of_records()) is None:
            if self.records.is_empty:
                return RecordsSettled(self.records.needs_new_epoch)
            if self.now >= until:
                return TryAgain("records are not acknowledged")
            if not self.exchange():
                return None
        return event

    def drop_records(self, error: PublishError) -> None:
        """Fail all records; requests in flight are answered, or given up and late."""
        self.note(self.records.fail_all(error))
        while self.requests:
            request = self.requests.popleft()
            self.records.end_request(1)
            if self.is_calm or self.pick((True, False)):
                self.arrive(request, is_heard=True)
            else:
                self.late.append(lambda request=request: self.arrive(request))
                for one in request:
                    self.note(self.records.handle_no_answer(one.batch, "given up", self.now, was_sent=True))
        assert self.records.is_empty

    # network: records

    def exchange(self) -> bool:
        """Send batches, and let one request be answered or lost; return False if the call is canceled meanwhile."""
        self.note(self.records.expire(self.now))
        for _, batches in self.records.take_requests(self.now, lambda _place: 1, lambda _leader: 5):
            version = self.machine.version
            self.requests.append(
                [Frozen(one, one.producer, one.sequence, [*one.content.values], version) for one in batches]
            )
        self.most_in_flight = max(self.most_in_flight, len(self.requests))
        self.let_late_arrive()
        if not self.requests:
            self.now = self.records.next_deadline(self.now) or self.now + 0.1
            return True
        fate = "fine" if self.is_calm else self.pick(self.PRODUCED)
        match fate:
            case "canceled":
                return False
            case "waits":
                self.now += 0.01
            case "break":
                self.break_connection()
            case _:
                request = self.requests.popleft()
                self.records.end_request(1)
                self.produce(request, fate)
        return True

    def produce(self, request: list[Frozen], fate: str) -> None:
        match fate:
            case "fine":
                self.arrive(request, is_heard=True)
                return
            case "half done":
                # The leader has stored the batch, but lacks replicas.
                self.arrive(request)
                code = ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND
            case "busy":
                code = ErrorCode.NOT_LEADER_OR_FOLLOWER
            case _:
                code = ErrorCode.MESSAGE_TOO_LARGE
        for one in request:
            self.note(self.records.handle_answer(one.batch, BatchAnswer(code), self.now))

    def break_connection(self) -> None:
        """Lose all requests in flight; the first of them may have arrived, and the others may arrive late."""
        arrived = self.pick(range(len(self.requests) + 1))
        for number in range(len(self.requests)):
            request = self.requests.popleft()
            self.records.end_request(1)
            if number < arrived:
                self.arrive(request)
            elif self.pick((True, False)):
                self.late.append(lambda request=request: self.arrive(request))
            for one in request:
                self.note(self.records.handle_no_answer(one.batch, "lost", self.now, was_sent=True))

    def arrive(self, request: list[Frozen], *, is_heard: bool = False) -> None:
        for batch, producer, sequence, values, version in request:
            code, offset = self.brokers.produce(producer, batch.partition, sequence, values, version)
            if is_heard:
                self.note(self.records.handle_answer(batch, BatchAnswer(code, offset), self.now))

    def note(self, outcomes: list[Outcome]) -> None:
        for outcome in outcomes:
            for at, name in enumerate(outcome.batch.tickets):
                assert name not in self.outcomes, "a record has one outcome"
                self.outcomes[name] = outcome.base_offset + at if isinstance(outcome, DeliveredBatch) else None

    # network: coordinators

    def let_late_arrive(self) -> None:
        while self.late and not self.is_calm and self.pick((False, False, True)):
            self.late.pop(self.pick(range(len(self.late))))()
            self.has_been_late = True

    def ask(self, question: CoordinatorRequest) -> TransactionEvent | None:
        """Return the outcome of a request; None if the call is canceled."""
        fate = "fine" if self.is_calm else self.pick(self.FATES)
        # The first request cannot be late: the coordinator cannot distinguish it from that of another process.
        if fate in {"late", "canceled"} and isinstance(question, SendInit) and question.producer.id < 0:
            fate = "lost"
        if self.is_calm or self.pick((True, True, False)):
            self.brokers.write_markers()
        self.let_late_arrive()
        match fate:
            case "moved":
                return CoordinatorMoved("elsewhere")
            case "refused" if not isinstance(question, SendInit | SendEnd):
                return MustAbort(PublishError("no"))
            case "busy" | "refused":
                return TryAgain("busy")
            case "half done":
                self.brokers.answer(question)
                return TryAgain("loading")
            case "late" | "canceled":
                self.late.append(lambda: self.brokers.answer(question))
            case "fine" | "unheard":
                answer = self.brokers.answer(question)
                if fate == "fine":
                    return answer
        self.now += question.timeout_s
        return None if fate == "canceled" else Unanswered("silence")

    # end

    def end(self) -> None:
        """Heal the network; all late requests arrive, and one more transaction is made."""
        self.is_calm = True
        self.settle()
        self.has_been_late |= bool(self.late)
        for one in self.late:
            one()
        self.transaction()
        self.settle()
        self.brokers.write_markers()

    def check(self) -> None:
        """Check that committed records, and no others, are visible once, in order, at the offsets of their futures."""
        assert self.records.buffered_bytes == 0
        assert self.outcomes.keys() == self.sent.keys(), "every record has an outcome"
        for partition, log in self.brokers.logs.items():
            committed = [name for name, place in self.sent.items() if place == partition and name[0] in self.committed]
            assert [name for name in log.visible if name[0] not in self.unknown] == committed
            for name in committed:
                assert log.written[self.outcomes[name]] == (name, "visible")
        assert self.brokers.committed_offset in {*self.committed[-1:], *self.unknown} or not self.committed
        assert self.brokers.stage in {Stage.NONE, Stage.OVER}


@settings(max_examples=300, deadline=None)
@given(st.integers(0, 1 << 64), st.integers(1, 6), st.sampled_from([(1,), (2,), (1, 2)]))
def test_transactions_are_atomic_under_lost_and_late_answers(seed, transactions, versions):
    """Under lost, late, refused and canceled requests, exactly the committed records appear, once and in order.

    This is so in both versions of transactions, also if the version changes between two of them.
    """
    life = Life(Random(seed).choice, versions)

    for _ in range(transactions):
        life.transaction()
    life.end()

    life.check()


def test_the_simulation_has_several_batches_in_flight():
    """Simulated runs have at least three batches in flight at times."""
    most = 0
    for seed in range(20):
        life = Life(Random(seed).choice)
        for _ in range(5):
            life.transaction()
        most = max(most, life.most_in_flight)

    assert most >= 3
