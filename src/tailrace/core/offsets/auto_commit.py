"""When the next automatic commit is due."""

from __future__ import annotations

from dataclasses import dataclass, field

__all__ = ["CommitClock"]


@dataclass
class CommitClock:
    """When the next automatic commit is due: by time, by how many records are done, or by whichever comes first.

    Any commit, one by hand too, begins both anew.
    """

    interval_s: float | None
    every: int | None = None
    """After so many records."""
    next_at: float | None = field(default=None, init=False)
    next_count: int | None = field(default=None, init=False)

    def restart(self, now: float, finished: int = 0) -> None:
        """A commit was made when ``finished`` records were done, or the first interval begins."""
        self.next_at = None if self.interval_s is None else now + self.interval_s
        self.next_count = None if self.every is None else finished + self.every

    def is_due(self, now: float, finished: int = 0) -> bool:
        """Whether it is time, or enough is done."""
        is_time = self.next_at is not None and now >= self.next_at
        return is_time or (self.next_count is not None and finished >= self.next_count)
