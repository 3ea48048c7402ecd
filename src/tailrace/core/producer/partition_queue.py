"""Batches of one partition: the batch to send next, its producer epoch and its sequence number.

Each partition has its own producer epoch, since brokers check epoch and sequence by partition. A batch that fails or is
divided leaves a gap in the sequence. The partition then sends all batches again that the broker may have stored, until
each has a definite answer, raises its epoch, and numbers the remaining batches from zero (KIP-360). Brokers refuse
requests of the old epoch that arrive later.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from itertools import chain

from tailrace.core.producer.events import ProducerId
from tailrace.core.producer.pending_batch import PendingBatch
from tailrace.records import TopicPartition

__all__ = ["IN_FLIGHT", "PartitionQueue"]

IN_FLIGHT = 5
"""Number of batches of a partition whose sequence numbers a broker remembers."""

_CONFIRMED_FOR_S = 60.0
"""Time for which the broker remembers the epoch of a stored batch; far less than ``producer.id.expiration.ms``."""

_LAST_EPOCH = 2**15 - 1
_LAST_SEQUENCE = 2**31 - 1


class PartitionQueue:
    """Undelivered batches of one partition.

    Attributes:
        open: batch that takes records; None if there is none.
        waiting: closed batches, in order.
        in_flight: batches that were sent and not answered.
        producer: current producer id and epoch.
        needs_renewal: True if the sequence has a gap.
        needs_producer_id: True if the epochs of the producer id are used up.
        retry_at: time before which nothing is sent.
        failures: failed attempts in a row.
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
        """Return the place of the next batch."""
        self._count += 1
        return (self._count,)

    def close_open(self) -> None:
        """Close the open batch, so that it takes no more records."""
        if self.open is not None:
            self.waiting.append(self.open)
            self.open = None

    def may_be_forgotten(self, before: float) -> bool:
        """Return True if the last batch was stored well before ``before``, and the producer id has another epoch."""
        return self._confirmed_until < before and self.producer.epoch < _LAST_EPOCH

    # ---- sending -----------------------------------------------------------------------------------------------

    def take(self, now: float, linger_s: float, latest: ProducerId) -> PendingBatch | None:
        """Return the next batch to send and count it as in flight; None if no batch may be sent now.

        ``latest`` is the newest producer id.
        """
        in_flight, waiting = self.in_flight, self.waiting
        # A broker without a record of this epoch accepts any sequence number, so the first batch goes alone.
        if now < self.retry_at or len(in_flight) >= (IN_FLIGHT if now < self._confirmed_until else 1):
            return None
        if self.needs_renewal and not (waiting and waiting[0].is_uncertain) and (in_flight or not self._renew(latest)):
            return None
        if waiting:
            # A batch that is sent again goes alone, so that no other batch can overtake it.
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
        """Return the time at which a batch may be sent; None if none can be sent before an answer comes."""
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
        # No waiting batch is stored: batches that the broker might have stored have a definite answer by now.
        for batch in self.waiting:
            batch.sequence, batch.is_uncertain = -1, False
        return True

    # ---- answers -----------------------------------------------------------------------------------------------

    def stored(self, batch: PendingBatch, now: float) -> None:
        """Remove a batch that the broker has stored."""
        self.in_flight.remove(batch)
        self._confirmed_until = now + _CONFIRMED_FOR_S
        self.failures, self.retry_at = 0, 0.0

    def send_again(self, batch: PendingBatch) -> None:
        """Move a batch from flight to its place in the queue; drop a failed batch, which leaves a gap."""
        self.in_flight.remove(batch)
        if batch.is_over:
            self.needs_renewal = True
        else:
            self._insert(batch)

    def replace(self, batch: PendingBatch, parts: list[PendingBatch]) -> None:
        """Put the parts of a refused batch in its place; without parts, only remove the batch."""
        self.in_flight.remove(batch)
        self.needs_renewal = True
        if not batch.is_over:
            for part in parts:
                self._insert(part)

    def has_earlier(self, batch: PendingBatch) -> bool:
        """Return True if a batch before this one has no definite answer yet."""
        return any(other.order < batch.order for other in chain(self.in_flight, self.waiting))

    def expired(self, now: float) -> list[PendingBatch]:
        """Return the batches whose deadline is over, and remove those that are not in flight."""
        over = [batch for batch in self.in_flight if batch.deadline <= now and not batch.is_over]
        for batch in over:
            batch.is_over = True
        while self.waiting and self.waiting[0].deadline <= now:
            batch = self.waiting.popleft()
            self.needs_renewal |= batch.was_sent
            over.append(batch)
        if self.open is not None and self.open.deadline <= now:
            over.append(self.open)
            self.open = None
        return over

    def deadline(self) -> float | None:
        """Return the time at which the next batch expires."""
        return min((batch.deadline for batch in self.batches() if not batch.is_over), default=None)

    def _insert(self, batch: PendingBatch) -> None:
        at = 0
        while at < len(self.waiting) and self.waiting[at].order < batch.order:
            at += 1
        self.waiting.insert(at, batch)
