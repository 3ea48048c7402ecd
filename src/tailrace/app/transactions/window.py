"""Windows: when a transaction opens, closes or is aborted, and which records wait for a transaction of their own.

Pure: no clock, IO or logging.

A window is the time of one transaction, and the records that are delivered in it. It opens with the first record. At
the end of its interval, it is committed if all its records are finished; while a batch waits for more records, the
window may stay open for longer. If a record is not finished, the window is cut later: no further records start, the
running handlers finish, and the window is committed. Delivered records that have not started move to the next window.

Handlers that have finished wait for the others while a window ends. So a window is cut after a multiple of the time
that the end of the last cut window took, and early enough for the last record to finish within the transaction's
timeout. A window that can no longer be committed is aborted as a whole; after a failure, the next window is smaller.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from itertools import takewhile

from tailrace.errors import PublishError, TailraceError
from tailrace.records import Record, TopicPartition

__all__ = ["DeferredRecords", "Window", "WindowSettings", "WindowStep"]

_ABORT_SHARE = 0.8
"""Share of the transaction's timeout after which a window is aborted; the rest is time for the abort."""
_CUT_SHARE = 0.2
"""Share of the transaction's timeout after which a window is cut at the latest, unless its interval is longer."""
_MAX_HANDLER_SHARE = 0.5
"""Share of the transaction's timeout that a handler without a timeout may take at most."""
_MIN_HANDLER_SHARE = 0.1
"""Share of the transaction's timeout that a handler without a timeout may always take."""
_CUT_FACTOR = 4
"""Age at which a window is cut, as a multiple of the time that the end of the last cut window took."""


class WindowStep(StrEnum):
    """Action that the caller of ``Window.step`` has to take."""

    FEED = "deliver more records"
    DRAIN = "deliver no more records, and wait until the delivered records are finished"
    CUT = "deliver and start no more records, and wait until the running handlers have returned"
    COMMIT = "commit"
    ABORT = "abort"


@dataclass(frozen=True, slots=True)
class WindowSettings:
    """Limits of windows; times in seconds. The age of a window is the time since its first record was delivered."""

    interval_s: float
    """Age at which a window is committed if all its records are finished."""
    max_records: int
    """Maximum number of records of a window."""
    timeout_s: float
    """Time after which the broker aborts an open transaction."""
    batch_wait_s: float = 0.0
    """Age up to which a window stays open for a batch that waits for more records."""
    max_handler_s: float = 0.0
    """Longest time that a handler may take for a record or a batch."""

    @property
    def abort_age_s(self) -> float:
        """Age at which a window is aborted."""
        return self.timeout_s * _ABORT_SHARE

    @property
    def latest_cut_s(self) -> float:
        """Age at which a window is cut at the latest."""
        in_time_s = self.abort_age_s - self.max_handler_s
        return max(self.interval_s, min(self.timeout_s * _CUT_SHARE, in_time_s))

    def default_handler_timeout_s(self, batch_wait_s: float = 0.0) -> float:
        """Return the timeout of a handler without a timeout; a batch may wait ``batch_wait_s`` for more records."""
        last_start_s = max(batch_wait_s, self.interval_s, self.timeout_s * _CUT_SHARE)
        least_s, most_s = self.timeout_s * _MIN_HANDLER_SHARE, self.timeout_s * _MAX_HANDLER_SHARE
        return max(least_s, min(most_s, self.abort_age_s - last_start_s))


