"""Publishing of the results and messages of handlers, with the trace of the handled record.

A trace is a list of headers. A context variable contains the trace, also in tasks and threads that a handler has
started.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Awaitable, Callable, Coroutine, Iterable
from contextvars import ContextVar
from typing import Any, Self, TypeVar

from tailrace.app.options import Handle
from tailrace.app.publish.abandonment import check_not_abandoned
from tailrace.app.publish.encoding import Headers, OutgoingRecord, encode_messages, messages_in, trace_in, with_trace
from tailrace.app.publish.ordered_gather import gather_in_order
from tailrace.awaitables import resolve_result
from tailrace.codecs.protocols import AnyCodec
from tailrace.observe.hooks import TelemetryGuard
from tailrace.producer.publisher import Published, Publisher
from tailrace.records import Record

__all__ = [
    "BatchTrace",
    "ResultPublisher",
    "is_opentelemetry_imported",
    "publish_one",
    "result_trace",
    "with_record_trace",
    "with_span_as_trace",
]

UnitT = TypeVar("UnitT")
"""Record, or list of the records of a batch."""

_OPENTELEMETRY = "opentelemetry.trace"
_injection_guard = TelemetryGuard("passing a trace on")
_trace: ContextVar[Headers] = ContextVar("tailrace_trace", default=())


def with_record_trace(call: Handle, traced: Handle) -> Handle:
    """Return a handler that calls ``traced`` with the context variable set to the trace of the record.

    If the record has no trace and OpenTelemetry is not imported, it calls ``call`` instead.
    """

    async def within_trace(record: Record, trace: Headers) -> object:
        token = _trace.set(trace)
        try:
            return await traced(record)
        finally:
            _trace.reset(token)

    modules = sys.modules  # OpenTelemetry may be imported later.

    def handle(record: Record) -> Awaitable[object]:
        if not record.headers and _OPENTELEMETRY not in modules:
            return call(record)
        trace = trace_in(record.headers)
        return within_trace(record, trace) if trace or _OPENTELEMETRY in modules else call(record)

    return handle


def is_opentelemetry_imported() -> bool:
    """Return True if OpenTelemetry is imported, so that records without headers need ``with_record_trace``, too."""
    return _OPENTELEMETRY in sys.modules


def with_span_as_trace(
    call: Callable[[UnitT], Awaitable[object]], where: str
) -> Callable[[UnitT], Coroutine[Any, Any, object]]:
    """Wrap a handler, inside its middleware, so that the span active at its end becomes the trace of its results.

    The results are published after the span has ended. If the handler returns an awaitable, it is awaited here, so that
    middleware receives the result.
    """

    async def call_and_store_span(unit: UnitT) -> object:
        returned = await call(unit)
        if returned is not None:
            returned = await resolve_result(returned, where)
        if active := _active_trace():
            _trace.set(active)
        return returned

    return call_and_store_span


def result_trace(record: Record) -> Headers:
    """Return the trace for the results of a record.

    It is the span that ``with_span_as_trace`` stored, else the active span, else the trace of the record.
    """
    current, incoming = _trace.get(), trace_in(record.headers)
    return current if list(current) != list(incoming) else _active_trace() or incoming


class BatchTrace:
    """Context of the call of a batch handler, which knows the traces for its results."""

    # A class, because a generator as context manager takes three times as long.
    __slots__ = ("_token",)

    def __enter__(self) -> Self:
        self._token = _trace.set(())
        return self

    def __exit__(self, *_error: object) -> None:
        _trace.reset(self._token)

    def of(self, headers: Headers) -> Headers:
        """Return the trace for the result of a record of the batch, from the headers of the record.

        The trace is the span of the batch handler, with the baggage of the record if the span has no baggage. Without a
        span, it is the trace of the record.
        """
        incoming, span = trace_in(headers), _trace.get() or _active_trace()
        if not span or any(name == "baggage" for name, _ in span):
            return span or incoming
        return [*span, *(one for one in incoming if one[0] == "baggage")]


def _active_trace() -> Headers:
    """Return the headers of the active OpenTelemetry span, from the global propagator; empty without a span."""
    module = sys.modules.get(_OPENTELEMETRY)
    if module is None or not module.get_current_span().get_span_context().is_valid:
        return ()
    carrier: dict[str, str] = {}
    with _injection_guard:
        importlib.import_module("opentelemetry.propagate").inject(carrier)
    if not carrier:
        return ()
    # The baggage of the record belongs to the trace even if no propagator has put it into the active context.
    kept = [one for one in _trace.get() if one[0] == "baggage" and one[0] not in carrier]
    return [*((name, value.encode()) for name, value in carrier.items()), *kept]


async def publish_one(publisher: Publisher, record: OutgoingRecord, trace: Headers | None = None) -> Published | None:
    """Publish a record with ``trace``; if it is None, with the active span or the trace of the handled record.

    If the headers of the record contain a trace already, they are left unchanged.

    Returns:
        Partition and offset; None for a record of a transaction that is not committed yet.

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
        topic: topic of results that have no topic; None to publish only results that are a ``Message`` with a topic.
        where: name of the handler in errors.
    """

    def __init__(self, publisher: Publisher, codec: AnyCodec, topic: str | None, where: str) -> None:
        self._publisher, self._codec, self._topic, self._where = publisher, codec, topic, where

    async def publish(self, results: Iterable[tuple[object, Headers]]) -> None:
        """Publish results, each with its trace, and wait until all are acknowledged.

        All results are encoded first, so that nothing is published if one of them cannot be encoded.

        Raises:
            PublishError: a result cannot be encoded, has no topic, was rejected, or was not acknowledged in time.
            SchemaRegistryError: a schema could not be fetched.
        """
        records: list[tuple[OutgoingRecord, Headers]] = []
        for result, trace in results:
            if messages := messages_in(result, publish_values=self._topic is not None):
                encoded = await encode_messages(messages, self._topic, self._codec, self._where)
                records += [(record, trace) for record in encoded]
        await gather_in_order([self._publish(record, trace) for record, trace in records])

    async def _publish(self, record: OutgoingRecord, trace: Headers) -> None:
        await publish_one(self._publisher, record, trace)
