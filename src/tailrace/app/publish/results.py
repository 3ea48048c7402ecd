"""Publishing for handlers, of results and of records they publish themselves, with the trace of their record.

A context variable holds the trace, also in tasks and threads that a handler has started. Records without a trace cost
nothing extra.
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

__all__ = ["ResultPublisher", "batch_span", "carrying", "noting_span", "publish_one", "result_trace"]

TakenT = TypeVar("TakenT")

_OPENTELEMETRY = "opentelemetry.trace"
_injecting = TelemetryGuard("passing a trace on")
_trace: ContextVar[Headers] = ContextVar("tailrace_trace", default=())


def carrying(call: Handle, traced: Handle) -> Handle:
    """Return a handler that runs ``traced`` within the trace of its record, or ``call`` if there can be no trace."""

    async def within_trace(record: Record, trace: Headers) -> object:
        token = _trace.set(trace)
        try:
            return await traced(record)
        finally:
            _trace.reset(token)

    def carry(record: Record) -> Awaitable[object]:
        trace = trace_in(record.headers) if record.headers else ()
        return within_trace(record, trace) if trace or _OPENTELEMETRY in sys.modules else call(record)

    return carry


def noting_span(
    call: Callable[[TakenT], Awaitable[object]], where: str
) -> Callable[[TakenT], Coroutine[Any, Any, object]]:
    """Wrap a handler inside its middleware, to keep its span for results, which are published after the span has ended.

    An awaitable returned by the handler is awaited here, so that middleware receives its result.
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
    """Return the trace for results of a record: the handler's own span, else the active one, else the record's."""
    current, incoming = _trace.get(), trace_in(record.headers)
    return current if list(current) != list(incoming) else _active_trace() or incoming


@contextlib.contextmanager
def batch_span() -> Iterator[Callable[[Headers], Headers]]:
    """Yield a function that returns the trace of a result: the batch's span, else the trace in the given headers.

    Baggage is that of the result's own record, unless the span has some.
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


async def publish_one(publisher: Publisher, one: OutgoingRecord, trace: Headers | None = None) -> Published | None:
    """Publish a record with ``trace``, by default that of the active span or of the record being handled.

    Raises:
        PublishError: the record was rejected or not acknowledged in time, or the calling handler was abandoned.
    """
    check_not_abandoned(one.topic)
    headers = with_trace(one.headers, (_active_trace() or _trace.get()) if trace is None else trace)
    return await publisher.publish(one.topic, one.value, key=one.key, headers=headers, partition=one.partition)


class ResultPublisher:
    """Publisher of a handler's results.

    Args:
        publisher: publishes records.
        codec: encodes results.
        topic: topic of results that name none; None to publish only Messages, to their own topics.
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
        everything: list[tuple[OutgoingRecord, Headers]] = []
        for result, trace in results:
            if messages := messages_in(result, are_values_meant=self._topic is not None):
                encoded = await outgoing(messages, self._topic, self._codec, self._where)
                everything += [(one, trace) for one in encoded]
        await gather_in_order([self._publish(one, trace) for one, trace in everything])

    async def _publish(self, one: OutgoingRecord, trace: Headers) -> None:
        await publish_one(self._publisher, one, trace)
