"""Function that runs in Spark's Python workers: it takes Arrow batches of records, and yields rows.

The app runs as with Kafka, with its order of records, retries, codecs, dependencies and producer, but its records come
from Arrow batches. There are two more differences. ``on_failure="pause"`` becomes ``"stop"``, because a paused Spark
task would block the whole query. Batch handlers do not wait for more records.

A worker process keeps one event loop and one running app from task to task. If the stop of the app runs user code, the
app is stopped at the end of each task, before the batch is committed. Otherwise, it is stopped after an idle time and
on the signals that end a worker, because Spark ends its workers without cleanup.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import json
import logging
import os
import signal
import threading
import time
from collections import deque
from collections.abc import Callable, Coroutine, Iterable, Iterator, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import replace
from importlib import import_module
from operator import attrgetter
from pathlib import Path
from types import FrameType, TracebackType
from typing import TYPE_CHECKING, Any, NamedTuple, Self, TypeAlias, TypeVar, cast

from tailrace.app.app import App
from tailrace.app.dispatch.group_runtime import GroupRuntime
from tailrace.app.lifecycle import KafkaSubstitute, Plan, wait_for_any
from tailrace.app.options import Handle, Middleware
from tailrace.app.sources import HandlerGroup, Source
from tailrace.app.topics.routes import Routes
from tailrace.config import resolve
from tailrace.consumer.partition import Partition
from tailrace.context_managers import contextmanager
from tailrace.core.offset_map import OffsetMap
from tailrace.core.progress import Lease
from tailrace.errors import (
    BrokerConnectionError,
    ConfigurationError,
    DeadLetterError,
    HandlerFailedError,
    TailraceError,
)
from tailrace.observe.hooks import Hook, Instrumentation
from tailrace.producer.publisher import OutgoingRecord, Published, Publisher
from tailrace.producer.record_producer import RecordProducer
from tailrace.records import Record, TopicPartition
from tailrace.spark.loop_thread import LoopThread
from tailrace.spark.worker.entry import portable
from tailrace.spark.worker.rows import arrays_of, metrics_row, records_of, rows_of, slices_of, with_status
from tailrace.spark.worker.shipment import Shipment, ShippedMaps, unpack
from tailrace.spark.worker.task_metrics import FailureCounter, TaskMetrics, error_of, is_permanent
from tailrace.spark.worker.thread_runs import ThreadRuns, can_have_runs
from tailrace.user_exceptions import error_text, message_of, traceback_of

if TYPE_CHECKING:
    from pyspark.sql.types import DataType

__all__ = ["AppRunner", "ArrowSource", "Results", "expression_function", "run_expression", "run_task", "task_function"]

# ---- source ----------------------------------------------------------------------------------------------------------

_MAX_IN_FLIGHT = 20_000
"""Maximum number of delivered records that are not finished: two of Spark's Arrow batches."""


