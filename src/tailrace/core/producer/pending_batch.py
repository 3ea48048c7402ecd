"""One batch of undelivered records, and the outcomes of batches."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Protocol, Self, TypeAlias

from tailrace.core.producer.events import ProducerId
from tailrace.errors import TailraceError
from tailrace.records import TopicPartition

__all__ = ["BatchContent", "Delivered", "Failed", "Outcome", "PendingBatch"]


class BatchContent(Protocol):
    """Records of a batch, encoded."""

    count: int

    def append(
        self,
        key: bytes | None,
        value: bytes | None,
        headers: Sequence[tuple[str, bytes | None]] = (),
        timestamp_ms: int | None = None,
    ) -> int:
        """Append a record and return its size; 0 if the batch is full."""

    def selected(self, indices: Sequence[int]) -> Self:
        """Return a batch of the records at ``indices``."""


class PendingBatch:
    """Batch of one partition, from its first record until its outcome.

    Attributes:
        partition: partition of the records.
        content: records, encoded.
        tickets: one object for each record, returned with the outcome.
        order: place among the batches of the partition.
        size: bytes of the records, before compression.
        opened_at: time at which the first record was appended.
        deadline: time at which the batch fails if it is not stored before.
        producer: producer id and epoch under which the batch was sent.
        sequence: sequence number of the first record; -1 before the batch is sent.
        is_uncertain: True if the broker may have stored the batch in an attempt without a definite answer.
        is_over: True if the records have failed while the batch was in flight.
    """

    __slots__ = (
        "content",
        "deadline",
        "is_over",
        "is_uncertain",
        "opened_at",
        "order",
        "partition",
        "producer",
        "sequence",
        "size",
        "tickets",
    )

    def __init__(  # noqa: PLR0913, PLR0917 - its fields
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
        self.is_uncertain = self.is_over = False

    def __repr__(self) -> str:
        return f"<PendingBatch {self.partition} {len(self.tickets)} records, sequence {self.sequence}>"

    @property
    def was_sent(self) -> bool:
        """True if the batch has a sequence number."""
        return self.sequence >= 0

    def parts(self, *chosen: Sequence[int]) -> list[PendingBatch]:
        """Return one batch for each of ``chosen``, in this order; together they have the size of this batch."""
        parts = []
        for number, indices in enumerate(chosen):
            content, tickets = self.content.selected(indices), [self.tickets[index] for index in indices]
            order = (*self.order, number)
            part = PendingBatch(self.partition, content, tickets, order, self.opened_at, self.deadline)
            part.size = self.size * len(indices) // len(self.tickets)
            parts.append(part)
        parts[0].size += self.size - sum(part.size for part in parts)
        return parts


class Delivered(NamedTuple):
    """Batch that the broker has stored."""

    batch: PendingBatch
    base_offset: int
    """Offset of the first record; -1 if the broker does not remember the offset."""


class Failed(NamedTuple):
    """Batch whose records have failed."""

    batch: PendingBatch
    error: TailraceError


Outcome: TypeAlias = Delivered | Failed
