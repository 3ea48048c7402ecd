"""How many records were handed out and how many of them are done, for commits that go by number.

Rule of this file: nothing is counted record by record. A slice is counted when it begins and when somebody asks; the
reader makes it no longer than up to the number that is waited for.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from operator import length_hint

from tailrace.core.delivery.progress import Position, Positions
from tailrace.records import Record

__all__ = ["FinishedCounter"]


class FinishedCounter:
    """Counts for one reader.

    Args:
        sync: brings a position up to what is done of it.

    Attributes:
        on_due: told when so many are done as are waited for.
    """

    def __init__(self, positions: Positions, sync: Callable[[Position], None]) -> None:
        self.on_due: Callable[[], None] = _nobody
        self._positions, self._sync = positions, sync
        self._due_at: int | None = None
        self._handed = 0
        """In slices before this one."""
        self._in_slice = 0
        self._finished = 0
        self._counts_for_sink = False

    def wait_for(self, count: int | None) -> None:
        """Tell when so many are done; None: never."""
        self._due_at = count

    def room(self, size: int, left: Iterator[Record]) -> int:
        """How long the next slice may be, so that its end is not behind what is waited for."""
        return size if self._due_at is None else max(1, min(size, self._due_at - self._handed_of(left)))

    def begin(self, before: Iterator[Record], size: int) -> None:
        """A slice of ``size`` takes the place of the one before, of which what is left is not handed out."""
        self._handed, self._in_slice = self._handed_of(before), size

    def take(self, count: int) -> None:
        """A taker has so many more."""
        self._counts_for_sink = True
        self._handed += count

    def finish(self, left: Iterator[Record]) -> None:
        """All that was handed out is done."""
        self._finished = self._handed_of(left)
        self.look()

    def know(self, left: Iterator[Record]) -> None:
        """All that was handed out is done, but for the last one."""
        self._finished = max(self._finished, self._handed_of(left) - 1)

    def finish_one(self) -> None:
        """One is done, by the user's own word."""
        self._finished += 1
        self.look()

    def look(self) -> None:
        """Tell if so many are done."""
        if self._due_at is not None and self._handed + self._in_slice >= self._due_at <= self.finished:
            self.on_due()

    @property
    def finished(self) -> int:
        """How many are done; of a taker's, those that nothing unfinished is before."""
        if not self._counts_for_sink:
            return self._finished
        for one in self._positions:
            self._sync(one)
        held = sum((one.delivered or 0) - (one.done or 0) for one in self._positions if one.has_in_flight)
        return self._handed - held

    def _handed_of(self, left: Iterator[Record]) -> int:
        return self._handed + self._in_slice - length_hint(left)


def _nobody() -> None:
    """Until somebody asks to be told."""
