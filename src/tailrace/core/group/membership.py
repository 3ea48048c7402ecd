"""Interface of a group membership, for both protocols.

A membership is a state machine: it receives events and returns effects, both plain values. The coroutine that drives
the membership performs the effects and reports their outcomes as events, but decides nothing.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Protocol

from tailrace.core.group.effects import Effect, Partitions
from tailrace.core.group.error_reactions import Identity
from tailrace.core.group.events import GroupEvent
from tailrace.errors import (
    BrokerError,
    ConfigurationError,
    FencedMemberError,
    GroupAuthorizationFailedError,
    GroupError,
    TailraceError,
)

__all__ = ["Identity", "MemberSettings", "Membership", "leaves_after"]

_JOIN_GRACE_S = 5.0
"""Time allowed for the network, in addition to the rebalance timeout."""


@dataclass(frozen=True, slots=True)
class MemberSettings:
    """Settings of a membership."""

    group_id: str
    topics: frozenset[str]
    session_timeout_s: float
    heartbeat_interval_s: float
    rebalance_timeout_s: float
    request_timeout_s: float
    retry_first_s: float
    retry_longest_s: float
    leaves_on_stop: bool
    """True if the member leaves the group when it stops; False if it remains a member until its session expires."""
    stop_max_wait_s: float = 5.0
    """Longest time for which a stop waits for the end of a rebalance; until then, the group accepts no commits."""
    instance_id: str | None = None
    """``group_instance_id`` of a static member; None for other members."""
    has_subscription: bool = True
    """False for a GroupMember, whose assignment is a placeholder that does not depend on topics."""
    rack: str | None = None
    """``client_rack``, for rack-aware assignors."""
    pattern: str | None = None
    """Regular expression that the broker matches against topic names (KIP-848); None to subscribe to ``topics``."""
    remote_assignor: str | None = None
    """Assignor that the broker is to use (KIP-848); None for the broker's default."""

    @property
    def max_wait_s(self) -> float:
        """Timeout of a join or sync, which the coordinator may hold until all members have sent theirs."""
        return max(self.request_timeout_s, self.rebalance_timeout_s + _JOIN_GRACE_S)


def leaves_after(error: TailraceError) -> bool:
    """Return True if a member that fails with ``error`` has to leave the group.

    Other members may continue. They need not wait until the session of the failed member expires, because it leaves.
    """
    if isinstance(error, FencedMemberError | GroupAuthorizationFailedError):
        return False  # The coordinator would refuse the leave, too.
    return isinstance(error, BrokerError | ConfigurationError | GroupError)


class Membership(Protocol):
    """State machine of one member of one group, driven by one coroutine, without clock and I/O.

    All times are in seconds, of the clock of the driving coroutine.
    """

    @property
    def identity(self) -> Identity: ...

    @property
    def owned(self) -> Partitions: ...

    @property
    def is_member(self) -> bool:
        """True while this member is in a generation of the group, so that it may commit and has to send heartbeats."""

    @property
    def is_over(self) -> bool: ...

    def is_current(self, identity: Identity) -> bool:
        """Return True if the membership has to react to an error in the answer to a request sent as ``identity``."""

    def awaits(self, effect: Effect) -> bool:
        """Return True if the membership awaits the outcome of ``effect``; only such an outcome may be reported."""

    def heartbeat_age_s(self, now: float) -> float:
        """Return the seconds since the last acknowledged heartbeat was sent."""

    def receive(self, event: GroupEvent, now: float) -> None:
        """Handle an event."""

    def handle_timer(self, now: float) -> None:
        """Perform the steps that are due at ``now``."""

    def next_deadline(self) -> float | None:
        """Return the time at which ``handle_timer`` is due; None for never."""

    def effects(self) -> Iterator[Effect]:
        """Yield the effects to perform, in order, each once."""
