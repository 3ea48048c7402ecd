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
from penstock.observe.events import BrokersAwaited, LeavingCutShort
from penstock.observe.hooks import Observer

__all__ = ["Running"]

# Of the time that stopping may take:
_DRAINED_BY = 0.5
"""Handlers that run may end until then, and are cut short after it."""
_CLEANING_UP = 0.1
"""So much have those to clean up."""
_LEFT_BY = 0.75
"""Until then there are commits and good-byes."""
_ORDERLY_UNTIL = 0.8
"""After that, whatever is waited for is cut short."""
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
        is_ending: whether it handles no more.
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
        self._stop_s = config.stop_timeout_ms / 1000
        self._ends_since: float | None = None
        self._has_begun = False
        self.is_ending = False
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
                try:
                    await self._work(stack, supervisor)
                except Exception as error:
                    # Known before all is closed, which takes its time.
                    self._fail(error)
                    raise
                finally:
                    self._end()
                    supervisor.stopping.set()
        except Exception as error:
            raise self._fail(error) from error
        finally:
            self.is_over.set()
            self.publisher, self.groups = None, []

    @property
    def time_to_stop(self) -> tuple[float, float]:
        """For how many seconds it may end in good order, and for how many more it may take to be cut short."""
        # Before the first record nothing has to be finished.
        orderly_s = self._stop_s * _ORDERLY_UNTIL if self._has_begun else 0.0
        return orderly_s, self._stop_s - orderly_s

    def handler_in(self, task: asyncio.Task[Any] | None) -> str | None:
        """The name of the handler that runs in ``task``. Any thread may ask."""
        return None if task is None else next(filter(None, (one.handler_in(task) for one in self.groups)), None)

    @property
    def vitals(self) -> Vitals:
        """What it sees of itself now."""
        slowest_s, slowest = max((group.slowest for group in self.groups), default=(0.0, ""))
        return Vitals(
            is_started=self._has_begun,
            is_ending=self.is_ending,
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

    async def _work(self, stack: AsyncExitStack, supervisor: Supervisor) -> None:
        opened = await open_into(stack, self._plan.dependencies, None, {})
        self._watch(stack)
        if not self._require_broker:
            supervisor.ready.set()
        await self._begin(stack, opened, supervisor.stopping)
        supervisor.ready.set()
        await self._handle_until(supervisor.stopping)

    def _fail(self, error: Exception) -> PenstockError:
        self.failure = self.failure or _told(error)
        return self.failure

    def _end(self) -> None:
        """It handles no more from now on, for whatever reason."""
        if not self.is_ending:
            self.is_ending, self._ends_since = True, asyncio.get_running_loop().time()

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
            begun: list[Group] = []
            into.push_async_callback(self._leave, begun)
            for group in groups:
                begun.append(group)
                await group.start()
            self.groups, self._has_begun = groups, True

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
        loop = asyncio.get_running_loop()
        self._watchdog = Watchdog(
            loop,
            self._config.heartbeat_interval_ms / 1000,
            what_runs=lambda: self.handler_in(asyncio.current_task(loop)),
            tell=self._observer.tell,
        )
        self._watchdog.start()
        stack.callback(self._watchdog.stop)

    async def _handle_until(self, stopping: asyncio.Event) -> None:
        drain_s = min(self._config.rebalance_drain_ms / 1000, self._stop_s * _DRAINED_BY)
        async with anyio.create_task_group() as tasks:
            for group in self.groups:
                tasks.start_soon(group.run, self._stop_s * _CLEANING_UP)
            await stopping.wait()
            self._end()
            async with anyio.create_task_group() as endings:
                for group in self.groups:
                    endings.start_soon(group.finish, drain_s)
            tasks.cancel_scope.cancel()

    async def _leave(self, groups: Iterable[Group]) -> None:
        """Commit what is done and leave all groups at once, in good order while there is time.

        Raises:
            Exception: the first that was raised.
        """

        async def leave(group: Group) -> None:
            try:
                await group.source.stop()
            except asyncio.CancelledError:
                self._observer.tell(LeavingCutShort(group.group_id))
                raise

        # A start that is tried again has not ended, and has all its time left for the end that comes once.
        since = asyncio.get_running_loop().time() if self._ends_since is None else self._ends_since
        left: list[BaseException | None] = []
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout_at(since + self._stop_s * _LEFT_BY):
                # Unlike a task group, it hands on each cancellation, not only the first.
                left = await asyncio.gather(*map(leave, groups), return_exceptions=True)
        for error in left:
            if error is not None:
                raise error


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
