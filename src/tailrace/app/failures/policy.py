"""Failure policy of a handler: retries failed records, sends them to a retry or dead-letter topic, or skips them.

A failed record is finished when a retry succeeds, when a retry topic or dead-letter topic has acknowledged it, or when
``on_failure="skip"`` skips it; only then may its offset be committed. If a topic refuses a record, the record's lane
waits: an error would end this process, then the process to which the partition is assigned next, and so on. Only with
``on_failure="stop"``, an error is raised.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Protocol

from tailrace.app.failures.dead_letter_publisher import DeadLetterPublisher, OutgoingFailure
from tailrace.app.failures.reject import Reject
from tailrace.app.handlers import ResolvedHandler
from tailrace.app.policies import FailureAction, FailureCount, FailureCounts, RetryDecision, after_failure, consists_of
from tailrace.app.sources import Transactions
from tailrace.app.topics.delay_queue import retry_topic_index
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
from tailrace.user_exceptions import error_text

__all__ = ["ACTION_TEXTS", "FailurePolicy", "RetryingLane", "is_given_up", "is_outage"]

_NOT_RETRYABLE = (Reject, DecodeError)
"""Errors that would occur again in every attempt."""
_OUTAGES = (SchemaRegistryError,)
"""Errors for an unavailable service that the handler needs; they do not count as failures of the record."""

ACTION_TEXTS = {
    FailureAction.RETRY: "retried",
    FailureAction.RETRY_TOPIC: "sent to a retry topic",
    FailureAction.DEAD_LETTER: "sent to the dead-letter topic",
    FailureAction.PAUSE: "retried at intervals while its lane waits",
    FailureAction.STOP: "the app stops",
    FailureAction.SKIP: "skipped",
}
"""Descriptions of the actions, for events."""


class RetryingLane(Protocol):
    """Lane of a failed record: the queue in which the record, and the records after it, wait."""

    async def pause(self, record: Record, seconds: float) -> bool:
        """Wait ``seconds`` while other lanes continue; return False if the partition has another owner afterwards."""

    def is_ours(self, record: Record) -> bool:
        """Return True if the record's partition has stayed assigned since the record was started."""


