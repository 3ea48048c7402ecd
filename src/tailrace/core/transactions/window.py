"""Windows: when a transaction opens, closes or is aborted, and which records wait for a transaction of their own.

A window opens with the first record that is delivered. The window is committed at the end of its interval if all its
records are finished; it stays open past its interval while a batch is not full. If a record is not finished, the window
is cut later: no further records start, the records in flight finish, and the window is committed. Records that have not
started belong to the next window. A window is cut after a multiple of the time that the end of the last window took, so
that ends take a small share of the time, and never so late that a record may outlast the transaction. A window that can
no longer be committed is aborted as a whole; after a failure, the next window is smaller.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum

from tailrace.errors import PublishError, TailraceError
from tailrace.records import Record, TopicPartition

__all__ = ["DeferredOffsets", "Window", "WindowSettings", "WindowStep"]

_SHARE = 0.8
"""Share of the transaction's timeout after which the transaction is aborted."""
_TARGET_SHARE = 0.2
"""Share of the timeout during which a window starts records, unless its interval is longer."""
_WORK_SHARE = 0.5
"""Share of the transaction's timeout that a handler without a timeout may take."""
_LEAST_WORK_SHARE = 0.1
"""Least share that a handler without a timeout may take, however long its batches are gathered."""
_ENDS = 4
"""Time for which a window starts records, as a multiple of the time that the end of the last window took."""


class WindowStep(StrEnum):
    """Next step of a window."""

    FEED = "deliver more"
    DRAIN = "wait until the delivered records are finished"
    CUT = "start nothing more, and wait for the running handlers"
    COMMIT = "commit"
    ABORT = "abort"


@dataclass(frozen=True, slots=True)
class WindowSettings:
    """Limits of windows; times in seconds."""

    interval_s: float
    """Time in which a transaction takes records."""
    max_records: int
    timeout_s: float
    """Time after which the broker aborts an open transaction."""
    gathers_s: float = 0.0
    """Time for which a window waits for a batch to fill, counted from the first record of the window."""
    works_s: float = 0.0
    """Longest time that a handler may take for a record or a batch."""

    @property
    def longest_s(self) -> float:
        """Age at which a window is aborted; the rest of the timeout is for the abort."""
        return self.timeout_s * _SHARE

    @property
    def target_s(self) -> float:
        """Longest time in which a window starts records."""
        in_time_s = self.longest_s - self.works_s
        return max(self.interval_s, min(self.timeout_s * _TARGET_SHARE, in_time_s))

    def work_share_s(self, gathers_s: float = 0.0) -> float:
        """Return the timeout of a handler that declares none, for a record or a batch gathered for ``gathers_s``."""
        starts_s = max(gathers_s, self.interval_s, self.timeout_s * _TARGET_SHARE)
        least_s, most_s = self.timeout_s * _LEAST_WORK_SHARE, self.timeout_s * _WORK_SHARE
        return max(least_s, min(most_s, self.longest_s - starts_s))


