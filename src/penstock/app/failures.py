"""What becomes of a record whose handler failed, until it is done with.

Rule of this file: what to do is ``core.retries``'s to say. A record is done with when its handler has succeeded, when
it stands in a retry topic or among the dead letters (acknowledged, before its offset may be committed), or when the
user has said that it may be skipped; it is never dropped for any other reason. A topic that does not take it is no
reason to end the app either, or one record would end every process of the group: its lane waits.
"""

from __future__ import annotations

import math
import random
import time
from collections.abc import Awaitable, Callable, Sequence

from penstock.app.dead_letters import (
    Failure,
    Letter,
    attempts_before,
    dead_letter,
    origin_of,
    retry_letter,
    topic_name,
)
from penstock.app.delays import retry_topic
from penstock.app.handlers import Handler
from penstock.app.publisher import Publisher
from penstock.app.reject import Reject
from penstock.core.due import hop_of
from penstock.core.retries import Decision, OnFailure, Retry, Step, after_failure
from penstock.errors import (
    DeadLetterError,
    DecodeError,
    HandlerFailedError,
    ProducerFencedError,
    PublishError,
    PublishTooLargeError,
    SchemaRegistryError,
)
from penstock.observe.events import HandlerFailed, LetterRefused, RecordBuried, RecordDelayed, RecordSkipped
from penstock.observe.hooks import Observer
from penstock.records import Record

__all__ = ["NEVER_AGAIN", "OUTAGES", "SAID", "Failures"]

NEVER_AGAIN = (Reject, DecodeError)
"""What would fail in the same way each time."""
OUTAGES = (SchemaRegistryError,)
"""What says nothing of the record."""

