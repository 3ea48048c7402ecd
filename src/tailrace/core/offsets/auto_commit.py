"""Schedule of automatic commits."""

from __future__ import annotations

from dataclasses import dataclass, field

__all__ = ["CommitClock"]


@dataclass
class CommitClock:
    """Schedule of automatic commits: after a time, after a number of finished records, or after whichever comes first.

    Every commit, including manual commits, restarts both the time and the count.
    """

    interval_s: float | None
    """Time in seconds after which a commit is due; None if commits do not depend on the time."""
    every: int | None = None
    """Number of finished records after which a commit is due; None if commits do not depend on the number."""
    next_at: float | None = field(default=None, init=False)
    """Time of the next commit; None if commits do not depend on the time."""
    next_count: int | None = field(default=None, init=False)
    """Total number of finished records at which the next commit is due; None if commits do not depend on it."""

    def restart(self, now: float, finished: int = 0) -> None:
        """Start the next interval at ``now``, when ``finished`` records are finished in total."""
        self.next_at = None if self.interval_s is None else now + self.interval_s
        self.next_count = None if self.every is None else finished + self.every

    def is_due(self, now: float, finished: int = 0) -> bool:
        """Return True if a commit is due when ``finished`` records are finished in total."""
        is_time = self.next_at is not None and now >= self.next_at
        return is_time or (self.next_count is not None and finished >= self.next_count)
