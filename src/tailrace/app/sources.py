"""Sources of a group's records: the interface, and the source that reads from a consumer."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import Any, Protocol, TypeVar, cast

from tailrace.app.topics.later_topics import LaterTopics
from tailrace.app.topics.routes import Routes
from tailrace.config import resolve
from tailrace.consumer.consumer import Consumer
from tailrace.consumer.delivery.progress import RecordSink
from tailrace.consumer.delivery.reader import Reader
from tailrace.consumer.member_view import MemberView
from tailrace.consumer.record_sinks import also_subscribe, attach_sink, statistics_of, subscribe_matching
from tailrace.core.delivery.positions import Position
from tailrace.core.delivery.progress import Lease
from tailrace.core.failures.failure_counts import FailureCounts
from tailrace.core.transactions.refused_records import RefusedRecords
from tailrace.observe.hooks import Hook, Observer
from tailrace.observe.statistics import ConsumerStatistics
from tailrace.producer.publisher import Publisher
from tailrace.records import Record, TopicPartition

__all__ = ["ConsumerSource", "HandlerGroup", "Source", "Transactions"]

WorkT = TypeVar("WorkT")


class HandlerGroup(RecordSink, Protocol):
    """Interface through which a source uses the handlers of its group."""

    @property
    def is_running(self) -> bool:
        """True if a record runs or waits for its next attempt."""

    @property
    def runs_current_records(self) -> bool:
        """True if a record runs or waits for its next attempt, and its partition was not dropped after its start."""

    @property
    def unstarted(self) -> int:
        """Number of records that were read and have not started; all records of retry topics together count as one."""

    def hold_starts(self) -> None:
        """Start no more records until ``allow_starts``; started records continue."""

    def allow_starts(self) -> None:
        """End ``hold_starts``."""

    @property
    def waits_for_paused_handler(self) -> bool:
        """True if no record runs and records wait for a paused handler."""

    @property
    def is_gathering(self) -> bool:
        """True while an incomplete batch waits for more records."""

    def hurry(self) -> None:
        """Start incomplete batches, because no more records are delivered before all delivered records are finished."""


class Transactions(Publisher, Protocol):
    """Transactions in which a source delivers its records.

    Messages published through this publisher belong to the open transaction.
    """

    def wrap_call(self, handle: Callable[[WorkT], Awaitable[object]]) -> Callable[[WorkT], Awaitable[object]]:
        """Return a call of ``handle`` whose messages are published only if the call succeeds."""

    @property
    def failure_counts(self) -> FailureCounts:
        """Failures of each record, including those in aborted transactions."""

    @property
    def refusals(self) -> RefusedRecords:
        """Records whose transactions were aborted because messages were too large."""

    def has_time(self, pause_s: float, work_s: float) -> bool:
        """Return True if the open transaction has time for another attempt: ``pause_s`` and then ``work_s`` seconds."""

    def set_aside(self, record: Record, seconds: float, *, is_given_up: bool) -> None:
        """Remove a record from the open transaction, to be delivered again later.

        The transaction is aborted, and its other records are handled again without this record. Later records of the
        partition wait until this record is finished.

        Args:
            record: record that was delivered and is not finished.
            seconds: time before the record is delivered again.
            is_given_up: True if the record failed for good and could not be written to a topic.
        """

    @property
    def waiting(self) -> int:
        """Number of records that failed for good and wait to be delivered again."""

    def default_timeout_ms(self, max_wait_ms: int) -> int:
        """Return the ``timeout_ms`` of a handler that has none.

        Args:
            max_wait_ms: time for which the handler's batches wait for records; 0 for a handler of single records.
        """

    @property
    def stalled_s(self) -> float:
        """Seconds without a commit of a transaction although records wait for one; 0 below a limit."""

    @property
    def are_settled(self) -> bool:
        """True if no transaction is open, and each waiting record has failed for good or comes after one that has."""

    async def wait_until_settled(self, until: float) -> None:
        """Wait until no transaction is open, at most until the event loop time ``until``; called after ``halt``."""


class Source(Protocol):
    """Delivers slices of partitions to the handlers of one group."""

    @property
    def transactions(self) -> Transactions | None:
        """Transactions in which the records are handled; None for at-least-once delivery."""

    async def start(self, sink: HandlerGroup) -> int:
        """Start to read for ``sink``; return the maximum number of records that may wait in one executor.

        Raises:
            TailraceError: the source cannot start.
        """

    async def stop(self) -> None:
        """Commit the finished records and stop; with transactions, abort the open one instead."""

    async def next_slice(self, room_of: Callable[[TopicPartition], int]) -> tuple[Position, Lease]:
        """Return the next records of one partition, at most as many as ``room_of`` returns for it.

        Raises:
            TailraceError: the source cannot continue.
        """

    def progressed(self) -> None:
        """Continue to deliver, because records were finished or there is room for more records."""

    def halt(self) -> None:
        """Deliver no more records."""

    def wall_clock(self) -> float:
        """Return the seconds since the epoch, by the clock that decides when records of retry topics are due."""

    def statistics(self, started: Iterable[Record]) -> ConsumerStatistics | None:
        """Return the statistics of the consumer; None if there is no consumer, or it is not started.

        Args:
            started: unfinished records outside the consumer, for the age of the oldest unfinished record.
        """


class ConsumerSource:
    """Source that reads the topics of a group's handlers with a consumer.

    Args:
        routes: topics to read.
        options: options of the consumer.
    """

    def __init__(self, routes: Routes, options: Mapping[str, Any]) -> None:
        config = resolve(options)
        observer = Observer(cast("tuple[Hook, ...]", config.hooks), client_id=config.client_id)
        self._own_topics = LaterTopics(config, routes, observer)
        self.consumer = _consumer_for(routes, {**options, "post_rebalance_callback": self._own_topics.after_rebalance})
        self._reader: Reader | None = None

    @property
    def transactions(self) -> None:
        """None, because the delivery is at least once."""
        return

    async def start(self, sink: RecordSink) -> int:
        """Create the missing retry, dead-letter and replay topics of the group, and start the consumer.

        Raises:
            BrokerError: a retry topic does not exist and cannot be created.
            TailraceError: see ``Consumer.start``.
        """
        await self._own_topics.create()
        await self.consumer.start()
        self._reader, window = attach_sink(self.consumer, sink)
        return window

    def wall_clock(self) -> float:
        """Return the time of this machine in seconds since the epoch."""
        return time.time()

    def statistics(self, started: Iterable[Record]) -> ConsumerStatistics | None:
        """Return the statistics of the consumer; None before its start."""
        return statistics_of(self.consumer, started)

    def group_view(self) -> MemberView:
        """Return the consumer's membership of its group; the consumer must be started."""
        return MemberView(self.consumer)

    async def stop(self) -> None:
        """Commit the finished records, and leave the group."""
        await self.consumer.stop()

    async def next_slice(self, room_of: Callable[[TopicPartition], int]) -> tuple[Position, Lease]:
        """Return the reader's next slice."""
        assert self._reader is not None
        return await self._reader.next_slice(room_of)

    def progressed(self) -> None:
        """Wake the reader, which may have room again."""
        if self._reader is not None:
            self._reader.progressed()

    def halt(self) -> None:
        """Deliver no more records of the assigned partitions."""
        assert self._reader is not None
        self._reader.halt(self.consumer.assignment())


def _consumer_for(routes: Routes, options: Mapping[str, Any]) -> Consumer:
    if routes.patterns:
        # Patterns are matched in the client even with KIP-848, because a pattern that the broker matches cannot exclude
        # the group's own retry and replay topics.
        consumer = Consumer(**options)
        subscribe_matching(consumer, routes.reads, "|".join(routes.patterns), own_topics=routes)
    else:
        consumer = Consumer(*sorted({*routes.topics, *routes.retries}), **options)
        also_subscribe(consumer, routes.own_topics)
    return consumer
