"""Offsets of records that are tracked one by one, and the lowest unfinished offset among them."""

from __future__ import annotations

from collections.abc import Sequence
from heapq import heapify, heappop, heappush

__all__ = ["StartedOffsets"]

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
