"""Limits on the requests of a member that fail in a row: attempts to join, and requests that fail in the broker.

An attempt to join is a join and the sync that follows. It succeeds when the sync is answered with an assignment.
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

__all__ = ["JoinLimit", "ServerErrorLimit"]


class JoinLimit:
    """Counter of attempts that failed since the last success.

    Args:
        retries: ``rebalance_max_retries``, the number of attempts after the first failure; None for no limit.
    """

    def __init__(self, retries: int | None) -> None:
        self._retries, self._failures = retries, 0

    def apply(self, effect: Effect, event: GroupEvent) -> GroupEvent:
        """Count ``event`` if it ends an attempt, and return the event to pass to the membership.

        The result is ``event`` unless several attempts have failed: it may then be ``RetryLater``, for a pause before
        the next attempt, or ``MembershipFailed``, after more than ``retries`` failures.

        Args:
            effect: request of the membership; only joins and syncs are counted.
            event: outcome of ``effect``.
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
                    f"the group could not be joined in {self._failures} attempts; the last attempt failed: {reason}"
                    " - check the other members of the group, or raise rebalance_max_retries"
                )
            )
        if isinstance(event, RebalanceCalled) and self._failures > 1:
            # A first failure may be due to another member that joined meanwhile, so the next join follows at once. From
            # the second failure on, the member pauses before it joins.
            return RetryLater(reason)
        return event


class ServerErrorLimit:
    """Limit on the time for which a request is repeated while it fails in the broker (``RetryLater.error``).

    Args:
        limit_s: time in seconds since the first of these failures in a row.
    """

    def __init__(self, limit_s: float) -> None:
        self._limit_s = limit_s
        self._failing_since: dict[type[Effect], float] = {}
        """Time of the first failure since the last other outcome, by kind of request."""

    def apply(self, effect: Effect, event: GroupEvent, now: float) -> GroupEvent:
        """Return the event to pass to the membership: ``event``, or ``MembershipFailed`` if the time is over."""
        if not isinstance(event, RetryLater) or event.error is None:
            self._failing_since.pop(type(effect), None)
            return event
        since = self._failing_since.setdefault(type(effect), now)
        return event if now < since + self._limit_s else MembershipFailed(event.error)
