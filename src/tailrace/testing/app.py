"""Runner of an app's handlers without a broker, in virtual time.

The code of lanes, retries, codecs, dependencies and dead letters is that of production. Topics in memory replace the
consumer and the producer.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from dataclasses import replace
from types import TracebackType
from typing import Any, Self, TypeVar, overload

from tailrace.app.app import App
from tailrace.app.declare.arguments import create_value_reader
from tailrace.app.declare.parameters import Provider
from tailrace.app.failures.dead_letters import DeadLetter, read_dead_letter
from tailrace.app.failures.policy import ACTION_TEXTS
from tailrace.app.handlers import ResolvedHandler
from tailrace.app.lifecycle import KafkaSubstitute, Plan, wait_for_any
from tailrace.app.policies import FailureAction
from tailrace.app.sources import Source
from tailrace.app.topics.routes import Routes
from tailrace.app.transactions.exactly_once import TransactionalSource
from tailrace.app.transactions.kafka_access import ContextPublisher
from tailrace.context_managers import AsyncExitStack, asynccontextmanager
from tailrace.errors import ConfigurationError, HandlerFailedError
from tailrace.observe.events import BatchFailedPermanently, Event, HandlerFailedPermanently
from tailrace.observe.hooks import Observer
from tailrace.producer.publisher import Publisher
from tailrace.records import Record, TopicPartition
from tailrace.testing.topic_log import LogSource, TopicLog, transactional_source
from tailrace.testing.virtual_time import VirtualTime, virtual_time_of

__all__ = ["TestApp"]

ValueT = TypeVar("ValueT")
WorkT = TypeVar("WorkT")


class TestApp:
    """Runs an app's handlers on records sent by a test, within an ``async with`` block.

    Time is virtual: when all tasks wait, the event loop's clock jumps to the next timer. Backoff, delayed retries,
    waits for a batch, and deadlines take no real time and keep their order. Several TestApps of an event loop share its
    clock. The clock waits for functions in threads. It waits only briefly for responses from a network, and for
    libraries with threads or subprocesses of their own: use ``virtual_time=False`` if handlers connect to a real server
    or use a library that may be slow.

    Args:
        app: app that is not started; several tests may use the same app one after another.
        overrides: replacements for providers that ``Depends`` names, by replaced provider.
        partitions: number of partitions by topic; other topics have one partition.
        virtual_time: False to wait in real time.
    """

    __test__ = False  # pytest must not collect this class as tests.

    def __init__(
        self,
        app: App,
        *,
        overrides: Mapping[Provider, Provider] | None = None,
        partitions: Mapping[str, int] | None = None,
        virtual_time: bool = True,
    ) -> None:
        self._app, self._overrides, self._is_virtual = app, dict(overrides or {}), virtual_time
        self._log = TopicLog(partitions or {}, self._now_s)
        self._sources: list[LogSource] = []
        self._transactional: list[TransactionalSource] = []
        self._stack = AsyncExitStack()
        self._start_times = (0.0, 0.0)
        """Wall-clock time in seconds since the epoch, and event loop time, at the start."""
        self._clock: VirtualTime | None = None
        self._wakeup = asyncio.Event()
        self._failures: list[HandlerFailedPermanently | BatchFailedPermanently] = []
        """Failures for good that neither a dead letter nor ``on_failure`` handles, and that were not raised yet."""

    def __repr__(self) -> str:
        return f"<TestApp of {self._app!r}>"

    # ---- start and stop ----------------------------------------------------------------------------------------

    async def __aenter__(self) -> Self:
        loop = asyncio.get_running_loop()
        async with AsyncExitStack() as stack:
            if self._is_virtual:
                self._clock = stack.enter_context(virtual_time_of(loop))
            self._start_times = (time.time(), loop.time())
            substitute = KafkaSubstitute(
                self._connect, self._open_log, self._overrides, (self,), self._with_real_time_in_threads, self._now_s
            )
            with self._app.runtime.without_kafka(substitute):
                await self._app.start()
            stack.push_async_callback(self._app.stop)
            self._stack = stack.pop_all()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._stack.aclose()

    # ---- sending -----------------------------------------------------------------------------------------------

    async def send(
        self,
        topic: str,
        value: object,
        *,
        key: bytes | str | None = None,
        headers: Sequence[tuple[str, bytes | str | None]] = (),
        partition: int | None = None,
    ) -> Record:
        """Send a value, and wait until all records are finished.

        The value may be any object that the app's codec encodes; bytes are sent unchanged. In a TestApp, a record is
        finished when it was handled, written to a dead-letter topic or skipped. A record that is retried at intervals
        because of ``on_failure="pause"``, which is the default, makes this call raise HandlerFailedError, once; after
        that, it counts as finished, and so do records that wait for it. Records that handlers publish to topics of the
        app are also waited for.

        Returns:
            The record that the handlers received.

        Raises:
            ConfigurationError: no handler reads the topic.
            PublishError: the value cannot be encoded.
            HandlerFailedError: a handler failed for good, without a dead-letter topic and ``on_failure="skip"``.
        """
        if not any(source.reads(topic) for source in self._sources):
            read = sorted({topic for source in self._sources for topic in source.subscription})
            raise ConfigurationError(f"no handler reads {topic!r} - this app reads {', '.join(read) or 'no topic'}")
        published = await self._app.publish(topic, value, key=key, headers=headers, partition=partition)
        assert published is not None
        await self.settled()
        return self._log.records(published.topic_partition)[published.offset]

    async def settled(self) -> None:
        """Wait until all records are finished, in the sense that ``send`` describes.

        Raises:
            HandlerFailedError: a handler failed for good, without a dead-letter topic and ``on_failure="skip"``.
            TailraceError: the app ended with this error before all records were finished.
        """
        running = self._app.runtime.started_run
        while not all(group.is_settled for group in running.groups) or not all(one.is_idle for one in self._sources):
            if running.failure is not None:
                raise running.failure
            self._wakeup.clear()
            await wait_for_any(self._wakeup, running.is_over)
        # Let the task that finished the last record run to its next await.
        await asyncio.sleep(0)
        if self._failures:
            failed, self._failures = self._failures[0], []
            raise HandlerFailedError(
                f"{failed.handler} failed at {failed.partition} offset {failed.offset}: {failed.error}; the record is"
                " retried while its lane waits (on_failure='pause') - correct the handler, or expect this error in the"
                " test, or set dead_letter or on_failure='skip'"
            ) from failed.exception

    # ---- results -----------------------------------------------------------------------------------------------

    @overload
    def published(self, topic: str) -> list[Record]: ...

    @overload
    def published(self, topic: str, kind: type[ValueT]) -> list[ValueT]: ...

    def published(self, topic: str, kind: type[Any] | None = None) -> list[Any]:
        """Return the records of a topic, ordered by partition and offset.

        With ``kind``, return their values, which the app's codec decodes as this type.
        """
        records = self._log.records_of_topic(topic)
        if kind is None:
            return records
        where = f"published({topic!r})"
        read = create_value_reader(kind, self._app.codec, where, "kind", checks_topic=False).read
        return [read(record) for record in records]

    def dead_letters(self, topic: str) -> list[DeadLetter]:
        """Return the dead letters, in all topics, whose original record was in ``topic``."""
        letters = (read_dead_letter(record) for name in self._log.topics for record in self._log.records_of_topic(name))
        return [one for one in letters if one is not None and one.origin is not None and one.origin.topic == topic]

    def committed(self, topic: str, partition: int = 0, *, group_id: str | None = None) -> int:
        """Return the committed offset of a group: the lowest offset that is not finished.

        In transactions, a record counts as finished when its transaction is committed. ``group_id`` may be None if only
        one group reads the topic.

        Raises:
            ConfigurationError: no group reads the topic, ``group_id`` does not read it, or ``group_id`` is None and
                several groups read it.
        """
        by_group = {one.group_id: one for one in self._sources if one.reads(topic)}
        groups = ", ".join(by_group)
        if not by_group:
            raise ConfigurationError(f"no handler reads {topic!r}")
        if group_id is not None and group_id not in by_group:
            raise ConfigurationError(f"group {group_id!r} does not read {topic!r} - groups that read it: {groups}")
        if group_id is None and len(by_group) > 1:
            raise ConfigurationError(f"several groups read {topic!r}: {groups} - pass group_id=")
        source = next(iter(by_group.values())) if group_id is None else by_group[group_id]
        return source.committed(TopicPartition(topic, partition))

    # ---- inside ------------------------------------------------------------------------------------------------

    def on_event(self, event: Event) -> None:
        """Let ``settled`` check again; the app calls this hook for each event."""
        match event:
            case HandlerFailedPermanently() | BatchFailedPermanently():
                if ACTION_TEXTS[FailureAction.PAUSE] in event.action:
                    self._failures.append(event)
            case _:
                pass
        self._wakeup.set()

    def _connect(self, routes: Routes) -> Source:
        observer = Observer((self, self._app.runtime.started_run.consumer_events))
        source = LogSource(self._log, routes, observer)
        source.watch(self._wakeup.set)
        self._sources.append(source)
        options = self._app.runtime.transactions
        if options is None:
            return source
        self._transactional.append(transactional_source(source, self._log, options, observer))
        return self._transactional[-1]

    @asynccontextmanager
    async def _open_log(self) -> AsyncIterator[Publisher]:
        yield ContextPublisher(self._log, self._transactional)

    def _with_real_time_in_threads(self, plan: Plan) -> Plan:
        """Return a plan in which handlers in threads use real time, because virtual time does not wait for them."""
        clock = self._clock
        if clock is None:
            return plan
        by_group = {
            group_id: [one if one.prepared.is_async else _with_real_time(one, clock) for one in handlers]
            for group_id, handlers in plan.by_group.items()
        }
        return replace(plan, by_group=by_group)

    def _now_s(self) -> float:
        wall_clock, loop_time = self._start_times
        return wall_clock + asyncio.get_running_loop().time() - loop_time


def _with_real_time(handler: ResolvedHandler, clock: VirtualTime) -> ResolvedHandler:
    """Return the handler with a middleware that uses real time during each call."""

    def middleware(call: Callable[[WorkT], Awaitable[object]]) -> Callable[[WorkT], Awaitable[object]]:
        async def call_in_real_time(work: WorkT) -> object:
            with clock.real_time():
                return await call(work)

        return call_in_real_time

    return replace(handler, middleware=(*handler.middleware, middleware))
