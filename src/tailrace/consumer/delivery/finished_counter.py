"""Number of finished records, for commits every so many records (``auto_commit_every_records``).

Slices are counted, not records; the reader ends a slice at the number that is waited for.
"""

from __future__ import annotations

from collections.abc import Callable

from tailrace.core.delivery.polled_records import PolledRecords
from tailrace.core.delivery.positions import Positions

__all__ = ["FinishedCounter"]


class FinishedCounter:
    """Counts for one reader.

    Args:
        is_acked_by_hand: whether each record is finished by an acknowledgement of its own.

    Attributes:
        on_due: called when as many records are finished as are waited for.
    """

    def __init__(self, positions: Positions, polled: PolledRecords, *, is_acked_by_hand: bool) -> None:
        self.on_due: Callable[[], None] = lambda: None
        self._positions, self._polled, self._is_acked_by_hand = positions, polled, is_acked_by_hand
        self._due_at: int | None = None
        self._acknowledged = 0
        self._delivered_to_sink: int | None = None

    def wait_for(self, count: int | None) -> None:
        """Call ``on_due`` when so many records are finished; None: never."""
        self._due_at = count

    def room(self, size: int) -> int:
        """The size of the next slice, so that its end is not behind what is waited for."""
        handed_out = self._polled.taken + (self._delivered_to_sink or 0)
        return size if self._due_at is None else max(1, min(size, self._due_at - handed_out))

    def deliver_to_sink(self, count: int) -> None:
        """A sink has so many records more."""
        self._delivered_to_sink = (self._delivered_to_sink or 0) + count

    def acknowledge(self) -> None:
        """One record is acknowledged by hand."""
        self._acknowledged += 1

    def look(self) -> None:
        """Call ``on_due`` if so many are finished."""
        if self._due_at is None or self._polled.added + (self._delivered_to_sink or 0) < self._due_at:
            return
        if self._due_at <= self.finished:
            self.on_due()

    @property
    def finished(self) -> int:
        """The number of finished records; of a sink's, those below the lowest unfinished one."""
        if self._delivered_to_sink is not None:
            return self._delivered_to_sink - sum((one.delivered or 0) - (one.finished or 0) for one in self._positions)
        if self._is_acked_by_hand:
            return self._acknowledged
        return self._polled.taken - self._polled.count_in_flight
