"""One consumer group of an app at work: its consumer, a line for each handler, and what goes from one to the other.

Rule of this file: a record goes to the first handler that wants it, and is done when that line says so. The group
decides nothing else; order is ``app.line``'s, failure ``app.failures``'s.
"""

from __future__ import annotations

import asyncio
import functools
import re
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import anyio
from anyio import CapacityLimiter
from anyio.to_thread import run_sync

from penstock.app.arguments import Opened
from penstock.app.codecs import AnyCodec
from penstock.app.dead_letters import REPLAY, topic_name
from penstock.app.failures import Failures
from penstock.app.handlers import Handler
from penstock.app.line import Line
from penstock.app.prepared import Prepared
from penstock.app.producer import Producer
from penstock.app.reject import Reject
from penstock.app.results import outgoing
from penstock.consumer.consumer import Consumer, hand_over, read_too
from penstock.consumer.reader import Reader
from penstock.consumer.wake import Wake
from penstock.core.positions import Position
from penstock.core.retries import OnFailure, Retry
from penstock.observe.events import UnmatchedRecord
from penstock.observe.hooks import Observer
from penstock.records import Record, TopicPartition

__all__ = ["Defaults", "Group"]


@dataclass(frozen=True, kw_only=True)
class Defaults:
    """What an app says for those of its handlers that say nothing."""

    retry: Retry
    on_failure: OnFailure
    dead_letter: str | None
    codec: AnyCodec


@dataclass(frozen=True, slots=True, eq=False)
class _Station:
    """One handler at work."""

    handler: Handler
    line: Line
    failures: Failures


class Group:
    """Reads for its handlers and lets each have its records.

    Args:
        handlers: each with its signature read.
        opened: what dependencies of the app's scope have given.
        producer: for results and dead letters; None when no handler needs one.
        options: the consumer's.
    """

    def __init__(  # noqa: PLR0913 - the rooms it stands between
        self,
        group_id: str,
        handlers: Sequence[tuple[Handler, Prepared]],
        *,
        defaults: Defaults,
        opened: Opened,
        producer: Producer | None,
        observer: Observer,
        options: Mapping[str, Any],
    ) -> None:
        self.group_id = group_id
        self._handlers, self._defaults, self._opened = handlers, defaults, opened
        self._producer, self._observer = producer, observer
        self.consumer = _consumer_for([handler for handler, _ in handlers], {**options, "group_id": group_id})
        self._replays = {
            topic_name(REPLAY, topic=topic, group=group_id): topic
            for handler, _ in handlers
            for topic in handler.topics
        }
        """The topic of each replay topic: what is replayed goes to whoever handled it first."""
        read_too(self.consumer, self._replays)
        self._stations: list[_Station] = []
        self._of_topic: dict[str, list[_Station]] = {}
        self._reader: Reader | None = None
        self._progress = Wake()

    async def start(self) -> None:
        """Start the consumer; the first records come with ``run``.

        Raises:
            PenstockError: as ``Consumer.start`` does.
        """
        await self.consumer.start()
        self._reader, window = hand_over(self.consumer, self)
        self._stations = [self._station(handler, prepared, window) for handler, prepared in self._handlers]

    async def run(self) -> None:
        """Handle records until cancelled.

        Raises:
            HandlerFailedError: a handler failed for good, and ``on_failure="stop"`` says so.
            PenstockError: the consumer cannot go on.
        """
        async with anyio.create_task_group() as tasks:
            for station in self._stations:
                tasks.start_soon(station.line.run)
            tasks.start_soon(self._pump)

    async def finish(self, timeout_s: float) -> None:
        """Begin nothing more, and wait for what runs, for so long at most."""
        assert self._reader is not None
        until = asyncio.get_running_loop().time() + timeout_s
        self._reader.halt(self.consumer.assignment())
        while any(station.line.runs for station in self._stations) and asyncio.get_running_loop().time() < until:
            await self._progress.wait(until)

    @property
    def running(self) -> str | None:
        """The handler that has the event loop now."""
        return next((one.handler.name for one in self._stations if one.line.running is not None), None)

    @property
    def slowest(self) -> tuple[float, str]:
        """For how many seconds the record has run that was begun first, and whose it is."""
        return max(((one.line.longest_s, one.handler.name) for one in self._stations), default=(0.0, ""))

    @property
    def waiting(self) -> int:
        """Records that failed for good and are tried again now and then, as nobody takes them."""
        return sum(one.failures.waiting for one in self._stations)

    # ---- as the reader wants it --------------------------------------------------------------------------------

    def done_of(self, position: Position) -> int | None:
        """The lowest offset that is handed out and not done; None when there is none."""
        return _lowest(one.line.done_of(position) for one in self._stations)

    def halt(self, partition: TopicPartition) -> int | None:
        """Begin nothing more of a partition; the lowest offset that was not begun, None when there is none."""
        # All of them are told.
        return _lowest([one.line.halt(partition) for one in self._stations])

    def drop(self, partition: TopicPartition) -> None:
        """Forget a partition."""
        for station in self._stations:
            station.line.drop(partition)

    # ---- inside ------------------------------------------------------------------------------------------------

    async def _pump(self) -> None:
        assert self._reader is not None
        while True:
            position, records = await self._reader.next_slice(self._room_of)
            self._deal(position, records)

    def _room_of(self, partition: TopicPartition) -> int:
        return min(one.line.room_of(partition) for one in self._stations_of(partition.topic))

    def _deal(self, position: Position, records: Sequence[Record]) -> None:
        stations = self._stations_of(position.partition.topic)
        if len(stations) == 1 and stations[0].handler.when is None:
            stations[0].line.add(position, records)
            return
        shares: dict[int, list[Record]] = {}
        for record in records:
            wanting = (n for n, one in enumerate(stations) if _wants(one.handler, record))
            # What nobody wants fails where a handler says that it shall; there it is refused before the handler runs.
            refusing = (n for n, one in enumerate(stations) if one.handler.unmatched == "fail")
            chosen = next(wanting, next(refusing, None))
            if chosen is None:
                self._observer.tell(UnmatchedRecord(record.topic_partition, record.offset))
            else:
                shares.setdefault(chosen, []).append(record)
        for number, share in shares.items():
            stations[number].line.add(position, share)

    def _stations_of(self, topic: str) -> list[_Station]:
        found = self._of_topic.get(topic)
        if found is None:
            origin = self._replays.get(topic, topic)
            found = [one for one in self._stations if _reads(one.handler, origin)]
            self._of_topic[topic] = found
        return found

    def _progressed(self) -> None:
        self._progress.set()
        if self._reader is not None:
            self._reader.progressed()

    def _station(self, handler: Handler, prepared: Prepared, window: int) -> _Station:
        handle = self._handling(handler, prepared)

        async def pause(record: Record, seconds: float) -> bool:
            return await line.pause(record, seconds)

        failures = Failures(
            handler,
            group_id=self.group_id,
            retry=handler.retry or self._defaults.retry,
            on_failure=handler.on_failure or self._defaults.on_failure,
            dead_letter_topic=handler.dead_letter or self._defaults.dead_letter,
            producer=self._producer,
            attempt=handle,
            pause=pause,
            observer=self._observer,
        )
        line = Line(
            handle,
            failures.recover,
            order_by=handler.order_by,
            concurrency=handler.concurrency,
            window=window,
            on_progress=self._progressed,
        )
        return _Station(handler, line, failures)

    def _handling(self, handler: Handler, prepared: Prepared) -> Callable[[Record], Awaitable[object]]:
        """The whole way of one record through a handler, with nothing in it that the handler does not ask for."""
        call = _calling(prepared, self._opened, handler.concurrency)
        if handler.timeout_ms is not None:
            call = _with_deadline(call, handler.timeout_ms / 1000)
        if handler.publish is not None:
            assert self._producer is not None
            codec = handler.codec or self._defaults.codec
            call = _publishing(call, self._producer, handler.publish, codec.encode, handler.name)  # type: ignore[attr-defined]
        if handler.when is not None:
            call = _with_condition(call, handler.when)
        return call


