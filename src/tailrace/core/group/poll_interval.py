"""Detection of an application that has records to handle and does not poll (KIP-62)."""

from __future__ import annotations

from dataclasses import dataclass, field

__all__ = ["PollIntervalClock"]


@dataclass(slots=True)
class PollIntervalClock:
    """Timer that detects a stuck reader from snapshots of its progress."""

    limit_s: float
    is_stuck: bool = field(default=False, init=False)
    _seen: object = field(default=None, init=False)
    """Progress at the last look."""
    _since: float = field(default=0.0, init=False)
    """Last time at which the reader advanced or had nothing to handle."""

    def look(self, progress: object, now: float, *, is_owed: bool) -> None:
        """Compare ``progress`` with the last snapshot; a stuck reader stays stuck until its progress changes.

        Args:
            progress: value that differs from the last snapshot if the reader has advanced.
            now: current time in seconds.
            is_owed: True if the reader has records to handle; a reader that waits for records is not stuck.
        """
        if progress != self._seen:
            self._seen, self._since, self.is_stuck = progress, now, False
        elif not self.is_stuck and not is_owed:
            self._since = now
        elif now - self._since >= self.limit_s:
            self.is_stuck = True

    def next_at(self, now: float) -> float:
        """Return the time of the next look; a stuck reader is detected at most a quarter of the limit late."""
        return now + self.limit_s / 4
