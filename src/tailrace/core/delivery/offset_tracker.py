"""Which records of one partition are unfinished, and so how far a commit may go.

Rule of this file: completeness is judged against what was handed out, never against which offset follows which. What
lies below ``next_offset`` and was not said to be begun is finished or was never there (compaction, markers and
aborted records leave gaps), so records that are finished before the next is begun cost nothing here: ``advance`` now
and then, and no set is touched. Nobody but ``advance`` and ``begin_all`` moves ``next_offset``: several may share the
records of a partition, and one of them may be ahead of the others.

One tracker lives for one assignment of a partition; a seek or a reset begins a new one.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from heapq import heapify, heappop, heappush, merge

from tailrace.core.offset_map import OffsetMap

__all__ = ["OffsetTracker"]

_SLACK = 1_024
"""So many finished offsets may stay in the heap however few are unfinished."""


class OffsetTracker:
    """The unfinished records of one partition, which is read from ``base`` on.

    Args:
        base: the first offset to read.
        known: what the last owner had finished behind ``base``; it stays part of ``offset_map`` until all of it is
            passed, so that nothing is forgotten when the partition changes hands twice.

    Attributes:
        next_offset: the lowest offset that is not begun.
    """

    __slots__ = ("_abandoned", "_heap", "_highest", "_known", "_most", "_unfinished", "next_offset")

    def __init__(self, base: int, known: OffsetMap | None = None) -> None:
        self.next_offset = base
        self._known = known
        self._unfinished: set[int] = set()
        self._abandoned: set[int] = set()
        # The lowest unfinished one is at its top, below finished ones that nobody has taken away yet.
        self._heap: list[int] = []
        self._highest = -1
        self._most = _SLACK

    def __repr__(self) -> str:
        return f"<OffsetTracker done={self.done} next_offset={self.next_offset} unfinished={self.unfinished}>"

    # ---- what happens to records -------------------------------------------------------------------------------

    def advance(self, to: int) -> None:
        """All below ``to`` is finished, never was there, or is begun; never backwards."""
        self.next_offset = max(self.next_offset, to)

    def begin(self, offset: int) -> None:
        """A record is begun, or waits behind one that is; what is below it is as ``advance`` says."""
        self._unfinished.add(offset)
        heappush(self._heap, offset)
        self._highest = max(self._highest, offset)
        if len(self._heap) > self._most:
            self._tidy()

    def begin_all(self, offsets: Sequence[int]) -> None:
        """Several that are handed out at once, lowest first; what lies between them is not there, or is finished."""
        if not offsets:
            return
        self._unfinished.update(offsets)
        self._heap.extend(offsets)
        if offsets[0] <= self._highest:
            heapify(self._heap)
        self._highest = max(self._highest, offsets[-1])
        self.advance(offsets[-1] + 1)
        if len(self._heap) > self._most:
            self._tidy()

    def take_back(self, offsets: Sequence[int]) -> None:
        """The last of those that ``begin_all`` was given were not handed out after all, and will be begun again."""
        self._unfinished.difference_update(offsets)
        self.next_offset = offsets[0]

    def abandon(self, offset: int) -> None:
        """A record that was begun will not be finished here, so that no commit passes it: its next owner runs it."""
        if offset in self._unfinished:
            self._unfinished.remove(offset)
            self._abandoned.add(offset)

    def leave(self, offsets: Iterable[int]) -> None:
        """Records that will not be finished here, begun or not; what is finished behind them is known to be."""
        for offset in offsets:
            self.begin(offset)
            self.abandon(offset)

    def finish(self, offset: int) -> bool:
        """A record that was begun is finished, in any order; False when it is not in hand: done, or never begun."""
        try:
            self._unfinished.remove(offset)
        except KeyError:
            return False
        return True

    # ---- how they stand ----------------------------------------------------------------------------------------

    @property
    def lowest(self) -> int | None:
        """The lowest offset that is begun and not finished, or was abandoned; None when there is none."""
        heap, unfinished, abandoned = self._heap, self._unfinished, self._abandoned
        while heap:
            if heap[0] in unfinished or heap[0] in abandoned:
                return heap[0]
            heappop(heap)
        return None

    @property
    def done(self) -> int:
        """What may be committed: the lowest unfinished offset, or else the next one."""
        lowest = self.lowest
        return self.next_offset if lowest is None else min(lowest, self.next_offset)

    @property
    def unfinished(self) -> int:
        """How many records are unfinished and in hand."""
        return len(self._unfinished)

    @property
    def known(self) -> OffsetMap | None:
        """What the last owner had finished, for as long as there is something left of it to skip."""
        if self._known is not None and self._known.limit <= self.next_offset:
            self._known = None
        return self._known

    def offset_map(self) -> OffsetMap | None:
        """What goes with a commit of ``done``: all that is finished behind it; None when nothing is."""
        if not (self._unfinished or self._abandoned or self._known):
            return None
        return self.progress(self.next_offset, ())[1]

    def progress(self, end: int, waiting: Iterable[int]) -> tuple[int, OffsetMap | None]:
        """Return what may be committed and the map beside it, if all below ``end`` but ``waiting`` was begun."""
        not_finished = self._unfinished | self._abandoned
        not_finished.update(waiting)
        done, limit, known = min(not_finished, default=end), end, self._known
        while limit - 1 in not_finished:
            limit -= 1
        done = min(done, end)
        if known is None or known.limit <= end:
            found = OffsetMap(done, limit, sorted(o for o in not_finished if o < limit)) if limit > done else None
            return done, found
        limit = known.limit
        # Not expanded: a map may cover many more offsets than are in flight here.
        rest = (offset for offset in known.unfinished_from(end) if offset not in not_finished)
        unfinished = merge(sorted(offset for offset in not_finished if offset < limit), rest)
        return done, OffsetMap(done, limit, unfinished).of_log(known.topic_id, known.leader_epoch)

    def forget_known(self) -> None:
        """Drop the map of the last owner: its records are handled again."""
        self._known = None

    def _tidy(self) -> None:
        """Keep the heap in proportion, while one record at its top is stuck and millions pass it."""
        self._heap = sorted(self._unfinished | self._abandoned)
        self._most = 2 * len(self._heap) + _SLACK