class ArrowSource:
    """Source that delivers the records of a task to one handler group.

    The source commits nothing, because the driver commits a batch when all its tasks have ended.
    """

    def __init__(self) -> None:
        self._partitions: dict[TopicPartition, Partition] = {}
        self._slices: deque[tuple[Partition, Sequence[Record]]] = deque()
        """Queued records, at most one list for each partition."""
        self._handler_group: HandlerGroup | None = None
        self._epochs = 0
        """Number of assignment epochs so far; each partition of each task is one epoch."""
        self.changed = asyncio.Event()
        """Set when records were finished or delivered."""
        self._may_deliver = asyncio.Event()
        """Set when records were queued, or when the handler group may have room again."""
        self._is_halted = False

    @property
    def transactions(self) -> None:
        """None, because tasks of Spark do not run in transactions."""
        return

    # ---- interface of the handler group ------------------------------------------------------------------------

    @property
    def reader(self) -> Self:
        """The source itself."""
        return self

    async def start(self, sink: HandlerGroup) -> int:
        """Store the handler group, and return the maximum number of records in flight."""
        self._handler_group = sink
        return _MAX_IN_FLIGHT

    async def stop(self) -> None:
        """Do nothing: the source has no connections."""

    async def next_slice(self, room_of: Callable[[TopicPartition], int]) -> tuple[Partition, Lease]:
        """Wait until records are queued of a partition with room, and deliver as many of them as ``room_of`` allows.

        Args:
            room_of: function that returns how many more records of a partition may be delivered; 0 for none.
        """
        while True:
            for index, (partition, records) in enumerate(self._slices):
                if self._is_halted or not (room := room_of(partition.topic_partition)):
                    continue
                del self._slices[index]
                delivered = records[:room]
                if room < len(records):
                    self._slices.insert(index, (partition, records[room:]))
                self.changed.set()
                return partition, partition.deliver(delivered, delivered[-1].offset + 1)
            self._may_deliver.clear()
            await self._may_deliver.wait()

    def progressed(self) -> None:
        """Wake ``next_slice``, and the ``AppRunner`` that waits for ``changed``."""
        self._may_deliver.set()
        self.changed.set()

    def halt(self) -> None:
        """Drop queued records and deliver no more."""
        self._is_halted = True
        self._slices.clear()

    def wall_clock(self) -> float:
        """Return the time of this machine in seconds since the epoch."""
        return time.time()

    consumer = None
    """None, because Spark reads the records."""

    # ---- interface of the task ---------------------------------------------------------------------------------

    @property
    def is_empty(self) -> bool:
        """True if all queued records are delivered."""
        return not self._slices

    @property
    def partitions(self) -> list[Partition]:
        """Positions of the partitions of the task."""
        return list(self._partitions.values())

    def put(self, topic_partition: TopicPartition, records: Sequence[Record]) -> None:
        """Queue the next records of a partition."""
        partition = self._partitions.get(topic_partition)
        if partition is None:
            self._epochs += 1
            partition = self._partitions[topic_partition] = Partition(topic_partition, self._epochs)
            partition.begin(records[0].offset)
        for index, (queued, earlier) in enumerate(self._slices):
            if queued is partition:
                # Only one list for each partition keeps its records in order.
                self._slices[index] = (partition, [*earlier, *records])
                break
        else:
            self._slices.append((partition, records))
        self._may_deliver.set()

    def end_task(self) -> None:
        """Forget all partitions and queued records, because the next task may contain the same records."""
        for partition in self._partitions.values():
            if self._handler_group is not None:
                self._handler_group.drop(partition.topic_partition)
            partition.end_epoch()
        self._partitions.clear()
        self._slices.clear()


# ---- app -------------------------------------------------------------------------------------------------------------

_offset, _position = attrgetter("offset"), attrgetter("topic", "partition", "offset")

PartitionRecords: TypeAlias = tuple[TopicPartition, Sequence[Record]]


class Results(NamedTuple):
    """Records in the order in which they were handled, and for each the result of its handler."""

    records: list[Record]
    values: list[Any]


