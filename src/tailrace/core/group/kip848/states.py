"""Where a member of a group may stand under KIP-848, and which of these states have what in common."""

from __future__ import annotations

from enum import StrEnum

__all__ = ["ALIVE", "JOIN_EPOCH", "LEAVE_EPOCH", "OVER", "STATIC_LEAVE_EPOCH", "Kip848State"]

JOIN_EPOCH, LEAVE_EPOCH, STATIC_LEAVE_EPOCH = 0, -1, -2
"""Member epochs with a meaning of their own (KIP-848); the last keeps a static member's place in the group."""


class Kip848State(StrEnum):
    """Where a member stands."""

    IDLE = "idle"
    JOINING = "joining"
    """Until the group has answered once; nothing is owned."""
    STABLE = "stable"
    """What can be had of the target is had."""
    RELEASING = "releasing"
    """Drain, commit, the user's callbacks; then the heartbeat that says so."""
    TAKING_OVER = "taking over"
    """Start positions and the user's callbacks."""
    LOSING = "losing"
    """The user is told that all is lost; then join again."""
    STEPPING_AWAY = "stepping away"
    """Nobody reads: the user is told that the partitions are lost."""
    AWAY = "away"
    """Out of the group until somebody reads."""
    CLOSING = "closing"
    """Giving everything back for the last time."""
    LEAVING = "leaving"
    LEFT = "left"
    FAILED = "failed"


ALIVE = frozenset({Kip848State.STABLE, Kip848State.RELEASING, Kip848State.TAKING_OVER, Kip848State.CLOSING})
"""The states in which the group counts this member, until it is lost."""

OVER = frozenset({Kip848State.LEFT, Kip848State.FAILED})
