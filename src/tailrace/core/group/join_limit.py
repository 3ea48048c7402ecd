"""Limit on joins that fail in a row.

A round is a join and its sync; it succeeds when the sync brings an assignment.
"""

from __future__ import annotations

from tailrace.core.group.effects import Effect, SendJoin, SendSync
from tailrace.core.group.events import (
    GroupEvent,
    JoinedAsFollower,
    JoinedAsLeader,
    MemberIdAssigned,
    MembershipFailed,
    RebalanceCalled,
    RetryLater,
    Synced,
)
from tailrace.errors import RebalanceError

__all__ = ["JoinLimit"]


class JoinLimit:
    """Counter of consecutive rounds that failed.

    Args:
        retries: number of rounds that may fail after the first; None for no limit.
    """

    def __init__(self, retries: int | None) -> None:
        self._retries, self._failures = retries, 0

    def after(self, effect: Effect, event: GroupEvent) -> GroupEvent:
        """Return the event to pass to the membership for ``event``, the outcome of ``effect``."""
        if not isinstance(effect, SendJoin | SendSync):
            return event
        match event:
            case Synced():
                self._failures = 0
                return event
            case JoinedAsFollower() | JoinedAsLeader() | MemberIdAssigned() | MembershipFailed():
                return event
        self._failures += 1
        reason = str(getattr(event, "reason", event))
        if self._retries is not None and self._failures > self._retries:
            return MembershipFailed(
                RebalanceError(
                    f"the group could not be joined in {self._failures} attempts; the last one failed with: {reason}"
                    " - check the other members of the group, or raise rebalance_max_retries"
                )
            )
        if isinstance(event, RebalanceCalled) and self._failures > 1:
            # Another member's join may have come in between once; after the second time, pause before the next join.
            return RetryLater(reason)
        return event