class AppRunner:
    """Runner of an app. The app handles the records of one Spark task, then those of the next.

    Args:
        app: app that is not started yet.
        shipment: the pickled app, and which of its handlers run.

    Attributes:
        stop_runs_user_code: True if the stop of the started app runs user code: the rest of a generator that provides
            a dependency, or an ``on_stop`` hook.
    """

    def __init__(self, app: App, shipment: Shipment) -> None:
        self._app, self._shipment = app, shipment
        self.stop_runs_user_code = False
        self._source = ArrowSource()
        self._counter = FailureCounter()
        self._thread_runs: ThreadRuns | None = None
        """Runs of the handler if it is a plain function, and the only one that is called."""
        self._collected: list[Any] = []
        """Records and results since the last call: ``ResolvedHandler.collected`` of the handlers."""
        self._status: dict[tuple[str, int, int], str] = {}
        """Status of failed and skipped records by topic, partition and offset, for ``pop_status``."""

    async def start(self) -> None:
        """Start the app with the Arrow source: open its dependencies and producer.

        Raises:
            TailraceError: as ``App.start`` does.
        """
        substitute = KafkaSubstitute(
            self._connect, self._open_producer, {}, (cast("Hook", self._counter),), self._adapt_plan
        )
        with self._app.runtime.without_kafka(substitute):
            await self._app.start()

    async def stop(self) -> None:
        """Stop the app.

        Raises:
            TailraceError: the app had failed before.
        """
        await self._app.stop()

    async def handle(self, slices: Iterable[PartitionRecords], offset_maps: ShippedMaps) -> Results:
        """Queue the unfinished records, wait until all are delivered to handlers, and return results.

        If the query writes results to a sink, wait until all records are finished: a record that fails has no results,
        even if an attempt returned some.

        Args:
            slices: lists of records of one partition each.
            offset_maps: offset maps of records to skip, because they are finished.

        Returns:
            Results since the last call that are not None.

        Raises:
            TailraceError: a handler failed for good, or the app failed.
        """
        for topic_partition, slice_records in slices:
            records = _unfinished(slice_records, offset_maps.get(topic_partition))
            self._counter.metrics.records += len(records)
            self._counter.metrics.already_finished += len(slice_records) - len(records)
            if records:
                if self._thread_runs is not None:
                    self._thread_runs.add(topic_partition, records)
                self._source.put(topic_partition, records)
        await self._wait(until_finished=self._shipment.has_sink)
        return self._pop_results()

    async def handle_rows(self, records: Sequence[Record], *, are_in_order: bool) -> Sequence[object]:
        """Handle records in any order of rows, and wait until all are finished.

        The records of a partition are handled in order of their offsets. If an offset occurs several times, its records
        are handled one after another.

        Args:
            records: records of the rows.
            are_in_order: True if all records are of one partition, and each has a higher offset than the one before.

        Returns:
            The results of the records, in the same order; None for a record that has failed.

        Raises:
            ConfigurationError: no handler reads the topic of a record.
            TailraceError: a handler failed for good, or the app failed.
        """
        if not records:
            return []
        self._check_topics({one.topic for one in (records[:1] if are_in_order else records)})
        rounds = [[(records[0].topic_partition, records)]] if are_in_order else _rounds_of(records)
        handled = Results([], [])
        for slices in rounds:
            one = await self.handle(slices, ShippedMaps({}))
            await self.finish()
            handled = Results(handled.records + one.records, handled.values + one.values)
        if handled.records == records:  # fast, because the records are identical
            return handled.values
        if not handled.records:
            return [None] * len(records)
        by_record = dict(zip(map(id, handled.records), handled.values, strict=True))
        return [by_record.get(id(one)) for one in records]

    async def finish(self) -> tuple[Results, TaskMetrics]:
        """Wait until all records of the task are finished; return the results since the last call and the metrics.

        Raises:
            TailraceError: a handler failed for good, or the app failed.
        """
        await self._wait(until_finished=True)
        self._check_finished()
        results, metrics = self._pop_results(), self._counter.metrics
        self._source.end_task()
        if self._thread_runs is not None:
            self._thread_runs.clear()
        self._counter.metrics = TaskMetrics()
        if self._shipment.is_expression:
            self._status |= self._counter.failed_positions
        self._counter.failed_positions.clear()
        return results, metrics

    def pop_status(self) -> dict[tuple[str, int, int], str]:
        """Return the status of the failed and skipped records since the last call by topic, partition and offset."""
        status, self._status = self._status, {}
        return status

    # ---- inside ------------------------------------------------------------------------------------------------

    async def _wait(self, *, until_finished: bool) -> None:
        """Wait until all queued records are delivered, or until all of them are finished."""
        running, source = self._app.runtime.started_run, self._source
        while True:
            source.changed.clear()
            group = self._group
            if group.waiting:
                raise DeadLetterError(
                    f"{group.waiting} records of group {group.group_id!r} failed and cannot be written to their"
                    " dead-letter topic - create the topic, and allow the app to write to it"
                )
            if source.is_empty and (not until_finished or group.is_settled):
                return
            await wait_for_any(source.changed, running.is_over)
            # The app's executor sets ``changed`` while it finishes a record; let it complete this step.
            await asyncio.sleep(0)

    def _check_finished(self) -> None:
        """Check that each record is finished; an app that has failed is idle, but has unfinished records."""
        _ = self._group  # This raises the error that ended the app.
        if unfinished := [one for one in self._source.partitions if one.finished != one.delivered]:
            raise TailraceError(
                f"not all records of {unfinished[0].topic_partition} were handled, so the batch is not committed"
                " - see the executor's log for the cause"
            )

    @property
    def _group(self) -> GroupRuntime:
        """Runtime of the group that handles the records.

        Raises:
            TailraceError: the app has failed, or does not run the group.
        """
        running = self._app.runtime.started_run
        if running.failure is not None:
            raise running.failure
        if not running.groups:
            raise TailraceError(
                f"group {self._shipment.group_id!r} does not run in this worker, so its records were not handled"
                " - see the executor's log for the cause"
            )
        (group,) = running.groups
        return group

    def _pop_results(self) -> Results:
        """Return the results of records that have not failed, and clear all results."""
        records, values, counter = self._collected[::2], self._collected[1::2], self._counter
        self._collected.clear()
        if counter.has_failed_attempts:
            counter.has_failed_attempts = False
            # Instrumentation may raise an error after the result of an attempt; the last result counts.
            last = {
                position: (record, value)
                for record, value in zip(records, values, strict=True)
                if (position := _position(record)) not in counter.failed_positions
            }
            records, values = [record for record, _ in last.values()], [value for _, value in last.values()]
        return Results(records, values)

    def _connect(self, _routes: Routes) -> Source:
        return self._source

    def _check_topics(self, topics: Iterable[str]) -> None:
        shipment = self._shipment
        called = [index for index in shipment.handler_indices if index not in shipment.omitted_indices]
        handlers = [self._app.declared[index] for index in called]
        for topic in topics:
            if not any(topic in one.topics or (one.pattern and one.pattern.fullmatch(topic)) for one in handlers):
                raise ConfigurationError(
                    f"handler {handlers[0].name} does not read the topic {topic!r} of a row - filter the DataFrame, or"
                    " add the topic to the handler"
                )

    def _open_producer(self) -> AbstractAsyncContextManager[Publisher]:
        runtime = self._app.runtime
        producer = RecordProducer(runtime.config.producer_config(resolve(runtime.options)))
        return _PublisherOnDemand(producer) if self._shipment.is_expression else producer

    def _adapt_plan(self, plan: Plan) -> Plan:
        """Return the plan of the handlers to run, with the options that a task needs."""
        selected = {id(self._app.declared[index]) for index in self._shipment.handler_indices}
        shipment = self._shipment
        omitted = {id(self._app.declared[index]) for index in shipment.omitted_indices}
        adapted_handlers = [
            replace(
                one,
                on_failure="stop" if one.on_failure == "pause" else one.on_failure,
                # To wait for more records would only delay the task.
                batch=None if one.batch is None else replace(one.batch, max_wait_ms=0),
                collected=self._collected if shipment.has_sink else None,
            )
            for one in plan.by_group[self._shipment.group_id]
            if id(one.declared) in selected
        ]
        adapted_handlers = [
            replace(one, middleware=(cast("Middleware", _omit_call),), unmatched="skip")
            if id(one.declared) in omitted
            else one
            for one in adapted_handlers
        ]
        hooks = resolve(self._app.options).hooks
        is_instrumented = any(isinstance(one, Instrumentation) for one in hooks)
        if len(adapted_handlers) == 1 and not is_instrumented and can_have_runs(adapted_handlers[0]):
            self._thread_runs = ThreadRuns(adapted_handlers[0])
            adapted_handlers = [self._thread_runs.handler]
        adapted = replace(plan, by_group={self._shipment.group_id: adapted_handlers})
        self.stop_runs_user_code = bool(adapted.stop_hooks) or any(one.closes for one in adapted.dependencies)
        return adapted


