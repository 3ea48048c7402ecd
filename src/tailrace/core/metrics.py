"""Meters of events, for the recent past and in total, and histograms of durations. Pure: no clock, IO or logging.

As in Kafka's own clients, a meter does not store events, but their sums over time windows. Here a window lasts ten
seconds, and an event is recent if its window began less than thirty seconds ago.
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
    """Group of metrics in Kafka's documentation, such as ``consumer-fetch-manager-metrics``."""
    name: str
    tags: tuple[tuple[str, str], ...] = ()
    """Pairs of name and value, such as the client, group, topic or partition that the metric is about."""


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
        began_at: time at which the meter was created.
        count: total number of events.
        sum: sum of the values of all events.
        last_at: time of the last event; None before the first event.
    """

    began_at: float
    count: int = 0
    sum: float = 0.0
    last_at: float | None = None
    _windows: deque[_Window] = field(default_factory=lambda: deque(maxlen=_WINDOWS))

    def note(self, now: float, value: float = 0.0) -> None:
        if not self._windows or now - self._windows[-1].since >= _WINDOW_S:
            self._windows.append(_Window(now))
        window = self._windows[-1]
        self.count, self.sum, self.last_at = self.count + 1, self.sum + value, now
        window.count, window.sum, window.max = window.count + 1, window.sum + value, max(window.max, value)

    def rate(self, now: float) -> float:
        """Return the number of recent events per second."""
        return sum(one.count for one in self._recent(now)) / self._span_s(now)

    def sum_rate(self, now: float) -> float:
        """Return the sum of the values of recent events, per second."""
        return sum(one.sum for one in self._recent(now)) / self._span_s(now)

    def mean(self, now: float) -> float:
        """Return the mean value of recent events; 0 without an event."""
        windows = self._recent(now)
        count = sum(one.count for one in windows)
        return sum(one.sum for one in windows) / count if count else 0.0

    def max(self, now: float) -> float:
        """Return the greatest value of recent events; 0 without an event."""
        return max((one.max for one in self._recent(now)), default=0.0)

    def _recent(self, now: float) -> list[_Window]:
        return [one for one in self._windows if now - one.since < _WINDOW_S * _WINDOWS]

    def _span_s(self, now: float) -> float:
        """Return the seconds since the first recent window began, but at least 1, so that one event is no high rate."""
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
        return self._calls.durations

    def note_run(self, calls: int, took_s: float, *, failed: int = 0) -> None:
        """Record calls with one record each, which took ``took_s`` in total, each with the mean duration."""
        if calls:
            self.records += calls - failed
            self._calls.note(took_s / calls, calls)

    def note_batch(self, records: int, took_s: float, *, failed: int = 0) -> None:
        """Record one call with a batch of ``records`` records, of which ``failed`` failed."""
        self.records += records - failed
        self.batches += not failed
        self._calls.note(took_s)


class UnmeasuredRun:
    """Consecutive calls of one worker, with one record each, that are not in the meter yet.

    Calls that do not suspend are not noted one by one. Their number is the number of records that the worker has taken
    from an iterator, calculated with ``length_hint``.
    """

    __slots__ = ("_calls_noted", "_left", "_records", "_since")

    def __init__(self) -> None:
        self._since = 0.0
        self._calls_noted = self._left = 0
        self._records: Iterator[object] = iter(())

    def begin(self, now: float) -> None:
        """Begin with one call, which starts now."""
        self._since, self._calls_noted = now, 1
        self.count_records(iter(()))

    def count_records(self, records: Iterator[object]) -> None:
        """Count a call for each record that is taken from ``records`` from now on."""
        self._records, self._left = records, length_hint(records)

    def suspend(self, now: float) -> tuple[int, float]:
        """Note that the last call is suspended; return the number of calls before it, and their total duration.

        The last call stays unmeasured; its duration up to now is estimated as the mean of all these calls.
        """
        calls, took_s = self.end(now)
        self.count_records(iter(()))
        if not calls:
            return 0, 0.0
        mean_s = took_s / calls
        self._since, self._calls_noted = now - mean_s, 1
        return calls - 1, mean_s * (calls - 1)

    def end(self, now: float) -> tuple[int, float]:
        """Return the number of unmeasured calls and their total duration; they count as measured from now on."""
        left = length_hint(self._records)
        calls, took_s = self._calls_noted + self._left - left, now - self._since
        self._since, self._calls_noted, self._left = now, 0, left
        return calls, took_s
