"""Traces that handlers continue: of the handled record, of the handler's span, and of failed attempts.

A trace is a list of headers. Context variables contain the trace, also in tasks and threads that a handler has started.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Coroutine, Iterable, Mapping
from contextvars import ContextVar
from types import MappingProxyType
from typing import Any, Self, TypeVar

from tailrace.awaitables import resolve_result
from tailrace.producer.publisher import Headers
from tailrace.producer.traces import active_trace, record_trace, trace_in
from tailrace.records import Record

__all__ = [
    "BatchTrace",
    "note_trace",
    "noted_trace",
    "replace_trace",
    "result_trace",
    "with_span_as_trace",
]

UnitT = TypeVar("UnitT")
"""Record, or list of the records of a batch."""


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
        if active := active_trace():
            record_trace.set(active)
        return returned

    return call_and_store_span


def result_trace(record: Record) -> Headers:
    """Return the trace for the results of a record.

    It is the span that ``with_span_as_trace`` stored, else the active span, else the trace of the record.
    """
    current, incoming = record_trace.get(), trace_in(record.headers)
    return current if list(current) != list(incoming) else active_trace() or incoming


class BatchTrace:
    """Context of the call of a batch handler, which knows the traces for its results."""

    # A class, because a generator as context manager takes three times as long.
    __slots__ = ("_token",)

    def __enter__(self) -> Self:
        self._token = record_trace.set(())
        return self

    def __exit__(self, *_error: object) -> None:
        record_trace.reset(self._token)

    def of(self, headers: Headers) -> Headers:
        """Return the trace for the result of a record of the batch, from the headers of the record.

        The trace is the span of the batch handler, with the baggage of the record if the span has no baggage. Without a
        span, it is the trace of the record.
        """
        incoming, span = trace_in(headers), record_trace.get() or active_trace()
        if not span or any(name == "baggage" for name, _ in span):
            return span or incoming
        return [*span, *(one for one in incoming if one[0] == "baggage")]


# ---- trace headers --------------------------------------------------------------------------------------------------


def replace_trace(headers: Headers, trace: Headers) -> Headers:
    """Return ``headers`` with ``trace`` in place of their trace; their baggage is kept unless ``trace`` has baggage."""
    replaced = {"traceparent", "tracestate", *(name for name, _ in trace)}
    return [*(one for one in headers if one[0] not in replaced), *trace]


# ---- traces of failed attempts ---------------------------------------------------------------------------------------

# A retry topic or dead-letter topic gets the trace of the failed attempt, whose span has ended by then, while other
# attempts may run. The task that handles the record keeps the trace, because an exception belongs to the user and is
# not changed.
_failed: ContextVar[Mapping[int, tuple[BaseException, Headers]]] = ContextVar(
    "tailrace_failed_traces", default=MappingProxyType({})
)
"""Trace headers of the last attempt of this task, with its exceptions, by the ids of the exceptions."""


def note_trace(errors: Iterable[BaseException], trace: Headers) -> None:
    """Store the trace headers of the attempt that raised ``errors``, in place of those of an earlier attempt."""
    _failed.set({id(error): (error, trace) for error in errors})


def noted_trace(error: BaseException) -> Headers:
    """Return the trace headers that were last stored for ``error``; empty if there are none."""
    noted = _failed.get().get(id(error))
    return () if noted is None else noted[1]