def _omit_call(_call: Handle) -> Handle:
    """Return a call without effect for a handler that is not the named one; this function is a middleware."""

    async def call(_record: Record) -> None:
        pass

    return call


class _PublisherOnDemand:
    """Publisher that connects to brokers at the first call, since most handlers with results publish nothing.

    Args:
        producer: producer that is not started yet.
    """

    def __init__(self, producer: RecordProducer) -> None:
        self._producer = producer
        self._is_started = False
        self._lock = asyncio.Lock()

    async def publish(self, record: OutgoingRecord) -> Published | None:
        """Publish one record, as ``RecordProducer`` does."""
        if not self._is_started:
            async with self._lock:
                if not self._is_started:
                    await self._producer.start()
                    self._is_started = True
        return await self._producer.publish(record)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._is_started:
            await self._producer.__aexit__(kind, error, trace)


def _rounds_of(records: Iterable[Record]) -> Iterator[Iterable[PartitionRecords]]:
    """Yield the records by partition and in order of their offsets; a repeated offset is in a later round."""
    rest = records
    while rest:
        by_position: dict[tuple[str, int, int], Record] = {}
        rest = [one for one in rest if by_position.setdefault(_position(one), one) is not one]
        slices: dict[TopicPartition, list[Record]] = {}
        for position in sorted(by_position):
            slices.setdefault(TopicPartition(*position[:2]), []).append(by_position[position])
        yield slices.items()


