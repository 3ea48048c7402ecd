"""Recovery of a failed record or batch: attempts, pauses and dead letters, until each failed record is finished.

``app.failures.policy`` decides about each record. The records of a batch that are retried form one smaller batch in the
same order, which waits for the shortest pause of its records.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

from tailrace.app.dispatch.batch_failures import FailuresByIndex
from tailrace.app.failures.policy import ACTION_TEXTS, FailurePolicy, RetryingLane, is_given_up, is_outage
from tailrace.app.policies import FailureAction, FailureCount, FailureCounts, RetryDecision
from tailrace.app.publish.results import gather_in_order
from tailrace.app.stack_frames import where_raised, with_short_tracebacks
from tailrace.observe.events import BatchFailed, BatchFailedPermanently, Event, HandlerFailed, HandlerFailedPermanently
from tailrace.observe.hooks import Observer
from tailrace.records import Record
from tailrace.user_exceptions import error_text

__all__ = ["FailedWork", "Recovery", "RetryingExecutor"]


class FailedWork(Protocol):
    """Record or batch that was started and is not finished."""

    @property
    def records(self) -> Sequence[Record]:
        """Records that are not finished."""


WorkT_contra = TypeVar("WorkT_contra", bound=FailedWork, contravariant=True)


class RetryingExecutor(RetryingLane, Protocol[WorkT_contra]):
    """Interface through which ``Recovery`` uses an executor."""

    async def attempt(self, work: WorkT_contra) -> FailuresByIndex:
        """Call the handler again; return the failures."""

    def keep_only(self, work: WorkT_contra, records: Sequence[Record]) -> None:
        """Finish all records of ``work`` except ``records``."""

    async def pause_all(self, work: WorkT_contra, seconds: float) -> bool:
        """Wait ``seconds`` for the next attempt; return False if all partitions of ``work`` are halted or dropped."""


@dataclass(frozen=True, slots=True)
class _FailedRecord:
    """Failed record, with the decision about it."""

    record: Record
    error: Exception
    failure_count: FailureCount
    decision: RetryDecision

    @property
    def is_retried(self) -> bool:
        """True if the handler is called again for the record."""
        return self.decision.action in {FailureAction.RETRY, FailureAction.PAUSE}


class Recovery:
    """Recovers the failed work of one handler.

    Args:
        name: name of the handler.
        policy: decides about each record, and gives up records that are not retried.
        observer: receives events.
        is_batch: True for a batch handler, whose events contain numbers of records.
        chance: returns a random number in [0, 1), for the jitter.

    Attributes:
        retries: number of records for which the handler was called again, counted once for each call.
    """

    def __init__(
        self,
        name: str,
        policy: FailurePolicy,
        observer: Observer,
        *,
        is_batch: bool,
        chance: Callable[[], float] = random.random,
    ) -> None:
        self._name, self._policy, self._observer = name, policy, observer
        self._is_batch, self._chance = is_batch, chance
        self._failure_event: Callable[..., Event] = BatchFailed if is_batch else HandlerFailed
        self._final_event: Callable[..., Event] = BatchFailedPermanently if is_batch else HandlerFailedPermanently
        self._paused = self.retries = 0

    @property
    def waiting(self) -> int:
        """Number of records that failed for good and that are retried, or sent to a topic again, at intervals."""
        return self._paused + self._policy.waiting

    async def recover(
        self, executor: RetryingExecutor[WorkT_contra], work: WorkT_contra, failed: FailuresByIndex
    ) -> None:
        """Retry or give up the failed records until all records of ``work`` are finished or left to another owner.

        Raises:
            HandlerFailedError: a record failed for good, and ``on_failure="stop"`` is set.
            DeadLetterError: a dead-letter or retry topic refused a record, and ``on_failure="stop"`` is set.
            ProducerFencedError: another producer has the same transactional id.
        """
        failure_counts = self._policy.failure_counts()
        has_reported_final = False
        while failed:
            failed_records = self._decide(work.records, failure_counts, failed)
            # Records that are retried after their final failure (on_failure="pause") are reported as final only once.
            final = [
                one
                for one in failed_records
                if is_given_up(one.decision, one.error) and not (one.is_retried and has_reported_final)
            ]
            self._emit_failure(len(work.records), failed_records, final)
            has_reported_final = has_reported_final or bool(final)
            # Finish the successful records of a batch before the failed records are given up, which may take long.
            executor.keep_only(work, [one.record for one in failed_records])
            await self._give_up(executor, [one for one in failed_records if not one.is_retried])
            retried = [one for one in failed_records if one.is_retried]
            executor.keep_only(work, [one.record for one in retried])
            if not retried or not await self._wait(executor, work, retried):
                return
            self.retries += len(work.records)
            failed = await executor.attempt(work)

    def _decide(
        self, records: Sequence[Record], failure_counts: FailureCounts, failed: FailuresByIndex
    ) -> list[_FailedRecord]:
        """Count the failures, and return the failed records with the decisions about them."""
        chance, failed_records = self._chance(), []
        for index in sorted(failed):
            record, error = records[index], failed[index]
            failure_count = failure_counts.count_failure(
                record.topic_partition, record.offset, is_outage=is_outage(error)
            )
            decision = self._policy.decide(record, failure_count, error, chance)
            failed_records.append(_FailedRecord(record, error, failure_count, decision))
        return failed_records

    async def _give_up(self, executor: RetryingLane, failed_records: Sequence[_FailedRecord]) -> None:
        # If a partition was lost, its new owner handles the record again and gives it up.
        owned = [one for one in failed_records if executor.is_ours(one.record)]
        if owned:
            await gather_in_order(
                [
                    self._policy.give_up(executor, one.record, one.failure_count.failures, one.error, one.decision)
                    for one in owned
                ]
            )

    async def _wait(
        self, executor: RetryingExecutor[WorkT_contra], work: WorkT_contra, retried: Sequence[_FailedRecord]
    ) -> bool:
        paused = sum(one.decision.action is FailureAction.PAUSE for one in retried)
        self._paused += paused
        try:
            pause_s = min(one.decision.pause_s for one in retried)
            waiting = [(one.record, one.decision) for one in retried]
            return await self._policy.wait(waiting, lambda: executor.pause_all(work, pause_s))
        finally:
            self._paused -= paused

    def _emit_failure(
        self, count: int, failed_records: Sequence[_FailedRecord], final: Sequence[_FailedRecord]
    ) -> None:
        first = (final or failed_records)[0]
        options: dict[str, Any] = {"logged_exception": with_short_tracebacks(first.error)} if final else {}
        counts: tuple[int, ...] = ()
        action = ACTION_TEXTS[first.decision.action]
        if self._is_batch:
            counts, steps = (len(failed_records), count), Counter(one.decision.action for one in failed_records)
            action = ", ".join(f"{number} {ACTION_TEXTS[step]}" for step, number in steps.items())
        self._observer.emit(
            (self._final_event if final else self._failure_event)(
                self._name,
                first.record.topic_partition,
                first.record.offset,
                *counts,
                max(one.failure_count.total for one in failed_records),
                error_text(first.error),
                action,
                where_raised(first.error),
                first.error,
                **options,
            )
        )
