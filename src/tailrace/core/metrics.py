"""What is measured: how often, how long, how much, over the last half minute and in all.

Rule of this file: a meter is told what happened and when, and asked at any time. It keeps sums for windows of some
seconds, as Kafka's own clients do, and nothing of single events.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from typing import NamedTuple

__all__ = ["Meter", "MetricName"]

_WINDOW_S = 10.0
_WINDOWS = 3


class MetricName(NamedTuple):
    """What a measured value is called."""

    group: str
    """Such as ``consumer-fetch-manager-metrics``."""
    name: str
    tags: tuple[tuple[str, str], ...] = ()
    """Of which client, group, partition."""


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
        count: how many there were in all.
        sum: of their values.
        last_at: when the last one was; None before the first.
    """

    began_at: float
    count: int = 0
    sum: float = 0.0
    last_at: float | None = None
    _windows: deque[_Window] = field(default_factory=lambda: deque(maxlen=_WINDOWS))

    def note(self, now: float, value: float = 0.0) -> None:
        """One has happened."""
        if not self._windows or now - self._windows[-1].since >= _WINDOW_S:
            self._windows.append(_Window(now))
        window = self._windows[-1]
        self.count, self.sum, self.last_at = self.count + 1, self.sum + value, now
        window.count, window.sum, window.max = window.count + 1, window.sum + value, max(window.max, value)

    def rate(self, now: float) -> float:
        """Events a second, lately."""
        return sum(one.count for one in self._lately(now)) / self._span_s(now)

    def sum_rate(self, now: float) -> float:
        """The same of their values."""
        return sum(one.sum for one in self._lately(now)) / self._span_s(now)

    def mean(self, now: float) -> float:
        """The mean value, lately; 0 without any."""
        windows = self._lately(now)
        count = sum(one.count for one in windows)
        return sum(one.sum for one in windows) / count if count else 0.0

    def max(self, now: float) -> float:
        """The greatest value, lately; 0 without any."""
        return max((one.max for one in self._lately(now)), default=0.0)

    def _lately(self, now: float) -> list[_Window]:
        return [one for one in self._windows if now - one.since < _WINDOW_S * _WINDOWS]

    def _span_s(self, now: float) -> float:
        """How long "lately" is: from the first window on, and never shorter than would make one event a burst."""
        since = min((one.since for one in self._lately(now)), default=now)
        return max(now - max(self.began_at, min(since, now - 1.0)), 1.0)
