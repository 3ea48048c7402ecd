"""Conversion of start points and times from the forms that users pass; the wall clock.

Timestamps of records are wall-clock times. Only look-ups by time read the wall clock; everything else in the consumer
uses the event loop's clock.
"""

from __future__ import annotations

import datetime as dt
import time
from typing import TypeAlias

from tailrace.config import OffsetReset
from tailrace.core.positions.partition_spec import RequestedStart
from tailrace.core.positions.start_point import StartFrom, StartPoint
from tailrace.errors import ConfigurationError

__all__ = ["Time", "now_ms", "start_at_time", "start_by_policy", "start_of"]

Time: TypeAlias = int | dt.datetime | dt.timedelta
"""Milliseconds since 1970, a datetime with a time zone, or a timedelta before now."""


def now_ms() -> int:
    """Return the time of the wall clock in milliseconds since 1970."""
    return int(time.time() * 1000)


def start_by_policy(policy: OffsetReset) -> StartPoint:
    """Return the start point of ``auto_offset_reset``: "earliest", "latest", "none" or a time."""
    return StartPoint(StartFrom(policy)) if isinstance(policy, str) else start_at_time(policy)


def start_at_time(when: object) -> StartPoint:
    """Return the start point of a ``Time``.

    Raises:
        ConfigurationError: ``when`` is not a time.
    """
    if isinstance(when, dt.timedelta) and when >= dt.timedelta(0):
        return StartPoint(StartFrom.AGO, when // dt.timedelta(milliseconds=1))
    if isinstance(when, dt.datetime) and when.tzinfo is not None:
        when = int(when.timestamp() * 1000)
    if isinstance(when, int) and not isinstance(when, bool) and 0 <= when < 1 << 63:
        return StartPoint(StartFrom.TIME, when)
    raise ConfigurationError(
        f"a time must be milliseconds since 1970, a datetime with a time zone, or a timedelta before now, not {when!r}"
    )


def start_of(given: object) -> RequestedStart:
    """Return the requested start for ``given``; None for "committed".

    Raises:
        ConfigurationError: ``given`` is not an offset, "earliest", "latest", "committed", a datetime with a time zone,
            or a non-negative timedelta.
    """
    if given is None or given == "committed":
        return None
    if isinstance(given, str) and given in {StartFrom.EARLIEST, StartFrom.LATEST}:
        return StartPoint(StartFrom(given))
    if isinstance(given, dt.datetime | dt.timedelta):
        return start_at_time(given)
    if isinstance(given, int) and not isinstance(given, bool) and 0 <= given < 1 << 63:
        return given
    raise ConfigurationError(
        "a start must be an offset, 'earliest', 'latest', 'committed', a datetime with a time zone, or a timedelta"
        f" before now, not {given!r}"
    )
