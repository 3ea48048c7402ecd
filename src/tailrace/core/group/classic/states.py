"""Where a member of a classic group may stand, and which of these states have what in common."""

from __future__ import annotations

from enum import StrEnum

__all__ = ["ALIVE", "OVER", "OWNING", "REJOINING", "ClassicState"]


class ClassicState(StrEnum):
    """Where a member stands."""

    IDLE = "idle"
    WAITING = "waiting"
    """To send a join, now or after a pause."""
    JOINING = "joining"
    DEALING = "dealing"
    """This one leads, and learns how many partitions there are."""
    SYNCING = "syncing"
    TAKING_OVER = "taking over"
    """Start positions and the user's callbacks."""
    STABLE = "stable"
    RELEASING = "releasing"
    """Drain, commit, the user's callbacks; then join."""
    STEPPING_AWAY = "stepping away"
    """Nobody reads: the user is told that the partitions are lost."""
    AWAY = "away"
    """Out of the group until somebody reads."""
    CLOSING = "closing"
    """The same, for the last time."""
    LEAVING = "leaving"
    LEFT = "left"
    FAILED = "failed"


ALIVE = frozenset(
    {
        ClassicState.DEALING,
        ClassicState.SYNCING,
        ClassicState.TAKING_OVER,
        ClassicState.STABLE,
        ClassicState.RELEASING,
        ClassicState.CLOSING,
    }
)
"""The states in which the group counts this member in a generation."""

OWNING = frozenset({ClassicState.TAKING_OVER, ClassicState.STABLE, ClassicState.RELEASING})
"""The states that a loss leaves by way of the user's callbacks, whatever is owned."""

REJOINING = frozenset({ClassicState.WAITING, ClassicState.JOINING})
"""The states in which it does so while a cooperative member still owns something."""

OVER = frozenset({ClassicState.LEFT, ClassicState.FAILED})
