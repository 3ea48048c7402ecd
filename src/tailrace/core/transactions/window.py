"""When a transaction opens, gathers, closes or is given up; and which records wait outside until they are tried again.

Rule of this file: pure. A window opens with the first record that is handed out. It is committed at the end of its
interval if all that it took is finished. Otherwise it is cut: no further record starts, those in flight finish, and it
is committed; records that have not started belong to the next one. The cut comes after a few times what the end of the
last window took, so that little time is lost by ends, and never so late that a record may outlast the transaction.
What can no longer be committed is aborted as a whole, and the next window is smaller.
A batch that is not full at the end of the interval may still become so, while its window stays open for it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum

from tailrace.errors import PublishError, TailraceError
from tailrace.records import Record, TopicPartition

__all__ = ["DeferredOffsets", "Window", "WindowSettings", "WindowStep"]

_SHARE = 0.8
"""Of the transaction's timeout."""
_TARGET_SHARE = 0.2
"""Of the same: no window starts records for longer, unless its interval is longer."""
_WORK_SHARE = 0.5
"""Of the same: how long a handler without a timeout of its own may take."""
_LEAST_WORK_SHARE = 0.1
"""Of the same: how long it may take at least, however long its batches are gathered."""
_ENDS = 4
"""A window starts records for so many times as long as the end of the last one took."""


class WindowStep(StrEnum):
    """What is to be done with a window."""

    FEED = "hand out more"
    DRAIN = "wait until what was handed out is finished"
    CUT = "start nothing more, and wait until what runs is finished"
    COMMIT = "commit"
    ABORT = "abort"


@dataclass(frozen=True, slots=True)
class WindowSettings:
    """What the options say; times in seconds."""

    interval_s: float
    """How long a transaction gathers."""
    max_records: int
    timeout_s: float
    """The broker aborts a transaction that is open for longer."""
    gathers_s: float = 0.0
    """How long it stays open for a batch that is not full, since its first record."""
    works_s: float = 0.0
    """How long a handler may take for a record or a batch."""

    @property
    def longest_s(self) -> float:
        """How long one may wait for its records before it is taken back; the rest of its time is for its end."""
        return self.timeout_s * _SHARE

    @property
    def target_s(self) -> float:
        """How long one may start records."""
        in_time_s = self.longest_s - self.works_s
        return max(self.interval_s, min(self.timeout_s * _TARGET_SHARE, in_time_s))

    def work_share_s(self, gathers_s: float = 0.0) -> float:
        """How long a handler without a timeout of its own may take for a batch gathered for so long, or a record."""
        starts_s = max(gathers_s, self.interval_s, self.timeout_s * _TARGET_SHARE)
        least_s, most_s = self.timeout_s * _LEAST_WORK_SHARE, self.timeout_s * _WORK_SHARE
        return max(least_s, min(most_s, self.longest_s - starts_s))


