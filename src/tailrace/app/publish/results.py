"""Publishing of results and messages of handlers, with the trace of their record.

A context variable holds the trace, also in tasks and threads that a handler has started. Handling a record without a
trace costs nothing extra.
"""

from __future__ import annotations

import contextlib
import importlib
import sys
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Iterator
from contextvars import ContextVar
from typing import Any, TypeVar

from tailrace.app.codec_protocols import AnyCodec
from tailrace.app.options import Handle
from tailrace.app.publish.abandonment import check_not_abandoned
from tailrace.app.publish.encoding import Headers, OutgoingRecord, messages_in, outgoing, trace_in, with_trace
from tailrace.app.publish.ordered_gather import gather_in_order
from tailrace.awaitables import settled
from tailrace.observe.telemetry_guard import TelemetryGuard
from tailrace.producer.publisher import Published, Publisher
from tailrace.records import Record

__all__ = [
    "ResultPublisher",
    "batch_span",
    "carrying",
    "noting_span",
    "publish_one",
    "result_trace",
    "traces_are_carried",
]

TakenT = TypeVar("TakenT")

_OPENTELEMETRY = "opentelemetry.trace"
_injecting = TelemetryGuard("passing a trace on")
_trace: ContextVar[Headers] = ContextVar("tailrace_trace", default=())


def carrying(call: Handle, traced: Handle) -> Handle:
    """Return a handler that calls ``traced`` within the trace of the record.

    It calls ``call`` instead if the record has no trace and OpenTelemetry is not imported.
    """

    async def within_trace(record: Record, trace: Headers) -> object:
        token = _trace.set(trace)
        try:
            return await traced(record)
        finally:
            _trace.reset(token)

    modules = sys.modules  # OpenTelemetry may be imported later.

    def carry(record: Record) -> Awaitable[object]:
        if not record.headers and _OPENTELEMETRY not in modules:
            return call(record)
        trace = trace_in(record.headers)
        return within_trace(record, trace) if trace or _OPENTELEMETRY in modules else call(record)

    return carry


def traces_are_carried() -> bool:
    """Return True if ``carrying`` also does something for records without headers, because of OpenTelemetry."""
    return _OPENTELEMETRY in sys.modules


def noting_span(
    call: Callable[[TakenT], Awaitable[object]], where: str
) -> Callable[[TakenT], Coroutine[Any, Any, object]]:
    """Wrap a handler, inside its middleware, so that its active span becomes the trace of its results.

    The results are published after the span has ended. An awaitable that the handler returns is awaited here, so that
    middleware receives the result.
    """

    async def noted(taken: TakenT) -> object:
        returned = await call(taken)
        if returned is not None:
            returned = await settled(returned, where)
        if active := _active_trace():
            _trace.set(active)
        return returned

    return noted


def result_trace(record: Record) -> Headers:
    """Return the trace for results of a record: the handler's span, else the active span, else the record's trace."""
    current, incoming = _trace.get(), trace_in(record.headers)
    return current if list(current) != list(incoming) else _active_trace() or incoming


@contextlib.contextmanager
def batch_span() -> Iterator[Callable[[Headers], Headers]]:
    """Yield a function that returns the trace of a result: the batch's span, else the trace in the given headers.

    The baggage is that of the span or, if the span has none, that in the given headers.
    """
    token = _trace.set(())

    def trace_of(headers: Headers) -> Headers:
        own, span = trace_in(headers), _trace.get() or _active_trace()
        if not span or any(name == "baggage" for name, _ in span):
            return span or own
        return [*span, *(one for one in own if one[0] == "baggage")]

    try:
        yield trace_of
    finally:
        _trace.reset(token)


def _active_trace() -> Headers:
    """Return the headers of the active OpenTelemetry span, from the global propagator; empty without a span."""
    module = sys.modules.get(_OPENTELEMETRY)
    if module is None or not module.get_current_span().get_span_context().is_valid:
        return ()
    carrier: dict[str, str] = {}
    with _injecting:
        importlib.import_module("opentelemetry.propagate").inject(carrier)
    if not carrier:
        return ()
    # The record's baggage belongs to the trace even if no propagator has extracted it.
    kept = [one for one in _trace.get() if one[0] == "baggage" and one[0] not in carrier]
    return [*((name, value.encode()) for name, value in carrier.items()), *kept]


async def publish_one(publisher: Publisher, record: OutgoingRecord, trace: Headers | None = None) -> Published | None:
    """Publish a record with ``trace``, by default the trace of the active span or of the record being handled.

    Raises:
        PublishError: the record was rejected or not acknowledged in time, or the calling handler was abandoned.
    """
    check_not_abandoned(record.topic)
    headers = with_trace(record.headers, (_active_trace() or _trace.get()) if trace is None else trace)
    return await publisher.publish(
        record.topic, record.value, key=record.key, headers=headers, partition=record.partition
    )


class ResultPublisher:
    """Publisher of a handler's results.

    Args:
        publisher: publishes records.
        codec: encodes results.
        topic: topic of results without one; None to publish only Messages, to their own topics.
        where: name of the handler in errors.
    """

    def __init__(self, publisher: Publisher, codec: AnyCodec, topic: str | None, where: str) -> None:
        self._publisher, self._codec, self._topic, self._where = publisher, codec, topic, where

    async def publish(self, results: Iterable[tuple[object, Headers]]) -> None:
        """Publish results, each with its trace, and wait until all are acknowledged.

        All results are encoded first, so that nothing is published if one of them cannot be encoded.

        Raises:
            PublishError: a result cannot be encoded, has no topic, was rejected, or was not acknowledged in time.
            SchemaRegistryError: a schema is not known yet, and the request for it failed.
        """
        records: list[tuple[OutgoingRecord, Headers]] = []
        for result, trace in results:
            if messages := messages_in(result, publish_values=self._topic is not None):
                encoded = await outgoing(messages, self._topic, self._codec, self._where)
                records += [(record, trace) for record in encoded]
        await gather_in_order([self._publish(record, trace) for record, trace in records])

    async def _publish(self, record: OutgoingRecord, trace: Headers) -> None:
        await publish_one(self._publisher, record, trace)
