"""Size of a partition's offset map in the commit metadata, estimated between commits.

While one record is not finished, a million later records may finish between two commits, and the offset map grows with
them. The size is therefore estimated before each slice (the records that are delivered together), from the number of
offsets that the map covers and the number of records in flight. Only if the estimate is high is the map encoded, to
measure its size.
"""

from __future__ import annotations

from tailrace.core.delivery.progress import Progress
from tailrace.core.offset_map import EncodedMetadata, encode_metadata

__all__ = ["OffsetMapSize"]

_PAUSE_S = 0.02
"""Pause before a map that was too large is measured again, because encoding a map may take a millisecond."""
_OVERHEAD = 73
"""Bytes of the commit metadata apart from the offset map, the writer's name and the user's text."""
_GAP_BYTES = 3
"""Bytes that encode a gap between two unfinished offsets if the gap is below two million."""


class OffsetMapSize:
    """Size of one partition's offset map in one assignment epoch.

    Attributes:
        fill: share of the available space that the map took at the last measurement.
        is_high: True if the map was so large at the last measurement that no more records should be started.
    """

    __slots__ = ("_again_at", "_measured_at", "_seen", "fill", "is_high")

    def __init__(self) -> None:
        self.fill = 0.0
        self.is_high = False
        self._measured_at = -1
        """``Progress.delivered`` at the last measurement or estimate; -1 before the first."""
        self._again_at = 0.0
        """Earliest time of the next measurement."""
        self._seen: tuple[int, int] | None = None
        """``Progress.finished`` and ``Progress.started`` at the last measurement; None before the first."""

    def is_due(self, progress: Progress, limit: int) -> bool:
        """Return True if ``measure`` should be called, because the map may be too large; otherwise note the estimate.

        ``limit`` is the maximum size of the commit metadata in bytes.
        """
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
        """Encode the map to measure its size."""
        self.note_encoded(encode_metadata(progress.offset_map(), "", limit, writer=writer))
        self._measured_at, self._again_at = progress.delivered, now + _PAUSE_S
        self._seen = progress.finished, progress.started

    def note_encoded(self, envelope: EncodedMetadata) -> None:
        """Set ``fill`` and ``is_high`` from an encoded map."""
        self.fill, self.is_high = envelope.fill, envelope.is_high

    def again_at(self, progress: Progress, now: float) -> float | None:
        """Return the time of the next measurement after the map was too large; None if nothing has changed since."""
        if self._seen == (progress.finished, progress.started):
            return None
        return max(now, self._again_at)
