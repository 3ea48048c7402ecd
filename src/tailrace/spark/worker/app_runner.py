"""App in a Python worker of Spark, which handles the records of tasks.

The app runs unchanged, with its lanes, retries, codecs, dependencies and producer, except that records come from Arrow
batches, and that ``on_failure="pause"`` becomes ``"stop"``: a paused task would block the whole query.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import replace
from operator import attrgetter
from typing import cast

from tailrace.app.app import App
from tailrace.app.declare.plan import BoundHandler, Plan
from tailrace.app.dispatch.group_runtime import GroupRuntime
from tailrace.app.event_waits import wait_for_any
from tailrace.app.kafka_substitute import KafkaSubstitute
from tailrace.app.options import Handle, Middleware
from tailrace.app.sources import Source
from tailrace.app.substitution import app_run_of, substitute_kafka
from tailrace.app.topics.routes import Routes
from tailrace.config import resolve
from tailrace.core.offset_map import OffsetMap
from tailrace.errors import DeadLetterError, TailraceError
from tailrace.observe.hooks import Hook
from tailrace.producer.producer import Producer
from tailrace.producer.publisher import Publisher
from tailrace.records import Record, TopicPartition
from tailrace.spark.worker.arrow_source import ArrowSource
from tailrace.spark.worker.shipment import Shipment
from tailrace.spark.worker.shipped_maps import ShippedMaps
from tailrace.spark.worker.task_metrics import FailureCounter, TaskMetrics

__all__ = ["AppRunner"]

_offset = attrgetter("offset")

Slice = tuple[TopicPartition, Sequence[Record]]
Results = list[tuple[Record, object]]


class AppRunner:
    """App that handles tasks one after another.

    Args:
        app: app that is not started yet.
        shipment: selection of its handlers.

    Attributes:
        closes: True if stopping the started app runs user code: the end of a provider, or ``on_stop``.
    """

    def __init__(self, app: App, shipment: Shipment) -> None:
        self._app, self._shipment = app, shipment
        self.closes = False
        self._source = ArrowSource()
        self._counter = FailureCounter()
        self._results: dict[tuple[str, int, int], tuple[Record, object]] = {}

    async def start(self) -> None:
        """Start the app with the Arrow source: open its dependencies and producer.

        Raises:
            TailraceError: as ``App.start`` does.
        """
        substitute = KafkaSubstitute(
            self._connect, self._open_producer, {}, (cast("Hook", self._counter),), self._adapted
        )
        with substitute_kafka(self._app, substitute):
            await self._app.start()

    async def stop(self) -> None:
        """Stop the app.

        Raises:
            TailraceError: the app had failed before.
        """
        await self._app.stop()

    async def handle(self, slices: Iterable[Slice], done: ShippedMaps) -> Results:
        """Queue records, wait until there is room for more, and return the results so far.

        Raises:
            TailraceError: a handler failed for good, or the app failed.
        """
        for partition, some in slices:
            records = _unfinished(some, done.get(partition))
            self._counter.metrics.records += len(records)
            self._counter.metrics.already_finished += len(some) - len(records)
            if records:
                self._source.put(partition, records)
        # Results for a sink are returned only once their records can no longer fail.
        await self._wait(settled=self._shipment.has_sink)
        return self._take_results()

    async def finish(self) -> tuple[Results, TaskMetrics]:
        """Wait until all records of the task are finished; return the remaining results and the task's metrics.

        Raises:
            TailraceError: a handler failed for good, or the app failed.
        """
        await self._wait(settled=True)
        self._check_finished()
        results, metrics = self._take_results(), self._counter.metrics
        self._source.end_task()
        self._counter.metrics = TaskMetrics()
        self._counter.failed.clear()
        return results, metrics

    # ---- inside ------------------------------------------------------------------------------------------------

    async def _wait(self, *, settled: bool) -> None:
        running, source = app_run_of(self._app), self._source
        while True:
            source.changed.clear()
            group = self._group
            if group.waiting:
                raise DeadLetterError(
                    f"{group.waiting} records of group {group.group_id!r} failed and cannot be written to their"
                    " dead-letter topic - create the topic, and allow the app to write to it"
                )
            if source.is_empty and (not settled or group.is_settled):
                return
            await wait_for_any(source.changed, running.is_over)
            # The executor that reported the last record yields to the loop only after that.
            await asyncio.sleep(0)

    def _check_finished(self) -> None:
        """Check that each record is finished: an executor that has failed is idle, too."""
        _ = self._group  # raises the error that ended the app
        if unfinished := [one for one in self._source.positions if one.finished != one.delivered]:
            raise TailraceError(
                f"not all records of {unfinished[0].partition} were handled, so the batch is not committed"
                " - see the executor's log for the cause"
            )

    @property
    def _group(self) -> GroupRuntime:
        """Runtime of the group that handles the records.

        Raises:
            TailraceError: the app has failed, or does not run the group.
        """
        running = app_run_of(self._app)
        if running.failure is not None:
            raise running.failure
        if not running.groups:
            raise TailraceError(
                f"group {self._shipment.group_id!r} does not run in this worker, so its records were not handled"
                " - see the executor's log for the cause"
            )
        (group,) = running.groups
        return group

    def _take_results(self) -> Results:
        failed = self._counter.failed
        results = [one for position, one in self._results.items() if position not in failed]
        self._results.clear()
        return results

    def _connect(self, _routes: Routes) -> Source:
        return self._source

    def _open_producer(self) -> AbstractAsyncContextManager[Publisher]:
        return Producer(resolve(self._app.options))

    def _adapted(self, plan: Plan) -> Plan:
        chosen = {id(self._app.declared[number]) for number in self._shipment.numbers}
        collecting = (cast("Middleware", self._collecting),) if self._shipment.has_sink else ()
        adapted_handlers: list[BoundHandler] = []
        for one in plan.by_group[self._shipment.group_id]:
            handler, resolved = one.handler, one.resolved
            if id(handler) not in chosen:
                continue
            if resolved.on_failure == "pause":
                resolved = replace(resolved, on_failure="stop")
            if handler.batch is not None:
                # No further records arrive within a task, so waiting for more is useless.
                handler = replace(handler, batch=replace(handler.batch, max_wait_ms=0))
            resolved = replace(resolved, middleware=(*collecting, *resolved.middleware))
            adapted_handlers.append(BoundHandler(handler, one.prepared, resolved))
        adapted = replace(plan, by_group={self._shipment.group_id: adapted_handlers})
        self.closes = bool(adapted.stop_hooks) or any(one.closes for one in adapted.dependencies)
        return adapted

    def _collecting(self, call: Handle) -> Handle:
        results = self._results

        async def collect(record: Record) -> object:
            result = await call(record)
            if result is not None:
                # Keyed by position, so that a retried record has one result.
                results[record.topic, record.partition, record.offset] = record, result
            return result

        return collect


def _unfinished(records: Sequence[Record], done: OffsetMap | None) -> Sequence[Record]:
    """Return the records that the offset map does not list as finished; they need not be sorted by offset."""
    if done is None or not records or min(map(_offset, records)) >= done.limit:
        return records
    return [record for record in records if not done.is_finished(record.offset)]
