"""Publishing for handlers: what they return, and what they publish themselves, with the trace of their record.

Rule of this file: whose code it is that publishes is known by the context, so that tasks and threads which a handler
has begun are its own. Only what carries a trace pays for it.
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
from tailrace.producer.publisher import Published, Publisher
from tailrace.records import Record

__all__ = ["ResultPublisher", "batch_span", "carrying", "noting_span", "publish_one", "result_trace"]

TakenT = TypeVar("TakenT")

_OPENTELEMETRY = "opentelemetry.trace"
_trace: ContextVar[Headers] = ContextVar("tailrace_trace", default=())


def carrying(call: Handle, traced: Handle) -> Handle:
    """Return ``call``; of a record with a trace, ``traced``, whose published records carry that trace on."""

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
    """Wrap a handler inside its middleware, so that its results carry a span that is over when they are published.

    An awaitable that the handler returned is awaited here, so that middleware is given the result.
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
    """Give a function that returns the trace of a result: the batch's span, else the trace in the given headers.

    Baggage stays that of the result's own record.
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
    """Return headers of the active OpenTelemetry span, by the propagator of the program; empty without a span."""
    module = sys.modules.get(_OPENTELEMETRY)
    if module is None or not module.get_current_span().get_span_context().is_valid:
        return ()
    carrier: dict[str, str] = {}
    importlib.import_module("opentelemetry.propagate").inject(carrier)
    # Baggage of the record belongs to the trace though nobody has extracted it.
    kept = [one for one in _trace.get() if one[0] == "baggage" and one[0] not in carrier]
    return [*((name, value.encode()) for name, value in carrier.items()), *kept]


async def publish_one(publisher: Publisher, one: OutgoingRecord, trace: Headers | None = None) -> Published | None:
    """Publish a record; without a given trace, with the active span's or that of the record whose handler runs here.

    Raises:
        PublishError: it was refused, not acknowledged in time, or comes from a handler that was abandoned.
    """
    check_not_abandoned(one.topic)
    headers = with_trace(one.headers, (_active_trace() or _trace.get()) if trace is None else trace)
    return await publisher.publish(one.topic, one.value, key=one.key, headers=headers, partition=one.partition)


class ResultPublisher:
    """Publishes what a handler returns.

    Args:
        publisher: publishes it.
        codec: makes bytes of it.
        topic: where it goes; None if only a Message goes anywhere, by its own.
        where: the handler, as errors name it.
    """

    def __init__(self, publisher: Publisher, codec: AnyCodec, topic: str | None, where: str) -> None:
        self._publisher, self._codec, self._topic, self._where = publisher, codec, topic, where

    async def publish(self, results: Iterable[tuple[object, Headers]]) -> None:
        """Publish results, each with the trace that it carries on; when this returns, all are acknowledged.

        All of it is encoded first, so that nothing is published of what cannot be.

        Raises:
            PublishError: a result cannot be encoded, has no topic, was refused, or was not acknowledged in time.
            SchemaRegistryError: a schema is not known yet, and the registry could not be asked.
        """
        everything: list[tuple[OutgoingRecord, Headers]] = []
        for result, trace in results:
            if messages := messages_in(result, are_values_meant=self._topic is not None):
                encoded = await outgoing(messages, self._topic, self._codec, self._where)
                everything += [(one, trace) for one in encoded]
        await gather_in_order([self._publish(one, trace) for one, trace in everything])

    async def _publish(self, one: OutgoingRecord, trace: Headers) -> None:
        await publish_one(self._publisher, one, trace)
