"""A membership of a group as whoever drives it sees it, whichever protocol it speaks.

Rule of this file: events go in, effects come out, and both are plain values. The coroutine around a membership does
nothing but perform effects and report back; it decides nothing.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Protocol

from tailrace.core.group.effects import Effect, Partitions
from tailrace.core.group.events import GroupEvent, Identity

__all__ = ["Identity", "MemberSettings", "Membership"]

# What the network needs on top of what the group may take.
_JOIN_GRACE_S = 5.0


@dataclass(frozen=True, slots=True)
class MemberSettings:
    """What the options say to a membership; times in seconds."""

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
    """How long a stop may wait for the end of a rebalance, before which the group takes no commits."""
    instance_id: str | None = None
    rack: str | None = None
    pattern: str | None = None
    """Topics by regular expression, where the broker resolves it (KIP-848)."""
    remote_assignor: str | None = None
    """The broker's assignor to ask for (KIP-848); its default when nothing is said."""

    @property
    def max_wait_s(self) -> float:
        """How long a join or sync may take: it is held until the slowest member is there."""
        return max(self.request_timeout_s, self.rebalance_timeout_s + _JOIN_GRACE_S)


class Membership(Protocol):
    """One member of one group. It has no clock, does no IO, and is asked by one coroutine."""

    @property
    def identity(self) -> Identity: ...

    @property
    def owned(self) -> Partitions: ...

    @property
    def is_member(self) -> bool:
        """Whether the group counts us in a generation: what is done may be committed."""

    @property
    def is_over(self) -> bool: ...

    def is_current(self, identity: Identity) -> bool:
        """Whether an error that answers what was sent as ``identity`` still counts."""

    def awaits(self, effect: Effect) -> bool:
        """Whether the outcome of ``effect`` still matters."""

    def heartbeat_age_s(self, now: float) -> float:
        """Seconds since the group is known to have heard from this member."""

    def receive(self, event: GroupEvent, now: float) -> None:
        """Something has happened."""

    def handle_timer(self, now: float) -> None:
        """Time has passed."""

    def next_deadline(self) -> float | None:
        """When ``handle_timer`` has something to do; None for never."""

    def effects(self) -> Iterator[Effect]:
        """What is to be done now, in order; each is given once."""