class Window:
    """One transaction after the other.

    Attributes:
        count: records that the open one has taken.
        opened_at: when the first was; None while none is open.
        doomed_by: why the open one cannot be committed; None while it can.
        is_at_fault: whether that is a failure, after which one waits a little, and no change of plan.
        is_late: whether it is that its records took too long.
    """

    def __init__(self, settings: WindowSettings) -> None:
        self._settings = settings
        self._limit = settings.max_records
        self._is_closing = self._is_cut = False
        self._cut_since: float | None = None
        self._end_s = 0.0
        """How long the end of the last window took that was cut."""
        self.count = 0
        self.opened_at: float | None = None
        self.doomed_by: TailraceError | None = None
        self.is_at_fault = self.is_late = False

    def __repr__(self) -> str:
        state = "doomed" if self.doomed_by else "closing" if self._is_closing else "open" if self.is_open else "shut"
        return f"<Window {state} count={self.count}>"

    @property
    def is_open(self) -> bool:
        """Whether records of it are handed out."""
        return self.opened_at is not None

    @property
    def room(self) -> int:
        """How many more records may be handed out."""
        return 0 if self._is_closing or self.doomed_by is not None else max(0, self._limit - self.count)

    # ---- what happens ------------------------------------------------------------------------------------------

    def took(self, count: int, now: float) -> None:
        """Records are handed out; the first of them open it."""
        if self.opened_at is None:
            self.opened_at = now
        self.count += count

    def close(self) -> None:
        """Take no more."""
        self._is_closing = self.is_open

    def cut(self) -> None:
        """Take no more, start no more, and commit: a partition has to be given back, or all has to end."""
        self._is_closing = self._is_cut = self.is_open

    def doom(self, error: TailraceError, *, is_at_fault: bool = True) -> None:
        """It cannot be committed any more; the first reason counts."""
        if self.is_open and self.doomed_by is None:
            self.doomed_by, self.is_at_fault = error, is_at_fault

    def committed(self, now: float, *, carried: int = 0, is_searching: bool = False) -> None:
        """It is over, and all is well: the next one may be twice as large, if what had made it small is done with.

        Args:
            now: the time.
            carried: records that were handed out and have not started; with them the next one is open.
            is_searching: whether what had made it small is still looked for.
        """
        if not is_searching:
            self._limit = min(self._settings.max_records, self._limit * 2)
        if self._cut_since is not None:
            self._end_s = now - self._cut_since
        self.carry_on(now, carried)

    def carry_on(self, now: float, carried: int) -> None:
        """Begin the next one, with records that were handed out and have not started; without any it is not open."""
        self._shut()
        if carried:
            self.took(carried, now)

    def aborted(self, *, shrink: bool = False) -> None:
        """It is over; with ``shrink`` the next one is half as large: less is repeated, what is too much is found."""
        if shrink:
            self._limit = max(1, min(self.count, self._limit) // 2)
        self._shut()

    def _shut(self) -> None:
        self.count, self.opened_at, self.doomed_by, self._cut_since = 0, None, None, None
        self._is_closing = self._is_cut = self.is_at_fault = self.is_late = False

    # ---- what follows ------------------------------------------------------------------------------------------

    def takes(self, now: float, *, is_gathering: bool) -> bool:
        """Whether more is handed out, whatever is finished."""
        if self.opened_at is None or self.doomed_by is not None:
            return self.opened_at is None
        return self.room > 0 and now < self._gathers_until(is_gathering=is_gathering)

    def step(self, now: float, *, is_done: bool, is_idle: bool = False, is_gathering: bool = False) -> WindowStep:
        """What is to be done now.

        Args:
            now: the time.
            is_done: whether all that was handed out is finished.
            is_idle: whether nothing of it runs.
            is_gathering: whether some of it waits in a batch for more.
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
        """When ``step`` will say something else by itself; None when it will not."""
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
        """When the open one is aborted, if it is not committed."""
        return None if self.opened_at is None else self._at(self._settings.longest_s)

    def is_kept_open(self, now: float) -> bool:
        """Whether it is open for the sake of a batch alone."""
        return self.opened_at is not None and now >= self._at(self._settings.interval_s)

    def has_time(self, seconds: float, now: float) -> bool:
        """Whether something that takes so long can still be part of it."""
        return self.doomed_by is None and (self.gives_up_at is None or now + seconds < self.gives_up_at)

    def is_timed_out(self, now: float) -> bool:
        """Whether the broker may have aborted the open one by itself."""
        return self.opened_at is not None and now >= self._at(self._settings.timeout_s)

    def _gathers_until(self, *, is_gathering: bool) -> float:
        """When it takes no more if all of it is finished."""
        interval_s, gathers_s = self._settings.interval_s, self._settings.gathers_s
        return self._at(max(interval_s, gathers_s) if is_gathering else interval_s)

    @property
    def _cut_s(self) -> float:
        """How old it is when it is cut."""
        return min(self._settings.target_s, max(self._settings.interval_s, self._end_s * _ENDS))

    def _at(self, age_s: float) -> float:
        """When the open one is so old. No age is computed: rounded, it may contradict the moment that was named."""
        assert self.opened_at is not None
        return self.opened_at + age_s


@dataclass(slots=True)
class _Stop:
    offset: int
    due_at: float
    is_given_up: bool


class DeferredOffsets:
    """Records that have to wait for longer than a transaction may: each stops its partition, until it is tried again.

    A transaction cannot wait for such a record, since it would time out, and cannot pass it, since the group's offset
    has no holes. So what comes before it is committed without it, and then it is tried now and then in a transaction
    of its own: when that fails again, nothing else has to be done again.
    """

    def __init__(self) -> None:
        self._stops: dict[TopicPartition, _Stop] = {}

    def __len__(self) -> int:
        return len(self._stops)

    def __contains__(self, partition: object) -> bool:
        return partition in self._stops

    @property
    def given_up(self) -> int:
        """How many of them failed for good."""
        return sum(stop.is_given_up for stop in self._stops.values())

    def put(self, partition: TopicPartition, offset: int, due_at: float, *, is_given_up: bool = True) -> None:
        """Stop a partition before ``offset``, where a record failed for good or waits; of several, the first counts."""
        stop = self._stops.get(partition)
        if stop is None or offset <= stop.offset:
            self._stops[partition] = _Stop(offset, due_at, is_given_up)

    def lift(self, partition: TopicPartition) -> None:
        """The record is finished, or is another's."""
        self._stops.pop(partition, None)

    def room(self, partition: TopicPartition, delivered: int | None, room: int, now: float, *, is_open: bool) -> int:
        """How much of ``room`` a partition that was read up to ``delivered`` may have.

        Args:
            partition: which.
            delivered: the next offset to be handed out.
            room: how much there is.
            now: the time.
            is_open: whether a transaction is: the record that stops a partition wants one of its own.
        """
        stop = self._stops.get(partition)
        if stop is None or not room:
            return room
        if delivered is not None and delivered < stop.offset:
            return min(room, stop.offset - delivered)
        return 1 if not is_open and now >= stop.due_at else 0

    def is_stopped_at(self, partition: TopicPartition, offset: int) -> bool:
        """Whether a record is the one that stops its partition, or behind it."""
        stop = self._stops.get(partition)
        return stop is not None and offset >= stop.offset

    def before(self, partition: TopicPartition, records: Sequence[Record]) -> Sequence[Record]:
        """Those of ``records`` that come before the one that stops their partition."""
        stop = self._stops.get(partition)
        return records if stop is None else [one for one in records if one.offset < stop.offset]

    def next_due_at(self, now: float, delivered: Mapping[TopicPartition, int | None]) -> float | None:
        """When the next of those that were reached may be tried again; None when none of them is due later."""
        return min(
            (
                stop.due_at
                for partition, stop in self._stops.items()
                if stop.due_at > now and (at := delivered.get(partition)) is not None and at >= stop.offset
            ),
            default=None,
        )
