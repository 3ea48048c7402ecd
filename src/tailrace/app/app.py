"""App: handlers, and what keeps them running.

Rule of this file: what users call, and in which order things start and stop. A group of handlers at work is
``app.dispatch.group_runtime``'s.
"""

from __future__ import annotations

import asyncio
import signal
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from types import MappingProxyType, TracebackType
from typing import Any, Self, cast

from typing_extensions import Unpack

from tailrace.app.argument_checks import check_codec, check_middleware
from tailrace.app.declare.codecs import AnyCodec, JsonCodec
from tailrace.app.declare.plan import planned
from tailrace.app.declare.resolved_options import ResolvedOptions
from tailrace.app.dispatch.executor import Executor
from tailrace.app.handlers import Handlers, Middleware
from tailrace.app.health.checks import Health, Vitals, examine
from tailrace.app.health.consumer_events import ConsumerEvents
from tailrace.app.health.endpoints import ASGIApp, health_app
from tailrace.app.kafka_substitute import KafkaSubstitute
from tailrace.app.lifecycle import AppRun
from tailrace.app.publish.encoding import outgoing
from tailrace.app.publish.message import Message
from tailrace.app.publish.results import publish_one
from tailrace.app.shutdown import first_of
from tailrace.app.sources import ConsumerSource, Source
from tailrace.app.topics.names import DEAD, topic_name
from tailrace.app.topics.routes import Routes
from tailrace.app.transactions.exactly_once import (
    Delivery,
    TransactionalKafka,
    check_options,
    exactly_once,
    transaction_options,
)
from tailrace.config import ConsumerConfig, ConsumerOptions, check_names, resolve
from tailrace.consumer.supervisor import Supervisor
from tailrace.core.failures.retry import OnFailure, Retry
from tailrace.errors import ConfigurationError, ConsumerStateError, HandlerFailedError, PublishError, TailraceError
from tailrace.observe.hooks import Hook, Observer
from tailrace.producer.producer import Producer
from tailrace.producer.publisher import Published
from tailrace.signals import handle_signals

__all__ = ["App"]


