"""Number of finished records, for commits after every N records (``auto_commit_every_records``).

The number is checked once per slice (records that are decoded and delivered together), not for each record. The reader
therefore ends a slice at the record after which a commit is due.
"""

from __future__ import annotations

from collections.abc import Callable

from tailrace.core.delivery.polled_records import PolledRecords
from tailrace.core.delivery.positions import Positions

__all__ = ["FinishedCounter"]


class FinishedCounter:
    """Counts the finished records of one reader.

    Args:
        positions: the assigned partitions.
        polled: records delivered to a polling user.
        has_manual_ack: True if each record is finished by its own acknowledgement (``ack="manual"``).

    Attributes:
        on_due: called by ``check_due`` when the number given to ``set_due_at`` is reached.
    """

    def __init__(self, positions: Positions, polled: PolledRecords, *, has_manual_ack: bool) -> None:
        self.on_due: Callable[[], None] = lambda: None
        self._positions, self._polled, self._has_manual_ack = positions, polled, has_manual_ack
        self._due_at: int | None = None
        """Total number of finished records at which a commit is due; None if commits do not depend on it."""
        self._acknowledged = 0
        self._delivered_to_sink: int | None = None
        """Number of records delivered to a sink; None before the first delivery, and if the user polls."""

    def set_due_at(self, count: int | None) -> None:
        """Let ``on_due`` be called once ``count`` records are finished in total; None for never."""
        self._due_at = count

    def slice_limit(self, size: int) -> int:
        """Return the maximum number of records in the next slice, at least 1.

        It is ``size``, or fewer if a commit is due before ``size`` more records are finished.
        """
        delivered = self._polled.count_taken + (self._delivered_to_sink or 0)
        return size if self._due_at is None else max(1, min(size, self._due_at - delivered))

    def count_delivered(self, count: int) -> None:
        """Count records that were delivered to a sink."""
        self._delivered_to_sink = (self._delivered_to_sink or 0) + count

    def count_acknowledged(self) -> None:
        """Count a record that the user has acknowledged."""
        self._acknowledged += 1

    def check_due(self) -> None:
        """Call ``on_due`` if the number given to ``set_due_at`` is reached."""
        if self._due_at is None or self._polled.count_added + (self._delivered_to_sink or 0) < self._due_at:
            return
        if self._due_at <= self.finished:
            self.on_due()

    @property
    def finished(self) -> int:
        """Total number of finished records.

        With a sink, this is a lower bound, which leaves out all records after the lowest unfinished record of each
        partition.
        """
        if self._delivered_to_sink is not None:
            return self._delivered_to_sink - sum((one.delivered or 0) - (one.finished or 0) for one in self._positions)
        if self._has_manual_ack:
            return self._acknowledged
        return self._polled.count_taken - self._polled.count_in_flight
