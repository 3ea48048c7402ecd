"""App: handlers, and what keeps them running.

Rule of this file: what users call, and in which order things start and stop. A group of handlers at work is
``app.group``'s.
"""

from __future__ import annotations

import asyncio
import contextlib
import signal
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from types import TracebackType
from typing import Any, Self, cast

import anyio
from typing_extensions import Unpack

from penstock.app.codecs import AnyCodec, JsonCodec
from penstock.app.dependencies import open_into
from penstock.app.group import Defaults, Group
from penstock.app.handlers import Handler, Handlers
from penstock.app.health import Health, Vitals, examine
from penstock.app.health_asgi import ASGIApp, health_app
from penstock.app.messages import Message
from penstock.app.prepared import Prepared, prepare
from penstock.app.producer import Producer, Published
from penstock.app.results import outgoing
from penstock.app.signs import Signs
from penstock.app.watchdog import Watchdog
from penstock.config import ConsumerConfig, ConsumerOptions, check_names, resolve
from penstock.consumer.supervisor import Supervisor
from penstock.core.retries import OnFailure, Retry
from penstock.errors import ConfigurationError, ConsumerStateError, PenstockError
from penstock.observe.hooks import Hook, Observer

__all__ = ["App"]

_DRAIN_SHARE = 0.5
"""Of the time that stopping may take, so much is for handlers that run; the rest is for commits and good-byes."""


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
        options: those of ``Consumer``; see ``ConsumerOptions``.

    Raises:
        ConfigurationError: an option is unknown, mistyped, or contradicts another.
    """

    def __init__(
        self,
        *,
        retry: Retry | None = None,
        dead_letter: str | None = None,
        on_failure: OnFailure = "pause",
        codec: AnyCodec | None = None,
        **options: Unpack[ConsumerOptions],
    ) -> None:
        super().__init__()
        if on_failure not in {"pause", "stop", "skip"}:
            raise ConfigurationError(f"on_failure={on_failure!r} will not do: it has to be 'pause', 'stop' or 'skip'")
        self._defaults = Defaults(
            retry=retry or Retry(), on_failure=on_failure, dead_letter=dead_letter, codec=codec or JsonCodec()
        )
        self._options: dict[str, Any] = {}
        self.configure(**options)
        self._overrides: dict[Callable[..., object], Callable[..., object]] = {}
        self._supervisor: Supervisor | None = None
        self._groups: list[Group] = []
        self._producer: Producer | None = None
        self._config: ConsumerConfig | None = None
        self._signs: Signs | None = None
        self._watchdog: Watchdog | None = None
        self._failure: PenstockError | None = None

    def __repr__(self) -> str:
        state = "new" if self._supervisor is None else "started"
        return f"<App of {len(self.declared)} handlers group={self._options.get('group_id')} {state}>"

    # ---- before the start --------------------------------------------------------------------------------------

    def configure(self, **options: Unpack[ConsumerOptions]) -> None:
        """Set or change the consumers' options.

        Raises:
            ConfigurationError: an option is unknown or mistyped.
            ConsumerStateError: the app is started.
        """
        if getattr(self, "_supervisor", None) is not None:
            raise ConsumerStateError("configure() comes before the start - this app is started")
        given = cast("dict[str, Any]", options)
        check_names(given)
        self._options.update(given)
        resolve(self._options)

    def override(self, provider: Callable[..., object], replacement: Callable[..., object]) -> None:
        """Have ``Depends(provider)`` call ``replacement``."""
        self._overrides[provider] = replacement

    # ---- life --------------------------------------------------------------------------------------------------

    async def start(self) -> None:
        """Read signatures, open what the app depends on, start consumers, and begin to handle.

        Raises:
            ConfigurationError: a handler's signature will not do, or options contradict each other.
            ConsumerStateError: it was started before.
            PenstockError: as ``Consumer.start`` does.
        """
        if self._supervisor is not None:
            raise ConsumerStateError("this app is started already")
        self._config = resolve(self._options)
        by_group = self._prepared(self._config)
        self._signs = Signs(by_group)
        supervisor = self._supervisor = Supervisor(lambda us: self._live(us, by_group), "penstock app")
        try:
            await supervisor.start()
        except BaseException:
            self._supervisor = None
            raise

    async def stop(self) -> None:
        """Begin nothing more, let handlers end, commit, leave the groups; within ``stop_timeout_ms``.

        Raises:
            PenstockError: what ended the app before.
        """
        if self._supervisor is None or self._config is None:
            return
        await self._supervisor.stop(self._config.stop_timeout_ms / 1000)
        if self._failure is not None:
            raise self._failure

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.stop()

    async def run(self) -> None:
        """Handle records until SIGTERM, SIGINT, or an error that ends the app.

        Raises:
            PenstockError: what ended the app.
        """
        loop, asked = asyncio.get_running_loop(), asyncio.Event()
        with _signals(loop, asked):
            await self.start()
            assert self._supervisor is not None
            try:
                await _first_of(asked, self._supervisor.stopping)
            finally:
                await self.stop()

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
            ConsumerStateError: it is not started.
            PenstockError: what ended the app before that.
        """
        if self._signs is None or self._supervisor is None:
            raise ConsumerStateError("this app is not started - use `async with app`, or await start() first")
        await _first_of(self._signs.assigned, self._supervisor.stopping)
        if self._failure is not None:
            raise self._failure

    def health(self) -> Health:
        """How it is now: not live only if a restart would heal it, ready from the first assignment on."""
        config, signs = self._config or resolve(self._options), self._signs
        slowest_s, slowest = max((group.slowest for group in self._groups), default=(0.0, ""))
        return examine(
            Vitals(
                is_started=self._supervisor is not None and self._supervisor.ready.is_set(),
                was_assigned=signs is not None and signs.assigned.is_set(),
                max_poll_interval_s=config.max_poll_interval_ms / 1000,
                fatal_error="" if self._failure is None else str(self._failure),
                loop_blocked_s=0.0 if self._watchdog is None else self._watchdog.blocked_s,
                slowest_handler=slowest,
                slowest_handler_s=slowest_s,
                broker_error="" if signs is None else signs.broker_error,
                is_rebalancing=signs is not None and signs.is_rebalancing,
                waiting=sum(group.waiting for group in self._groups),
            )
        )

    @property
    def health_app(self) -> ASGIApp:
        """An ASGI app that answers ``/livez`` and ``/readyz``; mount it, or serve it by itself."""
        return health_app(self.health)

    # ---- publishing --------------------------------------------------------------------------------------------

    async def publish(
        self,
        topic: str,
        value: object,
        *,
        key: bytes | str | None = None,
        headers: Sequence[tuple[str, bytes | str | None]] = (),
    ) -> Published:
        """Publish a value, encoded by the app's codec; bytes as they are.

        Raises:
            ConsumerStateError: the app is not started.
            PublishError: it cannot be encoded, or was not acknowledged.
        """
        if self._producer is None:
            raise ConsumerStateError("this app is not started - use `async with app`, or await start() first")
        (out,) = outgoing(Message(value, key, headers), topic, self._defaults.codec.encode, "publish()")
        return await self._producer.publish(out.topic, out.value, key=out.key, headers=out.headers)

    # ---- inside ------------------------------------------------------------------------------------------------

    def _prepared(self, config: ConsumerConfig) -> dict[str, list[tuple[Handler, Prepared]]]:
        """The handlers by group, each with its signature read."""
        if not self.declared:
            raise ConfigurationError("this app has no handlers - declare one with @app.handler('topic')")
        by_group: dict[str, list[tuple[Handler, Prepared]]] = {}
        for handler in self.declared:
            group_id = handler.group_id or config.group_id
            if group_id is None:
                raise ConfigurationError(f"{handler.name} has no group - say App(group_id='billing')")
            codec = cast("AnyCodec", handler.codec or self._defaults.codec)
            prepared = prepare(handler.function, codec, overrides=self._overrides)
            by_group.setdefault(group_id, []).append((handler, prepared))
        for group_id, handlers in by_group.items():
            _check_routes(group_id, [handler for handler, _ in handlers])
        return by_group

    async def _live(self, supervisor: Supervisor, by_group: Mapping[str, list[tuple[Handler, Prepared]]]) -> None:
        assert self._config is not None
        try:
            async with AsyncExitStack() as stack:
                await self._begin(stack, by_group)
                supervisor.ready.set()
                await self._handle_until(supervisor.stopping)
        except Exception as error:
            self._failure = _told(error)
            raise self._failure from error
        finally:
            supervisor.stopping.set()
            self._producer = None

    async def _begin(self, stack: AsyncExitStack, by_group: Mapping[str, list[tuple[Handler, Prepared]]]) -> None:
        assert self._config is not None
        everything = [
            one for handlers in by_group.values() for _, prepared in handlers for one in prepared.app_dependencies
        ]
        opened = await open_into(stack, everything, None, {})
        self._producer = await stack.enter_async_context(Producer(self._config))
        hooks = (*cast("tuple[Hook, ...]", self._config.hooks), cast("Hook", self._signs))
        observer = Observer(hooks, client_id=self._config.client_id)
        self._groups = [
            Group(
                group_id,
                handlers,
                defaults=self._defaults,
                opened=opened,
                producer=self._producer,
                observer=observer,
                options={**self._options, "hooks": hooks},
            )
            for group_id, handlers in by_group.items()
        ]
        self._watchdog = Watchdog(
            asyncio.get_running_loop(),
            self._config.heartbeat_interval_ms / 1000,
            what_runs=lambda: next((name for group in self._groups if (name := group.running) is not None), None),
            tell=observer.tell,
        )
        self._watchdog.start()
        stack.callback(self._watchdog.stop)
        for group in self._groups:
            stack.push_async_callback(group.consumer.stop)
            await group.start()

    async def _handle_until(self, stopping: asyncio.Event) -> None:
        assert self._config is not None
        drain_s = min(self._config.rebalance_drain_ms, self._config.stop_timeout_ms * _DRAIN_SHARE) / 1000
        async with anyio.create_task_group() as tasks:
            for group in self._groups:
                tasks.start_soon(group.run)
            await stopping.wait()
            async with anyio.create_task_group() as endings:
                for group in self._groups:
                    endings.start_soon(group.finish, drain_s)
            tasks.cancel_scope.cancel()


