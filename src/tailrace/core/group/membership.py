"""Interface of a group membership, for both protocols.

Events go in and effects come out, both as plain values. The coroutine that drives a membership performs the effects and
reports their outcomes, but decides nothing.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Protocol

from tailrace.core.group.effects import Effect, Partitions
from tailrace.core.group.events import GroupEvent, Identity

__all__ = ["Identity", "MemberSettings", "Membership"]

# Allowance for the network on top of the rebalance timeout.
_JOIN_GRACE_S = 5.0


@dataclass(frozen=True, slots=True)
class MemberSettings:
    """Settings of a membership; times in seconds."""

    group_id: str
    topics: frozenset[str]
    session_timeout_s: float
    heartbeat_interval_s: float
    rebalance_timeout_s: float
    request_timeout_s: float
    retry_first_s: float
    retry_longest_s: float
    leaves_on_stop: bool
    stop_max_wait_s: float = 5.0
    """Longest time that a stop waits for the end of a rebalance, because the group accepts no commits until then."""
    instance_id: str | None = None
    rack: str | None = None
    pattern: str | None = None
    """Regular expression that the broker matches against topic names (KIP-848)."""
    remote_assignor: str | None = None
    """Broker-side assignor to request (KIP-848); None for the broker's default."""

    @property
    def max_wait_s(self) -> float:
        """Timeout of a join or sync; the coordinator holds the request until the slowest member has joined."""
        return max(self.request_timeout_s, self.rebalance_timeout_s + _JOIN_GRACE_S)


class Membership(Protocol):
    """One member of one group, driven by one coroutine, without clock and I/O."""

    @property
    def identity(self) -> Identity: ...

    @property
    def owned(self) -> Partitions: ...

    @property
    def is_member(self) -> bool:
        """True while the group counts this member in a generation, so that the member may commit."""

    @property
    def is_over(self) -> bool: ...

    def is_current(self, identity: Identity) -> bool:
        """Return True if an error in the answer to a request sent as ``identity`` still matters."""

    def awaits(self, effect: Effect) -> bool:
        """Return True if the outcome of ``effect`` still matters."""

    def heartbeat_age_s(self, now: float) -> float:
        """Return the seconds since the last acknowledged heartbeat was sent."""

    def receive(self, event: GroupEvent, now: float) -> None:
        """Handle an event."""

    def handle_timer(self, now: float) -> None:
        """Perform the steps that are due."""

    def next_deadline(self) -> float | None:
        """Return the time at which ``handle_timer`` is due; None for never."""

    def effects(self) -> Iterator[Effect]:
        """Yield the effects to perform, in order, each once."""
