"""Undelivered records of a transaction."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from tailrace.core.producer.accumulator import ErrorAnswer, ProducerSettings, RecordAccumulator
from tailrace.core.producer.error_messages import not_in_time
from tailrace.core.producer.error_reactions import TransactionRequestKind, event_of, worst_of
from tailrace.core.producer.events import MustAbort, ProducerId, TransactionEvent, TransactionFailed
from tailrace.core.producer.partition_queue import PartitionQueue
from tailrace.core.producer.pending_batch import BatchContent, Outcome, PendingBatch
from tailrace.errors import TailraceError
from tailrace.records import TopicPartition

__all__ = ["TransactionAccumulator"]


class TransactionAccumulator(RecordAccumulator):
    """Undelivered records of the current transaction of one producer.

    A batch is sent once its partition is part of the transaction. If a batch cannot be stored, the transaction fails:
    no more batches are sent, and the records wait until they are discarded. (An idempotent producer would only fail
    some records, or raise the epoch of the partition.)

    Args:
        settings: limits.
        new_content: returns an empty batch.
        chance: returns a number in [0, 1) for jitter.

    Attributes:
        failure: event that ends the transaction; None while it can be committed.
    """

    def __init__(
        self, settings: ProducerSettings, new_content: Callable[[], BatchContent], chance: Callable[[], float]
    ) -> None:
        super().__init__(settings, new_content, chance)
        self._added: set[TopicPartition] = set()
        self._had_losses = False
        self.failure: TransactionEvent | None = None

    @property
    def new_partitions(self) -> tuple[TopicPartition, ...]:
        """Partitions that have undelivered records, but are not part of the transaction."""
        return tuple(sorted(self._active.keys() - self._added))

    @property
    def needs_new_epoch(self) -> bool:
        """True if a sequence has a gap, or a batch that was not answered may still arrive."""
        return self._had_losses or any(queue.needs_renewal for queue in self._queues.values())

    # ---- transactions ------------------------------------------------------------------------------------------

    def adopt(self, producer: ProducerId) -> None:
        """Use another producer id or epoch, with sequence numbers from zero; requires that no record is undelivered."""
        self.producer, self._had_losses = producer, False
        self._queues.clear()

    def begin(self) -> None:
        """Begin a transaction without partitions."""
        self._added.clear()
        self.failure, self.is_flushing = None, False

    def added(self, partitions: Iterable[TopicPartition]) -> None:
        """Allow the batches of ``partitions`` to be sent, now that these are part of the transaction."""
        self._added.update(partitions)

    def finish(self) -> None:
        """Send all batches without lingering."""
        self.flush()
        self.is_flushing = True

    # ---- failures ----------------------------------------------------------------------------------------------

    def unanswered(self, batch: PendingBatch, reason: str, now: float, *, was_sent: bool) -> list[Outcome]:
        """Queue a batch again whose request was not answered."""
        self._had_losses |= was_sent
        return super().unanswered(batch, reason, now, was_sent=was_sent)

    def fail_batch(self, batch: PendingBatch, error: TailraceError) -> list[Outcome]:
        """Fail the producer with an error that neither another attempt nor another transaction would avoid."""
        return self._keep(batch, TransactionFailed(error))

    def expire(self, now: float) -> list[Outcome]:
        """Fail the transaction if a record was not delivered in time."""
        for queue in self._active.values():
            deadline = queue.deadline()
            if deadline is not None and deadline <= now:
                trouble = self._trouble.get(queue.partition, "no answer")
                self._fail(MustAbort(not_in_time(f"{queue.partition}: {trouble}")))
        return []

    def _not_stored(
        self, _queue: PartitionQueue, batch: PendingBatch, answer: ErrorAnswer, _now: float
    ) -> list[Outcome]:
        place = f"{batch.partition} ({answer.detail})" if answer.detail else str(batch.partition)
        event = event_of(answer.code, TransactionRequestKind.PRODUCE, place)
        assert event is not None
        return self._keep(batch, event)

    def _keep(self, batch: PendingBatch, event: TransactionEvent) -> list[Outcome]:
        queue = self._queues[batch.partition]
        queue.needs_renewal = True
        queue.send_again(batch)
        self._fail(event)
        return self._outcomes(queue, [])

    def _fail(self, event: TransactionEvent) -> None:
        self.failure = event if self.failure is None else worst_of((self.failure, event))

    def _forget_idle(self, before: float) -> None:
        """Forget nothing: all partitions of a transactional producer share one epoch, and ``adopt`` forgets them."""

    def _sendable(self) -> Sequence[PartitionQueue]:
        if self.failure is not None:
            return ()
        return [queue for partition, queue in self._active.items() if partition in self._added]
