"""Order of the records of one handler: the records of a lane are handled one after the other.

A lane is a partition (``order_by="partition"``), a key within a partition (``"key"``), or a single record (``"none"``).
Lanes of different partitions never mix. With ``"key"``, records without a key share one lane of their partition; an
empty key is a key like any other.

Only records whose handler *suspends* are tracked. Between two suspensions a worker iterates over ``free``. With
``order_by="partition"``, a slice waits as a whole while one of its records is suspended. With ``"key"``, all workers
share a slice, and a record whose lane is busy is parked. Records are also parked with ``"partition"`` if other handlers
read the same partitions, since a waiting slice would make those handlers wait, too. At any time at most one record is
taken but neither suspended nor finished, since a worker awaits nothing between ``take`` and ``suspended``.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from operator import length_hint
from typing import Literal, NamedTuple, TypeAlias

import msgspec

from tailrace.core.delivery.progress import Lease
from tailrace.records import Record, TopicPartition

__all__ = ["FEW_RECORDS", "Lanes", "OrderBy", "QueuedRecord"]

OrderBy: TypeAlias = Literal["partition", "key", "none"]

Lane: TypeAlias = bytes | None
"""Key of the lane; None for records without a key, and for all records if the partition is the lane."""

FEW_RECORDS = 64
"""Number of records that are read together before the handler runs, if they come in smaller slices."""

_NONE: Iterator[Record] = iter(())


class QueuedRecord(msgspec.Struct, eq=False):
    """Record that runs or may run next."""

    record: Record
    lease: Lease
    """Lease that the record was taken from."""
    stock: _PartitionStock
    """Waiting records of the record's partition."""
    is_started: bool = False
    """True if the record is suspended or was parked, so that ``finished`` has to be called."""
    is_failing: bool = False
    """True while the record counts as failing, from ``failed`` to ``recovered``."""
    parked: deque[QueuedRecord] | None = None
    """Records that are parked in the lane of this record."""


class _PartitionStock:
    """Waiting records of one partition."""

    __slots__ = ("busy", "failing", "full_lanes", "parked", "slices")

    def __init__(self) -> None:
        self.busy: dict[Lane, QueuedRecord] = {}
        """Busy lanes, each with its suspended record."""
        self.slices: deque[_LaneSlice] = deque()
        """Slices that wait for their turn, in order."""
        self.failing = 0
        """Number of failed records that will be retried."""
        self.full_lanes = 0
        """Number of lanes with ``lane_limit`` parked records or more."""
        self.parked = 0
        """Number of parked records."""


class _LaneSlice(NamedTuple):
    """Slice of a partition, and the waiting records of the partition."""

    stock: _PartitionStock
    lease: Lease


