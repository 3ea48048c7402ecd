"""Meters: counts, rates, means and maxima over the last half minute and in total.

A meter keeps sums for windows of ten seconds, and no single events. Kafka's own clients also keep sums for windows.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from typing import NamedTuple

__all__ = ["Meter", "MetricName"]

_WINDOW_S = 10.0
_WINDOWS = 3


class MetricName(NamedTuple):
    """Name of a metric."""

    group: str
    """Such as ``consumer-fetch-manager-metrics``."""
    name: str
    tags: tuple[tuple[str, str], ...] = ()
    """Client, group, topic or partition that the value belongs to."""


@dataclass(slots=True)
class _Window:
    since: float
    count: int = 0
    sum: float = 0.0
    max: float = 0.0


@dataclass(slots=True)
class Meter:
    """Events of one kind, each with a value (a duration, a number of bytes).

    Attributes:
        count: number of events in total.
        sum: sum of the values of all events.
        last_at: time of the last event; None before the first event.
    """

    began_at: float
    count: int = 0
    sum: float = 0.0
    last_at: float | None = None
    _windows: deque[_Window] = field(default_factory=lambda: deque(maxlen=_WINDOWS))

    def note(self, now: float, value: float = 0.0) -> None:
        """Record an event."""
        if not self._windows or now - self._windows[-1].since >= _WINDOW_S:
            self._windows.append(_Window(now))
        window = self._windows[-1]
        self.count, self.sum, self.last_at = self.count + 1, self.sum + value, now
        window.count, window.sum, window.max = window.count + 1, window.sum + value, max(window.max, value)

    def rate(self, now: float) -> float:
        """Return the number of recent events per second."""
        return sum(one.count for one in self._recent(now)) / self._span_s(now)

    def sum_rate(self, now: float) -> float:
        """Return the recent sum of values per second."""
        return sum(one.sum for one in self._recent(now)) / self._span_s(now)

    def mean(self, now: float) -> float:
        """Return the mean of recent values; 0 if there are none."""
        windows = self._recent(now)
        count = sum(one.count for one in windows)
        return sum(one.sum for one in windows) / count if count else 0.0

    def max(self, now: float) -> float:
        """Return the greatest recent value; 0 if there is none."""
        return max((one.max for one in self._recent(now)), default=0.0)

    def _recent(self, now: float) -> list[_Window]:
        return [one for one in self._windows if now - one.since < _WINDOW_S * _WINDOWS]

    def _span_s(self, now: float) -> float:
        """Return the seconds since the first recent window, at least 1, so that one event does not look like many."""
        since = min((one.since for one in self._recent(now)), default=now)
        return max(now - max(self.began_at, min(since, now - 1.0)), 1.0)
