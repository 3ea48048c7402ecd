"""Limit on joins that fail in a row.

A round is a join and the sync that follows; the round succeeds when the sync brings an assignment.
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
        """Count failed rounds and return the event to pass to the membership.

        Args:
            effect: request of the membership; only joins and syncs are counted.
            event: outcome of ``effect``; another event replaces it after several failed rounds.
        """
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
            # A single failure may be due to another member that joined meanwhile. Pause before the next join from the
            # second failure on.
            return RetryLater(reason)
        return event
