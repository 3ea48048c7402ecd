"""What is fetched, delivered, started, finished and committed of each partition: the one owner of these facts.

All offsets are those of the *next* record. Within one epoch, committed ≤ finished ≤ delivered ≤ fetched, unless the
user chooses what to commit. An epoch begins with each assignment, seek and reset, and has a ``Progress`` of its own; a
``Lease`` of an older epoch changes nothing.

Completeness is judged against what was delivered, never against which offset follows which: compaction, control records
and aborted transactions leave gaps. Nothing is noted for a single record unless its handler suspends: a lease has a
cursor, and whoever asks how far a partition is reads it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from enum import Enum
from heapq import heapify, heappop, heappush, merge
from itertools import islice
from operator import length_hint

from tailrace.core.offset_map import OffsetMap
from tailrace.records import Record, TopicPartition

__all__ = ["InHand", "Lease", "Progress"]

_SLACK = 1_024
"""The heap may hold this many finished offsets, however few are in flight."""


class InHand(Enum):
    """Which of the records taken from a lease are in flight without being started by offset."""

    NOTHING = 0
    LAST = 1
    """The last one taken: the one before is finished when the next is taken."""
    ALL = 2
    """All that were taken since the last ``finish_taken`` or ``finish_through``."""
    RECORDS = 3
    """``records`` alone: of a batch, all others are finished."""


class Lease:
    """Records of one partition that were delivered together, and how far they are taken.

    ``left`` is the cursor. Whoever runs the records takes them from it, in order. A taken record is finished, unless it
    was started by offset (``start``) and is not finished yet, or is in hand.

    Attributes:
        progress: the epoch in which they were delivered.
        records: the records; the last of them are in ``left``.
        left: those that are not taken yet.
        end: the offset at which the partition goes on.
        in_hand: which taken records are in flight although nothing was noted of them.
        finished: what is taken below is finished, while anything is in hand.
    """

    __slots__ = ("end", "finished", "in_hand", "left", "progress", "records")

    def __init__(self, progress: Progress, records: Sequence[Record], end: int, in_hand: InHand) -> None:
        self.progress, self.records, self.end, self.in_hand = progress, records, end, in_hand
        self.left: Iterator[Record] = iter(records)
        self.finished = records[0].offset if records else end

    def __repr__(self) -> str:
        return f"<Lease {self.partition} lowest={self.lowest} end={self.end}>"

    # ---- how it stands -----------------------------------------------------------------------------------------

    @property
    def partition(self) -> TopicPartition:
        """The partition of its records."""
        return self.progress.partition

    @property
    def is_current(self) -> bool:
        """Whether its epoch is the partition's present one."""
        return not self.progress.is_over

    @property
    def count(self) -> int:
        """The number of records that were not taken."""
        return length_hint(self.left)

    @property
    def taken(self) -> int:
        """The number of records that were taken."""
        return len(self.records) - length_hint(self.left)

    @property
    def unstarted(self) -> int | None:
        """The lowest offset that was not taken; None when all were."""
        count = length_hint(self.left)
        return self.records[-count].offset if count else None

    @property
    def started_to(self) -> int:
        """Behind the last record taken: the next one's offset, or the end of the lease."""
        count = length_hint(self.left)
        return self.records[-count].offset if count else self.end

    @property
    def last_taken(self) -> Record | None:
        """The last record taken; None when none was."""
        taken = len(self.records) - length_hint(self.left)
        return self.records[taken - 1] if taken else None

    @property
    def finished_to(self) -> int:
        """The offset from which nothing of it is finished, unless it was started by offset."""
        in_hand = None if self.in_hand is InHand.RECORDS else self.lowest_in_hand
        return self.started_to if in_hand is None else in_hand

    def open_offsets(self) -> Iterator[int]:
        """The offsets of records in hand and of those not taken, lowest first."""
        start = self.lowest
        return iter(()) if start is None else (record.offset for record in self.records if record.offset >= start)

    @property
    def has_started(self) -> bool:
        """Whether a record was taken."""
        return not self.records or length_hint(self.left) < len(self.records)

    @property
    def lowest_in_hand(self) -> int | None:
        """The lowest offset in hand; None when nothing is."""
        if self.in_hand is InHand.ALL:
            return self.finished if self.finished < self.started_to else None
        if self.in_hand is InHand.RECORDS:
            return self.records[0].offset if self.records else None
        if self.in_hand is InHand.LAST and (last := self.last_taken) is not None and last.offset >= self.finished:
            return last.offset
        return None

    @property
    def lowest(self) -> int | None:
        """The lowest offset in hand or not taken."""
        in_hand = self.lowest_in_hand
        return self.unstarted if in_hand is None else in_hand

    @property
    def count_in_hand(self) -> int:
        """The number of records in hand."""
        if self.in_hand is InHand.ALL:
            taken = islice(self.records, len(self.records) - length_hint(self.left))
            return sum(record.offset >= self.finished for record in taken)
        return self.lowest_in_hand is not None

    @property
    def rest(self) -> Sequence[Record]:
        """The records that were not taken."""
        count = length_hint(self.left)
        return self.records[-count:] if count else ()

    # ---- what happens to its records ---------------------------------------------------------------------------

    def holds(self, record: Record) -> bool:
        """Whether ``record`` is in hand; of single records it has to be the object that was handed out."""
        lowest = self.lowest_in_hand
        if lowest is None or self.in_hand is InHand.LAST:
            return lowest is not None and record is self.last_taken
        return record.topic_partition == self.partition and lowest <= record.offset < self.started_to

    def take(self, count: int) -> list[Record]:
        """Take the next ``count`` records; those of a polled lease are all in hand until ``finish_taken``."""
        if self.in_hand is InHand.LAST:
            self.in_hand, self.finished = InHand.ALL, self.started_to
        return list(islice(self.left, count))

    def send_away(self) -> None:
        """All records are in hand from now on, elsewhere: ``finish_through`` says how far they are finished."""
        self.in_hand, self.records, self.left = InHand.ALL, (), iter(())

    def finish_taken(self) -> None:
        """All that is in hand is finished."""
        if self.in_hand is not InHand.NOTHING:
            self.in_hand, self.finished = InHand.LAST, self.started_to
        self.close_if_done()

    def finish_through(self, offset: int) -> None:
        """What is in hand below ``offset`` is finished."""
        self.finished = max(self.finished, min(offset, self.started_to))
        self.close_if_done()

    def finish_with(self, record: Record) -> None:
        """``record`` and what was taken before it is finished."""
        self.finish_through(self.started_to if record is self.last_taken else record.offset + 1)

    def close_if_done(self) -> None:
        """End the lease if all records are taken and none is in hand; those started by offset stay in flight."""
        if self.lowest is None:
            self.progress.close(self)

    def give_back(self) -> list[Record]:
        """The records that were not taken, which will be delivered again. It has to be the lease delivered last."""
        rest = list(self.left)
        if rest:
            self.end = self.progress.gave_back(self, rest[0].offset)
            self.records = self.records[: len(self.records) - len(rest)]
            self.left = iter(())
        self.close_if_done()
        return rest

    def take_out(self, taken: Sequence[Record], left: Sequence[Record]) -> Lease:
        """A lease of records from among those that were not taken; ``left`` are the others."""
        part = self.progress.shared(self, [taken], taken[-1].offset + 1 if left else self.end)[0]
        self.records, self.left = left, iter(left)
        if not left:
            self.progress.forget(self)
        return part

    def hold_last(self) -> None:
        """The record taken last is in hand, until the next is taken or ``let_go``."""
        self.in_hand = InHand.LAST

    def let_go(self) -> None:
        """Nothing is in hand: what was taken is finished, or was started by offset."""
        self.in_hand = InHand.NOTHING

    def take_all(self) -> None:
        """All records are in hand from now on, until ``finish_taken`` or ``keep_in_hand``."""
        self.in_hand, self.left, self.finished = InHand.ALL, iter(()), self.records[0].offset

    def keep_in_hand(self, records: Sequence[Record]) -> None:
        """All records in hand are finished but these."""
        self.in_hand, self.records = InHand.RECORDS, records
        self.close_if_done()

    def abandon_in_hand(self) -> None:
        """The records in hand are left to the partition's next owner."""
        self.progress.abandon_all([record.offset for record in self.records], self.end)
        self.keep_in_hand(())

    def split(self, count: int) -> Lease:
        """The next ``count`` records as a lease of their own; at least one."""
        return self.share([list(islice(self.left, count))])[0]

    def share(self, shares: Iterable[Sequence[Record]]) -> list[Lease]:
        """Leases of these records, which were taken from this one and have not started; it ends when none is left."""
        return self.progress.shared(self, shares, self.started_to)

    def abandon_left(self) -> None:
        """What was not taken is left to the partition's next owner."""
        if rest := self.rest:
            self.progress.abandon_all([record.offset for record in rest], self.end)
            self.records, self.left, self.end = self.records[: -len(rest)], iter(()), rest[0].offset
        self.close_if_done()


