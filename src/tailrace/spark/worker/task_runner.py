"""What runs in Spark's Python workers: Arrow batches in, rows out.

Rule of this file: one event loop and one app at work for each worker's process, kept from task to task. An app whose
end runs its user's code is closed at the end of each task, before the batch is committed. Spark ends its workers
without a word, so other apps are closed when there was nothing to do for a while, and on the signals that end them.
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

from tailrace.errors import BrokerConnectionError, HandlerFailedError, TailraceError
from tailrace.spark.loop_thread import LoopThread
from tailrace.spark.worker.app_runner import AppRunner
from tailrace.spark.worker.records import slices_of
from tailrace.spark.worker.rows import arrow_of, columns_of, rows_of
from tailrace.spark.worker.shipment import Shipment, unpacked
from tailrace.spark.worker.shipped_maps import ShippedMaps
from tailrace.spark.worker.task_metrics import COLUMN, TaskMetrics, is_told

if TYPE_CHECKING:
    from pyspark.sql.types import DataType, StructType

__all__ = ["handling", "run_task"]

ResultT = TypeVar("ResultT")

_IDLE_S = 30.0
"""Before Spark ends a worker that has nothing to do, which is after a minute."""
_STOPPING_S = 10.0


def handling(
    shipment: Shipment, done: ShippedMaps, kind: DataType | None, topic: str | None, *, is_of_one: bool
) -> Callable[[Iterable[Any]], Iterator[Any]]:
    """What ``mapInArrow`` is given.

    Args:
        shipment: the app.
        done: what of each partition was finished before.
        kind: of what handlers return; None where nobody wants it.
        topic: that all records are of; None where a column says it.
        is_of_one: each task reads one partition.
    """

    def handle(batches: Iterable[Any]) -> Iterator[Any]:
        yield from run_task(shipment, done, kind, topic, batches, is_of_one=is_of_one)

    return handle


def run_task(  # noqa: PLR0913 - what is sent along
    shipment: Shipment,
    done: ShippedMaps,
    kind: DataType | None,
    topic: str | None,
    batches: Iterable[Any],
    *,
    is_of_one: bool,
) -> Iterator[Any]:
    """Handle what one task has, and say what became of it in its last row.

    Raises:
        BrokerConnectionError: no broker answers; Spark may run the task again.
    """
    schema = _arrow_schema(columns_of(kind))
    with _BENCH.turn():
        try:
            work = _BENCH.work_for(shipment)
            for batch in batches:
                results = _BENCH.call(work.take(slices_of(batch, topic, is_of_one=is_of_one), done))
                if results and kind is not None:
                    yield arrow_of(rows_of(results, kind), schema)
            results, tally = _BENCH.call(work.finish())
            _BENCH.close_user_code()
            rows = [] if kind is None else rows_of(results, kind)
            last = arrow_of([*rows, {COLUMN: tally.to_text()}], schema)
        except Exception as error:
            _BENCH.clear()
            if not is_told(error):
                raise
            last = arrow_of([{COLUMN: TaskMetrics(error=type(error).__name__, reason=str(error)).to_text()}], schema)
        except GeneratorExit:
            # Whoever reads has gone, and what is under way is of no use any more.
            _BENCH.clear()
            raise
    yield last


def _arrow_schema(columns: StructType) -> Any:  # noqa: ANN401 - pyarrow is untyped
    """The columns as Arrow has them; times are instants, and one without a zone is taken as UTC."""
    from pyspark.sql.pandas.types import to_arrow_schema  # noqa: PLC0415 - an extra

    # Older ones have instants in UTC unasked, and know no such argument.
    asks = "timezone" in inspect.signature(to_arrow_schema).parameters
    return to_arrow_schema(columns, timezone="UTC") if asks else to_arrow_schema(columns)


class _WorkerProcessState:
    """Where a worker's process has its loop, and the app that is at work there."""

    def __init__(self) -> None:
        self._lock = threading.RLock()
        self._thread: LoopThread | None = None
        self._work: AppRunner | None = None
        self._of: Shipment | None = None
        self._timer: threading.Timer | None = None

    @contextlib.contextmanager
    def turn(self) -> Iterator[None]:
        """One task's; what is open then stays so for the next one, if it comes soon."""
        with self._lock:
            if self._timer is not None:
                self._timer.cancel()
            try:
                yield
            finally:
                self._timer = threading.Timer(_IDLE_S, self._clear_if_idle)
                self._timer.daemon = True
                self._timer.start()

    def work_for(self, shipment: Shipment) -> AppRunner:
        """The app of this shipment at work; another one that was is closed.

        Raises:
            TailraceError: as ``App.start`` does.
        """
        if self._work is not None and self._of == shipment:
            return self._work
        self.clear()
        if self._thread is None:
            _prepare_process(self)
        if self._thread is None or self._thread.ended_by is not None:
            self._thread = LoopThread("tailrace")
        work = AppRunner(unpacked(shipment), shipment)
        self.call(work.start())
        self._work, self._of = work, shipment
        return work

    def call(self, coroutine: Coroutine[Any, Any, ResultT]) -> ResultT:
        """Run it in the loop.

        Raises:
            HandlerFailedError: something that the app runs there has ended the loop.
        """
        assert self._thread is not None
        try:
            return self._thread.call(coroutine)
        except TailraceError as error:
            by = self._thread.ended_by
            if by is None:
                raise
            raise HandlerFailedError(
                f"what the app runs ended the event loop of Spark's worker: {type(by).__name__}: {by}"
                " - to end the query, raise an error with on_failure='stop'"
            ) from error

    def close_user_code(self) -> None:
        """Close an app that runs its user's code at its end, since that may write what the batch's commit covers.

        Raises:
            HandlerFailedError: it does not close.
            BrokerConnectionError: no broker answers; Spark may run the task again.
        """
        work = self._work
        if work is None or not work.closes:
            return
        self._work = self._of = None
        try:
            self.call(work.stop())
        except (BrokerConnectionError, HandlerFailedError):
            raise
        except TailraceError as error:
            raise HandlerFailedError(
                f"the app failed to close what it opened, so its batch is not committed: {error}"
            ) from error

    def clear(self) -> None:
        """Close what is open."""
        work, self._work, self._of = self._work, None, None
        if work is None:
            return

        async def stop() -> None:
            async with asyncio.timeout(_STOPPING_S):
                await work.stop()

        # What ended it was told when it did; here it is only put away.
        with contextlib.suppress(TailraceError, TimeoutError):
            self.call(stop())

    def _clear_if_idle(self) -> None:
        timer = self._timer
        if self._lock.acquire(blocking=False):
            try:
                if timer is self._timer:
                    self.clear()
            finally:
                self._lock.release()


_BENCH = _WorkerProcessState()


def _prepare_process(bench: _WorkerProcessState) -> None:
    """Of a worker of Spark's: warnings go to the executor's log, and whoever ends it has things closed first."""
    log = logging.getLogger("tailrace")
    if all(isinstance(one, logging.NullHandler) for one in log.handlers):
        said = logging.StreamHandler()
        said.setLevel(logging.WARNING)
        said.setFormatter(logging.Formatter("%(asctime)s %(levelname)s tailrace: %(message)s"))
        log.addHandler(said)

    def end(_number: int, _frame: FrameType | None) -> None:
        bench.clear()
        os._exit(0)

    if threading.current_thread() is threading.main_thread():
        for name in ("SIGHUP", "SIGTERM"):
            if (number := getattr(signal, name, None)) is not None:  # Windows has no SIGHUP
                signal.signal(number, end)