def _unfinished(records: Sequence[Record], offset_map: OffsetMap | None) -> Sequence[Record]:
    """Return the records that the offset map does not list as finished; ``records`` may be in any order."""
    if offset_map is None or not records or min(map(_offset, records)) >= offset_map.limit:
        return records
    return [record for record in records if not offset_map.is_finished(record.offset)]


# ---- task ------------------------------------------------------------------------------------------------------------

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
        slices = (slices_of(batch, topic, has_one_partition=has_one_partition) for batch in batches)
        yield from run_task(shipment, offset_maps, row_type, slices)

    return portable(handle, shipment.handler_names[0])


def run_task(
    shipment: Shipment,
    offset_maps: ShippedMaps,
    row_type: DataType | None,
    batches: Iterable[Iterable[PartitionRecords]],
) -> Iterator[Any]:
    """Handle the records of one task; yield Arrow batches with the results, and at the end a row with the metrics.

    A permanent error is returned in the metrics.

    Raises:
        TailraceError: a temporary error occurred, such as BrokerConnectionError; Spark runs the task again.
    """
    with _PROCESS.task():
        try:
            runner = _PROCESS.runner_for(shipment)
            for slices in batches:
                results = _PROCESS.call(runner.handle(slices, offset_maps))
                if results.records and row_type is not None:
                    yield rows_of(*results, row_type)
            results, metrics = _PROCESS.call(runner.finish())
            if results.records and row_type is not None:
                yield rows_of(*results, row_type)
            _PROCESS.stop_app_with_user_code()
        except Exception as error:
            _PROCESS.stop_app()
            if not is_permanent(error):
                raise
            metrics = TaskMetrics(error=type(error).__name__, reason=message_of(error))
        except GeneratorExit:
            # Spark needs no more rows: stop the app, which drops the records in flight.
            _PROCESS.stop_app()
            raise
    yield metrics_row(metrics.to_text(), row_type)


# ---- expression ------------------------------------------------------------------------------------------------------