class Window:
    """Current window, and the size of the next window.

    A window that is closed takes no more records. A window that is cut starts no more records, either.

    Attributes:
        count: number of records delivered in the open window.
        opened_at: time of the first record; None while no window is open.
        abort_cause: reason why the window must be aborted; None while it may be committed.
        needs_backoff: True if the next window should open only after a pause, because of ``abort_cause``.
        is_late: True if the window must be aborted because its records took too long.
    """

    def __init__(self, settings: WindowSettings) -> None:
        self._settings = settings
        self._limit = settings.max_records
        self._is_closed = self._is_cut = False
        self._cut_since: float | None = None
        self._end_s = 0.0
        """Time from the cut to the commit of the last window that was cut."""
        self.count = 0
        self.opened_at: float | None = None
        self.abort_cause: TailraceError | None = None
        self.needs_backoff = self.is_late = False

    def __repr__(self) -> str:
        state = "aborting" if self.abort_cause else "closed" if self._is_closed else "open"
        state = state if self.is_open else "not open"
        return f"<Window {state} count={self.count}>"

    @property
    def is_open(self) -> bool:
        """True if a window is open."""
        return self.opened_at is not None

    @property
    def room(self) -> int:
        """Number of records that may still be delivered into the window."""
        return 0 if self._is_closed or self.abort_cause is not None else max(0, self._limit - self.count)

    # ---- events ------------------------------------------------------------------------------------------------

    def add(self, count: int, now: float) -> None:
        """Add delivered records, and open a window if none is open; ``count`` is 0 to commit only offsets."""
        if self.opened_at is None:
            self.opened_at = now
        self.count += count

    def close(self) -> None:
        """Take no more records into the open window."""
        self._is_closed = self.is_open

    def cut(self) -> None:
        """Take and start no more records, because a partition is revoked or the app stops."""
        self._is_closed = self._is_cut = self.is_open

    def require_abort(self, cause: TailraceError, *, needs_backoff: bool = True) -> None:
        """Require that the open window is aborted; of several causes, the first one is kept."""
        if self.is_open and self.abort_cause is None:
            self.abort_cause, self.needs_backoff = cause, needs_backoff

    def end_committed(self, now: float, *, carried: int = 0, is_searching: bool = False) -> None:
        """End a committed window; the next window may be twice as large, unless ``is_searching``.

        Args:
            now: time.
            carried: number of delivered records that have not started; if there are any, they open the next window.
            is_searching: True while windows are kept small to find a refused record.
        """
        if not is_searching:
            self._limit = min(self._settings.max_records, self._limit * 2)
        if self._cut_since is not None:
            self._end_s = now - self._cut_since
        self.end_empty(now, carried)

    def end_empty(self, now: float, carried: int) -> None:
        """End a window without anything to commit; records that have not started (``carried``) open the next window."""
        self._reset()
        if carried:
            self.add(carried, now)

    def end_aborted(self, *, shrink: bool = False) -> None:
        """End an aborted window; with ``shrink`` the next window has at most half as many records."""
        if shrink:
            self._limit = max(1, min(self.count, self._limit) // 2)
        self._reset()

    def _reset(self) -> None:
        self.count, self.opened_at, self.abort_cause, self._cut_since = 0, None, None, None
        self._is_closed = self._is_cut = self.needs_backoff = self.is_late = False

    # ---- decisions ---------------------------------------------------------------------------------------------

    def takes_records(self, now: float, *, is_gathering: bool) -> bool:
        """Return True if the window takes more records even if all records that were delivered so far are finished."""
        if self.opened_at is None or self.abort_cause is not None:
            return self.opened_at is None
        return self.room > 0 and now < self._commit_from(is_gathering=is_gathering)

    def step(self, now: float, *, is_done: bool, is_idle: bool = False, is_gathering: bool = False) -> WindowStep:
        """Return the next step, and note when the window was cut or became late.

        Args:
            now: time.
            is_done: True if all delivered records are finished.
            is_idle: True if no handler runs.
            is_gathering: True if a batch with records waits for more records.
        """
        if self.takes_records(now, is_gathering=is_gathering):
            return WindowStep.FEED
        if self.abort_cause is not None:
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
        if now < self._at(self._settings.abort_age_s):
            return WindowStep.CUT
        assert self.opened_at is not None
        self.is_late = True
        self.require_abort(
            PublishError(
                f"a transaction of {self.count} records was not finished within {now - self.opened_at:.1f} s, and the"
                f" broker aborts it after {self._settings.timeout_s:g} s - raise transaction_timeout_ms, or give the"
                " handler a shorter timeout_ms"
            ),
            needs_backoff=False,
        )
        return WindowStep.ABORT

    def next_deadline(self, now: float) -> float | None:
        """Return the time at which ``step`` may return another step without an event; None while no window is open."""
        if self.opened_at is None:
            return None
        times = [self._at(self._settings.abort_age_s)]
        if self.room:
            times += [self._commit_from(is_gathering=False), self._commit_from(is_gathering=True)]
        if not self._is_cut:
            times.append(self._at(self._cut_s))
        return min((time for time in times if now < time), default=times[0])

    @property
    def abort_at(self) -> float | None:
        """Time at which the open window is aborted if it is not committed before; None while no window is open."""
        return None if self.opened_at is None else self._at(self._settings.abort_age_s)

    def is_kept_open(self, now: float) -> bool:
        """Return True if a window is open whose interval is over, for example because a batch waits for records."""
        return self.opened_at is not None and now >= self._at(self._settings.interval_s)

    def has_time(self, seconds: float, now: float) -> bool:
        """Return True if a handler may take ``seconds`` from now on: the open window is not aborted before."""
        return self.abort_cause is None and (self.abort_at is None or now + seconds < self.abort_at)

    def is_timed_out(self, now: float) -> bool:
        """Return True if the transaction's timeout is over, so that the broker may have aborted the transaction."""
        return self.opened_at is not None and now >= self._at(self._settings.timeout_s)

    def _commit_from(self, *, is_gathering: bool) -> float:
        """Return the time from which the window is committed as soon as all its records are finished."""
        interval_s, batch_wait_s = self._settings.interval_s, self._settings.batch_wait_s
        return self._at(max(interval_s, batch_wait_s) if is_gathering else interval_s)

    @property
    def _cut_s(self) -> float:
        """Age at which the window is cut."""
        return min(self._settings.latest_cut_s, max(self._settings.interval_s, self._end_s * _CUT_FACTOR))

    def _at(self, age_s: float) -> float:
        """Return the time at which the window has the age ``age_s``.

        Times are compared instead of ages: ``now - opened_at`` is rounded, so at a deadline it may be below the age.
        """
        assert self.opened_at is not None
        return self.opened_at + age_s


@dataclass(slots=True)
class _DeferredRecord:
    offset: int
    due_at: float
    """Time from which the record may be handled again."""
    is_given_up: bool
    """True if the record is retried without a limit of attempts (``FailureAction.PAUSE``)."""


class DeferredRecords:
    """Records of one group that must not join the open transaction.

    A record whose next attempt must wait would make the transaction time out. The transaction cannot skip the record,
    since all records below a committed offset count as finished. So the records before the deferred record are
    committed first. Then the deferred record is handled in a transaction of its own, so that another failure makes no
    other record be handled again. Until it is finished, later records of its partition are not delivered. At most one
    record of each partition is deferred.

    The due time of a record that waits for a delay is set when the record is first read, on the clock of the event
    loop. If the wall clock is set back later, the record therefore does not wait longer than the delay of its topic.

    Args:
        delay_topics: names of the group's topics whose records are delivered when they are due.
        wait_s: returns the seconds until such a record is due.
    """

    def __init__(self, delay_topics: Collection[str], wait_s: Callable[[Record], float]) -> None:
        self._delay_topics, self._wait_s = delay_topics, wait_s
        self._deferred: dict[TopicPartition, _DeferredRecord] = {}
        self._due: dict[TopicPartition, dict[int, float]] = {}
        """Due times by offset of the uncommitted records that were read from these topics."""

    def __len__(self) -> int:
        return len(self._deferred)

    def __contains__(self, partition: object) -> bool:
        return partition in self._deferred

    @property
    def count_given_up(self) -> int:
        """Number of deferred records that are retried without a limit of attempts (``FailureAction.PAUSE``)."""
        return sum(one.is_given_up for one in self._deferred.values())

    def defer(self, partition: TopicPartition, offset: int, due_at: float, *, is_given_up: bool = True) -> None:
        """Defer the record at ``offset`` until ``due_at``; keep an earlier deferred record of the partition instead."""
        deferred = self._deferred.get(partition)
        if deferred is None or offset <= deferred.offset:
            self._deferred[partition] = _DeferredRecord(offset, due_at, is_given_up)

    def finish(self, partition: TopicPartition) -> None:
        """Remove the deferred record of a partition, because it is finished."""
        self._deferred.pop(partition, None)

    def note_read(self, records: Sequence[Record], now: float) -> None:
        """Set the due times of records of one partition that the consumer has returned, unless they are set already."""
        partition = records[0].topic_partition
        if partition.topic in self._delay_topics:
            due = self._due.setdefault(partition, {})
            for record in records:
                if record.offset not in due:
                    due[record.offset] = now + self._wait_s(record)

    def forget(self, partition: TopicPartition) -> None:
        """Forget a partition that was revoked, lost, sought or reset."""
        self._deferred.pop(partition, None)
        self._due.pop(partition, None)

    def forget_committed(self, offsets: Mapping[TopicPartition, int]) -> None:
        """Forget the due times of records below these committed offsets."""
        for partition in offsets.keys() & self._due.keys():
            due, committed = self._due[partition], offsets[partition]
            self._due[partition] = {offset: time for offset, time in due.items() if offset >= committed}

    def may_hold_back(self, partition: TopicPartition) -> bool:
        """Return True if records of a partition may have to wait; ``first_of`` decides for each record."""
        return bool(self._deferred) or partition.topic in self._delay_topics

    def room(self, partition: TopicPartition, delivered: int | None, room: int, now: float, *, is_open: bool) -> int:
        """Return how many records of a partition may be delivered.

        Args:
            partition: partition.
            delivered: next offset to deliver; None if unknown.
            room: number of records that may be delivered if none is deferred.
            now: time.
            is_open: True if a window is open, which the deferred record may not join.
        """
        deferred = self._deferred.get(partition)
        if deferred is None or not room:
            return room
        if delivered is not None and delivered < deferred.offset:
            return min(room, deferred.offset - delivered)
        return 1 if not is_open and now >= deferred.due_at else 0

    def reaches(self, partition: TopicPartition, offset: int) -> bool:
        """Return True if ``offset`` is that of the deferred record of the partition, or after it."""
        deferred = self._deferred.get(partition)
        return deferred is not None and offset >= deferred.offset

    def first_of(self, records: Sequence[Record], room: int, now: float) -> Sequence[Record]:
        """Return the first records of a partition that may be delivered now, at most ``room``; maybe none.

        A record that waits for a transaction of its own is delivered without other records.
        """
        partition = records[0].topic_partition
        deferred = self._deferred.get(partition)
        if deferred is not None and records[0].offset >= deferred.offset:
            room = 1
        elif deferred is not None:
            records = [one for one in records if one.offset < deferred.offset]
        taken = records[:room]
        if (due := self._due.get(partition)) is None:
            return taken
        return list(takewhile(lambda one: due.get(one.offset, now) <= now, taken))

    def next_due_at(
        self, now: float, delivered: Mapping[TopicPartition, int | None], waiting: Iterable[Record] = ()
    ) -> float | None:
        """Return the time after ``now`` at which the next waiting record is due; None if no record has a due time.

        A deferred record counts if it is the next record to deliver.

        Args:
            now: time.
            delivered: next offset to deliver of each partition.
            waiting: first waiting record of each partition.
        """
        times = [
            one.due_at
            for partition, one in self._deferred.items()
            if (at := delivered.get(partition)) is not None and at >= one.offset
        ]
        times += [self._due.get(record.topic_partition, {}).get(record.offset, now) for record in waiting]
        return min((time for time in times if time > now), default=None)
