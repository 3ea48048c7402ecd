"""Detection of an application that does not poll although records wait for it (KIP-62)."""

from __future__ import annotations

from dataclasses import dataclass, field

__all__ = ["PollIntervalClock"]


@dataclass(slots=True)
class PollIntervalClock:
    """Timer that detects an application that is stuck, from snapshots of its progress."""

    limit_s: float
    """``max_poll_interval_ms``, in seconds."""
    is_stuck: bool = field(default=False, init=False)
    _seen: object = field(default=None, init=False)
    """Progress at the last call of ``look``."""
    _since: float = field(default=0.0, init=False)
    """Last time at which the application polled or had nothing to poll."""

    def look(self, progress: object, now: float, *, awaits_poll: bool) -> None:
        """Compare ``progress`` with the last snapshot, and update ``is_stuck``.

        ``is_stuck`` becomes True if the application has not polled for ``limit_s`` although ``awaits_poll`` was true.
        It becomes False when ``progress`` changes.

        Args:
            progress: value that changes whenever the application polls.
            now: current time in seconds.
            awaits_poll: True if the application has records in flight or could poll some, and is not waiting in a poll.
        """
        if progress != self._seen:
            self._seen, self._since, self.is_stuck = progress, now, False
        elif not self.is_stuck and not awaits_poll:
            self._since = now
        elif now - self._since >= self.limit_s:
            self.is_stuck = True

    def next_at(self, now: float) -> float:
        """Return the time of the next call of ``look``: ``is_stuck`` is set at most a quarter of the limit late."""
        return now + self.limit_s / 4
