"""A record whose handler failed, until it is done with.

Rule of this file: it is tried again for as long as ``app.outcomes`` says so; whatever ends that is done there.
"""

from __future__ import annotations

import random

from penstock.app.frames import where_raised
from penstock.app.line import Line
from penstock.app.outcomes import SAID, Outcomes, is_outage, said
from penstock.core.retries import Step
from penstock.observe.events import HandlerFailed
from penstock.observe.hooks import Observer
from penstock.records import Record

__all__ = ["Failures"]


class Failures:
    """Sees one handler's failed records to their end.

    Args:
        name: the handler's.
        outcomes: decides, and sees to what is given up.
    """

    def __init__(self, name: str, outcomes: Outcomes, observer: Observer) -> None:
        self._name, self._outcomes, self._observer = name, outcomes, observer

    @property
    def waiting(self) -> int:
        """Records that nobody takes, and which are tried again now and then."""
        return self._outcomes.waiting

    async def recover(self, line: Line, record: Record, error: Exception) -> None:
        """Return when ``record``, which failed with ``error``, is done with, or is another's.

        Raises:
            HandlerFailedError: ``on_failure="stop"`` says so.
            DeadLetterError: it cannot be written to the dead letters, and ``on_failure="stop"`` says so.
            ProducerFencedError: another process publishes in our place.
        """
        setbacks, failed = self._outcomes.setbacks(), error
        while True:
            so_far = setbacks.failed(record.topic_partition, record.offset, is_outage=is_outage(failed))
            decision = self._outcomes.decide(record, so_far, failed, random.random())  # noqa: S311 - jitter
            self._tell(record, so_far.all, failed, decision.step)
            if decision.step not in {Step.RETRY, Step.PAUSE}:
                await self._outcomes.give_up(line, record, so_far.failures, failed, decision)
                return
            if not await self._outcomes.wait(line, record, decision):
                return
            try:
                await line.attempt(record)
            except Exception as again:  # noqa: BLE001 - whatever a handler raises
                failed = _alone(again, error)
            else:
                return

    def _tell(self, record: Record, failures: int, error: Exception, step: Step) -> None:
        partition, where = record.topic_partition, where_raised(error)
        self._observer.tell(
            HandlerFailed(self._name, partition, record.offset, failures, said(error), SAID[step], where)
        )


def _alone(error: Exception, before: Exception) -> Exception:
    """The error of an attempt, without that of the first one, in whose wake Python sees all others."""
    one: BaseException = error
    while one.__context__ is not None and one.__context__ is not before:
        one = one.__context__
    one.__context__ = None
    return error