def expression_function(
    shipment: Shipment, row_type: DataType, topic: str | None, *, has_status: bool = False
) -> Callable[[Iterator[Any]], Iterator[Any]]:
    """Return the function for an iterator Arrow UDF, whose last argument is a struct of all columns.

    Args:
        shipment: serialized app.
        row_type: Spark type of the handler's results.
        topic: topic of the records if there is no column ``topic``; None to require the column.
        has_status: True to return the status of each record with its results.
    """
    pa: Any = import_module("pyarrow")  # an extra

    def handle(batches: Any) -> Any:  # noqa: ANN401 - Arrow
        yield from run_expression(shipment, row_type, topic, (rows for *_, rows in batches), has_status=has_status)

    sent: Any = portable(handle, shipment.handler_names[0])
    # Spark selects the kind of UDF by the annotations.
    sent.__annotations__ = {"batches": Iterator[tuple[pa.Array, ...]], "return": Iterator[pa.Array]}
    return cast("Callable[[Iterator[Any]], Iterator[Any]]", sent)


def run_expression(
    shipment: Shipment, row_type: DataType, topic: str | None, batches: Iterable[Any], *, has_status: bool = False
) -> Iterator[Any]:
    """Handle the records of the rows of one task; yield an Arrow array with a list of results for each row.

    All records of a batch are finished before its results are yielded.

    Raises:
        ConfigurationError: a column is missing or has another type.
        HandlerFailedError: a handler failed for good.
        TailraceError: another error occurred.
    """
    failure_file = _failure_of_earlier_attempt()
    with _PROCESS.task():
        try:
            first_offset = 0
            for rows in batches:
                records, are_in_order = records_of(rows, topic, first_offset)
                first_offset += len(records)
                runner = _PROCESS.runner_for(shipment)
                values = _PROCESS.call(runner.handle_rows(records, are_in_order=are_in_order))
                lists, status = arrays_of(records, values, row_type), runner.pop_status()
                if has_status:
                    lists = with_status(lists, [status.get(_position(one), "handled") for one in records], row_type)
                yield lists
            _PROCESS.stop_app_with_user_code()
        except BaseException as error:
            # In case of GeneratorExit, Spark needs no more rows; the records in flight are dropped.
            _PROCESS.stop_app()
            if not isinstance(error, Exception) or not is_permanent(error):
                raise
            # Spark shows no causes, so the handler's own error becomes a note.
            note = "" if error.__cause__ is None else traceback_of(error.__cause__)
            failure = (type(error).__name__, message_of(error), note)
            if failure_file is not None:
                with contextlib.suppress(OSError):
                    failure_file.write_text(json.dumps(failure), encoding="utf-8")
            raise _permanent_error(*failure) from None


def _failure_of_earlier_attempt() -> Path | None:
    """Return the file for the permanent error of this task; None outside of Spark.

    Spark runs a failed task up to four times, whatever the error. So that no handler runs again in vain, the error is
    stored in a folder that all attempts on this executor share, and that Spark deletes. An attempt on another executor
    calls the handlers again.

    Raises:
        TailraceError: the error of an earlier attempt.
    """
    from pyspark import SparkFiles, TaskContext  # noqa: PLC0415 - an extra

    task = TaskContext.get()
    if task is None:
        return None
    file = Path(SparkFiles.getRootDirectory(), f"tailrace-{task.stageId()}-{task.partitionId()}")
    if task.attemptNumber() and file.exists():
        raise _permanent_error(*json.loads(file.read_text(encoding="utf-8")))
    return file


def _permanent_error(name: str, reason: str, note: str) -> TailraceError:
    error = error_of(name, reason)
    if note:
        error.add_note(note)
    return error


# ---- process ---------------------------------------------------------------------------------------------------------


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
        if threading.current_thread() is threading.main_thread() and not gc.get_freeze_count():
            # Results are many new objects, so Python would often search all that were imported for garbage, which
            # takes longer than the handler.
            gc.freeze()
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
