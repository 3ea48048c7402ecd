"""Batches of one partition: the batch to send next, its producer epoch and its sequence number.

Each partition has its own producer epoch, since brokers check epoch and sequence by partition. A batch that fails or is
split leaves a gap in the sequence. Then, the batches that the broker may have stored are sent again until the result of
each is known; after that, the epoch is raised, and the other batches are numbered from zero (KIP-360). Brokers refuse
late requests with the old epoch.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from itertools import chain

from tailrace.core.producer.events import ProducerId
from tailrace.core.producer.pending_batch import PendingBatch
from tailrace.records import TopicPartition

__all__ = ["MAX_IN_FLIGHT", "PartitionQueue"]

MAX_IN_FLIGHT = 5
"""Maximum number of batches of a partition in flight: a broker remembers the sequence numbers of five batches."""

_CONFIRMED_FOR_S = 60.0
"""Seconds for which the broker certainly remembers the epoch of a stored batch.

This is far less than ``producer.id.expiration.ms``.
"""

_LAST_EPOCH = 2**15 - 1
_LAST_SEQUENCE = 2**31 - 1


class PartitionQueue:
    """Undelivered batches of one partition.

    Attributes:
        open: batch to which records are appended; None if there is none.
        waiting: closed batches that are not in flight, in order.
        in_flight: batches that were sent and not answered.
        producer: current producer id and epoch of the partition.
        needs_renewal: True if the sequence has a gap, so that a new epoch is needed.
        needs_producer_id: True if a new epoch is needed, but the producer id has no further epoch.
        retry_at: time before which no batch is sent.
        failures: number of consecutive failed attempts.
    """

    def __init__(self, partition: TopicPartition, producer: ProducerId) -> None:
        self.partition, self.producer = partition, producer
        self.open: PendingBatch | None = None
        self.waiting: deque[PendingBatch] = deque()
        self.in_flight: list[PendingBatch] = []
        self.needs_renewal = self.needs_producer_id = False
        self.retry_at = 0.0
        self.failures = 0
        self._sequence = 0
        self._count = 0
        self._confirmed_until = 0.0

    def __repr__(self) -> str:
        return f"<PartitionQueue {self.partition} {len(self.waiting)} waiting, {len(self.in_flight)} in flight>"

    @property
    def is_empty(self) -> bool:
        """True if no batch is undelivered."""
        return not (self.in_flight or self.waiting or self.open)

    def batches(self) -> Iterator[PendingBatch]:
        """Yield all undelivered batches."""
        return chain(self.in_flight, self.waiting, () if self.open is None else (self.open,))

    def next_order(self) -> tuple[int]:
        """Return the sort key of the next batch."""
        self._count += 1
        return (self._count,)

    def close_open(self) -> None:
        """Close the open batch; the next record opens another batch."""
        if self.open is not None:
            self.waiting.append(self.open)
            self.open = None

    def may_be_forgotten(self, before: float) -> bool:
        """Return True if the last batch was stored some time before ``before``, and a further epoch is possible."""
        return self._confirmed_until < before and self.producer.epoch < _LAST_EPOCH

    # ---- sending -----------------------------------------------------------------------------------------------

    def take(self, now: float, linger_s: float, latest: ProducerId) -> PendingBatch | None:
        """Move the next batch to send to ``in_flight`` and return it; None if no batch may be sent now.

        Args:
            now: time.
            linger_s: time for which an open batch waits for more records.
            latest: newest producer id, with its first epoch.
        """
        in_flight, waiting = self.in_flight, self.waiting
        # A broker that does not know this epoch accepts any sequence number. So the first batch must be answered before
        # the next batch is sent.
        if now < self.retry_at or len(in_flight) >= (MAX_IN_FLIGHT if now < self._confirmed_until else 1):
            return None
        if self.needs_renewal and not (waiting and waiting[0].is_uncertain) and (in_flight or not self._renew(latest)):
            return None
        if waiting:
            # A batch that is sent again waits until no batch is in flight, so that the batches stay in order.
            if in_flight and waiting[0].was_sent:
                return None
            batch = waiting.popleft()
        elif self.open is not None and not in_flight and now >= self.open.opened_at + linger_s:
            batch, self.open = self.open, None
        else:
            return None
        if not batch.was_sent:
            batch.producer, batch.sequence = self.producer, self._sequence
            self._sequence = (self._sequence + len(batch.tickets)) & _LAST_SEQUENCE
        in_flight.append(batch)
        return batch

    def due_at(self, linger_s: float) -> float | None:
        """Return the time at which a batch may be sent; None if another event must come first, such as an answer."""
        if self.in_flight or self.needs_producer_id:
            return None
        if self.waiting:
            return self.retry_at
        return None if self.open is None else max(self.retry_at, self.open.opened_at + linger_s)

    def _renew(self, latest: ProducerId) -> bool:
        if self.producer.id != latest.id:
            self.producer = latest
        elif self.producer.epoch < _LAST_EPOCH:
            self.producer = ProducerId(self.producer.id, self.producer.epoch + 1)
        else:
            self.needs_producer_id = True
            return False
        self.needs_producer_id = self.needs_renewal = False
        self._sequence, self._confirmed_until = 0, 0.0
        # No waiting batch is stored: for all batches that the broker may have stored, the result is known by now.
        for batch in self.waiting:
            batch.sequence, batch.is_uncertain = -1, False
        return True

    # ---- answers -----------------------------------------------------------------------------------------------

    def remove_stored(self, batch: PendingBatch, now: float) -> None:
        """Remove a batch that the broker has stored."""
        self.in_flight.remove(batch)
        self._confirmed_until = now + _CONFIRMED_FOR_S
        self.failures, self.retry_at = 0, 0.0

    def send_again(self, batch: PendingBatch) -> None:
        """Move a batch that is in flight back to the waiting batches; remove it instead if its records have failed."""
        self.in_flight.remove(batch)
        if batch.has_failed:
            self.needs_renewal = True
        else:
            self._insert(batch)

    def replace(self, batch: PendingBatch, parts: list[PendingBatch]) -> None:
        """Replace a refused batch by its ``parts``; only remove it if there are none, or if its records have failed."""
        self.in_flight.remove(batch)
        self.needs_renewal = True
        if not batch.has_failed:
            for part in parts:
                self._insert(part)

    def has_earlier(self, batch: PendingBatch) -> bool:
        """Return True if an earlier batch of the partition has no result yet."""
        return any(other.order < batch.order for other in chain(self.in_flight, self.waiting))

    def expire(self, now: float) -> list[PendingBatch]:
        """Return the batches whose deadline has passed; remove them, or mark those in flight as failed."""
        expired = [batch for batch in self.in_flight if batch.deadline <= now and not batch.has_failed]
        for batch in expired:
            batch.has_failed = True
        while self.waiting and self.waiting[0].deadline <= now:
            batch = self.waiting.popleft()
            self.needs_renewal |= batch.was_sent
            expired.append(batch)
        if self.open is not None and self.open.deadline <= now:
            expired.append(self.open)
            self.open = None
        return expired

    def deadline(self) -> float | None:
        """Return the time at which the next batch expires; None without a batch."""
        return min((batch.deadline for batch in self.batches() if not batch.has_failed), default=None)

    def _insert(self, batch: PendingBatch) -> None:
        index = 0
        while index < len(self.waiting) and self.waiting[index].order < batch.order:
            index += 1
        self.waiting.insert(index, batch)
