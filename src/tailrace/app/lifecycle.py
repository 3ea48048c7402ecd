"""One run of an app: start, handling of records, stop.

The start opens the app-scoped dependencies, opens the publisher, calls the start hooks and starts the groups. The stop
takes the reverse steps in reverse order, so that each part is closed before the parts that it depends on.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import random
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any, cast

import anyio

from tailrace.app.broker_needs import CANNOT_PUBLISH, BrokerNeeds, broker_needs
from tailrace.app.declare.arguments import Opened
from tailrace.app.declare.dependencies import Dependency, Overrides, open_into
from tailrace.app.declare.parameters import Provider
from tailrace.app.dispatch.group_runtime import AppParts, Connect, GroupRuntime
from tailrace.app.dispatch.workers import stop_all, task_error
from tailrace.app.function_kinds import name_of
from tailrace.app.handlers import Handlers, ResolvedHandler, resolve_handler
from tailrace.app.health.checks import ConsumerEvents, Health, Vitals
from tailrace.app.health.event_loop_watchdog import Watchdog
from tailrace.app.options import AppConfig
from tailrace.app.publish.delays import PublishDelays, delays_of
from tailrace.app.publish.results import LimitedPublisher, instrumented
from tailrace.app.sources import ConsumerSource
from tailrace.app.topics.creation import create_delay_topics
from tailrace.app.topics.routes import Routes
from tailrace.app.transactions.kafka_access import (
    KafkaAccess,
    TransactionOptions,
    check_transactions,
    with_transactions,
)
from tailrace.awaitables import resolve_call
from tailrace.config import ConsumerConfig, resolve
from tailrace.consumer.sink_consumer import SinkConsumer
from tailrace.consumer.supervisor import Supervisor, as_tailrace_error
from tailrace.context_managers import AsyncExitStack, asynccontextmanager, contextmanager
from tailrace.core.backoff import Backoff
from tailrace.core.capabilities import ClusterVersions
from tailrace.errors import (
    BrokerConnectionError,
    BrokerError,
    ConsumerStateError,
    PublishError,
    TailraceError,
    UnsupportedVersionError,
)
from tailrace.observe.events import (
    AppFailed,
    BrokersUnavailable,
    CapabilityMissing,
    LeaveGroupTimedOut,
    ShutdownTimedOut,
)
from tailrace.observe.hooks import Hook, Observer, instrumentations_of
from tailrace.observe.statistics import AppStatistics, Durations, ProducerStatistics
from tailrace.producer.publisher import OutgoingRecord, Publisher
from tailrace.producer.record_producer import RecordProducer
from tailrace.protocol.transactions import PUBLISHING

__all__ = [
    "AppRun",
    "AppRuntime",
    "BoundedStack",
    "KafkaSubstitute",
    "Plan",
    "ShutdownTracker",
    "call_hook",
    "make_plan",
    "wait_for_any",
]

# ---- plan: the handlers by group, with their options filled in and their signatures read -----------------------------


@dataclass(frozen=True)
class Plan:
    """Handlers of an app by consumer group, its hooks, in order of declaration, and its declared delays."""

    by_group: Mapping[str, Sequence[ResolvedHandler]]
    start_hooks: Sequence[Callable[[], object]] = ()
    stop_hooks: Sequence[Callable[[], object]] = ()
    delays: PublishDelays | None = None

    @property
    def dependencies(self) -> Iterable[Dependency]:
        """Dependencies with ``scope="app"``; a dependency of several handlers occurs several times."""
        return (
            dependency
            for handlers in self.by_group.values()
            for handler in handlers
            for dependency in handler.prepared.app_dependencies
        )


def make_plan(declared: Handlers, group_id: str | None, runtime: AppRuntime) -> Plan:
    """Return the plan of the declared handlers and hooks, and of the handler of delayed messages.

    ``group_id`` is the group of handlers that have none; None if each handler must have one.

    Raises:
        ConfigurationError: A signature is invalid, a handler has no group, options contradict each other, a topic
            template is invalid, or several handlers of a group read the same topic and not all of them have ``when=``.
    """
    substitute, overrides = runtime.substitute, runtime.overrides
    if substitute is not None:
        overrides = {**overrides, **substitute.overrides}
    by_group: dict[str, list[ResolvedHandler]] = {}
    for one in declared.declared:
        handler = resolve_handler(one, runtime.config, group_id, overrides)
        by_group.setdefault(handler.group_id, []).append(handler)
    wall_clock = None if substitute is None else substitute.wall_clock
    if (delays := delays_of(runtime.config, group_id, wall_clock)) is not None:
        assert group_id is not None
        of_group = by_group.setdefault(group_id, [])
        of_group.append(delays.handler(runtime.config, of_group))
    for group, handlers in by_group.items():
        Routes(group, handlers)  # Raises an error if handlers conflict.
    plan = Plan(by_group, tuple(declared.start_hooks), tuple(declared.stop_hooks), delays)
    return plan if substitute is None else substitute.adapt(plan)


@dataclass(frozen=True)
class KafkaSubstitute:
    """Substitute for Kafka in one run of an app, for tests and on Spark.

    Attributes:
        connect: returns the source of a group's records.
        open_publisher: returns a context manager that opens the publisher of messages.
        overrides: replacements of providers, in addition to those of the app.
        hooks: receivers of events, in addition to those of the app.
        adapt: called with the app's plan; returns the plan to run in its place.
        wall_clock: returns the time in seconds since the epoch, for delayed messages; None for the host's clock.
    """

    connect: Connect
    open_publisher: Callable[[], AbstractAsyncContextManager[Publisher]]
    overrides: Overrides
    hooks: tuple[Hook, ...]
    adapt: Callable[[Plan], Plan]
    wall_clock: Callable[[], float] | None = None


@dataclass
class AppRuntime:
    """Settings and runs of an app, through which TestApp, Spark, worker processes and commands reach it.

    Attributes:
        config: options of the app itself.
        transactions: options of transactions; None for at-least-once delivery.
        options: options of the consumers, as the user has set them.
        overrides: replacements of providers, by the provider that ``Depends`` names.
        substitute: substitute for Kafka at the next start; None for Kafka itself.
        supervisor: supervisor of the current or last run; None before the first start, and after a start that failed.
        run: current or last run; None before the first start.
    """

    config: AppConfig
    transactions: TransactionOptions | None
    options: dict[str, Any] = field(default_factory=dict)
    overrides: dict[Provider, Provider] = field(default_factory=dict)
    substitute: KafkaSubstitute | None = None
    supervisor: Supervisor | None = None
    run: AppRun | None = None

    def __getstate__(self) -> dict[str, object]:
        """Return the state to pickle: the settings."""
        return {**vars(self), "substitute": None, "supervisor": None, "run": None}

    @property
    def started_run(self) -> AppRun:
        """Current or last run; ConsumerStateError if there is none."""
        if self.run is None:
            raise ConsumerStateError("this app is not started - use `async with app`, or await start() first")
        return self.run

    @contextmanager
    def without_kafka(self, substitute: KafkaSubstitute) -> Iterator[None]:
        """Make the app use ``substitute`` in place of Kafka if it starts within this context."""
        self.substitute = substitute
        try:
            yield
        finally:
            self.substitute = None


# ---- waits for several events ----------------------------------------------------------------------------------------


async def wait_for_any(*events: asyncio.Event) -> None:
    """Wait until at least one of the events is set."""
    async with anyio.create_task_group() as tasks:

        async def wait(event: asyncio.Event) -> None:
            await event.wait()
            tasks.cancel_scope.cancel()

        for event in events:
            tasks.start_soon(wait, event)


# ---- time limits for stop hooks, and for closing app-scoped providers, while an app stops ----------------------------


class ShutdownTracker:
    """Tracks the current step of an app's shutdown, and reports steps that do not end in time.

    A step is the call of a stop hook, or the closing of a provider.

    Attributes:
        failure: error about the first step that did not end in time, or that raised CancelledError without being
            canceled; None if there is none.
    """

    def __init__(self, emit: Callable[[ShutdownTimedOut], None]) -> None:
        self._emit = emit
        self._step, self._began_at = "", 0.0
        self.failure: TailraceError | None = None

    def start_step(self, step: str) -> None:
        """Note that a step has started."""
        self._step, self._began_at = step, asyncio.get_running_loop().time()

    def end_step(self) -> None:
        """Note that the current step has ended."""
        self._step = ""

    def report_timeout(self, *, is_abandoned: bool) -> None:
        """Report that the current step did not end in time: emit an event, set ``failure`` and end the step.

        Without a current step, do nothing.

        Args:
            is_abandoned: True if the step still runs; False if it has ended after its cancellation.
        """
        if not self._step:
            return
        step, waited_s = self._step, asyncio.get_running_loop().time() - self._began_at
        self.end_step()
        self._emit(ShutdownTimedOut(step, waited_s, is_abandoned))
        self.failure = self.failure or TailraceError(
            f"{step} did not end within {waited_s:.1f} s and was {'abandoned' if is_abandoned else 'canceled'}"
            " - limit the time for which it waits, or raise stop_timeout_ms"
        )

    async def call(self, hook: Callable[[], object], deadline: float, cleaning_up_s: float) -> None:
        """Call a stop hook in a separate task, so that a hook that swallows its cancellation can be abandoned.

        The hook is canceled at ``deadline``, an event loop time, and abandoned ``cleaning_up_s`` seconds later.

        Raises:
            Exception: raised by the hook before the deadline.
        """
        name = f"on_stop hook {name_of(hook)}"
        self.start_step(name)
        task = asyncio.ensure_future(call_hook(hook))
        try:
            await asyncio.wait({task}, timeout=max(0.0, deadline - self._began_at))
        finally:
            if not task.done():
                has_ended = await stop_all([task], cleaning_up_s)
                self.report_timeout(is_abandoned=not has_ended)
            elif task.cancelled():
                self.failure = self.failure or TailraceError(
                    f"{name} raised CancelledError without being canceled - let it return or raise another exception"
                )
        # report_timeout() has ended the step if the hook was canceled.
        was_canceled, self._step = not self._step, ""
        if not was_canceled and (error := task_error(task)) is not None:
            raise error


class BoundedStack(AsyncExitStack):
    """Exit stack of one provider, with a time limit for closing the provider.

    The provider is closed by the task that opened it, as task groups and timeouts inside the provider require. At the
    time limit, the closing is canceled.

    Args:
        deadline: returns the event loop time by which the provider must be closed.
    """

    def __init__(self, shutdown: ShutdownTracker, name: str, deadline: Callable[[], float]) -> None:
        super().__init__()
        self._shutdown, self._name, self._deadline = shutdown, name, deadline

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool:
        if kind is GeneratorExit:
            # The app was abandoned and is being garbage collected, so its event loop may be closed.
            return bool(await super().__aexit__(kind, error, trace))
        task = asyncio.current_task()
        assert task is not None
        cancellations, time_limit = task.cancelling(), asyncio.timeout_at(self._deadline())
        self._shutdown.start_step(f"provider {self._name}")
        try:
            async with time_limit:
                return bool(await super().__aexit__(kind, error, trace))
        except TimeoutError:
            if not time_limit.expired():
                raise
            return False
        finally:
            if time_limit.expired() or task.cancelling() > cancellations:
                self._shutdown.report_timeout(is_abandoned=False)
            self._shutdown.end_step()


async def call_hook(hook: Callable[[], object]) -> None:
    """Call a hook, and await the result if it is awaitable."""
    await resolve_call(hook(), f"hook {name_of(hook)}")


# ---- one run of an app: start, handling of records, stop -------------------------------------------------------------

# The values up to _ORDERLY_DEADLINE are shares of ``stop_timeout_ms``. Deadlines count from the beginning of the stop.
_HANDLERS_DEADLINE = 0.5
"""Deadline at which handlers that still run are canceled, unless ``rebalance_drain_ms`` is shorter."""
_CLEANUP_TIME = 0.1
"""Time for canceled handlers to clean up."""
_LEAVE_DEADLINE = 0.7
"""Deadline of the last commits and of the LeaveGroup requests."""
_HOOKS_DEADLINE = 0.75
"""Deadline at which stop hooks that still run are canceled."""
_LATE_HOOKS_TIME = 0.025
"""Time that is divided equally among the stop hooks.

