"""Model of brokers with transactions: one coordinator, two partitions, a group and a network.

It behaves like Kafka towards a producer (KIP-98, KIP-360, and verification by the leader, KIP-890), with one producer
id.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from enum import Enum

from tailrace.core.producer.error_reactions import TransactionRequestKind, event_of, worst_of
from tailrace.core.producer.events import (
    BatchesAnswered,
    Ended,
    OffsetsAdded,
    OffsetsStored,
    PartitionsAdded,
    ProducerId,
    ProducerIdGiven,
    Question,
    SendAddOffsets,
    SendAddPartitions,
    SendBatches,
    SendEnd,
    SendInit,
    SendOffsets,
    TransactionEvent,
)
from tailrace.error_codes import ErrorCode
from tailrace.records import TopicPartition
from tests.support.simulation.transactional_member import FIRST, SECOND

REMEMBERED = 5
"""So many batches of a producer a leader can tell from new ones."""

OK = ErrorCode.NONE


class Stage(Enum):
    """State of a transaction at the coordinator."""

    NONE = "none"
    ONGOING = "ongoing"
    ENDING = "ending"
    """Decided and answered, but not yet written to its partitions."""
    OVER = "over"


@dataclass
class Log:
    """Log of a partition."""

    written: list[tuple[str, str]] = field(default_factory=list)
    """Batches by name, and what became of them: pending, visible, gone."""
    epoch: int = -1
    next_sequence: int = 0
    recent: deque[int] = field(default_factory=lambda: deque(maxlen=REMEMBERED))

    def write(self, producer: ProducerId, sequence: int, records: int, name: str) -> int:
        if producer.epoch < self.epoch:
            return ErrorCode.INVALID_PRODUCER_EPOCH
        if producer.epoch > self.epoch:
            if sequence != 0:
                return ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
            self.epoch, self.next_sequence = producer.epoch, 0
            self.recent.clear()
        if sequence in self.recent:
            return OK
        if sequence != self.next_sequence:
            return ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
        self.recent.append(sequence)
        self.next_sequence += records
        self.written.append((name, "pending"))
        return OK

    def mark(self, epoch: int, outcome: str) -> None:
        if epoch > self.epoch:
            self.epoch, self.next_sequence = epoch, 0
            self.recent.clear()
        self.written = [(name, outcome if was == "pending" else was) for name, was in self.written]

    @property
    def visible(self) -> list[str]:
        """Return the records that a read_committed reader sees."""
        return [name for name, is_now in self.written if is_now == "visible"]


class Brokers:
    """Brokers of the cluster."""

    def __init__(self) -> None:
        self.epoch, self.last_epoch = -1, -1
        self.stage = Stage.NONE
        self.is_commit = False
        self.partitions: set[TopicPartition] = set()
        self.logs = {FIRST: Log(), SECOND: Log()}
        self.has_group = False
        self.pending_offset: int | None = None
        self.committed_offset: int | None = None

    def write_markers(self) -> None:
        """Write the markers of a decided transaction to its partitions."""
        if self.stage is not Stage.ENDING:
            return
        for partition in self.partitions:
            self.logs[partition].mark(self.epoch, "visible" if self.is_commit else "gone")
        if self.is_commit and self.pending_offset is not None:
            self.committed_offset = self.pending_offset
        self.pending_offset, self.has_group = None, False
        self.partitions.clear()
        self.stage = Stage.OVER

    def answer(self, question: Question, name: Callable[[TopicPartition], str]) -> TransactionEvent:
        """Perform a request and return the response."""
        match question:
            case SendInit(producer=producer):
                code = self._initialise(producer)
                return event_of(code, TransactionRequestKind.INIT) or ProducerIdGiven(ProducerId(7, self.epoch))
            case SendAddPartitions(partitions=partitions):
                code = self._add(question.producer)
                if code == OK:
                    self.partitions.update(partitions)
                return event_of(code, TransactionRequestKind.ADD_PARTITIONS) or PartitionsAdded(frozenset(partitions))
            case SendBatches(batches=batches):
                codes = {
                    one.partition: self._write(question.producer, one.partition, one.sequence, one.records, name)
                    for one in batches
                }
                events = {
                    partition: event_of(code, TransactionRequestKind.PRODUCE, str(partition))
                    for partition, code in codes.items()
                }
                return BatchesAnswered(
                    frozenset(partition for partition, event in events.items() if event is None),
                    tuple(event for event in events.values() if event is not None),
                )
            case SendAddOffsets():
                code = self._add(question.producer)
                self.has_group |= code == OK
                return event_of(code, TransactionRequestKind.ADD_OFFSETS) or OffsetsAdded()
            case SendOffsets(offsets=offsets):
                code = self._store(question.producer, offsets.offsets[0].offset)
                return (
                    worst_of(filter(None, [event_of(code, TransactionRequestKind.COMMIT_OFFSETS)])) or OffsetsStored()
                )
            case SendEnd(is_commit=is_commit):
                return (
                    event_of(self._end(question.producer, is_commit=is_commit), TransactionRequestKind.END) or Ended()
                )

    def _initialise(self, producer: ProducerId) -> int:
        if self.stage is Stage.ENDING:
            return ErrorCode.CONCURRENT_TRANSACTIONS
        if self.stage is Stage.ONGOING:
            self.epoch, self.last_epoch = self.epoch + 1, -1
            self.stage, self.is_commit = Stage.ENDING, False
            return ErrorCode.CONCURRENT_TRANSACTIONS
        if producer.id >= 0 and producer.epoch != self.epoch:
            return OK if producer.epoch == self.last_epoch else ErrorCode.PRODUCER_FENCED
        self.last_epoch = producer.epoch if producer.id >= 0 else -1
        self.epoch += 1
        self.stage = Stage.NONE
        return OK

    def _add(self, producer: ProducerId) -> int:
        if producer.epoch != self.epoch:
            return ErrorCode.PRODUCER_FENCED
        if self.stage is Stage.ENDING:
            return ErrorCode.CONCURRENT_TRANSACTIONS
        self.stage = Stage.ONGOING
        return OK

    def _write(
        self,
        producer: ProducerId,
        partition: TopicPartition,
        sequence: int,
        records: int,
        name: Callable[[TopicPartition], str],
    ) -> int:
        if producer.epoch < self.epoch:
            return ErrorCode.INVALID_PRODUCER_EPOCH
        if self.stage is not Stage.ONGOING or partition not in self.partitions:
            return ErrorCode.INVALID_TXN_STATE
        return self.logs[partition].write(producer, sequence, records, name(partition))

    def _store(self, producer: ProducerId, offset: int) -> int:
        if producer.epoch != self.epoch:
            return ErrorCode.INVALID_PRODUCER_EPOCH
        if self.stage is not Stage.ONGOING or not self.has_group:
            return ErrorCode.INVALID_TXN_STATE
        self.pending_offset = offset
        return OK

    def _end(self, producer: ProducerId, *, is_commit: bool) -> int:
        if producer.epoch != self.epoch:
            return ErrorCode.PRODUCER_FENCED
        match self.stage:
            case Stage.ONGOING:
                self.stage, self.is_commit = Stage.ENDING, is_commit
                return OK
            case Stage.ENDING if self.is_commit == is_commit:
                return ErrorCode.CONCURRENT_TRANSACTIONS
            case Stage.OVER if self.is_commit == is_commit:
                return OK
            case _:
                return ErrorCode.INVALID_TXN_STATE
