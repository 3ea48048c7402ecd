"""When a member has to say that it lives, and when the group must have given it up.

The session is counted from the moment at which the last heartbeat that was acknowledged was *sent*: the broker heard
it later than that, so we give ourselves up no later than the broker does, and stop in time.
"""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["Heartbeat"]


@dataclass(slots=True)
class Heartbeat:
    """The clock of one membership; it is told the time and has no network."""

    session_timeout_s: float
    interval_s: float
    _alive_since: float = 0.0
    """When the session was last known to begin anew."""
    _next_at: float = 0.0
    _sent_at: float | None = None
    """Of the one that waits for its answer."""

    def reset(self, now: float) -> None:
        """The session begins anew (the group has just heard from us), and the next heartbeat is an interval away."""
        self._alive_since = now
        self._next_at = now + self.interval_s
        self._sent_at = None

    def sent(self, now: float) -> None:
        """One goes out; no other does before its answer."""
        self._sent_at = now
        self._next_at = now + self.interval_s

    def received(self, now: float, pause_s: float = 0.0) -> None:
        """It was acknowledged; ``pause_s`` is how long the broker will not listen."""
        if self._sent_at is not None:
            self._alive_since = max(self._alive_since, self._sent_at)
            self._sent_at = None
        self._next_at = max(self._next_at, now + pause_s)

    def failed(self, now: float, pause_s: float) -> None:
        """It was not; the next goes out after ``pause_s``."""
        self._sent_at = None
        self._next_at = now + pause_s

    def ttl(self, now: float) -> float:
        """Seconds until the next one is due; 0 when it is."""
        return max(0.0, self._next_at - now)

    def should_heartbeat(self, now: float) -> bool:
        """Whether one is due and none is under way."""
        return self._sent_at is None and now >= self._next_at

    def session_expired(self, now: float) -> bool:
        """Whether the group has given this member up."""
        return now >= self.expires_at

    @property
    def expires_at(self) -> float:
        """When that will be, if nothing is acknowledged before."""
        return self._alive_since + self.session_timeout_s

    @property
    def next_at(self) -> float:
        """When something is to be done: the next heartbeat, or the end of the session."""
        return self.expires_at if self._sent_at is not None else min(self._next_at, self.expires_at)

    def age_s(self, now: float) -> float:
        """Seconds since the group is known to have heard from us."""
        return now - self._alive_since
