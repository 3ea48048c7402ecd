"""Model of brokers with transactions: one coordinator, two partitions and one group.

It follows Kafka as far as a producer observes it (KIP-98, KIP-360 and KIP-890), reduced to one producer id.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import Enum

from tailrace.error_codes import ErrorCode
from tailrace.producer.transaction_machine import (
    CoordinatorRequest,
    OffsetsAdded,
    OffsetsStored,
    PartitionsAdded,
    ProducerId,
    ProducerIdReceived,
    SendAddOffsets,
    SendAddPartitions,
    SendEnd,
    SendInit,
    SendOffsets,
    TransactionEnded,
    TransactionEvent,
)
from tailrace.producer.transaction_reactions import TransactionRequestKind, event_of, worst_of
from tailrace.records import TopicPartition
from tests.support.simulation.transactional_member import FIRST, SECOND

REMEMBERED = 5
"""Batches of a producer that a leader tells from new ones."""

OK = ErrorCode.NONE


class Stage(Enum):
    """State of the transaction at the coordinator."""

    NONE = "none"
    ONGOING = "ongoing"
    ENDING = "ending"
    """Decided and answered; the markers are not written to the partitions yet."""
    OVER = "over"


@dataclass
class Log:
    """Log of a partition."""

    written: list[tuple[object, str]] = field(default_factory=list)
    """Records by offset, each with its status: pending, visible, gone."""
    epoch: int = -1
    next_sequence: int = 0
    recent: deque[tuple[int, int]] = field(default_factory=lambda: deque(maxlen=REMEMBERED))
    """Sequence and offset of the last batches."""

    def write(self, producer: ProducerId, sequence: int, values: Sequence[object]) -> tuple[int, int]:
        """Return error code and offset."""
        if producer.epoch < self.epoch:
            return ErrorCode.INVALID_PRODUCER_EPOCH, -1
        if producer.epoch > self.epoch:
            # A leader without a record of the producer accepts any sequence number.
            if sequence != 0 and self.epoch >= 0:
                return ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER, -1
            self.epoch, self.next_sequence = producer.epoch, sequence
            self.recent.clear()
        for known, offset in self.recent:
            if known == sequence:
                return OK, offset
        if sequence != self.next_sequence:
            return ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER, -1
        self.recent.append((sequence, len(self.written)))
        self.next_sequence += len(values)
        self.written += [(value, "pending") for value in values]
        return OK, self.recent[-1][1]

    def is_open(self, producer: ProducerId) -> bool:
        """Return True if the log has records of this epoch without a marker."""
        return producer.epoch == self.epoch and any(status == "pending" for _, status in self.written)

    def mark(self, epoch: int, outcome: str) -> None:
        if epoch > self.epoch:
            self.epoch, self.next_sequence = epoch, 0
            self.recent.clear()
        self.written = [(value, outcome if was == "pending" else was) for value, was in self.written]

    @property
    def visible(self) -> list[object]:
        """Records that a read_committed reader sees."""
        return [value for value, status in self.written if status == "visible"]


class Brokers:
    """Coordinators and leaders."""

    def __init__(self) -> None:
        self.epoch, self.last_epoch = -1, -1
        self.stage = Stage.NONE
        self.is_commit = False
        self.ended_epoch = -1
        """Epoch whose transaction of version 2 has ended: a repeated EndTxn gets the same answer; -1 if none."""
        self.partitions: set[TopicPartition] = set()
        self.logs = {FIRST: Log(), SECOND: Log()}
        self.has_group = False
        self.pending_offset: int | None = None
        self.committed_offset: int | None = None

    def write_markers(self) -> None:
        """Write the control records of a transaction whose outcome is decided."""
        if self.stage is not Stage.ENDING:
            return
        for partition in self.partitions:
            self.logs[partition].mark(self.epoch, "visible" if self.is_commit else "gone")
        if self.is_commit and self.pending_offset is not None:
            self.committed_offset = self.pending_offset
        self.pending_offset, self.has_group = None, False
        self.partitions.clear()
        self.stage = Stage.OVER

    def answer(self, question: CoordinatorRequest) -> TransactionEvent:
        """Handle a request and return its outcome."""
        match question:
            case SendInit(producer=producer):
                code = self._initialize(producer)
                return event_of(code, TransactionRequestKind.INIT) or ProducerIdReceived(ProducerId(7, self.epoch))
            case SendAddPartitions(partitions=partitions):
                code = self._add(question.producer)
                if code == OK:
                    self.partitions.update(partitions)
                return event_of(code, TransactionRequestKind.ADD_PARTITIONS) or PartitionsAdded()
            case SendAddOffsets():
                code = self._add(question.producer)
                self.has_group |= code == OK
                return event_of(code, TransactionRequestKind.ADD_OFFSETS) or OffsetsAdded()
            case SendOffsets(offsets=offsets, version=version):
                code = self._add(question.producer) if version > 1 else OK
                self.has_group |= version > 1 and code == OK
                code = code or self._store(question.producer, offsets.offsets[0].offset)
                return (
                    worst_of(filter(None, [event_of(code, TransactionRequestKind.COMMIT_OFFSETS)])) or OffsetsStored()
                )
            case SendEnd(is_commit=is_commit, version=version) if version > 1:
                code = self._end_and_raise_epoch(question.producer, is_commit=is_commit)
                ended = TransactionEnded(ProducerId(7, self.epoch))
                return event_of(code, TransactionRequestKind.END) or ended
            case SendEnd(is_commit=is_commit):
                return (
                    event_of(self._end(question.producer, is_commit=is_commit), TransactionRequestKind.END)
                    or TransactionEnded()
                )

    def produce(
        self, producer: ProducerId, partition: TopicPartition, sequence: int, values: Sequence[object], version: int
    ) -> tuple[int, int]:
        """Handle a batch and return error code and offset; in version 2, the leader adds the partition.

        It does not ask the coordinator while its log contains records of the producer's epoch without a marker.
        """
        log = self.logs[partition]
        if version > 1 and log.is_open(producer):
            return log.write(producer, sequence, values)
        if producer.epoch < self.epoch:
            return ErrorCode.INVALID_PRODUCER_EPOCH, -1
        if version > 1:
            code = self._add(producer)
            if code != OK:
                return code, -1
            self.partitions.add(partition)
        if self.stage is not Stage.ONGOING or partition not in self.partitions:
            return ErrorCode.INVALID_TXN_STATE, -1
        return log.write(producer, sequence, values)

    def _initialize(self, producer: ProducerId) -> int:
        if self.stage is Stage.ENDING:
            return ErrorCode.CONCURRENT_TRANSACTIONS
        if self.stage is Stage.ONGOING:
            self.epoch, self.last_epoch, self.ended_epoch = self.epoch + 1, -1, -1
            self.stage, self.is_commit = Stage.ENDING, False
            return ErrorCode.CONCURRENT_TRANSACTIONS
        if producer.id >= 0 and producer.epoch != self.epoch:
            return OK if producer.epoch == self.last_epoch else ErrorCode.PRODUCER_FENCED
        self.last_epoch = producer.epoch if producer.id >= 0 else -1
        self.epoch, self.ended_epoch = self.epoch + 1, -1
        self.stage = Stage.NONE
        return OK

    def _add(self, producer: ProducerId) -> int:
        if producer.epoch != self.epoch:
            return ErrorCode.PRODUCER_FENCED
        if self.stage is Stage.ENDING:
            return ErrorCode.CONCURRENT_TRANSACTIONS
        self.stage, self.ended_epoch = Stage.ONGOING, -1
        return OK

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

    def _end_and_raise_epoch(self, producer: ProducerId, *, is_commit: bool) -> int:
        """Handle EndTxn from version 5 on, whose answer contains the epoch of the next transaction (KIP-890)."""
        if producer.epoch == self.ended_epoch:
            if self.is_commit != is_commit:
                return ErrorCode.INVALID_TXN_STATE
            return OK if self.stage is Stage.OVER else ErrorCode.CONCURRENT_TRANSACTIONS
        if producer.epoch != self.epoch:
            return ErrorCode.PRODUCER_FENCED
        if self.stage is Stage.ENDING:
            return ErrorCode.CONCURRENT_TRANSACTIONS
        if self.stage is not Stage.ONGOING and is_commit:
            return ErrorCode.INVALID_TXN_STATE
        self.stage, self.is_commit = Stage.ENDING, is_commit
        self.epoch, self.last_epoch, self.ended_epoch = self.epoch + 1, producer.epoch, producer.epoch
        return OK
