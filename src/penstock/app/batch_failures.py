"""What becomes of a batch of which records failed, until all of them are done with.

Rule of this file: what to do with a record is ``app.outcomes``'s to say, and to do where it is given up; this file
keeps together those that wait. They are tried again as one smaller batch, in the order in which they were; the pause is
the shortest that one of them is owed.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from penstock.app.batch_line import BatchLine
from penstock.app.batch_run import BatchRun, Failed
from penstock.app.frames import where_raised
from penstock.app.outcomes import SAID, Outcomes, is_outage, said
from penstock.app.together import all_of
from penstock.core.retries import Decision, Step
from penstock.core.setbacks import Setback, Setbacks
from penstock.observe.events import BatchFailed
from penstock.observe.hooks import Observer
from penstock.records import Record

__all__ = ["BatchFailures"]


@dataclass(frozen=True, slots=True)
class _Case:
    """One record that failed, and what is done about it."""

    record: Record
    error: Exception
    so_far: Setback
    decision: Decision

    @property
    def is_kept(self) -> bool:
        return self.decision.step in {Step.RETRY, Step.PAUSE}


class BatchFailures:
    """Sees one handler's failed batches to their end.

    Args:
        name: the handler's.
        outcomes: decides about each record, and sees to those that are given up.
        chance: in [0, 1), for the jitter.
    """

    def __init__(
        self, name: str, outcomes: Outcomes, observer: Observer, *, chance: Callable[[], float] = random.random
    ) -> None:
        self._name, self._outcomes, self._observer, self._chance = name, outcomes, observer, chance
        self._parked = 0

    @property
    def waiting(self) -> int:
        """Records that nobody takes, and which are tried again now and then."""
        return self._parked + self._outcomes.waiting

    async def recover(self, line: BatchLine, run: BatchRun, failed: Failed) -> None:
        """Return when all records of a batch are done with, or are another's.

        Raises:
            HandlerFailedError: ``on_failure="stop"`` says so.
            DeadLetterError: one cannot be written to the dead letters, and so may not be passed over.
        """
        setbacks = self._outcomes.setbacks()
        while failed:
            cases = self._cases(run.records, setbacks, failed)
            self._tell(len(run.records), cases)
            # What was done of the batch counts from here on, whatever becomes of the rest.
            line.keep(run, [case.record for case in cases])
            await self._give_up(line, [case for case in cases if not case.is_kept])
            kept = [case for case in cases if case.is_kept]
            line.keep(run, [case.record for case in kept])
            if not kept or not await self._wait(line, run, kept):
                return
            failed = await line.attempt(run)

    def _cases(self, records: Sequence[Record], setbacks: Setbacks, failed: Failed) -> list[_Case]:
        chance, cases = self._chance(), []
        for at in sorted(failed):
            record, error = records[at], failed[at]
            so_far = setbacks.failed(record.topic_partition, record.offset, is_outage=is_outage(error))
            cases.append(_Case(record, error, so_far, self._outcomes.decide(record, so_far, error, chance)))
        return cases

    async def _give_up(self, line: BatchLine, cases: Sequence[_Case]) -> None:
        # What was lost meanwhile is another's to handle, and to bury.
        ours = [case for case in cases if line.is_ours(case.record)]
        if ours:
            await all_of(
                [
                    self._outcomes.give_up(line, case.record, case.so_far.failures, case.error, case.decision)
                    for case in ours
                ]
            )

    async def _wait(self, line: BatchLine, run: BatchRun, kept: Sequence[_Case]) -> bool:
        parked = sum(case.decision.step is Step.PAUSE for case in kept)
        self._parked += parked
        try:
            pause_s = min(case.decision.pause_s for case in kept)
            waiting = [(case.record, case.decision) for case in kept]
            return await self._outcomes.wait_for_all(waiting, lambda: line.pause_all(run, pause_s))
        finally:
            self._parked -= parked

    def _tell(self, count: int, cases: Sequence[_Case]) -> None:
        steps = Counter(case.decision.step for case in cases)
        then = ", ".join(f"{number} {SAID[step]}" for step, number in steps.items())
        first = cases[0]
        self._observer.tell(
            BatchFailed(
                self._name,
                first.record.topic_partition,
                first.record.offset,
                len(cases),
                count,
                max(case.so_far.all for case in cases),
                said(first.error),
                then,
                where_raised(first.error),
            )
        )