SAID = {
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
        is_ours: whether the record that this task runs is not another's meanwhile.
        set_aside: takes a record that nobody takes, and has it come again later; None where it waits here.
        delay_of: the delay of a retry topic in milliseconds; None of other topics.
        publisher: for retry topics and dead letters.
        wall_clock: seconds since the epoch, for the letters.
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
        is_ours: Callable[[Record], bool] = lambda _record: True,
        set_aside: Callable[[Record, float], None] | None = None,
        delay_of: Callable[[str], int | None] = lambda _topic: None,
        wall_clock: Callable[[], float] = time.time,
    ) -> None:
        self._handler, self._group_id = handler, group_id
        self._retry, self._on_failure = retry, on_failure
        self._dead_letter_topic, self._publisher = dead_letter_topic, publisher
        self._attempt, self._pause, self._observer, self._wall_clock = attempt, pause, observer, wall_clock
        self._is_ours, self._set_aside, self._delay_of = is_ours, set_aside, delay_of
        self.waiting = 0
        """Records that nobody takes, and which are tried again now and then."""

    async def recover(self, record: Record, error: Exception) -> None:
        """Return when ``record``, which failed with ``error``, is done with, or is another's.

        Raises:
            HandlerFailedError: ``on_failure="stop"`` says so.
            DeadLetterError: it cannot be written to the dead letters, and ``on_failure="stop"`` says so.
            ProducerFencedError: another process publishes in our place.
        """
        failures, outages, failed = 0, 0, error
        came_by = hop_of(self._delay_of(record.topic), self._handler.retry_topics)
        while True:
            is_outage = isinstance(failed, OUTAGES)
            failures, outages = failures + (not is_outage), outages + is_outage
            decision = after_failure(
                self._retry,
                outages if is_outage else failures,
                failed,
                dead_letter=self._dead_letter_topic is not None,
                on_failure=self._on_failure,
                chance=random.random(),  # noqa: S311 - for jitter
                retry_topics=self._handler.retry_topics,
                attempt_topic_index=came_by,
                never=NEVER_AGAIN,
                outages=OUTAGES,
            )
            self._tell(record, failures + outages, failed, decision.step)
            if decision.step not in {Step.RETRY, Step.PAUSE}:
                await self.give_up(record, failures, failed, decision)
                return
            if not await self._wait(record, decision.pause_s, is_given_up=decision.step is Step.PAUSE):
                return
            try:
                await self._attempt(record)
            except Exception as again:  # noqa: BLE001 - whatever a handler raises
                failed = again
            else:
                return

    async def _wait(self, record: Record, seconds: float, *, is_given_up: bool) -> bool:
        if is_given_up and self._set_aside is not None:
            self._set_aside(record, seconds)
            return False
        self.waiting += is_given_up
        try:
            return await self._pause(record, seconds)
        finally:
            self.waiting -= is_given_up

    async def give_up(self, record: Record, failures: int, error: Exception, decision: Decision) -> None:
        """Do with a record what is decided; it is not tried again.

        Raises:
            HandlerFailedError: it is decided to stop.
            DeadLetterError: it cannot be written to the dead letters, and ``on_failure="stop"`` says so.
            ProducerFencedError: another process publishes in our place.
        """
        where = f"{record.topic_partition} offset {record.offset}"
        match decision.step:
            case Step.RETRY_TOPIC:
                await self._delay(record, failures, error, decision)
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

    # ---- letters -----------------------------------------------------------------------------------------------

    async def _delay(self, record: Record, failures: int, error: Exception, decision: Decision) -> None:
        assert decision.retry_topic is not None
        delay_ms = self._handler.retry_topics[decision.retry_topic]
        topic, failure = (
            retry_topic(origin_of(record).topic, self._group_id, delay_ms),
            self._of(record, failures, error),
        )

        def letters() -> Sequence[Letter]:
            # Made anew for each attempt to publish it: it is due so long after that.
            return [retry_letter(record, failure, math.ceil(self._wall_clock() * 1000) + delay_ms)]

        if await self._publish(record, topic, letters, error):
            self._observer.tell(
                RecordDelayed(
                    self._handler.name, record.topic_partition, record.offset, _said(error), topic, delay_ms / 1000
                )
            )

    async def _bury(self, record: Record, failures: int, error: Exception) -> None:
        assert self._dead_letter_topic is not None
        topic = topic_name(self._dead_letter_topic, topic=origin_of(record).topic, group=self._group_id)
        failure = self._of(record, failures, error)

        def letters() -> Sequence[Letter]:
            return [dead_letter(record, failure), dead_letter(record, failure, is_brief=True)]

        if await self._publish(record, topic, letters, error):
            self._observer.tell(
                RecordBuried(self._handler.name, record.topic_partition, record.offset, _said(error), topic)
            )

    async def _publish(
        self, record: Record, topic: str, letters: Callable[[], Sequence[Letter]], error: Exception
    ) -> bool:
        """Publish one of the letters, the next where one is too large; False when the record is another's meanwhile.

        For as long as the topic takes none, the record waits in its lane.
        """
        while self._is_ours(record):
            refused = await self._first_taken(topic, letters())
            if refused is None:
                return True
            where = f"{record.topic_partition} offset {record.offset}"
            if self._on_failure == "stop":
                raise DeadLetterError(
                    f"{where} failed ({_said(error)}) and cannot be written to {topic!r}: {refused} - it is not"
                    f" committed; {_advice(topic, refused)}"
                ) from refused
            retry_s = self._retry.max_backoff_ms / 1000
            self._observer.tell(
                LetterRefused(
                    self._handler.name,
                    record.topic_partition,
                    record.offset,
                    topic,
                    str(refused),
                    _advice(topic, refused),
                    retry_s,
                )
            )
            if not await self._wait(record, retry_s, is_given_up=True):
                return False
        return False

    async def _first_taken(self, topic: str, letters: Sequence[Letter]) -> PublishError | None:
        """Publish the first letter that is not too large; why not, when the topic takes none."""
        refused: PublishError | None = None
        for letter in letters:
            try:
                await self._publisher.publish(topic, letter.value, key=letter.key, headers=letter.headers)
            except PublishTooLargeError as too_large:
                refused = too_large
            except ProducerFencedError:
                raise
            except PublishError as other:
                return other
            else:
                return None
        return refused

    def _of(self, record: Record, failures: int, error: Exception) -> Failure:
        attempts = attempts_before(record) + failures
        return Failure(error, attempts, self._handler.name, self._group_id, int(self._wall_clock() * 1000))

    def _tell(self, record: Record, failures: int, error: Exception, step: Step) -> None:
        self._observer.tell(
            HandlerFailed(self._handler.name, record.topic_partition, record.offset, failures, _said(error), SAID[step])
        )


def _said(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}"


def _advice(topic: str, refused: PublishError) -> str:
    if isinstance(refused, PublishTooLargeError):
        return f"raise max.message.bytes of {topic}"
    return f"see that {topic} exists, that this app may write to it, and that enough of its replicas are alive"
