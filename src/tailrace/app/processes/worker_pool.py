"""WorkerPool: one App in several processes, which share the partitions of the App's groups."""

from __future__ import annotations

import asyncio
import itertools
import signal
from pathlib import Path
from types import TracebackType
from typing import Any, Literal, Self, cast

import anyio
from typing_extensions import TypedDict, Unpack

from tailrace.app.app import split_app_name
from tailrace.app.health.checks import Check, Health
from tailrace.app.health.endpoints import ASGIApp, HealthEndpoints, LagReport, health_app, lag_report
from tailrace.app.lifecycle import wait_for_any
from tailrace.app.processes.messages import FromChild
from tailrace.app.processes.supervised_process import (
    MARGIN_S,
    ProcessExit,
    SupervisedProcess,
    pickled,
    set_ready_when_settled,
)
from tailrace.app.processes.worker_plan import check_count
from tailrace.config import ConsumerOptions, check_names, hide_secrets, resolve
from tailrace.consumer.supervisor import Supervisor, as_tailrace_error
from tailrace.errors import (
    ConfigurationError,
    ConsumerStateError,
    FencedMemberError,
    HandlerFailedError,
    TailraceError,
)
from tailrace.observe.hooks import Hook, Observer
from tailrace.observe.log_format import LogFormat
from tailrace.observe.statistics import PoolStatistics
from tailrace.signals import handle_signals
from tailrace.values import robust_repr

__all__ = ["WorkerPool", "WorkerSpec", "run_reloading"]

_MODULE = "tailrace.app.processes.worker_process"
_FATAL = (ConfigurationError, HandlerFailedError, FencedMemberError)
"""Errors after which a worker is not restarted, because they would recur or are meant to end the app."""

_pools = itertools.count(1)

LogLevel = Literal["debug", "info", "warning", "error"]


class WorkerSpec(TypedDict):
    """Settings that the pool sends to the process of a worker."""

    app: str
    workers: int
    pool: int
    """Number of the pool among the pools of its process."""
    log_level: LogLevel | None
    log_format: LogFormat
    options: ConsumerOptions


