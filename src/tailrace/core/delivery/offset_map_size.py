"""Size of a partition's offset map in the commit metadata, estimated between commits.

A map is encoded only if it may be large. Between two commits a stuck record may let a million others finish after it,
so the estimate is made once a slice, from two cheap numbers: the offsets that the map covers, and those in flight.
"""

from __future__ import annotations

from tailrace.core.delivery.progress import Progress
from tailrace.core.offset_map import EncodedMetadata, encode_metadata

__all__ = ["OffsetMapSize"]

_PAUSE_S = 0.02
"""Between two looks at a map that was too full: making one may take a millisecond."""
_OVERHEAD = 73
"""Bytes of an envelope beside its map, its writer's name and a user's text."""
_GAP_BYTES = 3
"""A gap between two unfinished ones takes so many, as long as it is below two million."""


class OffsetMapSize:
    """Of one partition, in one assignment.

    Attributes:
        fill: how much of the room the map took when somebody looked last.
        is_high: whether no new records should be begun.
    """

    __slots__ = ("_again_at", "_looked_at", "_seen", "fill", "is_high")

    def __init__(self) -> None:
        self.fill = 0.0
        self.is_high = False
        self._looked_at = -1
        self._again_at = 0.0
        self._seen: tuple[int, int] | None = None

    def is_due(self, progress: Progress, limit: int) -> bool:
        """Return True if so many records were delivered since the last look that the map may be too large."""
        if self._looked_at < 0:
            self._looked_at = progress.delivered
        if not progress.started or progress.delivered - self._looked_at < limit // 4:
            return False
        # Whichever is shorter is written: a bit for each offset, or a few bytes for each gap. Base64 adds a third.
        most = min((progress.delivered - progress.finished) // 8, _GAP_BYTES * progress.started + 10) * 4 // 3
        if most + _OVERHEAD > limit // 2:
            return True
        self._looked_at = progress.delivered
        return False

    def look(self, progress: Progress, limit: int, writer: str, now: float) -> None:
        """Make the map, and see how large it is."""
        self.saw(encode_metadata(progress.offset_map(), "", limit, writer=writer))
        self._looked_at, self._again_at = progress.delivered, now + _PAUSE_S
        self._seen = progress.finished, progress.started

    def saw(self, envelope: EncodedMetadata) -> None:
        """The map was made, for a commit."""
        self.fill, self.is_high = envelope.fill, envelope.is_high

    def again_at(self, progress: Progress, now: float) -> float | None:
        """When to look again at one that was too full: now, later, or, as nothing has changed, not at all (None)."""
        if self._seen == (progress.finished, progress.started):
            return None
        return max(now, self._again_at)
