"""Delivery progress of partitions: delivered and finished offsets. Pure: no clock, IO or logging.

Each of these offsets is that of the *next* record: ``delivered``, for example, is the next offset to deliver. In one
epoch, committed ≤ finished ≤ delivered ≤ ``Partition.fetched``, unless the user commits an offset of their choice. Each
assignment, seek and reset begins an epoch with its own ``Progress``; a ``Lease`` of an older epoch changes nothing.

A ``Lease`` has the records that are delivered together, and an iterator from which they are *taken* to be handled. A
record that may be finished out of order is *started by offset* (``Lease.start``): its offset is stored until the record
is finished. An *abandoned* record is left to the partition's next owner. Offsets below ``delivered``
without a delivered record are gaps, which compaction, control records and aborted transactions leave.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from heapq import heapify, heappop, heappush, merge
from itertools import islice
from operator import attrgetter, length_hint
from uuid import UUID

from tailrace.core.offset_map import OffsetMap
from tailrace.records import AnyRecord, Record, TopicPartition

__all__ = ["Lease", "Progress", "StartedOffsets"]

# ---- offsets of records that are tracked one by one, and the lowest unfinished offset among them ---------------------

_SLACK = 1_024
"""Number of finished offsets that the heap may always have, even if few offsets are in flight."""


class StartedOffsets:
    """Started offsets of one partition, finished in any order.

    Attributes:
        in_flight: offsets that are neither finished nor abandoned.
        abandoned: offsets of records that are left to the partition's next owner.
    """

    __slots__ = ("_heap", "_highest", "_most", "abandoned", "in_flight")

    def __init__(self) -> None:
        self.in_flight: set[int] = set()
        self.abandoned: set[int] = set()
        self._heap: list[int] = []
        """Heap of started offsets. A finished offset is removed when it reaches the top, or by ``_tidy``."""
        self._highest = -1
        """Highest offset that was started; -1 if there is none."""
        self._most = _SLACK
        """Size of the heap above which ``_tidy`` is called."""

    def __bool__(self) -> bool:
        return bool(self.in_flight or self.abandoned)

    def start(self, offset: int) -> None:
        self.in_flight.add(offset)
        heappush(self._heap, offset)
        self._highest = max(self._highest, offset)
        if len(self._heap) > self._most:
            self._tidy()

    def start_all(self, offsets: Sequence[int]) -> None:
        self.in_flight.update(offsets)
        self._heap.extend(offsets)
        if offsets and offsets[0] <= self._highest:
            heapify(self._heap)
        self._highest = max(self._highest, *offsets[-1:])
        if len(self._heap) > self._most:
            self._tidy()

    def finish(self, offset: int) -> bool:
        try:
            self.in_flight.remove(offset)
        except KeyError:
            return False
        return True

    def abandon(self, offset: int) -> None:
        """Mark an offset as abandoned, whether it was started or not."""
        if offset not in self.in_flight:
            self.start(offset)
        self.in_flight.remove(offset)
        self.abandoned.add(offset)

    @property
    def lowest(self) -> int | None:
        """Lowest offset in flight or abandoned; None if there is none."""
        heap, in_flight, abandoned = self._heap, self.in_flight, self.abandoned
        while heap and heap[0] not in in_flight and heap[0] not in abandoned:
            heappop(heap)
        return heap[0] if heap else None

    def _tidy(self) -> None:
        """Remove finished offsets from the heap, where they pile up while the lowest offset stays unfinished."""
        self._heap = sorted(self.in_flight | self.abandoned)
        self._most = 2 * len(self._heap) + _SLACK


# ---- delivery progress of partitions: delivered and finished offsets -------------------------------------------------

_offset_of = attrgetter("offset")


class Lease:
    """Records of one partition that were delivered together.

    The holder takes the records in order: one by one from the iterator ``left``, or several as a batch with ``take``. A
    record that was taken from ``left`` is in flight until the next is taken, and a batch until ``finish``. So nothing
    is stored for a record whose handler does not suspend.

    Attributes:
        progress: progress of the epoch in which the records were delivered.
        records: the records, taken or not.
        left: iterator of the records that were not taken; they are the last of ``records``.
        end: offset at which the partition continues after the lease.
    """

    __slots__ = ("_finished", "_is_batch", "end", "left", "progress", "records")

    def __init__(self, progress: Progress, records: Sequence[Record], end: int) -> None:
        self.progress, self.records, self.end = progress, records, end
        self.left: Iterator[Record] = iter(records)
        self._finished = 0
        """Number of records at the beginning that are finished, or started by offset, when they are taken."""
        self._is_batch = False
        """True if all taken records after these are in flight, instead of only the record taken last."""

    def __repr__(self) -> str:
        return f"<Lease {self.partition} lowest={self.lowest} end={self.end}>"

    # ---- state -------------------------------------------------------------------------------------------------

    @property
    def partition(self) -> TopicPartition:
        """Partition of the records."""
        return self.progress.partition

    @property
    def count(self) -> int:
        """Number of records that were not taken."""
        return length_hint(self.left)

    @property
    def rest(self) -> Sequence[Record]:
        """Records that were not taken."""
        count = length_hint(self.left)
        if count == len(self.records):
            return self.records
        return self.records[-count:] if count else ()

    @property
    def count_in_flight(self) -> int:
        """Number of records in flight, apart from records started by offset."""
        return len(self.records) - length_hint(self.left) - self._first_open()

    @property
    def lowest(self) -> int | None:
        """Lowest offset in flight or not taken; None if all records are finished or were started by offset."""
        first = self._first_open()
        return self.records[first].offset if first < len(self.records) else None

    def _first_open(self) -> int:
        """Return the index of the first record that is in flight or not taken.

        Nothing is called when a record is taken from ``left``: the length of the iterator shows how many were taken.
        Without a batch, all of them but the last are finished, or started by offset.
        """
        taken, finished = len(self.records) - length_hint(self.left), self._finished
        if finished < taken - 1 and not self._is_batch:
            return taken - 1
        return min(finished, taken)

    # ---- taking and finishing ----------------------------------------------------------------------------------

    def take(self, count: int | None = None) -> Sequence[Record]:
        """Take the next ``count`` records as a batch, which is in flight until ``finish``.

        Without ``count``, take all records; none may have been taken before.
        """
        if count is None:
            # Arrow rows are an iterator without a length, so they cannot be counted.
            self._is_batch, self.left = True, iter(())
            return self.records
        if not self._is_batch:
            self._is_batch, self._finished = True, max(self._finished, len(self.records) - length_hint(self.left))
        return list(islice(self.left, count))

    def start(self, record: Record | None = None) -> None:
        """Track ``record``, which was taken last, or all records by offset until ``Progress.finish``."""
        if record is None:
            self.progress.start_all([one.offset for one in self.records])
            self._finished = len(self.records)
        else:
            self.progress.start(record.offset)
            self._finished = len(self.records) - length_hint(self.left)

    def finish(self, record: AnyRecord | None = None) -> bool:
        """Finish all records in flight, or ``record`` and those before it; return False if it is not in flight."""
        count = length_hint(self.left)
        taken = len(self.records) - count
        if record is None:
            self._is_batch, self._finished = False, max(self._finished, taken)
        else:
            index = bisect_left(self.records, record.offset, self._first_open(), taken, key=_offset_of)
            if index == taken or not self._has_at(index, record):
                return False
            self._finished = index + 1
        if not count and self._finished >= taken:
            self.progress.close(self)
        return True

    def _has_at(self, index: int, record: AnyRecord) -> bool:
        found = self.records[index]
        if not self._is_batch:
            # A seek may deliver the same offset again, as another object.
            return found is record
        return found.offset == record.offset and record.topic_partition == self.partition

    def _close_if_done(self) -> None:
        if self.lowest is None:
            self.progress.close(self)

    # ---- moving untaken records ----------------------------------------------------------------------------------

    def give_back(self) -> list[Record]:
        """Remove and return the untaken records, to be delivered again; this must be the lease delivered last."""
        rest = list(self.left)
        if rest:
            self.end = self.progress.give_back(self, rest[0].offset)
            self.records = self.records[: -len(rest)]
        self._close_if_done()
        return rest

    def abandon(self) -> None:
        """Leave the records that were not taken to the partition's next owner."""
        if rest := self.rest:
            self.progress.abandon_all([record.offset for record in rest], self.end)
            self.records, self.left, self.end = self.records[: -len(rest)], iter(()), rest[0].offset
        self._close_if_done()

    def split(self, parts: Iterable[Sequence[Record]], left: Sequence[Record] = ()) -> list[Lease]:
        """Return a lease for each non-empty list in ``parts``, and keep ``left``; other records are finished.

        No record may be in flight.
        """
        leases = [Lease(self.progress, part, part[-1].offset + 1 if left else self.end) for part in parts if part]
        self.records, self.left, self._finished = left, iter(left), 0
        self.progress.split(self, leases)
        return leases