class WorkerPool:
    """App in several processes: ``async with WorkerPool("shop:billing", workers=4): ...``, or ``run()``.

    Each worker is a static member of the app's groups and keeps its ``group_instance_id``. A worker that dies is
    restarted, and gets its partitions back if it joins the group again within the session timeout. The pauses before
    restarts grow while a worker keeps dying. A fatal error of a worker ends the pool: ConfigurationError,
    FencedMemberError, or HandlerFailedError with ``on_failure="stop"``. The workers end with the pool, even if the
    process of the pool is killed.

    Args:
        app: name of the App, such as ``"shop:billing"``.
        workers: number of processes.
        log_level: level of the workers' log on stderr; with None, the app's module configures logging.
        log_format: format of the workers' log: "console", with the number of the worker before each line, or "json",
            with the number in the field ``worker``.
        stop_on_fatal_error: True to end the pool after a fatal error; False to stop only the failed worker, until
            ``renew`` is called.
        options: options of the app in each worker; ``hooks`` are called in this process, with events about the workers.

    Raises:
        ConfigurationError: an argument is invalid.
    """

    def __init__(
        self,
        app: str,
        *,
        workers: int,
        log_level: LogLevel | None = None,
        log_format: LogFormat = "console",
        stop_on_fatal_error: bool = True,
        **options: Unpack[ConsumerOptions],
    ) -> None:
        options = hide_secrets(options)
        split_app_name(app)
        check_count("workers", workers)
        app_options = cast("dict[str, Any]", options)
        check_names(app_options)
        # The options are checked as if the app sets a group_id, which only the workers know.
        resolve(app_options if "group_id" in app_options else {**app_options, "group_id": "the app's"})
        self._observer = Observer(cast("tuple[Hook, ...]", tuple(app_options.pop("hooks", ()))))
        pickled(app_options)  # This raises if the options cannot be sent to the workers.
        self._spec: WorkerSpec = {
            "app": app,
            "workers": workers,
            "pool": next(_pools),
            "log_level": log_level,
            "log_format": log_format,
            "options": options,
        }
        self._stop_on_fatal_error, self._options = stop_on_fatal_error, options
        self._had_assignment: set[int] = set()
        """Indices of the workers that died after they had been ready."""
        self._processes = [SupervisedProcess(worker, _MODULE, self, self._observer) for worker in range(workers)]
        self._supervisor: Supervisor | None = None
        self._failure: TailraceError | None = None

    @robust_repr
    def __repr__(self) -> str:
        state = "new" if self._supervisor is None else "started"
        return f"<WorkerPool of {len(self._processes)} for {self._spec['app']} {state}>"

    @property
    def pids(self) -> tuple[int, ...]:
        """Ids of the running processes."""
        return tuple(one.child.pid for one in self._processes if one.child is not None)

    def health(self) -> Health:
        """Return the health of the workers.

        A worker that keeps dying is degraded; if it was never ready, it is starting.
        """
        if self._failure is not None:
            return Health.of([Check("pool", "failed", str(self._failure))])
        if self._supervisor is None:
            return Health.of([Check("pool", "starting")])
        if self._supervisor.stopping.is_set():
            return Health.of([Check("pool", "stopping", "workers are stopping or have stopped")])
        return Health.of(one.check() for one in self._processes)

    async def statistics(self, *, timeout_ms: int = 1_000) -> PoolStatistics:
        """Return the statistics of each worker.

        Args:
            timeout_ms: Maximum time in milliseconds to wait for the workers. The statistics of a worker are None if it
                does not answer, because it starts or its event loop is blocked.
        """
        found = await asyncio.gather(*(one.statistics(timeout_ms / 1000) for one in self._processes))
        return PoolStatistics(
            workers=dict(enumerate(found)), restarts={one.worker: one.deaths for one in self._processes}
        )

    @property
    def health_app(self) -> ASGIApp:
        """ASGI app that answers ``/livez``, ``/readyz`` and ``/lag`` for all workers."""
        return health_app(self.health, self._get_lag)

    @property
    def endpoints(self) -> HealthEndpoints:
        """Answers of ``health_app``, for servers without ASGI."""
        return HealthEndpoints(self.health, self._get_lag)

    async def _get_lag(self) -> LagReport:
        return lag_report(filter(None, (await self.statistics()).workers.values()))

    # ---- start and stop ----------------------------------------------------------------------------------------

    async def start(self) -> None:
        """Start the workers, and wait until each of them has started its app or has died once.

        Raises:
            ConfigurationError: the app cannot run in a worker.
            TailraceError: a worker has ended with another fatal error.
            ConsumerStateError: ``start`` was called before.
        """
        if self._supervisor is not None:
            raise ConsumerStateError("this pool was started before - create a new pool")
        self._supervisor = Supervisor(self._run_processes, f"tailrace pool of {self._spec['app']}")
        await self._supervisor.start()

    async def stop(self) -> None:
        """Stop all workers; kill workers that still run five seconds after ``stop_timeout_ms``.

        Raises:
            TailraceError: the pool has failed.
        """
        if self._supervisor is None:
            return
        longest_s = max(one.stop_timeout_s for one in self._processes)
        await self._supervisor.stop(longest_s + 2 * MARGIN_S)
        if self._failure is not None:
            raise self._failure

    async def wait_ready(self) -> None:
        """Wait until each worker has its first assignment, even an empty one.

        Raises:
            ConsumerStateError: the pool is not started, or was stopped before all workers were ready.
            TailraceError: the pool failed before all workers were ready.
        """
        if self._supervisor is None:
            raise ConsumerStateError("this pool is not started - use `async with pool`, or await start() first")
        for one in self._processes:
            await wait_for_any(one.ready, self._supervisor.stopping)
        if self._failure is not None:
            raise self._failure
        if not all(one.ready.is_set() for one in self._processes):
            raise ConsumerStateError("this pool has ended before its workers were ready - create a new pool")

    def renew(self) -> None:
        """Restart all workers, so that they import the app's modules again."""
        self._had_assignment.clear()
        for one in self._processes:
            one.renew()

    async def run(self) -> None:
        """Run the workers until SIGTERM, SIGINT, or an error that ends the pool; a second signal kills the workers.

        Raises:
            TailraceError: the pool failed.
        """
        with handle_signals((signal.SIGTERM, signal.SIGINT), self._stop_soon, self._kill_workers):
            try:
                await self.start()
                assert self._supervisor is not None
                await self._supervisor.stopping.wait()
            finally:
                await self.stop()

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.stop()

    # ---- called by the processes -------------------------------------------------------------------------------

    def spec(self, worker: int, start: int) -> WorkerSpec:  # noqa: ARG002 - part of the public surface
        """Return the settings of a worker; a worker that was ready does not reset its offsets again."""
        if worker not in self._had_assignment:
            return self._spec
        again: ConsumerOptions = {**self._options, "reset_offset_on_start": False}
        return {**self._spec, "options": again}

    def on_message(self, start: int, message: FromChild) -> None:
        """Do nothing; the supervised process has already processed the message."""

    def on_exit(self, death: ProcessExit, pause_s: float) -> float | None:
        """Return the pause before a dead worker is restarted; None after a fatal error, which also ends the pool.

        With ``stop_on_fatal_error=False``, the pool continues, and the worker waits for ``renew``.
        """
        if self._processes[death.worker].ready.is_set():
            self._had_assignment.add(death.worker)
        if not isinstance(death.error, _FATAL):
            return pause_s
        if self._stop_on_fatal_error:
            self._failure = self._failure or death.error
            assert self._supervisor is not None
            self._supervisor.stopping.set()
        return None

    # ---- inside ------------------------------------------------------------------------------------------------

    async def _run_processes(self, supervisor: Supervisor) -> None:
        try:
            async with anyio.create_task_group() as tasks:
                for one in self._processes:
                    tasks.start_soon(one.run)
                tasks.start_soon(set_ready_when_settled, self._processes, supervisor)
                await supervisor.stopping.wait()
                for one in self._processes:
                    one.end()
        except ExceptionGroup as errors:
            self._failure = as_tailrace_error(errors, "the pool ended: {}")
        finally:
            supervisor.stopping.set()
        if self._failure is not None:
            raise self._failure

    def _stop_soon(self) -> None:
        if self._supervisor is not None:
            self._supervisor.stopping.set()

    def _kill_workers(self) -> None:
        for one in self._processes:
            if one.child is not None:
                one.child.kill()


# ---- restart of workers when a source file changes, for development --------------------------------------------------

_QUIET_MS = 50
"""Milliseconds without another change after which the workers are restarted."""


async def run_reloading(pool: WorkerPool, folder: Path) -> None:
    """Run a pool until it ends, and restart the workers whenever a Python file in ``folder`` changes.

    Raises:
        TailraceError: the pool failed.
    """
    from watchfiles import PythonFilter, awatch  # noqa: PLC0415 - an optional package, which only --reload needs

    ended = anyio.Event()
    async with anyio.create_task_group() as tasks:

        async def restart_on_changes() -> None:
            async for _ in awatch(folder, watch_filter=PythonFilter(), stop_event=ended, step=_QUIET_MS):
                pool.renew()

        tasks.start_soon(restart_on_changes)
        try:
            await pool.run()
        finally:
            ended.set()
