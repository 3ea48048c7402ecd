"""Trace of a failed attempt, noted on its exception, for the retry or dead-letter topic to which its record goes.

The attempt's span has ended when the record is published, and several attempts may run at the same time.
"""

from __future__ import annotations

from tailrace.app.publish.encoding import Headers

__all__ = ["note_trace", "noted_trace"]

_ATTRIBUTE = "__tailrace_trace__"


def note_trace(error: BaseException, trace: Headers) -> None:
    """Note the trace headers of the attempt that raised ``error``."""
    error.__dict__[_ATTRIBUTE] = trace


def noted_trace(error: BaseException) -> Headers:
    """Return the trace headers that were noted last on ``error``; empty if there are none."""
    noted: Headers = error.__dict__.get(_ATTRIBUTE, ())
    return noted
