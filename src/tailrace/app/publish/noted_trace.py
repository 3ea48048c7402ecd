"""Trace headers of a failed attempt, stored on the attempt's exception.

They are added to the record when it is published to a retry or dead-letter topic. At that time, the span of the attempt
has ended, and other attempts may run.
"""

from __future__ import annotations

from tailrace.app.publish.encoding import Headers

__all__ = ["note_trace", "noted_trace"]

_ATTRIBUTE = "__tailrace_trace__"


def note_trace(error: BaseException, trace: Headers) -> None:
    """Store the trace headers of the attempt that raised ``error``."""
    error.__dict__[_ATTRIBUTE] = trace


def noted_trace(error: BaseException) -> Headers:
    """Return the trace headers that were last stored on ``error``; empty if there are none."""
    noted: Headers = error.__dict__.get(_ATTRIBUTE, ())
    return noted
