"""States of a member of a classic group."""

from __future__ import annotations

from enum import StrEnum

__all__ = ["ALIVE", "OVER", "OWNING", "REJOINING", "ClassicState"]


class ClassicState(StrEnum):
    """State of a classic member."""

    IDLE = "idle"
    WAITING = "waiting"
    """A join is due, now or after a pause."""
    JOINING = "joining"
    DEALING = "dealing"
    """This member leads and waits for the partition counts."""
    SYNCING = "syncing"
    TAKING_OVER = "taking over"
    """Start positions are being found and the application's callbacks called."""
    STABLE = "stable"
    RELEASING = "releasing"
    """Partitions are drained, committed and reported as revoked, or are reported as lost; a join follows."""
    STEPPING_AWAY = "stepping away"
    """The application does not poll; its partitions are reported as lost."""
    AWAY = "away"
    """The member is out of the group until the application polls."""
    CLOSING = "closing"
    """All partitions are released as in RELEASING, but a leave follows."""
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
"""States in which the group counts the member in a generation."""

OWNING = frozenset({ClassicState.TAKING_OVER, ClassicState.STABLE, ClassicState.RELEASING})
"""States in which a loss is reported to the application's callbacks even if nothing is owned."""

REJOINING = frozenset({ClassicState.WAITING, ClassicState.JOINING})
"""States in which the group counts the member only while the member owns partitions (cooperative)."""

OVER = frozenset({ClassicState.LEFT, ClassicState.FAILED})
