"""States of a member under KIP-848."""

from __future__ import annotations

from enum import StrEnum

__all__ = ["ALIVE", "JOIN_EPOCH", "LEAVE_EPOCH", "OVER", "STATIC_LEAVE_EPOCH", "Kip848State"]

JOIN_EPOCH, LEAVE_EPOCH, STATIC_LEAVE_EPOCH = 0, -1, -2
"""Special member epochs (KIP-848); ``STATIC_LEAVE_EPOCH`` keeps a static member's place in the group."""


class Kip848State(StrEnum):
    """State of a KIP-848 member."""

    IDLE = "idle"
    JOINING = "joining"
    """The group has not answered yet; nothing is owned."""
    STABLE = "stable"
    """There is no partition to take over or to release."""
    RELEASING = "releasing"
    """Partitions are drained, committed and reported as revoked; a heartbeat then reports the release to the group."""
    TAKING_OVER = "taking over"
    """Start positions are being found and the application's callbacks called."""
    LOSING = "losing"
    """All partitions are reported as lost; a join follows."""
    STEPPING_AWAY = "stepping away"
    """The application does not poll; its partitions are reported as lost."""
    AWAY = "away"
    """The member is out of the group until the application polls."""
    CLOSING = "closing"
    """All partitions are released for the last time; a leave follows."""
    LEAVING = "leaving"
    LEFT = "left"
    FAILED = "failed"


ALIVE = frozenset({Kip848State.STABLE, Kip848State.RELEASING, Kip848State.TAKING_OVER, Kip848State.CLOSING})
"""States in which the group counts the member, unless the membership is lost."""

OVER = frozenset({Kip848State.LEFT, Kip848State.FAILED})
