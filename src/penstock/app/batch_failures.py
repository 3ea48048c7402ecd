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
from penstock.app.outcomes import SAID, Outcomes, is_outage, said
from penstock.app.together import all_of
from penstock.core.retries import Decision, Step
from penstock.observe.events import BatchFailed
from penstock.observe.hooks import Observer
from penstock.records import Record

__all__ = ["BatchFailures"]


@dataclass(frozen=True, slots=True)
class _Case:
    """One record that failed, and what is done about it."""

    record: Record
    error: Exception
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
        failures = outages = 0
        while failed:
            are_outages = [is_outage(error) for error in failed.values()]
            failures, outages = failures + (not all(are_outages)), outages + any(are_outages)
            cases = self._cases(run.records, failures, outages, failed)
            self._tell(failures + outages, len(run.records), cases)
            # What was done of the batch counts from here on, whatever becomes of the rest.
            line.keep(run, [case.record for case in cases])
            await self._give_up(line, failures, [case for case in cases if not case.is_kept])
            kept = [case for case in cases if case.is_kept]
            line.keep(run, [case.record for case in kept])
            if not kept or not await self._wait(line, run, kept):
                return
            failed = await line.attempt(run)

    def _cases(self, records: Sequence[Record], failures: int, outages: int, failed: Failed) -> list[_Case]:
        chance = self._chance()
        return [
            _Case(records[at], failed[at], self._outcomes.decide(records[at], failures, outages, failed[at], chance))
            for at in sorted(failed)
        ]

    async def _give_up(self, line: BatchLine, failures: int, cases: Sequence[_Case]) -> None:
        # What was lost meanwhile is another's to handle, and to bury.
        ours = [case for case in cases if line.is_ours(case.record)]
        if ours:
            await all_of(
                [self._outcomes.give_up(line, case.record, failures, case.error, case.decision) for case in ours]
            )

    async def _wait(self, line: BatchLine, run: BatchRun, kept: Sequence[_Case]) -> bool:
        set_aside = self._outcomes.set_aside
        if set_aside is not None and any(case.decision.step is Step.PAUSE for case in kept):
            # With the transaction, all of the batch is taken back.
            for case in kept:
                if case.decision.step is Step.PAUSE:
                    set_aside(case.record, case.decision.pause_s)
            return False
        parked = sum(case.decision.step is Step.PAUSE for case in kept)
        self._parked += parked
        try:
            return await line.pause_all(run, min(case.decision.pause_s for case in kept))
        finally:
            self._parked -= parked

    def _tell(self, failures: int, count: int, cases: Sequence[_Case]) -> None:
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
                failures,
                said(first.error),
                then,
            )
        )
