"""Delivery progress of partitions: fetched, delivered and finished offsets. Pure: no clock, IO or logging.

Each of these offsets is that of the *next* record: ``delivered``, for example, is the next offset to deliver. In one
epoch, committed ≤ finished ≤ delivered ≤ fetched, unless the user commits an offset of their choice. Each assignment,
seek and reset begins an epoch with its own ``Progress``; a ``Lease`` of an older epoch changes nothing.

A ``Lease`` has the records that are delivered together, and an iterator from which they are *taken* to be handled. The
rule ``InFlight`` tells which taken records are in flight, so that nothing is stored for a record whose handler does not
suspend. A record that may be finished out of order is *started by offset* (``Progress.start``): its offset is stored
until the record is finished. An *abandoned* record is left to the partition's next owner. Offsets below ``delivered``
without a delivered record are gaps, which compaction, control records and aborted transactions leave.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Iterator, Sequence
from enum import Enum
from heapq import heapify, heappop, heappush, merge
from itertools import islice
from operator import attrgetter, length_hint
from uuid import UUID

from tailrace.core.offset_map import OffsetMap
from tailrace.records import Record, TopicPartition

__all__ = ["InFlight", "Lease", "Progress", "StartedOffsets"]

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
        """Add an offset."""
        self.in_flight.add(offset)
        heappush(self._heap, offset)
        self._highest = max(self._highest, offset)
        if len(self._heap) > self._most:
            self._tidy()

    def start_all(self, offsets: Sequence[int]) -> None:
        """Add several offsets, lowest first."""
        self.in_flight.update(offsets)
        self._heap.extend(offsets)
        if offsets and offsets[0] <= self._highest:
            heapify(self._heap)
        self._highest = max(self._highest, *offsets[-1:])
        if len(self._heap) > self._most:
            self._tidy()

    def finish(self, offset: int) -> bool:
        """Note that an offset is finished; return False if it is not in flight."""
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


# ---- delivery progress of partitions: fetched, delivered and finished offsets ----------------------------------------

_offset_of = attrgetter("offset")


class InFlight(Enum):
    """Records of a lease that are in flight although they were not started by offset."""

    NOTHING = 0
    LAST = 1
    """The record taken last; it is finished when the next record is taken."""
    ALL = 2
    """All taken records from the offset ``Lease.finished`` on."""
    RECORDS = 3
    """All of ``Lease.records``, from which finished records have been removed."""


class Lease:
    """Records of one partition that were delivered together.

    The holder of the lease takes the records from the iterator ``left``, in order. A taken record is finished, unless
    it is in flight according to ``in_flight`` or was started by offset (``Progress.start``).

    Attributes:
        progress: progress of the epoch in which the records were delivered.
        records: the records, taken or not.
        left: iterator of the records that were not taken; they are the last of ``records``.
        end: offset at which the partition continues after the lease.
        in_flight: rule by which taken records are in flight.
        finished: offset below which taken records are finished, with ``InFlight.LAST`` and ``InFlight.ALL``.
    """

    __slots__ = ("end", "finished", "in_flight", "left", "progress", "records")

    def __init__(self, progress: Progress, records: Sequence[Record], end: int, in_flight: InFlight) -> None:
        self.progress, self.records, self.end, self.in_flight = progress, records, end, in_flight
        self.left: Iterator[Record] = iter(records)
        self.finished = records[0].offset if records else end

    def __repr__(self) -> str:
        return f"<Lease {self.partition} lowest={self.lowest} end={self.end}>"

    # ---- state -------------------------------------------------------------------------------------------------

    @property
    def partition(self) -> TopicPartition:
        """Partition of the records."""
        return self.progress.partition

    @property
    def is_current(self) -> bool:
        """True if no reassignment, seek or reset of the partition has followed the delivery."""
        return not self.progress.is_over

    @property
    def count(self) -> int:
        """Number of records that were not taken."""
        return length_hint(self.left)

    @property
    def count_taken(self) -> int:
        """Number of records that were taken."""
        return len(self.records) - length_hint(self.left)

    @property
    def next_record(self) -> Record | None:
        """Record to take next; None if all records were taken."""
        count = length_hint(self.left)
        return self.records[-count] if count else None

    @property
    def untaken_offset(self) -> int | None:
        """Offset of the first record that was not taken; None if all records were taken."""
        record = self.next_record
        return None if record is None else record.offset

    @property
    def taken_to(self) -> int:
        """Offset of the first record that was not taken, or the end of the lease."""
        record = self.next_record
        return self.end if record is None else record.offset

    @property
    def last_taken(self) -> Record | None:
        """Record taken last; None if no record was taken."""
        taken = len(self.records) - length_hint(self.left)
        return self.records[taken - 1] if taken else None

    @property
    def finished_to(self) -> int:
        """Offset from which on no record of the lease is finished, apart from records started by offset."""
        in_flight = None if self.in_flight is InFlight.RECORDS else self.lowest_in_flight
        return self.taken_to if in_flight is None else in_flight

    def open_offsets(self) -> Iterator[int]:
        """Return the offsets of records that are in flight or not taken, lowest first."""
        start = self.lowest
        return iter(()) if start is None else (record.offset for record in self.records if record.offset >= start)

    @property
    def has_started(self) -> bool:
        """True if a record was taken, or may have been taken in another process."""
        return not self.records or length_hint(self.left) < len(self.records)

    @property
    def lowest_in_flight(self) -> int | None:
        """Lowest offset in flight; None if no record is in flight."""
        if self.in_flight is InFlight.ALL:
            return self.finished if self.finished < self.taken_to else None
        if self.in_flight is InFlight.RECORDS:
            return self.records[0].offset if self.records else None
        if self.in_flight is InFlight.LAST and (last := self.last_taken) is not None and last.offset >= self.finished:
            return last.offset
        return None

    @property
    def lowest(self) -> int | None:
        """Lowest offset in flight or not taken; None if all records are finished or were started by offset."""
        in_flight = self.lowest_in_flight
        return self.untaken_offset if in_flight is None else in_flight

    @property
    def count_in_flight(self) -> int:
        """Number of records in flight; at most 1 unless ``in_flight`` is ``InFlight.ALL``."""
        if self.in_flight is InFlight.ALL:
            taken = islice(self.records, len(self.records) - length_hint(self.left))
            return sum(record.offset >= self.finished for record in taken)
        return self.lowest_in_flight is not None

    @property
    def rest(self) -> Sequence[Record]:
        """Records that were not taken."""
        count = length_hint(self.left)
        if count == len(self.records):
            return self.records
        return self.records[-count:] if count else ()

    # ---- taking, finishing, moving records ---------------------------------------------------------------------

    def holds(self, record: Record) -> bool:
        """Return True if ``record`` is in flight; with ``InFlight.LAST``, it must be the object that was taken last."""
        lowest = self.lowest_in_flight
        if lowest is None or self.in_flight is InFlight.LAST:
            return lowest is not None and record is self.last_taken
        return record.topic_partition == self.partition and lowest <= record.offset < self.taken_to

    def take(self, count: int) -> list[Record]:
        """Take and return up to ``count`` records; with ``LAST``, only these are in flight, until ``finish_taken``."""
        if self.in_flight is InFlight.LAST:
            self.in_flight, self.finished = InFlight.ALL, self.taken_to
        return list(islice(self.left, count))

    def move_to_process(self) -> None:
        """Mark all records as in flight in another process; the caller passes its reports to ``finish_through``."""
        self.in_flight, self.records, self.left = InFlight.ALL, (), iter(())

    def finish_taken(self) -> None:
        """Finish all taken records that are in flight according to ``in_flight``."""
        if self.in_flight is not InFlight.NOTHING:
            self.in_flight, self.finished = InFlight.LAST, self.taken_to
        self.close_if_done()

    def finish_through(self, offset: int) -> None:
        """Finish the records in flight below ``offset``."""
        self.finished = max(self.finished, min(offset, self.taken_to))
        self.close_if_done()

    def finish_with(self, record: Record) -> None:
        """Finish ``record`` and the records taken before it."""
        self.finish_through(self.taken_to if record is self.last_taken else record.offset + 1)

    def close_if_done(self) -> None:
        """Close the lease if all records are taken and none is in flight, apart from records started by offset."""
        if self.lowest is None:
            self.progress.close(self)

    def give_back(self) -> list[Record]:
        """Remove and return the untaken records, to be delivered again; this must be the lease delivered last."""
        rest = list(self.left)
        if rest:
            self.end = self.progress.give_back(self, rest[0].offset)
            self.records = self.records[: len(self.records) - len(rest)]
            self.left = iter(())
        self.close_if_done()
        return rest

    def move_untaken(self, moved: Sequence[Record], left: Sequence[Record]) -> Lease:
        """Move the untaken records ``moved`` to a new lease, and return it; ``left`` are the other untaken records."""
        part = self.progress.add_shares(self, [moved], moved[-1].offset + 1 if left else self.end)[0]
        self.records, self.left = left, iter(left)
        if not left:
            self.progress.forget(self)
        return part

    def set_last_in_flight(self) -> None:
        """Mark the record taken last as in flight until the next is taken or ``set_none_in_flight`` is called."""
        self.in_flight = InFlight.LAST

    def set_none_in_flight(self) -> None:
        """Count no taken record as in flight, apart from records started by offset."""
        self.in_flight = InFlight.NOTHING

    def take_as_batch(self) -> None:
        """Mark all records as taken for a batch, and as in flight until ``finish_taken`` or ``keep_in_flight``."""
        self.in_flight, self.left, self.finished = InFlight.ALL, iter(()), self.records[0].offset

    def mark_taken(self) -> None:
        """Mark all records as taken; with ``InFlight.LAST``, all of them are in flight until ``finish_taken``."""
        self.left = iter(())
        if self.in_flight is InFlight.LAST:
            self.in_flight = InFlight.ALL

    def keep_in_flight(self, records: Sequence[Record]) -> None:
        """Finish all records in flight except ``records``."""
        self.in_flight, self.records = InFlight.RECORDS, records
        self.close_if_done()

    def abandon_in_flight(self) -> None:
        """Leave the records in flight to the partition's next owner."""
        self.progress.abandon_all([record.offset for record in self.records], self.end)
        self.keep_in_flight(())

    def split(self, count: int) -> Lease:
        """Take the next ``count`` records, at least one, and return a new lease of these records."""
        return self.share([list(islice(self.left, count))])[0]

    def share(self, shares: Iterable[Sequence[Record]]) -> list[Lease]:
        """Return a new lease for each non-empty list in ``shares``, of records that were taken from this lease."""
        return self.progress.add_shares(self, shares, self.taken_to)

    def abandon_left(self) -> None:
        """Leave the records that were not taken to the partition's next owner."""
        if rest := self.rest:
            self.progress.abandon_all([record.offset for record in rest], self.end)
            self.records, self.left, self.end = self.records[: -len(rest)], iter(()), rest[0].offset
        self.close_if_done()


