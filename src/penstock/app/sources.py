"""Where a group's records come from: a consumer, or a test that hands them in.

Rule of this file: what is in hand, done and given back is between the source and its taker; nobody else looks.
"""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, Protocol, TypeVar, cast

from penstock.app.own_topics import make_own_topics
from penstock.app.publisher import Publisher
from penstock.app.routes import Routes
from penstock.config import resolve
from penstock.consumer.consumer import Consumer
from penstock.consumer.hands import Taker
from penstock.consumer.reader import Reader
from penstock.consumer.standing import Standing
from penstock.consumer.takers import hand_over, read_chosen, read_too
from penstock.core.positions import Position
from penstock.core.setbacks import Setbacks
from penstock.core.transaction_refusals import Refusals
from penstock.observe.hooks import Hook, Observer
from penstock.records import Record, TopicPartition

__all__ = ["ConsumerSource", "Crew", "Source", "Transactions"]

WorkT = TypeVar("WorkT")


class Crew(Taker, Protocol):
    """Who takes from a source, and handles."""

    @property
    def runs(self) -> bool:
        """Whether a handler runs, or waits for its next attempt."""

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
    def setbacks(self) -> Setbacks:
        """How often its records have failed, in transactions that were taken back, too."""

    @property
    def refusals(self) -> Refusals:
        """What was too large of its records, so that their transactions were taken back."""

    def has_time(self, pause_s: float, work_s: float) -> bool:
        """Whether the open one can wait for a record's next attempt, which comes after a pause and takes so long."""

    def set_aside(self, record: Record, seconds: float, *, is_given_up: bool) -> None:
        """It cannot, or nobody takes the record: that comes again after so long, and what is behind it later."""

    @property
    def waiting(self) -> int:
        """Records that failed for good, and were set aside."""

    @property
    def are_settled(self) -> bool:
        """Whether none is open, and what waits outside of them waits for what failed for good."""

    async def settled(self, until: float) -> None:
        """After ``halt``: wait until what was handed out is finished and committed, or it is ``until``."""


class Source(Protocol):
    """Gives slices of partitions to one taker."""

    @property
    def transactions(self) -> Transactions | None:
        """Those in which its records are handled; None where they are handled at least once."""

    async def start(self, taker: Crew) -> int:
        """Begin; gives how many records may wait on the way.

        Raises:
            PenstockError: it cannot begin.
        """

    async def stop(self) -> None:
        """Commit what is done, and end."""

    async def next_slice(self, room_of: Callable[[TopicPartition], int]) -> tuple[Position, Sequence[Record]]:
        """Records of one partition, as many as there is room for; at least one, and of one for which there is room.

        Raises:
            PenstockError: it cannot go on.
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
        self._routes, self._options = routes, options
        self.consumer = _consumer_for(routes, options)
        self._reader: Reader | None = None

    @property
    def transactions(self) -> None:
        """None: its records are handled at least once."""
        return

    async def start(self, taker: Taker) -> int:
        """Make the topics of the group's own that are missing, and start the consumer.

        Raises:
            BrokerError: a retry topic is not there and may not be made.
            PenstockError: as ``Consumer.start`` does.
        """
        config = resolve(self._options)
        observer = Observer(cast("tuple[Hook, ...]", config.hooks), client_id=config.client_id)
        await make_own_topics(config, self._routes, observer)
        await self.consumer.start()
        self._reader, window = hand_over(self.consumer, taker)
        return window

    def wall_clock(self) -> float:
        """That of this machine."""
        return time.time()

    def foothold(self) -> Standing:
        """Where the consumer stands in its group; once it is started."""
        return Standing(self.consumer)

    async def stop(self) -> None:
        """Commit what is done, leave the group."""
        await self.consumer.stop()

    async def next_slice(self, room_of: Callable[[TopicPartition], int]) -> tuple[Position, Sequence[Record]]:
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
        read_chosen(consumer, routes.reads, "|".join(routes.patterns), whole=routes)
    else:
        consumer = Consumer(*sorted({*routes.topics, *routes.retries}), **options)
        read_too(consumer, routes.own)
    return consumer
