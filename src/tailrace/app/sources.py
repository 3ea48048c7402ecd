"""Sources of a group's records: the interface, and the source that reads from a consumer."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Protocol, TypeVar, cast

from tailrace.app.policies import FailureCounts
from tailrace.app.refused_records import RefusedRecords
from tailrace.app.topics.creation import LaterTopics
from tailrace.app.topics.routes import Routes
from tailrace.config import resolve
from tailrace.consumer.delivery.completion import RecordSink
from tailrace.consumer.delivery.reader import Reader
from tailrace.consumer.delivery.unreadable_batches import OnCorruptBatch
from tailrace.consumer.partition import Partition
from tailrace.consumer.sink_consumer import MemberView, SinkConsumer
from tailrace.core.progress import Lease
from tailrace.observe.hooks import Hook, Observer
from tailrace.producer.publisher import Publisher
from tailrace.records import Record, TopicPartition

__all__ = ["ConsumerSource", "HandlerGroup", "SliceReader", "Source", "Transactions"]

WorkT = TypeVar("WorkT")


class HandlerGroup(RecordSink, Protocol):
    """Interface through which a source uses the handlers of its group; implemented by ``GroupRuntime``.

    The group pulls its records by ``Source.reader`` (``app.dispatch.group_runtime``).

    A record is started when its handler is called for the first time.
    """

    @property
    def is_running(self) -> bool:
        """True if a record is being handled or waits for its next attempt."""

    @property
    def runs_current_records(self) -> bool:
        """``is_running``, but without records whose partition was revoked, sought or reset since they were started."""

    @property
    def unstarted(self) -> int:
        """Number of records that were read and not started.

        All records of retry topics that are not due yet count as one.
        """

    def hold_starts(self) -> None:
        """Start no more records until ``allow_starts``; started records continue."""

    def allow_starts(self) -> None:
        """Start records again after ``hold_starts``."""

    @property
    def waits_for_paused_handler(self) -> bool:
        """True if no record is being handled, and records wait for a paused handler."""

    @property
    def is_gathering(self) -> bool:
        """True while an incomplete batch waits for more records."""

    def hurry(self) -> None:
        """Start incomplete batches, for which no more records are delivered until all delivered ones are finished."""


class Transactions(Publisher, Protocol):
    """Transactions in which the records of a source are handled, one transaction at a time.

    Messages published through this publisher belong to the open transaction.
    """

    def wrap_call(self, handle: Callable[[WorkT], Awaitable[object]]) -> Callable[[WorkT], Awaitable[object]]:
        """Return a function that calls ``handle`` and publishes the messages of the call only if the call succeeds."""

    @property
    def failure_counts(self) -> FailureCounts:
        """Failures of each record, including those in aborted transactions."""

    @property
    def refusals(self) -> RefusedRecords:
        """Records whose results or dead letters were too large for their topic."""

    def has_time(self, pause_s: float, work_s: float) -> bool:
        """Return True if the open transaction has time for a pause and then another attempt, both in seconds."""

    def set_aside(self, record: Record, seconds: float, *, is_given_up: bool) -> None:
        """Abort the open transaction, and deliver a record of it again later, in another transaction.

        The other records of the aborted transaction are handled again without this record. Later records of its
        partition wait until this record is finished.

        Args:
            record: record that was delivered and is not finished.
            seconds: minimum time before the record is delivered again.
            is_given_up: True if the record is delivered again without a limit of attempts: because it failed for good
                and was not written to another topic, or because a service that the handler needs is unavailable.
        """

    @property
    def waiting(self) -> int:
        """Number of records that were set aside with ``is_given_up`` and wait to be delivered again."""

    def default_timeout_ms(self, max_wait_ms: int) -> int:
        """Return the ``timeout_ms`` of a handler that has none.

        Args:
            max_wait_ms: maximum time for which a batch of the handler waits for records; 0 for single records.
        """

    @property
    def stalled_s(self) -> float:
        """Seconds without a commit of a transaction although records wait for one.

        The value is 0 until a limit of several transaction timeouts is exceeded.
        """

    @property
    def are_settled(self) -> bool:
        """True if no transaction is open, and each unfinished record is ``waiting`` or comes after a waiting one."""

    async def wait_until_no_transaction(self, until: float) -> None:
        """Wait until no transaction is open, at most until the event loop time ``until``.

        ``Source.halt`` must have been called, so that no other transaction begins.
        """


class SliceReader(Protocol):
    """Reader of a started source: the ``Reader`` of a consumer, the transactions around it, or a substitute.

    A slice is several consecutive records of one partition. A ``Lease`` contains the records of a slice, and tracks
    which of them are finished.
    """

    async def next_slice(self, room_of: Callable[[TopicPartition], int], /) -> tuple[Partition, Lease]:
        """Wait for the next slice of any partition; return the state of the partition, and the lease.

        Args:
            room_of: returns the maximum number of records that the slice of a partition may contain.

        Raises:
            TailraceError: the source cannot continue.
        """

    def progressed(self) -> None:
        """Make ``next_slice`` check again whether it can deliver, after records were finished or room was made."""


class Source(Protocol):
    """Source of the records of one group, which are delivered to the group's handlers."""

    @property
    def transactions(self) -> Transactions | None:
        """Transactions in which the records are handled; None before the start, and for at-least-once delivery."""

    async def start(self, sink: HandlerGroup) -> int:
        """Start to read; return the maximum number of records that may wait for one handler.

        Args:
            sink: handlers of the group.

        Raises:
            TailraceError: the source cannot start.
        """

    @property
    def reader(self) -> SliceReader:
        """Reader of the records; the source must be started."""

    async def stop(self) -> None:
        """Commit the finished records and stop; with transactions, abort the open transaction and stop."""

    def halt(self) -> None:
        """Deliver no more records."""

    def wall_clock(self) -> float:
        """Return the time in seconds since the epoch, with which the due times of retry topics are compared."""

    @property
    def consumer(self) -> SinkConsumer | None:
        """Consumer from which the records come; None without Kafka."""