A hook may run at least for its part of this time, even after ``_HOOKS_DEADLINE``, before it is canceled. A canceled
hook has as much time again to clean up.
"""
_LATE_PROVIDER_TIME = 0.05
"""Minimum time to close the provider of each app-scoped dependency, even after ``_ORDERLY_DEADLINE``."""
_ORDERLY_DEADLINE = 0.8
"""End of the orderly stop, at which everything else that still runs is canceled."""
_MAX_PAUSE_MS = 10_000
"""Maximum pause in milliseconds between two attempts to reach a broker."""


class AppRun:
    """Single run of an app, from its start to its stop.

    Attributes:
        consumer_events: state of the groups and brokers.
        failure: error that ended the run, or None.
        is_over: event that is set when the run has ended.
        is_ending: True from the beginning of the stop on; no more records are started then.
        groups: started groups; empty before a broker was reached, and after the run.
        publisher: publisher of the app; None before a broker was reached, and after the run.
        delays: declared delays of delayed messages; None if there are none.
        left_behind: names of handlers that were canceled by the stop and still run.
        shutdown: tracks the calls of stop hooks and the closing of providers.

    Raises:
        ConfigurationError: a signature of a handler is invalid, or options contradict each other.
    """

    def __init__(self, declared: Handlers, runtime: AppRuntime) -> None:
        config = self._config = resolve(runtime.options)
        self._plan = make_plan(declared, config.group_id, runtime)
        self.consumer_events: ConsumerEvents = ConsumerEvents(self._plan.by_group)
        substitute = runtime.substitute
        added_hooks = () if substitute is None else substitute.hooks
        hooks = (*cast("tuple[Hook, ...]", config.hooks), *added_hooks, cast("Hook", self.consumer_events))
        self._observer = Observer(hooks, client_id=config.client_id)
        self._kafka = _kafka_access(self._plan, runtime, config, {**runtime.options, "hooks": hooks}, self._observer)
        # With a substitute for Kafka, the start never needs to go on without a broker.
        self._require_broker = runtime.config.require_broker or substitute is not None
        self._stop_s = config.stop_timeout_ms / 1000
        self._stopping_since: float | None = None
        self._has_started = self._is_ready = False
        self.is_ending: bool = False
        self.failure: TailraceError | None = None
        self.is_over: asyncio.Event = asyncio.Event()
        self.groups: list[GroupRuntime] = []
        self.publisher: Publisher | None = None
        self.delays: PublishDelays | None = self._plan.delays
        self.left_behind: list[str] = []
        self._watchdog: Watchdog | None = None
        self.shutdown: ShutdownTracker = ShutdownTracker(self._observer.emit)

    async def run(self, supervisor: Supervisor) -> None:
        """Start the app, handle records until ``supervisor.stopping`` is set, and stop the app.

        Raises:
            TailraceError: the run failed.
        """
        try:
            async with AsyncExitStack() as stack:
                try:
                    await self._run_until_stopped(stack, supervisor)
                except BaseException as error:
                    # Set the failure before the parts are closed, because that may take long.
                    self._report_failure(error)
                    raise
                finally:
                    self._begin_stop()
                    supervisor.stopping.set()
        except (asyncio.CancelledError, KeyboardInterrupt, SystemExit):
            raise
        except BaseException as error:  # noqa: BLE001 - user code may raise any exception
            failure = self._fail(error)
            raise failure from failure.__cause__
        finally:
            self.left_behind = [name for group in self.groups for name in group.left_behind]
            self.failure = self.failure or self.shutdown.failure
            self.is_over.set()
            self.publisher, self.groups = None, []

    async def wait_for_starts(self) -> None:
        """Wait until records that are written to the groups' partitions from then on are handled."""
        await asyncio.gather(*(one.wait_for_starts() for one in self._consumers))

    @property
    def _consumers(self) -> list[SinkConsumer]:
        return [group.source.consumer for group in self.groups if group.source.consumer is not None]

    @property
    def time_to_stop(self) -> tuple[float, float]:
        """Time in seconds for the orderly stop, and then to cancel everything that still runs."""
        # Before the groups have started, there are no records to finish, so the stop need not be orderly.
        orderly_s = self._stop_s * _ORDERLY_DEADLINE if self._has_started else 0.0
        return orderly_s, self._stop_s - orderly_s

    def handler_in(self, task: asyncio.Task[Any] | None) -> str | None:
        """Return the name of the handler that runs in ``task``; None if no handler does. Thread-safe."""
        return None if task is None else next(filter(None, (one.handler_in(task) for one in self.groups)), None)

    @property
    def vitals(self) -> Vitals:
        """Current state for health checks."""
        slowest_s, slowest = max((group.slowest for group in self.groups), default=(0.0, ""))
        return Vitals(
            is_started=self._has_started,
            is_ending=self.is_ending,
            was_assigned=self.consumer_events.assigned.is_set(),
            max_poll_interval_s=self._config.max_poll_interval_ms / 1000,
            fatal_error="" if self.failure is None else str(self.failure),
            loop_blocked_s=0.0 if self._watchdog is None else self._watchdog.blocked_s,
            slowest_handler=slowest,
            slowest_handler_s=slowest_s,
            overdue_handlers=tuple(name for group in self.groups for name in group.overdue),
            broker_error=self.consumer_events.broker_error,
            start_delays=next(filter(None, (one.start_delays for one in self._consumers)), ""),
            is_rebalancing=self.consumer_events.is_rebalancing,
            assignment_fault=self.consumer_events.assignment_fault,
            waiting=sum(group.waiting for group in self.groups),
            unreadable=tuple(text for group in self.groups for text in group.unreadable),
            stalled_s=max((group.stalled_s for group in self.groups), default=0.0),
        )

    def statistics(self, health: Health) -> AppStatistics:
        """Return the statistics of this run."""
        groups, watchdog = self.groups, self._watchdog
        return AppStatistics(
            is_live=health.is_live,
            is_ready=health.is_ready,
            handlers=tuple(handler for group in groups for handler in group.handler_statistics()),
            groups=tuple(group.statistics() for group in groups),
            consumers=tuple(one for group in groups if (one := group.consumer_statistics()) is not None),
            producers=self._kafka.producers(),
            loop_lag=Durations() if watchdog is None else watchdog.lag,
            loop_blocked_s=0.0 if watchdog is None else watchdog.blocked_s,
        )

    # ---- inside ------------------------------------------------------------------------------------------------

    async def _run_until_stopped(self, stack: AsyncExitStack, supervisor: Supervisor) -> None:
        opened: Opened = {}
        for one in self._plan.dependencies:
            bounded = BoundedStack(self.shutdown, one.name, self._provider_deadline)
            opened = await open_into(await stack.enter_async_context(bounded), [one], None, opened)
        self._start_watchdog(stack)
        if not self._require_broker:
            self._set_ready(supervisor)
        await self._start_groups(stack, opened, supervisor.stopping)
        self._set_ready(supervisor)
        await self._handle_until(supervisor.stopping)

    def _set_ready(self, supervisor: Supervisor) -> None:
        self._is_ready = True
        supervisor.ready.set()

    def _report_failure(self, error: BaseException) -> None:
        """Set ``failure``; emit an event if ``App.start()`` has returned, because otherwise it raises the failure."""
        causes: Iterable[BaseException | None] = [error]
        if isinstance(error, asyncio.CancelledError):
            # SystemExit in a handler makes asyncio cancel all tasks, including this task.
            causes = (group.failure for group in self.groups)
        cause = next(filter(None, causes), None)
        if cause is None:
            return
        failure = self._fail(cause)
        if self._is_ready:
            self._observer.emit(AppFailed(str(failure), failure))

    def _fail(self, error: BaseException) -> TailraceError:
        self.failure = self.failure or as_tailrace_error(error, "the app ended: {}")
        return self.failure

    def _begin_stop(self) -> None:
        """Note that the stop has begun now, unless it has begun already."""
        if not self.is_ending:
            self.is_ending, self._stopping_since = True, asyncio.get_running_loop().time()

    async def _start_groups(self, stack: AsyncExitStack, opened: Opened, stopping: asyncio.Event) -> None:
        async def open_publisher(into: AsyncExitStack) -> None:
            publisher = await into.enter_async_context(self._kafka.open_publisher())
            self.publisher = instrumented(publisher, instrumentations_of(self._observer))

        async def start_groups(into: AsyncExitStack) -> None:
            assert self.publisher is not None
            parts = AppParts(opened, self.publisher, self.delays)
            groups = [
                GroupRuntime(group_id, bound_handlers, parts, self._observer, self._kafka.connect)
                for group_id, bound_handlers in self._plan.by_group.items()
            ]
            started: list[GroupRuntime] = []
            into.push_async_callback(self._stop_groups, started)
            for group in groups:
                started.append(group)
                await group.start()
            self.groups, self._has_started = groups, True
            if not groups:
                # An app that only publishes is ready without an assignment.
                self.consumer_events.assigned.set()

        if not await self._open_when_reachable(open_publisher, stack, stopping):
            return
        stack.push_async_callback(self._call_stop_hooks)
        for hook in self._plan.start_hooks:
            await call_hook(hook)
        await self._open_when_reachable(start_groups, stack, stopping)

    async def _open_when_reachable(
        self,
        open_part: Callable[[AsyncExitStack], Awaitable[None]],
        stack: AsyncExitStack,
        stopping: asyncio.Event,
    ) -> bool:
        """Open a part of the app that needs a broker; return False if the app is stopped before a broker answers.

        With ``require_broker=False``, try again until a broker answers. ``stack`` closes the part.

        Raises:
            BrokerConnectionError: no broker answers, and ``require_broker`` is True.
        """
        backoff = Backoff.of_ms(self._config.retry_backoff_ms, _MAX_PAUSE_MS)
        failures = 0
        while not stopping.is_set():
            try:
                async with AsyncExitStack() as attempt:
                    await open_part(attempt)
                    stack.push_async_exit(attempt.pop_all())
                    return True
            except BrokerConnectionError as error:
                if self._require_broker:
                    raise
                failures += 1
                pause_s = backoff.pause_s(failures, random.random())  # noqa: S311 - for jitter
                self._observer.emit(BrokersUnavailable(str(error), pause_s, error))
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(pause_s):
                    await stopping.wait()
        return False

    def _start_watchdog(self, stack: AsyncExitStack) -> None:
        loop = asyncio.get_running_loop()
        self._watchdog = Watchdog(
            loop,
            self._config.heartbeat_interval_ms / 1000,
            running_handler=lambda: self.handler_in(asyncio.current_task(loop)),
            on_event=self._observer.emit,
        )
        self._watchdog.start()
        stack.callback(self._watchdog.stop)

    async def _handle_until(self, stopping: asyncio.Event) -> None:
        drain_s = min(self._config.rebalance_drain_ms / 1000, self._stop_s * _HANDLERS_DEADLINE)
        async with anyio.create_task_group() as tasks:
            for group in self.groups:
                tasks.start_soon(group.run, self._stop_s * _CLEANUP_TIME)
            await stopping.wait()
            self._begin_stop()
            async with anyio.create_task_group() as endings:
                for group in self.groups:
                    endings.start_soon(group.finish, drain_s)
            tasks.cancel_scope.cancel()

    async def _stop_groups(self, groups: Iterable[GroupRuntime]) -> None:
        """Commit and leave all groups concurrently, at most until ``_LEAVE_DEADLINE``.

        Raises:
            Exception: the first error of a group.
        """

        async def stop_group(group: GroupRuntime) -> None:
            try:
                await group.source.stop()
            except asyncio.CancelledError:
                self._observer.emit(LeaveGroupTimedOut(group.group_id))
                raise

        results: list[BaseException | None] = []
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout_at(self._at(_LEAVE_DEADLINE)):
                # A second cancellation of the stop must reach the groups, too: gather passes it on, a task group does
                # not.
                results = await asyncio.gather(*map(stop_group, groups), return_exceptions=True)
        for error in results:
            if error is not None:
                raise error

    async def _call_stop_hooks(self) -> None:
        """Call each stop hook, even if earlier hooks raise or time out.

        Raises:
            Exception: the first error of a hook.
        """
        errors: list[Exception] = []
        hooks, now = self._plan.stop_hooks[::-1], asyncio.get_running_loop().time
        late_hook_s = self._stop_s * _LATE_HOOKS_TIME / max(1, len(hooks))
        for hook in hooks:
            try:
                await self.shutdown.call(hook, max(self._at(_HOOKS_DEADLINE), now() + late_hook_s), late_hook_s)
            except Exception as error:  # noqa: BLE001 - it is raised after the calls of the other hooks
                errors.append(error)
        if errors:
            raise errors[0]

    def _provider_deadline(self) -> float:
        return max(self._at(_ORDERLY_DEADLINE), asyncio.get_running_loop().time() + self._stop_s * _LATE_PROVIDER_TIME)

    def _at(self, share: float) -> float:
        """Return the event loop time at which ``share`` of ``stop_timeout_ms`` has passed."""
        # If parts are closed although no stop has begun, as when the start is retried, the deadlines count from now.
        since = asyncio.get_running_loop().time() if self._stopping_since is None else self._stopping_since
        return since + self._stop_s * share


