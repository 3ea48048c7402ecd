"""One transaction: what it has to write and to store, what of that is done, and so what is to be asked next.

Rule of this file: nothing here is remembered between transactions but how far each partition's sequence has come. A
batch keeps its place in the sequence until it is acknowledged, however often it is sent.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable

from tailrace.core.producer.events import (
    GroupOffsets,
    ProducerBatch,
    ProducerId,
    Question,
    SendAddOffsets,
    SendAddPartitions,
    SendBatches,
    SendEnd,
    SendOffsets,
)
from tailrace.errors import TailraceError
from tailrace.records import TopicPartition

__all__ = ["OpenTransaction"]

_SEQUENCES = 1 << 31
"""A partition's sequence begins anew after so many records."""


class OpenTransaction:
    """What is to be done, and what is done.

    Args:
        sequences: what each partition's next batch begins with, counted from what was acknowledged; kept up here.

    Attributes:
        offsets: a group's offsets that belong to it.
        known_at: when the coordinator may first have heard of it; None if it cannot have.
        is_end_sent: whether it was said how it ends.
        cause: why it is taken back, as the user is told.
    """

    def __init__(self, sequences: dict[TopicPartition, int]) -> None:
        self._sequences = sequences
        self._pending: dict[TopicPartition, deque[ProducerBatch]] = {}
        self._sent: set[TopicPartition] = set()
        """Where a batch was sent and is not acknowledged."""
        self._added: set[TopicPartition] = set()
        self._are_offsets_added = self._are_offsets_stored = False
        self.offsets: GroupOffsets | None = None
        self.known_at: float | None = None
        self.is_end_sent = False
        self.cause: TailraceError | None = None

    @property
    def is_empty(self) -> bool:
        """Whether there is nothing that would have to be committed."""
        return not self._pending and self.offsets is None and self.known_at is None

    @property
    def is_known_for_sure(self) -> bool:
        """Whether the coordinator has said that it knows of it."""
        return bool(self._added) or self._are_offsets_added

    def fill(self, partition: TopicPartition, records: int) -> None:
        """One more batch, behind those of its partition."""
        waiting = self._pending.setdefault(partition, deque())
        sequence = _after(waiting[-1]) if waiting else self._sequences.get(partition, 0)
        waiting.append(ProducerBatch(partition, sequence, records))

    def written(self, partitions: Iterable[TopicPartition]) -> None:
        """The first batch of each of these is in its log."""
        for partition in partitions:
            waiting = self._pending[partition]
            self._sent.discard(partition)
            self._sequences[partition] = _after(waiting.popleft())
            if not waiting:
                del self._pending[partition]

    def added(self, partitions: Iterable[TopicPartition]) -> None:
        """These may be written to."""
        self._added.update(partitions)

    def offsets_added(self) -> None:
        """The offsets may be stored."""
        self._are_offsets_added = True

    def offsets_stored(self) -> None:
        """The group has the offsets."""
        self._are_offsets_stored = True

    def drop(self) -> bool:
        """What is not written yet need not be; whether some of it may be written all the same.

        Its place in the sequence would be another batch's in the next transaction, which the broker would take for it.
        """
        self._pending.clear()
        return bool(self._sent)

    def next_write(self, producer: ProducerId, timeout_s: float) -> Question | None:
        """What is to be asked while batches wait: one of each partition at a time; None when all are written."""
        if not self._pending:
            return None
        if new := self._pending.keys() - self._added:
            return SendAddPartitions(producer, tuple(sorted(new)), timeout_s)
        self._sent.update(self._pending)
        return SendBatches(producer, tuple(waiting[0] for waiting in self._pending.values()), timeout_s)

    def next_of_commit(self, producer: ProducerId, timeout_s: float) -> Question:
        """What is to be asked until it is committed."""
        if (question := self.next_write(producer, timeout_s)) is not None:
            return question
        if self.offsets is not None and not self._are_offsets_added:
            return SendAddOffsets(producer, self.offsets.group_id, timeout_s)
        if self.offsets is not None and not self._are_offsets_stored:
            return SendOffsets(producer, self.offsets, timeout_s)
        return SendEnd(producer, is_commit=True, timeout_s=timeout_s)


def _after(batch: ProducerBatch) -> int:
    return (batch.sequence + batch.records) % _SEQUENCES