class Progress:
    """Progress of one partition in one epoch.

    Args:
        partition: the partition.
        base: first offset to read.
        known: offset map of an earlier owner. It is part of ``offset_map`` until all records below its limit are
            finished, so that it is not lost if the partition is reassigned before.

    Attributes:
        fetched: next offset to fetch; None while nothing may be fetched after the buffered batches.
        delivered: next offset to deliver.
        is_over: True if another epoch of the partition has begun, or the partition was revoked.
        is_halted: True if this process starts no more records and does not retry failed records.
        held_from: offset from which on finished records count as in flight until a commit of a transaction, or None.
    """

    __slots__ = (
        "_closed_to",
        "_known",
        "_leases",
        "_offsets",
        "delivered",
        "fetched",
        "held_from",
        "is_halted",
        "is_over",
        "partition",
    )

    def __init__(self, partition: TopicPartition, base: int, known: OffsetMap | None = None) -> None:
        self.partition = partition
        self.fetched: int | None = base
        self.delivered = base
        self._closed_to = base
        """Highest offset below which records of closed or shared leases may be finished."""
        self.is_over = self.is_halted = False
        self.held_from: int | None = None
        self._known = known
        self._leases: dict[Lease, None] = {}
        """Leases that are neither closed nor forgotten."""
        self._offsets = StartedOffsets()

    def __repr__(self) -> str:
        return f"<Progress finished={self.finished} delivered={self.delivered} started={self.started}>"

    # ---- delivery ----------------------------------------------------------------------------------------------

    def deliver(self, records: Sequence[Record], end: int, in_flight: InFlight = InFlight.NOTHING) -> Lease:
        """Return a lease of the next records, after which the partition continues at ``end``."""
        self.delivered = end
        lease = Lease(self, records, end, in_flight)
        self._leases[lease] = None
        return lease

    def skip(self, to: int) -> None:
        """Skip offsets below ``to`` that hold no deliverable record (control, aborted, compacted)."""
        self.delivered = max(self.delivered, to)
        if not self._leases:
            # After ``cut``, the partition continues after these offsets.
            self._closed_to = max(self._closed_to, self.delivered)

    def add_shares(self, lease: Lease, shares: Iterable[Sequence[Record]], end: int) -> list[Lease]:
        """Add and return a lease that ends at ``end`` for each of ``shares`` that has records; see ``Lease.share``."""
        leases = [Lease(self, records, end, InFlight.NOTHING) for records in shares if records]
        self._leases |= dict.fromkeys(leases)
        if lease.untaken_offset is None:
            self.forget(lease)
        if not leases:
            self._closed_to = max(self._closed_to, end)
        return leases

    def forget(self, lease: Lease) -> None:
        """Remove a lease whose records are part of other leases or no longer count as delivered."""
        self._leases.pop(lease, None)

    def give_back(self, lease: Lease, offset: int) -> int:
        """Set the next offset to deliver to ``offset``, and return it; ``lease`` must be the lease delivered last."""
        assert lease.end == self.delivered, "only the last lease can be given back"
        self.delivered = offset
        return offset

    def close(self, lease: Lease) -> None:
        """Remove a lease whose records are all finished or started by offset."""
        if self._leases.pop(lease, False) is None:
            self._closed_to = max(self._closed_to, lease.end)

    def finish_through(self, offset: int) -> None:
        """Finish the records in flight below ``offset``."""
        for lease in list(self._leases):
            lease.finish_through(offset)

    def cut(self, offset: int) -> None:
        """Forget the records that were delivered from ``offset`` on, because they will be delivered again."""
        for lease in list(self._leases):
            if lease.finished >= offset:
                self.forget(lease)
            else:
                lease.end = min(lease.end, offset)
                lease.close_if_done()
        self.delivered = min(self.delivered, max(offset, self._closed_to))

    def halt(self) -> None:
        """Start no more records, and retry no failed records."""
        self.is_halted = True

    def end(self) -> None:
        """End the epoch: the partition was sought, reset or revoked."""
        self.is_over = True

    def set_fetched(self, offset: int | None) -> None:
        """Set the next offset to fetch; None to fetch nothing after the buffered batches."""
        self.fetched = offset

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
        """Mark several records as in flight, lowest first."""
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
        return any(one.lowest_in_flight is not None for one in self._leases)

    @property
    def next_offset(self) -> int:
        """Position: the lowest offset that was abandoned, not taken, or not delivered."""
        offsets = [offset for one in self._leases if (offset := one.untaken_offset) is not None]
        return min([self.delivered, *offsets, *self._offsets.abandoned])

    @property
    def finished(self) -> int:
        """Offset to commit: the lowest offset that is not finished or is held for a transaction."""
        return self.lowest if self.held_from is None else min(self.held_from, self.lowest)

    @property
    def lowest(self) -> int:
        """Lowest offset that is not finished."""
        lowest = self._offsets.lowest
        if lowest is None:
            lowest = self.delivered
        for lease in self._leases:
            offset = lease.lowest
            if offset is not None and offset < lowest:
                lowest = offset
        return min(lowest, self.delivered)

    @property
    def known(self) -> OffsetMap | None:
        """Offset map of an earlier owner; None if there is none, or if all records below its limit are finished."""
        if self._known is not None and self._known.limit <= self.lowest:
            self._known = None
        return self._known

    @property
    def has_known_ahead(self) -> bool:
        """True if the offset map of an earlier owner covers offsets that are not delivered yet."""
        return self._known is not None and self._known.limit > self.delivered

    @property
    def finished_after_lowest(self) -> int:
        """Number of finished offsets from ``lowest`` on."""
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
        if not (self._offsets or self._leases or known):
            return None
        lowest_offset = self.lowest
        # With a known map, records that were left out may be followed by records that have not started.
        end = max(self._finished_to(), lowest_offset)
        not_finished = self._offsets.in_flight | self._offsets.abandoned
        for lease in self._leases:
            if (lowest := lease.lowest) is not None and lowest < end:
                not_finished.update(offset for offset in lease.open_offsets() if offset < end)
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
        if not self._leases:
            return max(self._closed_to, self.delivered)
        end = max([self._closed_to, *(one.finished_to for one in self._leases if one.has_started)])
        # For records in another process, only the lowest unfinished offset is known.
        return min([end, *(one.finished_to for one in self._leases if not one.records)])
