"""What becomes of single records that failed: decided, and done where a record is given up.

Rule of this file: what to do is ``core.failures.retry``'s to say. A record is done with when its handler has succeeded,
when it stands in a retry topic or among the dead letters (acknowledged, before its offset may be committed), or when
the user has said that it may be skipped; it is never dropped for any other reason. A topic that does not take it is no
reason to end the app either, or one record would end every process of the group: its lane waits.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Protocol

from tailrace.app.declare.resolved_options import ResolvedOptions
from tailrace.app.failures.dead_letter_publisher import DeadLetterPublisher, OutgoingLetter
from tailrace.app.failures.dead_letters import message_of
from tailrace.app.failures.reject import Reject
from tailrace.app.handlers import Handler
from tailrace.app.sources import Transactions
from tailrace.core.failures.delayed_records import hop_of
from tailrace.core.failures.failure_counts import FailureCount, FailureCounts
from tailrace.core.failures.retry import FailureAction, RetryDecision, after_failure
from tailrace.errors import (
    DeadLetterError,
    DecodeError,
    HandlerFailedError,
    PublishError,
    PublishTooLargeError,
    SchemaRegistryError,
)
from tailrace.observe.events import DeadLetterFailed, RecordDeadLettered, RecordDelayed, RecordSkipped
from tailrace.observe.hooks import Observer
from tailrace.records import Record

__all__ = ["SAID", "FailurePolicy", "RetryingLane", "is_given_up", "is_outage", "said"]

_NEVER_AGAIN = (Reject, DecodeError)
"""What would fail in the same way each time."""
_OUTAGES = (SchemaRegistryError,)
"""What says nothing of the record."""

SAID = {
    FailureAction.RETRY: "tried again",
    FailureAction.RETRY_TOPIC: "tried again later",
    FailureAction.DEAD_LETTER: "sent to the dead letters",
    FailureAction.PAUSE: "tried again now and then, with its lane waiting",
    FailureAction.STOP: "the app stops",
    FailureAction.SKIP: "skipped",
}


class RetryingLane(Protocol):
    """Where a record waits that failed."""

    async def pause(self, record: Record, seconds: float) -> bool:
        """Wait without being in the way; False when the record is another's meanwhile."""

    def is_ours(self, record: Record) -> bool:
        """Whether the record, which this task runs, is not another's meanwhile."""


