"""Meters: counts, rates, means and maxima over the last half minute and in total, and histograms of durations.

A meter keeps sums for windows of ten seconds, and no single events. Kafka's own clients also keep sums for windows.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from operator import length_hint
from typing import NamedTuple

from tailrace.observe.statistics import DURATION_BOUNDS_S, Durations

__all__ = ["CallMeter", "DurationMeter", "Meter", "MetricName", "UnmeasuredRun"]

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


class DurationMeter:
    """Histogram of durations."""

    __slots__ = ("_counts", "_sum_s")

    def __init__(self) -> None:
        self._sum_s, self._counts = 0.0, [0] * (len(DURATION_BOUNDS_S) + 1)

    def note(self, seconds: float, count: int = 1) -> None:
        """Record ``count`` durations of ``seconds`` each."""
        self._sum_s += seconds * count
        self._counts[bisect_left(DURATION_BOUNDS_S, seconds)] += count

    @property
    def durations(self) -> Durations:
        """All durations."""
        return Durations(self._sum_s, tuple(self._counts))


class CallMeter:
    """Calls of one handler.

    Attributes:
        records: number of records handled successfully.
        batches: number of batches handled without a failed record.
    """

    __slots__ = ("_calls", "batches", "records")

    def __init__(self) -> None:
        self.records = self.batches = 0
        self._calls = DurationMeter()

    @property
    def durations(self) -> Durations:
        """Durations of all calls."""
        return self._calls.durations

    def note_run(self, calls: int, took_s: float, *, failed: int = 0) -> None:
        """Record calls for one record each that took ``took_s`` together; they are counted with their mean."""
        if calls:
            self.records += calls - failed
            self._calls.note(took_s / calls, calls)

    def note_call(self, records: int, took_s: float, *, failed: int = 0, is_batch: bool) -> None:
        """Record a call for one record or one batch, of which ``failed`` records failed."""
        self.records += records - failed
        self.batches += is_batch and not failed
        self._calls.note(took_s)


class UnmeasuredRun:
    """Calls of one worker, one after the other, that are not in the meter yet.

    Calls that do not suspend are not counted one by one: their number is that of the records taken from an iterator.
    """

    __slots__ = ("_before", "_free", "_left", "_since")

    def __init__(self) -> None:
        self._since = 0.0
        self._before = self._left = 0
        self._free: Iterator[object] = iter(())

    def begin(self, now: float) -> None:
        """Begin with one call."""
        self._since, self._before = now, 1
        self._take_from(iter(()))

    def go_on(self, free: Iterator[object]) -> None:
        """Count a call for each record that is taken from ``free`` from now on."""
        self._take_from(free)

    def suspend(self, now: float) -> tuple[int, float]:
        """Note that the last call is suspended; return the number of calls before it, and how long they took."""
        calls, took_s = self.end(now)
        self._take_from(iter(()))
        if not calls:
            return 0, 0.0
        mean_s = took_s / calls
        self._since, self._before = now - mean_s, 1
        return calls - 1, mean_s * (calls - 1)

    def end(self, now: float) -> tuple[int, float]:
        """Return the number of unmeasured calls, and how long they took; they count as measured from now on."""
        left = length_hint(self._free)
        calls, took_s = self._before + self._left - left, now - self._since
        self._since, self._before, self._left = now, 0, left
        return calls, took_s

    def _take_from(self, free: Iterator[object]) -> None:
        self._free, self._left = free, length_hint(free)