async def _first_of(*events: asyncio.Event) -> None:
    """Wait for any of them."""
    async with anyio.create_task_group() as tasks:

        async def wait(event: asyncio.Event) -> None:
            await event.wait()
            tasks.cancel_scope.cancel()

        for event in events:
            tasks.start_soon(wait, event)


def _check_routes(group_id: str, handlers: Sequence[Handler]) -> None:
    """Two handlers of one topic and group need a ``when=`` to tell whose a record is."""
    taken: dict[str, Handler] = {}
    for handler in handlers:
        for topic in handler.topics:
            other = taken.setdefault(topic, handler)
            if other is not handler and (other.when is None or handler.when is None):
                raise ConfigurationError(
                    f"{other.name} and {handler.name} both take topic {topic!r} in group {group_id!r}"
                    " - say when=... for both, or give one a group_id of its own"
                )


@contextlib.contextmanager
def _signals(loop: asyncio.AbstractEventLoop, asked: asyncio.Event):  # type: ignore[no-untyped-def]  # noqa: ANN202
    names = (signal.SIGTERM, signal.SIGINT)
    refused = (NotImplementedError, ValueError, RuntimeError)  # Windows; not the main thread
    for name in names:
        with contextlib.suppress(*refused):
            loop.add_signal_handler(name, asked.set)
    try:
        yield
    finally:
        for name in names:
            with contextlib.suppress(*refused):
                loop.remove_signal_handler(name)


def _told(error: BaseException) -> PenstockError:
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    if isinstance(error, PenstockError):
        return error
    failure = PenstockError(f"the app ended: {type(error).__name__}: {error}")
    failure.__cause__ = error
    return failure
