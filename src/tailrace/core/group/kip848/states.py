"""States of a member under KIP-848."""

from __future__ import annotations

from enum import StrEnum

__all__ = ["ALIVE", "JOIN_EPOCH", "LEAVE_EPOCH", "OVER", "STATIC_LEAVE_EPOCH", "Kip848State"]

JOIN_EPOCH, LEAVE_EPOCH, STATIC_LEAVE_EPOCH = 0, -1, -2
"""Epochs in heartbeats that join or leave (KIP-848). ``STATIC_LEAVE_EPOCH`` keeps the assignment of a static member."""


class Kip848State(StrEnum):
    """State of a KIP-848 member."""

    IDLE = "idle"
    """The membership has not started yet."""
    JOINING = "joining"
    """The coordinator has not answered the first heartbeat yet; the member owns no partition."""
    STABLE = "stable"
    """The member is in the group, and no partitions are being taken over or released."""
    RELEASING = "releasing"
    """Partitions are being released; a heartbeat reports the remaining partitions afterwards."""
    TAKING_OVER = "taking over"
    """Start positions of the assigned partitions are being looked up, and the application's callbacks are called."""
    LOSING = "losing"
    """All partitions are being reported as lost; a join follows."""
    STEPPING_AWAY = "stepping away"
    """The application does not poll, so the member has left; all partitions are being reported as lost."""
    AWAY = "away"
    """The member is out of the group until the application polls."""
    CLOSING = "closing"
    """All partitions are being released, or reported as lost; a leave follows."""
    LEAVING = "leaving"
    """The heartbeat that leaves the group was sent and is not answered yet."""
    LEFT = "left"
    FAILED = "failed"


ALIVE = frozenset({Kip848State.STABLE, Kip848State.RELEASING, Kip848State.TAKING_OVER, Kip848State.CLOSING})
"""States in which the group has the member, unless the membership was lost while closing."""

OVER = frozenset({Kip848State.LEFT, Kip848State.FAILED})
"""Final states."""
