"""Failure policy of a handler: retries failed records, sends them to a retry or dead-letter topic, or skips them.

A failed record is finished when a retry succeeds, when a retry topic or dead-letter topic has acknowledged it, or when
``on_failure="skip"`` skips it; only then may its offset be committed. If a topic refuses a record, the record's lane
waits: an error would end this process, then the process to which the partition is assigned next, and so on. Only with
``on_failure="stop"``, an error is raised.

The records of a batch that are retried form one smaller batch in the same order, which waits for the shortest pause of
its records.

``app.policies.FailureRules`` chooses the action for a failed record, and the next retry topic; the policy does it.
"""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, TypeAlias, TypeVar

from tailrace.app.failures.dead_letter_publisher import DeadLetterPublisher, OutgoingFailure
from tailrace.app.failures.reject import Reject
from tailrace.app.handlers import ResolvedHandler
from tailrace.app.policies import FailureAction, FailureCount, FailureCounts, FailureRules, RetryDecision, consists_of
from tailrace.app.publish.results import gather_in_order
from tailrace.app.sources import Transactions
from tailrace.app.stack_frames import where_raised, with_short_tracebacks
from tailrace.errors import (
    DeadLetterError,
    DecodeError,
    HandlerFailedError,
    PublishError,
    PublishTooLargeError,
    SchemaRegistryError,
)
from tailrace.observe.events import (
    BatchFailed,
    BatchFailedPermanently,
    DeadLetterFailed,
    Event,
    HandlerFailed,
    HandlerFailedPermanently,
    RecordDeadLettered,
    RecordDelayed,
    RecordSkipped,
)
from tailrace.observe.hooks import Observer
from tailrace.records import Record
from tailrace.user_exceptions import error_text

__all__ = [
    "ACTION_TEXTS",
    "FailedWork",
    "FailurePolicy",
    "FailuresByIndex",
    "RetryingExecutor",
    "is_given_up",
    "is_outage",
]

FailuresByIndex: TypeAlias = Mapping[int, Exception]
"""Errors of the failed records, by the index of the record in its batch."""

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

_FAILURE_EVENTS: Mapping[tuple[bool, bool], Callable[..., Event]] = {
    (False, False): HandlerFailed,
    (False, True): HandlerFailedPermanently,
    (True, False): BatchFailed,
    (True, True): BatchFailedPermanently,
}
"""Event of a failure, for a handler of batches or not, and for a final failure or not."""


class FailedWork(Protocol):
    """Record or batch that was started and is not finished."""

    @property
    def records(self) -> Sequence[Record]:
        """Records that are not finished."""

    async def pause_all(self, seconds: float) -> bool:
        """Wait ``seconds`` for the next attempt; return False if all partitions of the work are halted or dropped."""

    async def pause(self, record: Record, seconds: float) -> bool:
        """Wait ``seconds`` while other lanes continue; return False if the partition has another owner afterwards."""

    def is_ours(self, record: Record) -> bool:
        """Return True if the record's partition has stayed assigned since the record was started."""


WorkT_contra = TypeVar("WorkT_contra", bound=FailedWork, contravariant=True)


class RetryingExecutor(Protocol[WorkT_contra]):
    """Interface through which FailurePolicy uses the executor of the work."""

    async def attempt(self, work: WorkT_contra) -> FailuresByIndex:
        """Call the handler again; return the failures."""

    def keep_only(self, work: WorkT_contra, records: Sequence[Record]) -> None:
        """Finish all records of ``work`` except ``records``."""


@dataclass(frozen=True, slots=True)
class _FailedRecord:
    """Failed record, with the decision about it."""

    record: Record
    error: Exception
    count: FailureCount
    decision: RetryDecision

    @property
    def is_retried(self) -> bool:
        """True if the handler is called again for the record."""
        return self.decision.action in {FailureAction.RETRY, FailureAction.PAUSE}


