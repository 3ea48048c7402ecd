"""Transactions of an app under test; the records of a transaction are added to the log at the commit.

Production code decides when to open, commit and abort transactions.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from uuid import UUID

from tailrace.app.transactions.attempts import PendingRecord
from tailrace.app.transactions.exactly_once import TransactionOptions
from tailrace.app.transactions.source import TransactionalSource
from tailrace.core.group.events import Identity
from tailrace.errors import TailraceError
from tailrace.observe.hooks import Observer
from tailrace.records import OffsetAndMetadata, TopicPartition
from tailrace.testing.log_source import LogSource
from tailrace.testing.topic_log import TopicLog

__all__ = ["in_transactions"]


def in_transactions(
    source: LogSource, log: TopicLog, options: TransactionOptions, observer: Observer
) -> TransactionalSource:
    """Return a source that reads from ``source`` within transactions."""
    return TransactionalSource(
        source,
        source.routes.retries,
        transactor=_LogCommitter(source, log),
        settings=options.window_settings(source.routes.handlers),
        observer=observer,
    )


class _LogCommitter:
    """Transactional producer that commits to a TopicLog."""

    def __init__(self, source: LogSource, log: TopicLog) -> None:
        self._source, self._log = source, log
        self._outgoing: list[PendingRecord] = []
        self.is_open = False

    async def start(self) -> None:
        """Do nothing: there is no broker to connect to."""

    async def close(self, timeout_s: float | None = None) -> None:  # noqa: ARG002 - it takes no time
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
        self._log.place_of(topic, None, partition)

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
        self._outgoing.append(PendingRecord(topic, value, key, headers, partition, timestamp_ms))

    async def commit(
        self,
        offsets: Mapping[TopicPartition, OffsetAndMetadata],
        identity: Identity,  # noqa: ARG002 - there are no other members
        topic_ids: Mapping[TopicPartition, UUID],  # noqa: ARG002 - no topic is deleted
        current_identity: Callable[[], Identity | None],  # noqa: ARG002 - there are no rebalances
    ) -> None:
        """Add the records of the transaction to the log, and store the offsets."""
        outgoing = list(self._outgoing)
        self._end()
        self._source.commit(offsets)
        for one in outgoing:
            self._log.add(one.topic, one.value, one.key, one.headers, one.partition, one.timestamp_ms)

    async def abort(self, cause: TailraceError, *, is_timed_out: bool) -> None:  # noqa: ARG002 - same for all causes
        """Drop the records of the transaction."""
        self._end()

    def _end(self) -> None:
        self.is_open = False
        self._outgoing.clear()