class Progress:
    """Progress of one partition in one epoch.

    Args:
        partition: the partition.
        base: first offset to read.
        known: offset map of an earlier owner. It is part of ``offset_map`` until all records below its limit are
            finished, so that it is not lost if the partition is reassigned before.

    Attributes:
        delivered: next offset to deliver.
        is_over: True if another epoch of the partition has begun, or the partition was revoked.
        is_halted: True if an App's handlers start no more records of the partition and do not retry failed records;
            set by ``GroupRuntime``. For all consumers, ``Partition.is_halted`` ends the delivery.
        held_from: offset from which on finished records count as in flight until a commit of a transaction, or None.
    """

    __slots__ = (
        "_closed_to",
        "_elsewhere",
        "_known",
        "_leases",
        "_offsets",
        "delivered",
        "held_from",
        "is_halted",
        "is_over",
        "partition",
    )

    def __init__(self, partition: TopicPartition, base: int, known: OffsetMap | None = None) -> None:
        self.partition = partition
        self.delivered = base
        self._closed_to = base
        """Highest offset below which records of closed leases may be finished."""
        self.is_over = self.is_halted = False
        self.held_from: int | None = None
        self._known = known
        self._leases: dict[Lease, None] = {}
        """Leases with records that are in flight or not taken."""
        self._elsewhere: deque[tuple[int, int]] = deque()
        """Lowest unfinished offset and end of each lease whose records are in another process."""
        self._offsets = StartedOffsets()

    def __repr__(self) -> str:
        return f"<Progress finished={self.finished} delivered={self.delivered} started={self.started}>"

    # ---- delivery ----------------------------------------------------------------------------------------------

    def deliver(self, records: Sequence[Record], end: int) -> Lease:
        """Return a lease of the next records, after which the partition continues at ``end``."""
        self.delivered = end
        lease = Lease(self, records, end)
        self._leases[lease] = None
        return lease

    def skip(self, to: int) -> None:
        """Skip offsets below ``to`` that hold no deliverable record (control, aborted, compacted)."""
        self.delivered = max(self.delivered, to)
        if not self._leases and not self._elsewhere:
            # After ``cut``, the partition continues after these offsets.
            self._closed_to = max(self._closed_to, self.delivered)

    def split(self, lease: Lease, parts: Sequence[Lease]) -> None:
        """Track the parts of a lease, and no longer the lease itself if all its records are in parts or finished."""
        self._leases |= dict.fromkeys(parts)
        if not lease.count:
            self._leases.pop(lease, None)
            if not parts:
                self._closed_to = max(self._closed_to, lease.end)

    def give_back(self, lease: Lease, offset: int) -> int:
        """Set the next offset to deliver to ``offset``, and return it; ``lease`` must be the lease delivered last."""
        assert lease.end == self.delivered, "only the last lease can be given back"
        self.delivered = offset
        return offset

    def close(self, lease: Lease) -> None:
        """Remove a lease whose records are all finished or started by offset."""
        if self._leases.pop(lease, False) is None:
            self._closed_to = max(self._closed_to, lease.end)

    def move_to_process(self, lease: Lease) -> None:
        """Track a lease as in flight in another process, whose reports are passed to ``finish_through``."""
        if self._leases.pop(lease, False) is None:
            self._elsewhere.append((lease.records[0].offset, lease.end))

    def finish_through(self, offset: int) -> None:
        """Finish the records below ``offset`` in another process."""
        while self._elsewhere and self._elsewhere[0][1] <= offset:
            self._closed_to = max(self._closed_to, self._elsewhere.popleft()[1])
        if self._elsewhere and self._elsewhere[0][0] < offset:
            self._elsewhere[0] = offset, self._elsewhere[0][1]

    def cut(self, offset: int) -> None:
        """Forget the records from ``offset`` on in another process, because they will be delivered again."""
        self._elsewhere = deque((first, min(end, offset)) for first, end in self._elsewhere if first < offset)
        self.delivered = min(self.delivered, max(offset, self._closed_to))

    def halt(self) -> None:
        """Start no more records, and retry no failed records."""
        self.is_halted = True

    def end(self) -> None:
        """End the epoch: the partition was sought, reset or revoked."""
        self.is_over = True

    def hold(self, offset: int | None = None) -> None:
        """Count records from ``offset`` on as in flight until ``release``, even if they finish.

        Without ``offset``, begin at the lowest unfinished offset, unless records are held already.
        """
        if self.held_from is None or offset is not None:
            self.held_from = self.lowest if offset is None else offset

    def release(self) -> None:
        """End ``hold``: the transaction was committed."""
        self.held_from = None

    # ---- records by offset ---------------------------------------------------------------------------------------

    def start(self, offset: int) -> None:
        """Mark a record as in flight until ``finish`` or ``abandon``."""
        self._offsets.start(offset)

    def start_all(self, offsets: Sequence[int]) -> None:
        self._offsets.start_all(offsets)

    def unstart(self, offsets: Iterable[int]) -> None:
        """Undo ``start_all`` for records that will be delivered again."""
        self._offsets.in_flight.difference_update(offsets)

    def finish(self, offset: int) -> bool:
        """Finish a record that was started by offset; return False if it is not in flight."""
        return self._offsets.finish(offset)

    def abandon(self, offset: int) -> None:
        """Leave a record to the partition's next owner, so that no commit passes its offset."""
        self._offsets.abandon(offset)

    def abandon_all(self, offsets: Iterable[int], end: int) -> None:
        """Abandon all remaining records of a lease that ends at ``end``."""
        for offset in offsets:
            self._offsets.abandon(offset)
        self._closed_to = max(self._closed_to, end)

    # ---- state -------------------------------------------------------------------------------------------------

    @property
    def started(self) -> int:
        """Number of records that were started by offset and are neither finished nor abandoned."""
        return len(self._offsets.in_flight)

    @property
    def has_in_flight(self) -> bool:
        """True if a record is in flight, or finished and held for a transaction."""
        if self._offsets.in_flight or (self.held_from is not None and self.held_from < self.delivered):
            return True
        return bool(self._elsewhere) or any(one.count_in_flight for one in self._leases)

    @property
    def next_offset(self) -> int:
        """Position: the lowest offset that was abandoned, not taken, or not delivered."""
        offsets = [one.records[-count].offset for one in self._leases if (count := one.count)]
        return min([self.delivered, *offsets, *self._offsets.abandoned])

    @property
    def finished(self) -> int:
        """Lowest offset that is not finished or is held for a transaction."""
        return self.lowest if self.held_from is None else min(self.held_from, self.lowest)

    @property
    def lowest(self) -> int:
        lowest = self._offsets.lowest
        if lowest is None:
            lowest = self.delivered
        for lease in self._leases:
            offset = lease.lowest
            if offset is not None and offset < lowest:
                lowest = offset
        if self._elsewhere:
            lowest = min(lowest, self._elsewhere[0][0])
        return min(lowest, self.delivered)

    @property
    def known(self) -> OffsetMap | None:
        """Offset map of an earlier owner; None if there is none, or if all records below its limit are finished."""
        if self._known is not None and self._known.limit <= self.lowest:
            self._known = None
        return self._known

    @property
    def finished_after_lowest(self) -> int:
        found = self.offset_map()
        return 0 if found is None else found.finished_count

    def record_at(self, offset: int) -> Record | None:
        """Return the delivered record at an offset; None if no lease has a record there."""
        for lease in self._leases:
            records = lease.records
            if records and records[0].offset <= offset <= records[-1].offset:
                at = bisect_left(records, offset, key=_offset_of)
                if records[at].offset == offset:
                    return records[at]
        return None

    def forget_known(self) -> None:
        """Drop the offset map of an earlier owner, so that the records finished there are handled again."""
        self._known = None

    def offset_map(self, topic_id: UUID | None = None, leader_epoch: int = -1) -> OffsetMap | None:
        """Return the map of the offsets finished after ``lowest``, which is its base; None if there are none.

        Args:
            topic_id: topic id of the delivered records; None if unknown.
            leader_epoch: leader epoch of the record delivered last; -1 if unknown.
        """
        known = self.known
        if not (self._offsets or self._leases or self._elsewhere or known):
            return None
        lowest_offset = self.lowest
        # With a known map, records that were left out may be followed by records that have not started.
        end = max(self._finished_to(), lowest_offset)
        not_finished = self._offsets.in_flight | self._offsets.abandoned
        for lease in self._leases:
            if (lowest := lease.lowest) is not None and lowest < end:
                not_finished.update(record.offset for record in lease.records if lowest <= record.offset < end)
        limit = end
        while limit - 1 in not_finished:
            limit -= 1
        if known is None or known.limit <= end:
            if limit <= lowest_offset:
                return None
            unfinished = iter(sorted(offset for offset in not_finished if offset < limit))
            return OffsetMap(lowest_offset, limit, unfinished, topic_id=topic_id, leader_epoch=leader_epoch)
        limit = known.limit
        # The known map is not expanded, because it may cover many more offsets than are in flight here.
        rest = (offset for offset in known.unfinished_from(end) if offset not in not_finished)
        unfinished = merge(sorted(offset for offset in not_finished if offset < limit), rest)
        topic_id, leader_epoch = known.topic_id or topic_id, known.leader_epoch
        return OffsetMap(lowest_offset, limit, unfinished, topic_id=topic_id, leader_epoch=leader_epoch)

    def _finished_to(self) -> int:
        """Return the offset from which on no record is finished."""
        if self._elsewhere:
            # Of records in another process, only the lowest unfinished offset is known.
            return self._elsewhere[0][0]
        if not self._leases:
            return max(self._closed_to, self.delivered)
        begun = [one for one in self._leases if one.count < len(one.records)]
        return max([self._closed_to, *(one.end if (lowest := one.lowest) is None else lowest for one in begun)])