class FailurePolicy:
    """Decides what happens to failed records of one handler, and executes these decisions, except retries.

    With transactions, a record that must wait longer than the open transaction may last is set aside: it is removed
    from the transaction and delivered again later.

    Args:
        handler: handler whose records fail.
        dead_letter_publisher: sends records to retry and dead-letter topics.
        observer: receives the events.
        transactions: transactions in which records are handled; None for at-least-once delivery, in which records wait
            in their lanes.
        delay_of: returns the delay of a retry topic in milliseconds; None for other topics.

    Attributes:
        waiting: number of records that were refused by a retry or dead-letter topic and wait in their lanes to be sent
            again.
    """

    def __init__(
        self,
        handler: ResolvedHandler,
        *,
        dead_letter_publisher: DeadLetterPublisher,
        observer: Observer,
        transactions: Transactions | None = None,
        delay_of: Callable[[str], int | None] = lambda _topic: None,
    ) -> None:
        self._handler, self._dead_letter_publisher, self._observer = handler, dead_letter_publisher, observer
        self._delay_of, self._transactions = delay_of, transactions
        self._work_s = 0.0 if handler.timeout_ms is None else handler.timeout_ms / 1000
        self.waiting = 0

    def failure_counts(self) -> FailureCounts:
        """Return the failure counts, which outlast aborted transactions; new counts without transactions."""
        return FailureCounts() if self._transactions is None else self._transactions.failure_counts

    def decide(self, record: Record, failure_count: FailureCount, error: Exception, chance: float) -> RetryDecision:
        """Decide what happens to a failed record.

        Args:
            record: record with the topic from which it was read: the handler's topic, or a retry or replay topic.
            failure_count: counts of the record's failures, including ``error``.
            error: last error of the record.
            chance: random number in [0, 1), for the jitter of the pause.
        """
        handler = self._handler
        return after_failure(
            handler.retry,
            failure_count.outages if is_outage(error) else failure_count.failures,
            error,
            dead_letter=handler.dead_letter is not None,
            on_failure=handler.on_failure,
            chance=chance,
            attempt_topic_index=retry_topic_index(self._delay_of(record.topic), handler.retry.topic_delays_ms),
            never=_NOT_RETRYABLE,
            outages=_OUTAGES,
        )

    async def wait(self, waiting: Sequence[tuple[Record, RetryDecision]], pause: Callable[[], Awaitable[bool]]) -> bool:
        """Await ``pause`` before records are retried together; return False if the caller must not retry them.

        Without transactions, return the result of ``pause``. With transactions, set all records aside if the open
        transaction has no time for another attempt, if a record is retried without a limit of attempts, or if ``pause``
        returns False. Each record is then delivered again after its own pause.
        """
        transactions = self._transactions
        if transactions is None:
            return await pause()
        loop = asyncio.get_running_loop()
        began_at = loop.time()
        can_wait = all(
            one.action is FailureAction.RETRY and transactions.has_time(one.pause_s, self._work_s) for _, one in waiting
        )
        if can_wait and await pause():
            return True
        waited_s = loop.time() - began_at
        for record, decision in waiting:
            left_s = max(0.0, decision.pause_s - waited_s)
            transactions.set_aside(record, left_s, is_given_up=decision.action is FailureAction.PAUSE)
        return False

    async def give_up(
        self, lane: RetryingLane, record: Record, failures: int, error: Exception, decision: RetryDecision
    ) -> None:
        """Send a record to its retry or dead-letter topic, skip the record, or stop the app, as ``decision`` requires.

        If the topic refuses the record, wait and send it again until the topic acknowledges it or its partition is no
        longer assigned. With transactions, set the record aside after the first refusal. ``failures`` is the number of
        failed attempts since the record was read from its current topic.

        Raises:
            HandlerFailedError: the app must stop.
            DeadLetterError: the topic refused the record, and the handler has ``on_failure="stop"``.
            ProducerFencedError: another producer has the same transactional id.
        """
        name, partition, offset = self._handler.name, record.topic_partition, record.offset
        transactions = self._transactions
        if (
            transactions is not None
            and decision.action is not FailureAction.STOP
            and not transactions.has_time(0.0, 0.0)
        ):
            # The open transaction will be aborted, which would undo the action. The action follows when the record is
            # delivered again.
            transactions.failure_counts.set_final_error(partition, offset, error)
            transactions.set_aside(record, 0.0, is_given_up=False)
            return
        match decision.action:
            case FailureAction.RETRY_TOPIC:
                assert decision.retry_topic is not None
                delay_ms = self._handler.retry.topic_delays_ms[decision.retry_topic]
                outgoing = self._dead_letter_publisher.for_retry_topic(record, failures, error, name, delay_ms)
                if await self._send(lane, record, outgoing, error):
                    event = RecordDelayed(
                        name, partition, offset, error_text(error), outgoing.topic, delay_ms / 1000, error
                    )
                    self._observer.emit(event)
            case FailureAction.DEAD_LETTER:
                assert self._handler.dead_letter is not None
                outgoing = self._dead_letter_publisher.for_dead_letter_topic(
                    record, failures, error, name, self._handler.dead_letter
                )
                if await self._send(lane, record, outgoing, error):
                    self._observer.emit(
                        RecordDeadLettered(name, partition, offset, error_text(error), outgoing.topic, error)
                    )
            case FailureAction.SKIP:
                self._observer.emit(RecordSkipped(name, partition, offset, error_text(error), error))
            case _:
                raise HandlerFailedError(
                    f"{name} failed at {partition} offset {offset}: {error_text(error)} - the app stops, as"
                    " on_failure='stop' is set; fix the handler, or set dead_letter or on_failure='skip'"
                ) from error

    # ---- inside ------------------------------------------------------------------------------------------------

    async def _send(self, lane: RetryingLane, record: Record, outgoing: OutgoingFailure, error: Exception) -> bool:
        """Send a failed record until its topic acknowledges it; return False if the record will be delivered again.

        Between two attempts, the record waits in its lane. With transactions, the record is set aside after the first
        refusal.
        """
        while lane.is_ours(record):
            refused = await self._dead_letter_publisher.send(outgoing, self._refusals_of(record))
            if refused is None:
                return True
            advice = _advice(outgoing.topic, refused)
            if self._handler.on_failure == "stop":
                raise DeadLetterError(
                    f"{record.topic_partition} offset {record.offset} failed ({error_text(error)}) and cannot be"
                    f" written to {outgoing.topic!r}: {refused}; it is not committed - {advice}"
                ) from refused
            pause_s = self._handler.retry.max_backoff_ms / 1000
            name, partition, offset = self._handler.name, record.topic_partition, record.offset
            self._observer.emit(
                DeadLetterFailed(name, partition, offset, outgoing.topic, str(refused), advice, pause_s, refused)
            )
            if not await self._wait_after_refusal(lane, record, pause_s):
                return False
        return False

    def _refusals_of(self, record: Record) -> Sequence[PublishTooLargeError]:
        """Return the errors that aborted earlier transactions because versions of the record were too large."""
        if self._transactions is None:
            return ()
        return self._transactions.refusals.dead_letter_errors(record.topic_partition, record.offset)

    async def _wait_after_refusal(self, lane: RetryingLane, record: Record, seconds: float) -> bool:
        """Wait, or set the record aside in a transaction; return False if the record must not be sent again now."""
        if self._transactions is not None:
            self._transactions.set_aside(record, seconds, is_given_up=True)
            return False
        self.waiting += 1
        try:
            return await lane.pause(record, seconds)
        finally:
            self.waiting -= 1


def is_given_up(decision: RetryDecision, error: Exception) -> bool:
    """Return True if a record has failed for good; ``on_failure="pause"`` still retries such a record at intervals."""
    return decision.action not in {FailureAction.RETRY, FailureAction.RETRY_TOPIC} and not is_outage(error)


def is_outage(error: Exception) -> bool:
    """Return True if ``error`` means that a service is unavailable, not that the record is at fault."""
    return consists_of(error, _OUTAGES)


def _advice(topic: str, refused: PublishError) -> str:
    if isinstance(refused, PublishTooLargeError):
        return f"raise {refused.setting} of {topic}"
    return f"check that {topic} exists, that this app may write to it, and that enough of its replicas are in sync"