def _kafka_access(
    plan: Plan, runtime: AppRuntime, config: ConsumerConfig, options: Mapping[str, Any], observer: Observer
) -> KafkaAccess:
    """Return the sources and the publisher of a run: those of Kafka, with transactions, or of the substitute."""
    on_corrupt_batch, transactions, substitute = (
        runtime.config.on_corrupt_batch,
        runtime.transactions,
        runtime.substitute,
    )

    def read(routes: Routes, **changes: object) -> ConsumerSource:
        return ConsumerSource(routes, {**options, "group_id": routes.group_id, **changes}, on_corrupt_batch)

    handlers = list(itertools.chain.from_iterable(plan.by_group.values()))
    producer_config = runtime.config.producer_config(config)
    needs = broker_needs(handlers, config.group_protocol, has_transactions=transactions is not None)

    producers: list[RecordProducer] = []

    async def create_topics() -> None:
        if plan.delays is not None:
            assert config.group_id is not None
            await create_delay_topics(config, Routes(config.group_id, plan.by_group[config.group_id]), observer)

    def open_publisher() -> AbstractAsyncContextManager[Publisher]:
        timeout_s = min(runtime.config.publish_timeout_ms, producer_config.delivery_timeout_ms) / 1000
        producer = RecordProducer(producer_config)
        producers[:] = [producer]
        return _open_publisher(producer, timeout_s, needs, observer, create_topics)

    def statistics() -> tuple[ProducerStatistics, ...]:
        return tuple(found for one in producers if (found := one.statistics()) is not None)

    kafka = KafkaAccess(read, open_publisher, statistics)
    if transactions is not None:
        check_transactions(transactions, config, runtime.options, handlers)
        kafka = with_transactions(kafka, read, transactions, (config, producer_config), observer)
    return kafka if substitute is None else KafkaAccess(substitute.connect, substitute.open_publisher)


