"""An app at work in one of Spark's Python workers: what one task hands in is handled as the service would.

Rule of this file: it starts the app as it is, lanes, retries, codecs, dependencies, producer and all; only its records
come from Arrow, and a handler that nobody helps stops the query instead of waiting, as nothing else goes on meanwhile.
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
from tailrace.app.kafka_substitute import KafkaSubstitute
from tailrace.app.options import Handle, Middleware
from tailrace.app.shutdown import first_of
from tailrace.app.sources import Source
from tailrace.app.substitution import running_of, substitute_kafka
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
    """One app, for as many tasks as come, one after the other.

    Args:
        app: not started.
        shipment: what of it is to be run.

    Attributes:
        closes: True once started if stopping the app runs code of its user: the end of a provider, or ``on_stop``.
    """

    def __init__(self, app: App, shipment: Shipment) -> None:
        self._app, self._shipment = app, shipment
        self.closes = False
        self._source = ArrowSource()
        self._counting = FailureCounter()
        self._results: dict[tuple[str, int, int], tuple[Record, object]] = {}

    async def start(self) -> None:
        """Open what handlers depend on, and the producer.

        Raises:
            TailraceError: as ``App.start`` does.
        """
        instead = KafkaSubstitute(
            self._connect, self._open_producer, {}, (cast("Hook", self._counting),), self._adapted
        )
        with substitute_kafka(self._app, instead):
            await self._app.start()

    async def stop(self) -> None:
        """Let go of everything.

        Raises:
            TailraceError: what ended it before.
        """
        await self._app.stop()

    async def take(self, slices: Iterable[Slice], done: ShippedMaps) -> Results:
        """Have these handled; returns when there is room for more, with what handlers have returned so far.

        Raises:
            TailraceError: a handler failed for good, or the app cannot go on.
        """
        for partition, some in slices:
            records = _unfinished(some, done.get(partition))
            self._counting.tally.records += len(records)
            self._counting.tally.passed += len(some) - len(records)
            if records:
                self._source.put(partition, records)
        # What a sink is given may not fail any more.
        await self._until(settled=self._shipment.has_sink)
        return self._returned()

    async def finish(self) -> tuple[Results, TaskMetrics]:
        """Wait until all of the task is done; gives what is left, and what became of it in all.

        Raises:
            TailraceError: a handler failed for good, or the app cannot go on.
        """
        await self._until(settled=True)
        self._check_done()
        results, tally = self._returned(), self._counting.tally
        self._source.end_task()
        self._counting.tally = TaskMetrics()
        self._counting.failed.clear()
        return results, tally

    # ---- inside ------------------------------------------------------------------------------------------------

    async def _until(self, *, settled: bool) -> None:
        running, source = running_of(self._app), self._source
        while True:
            source.news.clear()
            group = self._group
            if group.waiting:
                raise DeadLetterError(
                    f"{group.waiting} records of group {group.group_id!r} failed and no topic takes them"
                    " - their dead-letter topic has to exist, and this app has to be allowed to write to it"
                )
            if source.is_empty and (not settled or group.is_settled):
                return
            await first_of(source.news, running.is_over)
            # Who was the last to be done has been told of it, and gives the loop back next.
            await asyncio.sleep(0)

    def _check_done(self) -> None:
        """Whoever says that a task is done says it of each of its records."""
        _ = self._group  # raises what ended the app
        if undone := [one for one in self._source.positions if one.finished != one.delivered]:
            raise TailraceError(f"{undone[0].partition}: something of it was left undone - the batch counts as not")

    @property
    def _group(self) -> GroupRuntime:
        """What handles the records: without it none is done.

        Raises:
            TailraceError: what ended the app, or that it is not at work.
        """
        running = running_of(self._app)
        if running.failure is not None:
            raise running.failure
        if not running.groups:
            raise TailraceError(
                f"group {self._shipment.group_id!r} is not at work here - what it was given is not done"
            )
        (group,) = running.groups
        return group

    def _returned(self) -> Results:
        failed = self._counting.failed
        results = [one for place, one in self._results.items() if place not in failed]
        self._results.clear()
        return results

    def _connect(self, _routes: Routes) -> Source:
        return self._source

    def _open_producer(self) -> AbstractAsyncContextManager[Publisher]:
        return Producer(resolve(self._app.options))

    def _adapted(self, plan: Plan) -> Plan:
        chosen = {id(self._app.declared[number]) for number in self._shipment.numbers}
        keeping = (cast("Middleware", self._keeping),) if self._shipment.has_sink else ()
        ready: list[BoundHandler] = []
        for one in plan.by_group[self._shipment.group_id]:
            handler, resolved = one.handler, one.resolved
            if id(handler) not in chosen:
                continue
            if resolved.on_failure == "pause":
                resolved = replace(resolved, on_failure="stop")
            if handler.batch is not None:
                # What there is of a task is there: nobody waits for more.
                handler = replace(handler, batch=replace(handler.batch, max_wait_ms=0))
            resolved = replace(resolved, middleware=(*keeping, *resolved.middleware))
            ready.append(BoundHandler(handler, one.prepared, resolved))
        adapted = replace(plan, by_group={self._shipment.group_id: ready})
        self.closes = bool(adapted.ending) or any(one.closes for one in adapted.dependencies)
        return adapted

    def _keeping(self, call: Handle) -> Handle:
        results = self._results

        async def keep(record: Record) -> object:
            result = await call(record)
            if result is not None:
                # By place: what is tried again is kept once.
                results[record.topic, record.partition, record.offset] = record, result
            return result

        return keep


def _unfinished(records: Sequence[Record], done: OffsetMap | None) -> Sequence[Record]:
    """Without what the group had finished before; for handlers that keep no order, they need not be in order."""
    if done is None or not records or min(map(_offset, records)) >= done.limit:
        return records
    return [record for record in records if not done.is_finished(record.offset)]
