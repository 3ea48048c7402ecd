"""What becomes of a batch of which records failed, until all of them are done with.

Rule of this file: what to do with a record is ``app.failures.policy``'s to say, and to do where it is given up; this
file keeps together those that wait. They are tried again as one smaller batch, in the order in which they were; the
pause is the shortest that one of them is owed.
"""

from __future__ import annotations

import functools
import random
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from tailrace.app.dispatch.batch_executor import BatchExecutor
from tailrace.app.dispatch.batch_run import BatchRun, Failed
from tailrace.app.failures.policy import SAID, FailurePolicy, is_given_up, is_outage, said
from tailrace.app.publish.ordered_gather import gather_in_order
from tailrace.app.stack_frames import where_raised, with_short_tracebacks
from tailrace.core.failures.failure_counts import FailureCount, FailureCounts
from tailrace.core.failures.retry import FailureAction, RetryDecision
from tailrace.observe.events import BatchFailed, BatchGaveUp
from tailrace.observe.hooks import Observer
from tailrace.records import Record

__all__ = ["BatchRecovery"]


@dataclass(frozen=True, slots=True)
class _Case:
    """One record that failed, and what is done about it."""

    record: Record
    error: Exception
    so_far: FailureCount
    decision: RetryDecision

    @property
    def is_kept(self) -> bool:
        return self.decision.step in {FailureAction.RETRY, FailureAction.PAUSE}


class BatchRecovery:
    """Sees one handler's failed batches to their end.

    Args:
        name: the handler's.
        policy: decides about each record, and sees to those that are given up.
        chance: in [0, 1), for the jitter.
    """

    def __init__(
        self, name: str, policy: FailurePolicy, observer: Observer, *, chance: Callable[[], float] = random.random
    ) -> None:
        self._name, self._policy, self._observer, self._chance = name, policy, observer, chance
        self._parked = 0

    @property
    def waiting(self) -> int:
        """Records that nobody takes, and which are tried again now and then."""
        return self._parked + self._policy.waiting

    async def recover(self, executor: BatchExecutor, run: BatchRun, failed: Failed) -> None:
        """Return when all records of a batch are done with, or are another's.

        Raises:
            HandlerFailedError: ``on_failure="stop"`` says so.
            DeadLetterError: one cannot be written to the dead letters, and so may not be passed over.
        """
        failure_counts, has_given_up = self._policy.failure_counts(), False
        while failed:
            cases = self._cases(run.records, failure_counts, failed)
            final = [
                case for case in cases if is_given_up(case.decision, case.error) and not (case.is_kept and has_given_up)
            ]
            self._tell(len(run.records), cases, final)
            has_given_up = has_given_up or bool(final)
            # What was done of the batch counts from here on, whatever becomes of the rest.
            executor.keep(run, [case.record for case in cases])
            await self._give_up(executor, [case for case in cases if not case.is_kept])
            kept = [case for case in cases if case.is_kept]
            executor.keep(run, [case.record for case in kept])
            if not kept or not await self._wait(executor, run, kept):
                return
            failed = await executor.attempt(run)

    def _cases(self, records: Sequence[Record], failure_counts: FailureCounts, failed: Failed) -> list[_Case]:
        chance, cases = self._chance(), []
        for at in sorted(failed):
            record, error = records[at], failed[at]
            so_far = failure_counts.failed(record.topic_partition, record.offset, is_outage=is_outage(error))
            cases.append(_Case(record, error, so_far, self._policy.decide(record, so_far, error, chance)))
        return cases

    async def _give_up(self, executor: BatchExecutor, cases: Sequence[_Case]) -> None:
        # What was lost meanwhile is another's to handle, and to bury.
        ours = [case for case in cases if executor.is_ours(case.record)]
        if ours:
            await gather_in_order(
                [
                    self._policy.give_up(executor, case.record, case.so_far.failures, case.error, case.decision)
                    for case in ours
                ]
            )

    async def _wait(self, executor: BatchExecutor, run: BatchRun, kept: Sequence[_Case]) -> bool:
        parked = sum(case.decision.step is FailureAction.PAUSE for case in kept)
        self._parked += parked
        try:
            pause_s = min(case.decision.pause_s for case in kept)
            waiting = [(case.record, case.decision) for case in kept]
            return await self._policy.wait_for_all(waiting, lambda: executor.pause_all(run, pause_s))
        finally:
            self._parked -= parked

    def _tell(self, count: int, cases: Sequence[_Case], final: Sequence[_Case]) -> None:
        steps = Counter(case.decision.step for case in cases)
        then = ", ".join(f"{number} {SAID[step]}" for step, number in steps.items())
        first = (final or cases)[0]
        make: Callable[..., BatchFailed] = BatchFailed
        if final:
            make = functools.partial(BatchGaveUp, logged_exception=with_short_tracebacks(first.error))
        self._observer.tell(
            make(
                self._name,
                first.record.topic_partition,
                first.record.offset,
                len(cases),
                count,
                max(case.so_far.all for case in cases),
                said(first.error),
                then,
                where_raised(first.error),
                first.error,
            )
        )
