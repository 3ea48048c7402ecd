"""Runner of an app in a Python worker of Spark.

The app runs as with Kafka, with its order of records, retries, codecs, dependencies and producer, but its records come
from Arrow batches. There are two more differences. ``on_failure="pause"`` becomes ``"stop"``, because a paused Spark
task would block the whole query. Batch handlers do not wait for more records.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import replace
from operator import attrgetter
from typing import TypeAlias, cast

from tailrace.app.app import App
from tailrace.app.declare.plan import BoundHandler, Plan
from tailrace.app.dispatch.group_runtime import GroupRuntime
from tailrace.app.kafka_substitute import KafkaSubstitute
from tailrace.app.lifecycle import wait_for_any
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

PartitionRecords: TypeAlias = tuple[TopicPartition, Sequence[Record]]
Results: TypeAlias = list[tuple[Record, object]]
"""Records, and the results of their handlers."""


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
        self._results: dict[tuple[str, int, int], tuple[Record, object]] = {}
        """Results by topic, partition and offset of the record."""

    async def start(self) -> None:
        """Start the app with the Arrow source: open its dependencies and producer.

        Raises:
            TailraceError: as ``App.start`` does.
        """
        substitute = KafkaSubstitute(
            self._connect, self._open_producer, {}, (cast("Hook", self._counter),), self._adapt_plan
        )
        with substitute_kafka(self._app, substitute):
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
            Results since the last call.

        Raises:
            TailraceError: a handler failed for good, or the app failed.
        """
        for partition, slice_records in slices:
            records = _unfinished(slice_records, offset_maps.get(partition))
            self._counter.metrics.records += len(records)
            self._counter.metrics.already_finished += len(slice_records) - len(records)
            if records:
                self._source.put(partition, records)
        await self._wait(until_finished=self._shipment.has_sink)
        return self._pop_results()

    async def finish(self) -> tuple[Results, TaskMetrics]:
        """Wait until all records of the task are finished; return the results since the last call and the metrics.

        Raises:
            TailraceError: a handler failed for good, or the app failed.
        """
        await self._wait(until_finished=True)
        self._check_finished()
        results, metrics = self._pop_results(), self._counter.metrics
        self._source.end_task()
        self._counter.metrics = TaskMetrics()
        self._counter.failed_positions.clear()
        return results, metrics

    # ---- inside ------------------------------------------------------------------------------------------------

    async def _wait(self, *, until_finished: bool) -> None:
        """Wait until all queued records are delivered, or until all of them are finished."""
        running, source = app_run_of(self._app), self._source
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

    def _pop_results(self) -> Results:
        """Return the results of records that have not failed, and clear all results."""
        failed = self._counter.failed_positions
        results = [one for position, one in self._results.items() if position not in failed]
        self._results.clear()
        return results

    def _connect(self, _routes: Routes) -> Source:
        return self._source

    def _open_producer(self) -> AbstractAsyncContextManager[Publisher]:
        return Producer(resolve(self._app.options))

    def _adapt_plan(self, plan: Plan) -> Plan:
        """Return the plan of the handlers to run, with the options that a task needs."""
        selected = {id(self._app.declared[index]) for index in self._shipment.handler_indices}
        collecting = (cast("Middleware", self._collect_results),) if self._shipment.has_sink else ()
        adapted_handlers: list[BoundHandler] = []
        for one in plan.by_group[self._shipment.group_id]:
            handler, resolved = one.handler, one.resolved
            if id(handler) not in selected:
                continue
            if resolved.on_failure == "pause":
                resolved = replace(resolved, on_failure="stop")
            if handler.batch is not None:
                # To wait for more records would only delay the task.
                handler = replace(handler, batch=replace(handler.batch, max_wait_ms=0))
            resolved = replace(resolved, middleware=(*collecting, *resolved.middleware))
            adapted_handlers.append(BoundHandler(handler, one.prepared, resolved))
        adapted = replace(plan, by_group={self._shipment.group_id: adapted_handlers})
        self.stop_runs_user_code = bool(adapted.stop_hooks) or any(one.closes for one in adapted.dependencies)
        return adapted

    def _collect_results(self, call: Handle) -> Handle:
        """Return ``call``, wrapped so that its results are kept; this method is a middleware."""
        results = self._results

        async def collect(record: Record) -> object:
            result = await call(record)
            if result is not None:
                # A record that is retried keeps only its last result.
                results[record.topic, record.partition, record.offset] = record, result
            return result

        return collect


def _unfinished(records: Sequence[Record], offset_map: OffsetMap | None) -> Sequence[Record]:
    """Return the records that the offset map does not list as finished; ``records`` may be in any order."""
    if offset_map is None or not records or min(map(_offset, records)) >= offset_map.limit:
        return records
    return [record for record in records if not offset_map.is_finished(record.offset)]