class Window:
    """State of the current transaction, and the size of the next one.

    Attributes:
        count: records delivered in the open window.
        opened_at: time of the first record; None while no window is open.
        doomed_by: reason why the window cannot be committed; None while it can.
        is_at_fault: True if ``doomed_by`` is a failure after which the next window waits for a backoff.
        is_late: True if the records took too long.
    """

    def __init__(self, settings: WindowSettings) -> None:
        self._settings = settings
        self._limit = settings.max_records
        self._is_closing = self._is_cut = False
        self._cut_since: float | None = None
        self._end_s = 0.0
        """Time that the end of the last cut window took."""
        self.count = 0
        self.opened_at: float | None = None
        self.doomed_by: TailraceError | None = None
        self.is_at_fault = self.is_late = False

    def __repr__(self) -> str:
        state = "doomed" if self.doomed_by else "closing" if self._is_closing else "open" if self.is_open else "shut"
        return f"<Window {state} count={self.count}>"

    @property
    def is_open(self) -> bool:
        """True if records were delivered that are not committed."""
        return self.opened_at is not None

    @property
    def room(self) -> int:
        """Number of records that may still be delivered."""
        return 0 if self._is_closing or self.doomed_by is not None else max(0, self._limit - self.count)

    # ---- what happens ------------------------------------------------------------------------------------------

    def took(self, count: int, now: float) -> None:
        """Add delivered records; the first records open the window."""
        if self.opened_at is None:
            self.opened_at = now
        self.count += count

    def close(self) -> None:
        """Take no more records."""
        self._is_closing = self.is_open

    def cut(self) -> None:
        """Take and start no more records, and commit: a partition is revoked, or the app stops."""
        self._is_closing = self._is_cut = self.is_open

    def doom(self, error: TailraceError, *, is_at_fault: bool = True) -> None:
        """Mark the window to be aborted; of several reasons, the first one counts."""
        if self.is_open and self.doomed_by is None:
            self.doomed_by, self.is_at_fault = error, is_at_fault

    def committed(self, now: float, *, carried: int = 0, is_searching: bool = False) -> None:
        """Close a committed window; the next window may be twice as large, unless ``is_searching``.

        Args:
            now: time.
            carried: number of delivered records that have not started; if there are any, they open the next window.
            is_searching: True while windows are kept small to find a refused record.
        """
        if not is_searching:
            self._limit = min(self._settings.max_records, self._limit * 2)
        if self._cut_since is not None:
            self._end_s = now - self._cut_since
        self.carry_on(now, carried)

    def carry_on(self, now: float, carried: int) -> None:
        """Open the next window with ``carried`` records that have not started; if there are none, open no window."""
        self._shut()
        if carried:
            self.took(carried, now)

    def aborted(self, *, shrink: bool = False) -> None:
        """Close an aborted window; with ``shrink`` the next window is half as large."""
        if shrink:
            self._limit = max(1, min(self.count, self._limit) // 2)
        self._shut()

    def _shut(self) -> None:
        self.count, self.opened_at, self.doomed_by, self._cut_since = 0, None, None, None
        self._is_closing = self._is_cut = self.is_at_fault = self.is_late = False

    # ---- what follows ------------------------------------------------------------------------------------------

    def takes(self, now: float, *, is_gathering: bool) -> bool:
        """Return True if more records are delivered, whether or not earlier records are finished."""
        if self.opened_at is None or self.doomed_by is not None:
            return self.opened_at is None
        return self.room > 0 and now < self._gathers_until(is_gathering=is_gathering)

    def step(self, now: float, *, is_done: bool, is_idle: bool = False, is_gathering: bool = False) -> WindowStep:
        """Return the next step.

        Args:
            now: time.
            is_done: True if all delivered records are finished.
            is_idle: True if no handler runs.
            is_gathering: True if a batch with records waits for more records.
        """
        if self.takes(now, is_gathering=is_gathering):
            return WindowStep.FEED
        if self.doomed_by is not None:
            return WindowStep.ABORT
        if is_done:
            return WindowStep.COMMIT
        if not self._is_cut and now < self._at(self._cut_s):
            return WindowStep.FEED if self.room else WindowStep.DRAIN
        return self._step_when_cut(now, is_idle=is_idle)

    def _step_when_cut(self, now: float, *, is_idle: bool) -> WindowStep:
        if self._cut_since is None:
            self._cut_since = now
        if is_idle:
            return WindowStep.COMMIT
        if now < self._at(self._settings.longest_s):
            return WindowStep.CUT
        assert self.opened_at is not None
        self.is_late = True
        self.doom(
            PublishError(
                f"a transaction of {self.count} records was not finished within {now - self.opened_at:.1f} s, and the"
                f" broker aborts it after {self._settings.timeout_s:g} s - raise transaction_timeout_ms, or give the"
                " handler a timeout_ms that is shorter"
            ),
            is_at_fault=False,
        )
        return WindowStep.ABORT

    def next_deadline(self, now: float) -> float | None:
        """Return the time at which ``step`` changes without an event; None while no window is open."""
        if self.opened_at is None:
            return None
        moments = [self._at(self._settings.longest_s)]
        if self.room:
            moments += [self._gathers_until(is_gathering=False), self._gathers_until(is_gathering=True)]
        if not self._is_cut:
            moments.append(self._at(self._cut_s))
        return min((moment for moment in moments if now < moment), default=moments[0])

    @property
    def gives_up_at(self) -> float | None:
        """Time at which the open window is aborted if it is not committed."""
        return None if self.opened_at is None else self._at(self._settings.longest_s)

    def is_kept_open(self, now: float) -> bool:
        """Return True if the window has been open for longer than its interval, as for a batch."""
        return self.opened_at is not None and now >= self._at(self._settings.interval_s)

    def has_time(self, seconds: float, now: float) -> bool:
        """Return True if the open window can wait for ``seconds``."""
        return self.doomed_by is None and (self.gives_up_at is None or now + seconds < self.gives_up_at)

    def is_timed_out(self, now: float) -> bool:
        """Return True if the transaction's timeout is over, so that the broker may have aborted it."""
        return self.opened_at is not None and now >= self._at(self._settings.timeout_s)

    def _gathers_until(self, *, is_gathering: bool) -> float:
        """Return the time from which finished records are committed."""
        interval_s, gathers_s = self._settings.interval_s, self._settings.gathers_s
        return self._at(max(interval_s, gathers_s) if is_gathering else interval_s)

    @property
    def _cut_s(self) -> float:
        """Age at which the window is cut."""
        return min(self._settings.target_s, max(self._settings.interval_s, self._end_s * _ENDS))

    def _at(self, age_s: float) -> float:
        """Return the time at which the window has the age ``age_s``.

        Times are compared instead of ages, because a rounded age could contradict a deadline that was returned.
        """
        assert self.opened_at is not None
        return self.opened_at + age_s


@dataclass(slots=True)
class _Stop:
    offset: int
    due_at: float
    is_given_up: bool


class DeferredOffsets:
    """Records that wait longer than a transaction may last; each stops its partition until the record is tried again.

    A transaction would time out while it waits for such a record. It cannot skip the record, since all records below a
    committed offset count as finished. So the records before it are committed first, and then the record is tried in a
    transaction of its own, whose failure repeats no other record.
    """

    def __init__(self) -> None:
        self._stops: dict[TopicPartition, _Stop] = {}

    def __len__(self) -> int:
        return len(self._stops)

    def __contains__(self, partition: object) -> bool:
        return partition in self._stops

    @property
    def given_up(self) -> int:
        """Number of records that have failed permanently."""
        return sum(stop.is_given_up for stop in self._stops.values())

    def put(self, partition: TopicPartition, offset: int, due_at: float, *, is_given_up: bool = True) -> None:
        """Stop a partition before ``offset``, where a record failed or waits; of several offsets, the lowest counts."""
        stop = self._stops.get(partition)
        if stop is None or offset <= stop.offset:
            self._stops[partition] = _Stop(offset, due_at, is_given_up)

    def lift(self, partition: TopicPartition) -> None:
        """Let a partition continue, because the stopped record is finished or the partition was revoked."""
        self._stops.pop(partition, None)

    def room(self, partition: TopicPartition, delivered: int | None, room: int, now: float, *, is_open: bool) -> int:
        """Return how many records of a partition may be delivered.

        Args:
            partition: partition.
            delivered: next offset to deliver.
            room: limit for any partition.
            now: time.
            is_open: True if a window is open. The record that stops a partition needs a window of its own.
        """
        stop = self._stops.get(partition)
        if stop is None or not room:
            return room
        if delivered is not None and delivered < stop.offset:
            return min(room, stop.offset - delivered)
        return 1 if not is_open and now >= stop.due_at else 0

    def is_stopped_at(self, partition: TopicPartition, offset: int) -> bool:
        """Return True if the record stops its partition, or comes after the record that does."""
        stop = self._stops.get(partition)
        return stop is not None and offset >= stop.offset

    def before(self, partition: TopicPartition, records: Sequence[Record]) -> Sequence[Record]:
        """Return the records before the record that stops the partition."""
        stop = self._stops.get(partition)
        return records if stop is None else [one for one in records if one.offset < stop.offset]

    def next_due_at(self, now: float, delivered: Mapping[TopicPartition, int | None]) -> float | None:
        """Return the earliest future attempt among the records that are next in their partitions; None without one."""
        return min(
            (
                stop.due_at
                for partition, stop in self._stops.items()
                if stop.due_at > now and (at := delivered.get(partition)) is not None and at >= stop.offset
            ),
            default=None,
        )
