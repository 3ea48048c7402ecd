"""Batch of records that are not delivered yet, and the outcomes of batches. Pure: no clock, IO or logging."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Protocol, Self, TypeAlias

from tailrace.errors import TailraceError
from tailrace.producer.vocabulary import ProducerId
from tailrace.records import TopicPartition

__all__ = ["BatchContent", "DeliveredBatch", "FailedBatch", "Outcome", "PendingBatch"]


class BatchContent(Protocol):
    """Encoded records of a batch."""

    count: int
    """Number of records."""

    def append(
        self,
        key: bytes | None,
        value: bytes | None,
        headers: Sequence[tuple[str, bytes | None]] = (),
        timestamp_ms: int | None = None,
    ) -> int:
        """Append a record and return its size in bytes; append nothing and return 0 if the batch is full."""

    def selected(self, indices: Sequence[int]) -> Self:
        """Return a new batch with the records at ``indices``."""


class PendingBatch:
    """Batch of one partition, from its first record until its outcome.

    Attributes:
        partition: partition of the records.
        content: records, encoded.
        tickets: one object for each record, which identifies the record to the caller in the outcome.
        order: sort key of the batch among the batches of the partition.
        size: bytes of the records, before compression; 0 once the batch has an outcome.
        opened_at: time at which the first record was appended.
        deadline: time at which the batch fails if it is not stored before.
        producer: producer id and epoch with which the batch was last sent.
        sequence: sequence number of the first record; -1 if the batch was not sent in the partition's current epoch.
        is_uncertain: True if the broker may have stored the batch in an attempt whose result is unknown.
        has_failed: True if the records have failed while the batch was in flight.
    """

    __slots__ = (
        "content",
        "deadline",
        "has_failed",
        "is_uncertain",
        "opened_at",
        "order",
        "partition",
        "producer",
        "sequence",
        "size",
        "tickets",
    )

    def __init__(  # noqa: PLR0913, PLR0917 - the fields of a batch
        self,
        partition: TopicPartition,
        content: BatchContent,
        tickets: list[object],
        order: tuple[int, ...],
        opened_at: float,
        deadline: float,
    ) -> None:
        self.partition, self.content, self.tickets, self.order = partition, content, tickets, order
        self.opened_at, self.deadline = opened_at, deadline
        self.size = 0
        self.producer = ProducerId()
        self.sequence = -1
        self.is_uncertain = self.has_failed = False

    def __repr__(self) -> str:
        return f"<PendingBatch {self.partition} {len(self.tickets)} records, sequence {self.sequence}>"

    @property
    def was_sent(self) -> bool:
        """True if the batch was sent in the current epoch of its partition, so that it has a sequence number."""
        return self.sequence >= 0

    def split(self, *groups: Sequence[int]) -> list[PendingBatch]:
        """Return one batch for each group of record indices, in order; the sum of the sizes stays the same."""
        parts = []
        for number, indices in enumerate(groups):
            content, tickets = self.content.selected(indices), [self.tickets[index] for index in indices]
            order = (*self.order, number)
            part = PendingBatch(self.partition, content, tickets, order, self.opened_at, self.deadline)
            part.size = self.size * len(indices) // len(self.tickets)
            parts.append(part)
        parts[0].size += self.size - sum(part.size for part in parts)
        return parts


class DeliveredBatch(NamedTuple):
    """Batch that the broker has stored."""

    batch: PendingBatch
    base_offset: int
    """Offset of the first record; -1 if the broker no longer knows the offset."""


class FailedBatch(NamedTuple):
    """Batch whose records have failed."""

    batch: PendingBatch
    error: TailraceError


Outcome: TypeAlias = DeliveredBatch | FailedBatch