def _calling(prepared: Prepared, opened: Opened, threads: int) -> Callable[[Record], Awaitable[object]]:
    if not prepared.is_async:
        limiter = CapacityLimiter(threads)

        async def in_a_thread(record: Record) -> object:
            async with prepared.opened_for(record, opened) as everything:
                args, kwargs = prepared.bind(record, everything)
                call = functools.partial(prepared.function, *args, **kwargs)
                return await run_sync(call, limiter=limiter)

        return in_a_thread
    if not prepared.is_simple:
        return lambda record: prepared.call(record, opened)
    function, decode = prepared.function, prepared.decode

    async def simple(record: Record) -> object:
        try:
            value = decode(record.value)
        except Exception as error:
            raise prepared.decode_error(record, error) from error
        return await function(value)

    return simple


def _with_deadline(
    call: Callable[[Record], Awaitable[object]], seconds: float
) -> Callable[[Record], Awaitable[object]]:
    async def in_time(record: Record) -> object:
        async with asyncio.timeout(seconds):
            return await call(record)

    return in_time


def _publishing(
    call: Callable[[Record], Awaitable[object]],
    producer: Producer,
    topic: str,
    encode: Callable[[object], bytes],
    where: str,
) -> Callable[[Record], Awaitable[object]]:
    async def and_publish(record: Record) -> None:
        # Acknowledged before the record is done, so that no commit is ahead of what it led to.
        for out in outgoing(await call(record), topic, encode, where):
            await producer.publish(out.topic, out.value, key=out.key, headers=out.headers, partition=out.partition)

    return and_publish


def _consumer_for(handlers: Sequence[Handler], options: Mapping[str, Any]) -> Consumer:
    topics = sorted({topic for handler in handlers for topic in handler.topics})
    patterns = [handler.pattern.pattern for handler in handlers if handler.pattern is not None]
    if not patterns:
        return Consumer(*topics, **options)
    return Consumer(pattern="|".join(f"(?:{one})" for one in [*map(re.escape, topics), *patterns]), **options)


def _reads(handler: Handler, topic: str) -> bool:
    return topic in handler.topics or (handler.pattern is not None and handler.pattern.fullmatch(topic) is not None)


def _wants(handler: Handler, record: Record) -> bool:
    try:
        return handler.when is None or handler.when(record)
    except Exception:  # noqa: BLE001 - it raises again where that is a failure of the record
        return True


def _with_condition(
    call: Callable[[Record], Awaitable[object]], when: Callable[[Record], bool]
) -> Callable[[Record], Awaitable[object]]:
    async def if_wanted(record: Record) -> object:
        if not when(record):
            raise Reject("no handler's when= takes this record - say unmatched='skip' if it may be passed over")
        return await call(record)

    return if_wanted


def _lowest(offsets: Iterable[int | None]) -> int | None:
    return min((offset for offset in offsets if offset is not None), default=None)
