"""Schedule of automatic commits."""

from __future__ import annotations

from dataclasses import dataclass, field

__all__ = ["CommitClock"]


@dataclass
class CommitClock:
    """Schedule of automatic commits, by time, by number of finished records, or by whichever comes first.

    Every commit, manual ones included, restarts both the interval and the count.
    """

    interval_s: float | None
    every: int | None = None
    """Number of records after which a commit is due."""
    next_at: float | None = field(default=None, init=False)
    next_count: int | None = field(default=None, init=False)

    def restart(self, now: float, finished: int = 0) -> None:
        """Note a commit at ``finished`` finished records, or start the first interval."""
        self.next_at = None if self.interval_s is None else now + self.interval_s
        self.next_count = None if self.every is None else finished + self.every

    def is_due(self, now: float, finished: int = 0) -> bool:
        """Return True if a commit is due."""
        is_time = self.next_at is not None and now >= self.next_at
        return is_time or (self.next_count is not None and finished >= self.next_count)