class ConsumerSource:
    """Source that reads with a consumer the topics of a group's handlers, and the group's own topics.

    Args:
        routes: topics to read.
        options: options of the consumer.
        on_corrupt_batch: reaction to a batch that cannot be read.

    Attributes:
        routes: topics to read.
        consumer: consumer from which the records come.
        reader: reader of the consumer, after the start.
    """

    reader: Reader

    def __init__(self, routes: Routes, options: Mapping[str, Any], on_corrupt_batch: OnCorruptBatch) -> None:
        self.routes = routes
        config = resolve(options)
        observer = Observer(cast("tuple[Hook, ...]", config.hooks), client_id=config.client_id)
        self._own_topics = LaterTopics(config, routes, observer)
        self.consumer = _consumer_for(routes, {**options, "post_rebalance_callback": self._own_topics.after_rebalance})
        self._on_corrupt_batch = on_corrupt_batch

    @property
    def transactions(self) -> None:
        return

    async def start(self, sink: RecordSink) -> int:
        """Create the missing own and dead-letter topics of the group, and start the consumer.

        Raises:
            BrokerError: a topic whose records wait does not exist and cannot be created.
            TailraceError: see ``Consumer.start``.
        """
        await self._own_topics.create()
        await self.consumer.start()
        self.reader, max_waiting = self.consumer.attach_sink(sink, self._on_corrupt_batch)
        return max_waiting

    def wall_clock(self) -> float:
        return time.time()

    def group_view(self) -> MemberView:
        return self.consumer.group_view()

    async def stop(self) -> None:
        await self.consumer.stop()

    def halt(self) -> None:
        self.reader.halt(self.consumer.assignment())


def _consumer_for(routes: Routes, options: Mapping[str, Any]) -> SinkConsumer:
    if routes.patterns:
        # Patterns are matched in the client even with KIP-848, because a pattern that the broker matches cannot exclude
        # the group's own retry and replay topics.
        consumer = SinkConsumer(**options)
        consumer.subscribe_matching(routes.reads, "|".join(routes.patterns), own_topics=routes)
    else:
        consumer = SinkConsumer(*sorted({*routes.topics, *routes.retries}), **options)
        consumer.also_subscribe(routes.own_topics)
    return consumer
