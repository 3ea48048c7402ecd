"""Times and places as users write them, and what everybody's clock says.

Rule of this file: a log's records carry everybody's time, so what is asked of a log by time is said on that clock, and
on no other occasion is it looked at.
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
"""Milliseconds since 1970, a time with its zone, or so long ago."""


def now_ms() -> int:
    """Milliseconds since 1970."""
    return int(time.time() * 1000)


def start_by_policy(policy: OffsetReset) -> StartPoint:
    """What ``auto_offset_reset`` says: a name, a time, or how long ago."""
    return StartPoint(StartFrom(policy)) if isinstance(policy, str) else start_at_time(policy)


def start_at_time(when: object) -> StartPoint:
    """A time in milliseconds since 1970, a datetime with a time zone, or, as a timedelta, how long ago.

    Raises:
        ConfigurationError: it is none of these.
    """
    if isinstance(when, dt.timedelta) and when >= dt.timedelta(0):
        return StartPoint(StartFrom.AGO, when // dt.timedelta(milliseconds=1))
    if isinstance(when, dt.datetime) and when.tzinfo is not None:
        when = int(when.timestamp() * 1000)
    if isinstance(when, int) and not isinstance(when, bool) and 0 <= when < 1 << 63:
        return StartPoint(StartFrom.TIME, when)
    raise ConfigurationError(
        f"{when!r} is no time - give milliseconds since 1970, a datetime with a time zone, or a timedelta: so long ago"
    )


def start_of(given: object) -> RequestedStart:
    """Where to begin: an offset, "earliest", "latest", "committed", a datetime, or a timedelta: so long ago.

    Raises:
        ConfigurationError: it is none of these.
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
        f"{given!r} is no place to begin at - give an offset, 'earliest', 'latest', 'committed', a datetime with a time"
        " zone, or a timedelta"
    )
