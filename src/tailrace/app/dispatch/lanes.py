"""Order of the records of one handler: the records of a lane are handled one after the other.

Pure: no clock, IO or logging.

A lane is a partition (``order_by="partition"``), a key within a partition (``"key"``), or a single record (``"none"``).
Records of different partitions are never in the same lane. With ``"key"``, records without a key share one lane of
their partition; an empty key is a key like any other.

Records are added in *slices*, each of which is the lease (``core.progress.Lease``) of records of one partition. All
workers take records from the current slice, until no record is left or the slice has to wait. A lane is *busy* while
the handler of one of its records is suspended. What happens to the following records depends on ``order_by``:

- With ``"key"``, a worker that meets a record of a busy lane *parks* the record: the record waits in its lane, and the
  worker goes on with the next record of the slice.
- With ``"partition"``, the slice waits as a whole, and the workers go on with another partition. If other handlers read
  the same partitions, records are parked instead, because a waiting slice would make those handlers wait, too.

To keep the cost of a record low, only records whose handler suspends are tracked. Until a handler suspends, a worker
takes records from the iterator ``free``. A worker starts the handler in the same step of the event loop in which it
takes the record, and calls ``suspended`` if the handler suspends. Therefore, at most one record at a time is taken and
neither suspended nor finished. The module ``app.dispatch.record_executor`` describes how each record is finished.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from operator import length_hint
from typing import NamedTuple, TypeAlias

import msgspec

from tailrace.app.policies import OrderBy
from tailrace.core.progress import Lease
from tailrace.records import Record, TopicPartition

__all__ = ["FEW_RECORDS", "Lanes", "QueuedRecord"]


Lane: TypeAlias = bytes | None
"""Key of the lane; None for records without a key, and for all records if the partition is the lane."""

FEW_RECORDS = 64
"""Number of waiting records that are enough to run the handler before more records are read."""

_NO_RECORDS: Iterator[Record] = iter(())


class QueuedRecord(msgspec.Struct, eq=False):
    """Record that was taken or parked."""

    record: Record
    lease: Lease
    """Slice that the record was taken from."""
    queue: _PartitionQueue
    """Queue of the record's partition."""
    is_started: bool = False
    """True if the record was suspended or parked, so that ``finished`` has to be called."""
    is_failing: bool = False
    """True while the record is counted as failing, from ``failed`` to ``recovered``."""
    parked: deque[QueuedRecord] | None = None
    """Records that are parked in the lane of this record, if this record keeps the lane busy."""


class _PartitionQueue:
    """Waiting records and busy lanes of one partition."""

    __slots__ = ("busy", "failing", "full_lanes", "parked", "slices")

    def __init__(self) -> None:
        self.busy: dict[Lane, QueuedRecord] = {}
        """Busy lanes, each with the suspended record, or the parked record that runs next."""
        self.slices: deque[_LaneSlice] = deque()
        """Slices after the current slice, in order."""
        self.failing = 0
        """Number of failed records that will be retried."""
        self.full_lanes = 0
        """Number of lanes with ``lane_limit`` parked records or more."""
        self.parked = 0
        """Number of parked records."""


class _LaneSlice(NamedTuple):
    """Slice of a partition, and the queue of the partition."""

    queue: _PartitionQueue
    lease: Lease


