"""Attempts of handlers: the records that an attempt publishes are added to the transaction once it succeeds.

Records of a failed attempt are dropped, so that the next attempt may publish them again. A context variable holds the
attempt to which the running code belongs.
"""

from __future__ import annotations

import asyncio
import copy
from collections.abc import Awaitable, Callable, Sequence
from contextvars import ContextVar
from typing import NamedTuple, TypeVar

from tailrace.app.transactions.interfaces import TransactionCommitter
from tailrace.core.failures.failure_counts import FailureCounts
from tailrace.core.transactions.refused_records import RefusedRecords
from tailrace.core.transactions.window import Window
from tailrace.errors import ConsumerStateError, PublishError, TailraceError
from tailrace.producer.publisher import Publisher
from tailrace.records import Record

__all__ = ["Attempts", "PendingRecord", "current_publisher"]

WorkT = TypeVar("WorkT")

_MISSING_S = 30.0
"""Time for which a topic that was missing is not looked up again."""


class PendingRecord(NamedTuple):
    """Record to publish; see ``Publisher.publish``."""

    topic: str
    value: bytes | None
    key: bytes | None
    headers: Sequence[tuple[str, bytes | None]]
    partition: int | None
    timestamp_ms: int | None


class _Attempt:
    """One attempt, and the records that it publishes."""

    __slots__ = ("is_over", "outgoing", "publisher")

    def __init__(self, publisher: Publisher) -> None:
        self.publisher = publisher
        self.outgoing: list[PendingRecord | None] = []
        """Records in the order of the calls; None for one whose topic is being looked up."""
        self.is_over = False
        """True once the handler has returned or failed; later calls come from tasks that it left running."""


_current: ContextVar[_Attempt | None] = ContextVar("tailrace_attempt", default=None)


def current_publisher() -> Publisher | None:
    """Return the publisher of the calling handler; None outside of handlers that run in transactions."""
    attempt = _current.get()
    return None if attempt is None else attempt.publisher


class Attempts:
    """Attempts of one group's handlers.

    Args:
        transactor: producer of the group's transactions.
        window: state of the open transaction.
        failure_counts: failures of records in aborted transactions.
        refusals: records whose results were too large.
        on_doom: called with the reason why the transaction must be aborted.

    Attributes:
        has_letter: True if the open transaction contains a dead letter.
        has_sent: True if the open transaction contains any record.
    """

    def __init__(
        self,
        transactor: TransactionCommitter,
        window: Window,
        failure_counts: FailureCounts,
        refusals: RefusedRecords,
        on_doom: Callable[[TailraceError], None],
    ) -> None:
        self._transactor, self._window, self._failure_counts, self._on_doom = (
            transactor,
            window,
            failure_counts,
            on_doom,
        )
        self._refusals, self.has_letter, self.has_sent = refusals, False, False
        self._aborts = 0
        """Number of aborts; attempts that began before the last abort publish nothing."""
        self._missing: dict[tuple[str, int | None], tuple[PublishError, float]] = {}
        """Errors of missing topics and partitions, and the time until which each is raised without another look-up."""

    def around(
        self, publisher: Publisher, handle: Callable[[WorkT], Awaitable[object]]
    ) -> Callable[[WorkT], Awaitable[object]]:
        """Return ``handle`` with each call in an attempt of its own, which publishes through ``publisher``."""
        refusals, failure_counts, send = self._refusals, self._failure_counts, self._send_all

        async def attempted(work: WorkT) -> object:
            if failure_counts.has_final_errors:
                self._raise_final_error_of(work)
            attempt, aborts = _Attempt(publisher), self._aborts
            token = _current.set(attempt)
            try:
                result = await handle(work)
            finally:
                _current.reset(token)
                attempt.is_over = True
            if aborts != self._aborts:
                # The transaction was aborted: the records are read and handled again.
                return result
            if attempt.outgoing and (outgoing := [one for one in attempt.outgoing if one is not None]):
                if refusals:
                    self._raise_refusal_of(work)
                await send(outgoing)
            return result

        return attempted

    async def publish(self, one: PendingRecord) -> None:
        """Add a record to the transaction once the calling handler has succeeded.

        A record that is published outside of a handler, such as a dead letter, is added at once.

        Raises:
            PublishError: the topic or partition does not exist, or the handler has returned already.
        """
        attempt = _current.get()
        if attempt is None:
            self.has_letter = True
            await self._send(one)
            return
        # Reserve the record's place now, because the look-ups of concurrent calls may finish in another order.
        place = len(attempt.outgoing)
        attempt.outgoing.append(None)
        if self._window.abort_cause is None and not attempt.is_over:
            await self._check(one.topic, one.partition)
        if attempt.is_over:
            raise PublishError(
                f"{one.topic}: the handler has returned, so a task that it left running cannot publish any more"
            )
        attempt.outgoing[place] = one

    def disown(self) -> None:
        """Drop the records of attempts that are running: their transaction was aborted."""
        self._aborts += 1

    async def _check(self, topic: str, partition: int | None) -> None:
        """Check that a topic and, if given, its partition exist.

        The error of a missing one is cached for ``_MISSING_S`` seconds, because each look-up delays the transaction.
        """
        loop = asyncio.get_running_loop()
        if self._missing and (known := self._missing.pop((topic, partition), None)) is not None:
            error, until = known
            if loop.time() < until:
                self._missing[topic, partition] = known
                raise copy.copy(error)
        try:
            await self._transactor.check(topic, partition)
        except PublishError as error:
            self._missing[topic, partition] = error, loop.time() + _MISSING_S
            raise

    async def _send_all(self, outgoing: Sequence[PendingRecord]) -> None:
        """Send all records, or doom the transaction if only some could be sent."""
        for number, one in enumerate(outgoing):
            try:
                await self._send(one)
            except BaseException as error:
                if number or not isinstance(error, PublishError):
                    reason = f"{type(error).__name__}: {error}"
                    self._on_doom(PublishError(f"a handler's results could not be published as a whole ({reason})"))
                raise

    async def _send(self, one: PendingRecord) -> None:
        """Add a record to the transaction; drop it if the transaction will be aborted."""
        if self._window.abort_cause is not None:
            return
        self.has_sent = True
        try:
            await self._transactor.send(
                one.topic,
                one.value,
                key=one.key,
                headers=one.headers,
                partition=one.partition,
                timestamp_ms=one.timestamp_ms,
            )
        except (PublishError, ConsumerStateError) as error:
            if self._transactor.is_open:
                # Only this record was refused; the transaction can still be committed.
                raise
            if not self._window.is_open:
                # There is no transaction to abort.
                raise PublishError(f"{one.topic}: {error}") from error
            # The transaction has failed. Once it is aborted, its records are handled again.
            self._on_doom(error)

    def _raise_final_error_of(self, work: object) -> None:
        records = _records_of(work)
        # In a batch, the error would fail the other records, too.
        if len(records) == 1 and (
            error := self._failure_counts.final_error(records[0].topic_partition, records[0].offset)
        ):
            raise error

    def _raise_refusal_of(self, work: object) -> None:
        for record in _records_of(work):
            if error := self._refusals.result_error(record.topic_partition, record.offset):
                raise error


def _records_of(work: object) -> list[Record]:
    return [one for one in (work if isinstance(work, list | tuple) else (work,)) if isinstance(one, Record)]
