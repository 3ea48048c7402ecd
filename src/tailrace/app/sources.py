"""Where a group's records come from: a consumer, or a test that hands them in."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Protocol, TypeVar, cast

from tailrace.app.topics.later_topics import LaterTopics
from tailrace.app.topics.routes import Routes
from tailrace.config import resolve
from tailrace.consumer.consumer import Consumer
from tailrace.consumer.delivery.progress import RecordSink
from tailrace.consumer.delivery.reader import Reader
from tailrace.consumer.member_view import MemberView
from tailrace.consumer.record_sinks import also_subscribe, attach_sink, subscribe_matching
from tailrace.core.delivery.positions import Position
from tailrace.core.delivery.progress import Lease
from tailrace.core.failures.failure_counts import FailureCounts
from tailrace.core.transactions.refused_records import RefusedRecords
from tailrace.observe.hooks import Hook, Observer
from tailrace.producer.publisher import Publisher
from tailrace.records import Record, TopicPartition

__all__ = ["ConsumerSource", "HandlerGroup", "Source", "Transactions"]

WorkT = TypeVar("WorkT")


class HandlerGroup(RecordSink, Protocol):
    """Who takes from a source, and handles."""

    @property
    def runs(self) -> bool:
        """Whether a handler runs, or waits for its next attempt."""

    @property
    def runs_ours(self) -> bool:
        """The same, of records whose partitions were not dropped since."""

    @property
    def unstarted(self) -> int:
        """How many records were taken and have not started."""

    def hold_starts(self) -> None:
        """Start nothing more until ``allow_starts``; what runs goes on."""

    def allow_starts(self) -> None:
        """Start records again."""

    @property
    def is_held_back(self) -> bool:
        """Whether no handler runs, and one that is paused has records that wait for it."""

    @property
    def gathers(self) -> bool:
        """Whether records wait for others, to be handled with them as a batch."""

    def hurry(self) -> None:
        """Nothing more is handed out before all of it is done: what waits for others need not."""


class Transactions(Publisher, Protocol):
    """What a source has that hands out records within transactions; to publish with it is to publish within them."""

    def around(self, handle: Callable[[WorkT], Awaitable[object]]) -> Callable[[WorkT], Awaitable[object]]:
        """``handle``, of which what it publishes counts if it succeeds."""

    @property
    def failure_counts(self) -> FailureCounts:
        """How often its records have failed, in transactions that were taken back, too."""

    @property
    def refusals(self) -> RefusedRecords:
        """What was too large of its records, so that their transactions were taken back."""

    def has_time(self, pause_s: float, work_s: float) -> bool:
        """Whether the open one can wait for a record's next attempt, which comes after a pause and takes so long."""

    def set_aside(self, record: Record, seconds: float, *, is_given_up: bool) -> None:
        """It cannot, or nobody takes the record: that comes again after so long, and what is behind it later."""

    @property
    def waiting(self) -> int:
        """Records that failed for good, and were set aside."""

    def work_share_ms(self, gathers_ms: int) -> int:
        """How long a handler without ``timeout_ms`` may take, whose batches are gathered for so long."""

    @property
    def stalled_s(self) -> float:
        """For how long none was committed although there are records; 0 while that is not long."""

    @property
    def are_settled(self) -> bool:
        """Whether none is open, and what waits outside of them waits for what failed for good."""

    async def settled(self, until: float) -> None:
        """After ``halt``: wait until what was handed out is finished and committed, or it is ``until``."""


class Source(Protocol):
    """Gives slices of partitions to one sink."""

    @property
    def transactions(self) -> Transactions | None:
        """Those in which its records are handled; None where they are handled at least once."""

    async def start(self, sink: HandlerGroup) -> int:
        """Begin; gives how many records may wait on the way.

        Raises:
            TailraceError: it cannot begin.
        """

    async def stop(self) -> None:
        """Commit what is done, and end."""

    async def next_slice(self, room_of: Callable[[TopicPartition], int]) -> tuple[Position, Lease]:
        """Records of one partition, as many as there is room for; at least one, and of one for which there is room.

        Raises:
            TailraceError: it cannot go on.
        """

    def progressed(self) -> None:
        """Something is done, or there is room where there was none."""

    def halt(self) -> None:
        """Hand out nothing more."""

    def wall_clock(self) -> float:
        """Seconds since the epoch, by the clock that says when its records are due."""


class ConsumerSource:
    """A consumer that reads what some handlers want.

    Args:
        routes: which topics those are.
        options: the consumer's.
    """

    def __init__(self, routes: Routes, options: Mapping[str, Any]) -> None:
        config = resolve(options)
        observer = Observer(cast("tuple[Hook, ...]", config.hooks), client_id=config.client_id)
        self._own_topics = LaterTopics(config, routes, observer)
        self.consumer = _consumer_for(routes, {**options, "post_rebalance_callback": self._own_topics.rebalanced})
        self._reader: Reader | None = None

    @property
    def transactions(self) -> None:
        """None: its records are handled at least once."""
        return

    async def start(self, sink: RecordSink) -> int:
        """Make the topics of the group's own that are missing, and start the consumer.

        Raises:
            BrokerError: a retry topic is not there and may not be made.
            TailraceError: as ``Consumer.start`` does.
        """
        await self._own_topics.create()
        await self.consumer.start()
        self._reader, window = attach_sink(self.consumer, sink)
        return window

    def wall_clock(self) -> float:
        """That of this machine."""
        return time.time()

    def group_view(self) -> MemberView:
        """Where the consumer stands in its group; once it is started."""
        return MemberView(self.consumer)

    async def stop(self) -> None:
        """Commit what is done, leave the group."""
        await self.consumer.stop()

    async def next_slice(self, room_of: Callable[[TopicPartition], int]) -> tuple[Position, Lease]:
        """As the reader has it."""
        assert self._reader is not None
        return await self._reader.next_slice(room_of)

    def progressed(self) -> None:
        """Tell the reader."""
        if self._reader is not None:
            self._reader.progressed()

    def halt(self) -> None:
        """Hand out nothing more of what is assigned."""
        assert self._reader is not None
        self._reader.halt(self.consumer.assignment())


def _consumer_for(routes: Routes, options: Mapping[str, Any]) -> Consumer:
    if routes.patterns:
        # Python reads them, whoever deals out: what handlers take is more than a broker could be told.
        consumer = Consumer(**options)
        subscribe_matching(consumer, routes.reads, "|".join(routes.patterns), whole=routes)
    else:
        consumer = Consumer(*sorted({*routes.topics, *routes.retries}), **options)
        also_subscribe(consumer, routes.own)
    return consumer
