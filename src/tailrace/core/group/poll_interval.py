"""When a reader has to be taken for stuck: records wait or are in hand, and nobody comes for the next (KIP-62)."""

from __future__ import annotations

from dataclasses import dataclass, field

__all__ = ["PollIntervalClock"]


@dataclass(slots=True)
class PollIntervalClock:
    """Compares what it sees with what it saw; it is told the time and looks at nothing itself."""

    limit_s: float
    is_stuck: bool = field(default=False, init=False)
    _seen: object = field(default=None, init=False)
    _since: float = field(default=0.0, init=False)

    def look(self, progress: object, now: float, *, is_owed: bool) -> None:
        """Find out whether the reader is stuck; only its own next step makes it unstuck.

        Args:
            progress: differs from the last time when the reader has moved since.
            now: the time, in seconds.
            is_owed: whether the reader has something to do; one that waits for records, or has none, is not stuck.
        """
        if progress != self._seen:
            self._seen, self._since, self.is_stuck = progress, now, False
        elif not self.is_stuck and not is_owed:
            self._since = now
        elif now - self._since >= self.limit_s:
            self.is_stuck = True

    def next_at(self, now: float) -> float:
        """When to look again: it is found out a quarter of the limit too late at most."""
        return now + self.limit_s / 4
