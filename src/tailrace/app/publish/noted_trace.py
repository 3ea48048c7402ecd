"""Trace headers of failed attempts, by the exception of the attempt.

They are added to the record when it is published to a retry or dead-letter topic. At that time, the span of the attempt
has ended, and other attempts may run. They are stored in the context of the task that handles the record, because an
exception belongs to the user and is not changed.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from contextvars import ContextVar
from types import MappingProxyType

from tailrace.app.publish.encoding import Headers

__all__ = ["note_trace", "noted_trace"]

_traces: ContextVar[Mapping[int, tuple[BaseException, Headers]]] = ContextVar(
    "tailrace_failed_traces", default=MappingProxyType({})
)
"""Trace headers of the last attempt of this task, with its exceptions, by the ids of the exceptions."""


def note_trace(errors: Iterable[BaseException], trace: Headers) -> None:
    """Store the trace headers of the attempt that raised ``errors``, in place of those of an earlier attempt."""
    _traces.set({id(error): (error, trace) for error in errors})


def noted_trace(error: BaseException) -> Headers:
    """Return the trace headers that were last stored for ``error``; empty if there are none."""
    noted = _traces.get().get(id(error))
    return () if noted is None else noted[1]
