"""Runs of a plain handler: one hop to a thread handles several records, because a hop takes longer than most handlers.

A plain handler stays in a thread, where it may block, run an event loop of its own and use ``anyio.from_thread``. The
thread handles a record and, as long as calls are short, the records that follow it in the partition. The executor then
calls the handler for each of these, and gets the outcome that is there already.

This changes neither the order nor the number of calls: with ``order_by="partition"``, no other record of the partition
may run before the executor calls the handler for the next one, and a run ends with a record that fails, which the
executor then retries. Since the records after it depend on its outcome, nothing that may fail follows the call:
handlers with middleware, ``publish=``, ``when=``, ``timeout_ms`` or dependencies of a record have no runs, and a run
ends with a record for which the handler returns a ``Message``.
"""

from __future__ import annotations

import asyncio
import functools
import inspect
from bisect import bisect_left
from collections.abc import Callable, Sequence
from contextvars import copy_context
from dataclasses import replace
from operator import attrgetter
from typing import Any, NamedTuple

from tailrace.app.declare.arguments import NOTHING_OPENED, Opened
from tailrace.app.dispatch.threads import Threads, outcome_of
from tailrace.app.handlers import ResolvedHandler
from tailrace.app.publish.encoding import messages_in
from tailrace.awaitables import must_resolve, resolve_call
from tailrace.producer.traces import is_opentelemetry_imported
from tailrace.records import Record, TopicPartition

__all__ = ["ThreadRuns", "can_have_runs"]

_MAX_RUN_S = 0.005
"""Seconds after which a thread handles no other record of the run."""
_GROWTH = 4
"""Factor by which a run may have more records than the one before."""

_offset = attrgetter("offset")
_MISSING = object()


class _Unresolved(NamedTuple):
    """Error of a call, or a result to await."""

    outcome: Any
    is_error: bool


def can_have_runs(handler: ResolvedHandler) -> bool:
    """Return True if a handler is a plain function, handles a partition in order, and only its own calls may fail."""
    prepared = handler.prepared
    options = (handler.batch, handler.when, handler.publish, handler.timeout_ms, prepared.prefetch)
    is_surrounded = handler.middleware or prepared.record_dependencies or any(one is not None for one in options)
    return not prepared.is_async and not is_surrounded and handler.order_by == "partition"


class ThreadRuns:
    """Runs of one plain handler.

    Args:
        handler: handler for which ``can_have_runs`` is true.

    Attributes:
        handler: async handler with the same effect.
    """

    def __init__(self, handler: ResolvedHandler) -> None:
        self._prepared = handler.prepared
        self._call_function = self._call_with_value if self._prepared.sees_values_only else self._bind_and_call
        self.handler = replace(
            handler,
            prepared=replace(handler.prepared, is_async=True, call=self._call, direct_call=None, value_call=None),
        )
        # An attempt after a failure starts even if ``concurrency`` other calls run.
        self._threads, self._places = Threads(), asyncio.Semaphore(handler.concurrency)
        self._records: dict[TopicPartition, Sequence[Record]] = {}
        """Records added last of each partition."""
        self._most = 1
        """Maximum number of records of the next run."""
        self._outcomes: dict[int, object] = {}
        """Results, or instances of _Unresolved, that the executor has not taken yet, by the identity of the record."""

    def add(self, partition: TopicPartition, records: Sequence[Record]) -> None:
        """Add records that the executor handles in this order, after those of the partition that were added before."""
        self._records[partition] = records

    def clear(self) -> None:
        """Forget all records, after the executor has handled them."""
        self._records.clear()
        self._outcomes.clear()

    # ---- in the event loop -------------------------------------------------------------------------------------

    async def _call(self, record: Record, opened: Opened = NOTHING_OPENED, /) -> object:
        outcome = self._outcomes.pop(id(record), _MISSING)
        if outcome is _MISSING:
            clock = asyncio.get_running_loop().time
            async with self._places:
                await self._threads.call(functools.partial(self._run, self._run_from(record), opened, clock))
            outcome = self._outcomes.pop(id(record))
        if type(outcome) is not _Unresolved:
            return outcome
        if outcome.is_error:
            raise outcome.outcome
        return await resolve_call(outcome.outcome, self._prepared.name)

    def _run_from(self, record: Record) -> Sequence[Record]:
        """Return the records of the run that begins with ``record``."""
        records = self._records.get(record.topic_partition, ())
        index = bisect_left(records, record.offset, key=_offset)
        # A record with headers may have a trace, which is set only for the call by the executor.
        has_trace = record.headers or is_opentelemetry_imported()
        if has_trace or index == len(records) or records[index] is not record:
            return [record]
        run = records[index : index + self._most]
        return run[: next((at for at, one in enumerate(run) if one.headers), len(run))]

    # ---- in a thread -------------------------------------------------------------------------------------------

    def _run(self, records: Sequence[Record], opened: Opened, clock: Callable[[], float]) -> None:
        """Handle records until one fails or the time is over."""
        call, outcomes = self._call_function, self._outcomes
        count, kind, ends_at = 0, None, clock() + _MAX_RUN_S
        for record in records:
            count += 1
            result, error = outcome_of(functools.partial(call, record, opened), copy_context())
            if error is not None:
                outcomes[id(record)] = _Unresolved(error, is_error=True)
                break
            if type(result) is not kind and (must_resolve(result) or inspect.isawaitable(result)):
                outcomes[id(record)] = _Unresolved(result, is_error=False)
                break
            outcomes[id(record)], kind = result, type(result)
            # A returned message is published after the call, which may fail.
            if clock() > ends_at or messages_in(result, publish_values=False):
                break
        self._most = _GROWTH * count

    def _bind_and_call(self, record: Record, opened: Opened) -> object:
        args, kwargs = self._prepared.bind(record, opened)
        result: object = self._prepared.function(*args, **kwargs)
        return result

    def _call_with_value(self, record: Record, _opened: Opened) -> object:
        result: object = self._prepared.function(self._prepared.decode_one(record))
        return result
