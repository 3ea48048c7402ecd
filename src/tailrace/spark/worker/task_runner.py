"""Function that runs in Spark's Python workers: it takes Arrow batches of records, and yields rows.

A worker process keeps one event loop and one running app from task to task. If the stop of the app runs user code, the
app is stopped at the end of each task, before the batch is committed. Otherwise, it is stopped after an idle time and
on the signals that end a worker, because Spark ends its workers without cleanup.
"""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import logging
import os
import signal
import threading
from collections.abc import Callable, Coroutine, Iterable, Iterator
from types import FrameType
from typing import TYPE_CHECKING, Any, TypeVar

from tailrace.context_managers import contextmanager
from tailrace.errors import BrokerConnectionError, HandlerFailedError, TailraceError
from tailrace.spark.loop_thread import LoopThread
from tailrace.spark.worker.app_runner import AppRunner
from tailrace.spark.worker.records import slices_of
from tailrace.spark.worker.rows import arrow_of, columns_of, rows_of
from tailrace.spark.worker.shipment import Shipment, unpack
from tailrace.spark.worker.shipped_maps import ShippedMaps
from tailrace.spark.worker.task_metrics import METRICS_COLUMN, TaskMetrics, is_permanent
from tailrace.user_exceptions import error_text, message_of

if TYPE_CHECKING:
    from pyspark.sql.types import DataType, StructType

__all__ = ["run_task", "task_function"]

ResultT = TypeVar("ResultT")

_IDLE_S = 30.0
"""Seconds without a task after which the app is stopped; Spark ends an idle worker after a minute."""
_STOP_TIMEOUT_S = 10.0
"""Maximum time of ``stop_app``, in seconds."""


def task_function(
    shipment: Shipment,
    offset_maps: ShippedMaps,
    row_type: DataType | None,
    topic: str | None,
    *,
    has_one_partition: bool,
) -> Callable[[Iterable[Any]], Iterator[Any]]:
    """Return the function for ``mapInArrow``.

    Args:
        shipment: serialized app.
        offset_maps: offset maps of records to skip, because they are finished.
        row_type: Spark type of the handlers' results; None without a sink.
        topic: topic of all records; None if the batches have a column with the topic.
        has_one_partition: True if each task reads one partition.
    """

    def handle(batches: Iterable[Any]) -> Iterator[Any]:
        yield from run_task(shipment, offset_maps, row_type, topic, batches, has_one_partition=has_one_partition)

    return handle


def run_task(  # noqa: PLR0913 - arguments sent with the task
    shipment: Shipment,
    offset_maps: ShippedMaps,
    row_type: DataType | None,
    topic: str | None,
    batches: Iterable[Any],
    *,
    has_one_partition: bool,
) -> Iterator[Any]:
    """Handle the records of one task; yield Arrow batches with the results, and at the end a row with the metrics.

    A permanent error is returned in the metrics.

    Raises:
        TailraceError: a temporary error occurred, such as BrokerConnectionError; Spark runs the task again.
    """
    schema = _arrow_schema(columns_of(row_type))
    with _PROCESS.task():
        try:
            runner = _PROCESS.runner_for(shipment)
            for batch in batches:
                slices = slices_of(batch, topic, has_one_partition=has_one_partition)
                results = _PROCESS.call(runner.handle(slices, offset_maps))
                if results and row_type is not None:
                    yield arrow_of(rows_of(results, row_type), schema)
            results, metrics = _PROCESS.call(runner.finish())
            _PROCESS.stop_app_with_user_code()
            rows = [] if row_type is None else rows_of(results, row_type)
            last = arrow_of([*rows, {METRICS_COLUMN: metrics.to_text()}], schema)
        except Exception as error:
            _PROCESS.stop_app()
            if not is_permanent(error):
                raise
            failure = TaskMetrics(error=type(error).__name__, reason=message_of(error))
            last = arrow_of([{METRICS_COLUMN: failure.to_text()}], schema)
        except GeneratorExit:
            # Spark needs no more rows: stop the app, which drops the records in flight.
            _PROCESS.stop_app()
            raise
    yield last


