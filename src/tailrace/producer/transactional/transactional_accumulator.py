"""Undelivered records of a transaction. Pure: no clock, IO or logging."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from tailrace.errors import TailraceError
from tailrace.producer.accumulator import ErrorAnswer, ProducerSettings, RecordAccumulator
from tailrace.producer.partition_queue import PartitionQueue
from tailrace.producer.pending_batch import BatchContent, Outcome, PendingBatch
from tailrace.producer.transactional.reactions import TransactionRequestKind, event_of, timeout_error, worst_of
from tailrace.producer.vocabulary import MustAbort, ProducerId, TransactionEvent, TransactionFailed
from tailrace.records import TopicPartition

__all__ = ["TransactionAccumulator"]


class TransactionAccumulator(RecordAccumulator):
    """Undelivered records of the current transaction of one producer.

    A batch is sent only after its partition has become part of the transaction. If a batch cannot be stored, the
    transaction fails: no more batches are sent, and the caller has to discard the records with ``fail_all``. (The base
    class instead fails only the records of the batch, or sends the batch again in a new epoch.)

    Args:
        settings: limits.
        new_content: returns an empty batch.
        chance: returns a number in [0, 1) for jitter.

    Attributes:
        failure: event because of which the transaction cannot be committed; None while it can.
    """

    def __init__(
        self, settings: ProducerSettings, new_content: Callable[[], BatchContent], chance: Callable[[], float]
    ) -> None:
        super().__init__(settings, new_content, chance)
        self._added: set[TopicPartition] = set()
        self._had_unanswered_requests = False
        self.failure: TransactionEvent | None = None

    @property
    def new_partitions(self) -> tuple[TopicPartition, ...]:
        """Partitions with undelivered records that are not yet part of the transaction."""
        return tuple(sorted(self._active.keys() - self._added))

    @property
    def needs_new_epoch(self) -> bool:
        """True if the sequence numbers of a partition have a gap, or a batch may still arrive at a broker."""
        return self._had_unanswered_requests or any(queue.needs_new_epoch for queue in self._queues.values())

    # ---- transactions ------------------------------------------------------------------------------------------

    def adopt(self, producer: ProducerId) -> None:
        """Use another producer id or epoch, with sequence numbers from zero; all records must have an outcome."""
        self.producer, self._had_unanswered_requests = producer, False
        self._queues.clear()

    def begin(self) -> None:
        """Begin a transaction, which has no partitions yet."""
        self._added.clear()
        self.failure, self.is_flushing = None, False

    def add_partitions(self, partitions: Iterable[TopicPartition]) -> None:
        """Let batches of ``partitions`` be sent, because the partitions have become part of the transaction."""
        self._added.update(partitions)

    def finish(self) -> None:
        """Let all batches be sent without waiting for more records."""
        self.flush()
        self.is_flushing = True

    # ---- failures ----------------------------------------------------------------------------------------------

    def handle_no_answer(self, batch: PendingBatch, reason: str, now: float, *, was_sent: bool) -> list[Outcome]:
        """Queue a batch again after its request was not answered; ``needs_new_epoch`` is True if ``was_sent``."""
        self._had_unanswered_requests |= was_sent
        return super().handle_no_answer(batch, reason, now, was_sent=was_sent)

    def fail_batch(self, batch: PendingBatch, error: TailraceError) -> list[Outcome]:
        """Set a ``failure`` that stops the producer: neither another attempt nor a later transaction would succeed."""
        return self._fail_with_batch(batch, TransactionFailed(error))

    def expire(self, now: float) -> list[Outcome]:
        """Set ``failure`` if the deadline of a batch has passed; the returned list is empty."""
        for queue in self._active.values():
            deadline = queue.first_deadline()
            if deadline is not None and deadline <= now:
                last_error = self._last_errors.get(queue.partition, "no answer")
                self._fail(MustAbort(timeout_error(f"{queue.partition}: {last_error}")))
        return []

    def _not_stored(
        self, _queue: PartitionQueue, batch: PendingBatch, answer: ErrorAnswer, _now: float
    ) -> list[Outcome]:
        detail = f"{batch.partition} ({answer.detail})" if answer.detail else str(batch.partition)
        event = event_of(answer.code, TransactionRequestKind.PRODUCE, detail)
        assert event is not None
        return self._fail_with_batch(batch, event)

    def _fail_with_batch(self, batch: PendingBatch, event: TransactionEvent) -> list[Outcome]:
        """Set ``failure``; the batch waits for ``fail_all``, as no more batches are sent."""
        queue = self._queues[batch.partition]
        queue.needs_new_epoch = True
        queue.send_again(batch)
        self._fail(event)
        return self._outcomes(queue, [])

    def _fail(self, event: TransactionEvent) -> None:
        self.failure = event if self.failure is None else worst_of((self.failure, event))

    def _forget_idle(self, before: float) -> None:
        """Do nothing: all partitions of a transactional producer share one epoch, and ``adopt`` forgets them."""

    def _sendable(self) -> Sequence[PartitionQueue]:
        if self.failure is not None:
            return ()
        return [queue for partition, queue in self._active.items() if partition in self._added]