class Lanes:
    """Queue of the records of one handler.

    Args:
        order_by: order in which records are handled.
        window: maximum number of records that wait in this queue or for their next attempt.
        on_full: called when a partition accepts no more records. If one of its lanes has ``lane_limit`` parked records,
            the arguments are a record of this lane and that number. If too many records of the partition are parked or
            failed, the arguments are one of these records and their number.
        is_shared: True if other handlers read the same partitions.

    Attributes:
        parked: number of parked records.
        failing: number of failed records that will be retried; always 0 if slices wait as a whole.
        lane_limit: maximum number of parked records in one lane; its partition then accepts no more slices. It is half
            the window, so that a lane whose first record is not finished leaves room for other partitions.
    """

    def __init__(
        self,
        order_by: OrderBy,
        window: int,
        *,
        on_full: Callable[[Record, int], object] = lambda _record, _waiting: None,
        is_shared: bool = False,
    ) -> None:
        self.order_by = order_by
        self.window = window
        self.lane_limit = max(1, window // 2)
        self.parked = self.failing = 0
        self._on_full = on_full
        self._is_by_key = order_by == "key"
        self._slices_wait = order_by == "partition" and not is_shared
        """True if a slice waits as a whole while one of its records is suspended."""
        self._queues: dict[TopicPartition, _PartitionQueue] = {}
        self._next_queues: deque[_PartitionQueue] = deque()
        """Queues that have a slice to run, apart from the queue of the current slice; the next to run is the first."""
        self._ready: deque[QueuedRecord] = deque()
        """Parked records that may run now, because the record before them in their lane is finished."""
        self._slice: _LaneSlice | None = None
        """Current slice, from which all workers take records."""
        self._left = _NO_RECORDS
        """Records of the current slice that were not taken."""
        self._busy: dict[Lane, QueuedRecord] = {}
        """Busy lanes of the partition of the current slice."""
        self._last_slice: _LaneSlice | None = None
        """Slice of the record taken last, even if the slice was dropped since."""
        self._is_last_open = False
        """True if the record taken last may be neither finished nor suspended."""
        self._waiting_in_slices = 0
        """Number of records in all slices but the current one."""

    # ---- adding ------------------------------------------------------------------------------------------------

    def add(self, lease: Lease) -> None:
        """Add the next slice of a partition, with at most ``room_of`` records."""
        queue = self._queues.get(lease.partition)
        if queue is None:
            queue = self._queues[lease.partition] = _PartitionQueue()
        queue.slices.append(_LaneSlice(queue, lease))
        self._waiting_in_slices += lease.count
        is_waiting = self._slices_wait and queue.busy
        is_current = self._slice is not None and self._slice.queue is queue
        if len(queue.slices) == 1 and not is_waiting and not is_current:
            self._next_queues.append(queue)

    def room_of(self, partition: TopicPartition) -> int:
        """Return how many records of a partition may be added now.

        The number of *free places* is the size of the window minus the number of waiting and failed records.

        If busy lanes make records park, a partition may have up to twice as many waiting and failed records as free
        places are left. All partitions then tend to have equally many records, and a partition with a large backlog
        does not crowd out others (dynamic thresholds: Choudhury and Hahne, 1998). A partition without such records
        always has room for one record, however many records fail in other partitions.

        If busy lanes make slices wait as a whole, a partition may add half as many records as there are free places. It
        may add none while one of its records is suspended, and none while enough records to run are waiting: otherwise,
        each partition would get half of what the one before it left, down to slices of a few records, although a slice
        has a fixed cost as high as that of many records.
        """
        queue, left = self._queues.get(partition), self.window - self.waiting - self.failing
        if self._slices_wait:
            may_run = self._next_queues or length_hint(self._left)
            is_full = may_run and self.waiting > min(FEW_RECORDS, self.window // 4)
            return 0 if is_full or (queue is not None and queue.busy) else max(1, (left + 1) // 2)
        held = 0 if queue is None else self._waiting_in(queue) + queue.failing
        if queue is not None and queue.full_lanes:
            return 0
        return max(0 if held else 1, (2 * left - held + 2) // 3)

    # ---- running -----------------------------------------------------------------------------------------------

    @property
    def free(self) -> Iterator[Record]:
        """Records of the current slice that may run without a call of ``take``, until the handler of one suspends."""
        if self._busy or self._ready:
            return _NO_RECORDS
        self._is_last_open = True
        return self._left

    def last_taken(self, record: Record) -> QueuedRecord:
        """Return the queued record for ``record``, the last record taken from ``free``."""
        assert self._last_slice is not None
        return QueuedRecord(record, self._last_slice.lease, self._last_slice.queue)

    def take(self) -> QueuedRecord | None:
        """Return the next record to run, and park records before it whose lane is busy; None if no record may run now.

        Finish the record that was taken before, unless it was suspended.
        """
        if self._ready:
            if self._is_last_open:
                self.finish_last()
            ready = self._ready.popleft()
            self.parked -= 1
            ready.queue.parked -= 1
            return ready
        while True:
            busy, current, is_by_key = self._busy, self._slice, self._is_by_key
            for record in self._left:
                assert current is not None
                queued = QueuedRecord(record, current.lease, current.queue)
                if not busy or (record.key if is_by_key else None) not in busy:
                    self._is_last_open = True
                    return queued
                self._park(queued)
            if not self._open_slice():
                return None

    def finish_last(self) -> None:
        """Finish the record taken last, unless it was suspended."""
        if self._last_slice is not None:
            self._last_slice.lease.finish()
        self._is_last_open = False

    def suspended(self, queued: QueuedRecord) -> None:
        """Mark the lane of a record as busy until ``finished``, because the handler of the record has suspended."""
        if queued.is_started:
            return
        queued.is_started, self._is_last_open = True, False
        queued.lease.start(queued.record)
        if self.order_by == "none":
            return
        lane = self._lane_of(queued)
        assert lane not in queued.queue.busy, "two records of one lane run at the same time"
        queued.queue.busy[lane] = queued
        if self._slices_wait and self._slice is not None and self._slice.queue is queued.queue:
            self._set_aside(self._slice)

    def finished(self, queued: QueuedRecord) -> None:
        """Finish a suspended or parked record, whatever its outcome, so that the next record of its lane may run.

        This must be called for records of dropped partitions, too.
        """
        queued.lease.progress.finish(queued.record.offset)
        queue, lane = queued.queue, self._lane_of(queued)
        if queue.busy.get(lane) is not queued:
            return
        if queued.parked:
            queue.full_lanes -= len(queued.parked) == self.lane_limit
            following = queue.busy[lane] = queued.parked.popleft()
            following.parked, queued.parked = queued.parked, None
            self._ready.append(following)
            return
        del queue.busy[lane]
        if self._slices_wait and queue.slices:
            self._next_queues.appendleft(queue)

    def failed(self, queued: QueuedRecord) -> None:
        """Count a record as failing until ``recovered``, because it will be retried."""
        queue = queued.queue
        if self._slices_wait or queued.is_failing:
            return
        queued.is_failing = True
        self.failing += 1
        queue.failing += 1
        stuck = queue.parked + queue.failing
        if stuck >= 2 * (self.window - self.parked - self.failing):
            self._on_full(queued.record, stuck)

    def recovered(self, queued: QueuedRecord) -> None:
        """Count a record no longer as failing, because it will not be retried; ``finished`` is called next."""
        if queued.is_failing:
            queued.is_failing = False
            self.failing -= 1
            queued.queue.failing -= 1

    # ---- dropping ----------------------------------------------------------------------------------------------

    def drop(self, partition: TopicPartition) -> tuple[list[Lease], list[QueuedRecord]]:
        """Forget the waiting records of a partition; return the leases of its slices, and its parked records.

        The lane of a suspended record stays busy until the record is finished. So two records of a lane never run at
        the same time in this process, even after a seek or a reassignment.
        """
        queue = self._queues.get(partition)
        if queue is None:
            return [], []
        leases = [one.lease for one in queue.slices]
        self._waiting_in_slices -= sum(lease.count for lease in leases)
        queue.slices.clear()
        if self._slice is not None and self._is_current(queue):
            leases.append(self._slice.lease)
            self._slice, self._left, self._busy = None, _NO_RECORDS, {}
        elif queue in self._next_queues:
            self._next_queues.remove(queue)
        parked = [queued for queued in self._ready if queued.queue is queue]
        self._ready = deque(queued for queued in self._ready if queued.queue is not queue)
        for queued in queue.busy.values():
            parked += queued.parked or ()
            queued.parked = None
        for queued in parked:
            if queue.busy.get(self._lane_of(queued)) is queued:
                del queue.busy[self._lane_of(queued)]
        self.parked -= len(parked)
        queue.full_lanes = queue.parked = 0
        return leases, parked

    # ---- counts ------------------------------------------------------------------------------------------------

    @property
    def ready(self) -> list[Record]:
        """Parked records that may run now."""
        return [queued.record for queued in self._ready]

    @property
    def waiting(self) -> int:
        """Number of records that wait in this queue, parked or in a slice."""
        return self.parked + self._waiting_in_slices + length_hint(self._left)

    # ---- inside ------------------------------------------------------------------------------------------------

    def _waiting_in(self, queue: _PartitionQueue) -> int:
        current = length_hint(self._left) if self._is_current(queue) else 0
        return queue.parked + current + sum(one.lease.count for one in queue.slices)

    def _is_current(self, queue: _PartitionQueue | None) -> bool:
        return self._slice is not None and self._slice.queue is queue

    def _lane_of(self, queued: QueuedRecord) -> Lane:
        return queued.record.key if self._is_by_key else None

    def _open_slice(self) -> bool:
        """Open the next slice; return False if there is none. The partition of the previous slice becomes the last."""
        last = self._slice
        self._close_slice()
        if last is not None and last.queue.slices:
            self._next_queues.append(last.queue)
        if not self._next_queues:
            return False
        queue = self._next_queues.popleft()
        self._slice = self._last_slice = queue.slices.popleft()
        self._left, self._busy = self._slice.lease.left, queue.busy
        self._waiting_in_slices -= length_hint(self._left)
        return True

    def _close_slice(self) -> None:
        if self._slice is not None:
            self._slice.lease.finish()
        self._slice, self._left, self._busy = None, _NO_RECORDS, {}

    def _set_aside(self, current: _LaneSlice) -> None:
        """Close the current slice; its untaken records wait until the suspended record is finished."""
        if left := current.lease.count:
            current.queue.slices.appendleft(current)
            self._waiting_in_slices += left
        self._close_slice()

    def _park(self, queued: QueuedRecord) -> None:
        # The next record that is taken, or the end of the slice, ends the tracking of this record by its lease.
        queued.is_started = True
        queued.lease.progress.start(queued.record.offset)
        first = queued.queue.busy[self._lane_of(queued)]
        if first.parked is None:
            first.parked = deque()
        first.parked.append(queued)
        self.parked += 1
        queued.queue.parked += 1
        if len(first.parked) == self.lane_limit:
            queued.queue.full_lanes += 1
            self._on_full(queued.record, self.lane_limit)
