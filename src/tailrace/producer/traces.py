"""Traces of published records: their headers, and the instrumentations within which they are published.

The trace is that of the active OpenTelemetry span, or of the record that is being handled.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Awaitable, Callable, Coroutine, Iterable
from contextvars import ContextVar
from typing import Any, TypeVar

from tailrace.observe.hooks import Instrumentation, Publish, TelemetryGuard
from tailrace.producer.publisher import Headers, OutgoingRecord

__all__ = [
    "OPENTELEMETRY",
    "active_trace",
    "current_trace",
    "is_opentelemetry_imported",
    "record_trace",
    "trace_in",
    "with_trace",
    "within_instrumentations",
]

PublishedT = TypeVar("PublishedT")

_TRACE_HEADERS = frozenset({"traceparent", "tracestate", "baggage"})
"""Headers that propagate a trace (W3C Trace Context, W3C Baggage)."""

OPENTELEMETRY = "opentelemetry.trace"
_injection_guard = TelemetryGuard("passing a trace on")
record_trace: ContextVar[Headers] = ContextVar("tailrace_trace", default=())
"""Trace of the record that a handler handles."""


def is_opentelemetry_imported() -> bool:
    """Return True if OpenTelemetry is imported, so that records without headers need ``with_record_trace``, too."""
    return OPENTELEMETRY in sys.modules


def current_trace() -> Headers:
    """Return the trace of the active span; without a span, the trace of the record that is being handled."""
    return active_trace() or record_trace.get()


def active_trace() -> Headers:
    """Return the headers of the active OpenTelemetry span, from the global propagator; empty without a span."""
    module = sys.modules.get(OPENTELEMETRY)
    if module is None or not module.get_current_span().get_span_context().is_valid:
        return ()
    carrier: dict[str, str] = {}
    with _injection_guard:
        importlib.import_module("opentelemetry.propagate").inject(carrier)
    if not carrier:
        return ()
    # The baggage of the record belongs to the trace even if no propagator has put it into the active context.
    kept = [one for one in record_trace.get() if one[0] == "baggage" and one[0] not in carrier]
    return [*((name, value.encode()) for name, value in carrier.items()), *kept]


def trace_in(headers: Headers) -> Headers:
    """Return the headers that propagate a trace; of several headers of a name, the last one, as Kafka does."""
    found = [one for one in headers if one[0] in _TRACE_HEADERS]
    return found if len(found) < 2 else list(dict(found).items())


def with_trace(headers: Headers, trace: Headers) -> Headers:
    """Return ``headers`` followed by ``trace``; return ``headers`` unchanged if they contain a trace already."""
    if not trace or any(name in _TRACE_HEADERS for name, _ in headers):
        return headers
    return [*headers, *trace]


def within_instrumentations(
    publish: Callable[[OutgoingRecord], Awaitable[PublishedT]], instrumentations: Iterable[Instrumentation]
) -> Callable[[OutgoingRecord], Coroutine[Any, Any, PublishedT]]:
    """Return a function that calls ``publish`` within ``instrumentations``; the first one is the outermost."""

    async def publish_fields(  # noqa: PLR0913 - public: instrumentations call it
        topic: str,
        value: bytes | None,
        *,
        key: bytes | None = None,
        headers: Headers = (),
        partition: int | None = None,
        timestamp_ms: int | None = None,
    ) -> PublishedT:
        return await publish(OutgoingRecord(topic, value, key, headers, partition, timestamp_ms))

    outermost: Publish = publish_fields
    for layer in reversed(tuple(instrumentations)):
        outermost = layer.around_publish(outermost)

    async def publish_record(record: OutgoingRecord) -> PublishedT:
        published: PublishedT = await outermost(
            record.topic,
            record.value,
            key=record.key,
            headers=record.headers,
            partition=record.partition,
            timestamp_ms=record.timestamp_ms,
        )
        return published

    return publish_record
