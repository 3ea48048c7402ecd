"""Producer of one group's transactions that recovers from fatal errors."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Mapping
from uuid import UUID

from tailrace.config import ProducerConfig
from tailrace.core.backoff import Backoff
from tailrace.core.group_requests import Identity
from tailrace.errors import (
    AuthenticationError,
    BrokerConnectionError,
    ConsumerStateError,
    ProducerFencedError,
    PublishError,
    TailraceError,
)
from tailrace.observe.events import TransactionalProducerReplaced, TransactionInDoubt
from tailrace.observe.hooks import Observer
from tailrace.observe.statistics import ProducerStatistics
from tailrace.producer.publisher import OutgoingRecord
from tailrace.producer.transaction_machine import OPEN, OVER, ProducerState
from tailrace.producer.transactional_producer import TransactionalProducer
from tailrace.records import OffsetAndMetadata, TopicPartition

__all__ = ["RenewingProducer"]

_MAX_PAUSE_MS = 5_000
"""Maximum pause in milliseconds between two attempts."""


class RenewingProducer:
    """Producer with a fixed transactional id that uses a new ``TransactionalProducer`` after a fatal error.

    Args:
        config: options of the producer, with its transactional id.
        group_id: group whose offsets are committed.
        max_metadata_bytes: maximum size of commit metadata.
        observer: receives events.

    Attributes:
        max_metadata_bytes: maximum size of commit metadata.
    """

    def __init__(self, config: ProducerConfig, group_id: str, *, max_metadata_bytes: int, observer: Observer) -> None:
        self._config, self._group_id, self._observer = config, group_id, observer
        self.max_metadata_bytes = max_metadata_bytes
        self._backoff = Backoff.of_ms(config.retry_backoff_ms, _MAX_PAUSE_MS)
        self._producer: TransactionalProducer | None = None
        self._is_begun = False
        """True from ``begin`` to ``commit`` or ``abort``, even if the producer has failed meanwhile."""
        self._is_refused = False
        """True if a producer could not start because of a fatal error."""

    async def start(self) -> None:
        """Start a producer, which fences earlier producers with the same transactional id.

        Raises:
            TailraceError: see ``TransactionalProducer.start``.
        """
        producer = TransactionalProducer(self._config)
        try:
            await producer.start()
        except PublishError:
            self._is_refused = producer.state in OVER
            raise
        self._producer = producer

    async def close(self, timeout_s: float | None = None) -> None:
        """Abort an open transaction and close the producer."""
        producer, self._producer = self._producer, None
        if producer is not None:
            await producer.close(timeout_s)

    def statistics(self) -> ProducerStatistics | None:
        """Return the statistics of the current producer; None while there is none."""
        return None if self._producer is None else self._producer.statistics()

    async def begin(self) -> None:
        """Begin a transaction unless one is open; retry without limit after errors that are not fatal.

        A producer that has failed is replaced, for example after the broker has forgotten its producer id.

        Raises:
            ProducerFencedError: another process uses the same transactional id.
            TailraceError: the error is fatal.
        """
        if self._is_begun:
            return
        failures = 0
        while True:
            try:
                if self._producer is None:
                    await self.start()
                assert self._producer is not None
                await self._producer.begin()
            except (PublishError, BrokerConnectionError) as error:
                if isinstance(error, AuthenticationError) or self._is_refused:
                    raise
                if (producer := self._producer) is not None and producer.state in OVER:
                    await self._replace(producer, error, is_timed_out=False)
            else:
                self._is_begun = True
                return
            failures += 1
            await self._pause(failures)

    @property
    def is_open(self) -> bool:
        """True if records may be sent."""
        return self._state in OPEN

    async def check(self, topic: str, partition: int | None) -> None:
        """Check that a topic and, unless it is None, the partition exist.

        Raises:
            PublishError: the topic or partition does not exist.
        """
        if self._producer is not None:
            await self._producer.check(topic, partition)

    async def send(self, record: OutgoingRecord) -> None:
        """Add a record to the transaction.

        Raises:
            ConsumerStateError: no transaction is open.
            PublishError: see ``TransactionalProducer.send``.
        """
        if self._producer is None:
            raise ConsumerStateError("no transaction is open")
        await self._producer.send(record)

    async def commit(
        self,
        offsets: Mapping[TopicPartition, OffsetAndMetadata],
        identity: Identity,
        topic_ids: Mapping[TopicPartition, UUID],
        current_identity: Callable[[], Identity | None],
    ) -> None:
        """Commit the transaction with the offsets; repeat the request while its outcome is unknown.

        Raises:
            TailraceError: nothing was committed, or the producer has failed and the outcome stays unknown.
        """
        assert self._producer is not None
        failures = 0
        while True:
            try:
                await self._producer.commit(offsets, identity, self._group_id, topic_ids, current_identity)
            except TailraceError as error:
                if not self._producer.is_in_doubt:
                    raise
                failures += 1
                self._observer.emit(TransactionInDoubt(self._group_id, str(error), error))
            else:
                self._is_begun = False
                return
            await self._pause(failures)

    async def abort(self, cause: TailraceError, *, is_timed_out: bool) -> None:
        """Abort the transaction; retry without limit after errors that are not fatal. A failed producer is replaced.

        Args:
            cause: reason of the abort.
            is_timed_out: True if the transaction timeout has passed. The broker may then have aborted the transaction
                and fenced this producer, so ProducerFencedError is not raised.

        Raises:
            ProducerFencedError: another process uses the same transactional id.
            TailraceError: see ``begin``.
        """
        self._is_begun, failures = False, 0
        while (producer := self._producer) is not None:
            error = cause
            if producer.state not in OVER:
                try:
                    await producer.abort()
                except TailraceError as raised:
                    error = raised
                else:
                    # ``abort`` does nothing if the producer has ended in an abort of its own meanwhile.
                    if producer.state not in OVER:
                        return
            if producer.state in OVER:
                await self._replace(producer, error, is_timed_out=is_timed_out)
                if producer.state is ProducerState.FAILED:
                    # A new producer with the same id makes the coordinator abort the open transaction.
                    await self.begin()
                return
            failures += 1
            await self._pause(failures)

    # ---- inside ------------------------------------------------------------------------------------------------

    @property
    def _state(self) -> ProducerState:
        return ProducerState.UNINITIALIZED if self._producer is None else self._producer.state

    async def _replace(self, producer: TransactionalProducer, error: TailraceError, *, is_timed_out: bool) -> None:
        """Close a producer that has ended; the next ``begin`` starts another.

        Raises:
            ProducerFencedError: another process uses the same transactional id.
        """
        # The error that ended the producer may differ from the cause of the abort.
        error = producer.error or error
        if isinstance(error, ProducerFencedError) and not (is_timed_out or producer.has_timed_out):
            raise error
        name = self._config.transactional_id or ""
        self._observer.emit(TransactionalProducerReplaced(self._group_id, name, str(error), error))
        await self.close()

    async def _pause(self, failures: int) -> None:
        await asyncio.sleep(self._backoff.pause_s(failures, random.random()))  # noqa: S311 - for jitter
