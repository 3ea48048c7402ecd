"""Size of a partition's offset map in the commit metadata, estimated between commits.

A map is encoded only if it may be large. While one record is stuck, a million later records may finish between two
commits. So the size is estimated before each slice (the records that are delivered together), from two cheap numbers:
how many offsets the map covers, and how many records are in flight.
"""

from __future__ import annotations

from tailrace.core.delivery.progress import Progress
from tailrace.core.offset_map import EncodedMetadata, encode_metadata

__all__ = ["OffsetMapSize"]

_PAUSE_S = 0.02
"""Pause before a map that was too full is measured again, because encoding a map may take a millisecond."""
_OVERHEAD = 73
"""Bytes of the commit metadata apart from the offset map, the writer's name and the user's text."""
_GAP_BYTES = 3
"""Bytes that encode a gap between two unfinished offsets if the gap is below two million."""


class OffsetMapSize:
    """Size of one partition's offset map in one assignment.

    Attributes:
        fill: share of the available space that the map took when it was last measured.
        is_high: True if no new records should be started.
    """

    __slots__ = ("_again_at", "_measured_at", "_seen", "fill", "is_high")

    def __init__(self) -> None:
        self.fill = 0.0
        self.is_high = False
        self._measured_at = -1
        """Next offset to deliver at the last measurement or estimate; -1 before the first."""
        self._again_at = 0.0
        """Earliest time of the next measurement."""
        self._seen: tuple[int, int] | None = None
        """Offset to commit and number of records in flight at the last measurement."""

    def is_due(self, progress: Progress, limit: int) -> bool:
        """Return True if the map may have become too large since the last measurement or estimate."""
        if self._measured_at < 0:
            self._measured_at = progress.delivered
        # ``delivered`` and ``finished`` are offsets; ``started`` is a number of records.
        if not progress.started or progress.delivered - self._measured_at < limit // 4:
            return False
        # A map is written as one bit for each offset from ``finished`` to ``delivered``, or as a few bytes for each gap
        # between records in flight, whichever is shorter. Base64 adds a third.
        most = min((progress.delivered - progress.finished) // 8, _GAP_BYTES * progress.started + 10) * 4 // 3
        if most + _OVERHEAD > limit // 2:
            return True
        self._measured_at = progress.delivered
        return False

    def measure(self, progress: Progress, limit: int, writer: str, now: float) -> None:
        """Encode the map and measure it."""
        self.note_encoded(encode_metadata(progress.offset_map(), "", limit, writer=writer))
        self._measured_at, self._again_at = progress.delivered, now + _PAUSE_S
        self._seen = progress.finished, progress.started

    def note_encoded(self, envelope: EncodedMetadata) -> None:
        """Take the size from a map that was encoded for a commit."""
        self.fill, self.is_high = envelope.fill, envelope.is_high

    def again_at(self, progress: Progress, now: float) -> float | None:
        """Return when to repeat a measurement that found the map too full; None without progress since then."""
        if self._seen == (progress.finished, progress.started):
            return None
        return max(now, self._again_at)
