"""A record whose handler failed, until it is done with.

Rule of this file: it is tried again for as long as ``app.failures.policy`` says so; whatever ends that is done there.
"""

from __future__ import annotations

import random

from tailrace.app.dispatch.record_executor import RecordExecutor
from tailrace.app.failures.policy import SAID, FailurePolicy, is_given_up, is_outage, said
from tailrace.app.stack_frames import where_raised, with_short_tracebacks
from tailrace.core.failures.retry import FailureAction
from tailrace.observe.events import HandlerFailed, HandlerGaveUp
from tailrace.observe.hooks import Observer
from tailrace.records import Record

__all__ = ["RecordRecovery"]


class RecordRecovery:
    """Sees one handler's failed records to their end.

    Args:
        name: the handler's.
        policy: decides, and sees to what is given up.
    """

    def __init__(self, name: str, policy: FailurePolicy, observer: Observer) -> None:
        self._name, self._policy, self._observer = name, policy, observer

    @property
    def waiting(self) -> int:
        """Records that nobody takes, and which are tried again now and then."""
        return self._policy.waiting

    async def recover(self, executor: RecordExecutor, record: Record, error: Exception) -> None:
        """Return when ``record``, which failed with ``error``, is done with, or is another's.

        Raises:
            HandlerFailedError: ``on_failure="stop"`` says so.
            DeadLetterError: it cannot be written to the dead letters, and ``on_failure="stop"`` says so.
            ProducerFencedError: another process publishes in our place.
        """
        failure_counts, failed, has_given_up = self._policy.failure_counts(), error, False
        while True:
            so_far = failure_counts.failed(record.topic_partition, record.offset, is_outage=is_outage(failed))
            decision = self._policy.decide(record, so_far, failed, random.random())  # noqa: S311 - jitter
            gives_up = not has_given_up and is_given_up(decision, failed)
            self._tell(record, so_far.all, failed, decision.step, gives_up=gives_up)
            has_given_up = has_given_up or gives_up
            if decision.step not in {FailureAction.RETRY, FailureAction.PAUSE}:
                await self._policy.give_up(executor, record, so_far.failures, failed, decision)
                return
            if not await self._policy.wait(executor, record, decision):
                return
            try:
                await executor.attempt(record)
            except Exception as again:  # noqa: BLE001 - whatever a handler raises
                failed = _alone(again, error)
            else:
                return

    def _tell(self, record: Record, failures: int, error: Exception, step: FailureAction, *, gives_up: bool) -> None:
        partition, offset, name = record.topic_partition, record.offset, self._name
        then, where = SAID[step], where_raised(error)
        if gives_up:
            told: HandlerFailed = HandlerGaveUp(
                name, partition, offset, failures, said(error), then, where, error, with_short_tracebacks(error)
            )
        else:
            told = HandlerFailed(name, partition, offset, failures, said(error), then, where, error)
        self._observer.tell(told)


def _alone(error: Exception, before: Exception) -> Exception:
    """The error of an attempt, without that of the first one, in whose wake Python sees all others."""
    one: BaseException = error
    while one.__context__ is not None and one.__context__ is not before:
        one = one.__context__
    one.__context__ = None
    return error