def _arrow_schema(columns: StructType) -> Any:  # noqa: ANN401 - pyarrow is untyped
    """Return the Arrow schema of Spark columns; times without a zone are in UTC."""
    from pyspark.sql.pandas.types import to_arrow_schema  # noqa: PLC0415 - an extra

    # Versions of Spark without this argument always use UTC.
    has_timezone = "timezone" in inspect.signature(to_arrow_schema).parameters
    return to_arrow_schema(columns, timezone="UTC") if has_timezone else to_arrow_schema(columns)


class _WorkerProcessState:
    """Event loop and running app of a worker process."""

    def __init__(self) -> None:
        self._lock = threading.RLock()
        self._thread: LoopThread | None = None
        self._runner: AppRunner | None = None
        self._shipment: Shipment | None = None
        self._timer: threading.Timer | None = None

    @contextmanager
    def task(self) -> Iterator[None]:
        """Lock the state for one task, and stop the app if no other task follows within the idle time."""
        with self._lock:
            if self._timer is not None:
                self._timer.cancel()
            try:
                yield
            finally:
                self._timer = threading.Timer(_IDLE_S, self._stop_app_if_idle)
                self._timer.daemon = True
                self._timer.start()

    def runner_for(self, shipment: Shipment) -> AppRunner:
        """Return the runner of the shipment's app; if the app does not run yet, stop the previous app and start it.

        Raises:
            ConfigurationError: the app cannot be restored from the shipment.
            TailraceError: as ``App.start`` does.
        """
        if self._runner is not None and self._shipment == shipment:
            return self._runner
        self.stop_app()
        if self._thread is None:
            _prepare_process(self)
        if self._thread is None or self._thread.ended_by is not None:
            self._thread = LoopThread("tailrace")
        runner = AppRunner(unpack(shipment), shipment)
        self.call(runner.start())
        self._runner, self._shipment = runner, shipment
        return runner

    def call(self, coroutine: Coroutine[Any, Any, ResultT]) -> ResultT:
        """Run a coroutine in the loop.

        Raises:
            HandlerFailedError: an asyncio task of the app ended the loop.
        """
        assert self._thread is not None
        try:
            return self._thread.call(coroutine)
        except TailraceError as error:
            cause = self._thread.ended_by
            if cause is None:
                raise
            raise HandlerFailedError(
                f"the app ended the event loop of Spark's worker: {error_text(cause)}"
                " - to end the query, raise an error in a handler with on_failure='stop'"
            ) from error

    def stop_app_with_user_code(self) -> None:
        """Stop the app if its stop runs user code, which may write results that the commit of the batch relies on.

        Raises:
            HandlerFailedError: the stop failed.
            BrokerConnectionError: no broker answers; Spark may run the task again.
        """
        runner = self._runner
        if runner is None or not runner.stop_runs_user_code:
            return
        self._runner = self._shipment = None
        try:
            self.call(runner.stop())
        except (BrokerConnectionError, HandlerFailedError):
            raise
        except TailraceError as error:
            raise HandlerFailedError(
                f"the app failed to stop, so the batch is not committed: {error} - fix on_stop or the providers"
            ) from error

    def stop_app(self) -> None:
        """Stop the running app, if there is one, and ignore its errors."""
        runner, self._runner, self._shipment = self._runner, None, None
        if runner is None:
            return

        async def stop() -> None:
            async with asyncio.timeout(_STOP_TIMEOUT_S):
                await runner.stop()

        # Ignore errors: the error that ended the app has been reported before.
        with contextlib.suppress(TailraceError, TimeoutError):
            self.call(stop())

    def _stop_app_if_idle(self) -> None:
        timer = self._timer
        if self._lock.acquire(blocking=False):
            try:
                if timer is self._timer:
                    self.stop_app()
            finally:
                self._lock.release()


_PROCESS = _WorkerProcessState()


def _prepare_process(process: _WorkerProcessState) -> None:
    """Log warnings to the executor's log, and let the signals that end the process stop the app first."""
    log = logging.getLogger("tailrace")
    if all(isinstance(one, logging.NullHandler) for one in log.handlers):
        handler = logging.StreamHandler()
        handler.setLevel(logging.WARNING)
        handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s tailrace: %(message)s"))
        log.addHandler(handler)

    def end(_number: int, _frame: FrameType | None) -> None:
        process.stop_app()
        os._exit(0)

    if threading.current_thread() is threading.main_thread():
        for name in ("SIGHUP", "SIGTERM"):
            if (number := getattr(signal, name, None)) is not None:  # Windows has no SIGHUP
                signal.signal(number, end)
