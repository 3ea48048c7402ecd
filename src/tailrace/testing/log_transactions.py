"""Transactions of an app under test; at a commit, their records are added to the topics, which are in memory.

The code that decides when to open, commit and abort transactions is that of production.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from uuid import UUID

from tailrace.app.transactions.attempts import PendingRecord
from tailrace.app.transactions.exactly_once import TransactionOptions
from tailrace.app.transactions.source import TransactionalSource
from tailrace.core.group_requests import Identity
from tailrace.errors import TailraceError
from tailrace.observe.hooks import Observer
from tailrace.records import OffsetAndMetadata, TopicPartition
from tailrace.testing.log_source import LogSource
from tailrace.testing.topic_log import TopicLog

__all__ = ["transactional_source"]


def transactional_source(
    source: LogSource, log: TopicLog, options: TransactionOptions, observer: Observer
) -> TransactionalSource:
    """Return a source that delivers the records of ``source`` within transactions."""
    return TransactionalSource(
        source,
        source.routes.retries,
        producer=_LogProducer(source, log),
        settings=options.window_settings(source.routes.handlers),
        observer=observer,
    )


class _LogProducer:
    """Transactional producer that writes to a TopicLog, and stores offsets in a LogSource."""

    def __init__(self, source: LogSource, log: TopicLog) -> None:
        self._source, self._log = source, log
        self._pending: list[PendingRecord] = []
        self.is_open = False

    async def start(self) -> None:
        """Do nothing, because there is no broker to connect to."""

    async def close(self, timeout_s: float | None = None) -> None:  # noqa: ARG002 - closing takes no time
        """Drop the open transaction."""
        self._end()

    async def begin(self) -> None:
        """Begin a transaction unless a transaction is open."""
        self.is_open = True

    async def check(self, topic: str, partition: int | None) -> None:
        """Check that the partition exists.

        Raises:
            PublishError: the partition does not exist.
        """
        self._log.partition_for(topic, None, partition)

    async def send(  # noqa: PLR0913 - fields of a record
        self,
        topic: str,
        value: bytes | None,
        *,
        key: bytes | None,
        headers: Sequence[tuple[str, bytes | None]],
        partition: int | None,
        timestamp_ms: int | None,
    ) -> None:
        """Keep a record until the transaction is committed."""
        await self.check(topic, partition)
        self._pending.append(PendingRecord(topic, value, key, headers, partition, timestamp_ms))

    async def commit(
        self,
        offsets: Mapping[TopicPartition, OffsetAndMetadata],
        identity: Identity,  # noqa: ARG002 - there are no other members
        topic_ids: Mapping[TopicPartition, UUID],  # noqa: ARG002 - no topic is deleted
        current_identity: Callable[[], Identity | None],  # noqa: ARG002 - there are no rebalances
    ) -> None:
        """Store the offsets, and add the records of the transaction to the log."""
        pending = list(self._pending)
        self._end()
        self._source.commit(offsets)
        for one in pending:
            self._log.add(one.topic, one.value, one.key, one.headers, one.partition, one.timestamp_ms)

    async def abort(self, cause: TailraceError, *, is_timed_out: bool) -> None:  # noqa: ARG002 - same for all causes
        """Drop the records of the transaction."""
        self._end()

    def _end(self) -> None:
        self.is_open = False
        self._pending.clear()
