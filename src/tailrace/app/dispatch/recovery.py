"""Recovery of failed work: attempts, pauses and dead letters, until each failed record is finished.

``app.failures.policy`` decides about each record. The records of a batch that are retried stay together in their order,
as one smaller batch. The pause of this batch is the shortest pause of its records.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

from tailrace.app.dispatch.batch_failures import Failed
from tailrace.app.failures.policy import ACTION_TEXTS, FailurePolicy, RetryingLane, error_text, is_given_up, is_outage
from tailrace.app.publish.ordered_gather import gather_in_order
from tailrace.app.stack_frames import where_raised, with_short_tracebacks
from tailrace.core.failures.failure_counts import FailureCount, FailureCounts
from tailrace.core.failures.retry import FailureAction, RetryDecision
from tailrace.observe.events import BatchFailed, BatchFailedPermanently, Event, HandlerFailed, HandlerFailedPermanently
from tailrace.observe.hooks import Observer
from tailrace.records import Record

__all__ = ["FailedWork", "Recovery", "RetryingExecutor"]


class FailedWork(Protocol):
    """Record or batch that was started and is not finished."""

    @property
    def records(self) -> Sequence[Record]:
        """Records that are not finished."""


WorkT_contra = TypeVar("WorkT_contra", bound=FailedWork, contravariant=True)


class RetryingExecutor(RetryingLane, Protocol[WorkT_contra]):
    """Interface through which ``Recovery`` uses an executor."""

    async def attempt(self, work: WorkT_contra) -> Failed:
        """Call the handler again; return the failed records."""

    def keep(self, work: WorkT_contra, records: Sequence[Record]) -> None:
        """Finish all records of ``work`` except ``records``."""

    async def pause_all(self, work: WorkT_contra, seconds: float) -> bool:
        """Wait before the next attempt; return False if no record is left to retry here."""


@dataclass(frozen=True, slots=True)
class _Case:
    """Failed record with the decision about it."""

    record: Record
    error: Exception
    failure_count: FailureCount
    decision: RetryDecision

    @property
    def is_kept(self) -> bool:
        return self.decision.action in {FailureAction.RETRY, FailureAction.PAUSE}


class Recovery:
    """Recovers the failed work of one handler.

    Args:
        name: name of the handler.
        policy: decides about each record, and gives up records that are not retried.
        is_batch: True for a batch handler; its events contain numbers of records.
        chance: returns a number in [0, 1), for the jitter.

    Attributes:
        retries: number of records for which the handler was called again.
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
        self._failed: Callable[..., Event] = BatchFailed if is_batch else HandlerFailed
        self._gave_up: Callable[..., Event] = BatchFailedPermanently if is_batch else HandlerFailedPermanently
        self._parked = self.retries = 0

    @property
    def waiting(self) -> int:
        """Number of records that failed for good, and are retried or sent to their topic again at intervals."""
        return self._parked + self._policy.waiting

    async def recover(self, executor: RetryingExecutor[WorkT_contra], work: WorkT_contra, failed: Failed) -> None:
        """Retry or give up failed records until all records of ``work`` are finished or left to another owner.

        Raises:
            HandlerFailedError: a record failed for good, and ``on_failure="stop"`` is set.
            DeadLetterError: a dead-letter or retry topic refuses a record, and ``on_failure="stop"`` is set.
            ProducerFencedError: another producer has the same transactional id.
        """
        failure_counts, before, has_given_up = self._policy.failure_counts(), failed[min(failed)], False
        while failed:
            cases = self._cases(work.records, failure_counts, failed)
            final = [
                case for case in cases if is_given_up(case.decision, case.error) and not (case.is_kept and has_given_up)
            ]
            self._emit_failure(len(work.records), cases, final)
            has_given_up = has_given_up or bool(final)
            # The successful records of a batch are finished here, independent of the failed records.
            executor.keep(work, [case.record for case in cases])
            await self._give_up(executor, [case for case in cases if not case.is_kept])
            kept = [case for case in cases if case.is_kept]
            executor.keep(work, [case.record for case in kept])
            if not kept or not await self._wait(executor, work, kept):
                return
            self.retries += len(work.records)
            failed = await executor.attempt(work)
            for error in failed.values():
                _detach(error, before)

    def _cases(self, records: Sequence[Record], failure_counts: FailureCounts, failed: Failed) -> list[_Case]:
        chance, cases = self._chance(), []
        for at in sorted(failed):
            record, error = records[at], failed[at]
            failure_count = failure_counts.count_failure(
                record.topic_partition, record.offset, is_outage=is_outage(error)
            )
            cases.append(_Case(record, error, failure_count, self._policy.decide(record, failure_count, error, chance)))
        return cases

    async def _give_up(self, executor: RetryingLane, cases: Sequence[_Case]) -> None:
        # If a partition was lost, its new owner handles the record, and sends the dead letter.
        ours = [case for case in cases if executor.is_ours(case.record)]
        if ours:
            await gather_in_order(
                [
                    self._policy.give_up(executor, case.record, case.failure_count.failures, case.error, case.decision)
                    for case in ours
                ]
            )

    async def _wait(self, executor: RetryingExecutor[WorkT_contra], work: WorkT_contra, kept: Sequence[_Case]) -> bool:
        parked = sum(case.decision.action is FailureAction.PAUSE for case in kept)
        self._parked += parked
        try:
            pause_s = min(case.decision.pause_s for case in kept)
            waiting = [(case.record, case.decision) for case in kept]
            return await self._policy.wait(waiting, lambda: executor.pause_all(work, pause_s))
        finally:
            self._parked -= parked

    def _emit_failure(self, count: int, cases: Sequence[_Case], final: Sequence[_Case]) -> None:
        first = (final or cases)[0]
        options: dict[str, Any] = {"logged_exception": with_short_tracebacks(first.error)} if final else {}
        counts: tuple[int, ...] = ()
        then = ACTION_TEXTS[first.decision.action]
        if self._is_batch:
            counts, steps = (len(cases), count), Counter(case.decision.action for case in cases)
            then = ", ".join(f"{number} {ACTION_TEXTS[step]}" for step, number in steps.items())
        self._observer.emit(
            (self._gave_up if final else self._failed)(
                self._name,
                first.record.topic_partition,
                first.record.offset,
                *counts,
                max(case.failure_count.total for case in cases),
                error_text(first.error),
                then,
                where_raised(first.error),
                first.error,
                **options,
            )
        )


def _detach(error: Exception, before: Exception) -> None:
    """Remove the first failure from the ``__context__`` of a later failure.

    Python sets it, because recovery may run in the ``except`` block of the first failure.
    """
    one: BaseException = error
    while one.__context__ is not None and one.__context__ is not before:
        one = one.__context__
    one.__context__ = None
