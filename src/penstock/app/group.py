"""One consumer group of an app at work: its consumer, a line for each handler, and what goes from one to the other.

Rule of this file: a record goes to the first handler that wants it, and is done when that line says so. The group
decides nothing else; order is ``app.line``'s, failure ``app.outcomes``'s, and when to try again ``app.delays``'s.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Sequence
from typing import Any, TypeAlias

import anyio

from penstock.app.batch_line import BatchLine
from penstock.app.calling import wants
from penstock.app.dead_letters import first_read, handler_of
from penstock.app.delays import Delays
from penstock.app.handlers import Handler
from penstock.app.line import Line
from penstock.app.mail import Mail
from penstock.app.plan import Ready
from penstock.app.publisher import Publisher
from penstock.app.routes import Routes
from penstock.app.signatures.arguments import Opened
from penstock.app.sources import Source
from penstock.app.stations import Site, Station, station
from penstock.consumer.wake import Wake
from penstock.core.positions import Position
from penstock.observe.events import HandlerLeftBehind, HandlersOverlap, LaneFull, UnmatchedRecord
from penstock.observe.hooks import Observer
from penstock.records import Record, TopicPartition

__all__ = ["Connect", "Group"]

_FULL_TOLD_S = 60.0
"""Between two words of the lanes of one partition that are full."""

Connect: TypeAlias = Callable[[Routes], Source]
"""Gives the source of a group's records."""


