"""What becomes of a record whose handler failed, until it is done with.

Rule of this file: what to do is ``core.retries``'s to say. A record is done with when its handler has succeeded, when
it stands among the dead letters (acknowledged, before its offset may be committed), or when the user has said that it
may be skipped; it is never dropped for any other reason.
"""

from __future__ import annotations

import random
import time
from collections.abc import Awaitable, Callable

from penstock.app.dead_letters import Failure, dead_letter, origin_of, topic_name
from penstock.app.handlers import Handler
from penstock.app.publisher import Publisher
from penstock.app.reject import Reject
from penstock.core.retries import Decision, OnFailure, Retry, Step, after_failure
from penstock.errors import DeadLetterError, DecodeError, HandlerFailedError, PublishError
from penstock.observe.events import HandlerFailed, RecordBuried, RecordSkipped
from penstock.observe.hooks import Observer
from penstock.records import Record

__all__ = ["Failures"]

_NEVER_AGAIN = (Reject, DecodeError)

_SAID = {
    Step.RETRY: "tried again",
    Step.RETRY_TOPIC: "tried again later",
    Step.DEAD_LETTER: "sent to the dead letters",
    Step.PAUSE: "tried again now and then, with its lane waiting",
    Step.STOP: "the app stops",
    Step.SKIP: "skipped",
}


class Failures:
    """Sees one handler's failed records to their end.

    Args:
        attempt: runs the handler on a record once more.
        pause: waits without being in the way; False when the record is another's meanwhile.
        wall_clock: seconds since the epoch, for the letters.
        publisher: for dead letters.
    """

    def __init__(  # noqa: PLR0913 - what a failure is about
        self,
        handler: Handler,
        *,
        group_id: str,
        retry: Retry,
        on_failure: OnFailure,
        dead_letter_topic: str | None,
        publisher: Publisher,
        attempt: Callable[[Record], Awaitable[object]],
        pause: Callable[[Record, float], Awaitable[bool]],
        observer: Observer,
        wall_clock: Callable[[], float] = time.time,
    ) -> None:
        self._handler, self._group_id = handler, group_id
        self._retry, self._on_failure = retry, on_failure
        self._dead_letter_topic, self._publisher = dead_letter_topic, publisher
        self._attempt, self._pause, self._observer, self._wall_clock = attempt, pause, observer, wall_clock
        self.waiting = 0
        """Records that nobody takes, and which are tried again now and then."""

    async def recover(self, record: Record, error: Exception) -> None:
        """Return when ``record``, which failed with ``error``, is done with, or is another's.

        Raises:
            HandlerFailedError: ``on_failure="stop"`` says so.
            DeadLetterError: it cannot be written to the dead letters, and so may not be passed over.
        """
        failures, failed = 1, error
        while True:
            decision = after_failure(
                self._retry,
                failures,
                failed,
                dead_letter=self._dead_letter_topic is not None,
                on_failure=self._on_failure,
                chance=random.random(),  # noqa: S311 - for jitter
                never=_NEVER_AGAIN,
            )
            self._tell(record, failures, failed, decision.step)
            if decision.step not in {Step.RETRY, Step.PAUSE}:
                await self._give_up(record, failures, failed, decision.step)
                return
            if not await self._wait(record, decision):
                return
            try:
                await self._attempt(record)
            except Exception as again:  # noqa: BLE001 - whatever a handler raises
                failures, failed = failures + 1, again
            else:
                return

    async def _wait(self, record: Record, decision: Decision) -> bool:
        is_parked = decision.step is Step.PAUSE
        self.waiting += is_parked
        try:
            return await self._pause(record, decision.pause_s)
        finally:
            self.waiting -= is_parked

    async def _give_up(self, record: Record, failures: int, error: Exception, step: Step) -> None:
        where = f"{record.topic_partition} offset {record.offset}"
        match step:
            case Step.DEAD_LETTER:
                await self._bury(record, failures, error)
            case Step.SKIP:
                self._observer.tell(
                    RecordSkipped(self._handler.name, record.topic_partition, record.offset, _said(error))
                )
            case _:
                raise HandlerFailedError(
                    f"{self._handler.name} failed at {where} ({_said(error)}), and on_failure='stop' says to stop"
                ) from error

    async def _bury(self, record: Record, failures: int, error: Exception) -> None:
        assert self._dead_letter_topic is not None
        topic = topic_name(self._dead_letter_topic, topic=origin_of(record).topic, group=self._group_id)
        failure = Failure(error, failures, self._handler.name, self._group_id, int(self._wall_clock() * 1000))
        letter = dead_letter(record, failure)
        try:
            await self._publisher.publish(topic, letter.value, key=letter.key, headers=letter.headers)
        except PublishError as refused:
            raise DeadLetterError(
                f"{record.topic_partition} offset {record.offset} failed ({_said(error)}) and cannot be written to the"
                f" dead letters {topic!r}: {refused} - it is not committed; may the topic be written, is it there?"
            ) from refused
        self._observer.tell(
            RecordBuried(self._handler.name, record.topic_partition, record.offset, _said(error), topic)
        )

    def _tell(self, record: Record, failures: int, error: Exception, step: Step) -> None:
        self._observer.tell(
            HandlerFailed(
                self._handler.name, record.topic_partition, record.offset, failures, _said(error), _SAID[step]
            )
        )


def _said(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}"
