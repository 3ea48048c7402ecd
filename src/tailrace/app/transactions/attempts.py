"""Attempts of handlers: the messages of an attempt are added to the transaction when the attempt has succeeded.

The messages of a failed attempt are dropped, so that the next attempt may publish them again. A context variable holds
the attempt to which the running code belongs.
"""

from __future__ import annotations

import asyncio
import copy
from collections.abc import Awaitable, Callable, Sequence
from contextvars import ContextVar
from typing import TypeVar

from tailrace.app.policies import FailureCounts
from tailrace.app.refused_records import RefusedRecords
from tailrace.app.transactions.partitions import TransactionCommitter
from tailrace.app.transactions.window import Window
from tailrace.errors import ConsumerStateError, PublishError, TailraceError
from tailrace.producer.publisher import OutgoingRecord, Publisher
from tailrace.records import Record
from tailrace.user_exceptions import error_text

__all__ = ["Attempts", "current_publisher"]

WorkT = TypeVar("WorkT")

_MISSING_S = 30.0
"""Seconds for which a topic that was missing is not looked up again."""


class _Attempt:
    """One attempt, with the messages that it publishes."""

    __slots__ = ("is_over", "outgoing", "publisher")

    def __init__(self, publisher: Publisher) -> None:
        self.publisher = publisher
        self.outgoing: list[OutgoingRecord | None] = []
        """Messages in the order of the calls of ``publish``; None in place of a message that is not checked yet."""
        self.is_over = False
        """True once the handler has returned or failed; tasks that it has started may still call ``publish``."""


_current: ContextVar[_Attempt | None] = ContextVar("tailrace_attempt", default=None)


def current_publisher() -> Publisher | None:
    """Return the publisher of the handler that is running; None outside of handlers that run in transactions."""
    attempt = _current.get()
    return None if attempt is None else attempt.publisher


class Attempts:
    """Attempts of one group's handlers.

    Args:
        producer: producer of the group's transactions.
        window: state of the open transaction.
        failure_counts: failures of records, including those in aborted transactions.
        refusals: records whose results were too large for their topic.
        on_failure: called with the reason why the transaction must be aborted.

    Attributes:
        has_dead_letter: True if the open transaction contains a message that was published outside of handlers: a
            dead letter, or a record for a retry topic.
        has_sent: True if the open transaction contains a message.
    """

    def __init__(
        self,
        producer: TransactionCommitter,
        window: Window,
        failure_counts: FailureCounts,
        refusals: RefusedRecords,
        on_failure: Callable[[TailraceError], None],
    ) -> None:
        self._producer, self._window, self._failure_counts, self._on_failure = (
            producer,
            window,
            failure_counts,
            on_failure,
        )
        self._refusals, self.has_dead_letter, self.has_sent = refusals, False, False
        self._aborts = 0
        """Number of calls of ``discard_running``; an attempt that began before the last call publishes nothing."""
        self._missing: dict[tuple[str, int | None], tuple[PublishError, float]] = {}
        """Errors for missing topics and partitions, with the loop times until which no look-up is repeated."""

    def wrap_call(
        self, publisher: Publisher, handle: Callable[[WorkT], Awaitable[object]]
    ) -> Callable[[WorkT], Awaitable[object]]:
        """Return a function that calls ``handle`` and, if the call succeeds, sends the handler's messages.

        Args:
            publisher: publisher that ``current_publisher`` returns during the call.
            handle: calls the handler for a record or a batch.
        """
        refusals, failure_counts, send = self._refusals, self._failure_counts, self._send_all

        async def call_in_attempt(work: WorkT) -> object:
            if failure_counts.has_final_errors:
                self._raise_final_error(work)
            attempt, aborts = _Attempt(publisher), self._aborts
            token = _current.set(attempt)
            try:
                result = await handle(work)
            finally:
                _current.reset(token)
                attempt.is_over = True
            if aborts != self._aborts:
                # The transaction was aborted meanwhile, so its records are read and handled again.
                return result
            if attempt.outgoing and (outgoing := [one for one in attempt.outgoing if one is not None]):
                if refusals:
                    self._raise_refusal(work)
                await send(outgoing)
            return result

        return call_in_attempt

    async def publish(self, one: OutgoingRecord) -> None:
        """Keep a message until the calling handler has succeeded; outside of handlers, send the message at once.

        Raises:
            PublishError: the topic or partition does not exist, the handler has returned already, or a message that is
                sent at once is refused.
        """
        attempt = _current.get()
        if attempt is None:
            self.has_dead_letter = True
            await self._send(one)
            return
        # Reserve the index of the message now, because the look-ups of concurrent calls may end in another order.
        index = len(attempt.outgoing)
        attempt.outgoing.append(None)
        if self._window.abort_cause is None and not attempt.is_over:
            await self._check(one.topic, one.partition)
        if attempt.is_over:
            raise PublishError(
                f"{one.topic}: the handler has returned, so its background tasks cannot publish any more"
                " - await the tasks in the handler"
            )
        attempt.outgoing[index] = one

    def discard_running(self) -> None:
        """Drop the messages of the running attempts, because their transaction was aborted."""
        self._aborts += 1

    async def _check(self, topic: str, partition: int | None) -> None:
        """Check that a topic exists and, unless ``partition`` is None, that it has the partition.

        An error is cached for ``_MISSING_S`` seconds, because each look-up delays the transaction.
        """
        loop = asyncio.get_running_loop()
        if self._missing and (known := self._missing.pop((topic, partition), None)) is not None:
            error, until = known
            if loop.time() < until:
                self._missing[topic, partition] = known
                raise copy.copy(error)
        try:
            await self._producer.check(topic, partition)
        except PublishError as error:
            self._missing[topic, partition] = error, loop.time() + _MISSING_S
            raise

    async def _send_all(self, outgoing: Sequence[OutgoingRecord]) -> None:
        """Send all messages; have the transaction aborted if some messages may have been sent and others were not."""
        for number, one in enumerate(outgoing):
            try:
                await self._send(one)
            except BaseException as error:
                if number or not isinstance(error, PublishError):
                    reason = error_text(error)
                    self._on_failure(PublishError(f"only some results of a handler could be published ({reason})"))
                raise

    async def _send(self, one: OutgoingRecord) -> None:
        """Send a message in the transaction; drop the message if the transaction will be aborted."""
        if self._window.abort_cause is not None:
            return
        self.has_sent = True
        try:
            await self._producer.send(one)
        except (PublishError, ConsumerStateError) as error:
            if self._producer.is_open:
                # Only this message was refused; the transaction can still be committed.
                raise
            if not self._window.is_open:
                # Without an open window there is no transaction to abort, so the caller gets the error.
                raise PublishError(f"{one.topic}: {error}") from error
            # The transaction has failed. Once it is aborted, its records are handled again.
            self._on_failure(error)

    def _raise_final_error(self, work: object) -> None:
        """Raise the error of a record that has failed for good in an aborted transaction; do nothing for others."""
        records = _records_of(work)
        # In a batch, the error would make the other records fail, too.
        if len(records) == 1 and (
            error := self._failure_counts.final_error(records[0].topic_partition, records[0].offset)
        ):
            raise error

    def _raise_refusal(self, work: object) -> None:
        """Raise the error of a record whose result was too large in an aborted transaction; do nothing for others."""
        for record in _records_of(work):
            if error := self._refusals.result_error(record.topic_partition, record.offset):
                raise error


def _records_of(work: object) -> list[Record]:
    return [one for one in (work if isinstance(work, list | tuple) else (work,)) if isinstance(one, Record)]
