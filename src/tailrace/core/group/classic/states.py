"""States of a member of a classic group."""

from __future__ import annotations

from enum import StrEnum

__all__ = ["ALIVE", "ASSIGNED", "OVER", "OWNING", "REJOINING", "ClassicState"]


class ClassicState(StrEnum):
    """State of a classic member."""

    IDLE = "idle"
    """The membership has not started yet."""
    WAITING = "waiting"
    """A join is due, now or after a pause."""
    JOINING = "joining"
    """A join was sent and is not answered yet."""
    LEADING = "leading"
    """This member is the leader and waits for the partition counts, from which it computes the assignment."""
    SYNCING = "syncing"
    """A sync was sent and is not answered yet."""
    TAKING_OVER = "taking over"
    """Start positions of the assigned partitions are being looked up, and the application's callbacks are called."""
    STABLE = "stable"
    """The member is in a generation and has taken over its partitions."""
    RELEASING = "releasing"
    """Partitions are being released, or reported as lost; a join follows."""
    STEPPING_AWAY = "stepping away"
    """The application does not poll, so the member has ended its membership and reports its partitions as lost."""
    AWAY = "away"
    """The member is out of the group until the application polls."""
    CLOSING = "closing"
    """All partitions are being released, or reported as lost; a leave follows."""
    LEAVING = "leaving"
    """A leave was sent and is not answered yet."""
    LEFT = "left"
    FAILED = "failed"


ALIVE = frozenset(
    {
        ClassicState.LEADING,
        ClassicState.SYNCING,
        ClassicState.TAKING_OVER,
        ClassicState.STABLE,
        ClassicState.RELEASING,
        ClassicState.CLOSING,
    }
)
"""States in which the member is in a generation of the group, whether it owns partitions or not."""

ASSIGNED = (ClassicState.TAKING_OVER, ClassicState.STABLE)
"""States in which the member has an assignment and no release or join is due."""

OWNING = frozenset({ClassicState.TAKING_OVER, ClassicState.STABLE, ClassicState.RELEASING})
"""States in which a loss is reported to the application's callbacks even if the member owns no partition."""

REJOINING = frozenset({ClassicState.WAITING, ClassicState.JOINING})
"""States in which the member is in a generation only if it owns partitions, as cooperative members may."""

OVER = frozenset({ClassicState.LEFT, ClassicState.FAILED})
"""Final states."""