@asynccontextmanager
async def _open_publisher(
    producer: RecordProducer,
    timeout_s: float,
    needs: BrokerNeeds,
    observer: Observer,
    create_topics: Callable[[], Awaitable[None]],
) -> AsyncIterator[Publisher]:
    """Start the producer of an app and check what the brokers offer; emit CapabilityMissing for what the app may use.

    ``create_topics`` creates topics to which the producer writes, and is called after the check.

    If publishing is not possible, but the app need not publish, calls of the publisher raise the error.
    """
    is_checked = False

    def check(versions: ClusterVersions) -> None:
        nonlocal is_checked
        for one in needs.check(versions):
            observer.emit(CapabilityMissing(one.reason, one.consequence))
        is_checked = True

    producer.check_versions = check
    async with AsyncExitStack() as stack:
        publisher: Publisher
        try:
            publisher = LimitedPublisher(await stack.enter_async_context(producer), timeout_s)
        except (UnsupportedVersionError, PublishError) as error:
            refusal = error.__cause__
            is_temporary = isinstance(refusal, BrokerError) and refusal.retriable
            if not is_checked or PUBLISHING in needs.required or is_temporary:
                raise
            if refusal is not None:
                observer.emit(CapabilityMissing(str(error), CANNOT_PUBLISH))
            publisher = _UnavailablePublisher(error)
        await create_topics()
        yield publisher


class _UnavailablePublisher:
    """Publisher of an app that reads from brokers to which it cannot publish."""

    def __init__(self, error: TailraceError) -> None:
        self._error = error

    async def publish(self, _record: OutgoingRecord) -> None:
        raise PublishError(f"this app cannot publish: {self._error}") from self._error