class Group:
    """Reads for its handlers and lets each have its records.

    Args:
        handlers: each with its signature read, and what holds for it.
        opened: what dependencies of the app's scope have given.
        publisher: for results and dead letters.
        connect: where records come from.
    """

    def __init__(  # noqa: PLR0913 - the rooms it stands between
        self,
        group_id: str,
        handlers: Sequence[Ready],
        *,
        opened: Opened,
        publisher: Publisher,
        observer: Observer,
        connect: Connect,
    ) -> None:
        self.group_id = group_id
        self._ready, self._opened, self._publisher, self._observer = handlers, opened, publisher, observer
        self._routes = Routes(group_id, [(one.handler, one.terms.dead_letter) for one in handlers])
        self.source = connect(self._routes)
        self._transactions = self.source.transactions
        self._delays = Delays(
            self._routes.retries,
            hand_on=self._deal,
            room_of=self._room_in_lines,
            on_empty=self._may_read_on,
            wall_clock=self.source.wall_clock,
        )
        self._stations: list[Station] = []
        self._batch_lines: list[BatchLine] = []
        self._of_topic: dict[str, list[Station]] = {}
        self._progress = Wake()
        self._full_at: dict[TopicPartition, float] = {}
        """When it was told last that a lane of a partition is full."""
        self._is_ending = False

    async def start(self) -> None:
        """Connect to where records come from; the first come with ``run``.

        Raises:
            PenstockError: as ``Consumer.start`` does.
        """
        window = await self.source.start(self)
        publisher = self._publisher if self._transactions is None else self._transactions
        site = Site(
            opened=self._opened,
            publisher=publisher,
            mail=Mail(self._routes, publisher, self.source.wall_clock),
            transactions=self._transactions,
            observer=self._observer,
            # Looked up for each record: where all of them are known by name, that is a set.
            origins=self._routes if self._routes.patterns else self._routes.own,
            delay_of=self._delays.delay_of,
            window=window,
            on_progress=self._progressed,
            on_full=self._lane_is_full,
        )
        self._stations = [station(one, site) for one in self._ready]
        self._batch_lines = [one.line for one in self._stations if isinstance(one.line, BatchLine)]

    async def run(self, cleaning_up_s: float) -> None:
        """Handle records until cancelled; then handlers that run are cut short, and have so long to clean up.

        Raises:
            HandlerFailedError: a handler failed for good, and ``on_failure="stop"`` says so.
            PenstockError: the consumer cannot go on.
        """
        async with anyio.create_task_group() as tasks:
            for one in self._stations:
                tasks.start_soon(self._run_line, one, cleaning_up_s)
            tasks.start_soon(self._pump)
            tasks.start_soon(self._delays.run)

    async def finish(self, timeout_s: float) -> None:
        """Begin nothing more, and wait for what runs, for so long at most."""
        until = asyncio.get_running_loop().time() + timeout_s
        # Of what a rebalance brings from now on nothing is begun either.
        self._is_ending = True
        self.source.halt()
        if self._transactions is not None:
            await self._transactions.settled(until)
        while self.runs and asyncio.get_running_loop().time() < until:
            await self._progress.wait(until)

    def handler_in(self, task: asyncio.Task[Any]) -> str | None:
        """The name of the handler that runs in ``task``. Any thread may ask."""
        return next((one.handler.name for one in self._stations if one.line.runs_in(task)), None)

    @property
    def is_settled(self) -> bool:
        """Whether nothing goes on by itself: what is not done waits for what failed for good."""
        if self._transactions is not None and not self._transactions.are_settled:
            return False
        return not self._delays and all(
            one.line.at_work == one.failures.waiting and not one.line.has_failed for one in self._stations
        )

    def lines_of(self, function: Callable[..., object]) -> list[Line | BatchLine]:
        """Where a handler runs; several if it was declared more than once."""
        return [one.line for one in self._stations if one.handler.function is function]

    @property
    def slowest(self) -> tuple[float, str]:
        """For how many seconds the record has run that was begun first, and whose it is."""
        return max(((one.line.longest_s, one.handler.name) for one in self._stations), default=(0.0, ""))

    @property
    def waiting(self) -> int:
        """Records that failed for good and are tried again now and then, as nobody takes them."""
        aside = 0 if self._transactions is None else self._transactions.waiting
        return aside + sum(one.failures.waiting for one in self._stations)

    @property
    def runs(self) -> bool:
        """Whether a handler runs, or waits for its next attempt."""
        return any(one.line.runs for one in self._stations)

    @property
    def is_held_back(self) -> bool:
        """Whether no handler runs, and one that is paused has records that wait for it."""
        return not self.runs and any(one.line.holds_back for one in self._stations)

    @property
    def gathers(self) -> bool:
        """Whether records wait for others, to be handled with them as a batch."""
        return any(line.gathers for line in self._batch_lines)

    def hurry(self) -> None:
        """Nothing more comes before all of it is done: what waits for others need not."""
        for line in self._batch_lines:
            line.hurry()

    # ---- as the reader wants it --------------------------------------------------------------------------------

    def next_of(self, position: Position) -> int | None:
        """The lowest offset that is handed out and neither begun nor done; None when there is none."""
        return _lowest([self._delays.held_of(position), *(one.line.next_of(position) for one in self._stations)])

    def done_of(self, position: Position) -> int | None:
        """The lowest offset that is handed out and not done; None when there is none."""
        return _lowest([self._delays.held_of(position), *(one.line.done_of(position) for one in self._stations)])

    def halt(self, partition: TopicPartition) -> int | None:
        """Begin nothing more of a partition; the lowest offset that was not begun, None when there is none."""
        held = next((found for one in self._stations if (found := one.line.held_of(partition)) is not None), None)
        end = None if held is None or held.position.tracker is not held.tracker else held.position.delivered
        shelved = self._delays.drop(partition)
        # All of them are told.
        left = _lowest([shelved, *(one.line.halt(partition) for one in self._stations)])
        if held is not None and end is not None and self._transactions is None:
            # Of all that is not done the tracker knows by now; what is done behind it gets into the last map.
            held.tracker.advance(end if shelved is None else shelved)
        return left

    def drop(self, partition: TopicPartition) -> None:
        """Forget a partition."""
        self._delays.drop(partition)
        for one in self._stations:
            one.line.drop(partition)

    # ---- inside ------------------------------------------------------------------------------------------------

    async def _run_line(self, station: Station, cleaning_up_s: float) -> None:
        try:
            await station.line.run(cleaning_up_s)
        finally:
            for record in station.line.under_way:
                name, partition = station.handler.name, record.topic_partition
                self._observer.tell(HandlerLeftBehind(name, partition, record.offset, cleaning_up_s))

    async def _pump(self) -> None:
        while True:
            position, records = await self.source.next_slice(self.room_of)
            if position.partition.topic in self._delays:
                self._delays.hold(position, records)
            else:
                self._deal(position, records)

    def room_of(self, partition: TopicPartition) -> int:
        """How many records of a partition it takes now."""
        return 0 if self._is_ending else self._delays.limit(partition, self._room_in_lines(partition))

    def _room_in_lines(self, partition: TopicPartition) -> int:
        return min(one.line.room_of(partition) for one in self._stations_of(partition.topic))

    def _deal(self, position: Position, records: Sequence[Record]) -> None:
        stations = self._stations_of(position.partition.topic)
        if len(stations) == 1 and stations[0].handler.when is None:
            stations[0].line.add(position, records)
            return
        shares: dict[int, list[Record]] = {}
        is_own = position.partition.topic in self._routes
        for record in records:
            seen, order = record, list(range(len(stations)))
            if is_own:
                seen, failed = first_read(record), handler_of(record)
                # Who failed first is asked first.
                order.sort(key=lambda n: stations[n].handler.name != failed)
            wanting = (n for n in order if wants(stations[n].handler, seen))
            # What nobody wants fails where a handler says that it shall; there it is refused before the handler runs.
            refusing = (n for n in order if stations[n].handler.unmatched == "fail")
            chosen = next(wanting, next(refusing, None))
            if chosen is None:
                self._observer.tell(UnmatchedRecord(record.topic_partition, record.offset))
            else:
                shares.setdefault(chosen, []).append(record)
        for number, share in shares.items():
            stations[number].line.add(position, share)

    def _stations_of(self, topic: str) -> list[Station]:
        found = self._of_topic.get(topic)
        if found is None:
            found = self._of_topic[topic] = [self._stations[number] for number in self._routes.takers(topic)]
            if (pair := self._routes.contested(topic)) is not None:
                self._observer.tell(HandlersOverlap(self.group_id, topic, (pair[0].name, pair[1].name)))
        return found

    def _progressed(self) -> None:
        self._progress.set()
        self.source.progressed()
        self._delays.look_again()

    def _may_read_on(self) -> None:
        self.source.progressed()

    def _lane_is_full(self, handler: Handler, record: Record, waiting: int) -> None:
        now, partition = asyncio.get_running_loop().time(), record.topic_partition
        if now >= self._full_at.get(partition, now):
            self._full_at[partition] = now + _FULL_TOLD_S
            self._observer.tell(LaneFull(handler.name, partition, record.key, waiting))


def _lowest(offsets: Iterable[int | None]) -> int | None:
    return min((offset for offset in offsets if offset is not None), default=None)
