"""Batches of one partition that have no outcome yet, with the partition's producer epoch and sequence numbers.

Pure: no clock, IO or logging.

Each partition has its own producer epoch, since brokers check epoch and sequence by partition. A batch that fails or is
split leaves a gap in the sequence numbers, and brokers refuse the batches after a gap. So the partition gets a new
epoch, and its remaining batches are numbered from zero (KIP-360). Before this, each batch that the broker may have
stored is sent again unchanged until its result is known. Brokers refuse late requests with the old epoch.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from itertools import chain

from tailrace.producer.pending_batch import PendingBatch
from tailrace.producer.vocabulary import ProducerId
from tailrace.records import TopicPartition

__all__ = ["MAX_IN_FLIGHT", "PartitionQueue"]

MAX_IN_FLIGHT = 5
"""Maximum number of batches of a partition in flight: a broker remembers the sequence numbers of five batches."""

_EPOCH_KNOWN_FOR_S = 60.0
"""Seconds after a stored batch for which the broker certainly knows the epoch of the batch.

This is far less than ``producer.id.expiration.ms``.
"""

_LAST_EPOCH = 2**15 - 1
_LAST_SEQUENCE = 2**31 - 1


class PartitionQueue:
    """Batches of one partition that have no outcome yet, and failed batches that are still in flight.

    Attributes:
        open_batch: batch to which records are appended; None if there is none.
        waiting: closed batches that are not in flight, in order.
        in_flight: batches that were sent and not answered.
        producer: current producer id and epoch of the partition.
        needs_new_epoch: True if the remaining batches need a new epoch, for example because the sequence numbers
            have a gap.
        needs_producer_id: True if a new epoch is needed, but the epoch of the producer id cannot be raised any more.
        retry_at: time before which no batch is sent; 0 if no attempt has failed since the last success.
        failures: number of consecutive failed attempts.
    """

    def __init__(self, partition: TopicPartition, producer: ProducerId) -> None:
        self.partition, self.producer = partition, producer
        self.open_batch: PendingBatch | None = None
        self.waiting: deque[PendingBatch] = deque()
        self.in_flight: list[PendingBatch] = []
        self.needs_new_epoch = self.needs_producer_id = False
        self.retry_at = 0.0
        self.failures = 0
        self._sequence = 0
        self._count = 0
        self._epoch_known_until = 0.0

    def __repr__(self) -> str:
        return f"<PartitionQueue {self.partition} {len(self.waiting)} waiting, {len(self.in_flight)} in flight>"

    @property
    def is_empty(self) -> bool:
        """True if no batch is in flight, waiting or open."""
        return not (self.in_flight or self.waiting or self.open_batch)

    def batches(self) -> Iterator[PendingBatch]:
        """Yield all batches: in flight, waiting, and open."""
        return chain(self.in_flight, self.waiting, () if self.open_batch is None else (self.open_batch,))

    def next_order(self) -> tuple[int]:
        """Return the sort key for a new batch, which follows those of all earlier batches."""
        self._count += 1
        return (self._count,)

    def close_open(self) -> None:
        """Close the open batch; the next record opens another batch."""
        if self.open_batch is not None:
            self.waiting.append(self.open_batch)
            self.open_batch = None

    def may_be_forgotten(self, before: float) -> bool:
        """Return True if the last batch was stored a minute or more before ``before``, and the epoch can be raised."""
        return self._epoch_known_until < before and self.producer.epoch < _LAST_EPOCH

    # ---- sending -----------------------------------------------------------------------------------------------

    def take(self, now: float, linger_s: float, latest: ProducerId) -> PendingBatch | None:
        """Move the next batch to send to ``in_flight`` and return it; None if no batch may be sent now.

        Args:
            now: time.
            linger_s: time for which an open batch waits for more records; it also waits while a batch is in flight.
            latest: newest producer id, and the epoch with which partitions begin to use it.
        """
        in_flight, waiting = self.in_flight, self.waiting
        # A broker that does not know the epoch accepts any sequence number, so it could store a later batch first.
        # Until the broker certainly knows the epoch, only one batch is in flight.
        if now < self.retry_at or len(in_flight) >= (MAX_IN_FLIGHT if now < self._epoch_known_until else 1):
            return None
        if (
            self.needs_new_epoch
            and not (waiting and waiting[0].is_uncertain)
            and (in_flight or not self._begin_new_epoch(latest))
        ):
            return None
        if waiting:
            # A batch that is sent again waits until no batch is in flight, so that the batches stay in order.
            if in_flight and waiting[0].was_sent:
                return None
            batch = waiting.popleft()
        elif self.open_batch is not None and not in_flight and now >= self.open_batch.opened_at + linger_s:
            batch, self.open_batch = self.open_batch, None
        else:
            return None
        if not batch.was_sent:
            batch.producer, batch.sequence = self.producer, self._sequence
            self._sequence = (self._sequence + len(batch.tickets)) & _LAST_SEQUENCE
        in_flight.append(batch)
        return batch

    def due_at(self, linger_s: float) -> float | None:
        """Return the time at which a batch may be sent; None if this does not depend on time, as before an answer."""
        if self.in_flight or self.needs_producer_id:
            return None
        if self.waiting:
            return self.retry_at
        return None if self.open_batch is None else max(self.retry_at, self.open_batch.opened_at + linger_s)

    def _begin_new_epoch(self, latest: ProducerId) -> bool:
        """Change to a new epoch, with sequence numbers from zero; return False if there is no further epoch."""
        if self.producer.id != latest.id:
            self.producer = latest
        elif self.producer.epoch < _LAST_EPOCH:
            self.producer = ProducerId(self.producer.id, self.producer.epoch + 1)
        else:
            self.needs_producer_id = True
            return False
        self.needs_producer_id = self.needs_new_epoch = False
        self._sequence, self._epoch_known_until = 0, 0.0
        # No waiting batch is stored: the first is not, and the broker refuses the batches after a gap.
        for batch in self.waiting:
            batch.sequence, batch.is_uncertain = -1, False
        return True

    # ---- answers -----------------------------------------------------------------------------------------------

    def remove_stored(self, batch: PendingBatch, now: float) -> None:
        """Remove a batch that the broker has stored."""
        self.in_flight.remove(batch)
        self._epoch_known_until = now + _EPOCH_KNOWN_FOR_S
        self.failures, self.retry_at = 0, 0.0

    def send_again(self, batch: PendingBatch) -> None:
        """Move a batch that is in flight back to the waiting batches; remove it instead if its records have failed."""
        self.in_flight.remove(batch)
        if batch.has_failed:
            self.needs_new_epoch = True
        else:
            self._insert(batch)

    def replace(self, batch: PendingBatch, parts: list[PendingBatch]) -> None:
        """Remove ``batch``, which was in flight, and queue ``parts`` in its place unless its records have failed.

        This leaves a gap in the sequence numbers, so a new epoch is needed.
        """
        self.in_flight.remove(batch)
        self.needs_new_epoch = True
        if not batch.has_failed:
            for part in parts:
                self._insert(part)

    def has_earlier(self, batch: PendingBatch) -> bool:
        """Return True if a batch before ``batch`` is in flight or waiting."""
        return any(other.order < batch.order for other in chain(self.in_flight, self.waiting))

    def expire(self, now: float) -> list[PendingBatch]:
        """Remove the batches whose deadline has passed, and return them.

        A batch in flight is not removed, but marked as failed, and returned once.
        """
        expired = [batch for batch in self.in_flight if batch.deadline <= now and not batch.has_failed]
        for batch in expired:
            batch.has_failed = True
        while self.waiting and self.waiting[0].deadline <= now:
            batch = self.waiting.popleft()
            self.needs_new_epoch |= batch.was_sent
            expired.append(batch)
        if self.open_batch is not None and self.open_batch.deadline <= now:
            expired.append(self.open_batch)
            self.open_batch = None
        return expired

    def first_deadline(self) -> float | None:
        """Return the earliest deadline of the batches that have not failed; None if there is no such batch."""
        return min((batch.deadline for batch in self.batches() if not batch.has_failed), default=None)

    def _insert(self, batch: PendingBatch) -> None:
        index = 0
        while index < len(self.waiting) and self.waiting[index].order < batch.order:
            index += 1
        self.waiting.insert(index, batch)
