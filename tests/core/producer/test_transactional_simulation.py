"""All or nothing, whatever happens to what a transactional producer says and hears."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from random import Random
from typing import TypeVar

from hypothesis import given, settings
from hypothesis import strategies as st

from tailrace.core.group.events import Identity
from tailrace.core.producer.events import (
    AbortTransaction,
    BatchesAnswered,
    BeginTransaction,
    CommitTransaction,
    EmitTransactionEvent,
    Filled,
    Flush,
    GroupOffsets,
    Interrupted,
    LookUpAgain,
    Moved,
    MustAbort,
    Question,
    SendBatches,
    SendEnd,
    SendInit,
    Settle,
    TransactionEvent,
    TryAgain,
    Unanswered,
)
from tailrace.core.producer.states import ProducerState
from tailrace.errors import PublishError
from tailrace.protocol.committed_offsets import CommitOffset
from tailrace.records import TopicPartition
from tests.support.simulation.transaction_brokers import Brokers, Stage
from tests.support.simulation.transactional_member import FIRST, NOW, SECOND, member

T = TypeVar("T")
Pick = Callable[[Sequence[T]], T]


class Life:
    """One producer in a network that loses, delays and cancels; ``pick`` says what happens next.

    When it is fenced another takes its place, as an application would have it.
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
        "cancelled",
    )

    def __init__(self, pick: Pick) -> None:
        self.pick, self.now, self.is_calm = pick, NOW, False
        self.brokers = Brokers()
        self.member = member()
        self.late: list[Callable[[], object]] = []
        self.has_been_late = False
        self.outbox: dict[TopicPartition, deque[str]] = {}
        self.count = 0
        self.in_doubt: int | None = None
        self.sent: dict[tuple[int, int], TopicPartition] = {}
        self.committed: list[int] = []
        self.unknown: set[int] = set()

    # ---- the user ----------------------------------------------------------------------------------------------

    def transaction(self) -> None:
        """A few batches, then the end that the user wants; take note of what the user is told of it."""
        self.settle()
        self.outbox = {partition: deque() for partition in (FIRST, SECOND)}
        self.count += 1
        self.call(BeginTransaction())
        for number in range(self.pick(range(4))):
            partition = self.pick((FIRST, SECOND))
            self.sent[self.count, number] = partition
            self.outbox[partition].append(f"{self.count}.{number}")
            self.member.receive(Filled(partition, self.pick((1, 3))), self.now)
            if self.pick((True, False)):
                self.call(Flush(60.0))
                if self.member.state is not ProducerState.IN_TRANSACTION:
                    return
        if not self.pick((True, True, True, False)):
            self.call(AbortTransaction(60.0))
            return
        self.in_doubt = self.count
        offsets = GroupOffsets("g", Identity("m", 1), (CommitOffset("in", 0, self.count),))
        self.learn(self.call(CommitTransaction(offsets, 60.0)))

    def settle(self) -> None:
        """Finish what is unfinished, however many calls it takes."""
        while self.member.state is not ProducerState.READY:
            self.learn(self.call(Settle(60.0)))
            if self.member.is_over:
                # Only what came too late can have done that: a partition added after the end, for one.
                assert self.member.state is ProducerState.FENCED, self.member.error
                assert self.has_been_late, self.member.error
                self.member = member()

    def learn(self, error: Exception | None) -> None:
        """What is known of the commit now."""
        if self.in_doubt is None or self.member.is_in_doubt:
            return
        if self.member.is_over:
            self.unknown.add(self.in_doubt)
        elif error is None:
            self.committed.append(self.in_doubt)
        self.in_doubt = None

    def call(self, event: TransactionEvent) -> Exception | None:
        """What a call of the user raises."""
        told: Exception | None = None
        self.member.receive(event, self.now)
        while True:
            for effect in self.member.effects():
                if isinstance(effect, EmitTransactionEvent):
                    told = effect.error
                elif not isinstance(effect, LookUpAgain):
                    outcome = self.outcome(effect)
                    if outcome is None:
                        self.member.receive(Interrupted(), self.now)
                        return InterruptedError()
                    if isinstance(outcome, BatchesAnswered):
                        for partition in outcome.written:
                            self.outbox[partition].popleft()
                    self.member.receive(outcome, self.now)
            at = self.member.next_deadline()
            if at is None:
                return told
            self.now = max(self.now, at)
            self.member.handle_timer(self.now)

    # ---- the network -------------------------------------------------------------------------------------------

    def outcome(self, question: Question) -> TransactionEvent | None:
        """What becomes of a request; None when the user had enough of waiting."""
        fate = "fine" if self.is_calm else self.pick(self.FATES)
        # The very first cannot be late: nothing tells it from that of another process.
        if fate in {"late", "cancelled"} and isinstance(question, SendInit) and question.producer.id < 0:
            fate = "lost"
        if self.is_calm or self.pick((True, True, False)):
            self.brokers.write_markers()
        while self.late and not self.is_calm and self.pick((False, False, True)):
            self.late.pop(self.pick(range(len(self.late))))()
            self.has_been_late = True
        return self.meets(fate, question)

    def meets(self, fate: str, question: Question) -> TransactionEvent | None:
        """The request, and what is heard of it."""
        names = {partition: waiting[0] for partition, waiting in self.outbox.items() if waiting}
        match fate:
            case "moved":
                return self.of(question, Moved("elsewhere"))
            case "refused" if not isinstance(question, SendInit | SendEnd):
                return self.of(question, MustAbort(PublishError("no")))
            case "busy" | "refused":
                return self.of(question, TryAgain("busy"))
            case "half done":
                # As with a leader that has it while too few replicas do.
                self.brokers.answer(question, names.__getitem__)
                return self.of(question, TryAgain("too few replicas"))
            case "late" | "cancelled":
                self.late.append(lambda: self.brokers.answer(question, names.__getitem__))
            case "fine" | "unheard":
                answer = self.brokers.answer(question, names.__getitem__)
                if fate == "fine":
                    return answer
        self.now += question.timeout_s
        return None if fate == "cancelled" else self.of(question, Unanswered("silence"))

    def of(self, question: Question, trouble: TransactionEvent) -> TransactionEvent:
        """How that is told."""
        return BatchesAnswered(frozenset(), (trouble,)) if isinstance(question, SendBatches) else trouble

    # ---- the end -----------------------------------------------------------------------------------------------

    def end(self) -> None:
        """The network is well again; all that was late arrives, and one more transaction is made."""
        self.is_calm = True
        self.settle()
        self.has_been_late |= bool(self.late)
        for one in self.late:
            one()
        self.transaction()
        self.settle()
        self.brokers.write_markers()

    def check(self) -> None:
        """What was committed is there once, in order, with its offsets; of what was not, nothing is."""
        for partition, log in self.brokers.logs.items():
            names = [tuple(map(int, name.split("."))) for name in log.visible]
            assert [name for name in names if name[0] not in self.unknown] == [
                name for name, place in self.sent.items() if place == partition and name[0] in self.committed
            ]
        assert self.brokers.committed_offset in {*self.committed[-1:], *self.unknown} or not self.committed
        assert self.brokers.stage in {Stage.NONE, Stage.OVER}


@settings(max_examples=100)
@given(st.integers(0, 1 << 64), st.integers(1, 6))
def test_all_or_nothing_whatever_gets_lost(seed, transactions):
    """Requests and answers get lost or late, calls are cancelled: what is committed is there, once, and no more."""
    life = Life(Random(seed).choice)

    for _ in range(transactions):
        life.transaction()
    life.end()

    life.check()