class App(Handlers):
    """Runs decorated handlers on the records of their topics.

    ``@app.handler("orders")`` declares one; ``await app.run()`` runs all until SIGTERM; ``async with app:`` runs them
    beside something else. Records are handled at least once: an offset is committed when the handler has returned, what
    it published is acknowledged, or its record stands among the dead letters.

    Args:
        group_id: the consumer group of handlers that name none.
        retry: how often a record is tried again, and after what pauses.
        dead_letter: the topic for records that fail for good, such as ``"{topic}.{group}.dead"``.
        on_failure: what happens to them without one: ``"pause"`` keeps their lane waiting and tries again now and then,
            ``"stop"`` stops the app, ``"skip"`` counts and logs them.
        codec: how values are read and written; JSON when nothing is said.
        middleware: wraps every handler, the outermost first; each is given what runs a record and returns the like.
        require_broker: whether ``start`` fails when no broker answers within ``start_timeout_ms``; without it the app
            starts, is ready, and goes on trying, for a service that has other things to do as well.
        delivery: ``"exactly_once"`` handles records within transactions: what handlers publish, dead letters and
            offsets become visible together or not at all.
        transactional_id: how a process's transactions are named, a template of ``{group}``, ``{instance}``,
            ``{hostname}``, ``{worker}``, ``{client_id}`` and ``{pid}``. Whoever starts again with the same name ends at
            once what was left open. By default the group with ``group_instance_id``, or what is new at each start.
        transaction_timeout_ms: the broker takes back what is open for longer; 10,000 when nothing is said.
        transaction_interval_ms: how long a transaction gathers records; 100 when nothing is said.
        transaction_max_records: or how many; 10,000 when nothing is said.
        options: those of ``Consumer``; see ``ConsumerOptions``.

    Raises:
        ConfigurationError: an option is unknown, mistyped, or contradicts another.
    """

    def __init__(  # noqa: PLR0913 - options
        self,
        *,
        retry: Retry | None = None,
        dead_letter: str | None = None,
        on_failure: OnFailure = "pause",
        codec: AnyCodec | None = None,
        middleware: Sequence[Middleware] = (),
        require_broker: bool = True,
        delivery: Delivery = "at_least_once",
        transactional_id: str | None = None,
        transaction_timeout_ms: int | None = None,
        transaction_interval_ms: int | None = None,
        transaction_max_records: int | None = None,
        **options: Unpack[ConsumerOptions],
    ) -> None:
        super().__init__()
        if on_failure not in {"pause", "stop", "skip"}:
            raise ConfigurationError(f"on_failure={on_failure!r} will not do: it has to be 'pause', 'stop' or 'skip'")
        if retry is not None and not isinstance(retry, Retry):
            raise ConfigurationError(f"retry must be a Retry instance such as Retry(attempts=3), not {retry!r}")
        if dead_letter is not None:
            if not isinstance(dead_letter, str):
                raise ConfigurationError(
                    f"dead_letter must be a topic or a template such as {DEAD!r}, not {dead_letter!r}"
                )
            topic_name(dead_letter, topic="topic", group="group")
        if codec is not None:
            check_codec(codec, "App")
        check_middleware(middleware)
        self._defaults = ResolvedOptions(
            retry=retry or Retry(),
            on_failure=on_failure,
            dead_letter=dead_letter,
            codec=codec or JsonCodec(),
            middleware=tuple(middleware),
        )
        self._require_broker = require_broker
        self._transactions = transaction_options(
            delivery,
            transactional_id=transactional_id,
            transaction_timeout_ms=transaction_timeout_ms,
            transaction_interval_ms=transaction_interval_ms,
            transaction_max_records=transaction_max_records,
        )
        self._options: dict[str, Any] = {}
        self.configure(**options)
        self._overrides: dict[Callable[..., object], Callable[..., object]] = {}
        self._supervisor: Supervisor | None = None
        self._running: AppRun | None = None
        self._instead: KafkaSubstitute | None = None
        self._config: ConsumerConfig | None = None

    def __repr__(self) -> str:
        state = "new" if self._supervisor is None else "started"
        return f"<App of {len(self.declared)} handlers group={self._options.get('group_id')} {state}>"

    def __getstate__(self) -> dict[str, object]:
        """As it was declared: what runs of it stays in this process."""
        return {**self.__dict__, "_supervisor": None, "_running": None, "_instead": None, "_config": None}

    # ---- before the start --------------------------------------------------------------------------------------

    def configure(self, **options: Unpack[ConsumerOptions]) -> None:
        """Set or change the consumers' options.

        Raises:
            ConfigurationError: an option is unknown or mistyped.
            ConsumerStateError: the app is started.
        """
        supervisor = getattr(self, "_supervisor", None)
        if supervisor is not None and not supervisor.is_over:
            raise ConsumerStateError("configure() comes before the start - this app is started")
        given = cast("dict[str, Any]", options)
        check_names(given)
        self._options.update(given)
        resolve(self._options)

    @property
    def options(self) -> Mapping[str, object]:
        """The consumers' options as they were said, by ``App(...)`` and ``configure``."""
        return MappingProxyType(self._options)

    @property
    def codec(self) -> AnyCodec:
        """How values are read and written where a handler says nothing else."""
        return self._defaults.codec

    def override(self, provider: Callable[..., object], replacement: Callable[..., object]) -> None:
        """Have ``Depends(provider)`` call ``replacement``.

        Raises:
            ConfigurationError: one of them cannot be called.
        """
        for name, one in (("provider", provider), ("replacement", replacement)):
            if not callable(one):
                raise ConfigurationError(f"override(): {name} must be a function, not {one!r}")
        self._overrides[provider] = replacement

    # ---- life --------------------------------------------------------------------------------------------------

    async def start(self) -> None:
        """Read signatures, open what the app depends on, start consumers, and begin to handle.

        Raises:
            ConfigurationError: a handler's signature will not do, or options contradict each other.
            ConsumerStateError: it is started, and was not stopped; or is stopped meanwhile.
            TailraceError: as ``Consumer.start`` does.
        """
        await self._start()

    async def _start(self, given_up: asyncio.Event | None = None) -> Supervisor:
        """Start, unless that is given up before."""
        if self._supervisor is not None and not self._supervisor.is_over:
            raise ConsumerStateError("this app is started already")
        self._config = resolve(self._options)
        running = self._running = self._new_run(self._config)
        supervisor = self._supervisor = Supervisor(running.live, "tailrace app")
        try:
            await supervisor.start(given_up, ending_s=sum(running.time_to_stop))
        except BaseException:
            self._supervisor = None
            raise
        return supervisor

    async def stop(self) -> None:
        """Begin nothing more, let handlers end, commit, leave the groups; within ``stop_timeout_ms``.

        Handlers have half of that; those that run then are cut short, and their records come again.

        Raises:
            ConsumerStateError: it is called from a handler, which has to end first.
            TailraceError: what ended the app before; or something that it was made of does not end.
        """
        if self._supervisor is None:
            return
        running = self._started
        if running.handler_in(asyncio.current_task()) is not None:
            raise ConsumerStateError("stop() in a handler would wait for itself - let another task call it")
        orderly_s, ending_s = running.time_to_stop
        try:
            await self._supervisor.stop(orderly_s, ending_s=ending_s)
        except TailraceError:
            running.closing.cut_short(is_abandoned=True)
            raise
        if running.failure is not None:
            raise running.failure

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.stop()

    async def run(self) -> None:
        """Handle records until SIGTERM, SIGINT, or an error that ends the app; a second signal ends it at once.

        One signal ends all apps that run in the process.

        Raises:
            HandlerFailedError: a handler did not end when it was canceled, and was abandoned.
            TailraceError: what ended the app.
        """
        asked = asyncio.Event()
        with handle_signals((signal.SIGTERM, signal.SIGINT), asked.set):
            supervisor = await self._start(asked)
            try:
                await first_of(asked, supervisor.stopping)
            finally:
                await self.stop()
        if left := self._started.left_behind:
            raise HandlerFailedError(
                f"{', '.join(dict.fromkeys(left))} went on after being canceled and was abandoned - its record is not"
                " committed and will be delivered again; let asyncio.CancelledError through"
            )

    @asynccontextmanager
    async def lifespan(self, _app: object) -> AsyncIterator[None]:
        """For an ASGI framework: ``FastAPI(lifespan=app.lifespan)``."""
        async with self:
            yield

    async def cleanup_ctx(self, _app: object) -> AsyncIterator[None]:
        """For aiohttp: ``web_app.cleanup_ctx.append(app.cleanup_ctx)``."""
        async with self:
            yield

    async def wait_ready(self) -> None:
        """Wait until each of its groups has given it its first assignment, even an empty one.

        Raises:
            ConsumerStateError: it is not started, or is stopped before that.
            TailraceError: what ended the app before that.
        """
        running = self._started
        if self._supervisor is not None:
            await first_of(running.signs.assigned, self._supervisor.stopping)
        if running.failure is not None:
            raise running.failure
        if not running.signs.assigned.is_set():
            raise ConsumerStateError("this app has ended before it was ready - start() it again")

    def health(self) -> Health:
        """How it is now: not live only if a restart would heal it; ready from the first assignment until it ends."""
        config, running = self._config or resolve(self._options), self._running
        if running is None:
            vitals = Vitals(
                is_started=False, was_assigned=False, max_poll_interval_s=config.max_poll_interval_ms / 1000
            )
        else:
            vitals = running.vitals
        return examine(vitals, require_broker=self._require_broker)

    @property
    def health_app(self) -> ASGIApp:
        """An ASGI app that answers ``/livez`` and ``/readyz``; mount it, or serve it by itself."""
        return health_app(self.health)

    # ---- handlers one by one -----------------------------------------------------------------------------------

    def pause(self, handler: Callable[..., object]) -> None:
        """Have a handler begin nothing more until it is resumed; what it has begun goes on, and so do other handlers.

        Its partitions are not read meanwhile, also where another handler takes some of their records. It stays a
        member of its group, with its partitions.

        Raises:
            ConsumerStateError: the app is not started, or has no such handler.
        """
        for executor in self._lines_of(handler):
            executor.hold()

    def resume(self, handler: Callable[..., object]) -> None:
        """Have a paused handler go on.

        Raises:
            ConsumerStateError: the app is not started, or has no such handler.
        """
        for executor in self._lines_of(handler):
            executor.release()

    def is_paused(self, handler: Callable[..., object]) -> bool:
        """Whether a handler is paused.

        Raises:
            ConsumerStateError: the app is not started, or has no such handler.
        """
        return any(executor.is_held for executor in self._lines_of(handler))

    # ---- publishing --------------------------------------------------------------------------------------------

    async def publish(
        self,
        topic: str,
        value: object,
        *,
        key: object = None,
        headers: Sequence[tuple[str, bytes | str | None]] = (),
        partition: int | None = None,
    ) -> Published | None:
        """Publish a value, encoded by the app's codec; bytes as they are.

        Without ``partition`` the key decides. Within a handler of single records, in its tasks and threads too, the
        headers of its record's trace are carried on, unless ``headers`` begin a trace anew.

        Returns:
            Where it is; None where it is part of a transaction, which is not committed yet.

        Raises:
            ConsumerStateError: the app is not started, or has ended.
            PublishError: it cannot be encoded, was not acknowledged, or no broker was reached yet.
            SchemaRegistryError: its schema is not known yet, and the registry could not be asked.
        """
        running = self._started
        if running.publisher is None:
            if self._supervisor is not None and not self._supervisor.stopping.is_set():
                raise PublishError(f"{topic}: no broker was reached yet - wait_ready() waits for one")
            raise ConsumerStateError("this app has ended - use `async with app`, or await start() first")
        (out,) = await outgoing([Message(value, key, headers, partition)], topic, self._defaults.codec, "publish()")
        return await publish_one(running.publisher, out)

    # ---- inside ------------------------------------------------------------------------------------------------

    @property
    def _started(self) -> AppRun:
        if self._running is None:
            raise ConsumerStateError("this app is not started - use `async with app`, or await start() first")
        return self._running

    def _lines_of(self, handler: Callable[..., object]) -> list[Executor[Any]]:
        executors = [executor for group in self._started.groups for executor in group.executors_of(handler)]
        if not executors:
            raise ConsumerStateError(f"{handler!r} handles nothing in this app now - give the decorated function")
        return executors

    def _new_run(self, config: ConsumerConfig) -> AppRun:
        instead = self._instead
        overrides = self._overrides if instead is None else {**self._overrides, **instead.overrides}
        plan = planned(self, config.group_id, self._defaults, overrides)
        if instead is not None:
            plan = instead.adapt(plan)
        signs = ConsumerEvents(plan.by_group)
        more = () if instead is None else instead.hooks
        hooks = (*cast("tuple[Hook, ...]", config.hooks), *more, cast("Hook", signs))

        options = {**self._options, "hooks": hooks}
        observer = Observer(hooks, client_id=config.client_id)

        def connect(routes: Routes) -> Source:
            return ConsumerSource(routes, {**options, "group_id": routes.group_id})

        kafka = TransactionalKafka(connect, lambda: Producer(config))
        if self._transactions is not None:
            check_options(self._transactions, config, self._options, self.declared)
            kafka = exactly_once(self._transactions, config, options, kafka, observer=observer)
        return AppRun(
            plan,
            config,
            connect=kafka.connect if instead is None else instead.connect,
            open_publisher=kafka.open_publisher if instead is None else instead.open_publisher,
            signs=signs,
            observer=observer,
            # Whoever stands in for Kafka is there at once, and waits for what it has begun.
            require_broker=self._require_broker or instead is not None,
        )