class FailurePolicy:
    """Retries or gives up the failed records of one handler, as ``app.policies.FailureRules`` decides.

    With transactions, a record that must wait longer than the open transaction may last is set aside: it is removed
    from the transaction and delivered again later.

    Attributes:
        waiting: number of records that failed for good and that are retried, or sent to a topic again, at intervals.
        retries: number of records for which the handler was called again, counted once for each call.
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
        has_dead_letter = handler.dead_letter is not None
        self._rules = FailureRules(handler.retry, handler.on_failure, has_dead_letter, _NOT_RETRYABLE, _OUTAGES)
        self.waiting = self.retries = 0

    async def recover(
        self, executor: RetryingExecutor[WorkT_contra], work: WorkT_contra, failed: FailuresByIndex
    ) -> None:
        """Retry or give up the failed records until all records of ``work`` are finished or left to another owner.

        Raises:
            HandlerFailedError: a record failed for good, and ``on_failure="stop"`` is set.
            DeadLetterError: a dead-letter or retry topic refused a record, and ``on_failure="stop"`` is set.
            ProducerFencedError: another producer has the same transactional id.
        """
        # Failure counts outlast aborted transactions.
        failure_counts = FailureCounts() if self._transactions is None else self._transactions.failure_counts
        has_reported_final = False
        while failed:
            failed_records = self._decide(work.records, failure_counts, failed)
            # Records that are retried after their final failure (on_failure="pause") are reported as final only once.
            final = [
                one
                for one in failed_records
                if is_given_up(one.decision, one.error) and not (one.is_retried and has_reported_final)
            ]
            self._emit_failure(len(work.records), failed_records, final)
            has_reported_final = has_reported_final or bool(final)
            # Finish the successful records of a batch before the failed records are given up, which may take long.
            executor.keep_only(work, [one.record for one in failed_records])
            # If a partition was lost, its new owner handles the record again and gives it up.
            given_up = [one for one in failed_records if not one.is_retried and work.is_ours(one.record)]
            await gather_in_order([self._give_up(work, one) for one in given_up])
            retried = [one for one in failed_records if one.is_retried]
            executor.keep_only(work, [one.record for one in retried])
            if not retried or not await self._wait(work, retried):
                return
            self.retries += len(work.records)
            failed = await executor.attempt(work)

    def _decide(
        self, records: Sequence[Record], failure_counts: FailureCounts, failed: FailuresByIndex
    ) -> list[_FailedRecord]:
        """Count the failures, and return the failed records with the decisions about them."""
        chance, found = random.random(), []  # noqa: S311 - jitter
        for index in sorted(failed):
            record, error = records[index], failed[index]
            caused_by_outage = is_outage(error)
            count = failure_counts.count_failure(record.topic_partition, record.offset, is_outage=caused_by_outage)
            decision = self._rules.decide(
                count.outages if caused_by_outage else count.failures,
                error,
                chance,
                self._delay_of(record.topic),
            )
            found.append(_FailedRecord(record, error, count, decision))
        return found

    async def _wait(self, work: FailedWork, retried: Sequence[_FailedRecord]) -> bool:
        """Wait before records are retried together; return False if the caller must not retry them.

        With transactions, set all records aside if the open transaction has no time for another attempt, if a record is
        retried without a limit of attempts, or if all partitions are halted or dropped. Each record is then delivered
        again after its own pause.
        """
        transactions, loop = self._transactions, asyncio.get_running_loop()
        began_at, pause_s = loop.time(), min(one.decision.pause_s for one in retried)
        has_time = transactions is None or all(
            one.decision.action is FailureAction.RETRY and transactions.has_time(one.decision.pause_s, self._work_s)
            for one in retried
        )
        paused = sum(one.decision.action is FailureAction.PAUSE for one in retried)
        self.waiting += paused
        try:
            may_retry = has_time and await work.pause_all(pause_s)
        finally:
            self.waiting -= paused
        if transactions is not None and not may_retry:
            waited_s = loop.time() - began_at
            for one in retried:
                left_s = max(0.0, one.decision.pause_s - waited_s)
                is_given_up = one.decision.action is FailureAction.PAUSE
                transactions.set_aside(one.record, left_s, is_given_up=is_given_up)
        return may_retry

    def _emit_failure(
        self, count: int, failed_records: Sequence[_FailedRecord], final: Sequence[_FailedRecord]
    ) -> None:
        first, is_batch = (final or failed_records)[0], self._handler.batch is not None
        options: dict[str, Any] = {"logged_exception": with_short_tracebacks(first.error)} if final else {}
        counts: tuple[int, ...] = ()
        action = ACTION_TEXTS[first.decision.action]
        if is_batch:
            counts, steps = (len(failed_records), count), Counter(one.decision.action for one in failed_records)
            action = ", ".join(f"{number} {ACTION_TEXTS[step]}" for step, number in steps.items())
        self._observer.emit(
            _FAILURE_EVENTS[is_batch, bool(final)](
                self._handler.name,
                first.record.topic_partition,
                first.record.offset,
                *counts,
                max(one.count.total for one in failed_records),
                error_text(first.error),
                action,
                where_raised(first.error),
                first.error,
                **options,
            )
        )

    async def _give_up(self, work: FailedWork, failed: _FailedRecord) -> None:
        """Send a record to its retry or dead-letter topic, skip the record, or stop the app, as was decided.

        If the topic refuses the record, wait and send it again until the topic acknowledges it or its partition is no
        longer assigned. With transactions, set the record aside after the first refusal.

        Raises:
            HandlerFailedError: the app must stop.
            DeadLetterError: the topic refused the record, and the handler has ``on_failure="stop"``.
            ProducerFencedError: another producer has the same transactional id.
        """
        record, error, decision, failures = failed.record, failed.error, failed.decision, failed.count.failures
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
                delay_ms = decision.topic_delay_ms
                assert delay_ms is not None
                outgoing = self._dead_letter_publisher.for_retry_topic(record, failures, error, name, delay_ms)
                if await self._send(work, record, outgoing, error):
                    event = RecordDelayed(
                        name, partition, offset, error_text(error), outgoing.topic, delay_ms / 1000, error
                    )
                    self._observer.emit(event)
            case FailureAction.DEAD_LETTER:
                assert self._handler.dead_letter is not None
                outgoing = self._dead_letter_publisher.for_dead_letter_topic(
                    record, failures, error, name, self._handler.dead_letter
                )
                if await self._send(work, record, outgoing, error):
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

    async def _send(self, work: FailedWork, record: Record, outgoing: OutgoingFailure, error: Exception) -> bool:
        """Send a failed record until its topic acknowledges it; return False if the record will be delivered again.

        Between two attempts, the record waits in its lane. With transactions, the record is set aside after the first
        refusal.
        """
        name, partition, offset = self._handler.name, record.topic_partition, record.offset
        transactions, pause_s = self._transactions, self._handler.retry.max_backoff_ms / 1000
        while work.is_ours(record):
            # Earlier transactions may have been aborted because versions of the record were too large.
            earlier = () if transactions is None else transactions.refusals.dead_letter_errors(partition, offset)
            refused = await self._dead_letter_publisher.send(outgoing, earlier)
            if refused is None:
                return True
            advice = _advice(outgoing.topic, refused)
            if self._handler.on_failure == "stop":
                raise DeadLetterError(
                    f"{record.topic_partition} offset {record.offset} failed ({error_text(error)}) and cannot be"
                    f" written to {outgoing.topic!r}: {refused}; it is not committed - {advice}"
                ) from refused
            self._observer.emit(
                DeadLetterFailed(name, partition, offset, outgoing.topic, str(refused), advice, pause_s, refused)
            )
            if transactions is not None:
                transactions.set_aside(record, pause_s, is_given_up=True)
                return False
            self.waiting += 1
            try:
                if not await work.pause(record, pause_s):
                    return False
            finally:
                self.waiting -= 1
        return False


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