class Lanes:
    """Queue of the records of one handler.

    Args:
        order_by: order in which records are handled.
        window: maximum number of records that wait to start or to be retried.
        on_full: called when a lane reaches ``lane_limit``, or when a partition accepts no more records because so many
            have failed. The arguments are a record, and the number of records that are parked in its lane, or that are
            parked or have failed in its partition.
        is_shared: True if other handlers read the same partitions.

    Attributes:
        parked: number of records that wait for an earlier record of their lane.
        failing: number of failed records that are not finished; not counted if slices wait as a whole.
        lane_limit: number of parked records with which one lane keeps its partition from accepting more slices. It is
            half the window, so that a poisoned key blocks its partition late and other partitions never.
    """

    def __init__(
        self,
        order_by: OrderBy,
        window: int,
        *,
        on_full: Callable[[QueuedRecord, int], object] = lambda _work, _waiting: None,
        is_shared: bool = False,
    ) -> None:
        self.order_by = order_by
        self.window = window
        self.lane_limit = max(1, window // 2)
        self.parked = self.failing = 0
        self._on_full = on_full
        self._is_by_key = order_by == "key"
        self._waits_whole = order_by == "partition" and not is_shared
        """True if a slice waits as a whole while one of its records is suspended."""
        self._stocks: dict[TopicPartition, _PartitionStock] = {}
        self._turn: deque[_PartitionStock] = deque()
        """Partitions other than the current one that have a slice to run, the next partition first."""
        self._ready: deque[QueuedRecord] = deque()
        """Parked records whose turn has come."""
        self._slice: _LaneSlice | None = None
        """Current slice, from which all workers take."""
        self._left = _NONE
        """Records of the current slice that were not taken."""
        self._busy: dict[Lane, QueuedRecord] = {}
        """Busy lanes of the current partition."""
        self._last_slice: _LaneSlice | None = None
        """Slice of the record taken last, even if it was dropped since."""
        self._in_turn = 0
        """Number of records in slices other than the current one."""

    # ---- adding ------------------------------------------------------------------------------------------------

    def add(self, lease: Lease, _now: float = 0.0) -> None:
        """Add the next slice of a partition, with at most ``room_of`` records."""
        stock = self._stocks.get(lease.partition)
        if stock is None:
            stock = self._stocks[lease.partition] = _PartitionStock()
        stock.slices.append(_LaneSlice(stock, lease))
        self._in_turn += lease.count
        is_waiting = self._waits_whole and stock.busy
        if len(stock.slices) == 1 and not is_waiting and not self._is_current(stock):
            self._turn.append(stock)

    def room_of(self, partition: TopicPartition) -> int:
        """Return how many records of a partition may be added now; 0 while added records would only wait.

        A partition may hold up to twice as many records as the window has free places. All partitions then tend to hold
        equally many, and a lagging partition is not crowded out (dynamic thresholds: Choudhury and Hahne, 1998). If
        slices wait as a whole, a partition may hold half as many records as there are free places. A partition that
        holds no records always has room for one record, whatever fails in other partitions; if slices wait as a whole,
        only while at most a few records wait. Otherwise several partitions would halve each other's slices again and
        again, down to a few records, although each slice costs as much time as many records.
        """
        stock, left = self._stocks.get(partition), self.window - self.waiting - self.failing
        if self._waits_whole:
            may_run = self._turn or length_hint(self._left)
            is_full = may_run and self.waiting > min(FEW_RECORDS, self.window // 4)
            return 0 if is_full or (stock is not None and stock.busy) else max(1, (left + 1) // 2)
        held = 0 if stock is None else self._held_of(stock) + stock.failing
        if stock is not None and stock.full_lanes:
            return 0
        return max(0 if held else 1, (2 * left - held + 2) // 3)

    # ---- running -----------------------------------------------------------------------------------------------

    @property
    def free(self) -> Iterator[Record]:
        """Records of the current slice that may run without ``take``, until one of them suspends."""
        return _NONE if self._busy or self._ready else self._left

    def work_of(self, record: Record) -> QueuedRecord:
        """Return ``record``, which was just taken from ``free``, as ``take`` would have returned it."""
        assert self._last_slice is not None
        return QueuedRecord(record, self._last_slice.lease, self._last_slice.stock)

    def take(self) -> QueuedRecord | None:
        """Return the next record to run; None if no record may run now.

        The record taken before must be finished or suspended.
        """
        self.release_last()
        if self._ready:
            ready = self._ready.popleft()
            self.parked -= 1
            ready.stock.parked -= 1
            return ready
        while True:
            busy, current, is_by_key = self._busy, self._slice, self._is_by_key
            for record in self._left:
                assert current is not None
                work = QueuedRecord(record, current.lease, current.stock)
                if not busy or (record.key if is_by_key else None) not in busy:
                    current.lease.hold_last()
                    return work
                self._park(work)
            if not self._open_slice():
                return None

    def release_last(self) -> None:
        """Note that the record taken last is finished, or suspended."""
        if self._last_slice is not None:
            self._last_slice.lease.release_last()

    def suspended(self, work: QueuedRecord) -> None:
        """Mark the lane of a record as busy until it is finished, because its handler suspended."""
        if work.is_started:
            return
        self._start(work)
        self.release_last()
        if self.order_by == "none":
            return
        lane = self._lane_of(work)
        assert lane not in work.stock.busy, "two records of one lane run at a time"
        work.stock.busy[lane] = work
        if self._waits_whole and self._slice is not None and self._slice.stock is work.stock:
            self._set_aside(self._slice)

    def finished(self, work: QueuedRecord) -> None:
        """Finish a suspended or parked record, whatever its outcome, so that the next record of its lane may run.

        Records of dropped partitions have to be finished, too.
        """
        work.lease.progress.finish(work.record.offset)
        stock, lane = work.stock, self._lane_of(work)
        if stock.busy.get(lane) is not work:
            return
        if work.parked:
            stock.full_lanes -= len(work.parked) == self.lane_limit
            following = stock.busy[lane] = work.parked.popleft()
            following.parked, work.parked = work.parked, None
            self._ready.append(following)
            return
        del stock.busy[lane]
        if self._waits_whole and stock.slices:
            self._turn.appendleft(stock)

    def failed(self, work: QueuedRecord) -> None:
        """Count a record as failing until ``recovered``, because the record will be retried."""
        stock = work.stock
        if self._waits_whole or work.is_failing:
            return
        work.is_failing = True
        self.failing += 1
        stock.failing += 1
        stuck = stock.parked + stock.failing
        if stuck >= 2 * (self.window - self.parked - self.failing):
            self._on_full(work, stuck)

    def recovered(self, work: QueuedRecord) -> None:
        """Undo ``failed``: the record will not be retried, and ``finished`` is called next."""
        if work.is_failing:
            work.is_failing = False
            self.failing -= 1
            work.stock.failing -= 1

    # ---- dropping ----------------------------------------------------------------------------------------------

    def drop(self, partition: TopicPartition) -> tuple[list[Lease], list[QueuedRecord]]:
        """Forget the waiting records of a partition; return the leases of untaken records, and the parked records.

        The lane of a running record stays busy until the record is finished, so that no two records of a lane overlap
        in this process, even after a seek or a reassignment.
        """
        stock = self._stocks.get(partition)
        if stock is None:
            return [], []
        leases = [one.lease for one in stock.slices]
        self._in_turn -= sum(lease.count for lease in leases)
        stock.slices.clear()
        if self._slice is not None and self._is_current(stock):
            leases.append(self._slice.lease)
            self._slice, self._left, self._busy = None, _NONE, {}
        elif stock in self._turn:
            self._turn.remove(stock)
        parked = [work for work in self._ready if work.stock is stock]
        self._ready = deque(work for work in self._ready if work.stock is not stock)
        for work in stock.busy.values():
            parked += work.parked or ()
            work.parked = None
        for work in parked:
            if stock.busy.get(self._lane_of(work)) is work:
                del stock.busy[self._lane_of(work)]
        self.parked -= len(parked)
        stock.full_lanes = stock.parked = 0
        return leases, parked

    # ---- counts ------------------------------------------------------------------------------------------------

    @property
    def ready(self) -> list[Record]:
        """Parked records whose turn has come."""
        return [work.record for work in self._ready]

    @property
    def waiting(self) -> int:
        """Number of records that were not taken."""
        return self.parked + self._in_turn + length_hint(self._left)

    def held_of(self, partition: TopicPartition) -> int:
        """Return how many records of a partition were not taken."""
        stock = self._stocks.get(partition)
        return 0 if stock is None else self._held_of(stock)

    def parked_of(self, partition: TopicPartition, key: bytes | None) -> int:
        """Return how many records are parked in a lane."""
        stock = self._stocks.get(partition)
        work = stock.busy.get(key if self._is_by_key else None) if stock is not None else None
        return len(work.parked) if work is not None and work.parked else 0

    # ---- inside ------------------------------------------------------------------------------------------------

    def _held_of(self, stock: _PartitionStock) -> int:
        current = length_hint(self._left) if self._is_current(stock) else 0
        return stock.parked + current + sum(one.lease.count for one in stock.slices)

    def _is_current(self, stock: _PartitionStock | None) -> bool:
        return self._slice is not None and self._slice.stock is stock

    def _lane_of(self, work: QueuedRecord) -> Lane:
        return work.record.key if self._is_by_key else None

    def _open_slice(self) -> bool:
        """Open the next slice; the partition of the previous slice goes to the end of the turn."""
        last = self._slice
        self._close_slice()
        if last is not None and last.stock.slices:
            self._turn.append(last.stock)
        if not self._turn:
            return False
        stock = self._turn.popleft()
        self._slice = self._last_slice = stock.slices.popleft()
        self._left, self._busy = self._slice.lease.left, stock.busy
        self._in_turn -= length_hint(self._left)
        return True

    def _close_slice(self) -> None:
        if self._slice is not None:
            self._slice.lease.close_if_done()
        self._slice, self._left, self._busy = None, _NONE, {}

    def _set_aside(self, current: _LaneSlice) -> None:
        """Let the rest of the current slice wait until the record taken from it is finished."""
        if left := current.lease.count:
            current.stock.slices.appendleft(current)
            self._in_turn += left
        self._close_slice()

    def _park(self, work: QueuedRecord) -> None:
        self._start(work)
        first = work.stock.busy[self._lane_of(work)]
        if first.parked is None:
            first.parked = deque()
        first.parked.append(work)
        self.parked += 1
        work.stock.parked += 1
        if len(first.parked) == self.lane_limit:
            work.stock.full_lanes += 1
            self._on_full(work, self.lane_limit)

    def _start(self, work: QueuedRecord) -> None:
        work.is_started = True
        work.lease.progress.start(work.record.offset)