class Progress:
    """One epoch of a partition, which is read from ``base`` on.

    Args:
        partition: the partition.
        base: the first offset to read.
        known: what an earlier owner had finished behind ``base``. It stays part of ``offset_map`` until all of it is
            passed, so that nothing is forgotten when the partition changes hands twice.

    Attributes:
        fetched: the next offset to fetch; None while nothing may be fetched behind what is buffered.
        delivered: the next offset to deliver.
        is_over: whether another epoch of the partition has begun, or it was released.
        is_halted: whether nothing more of it is started here, and no failed record is tried again.
        held_from: what is finished from there on stays in flight, because a transaction has to be committed first.
    """

    __slots__ = (
        "_abandoned",
        "_heap",
        "_highest",
        "_in_flight",
        "_known",
        "_leases",
        "_most",
        "_started_to",
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
        self.delivered = self._started_to = base
        self.is_over = self.is_halted = False
        self.held_from: int | None = None
        self._known = known
        self._leases: dict[Lease, None] = {}
        self._in_flight: set[int] = set()
        self._abandoned: set[int] = set()
        # The lowest in flight is at the top, below finished ones that were not taken away yet.
        self._heap: list[int] = []
        self._highest = -1
        self._most = _SLACK

    def __repr__(self) -> str:
        return f"<Progress finished={self.finished} delivered={self.delivered} in_flight={len(self._in_flight)}>"

    # ---- delivery ----------------------------------------------------------------------------------------------

    def deliver(self, records: Sequence[Record], end: int, in_hand: InHand = InHand.NOTHING) -> Lease:
        """Records are handed over, behind which the partition goes on at ``end``."""
        self.delivered = end
        lease = Lease(self, records, end, in_hand)
        self._leases[lease] = None
        return lease

    def skip(self, to: int) -> None:
        """There are no records to deliver below ``to``: control records, aborted or compacted ones."""
        self.delivered = max(self.delivered, to)

    def shared(self, lease: Lease, shares: Iterable[Sequence[Record]], end: int) -> list[Lease]:
        """See ``Lease.share``; the shares end at ``end``."""
        leases = [Lease(self, records, end, InHand.NOTHING) for records in shares if records]
        self._leases |= dict.fromkeys(leases)
        if lease.unstarted is None:
            self.forget(lease)
        if not leases:
            self._started_to = max(self._started_to, end)
        return leases

    def forget(self, lease: Lease) -> None:
        """All records of ``lease`` are part of other leases."""
        self._leases.pop(lease, None)

    def gave_back(self, lease: Lease, offset: int) -> int:
        """See ``Lease.give_back``."""
        assert lease.end == self.delivered, "only the last lease can be given back"
        self.delivered = offset
        return offset

    def close(self, lease: Lease) -> None:
        """All of ``lease`` is started."""
        if self._leases.pop(lease, False) is None:
            self._started_to = max(self._started_to, lease.end)

    def finish_through(self, offset: int) -> None:
        """What is in hand below ``offset`` is finished."""
        for lease in list(self._leases):
            lease.finish_through(offset)

    def cut(self, offset: int) -> None:
        """What is in hand from ``offset`` on goes back: it will be delivered again, here or by the next owner."""
        for lease in list(self._leases):
            if lease.finished >= offset:
                self.forget(lease)
            else:
                lease.end = min(lease.end, offset)
                lease.close_if_done()
        self.delivered = min(self.delivered, max(offset, self._started_to))

    def halt(self) -> None:
        """Start nothing more of it here, and try no failed record again."""
        self.is_halted = True

    def end(self) -> None:
        """Another epoch of the partition begins, or it is released: what is in flight counts for nothing any more."""
        self.is_over = True

    def fetched_to(self, offset: int | None) -> None:
        """What is below ``offset`` is buffered; None: fetch nothing behind what is buffered."""
        self.fetched = offset

    def hold(self, offset: int | None = None) -> None:
        """Keep what is finished from ``offset`` on in flight until ``release``; by default from where it is now."""
        if self.held_from is None or offset is not None:
            self.held_from = self.lowest if offset is None else offset

    def release(self) -> None:
        """What was held is committed."""
        self.held_from = None

    # ---- records by offset -------------------------------------------------------------------------------------

    def start(self, offset: int) -> None:
        """A record is in flight until ``finish`` or ``abandon``; it was taken, or waits behind one that was."""
        self._in_flight.add(offset)
        heappush(self._heap, offset)
        self._highest = max(self._highest, offset)
        if len(self._heap) > self._most:
            self._tidy()

    def start_all(self, offsets: Sequence[int]) -> None:
        """Several records are in flight, lowest first."""
        self._in_flight.update(offsets)
        self._heap.extend(offsets)
        if offsets and offsets[0] <= self._highest:
            heapify(self._heap)
        self._highest = max(self._highest, *offsets[-1:])
        if len(self._heap) > self._most:
            self._tidy()

    def unstart(self, offsets: Iterable[int]) -> None:
        """Records that ``start_all`` was told of were not handed out after all."""
        self._in_flight.difference_update(offsets)

    def finish(self, offset: int) -> bool:
        """A record in flight is finished, in any order; False when it is not in flight."""
        try:
            self._in_flight.remove(offset)
        except KeyError:
            return False
        return True

    def abandon(self, offset: int) -> None:
        """A record will not be finished here, so that no commit passes it: the next owner of the partition runs it."""
        if offset not in self._in_flight:
            self.start(offset)
        self._in_flight.remove(offset)
        self._abandoned.add(offset)

    def abandon_all(self, offsets: Iterable[int], end: int) -> None:
        """The same of all records of a lease that were not taken, behind which the partition goes on at ``end``."""
        for offset in offsets:
            self.abandon(offset)
        self._started_to = max(self._started_to, end)

    def _tidy(self) -> None:
        """Keep the heap in proportion, while one record at its top is stuck and millions pass it."""
        self._heap = sorted(self._in_flight | self._abandoned)
        self._most = 2 * len(self._heap) + _SLACK

    # ---- how it stands -----------------------------------------------------------------------------------------

    @property
    def in_flight(self) -> int:
        """The number of records started by offset and neither finished nor abandoned."""
        return len(self._in_flight)

    @property
    def has_in_flight(self) -> bool:
        """Whether a record is in flight, or finished and held for a transaction."""
        if self._in_flight or (self.held_from is not None and self.held_from < self.delivered):
            return True
        return any(one.lowest_in_hand is not None for one in self._leases)

    @property
    def unstarted(self) -> int | None:
        """The lowest offset that was delivered and not taken."""
        return min((offset for one in self._leases if (offset := one.unstarted) is not None), default=None)

    @property
    def next_offset(self) -> int:
        """The offset of the next record that starts: the position, as users know it."""
        offsets = [offset for one in self._leases if (offset := one.unstarted) is not None]
        return min([self.delivered, *offsets, *self._abandoned])

    @property
    def finished(self) -> int:
        """What may be committed: the lowest offset that is not finished, or is held for a transaction."""
        return self.lowest if self.held_from is None else min(self.held_from, self.lowest)

    @property
    def lowest(self) -> int:
        """The lowest offset that is not finished."""
        heap, in_flight, abandoned = self._heap, self._in_flight, self._abandoned
        while heap and heap[0] not in in_flight and heap[0] not in abandoned:
            heappop(heap)
        lowest = heap[0] if heap else self.delivered
        for lease in self._leases:
            offset = lease.lowest
            if offset is not None and offset < lowest:
                lowest = offset
        return min(lowest, self.delivered)

    @property
    def known(self) -> OffsetMap | None:
        """What an earlier owner had finished, for as long as there is something left of it to skip."""
        if self._known is not None and self._known.limit <= self.next_offset:
            self._known = None
        return self._known

    def forget_known(self) -> None:
        """Drop the map of an earlier owner: its records are handled again."""
        self._known = None

    def offset_map(self) -> OffsetMap | None:
        """What goes with a commit of ``finished``: all that is finished behind it; None when nothing is."""
        known = self.known
        if not (self._in_flight or self._abandoned or self._leases or known):
            return None
        end, not_finished = self._finished_to(), self._in_flight | self._abandoned
        for lease in self._leases:
            if (lowest := lease.lowest) is not None and lowest < end:
                not_finished.update(offset for offset in lease.open_offsets() if offset < end)
        finished = min(self.lowest, end)
        limit = end
        while limit - 1 in not_finished:
            limit -= 1
        if known is None or known.limit <= end:
            if limit <= finished:
                return None
            return OffsetMap(finished, limit, sorted(offset for offset in not_finished if offset < limit))
        limit = known.limit
        # Not expanded: a map may cover many more offsets than are in flight here.
        rest = (offset for offset in known.unfinished_from(end) if offset not in not_finished)
        unfinished = merge(sorted(offset for offset in not_finished if offset < limit), rest)
        return OffsetMap(finished, limit, unfinished).of_log(known.topic_id, known.leader_epoch)

    def _finished_to(self) -> int:
        """The offset from which nothing is finished."""
        if not self._leases:
            return max(self._started_to, self.delivered)
        end = max([self._started_to, *(one.finished_to for one in self._leases if one.has_started)])
        # Of what another process has only the lowest is known by offset.
        return min([end, *(one.finished_to for one in self._leases if not one.records)])
