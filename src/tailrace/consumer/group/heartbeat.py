"""Times of a member's heartbeats and session, and detection of an application that does not poll.

Pure: no clock, IO or logging.

Each acknowledged heartbeat begins a new session, at the time at which the heartbeat was *sent*. The broker receives the
heartbeat later, so the member considers its session expired no later than the broker does.
"""

from __future__ import annotations

from dataclasses import dataclass, field

__all__ = ["Heartbeat", "PollIntervalClock"]

# ---- detection of an application that does not poll although records wait for it (KIP-62) ----------------------------


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


# ---- times of a member's heartbeats and of its session ---------------------------------------------------------------


@dataclass(slots=True)
class Heartbeat:
    """Heartbeat and session timer of one membership; all times are in seconds, of one clock."""

    session_timeout_s: float
    interval_s: float
    _alive_since: float = 0.0
    """Start of the current session."""
    _next_at: float = 0.0
    """Time of the next heartbeat, if no heartbeat is in flight then."""
    _sent_at: float | None = None
    """Time at which the heartbeat in flight was sent; None if no heartbeat is in flight."""

    def reset(self, now: float) -> None:
        """Start a new session at ``now``, and schedule a heartbeat one interval later."""
        self._alive_since = now
        self._next_at = now + self.interval_s
        self._sent_at = None

    def note_sent(self, now: float) -> None:
        """Note that a heartbeat was sent; no other heartbeat is due until it is acknowledged or has failed."""
        self._sent_at = now
        self._next_at = now + self.interval_s

    def note_answer(self, now: float) -> None:
        """Note that the heartbeat was acknowledged, so that the session begins at the time at which it was sent."""
        if self._sent_at is not None:
            self._alive_since = max(self._alive_since, self._sent_at)
            self._sent_at = None
        self._next_at = max(self._next_at, now)

    def note_failure(self, now: float, pause_s: float) -> None:
        """Note that the heartbeat failed; the next heartbeat is due after ``pause_s``."""
        self._sent_at = None
        self._next_at = now + pause_s

    def should_heartbeat(self, now: float) -> bool:
        """Return True if a heartbeat is due and none is in flight."""
        return self._sent_at is None and now >= self._next_at

    def session_expired(self, now: float) -> bool:
        """Return True if the session has expired."""
        return now >= self.expires_at

    @property
    def expires_at(self) -> float:
        """Time at which the session ends unless another heartbeat is acknowledged."""
        return self._alive_since + self.session_timeout_s

    @property
    def next_at(self) -> float:
        """Time at which a heartbeat is due or the session ends, whichever comes first."""
        return self.expires_at if self._sent_at is not None else min(self._next_at, self.expires_at)

    def age_s(self, now: float) -> float:
        """Return the seconds since the last acknowledged heartbeat was sent."""
        return now - self._alive_since
