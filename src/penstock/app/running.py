"""One run of an app: what is opened, in which order, what works, and how it ends.

Rule of this file: the order. Dependencies and the publisher are open before hooks are called, hooks are through before
the first record is handled; at the end all of it the other way round, so that each has what it stands on.
"""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import random
from collections.abc import Awaitable, Callable, Iterable
from contextlib import AbstractAsyncContextManager, AsyncExitStack
from typing import Any

import anyio

from penstock.app.group import Connect, Group
from penstock.app.health import Vitals
from penstock.app.plan import Plan
from penstock.app.publisher import Publisher
from penstock.app.signatures.arguments import Opened
from penstock.app.signatures.dependencies import open_into
from penstock.app.signs import Signs
from penstock.app.watchdog import Watchdog
from penstock.config import ConsumerConfig
from penstock.consumer.supervisor import Supervisor
from penstock.core.backoff import Backoff
from penstock.errors import BrokerConnectionError, PenstockError
from penstock.observe.events import BrokersAwaited
from penstock.observe.hooks import Observer
from penstock.records import Record

__all__ = ["Running"]

_DRAIN_SHARE = 0.5
"""Of the time that stopping may take, so much is for handlers that run; the rest is for commits and good-byes."""
_LONGEST_PAUSE_MS = 10_000
"""Between two attempts to reach a broker, each of which takes ``start_timeout_ms`` at most."""


class Running:
    """Runs a plan, once.

    Args:
        connect: where a group's records come from.
        open_publisher: what publishes; opened before the groups and closed after them.
        require_broker: whether the start fails when no broker answers; else it is tried until one does.

    Attributes:
        signs: what it hears of its consumers.
        failure: what ended it.
        is_over: set when it has ended.
        groups: those at work; none before a broker was reached.
        publisher: None before a broker was reached.
    """

    def __init__(  # noqa: PLR0913 - what a run stands on
        self,
        plan: Plan,
        config: ConsumerConfig,
        *,
        connect: Connect,
        open_publisher: Callable[[], AbstractAsyncContextManager[Publisher]],
        signs: Signs,
        observer: Observer,
        require_broker: bool = True,
    ) -> None:
        self._plan, self._config, self._connect, self._open_publisher = plan, config, connect, open_publisher
        self._observer, self._require_broker = observer, require_broker
        self.signs = signs
        self.failure: PenstockError | None = None
        self.is_over = asyncio.Event()
        self.groups: list[Group] = []
        self.publisher: Publisher | None = None
        self._watchdog: Watchdog | None = None

    async def live(self, supervisor: Supervisor) -> None:
        """Begin, say so, work until asked to stop, end.

        Raises:
            PenstockError: what ended it.
        """
        try:
            async with AsyncExitStack() as stack:
                opened = await open_into(stack, self._plan.dependencies, None, {})
                self._watch(stack)
                if not self._require_broker:
                    supervisor.ready.set()
                await self._begin(stack, opened, supervisor.stopping)
                supervisor.ready.set()
                await self._handle_until(supervisor.stopping)
        except Exception as error:
            self.failure = _told(error)
            raise self.failure from error
        finally:
            supervisor.stopping.set()
            self.is_over.set()
            self.publisher = None

    def record_of(self, task: asyncio.Task[Any] | None) -> Record | None:
        """The record whose handler runs in ``task``."""
        return next((found for group in self.groups if (found := group.record_of(task)) is not None), None)

    @property
    def vitals(self) -> Vitals:
        """What it sees of itself now."""
        slowest_s, slowest = max((group.slowest for group in self.groups), default=(0.0, ""))
        return Vitals(
            is_started=bool(self.groups),
            was_assigned=self.signs.assigned.is_set(),
            max_poll_interval_s=self._config.max_poll_interval_ms / 1000,
            fatal_error="" if self.failure is None else str(self.failure),
            loop_blocked_s=0.0 if self._watchdog is None else self._watchdog.blocked_s,
            slowest_handler=slowest,
            slowest_handler_s=slowest_s,
            broker_error=self.signs.broker_error,
            is_rebalancing=self.signs.is_rebalancing,
            waiting=sum(group.waiting for group in self.groups),
        )

    # ---- inside ------------------------------------------------------------------------------------------------

    async def _begin(self, stack: AsyncExitStack, opened: Opened, stopping: asyncio.Event) -> None:
        async def publish(into: AsyncExitStack) -> None:
            self.publisher = await into.enter_async_context(self._open_publisher())

        async def read(into: AsyncExitStack) -> None:
            assert self.publisher is not None
            groups = [
                Group(
                    group_id,
                    ready,
                    opened=opened,
                    publisher=self.publisher,
                    observer=self._observer,
                    connect=self._connect,
                )
                for group_id, ready in self._plan.by_group.items()
            ]
            for group in groups:
                into.push_async_callback(group.source.stop)
                await group.start()
            self.groups = groups

        if not await self._reached(publish, stack, stopping):
            return
        stack.push_async_callback(_call_all, self._plan.ending[::-1])
        for hook in self._plan.starting:
            await _called(hook)
        await self._reached(read, stack, stopping)

    async def _reached(
        self,
        open_into_stack: Callable[[AsyncExitStack], Awaitable[None]],
        stack: AsyncExitStack,
        stopping: asyncio.Event,
    ) -> bool:
        """Open something that needs a broker, when there is one; False when it was asked to stop before."""
        backoff = Backoff.of_ms(self._config.retry_backoff_ms, _LONGEST_PAUSE_MS)
        failures = 0
        while not stopping.is_set():
            try:
                async with AsyncExitStack() as attempt:
                    await open_into_stack(attempt)
                    stack.push_async_exit(attempt.pop_all())
                    return True
            except BrokerConnectionError as error:
                if self._require_broker:
                    raise
                failures += 1
                pause_s = backoff.pause_s(failures, random.random())  # noqa: S311 - for jitter
                self._observer.tell(BrokersAwaited(str(error), pause_s))
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(pause_s):
                    await stopping.wait()
        return False

    def _watch(self, stack: AsyncExitStack) -> None:
        self._watchdog = Watchdog(
            asyncio.get_running_loop(),
            self._config.heartbeat_interval_ms / 1000,
            what_runs=lambda: next((name for group in self.groups if (name := group.running) is not None), None),
            tell=self._observer.tell,
        )
        self._watchdog.start()
        stack.callback(self._watchdog.stop)

    async def _handle_until(self, stopping: asyncio.Event) -> None:
        drain_s = min(self._config.rebalance_drain_ms, self._config.stop_timeout_ms * _DRAIN_SHARE) / 1000
        async with anyio.create_task_group() as tasks:
            for group in self.groups:
                tasks.start_soon(group.run)
            await stopping.wait()
            async with anyio.create_task_group() as endings:
                for group in self.groups:
                    endings.start_soon(group.finish, drain_s)
            tasks.cancel_scope.cancel()


async def _call_all(hooks: Iterable[Callable[[], object]]) -> None:
    """Call each, whatever the others raise.

    Raises:
        Exception: the first that was raised.
    """
    errors: list[Exception] = []
    for hook in hooks:
        try:
            await _called(hook)
        except Exception as error:  # noqa: BLE001 - the user's, and raised below
            errors.append(error)
    if errors:
        raise errors[0]


async def _called(hook: Callable[[], object]) -> None:
    result = hook()
    if inspect.isawaitable(result):
        await result


def _told(error: BaseException) -> PenstockError:
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    if isinstance(error, PenstockError):
        return error
    failure = PenstockError(f"the app ended: {type(error).__name__}: {error}")
    failure.__cause__ = error
    return failure
