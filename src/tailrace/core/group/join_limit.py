"""How often a join may fail in a row, and that one which fails again and again is not tried again at once.

Rule of this file: a round is a join and its sync; it has succeeded when the sync has brought an assignment.
"""

from __future__ import annotations

from tailrace.core.group.effects import Effect, SendJoin, SendSync
from tailrace.core.group.events import (
    GroupEvent,
    JoinedAsFollower,
    JoinedAsLeader,
    MemberIdGiven,
    MembershipFailed,
    NotNow,
    RebalanceCalled,
    Synced,
)
from tailrace.errors import RebalanceError

__all__ = ["JoinLimit"]


class JoinLimit:
    """Looks at what came of joins and syncs.

    Args:
        retries: so many more rounds may fail after the first; None: any number.
    """

    def __init__(self, retries: int | None) -> None:
        self._retries, self._failures = retries, 0

    def after(self, effect: Effect, event: GroupEvent) -> GroupEvent:
        """What the membership is told of ``event``, which came of ``effect``."""
        if not isinstance(effect, SendJoin | SendSync):
            return event
        match event:
            case Synced():
                self._failures = 0
                return event
            case JoinedAsFollower() | JoinedAsLeader() | MemberIdGiven() | MembershipFailed():
                return event
        self._failures += 1
        reason = str(getattr(event, "reason", event))
        if self._retries is not None and self._failures > self._retries:
            return MembershipFailed(
                RebalanceError(
                    f"the group could not be joined in {self._failures} attempts, the last failed with: {reason}"
                    " - rebalance_max_retries says how often it is tried"
                )
            )
        if isinstance(event, RebalanceCalled) and self._failures > 1:
            # The first time somebody else has come in between; whoever hears it again waits a little.
            return NotNow(reason)
        return event