class FailurePolicy:
    """Decides about one handler's failed records, and sees to those that are given up.

    Args:
        transactions: those in which the records are handled, and which wait for none for long; None where there are
            none, and a record waits in its lane.
        delay_of: the delay of a retry topic in milliseconds; None of other topics.

    Attributes:
        waiting: records that nobody takes, and which are tried again now and then.
    """

    def __init__(  # noqa: PLR0913 - what is said of a record, and who is told
        self,
        handler: Handler,
        resolved: ResolvedOptions,
        *,
        letter_publisher: DeadLetterPublisher,
        observer: Observer,
        transactions: Transactions | None = None,
        delay_of: Callable[[str], int | None] = lambda _topic: None,
    ) -> None:
        self._handler, self._resolved, self._letter_publisher, self._observer = (
            handler,
            resolved,
            letter_publisher,
            observer,
        )
        self._delay_of, self._transactions = delay_of, transactions
        self._work_s = 0.0 if handler.timeout_ms is None else handler.timeout_ms / 1000
        self.waiting = 0

    def failure_counts(self) -> FailureCounts:
        """Where failures are counted: as long as records may come again, if they do, else until one is done with."""
        return FailureCounts() if self._transactions is None else self._transactions.failure_counts

    def decide(self, record: Record, so_far: FailureCount, error: Exception, chance: float) -> RetryDecision:
        """What to do with a record that failed so often, the last time with ``error``.

        Args:
            record: as it was read.
            so_far: how often, ``error`` included.
            error: the last one.
            chance: in [0, 1), for the jitter.
        """
        handler, resolved = self._handler, self._resolved
        return after_failure(
            resolved.retry,
            so_far.outages if is_outage(error) else so_far.failures,
            error,
            dead_letter=resolved.dead_letter is not None,
            on_failure=resolved.on_failure,
            chance=chance,
            retry_topics=handler.retry_topics,
            attempt_topic_index=hop_of(self._delay_of(record.topic), handler.retry_topics),
            never=_NEVER_AGAIN,
            outages=_OUTAGES,
        )

    async def wait(self, waiting: Sequence[tuple[Record, RetryDecision]], pause: Callable[[], Awaitable[bool]]) -> bool:
        """``pause`` before records are tried again together; return False if they are not tried again here.

        A transaction that cannot wait for all of them, or is aborted meanwhile, delivers each again when it is due.
        """
        transactions = self._transactions
        if transactions is None:
            return await pause()
        loop = asyncio.get_running_loop()
        began_at = loop.time()
        can_wait = all(
            one.step is FailureAction.RETRY and transactions.has_time(one.pause_s, self._work_s) for _, one in waiting
        )
        if can_wait and await pause():
            return True
        waited_s = loop.time() - began_at
        for record, decision in waiting:
            left_s = max(0.0, decision.pause_s - waited_s)
            transactions.set_aside(record, left_s, is_given_up=decision.step is FailureAction.PAUSE)
        return False

    async def give_up(
        self, lane: RetryingLane, record: Record, failures: int, error: Exception, decision: RetryDecision
    ) -> None:
        """Do with a record what is decided; it is not tried again.

        Raises:
            HandlerFailedError: it is decided to stop.
            DeadLetterError: it cannot be written to the dead letters, and ``on_failure="stop"`` says so.
            ProducerFencedError: another process publishes in our place.
        """
        name, partition, offset = self._handler.name, record.topic_partition, record.offset
        transactions = self._transactions
        if transactions is not None and decision.step is not FailureAction.STOP and not transactions.has_time(0.0, 0.0):
            # What is done about it now would be taken back: it is done when the record comes again.
            transactions.failure_counts.close(partition, offset, error)
            transactions.set_aside(record, 0.0, is_given_up=False)
            return
        match decision.step:
            case FailureAction.RETRY_TOPIC:
                assert decision.retry_topic is not None
                delay_ms = self._handler.retry_topics[decision.retry_topic]
                letter = self._letter_publisher.for_later(record, failures, error, name, delay_ms)
                if await self._send(lane, record, letter, error):
                    told = RecordDelayed(name, partition, offset, said(error), letter.topic, delay_ms / 1000, error)
                    self._observer.emit(told)
            case FailureAction.DEAD_LETTER:
                assert self._resolved.dead_letter is not None
                letter = self._letter_publisher.for_the_dead(record, failures, error, name, self._resolved.dead_letter)
                if await self._send(lane, record, letter, error):
                    self._observer.emit(RecordDeadLettered(name, partition, offset, said(error), letter.topic, error))
            case FailureAction.SKIP:
                self._observer.emit(RecordSkipped(name, partition, offset, said(error), error))
            case _:
                raise HandlerFailedError(
                    f"{name} failed at {partition} offset {offset} ({said(error)}), and on_failure='stop' says to stop"
                ) from error

    # ---- inside ------------------------------------------------------------------------------------------------

    async def _send(self, lane: RetryingLane, record: Record, letter: OutgoingLetter, error: Exception) -> bool:
        """Send a letter; False when the record is another's meanwhile.

        For as long as the topic takes none, the record waits in its lane.
        """
        while lane.is_ours(record):
            refused = await self._letter_publisher.send(letter, self._refusals_of(record))
            if refused is None:
                return True
            advice = _advice(letter.topic, refused)
            if self._resolved.on_failure == "stop":
                raise DeadLetterError(
                    f"{record.topic_partition} offset {record.offset} failed ({said(error)}) and cannot be written to"
                    f" {letter.topic!r}: {refused} - it is not committed; {advice}"
                ) from refused
            again_s = self._resolved.retry.max_backoff_ms / 1000
            name, partition, offset = self._handler.name, record.topic_partition, record.offset
            self._observer.emit(DeadLetterFailed(name, partition, offset, letter.topic, str(refused), advice, again_s))
            if not await self._wait_given_up(lane, record, again_s):
                return False
        return False

    def _refusals_of(self, record: Record) -> Sequence[PublishTooLargeError]:
        """What was told of letters only when their transaction was to be committed."""
        if self._transactions is None:
            return ()
        return self._transactions.refusals.of_letters(record.topic_partition, record.offset)

    async def _wait_given_up(self, lane: RetryingLane, record: Record, seconds: float) -> bool:
        if self._transactions is not None:
            self._transactions.set_aside(record, seconds, is_given_up=True)
            return False
        self.waiting += 1
        try:
            return await lane.pause(record, seconds)
        finally:
            self.waiting -= 1


def is_given_up(decision: RetryDecision, error: Exception) -> bool:
    """Return True if no further attempt is owed to a record, but for those of ``on_failure="pause"``."""
    return decision.step not in {FailureAction.RETRY, FailureAction.RETRY_TOPIC} and not is_outage(error)


def is_outage(error: Exception) -> bool:
    """Whether a failure says nothing of the record: something that it needs is away."""
    return isinstance(error, _OUTAGES)


def said(error: BaseException) -> str:
    """An error in a few words, for events."""
    return f"{type(error).__name__}: {message_of(error)}"


def _advice(topic: str, refused: PublishError) -> str:
    if isinstance(refused, PublishTooLargeError):
        return f"raise max.message.bytes of {topic}"
    return f"see that {topic} exists, that this app may write to it, and that enough of its replicas are alive"
