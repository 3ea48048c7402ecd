"""Sources of a group's records: their interface, and the source that reads from a consumer."""

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
        """True if a handler runs, or a failed record waits for its next attempt."""

    @property
    def runs_current_records(self) -> bool:
        """True if ``is_running`` is true for a record whose partition was not dropped after the record had started."""

    @property
    def unstarted(self) -> int:
        """Number of records taken and not started; all records held from retry topics count as one."""

    def hold_starts(self) -> None:
        """Start no more records until ``allow_starts``; running records continue."""

    def allow_starts(self) -> None:
        """Start records again."""

    @property
    def waits_for_paused_handler(self) -> bool:
        """True if no handler runs and records wait for a paused handler."""

    @property
    def is_gathering(self) -> bool:
        """True while records wait for more records of their batch."""

    def hurry(self) -> None:
        """Start incomplete batches, because no more records are delivered until all delivered records are finished."""


class Transactions(Publisher, Protocol):
    """Transactions in which a source delivers its records.

    Messages published through this publisher belong to the open transaction.
    """

    def around(self, handle: Callable[[WorkT], Awaitable[object]]) -> Callable[[WorkT], Awaitable[object]]:
        """Return ``handle``, wrapped so that messages of a call are published only if the call succeeds."""

    @property
    def failure_counts(self) -> FailureCounts:
        """Number of failures of each record, including failures in aborted transactions."""

    @property
    def refusals(self) -> RefusedRecords:
        """Records whose transactions were aborted because messages were too large."""

    def has_time(self, pause_s: float, work_s: float) -> bool:
        """Return True if the open transaction can wait for another attempt: for the pause and for the handler."""

    def set_aside(self, record: Record, seconds: float, *, is_given_up: bool) -> None:
        """Leave a record out of the open transaction.

        The record is delivered again after ``seconds``, and later records of its partition after it.

        Args:
            record: record that was delivered and is not finished.
            seconds: pause before the record is delivered again.
            is_given_up: True if the record failed for good and could not be written to a topic.
        """

    @property
    def waiting(self) -> int:
        """Number of records that failed for good and were set aside."""

    def work_share_ms(self, gathers_ms: int) -> int:
        """Return the ``timeout_ms`` for a handler that has none, and whose batches are gathered for ``gathers_ms``."""

    @property
    def stalled_s(self) -> float:
        """Seconds for which no transaction was committed although there are records; 0 below a limit."""

    @property
    def are_settled(self) -> bool:
        """True if no transaction is open, and all waiting records wait for records that have failed for good."""

    async def settled(self, until: float) -> None:
        """Wait until all delivered records are finished and committed, at most until the event loop time ``until``.

        Called after ``halt`` of the source.
        """


class Source(Protocol):
    """Delivers slices of partitions to the handlers of one group."""

    @property
    def transactions(self) -> Transactions | None:
        """Transactions in which the records are handled; None for at-least-once delivery."""

    async def start(self, sink: HandlerGroup) -> int:
        """Start; return the maximum number of records that may wait in one executor.

        Raises:
            TailraceError: the source cannot start.
        """

    async def stop(self) -> None:
        """Commit the finished records, and stop."""

    async def next_slice(self, room_of: Callable[[TopicPartition], int]) -> tuple[Position, Lease]:
        """Return at least one record of a partition that has room, and at most ``room_of`` that partition.

        Raises:
            TailraceError: the source cannot continue.
        """

    def progressed(self) -> None:
        """Continue after records were finished or room was freed."""

    def halt(self) -> None:
        """Deliver no more records."""

    def wall_clock(self) -> float:
        """Return seconds since the epoch, by the clock that is used for due times."""

    def statistics(self, started: Iterable[Record]) -> ConsumerStatistics | None:
        """Return the statistics of the consumer; None if there is none.

        Args:
            started: unfinished records that handlers hold, for the age of the oldest one.
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
        """None, because delivery is at least once."""
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
        """Return the time of this machine."""
        return time.time()

    def statistics(self, started: Iterable[Record]) -> ConsumerStatistics | None:
        """Return the statistics of the consumer; None before it is started."""
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
        # Patterns are matched here, even with KIP-848: a regular expression that the broker matches cannot exclude the
        # group's own topics.
        consumer = Consumer(**options)
        subscribe_matching(consumer, routes.reads, "|".join(routes.patterns), whole_topics=routes)
    else:
        consumer = Consumer(*sorted({*routes.topics, *routes.retries}), **options)
        also_subscribe(consumer, routes.own_topics)
    return consumer
