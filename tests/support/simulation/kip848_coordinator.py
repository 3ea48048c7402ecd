"""Model of a coordinator of one group under KIP-848.

It takes the steps of the broker: a member first revokes partitions, then moves to the group epoch and gets partitions
that no other member owns. It is stricter: its round robin moves more partitions than necessary, and it waits for a
revocation until the member is removed.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from uuid import UUID

from tailrace.error_codes import ErrorCode

Places = frozenset[tuple[UUID, int]]

NOTHING: Places = frozenset()

_WILL_BE_BACK = -2


@dataclass(frozen=True)
class Answer:
    """Response to a heartbeat."""

    error_code: int = 0
    epoch: int = 0
    assigned: Places | None = None


@dataclass
class Member:
    """Member as known to the coordinator."""

    heard_at: float
    topics: frozenset[str] = frozenset()
    epoch: int = 0
    previous_epoch: int = -1
    assigned: Places = NOTHING
    revoked: Places = NOTHING
    """Partitions that the member has not released yet."""
    is_away: bool = False
    """True if a static member left temporarily; its place is kept until its session expires."""

    @property
    def held(self) -> Places:
        """Partitions that other members must not get."""
        return self.assigned | self.revoked


@dataclass
class Coordinator:
    """Coordinator of a group.

    ``takes_back`` is True if a known member may join again (Kafka 4.3); before, it must be removed first.
    """

    session_timeout_s: float
    topics: dict[str, tuple[UUID, int]]
    """Topic id and partition count by topic name."""
    takes_back: bool = True
    members: dict[str, Member] = field(default_factory=dict)
    epoch: int = 0
    """Group epoch, incremented by each change of members or subscriptions."""
    targets: Mapping[str, Places] = field(default_factory=dict)
    _target_epoch: int = 0

    def heartbeat(
        self,
        member_id: str,
        epoch: int,
        topics: frozenset[str] | None,
        owned: Places | None,
        now: float,
        *,
        is_full: bool,
        is_static: bool = False,
    ) -> Answer:
        """Extend the session, and move the member one step towards its target."""
        if code := self._refusal(member_id, epoch, owned, is_static=is_static):
            return Answer(code)
        if epoch == _WILL_BE_BACK:
            self.members[member_id].is_away = True
            return Answer(0, _WILL_BE_BACK)
        if member_id not in self.members:
            self.members[member_id] = Member(now)
            self.epoch += 1
        one = self.members[member_id]
        one.heard_at, one.is_away = now, False
        if topics is not None and topics != one.topics:
            one.topics = topics
            self.epoch += 1
        if self.epoch > self._target_epoch:
            self._deal()
        before = one.assigned
        self._reconcile(member_id, one, owned)
        return Answer(0, one.epoch, one.assigned if is_full or one.assigned != before else None)

    def leave(self, member_id: str) -> None:
        """Remove the member and assign its partitions to others."""
        if self.members.pop(member_id, None) is not None:
            self.epoch += 1

    def step_away(self, member_id: str) -> None:
        """Keep the partitions of a static member that left temporarily."""
        if member_id in self.members:
            self.members[member_id].is_away = True

    def commit(self, member_id: str, epoch: int) -> int:
        """Return the response to a commit with this epoch."""
        if member_id not in self.members:
            return ErrorCode.UNKNOWN_MEMBER_ID
        return ErrorCode.NONE if epoch == self.members[member_id].epoch else ErrorCode.STALE_MEMBER_EPOCH

    def grow(self, topic: str) -> None:
        """Add a partition."""
        topic_id, count = self.topics[topic]
        self.topics[topic] = topic_id, count + 1
        self.epoch += 1

    def next_expiry(self) -> float | None:
        """Return the time of the next session expiry."""
        return min((one.heard_at + self.session_timeout_s for one in self.members.values()), default=None)

    def expire(self, now: float) -> None:
        """Expire sessions without heartbeats."""
        for member_id in [m for m, one in self.members.items() if now >= one.heard_at + self.session_timeout_s]:
            self.leave(member_id)

    def move(self, now: float) -> None:
        """Fail over to another broker, which knows the persisted state and restarts all sessions."""
        for one in self.members.values():
            one.heard_at = now

    # ---- inside ------------------------------------------------------------------------------------------------

    def _refusal(self, member_id: str, epoch: int, owned: Places | None, *, is_static: bool) -> int:
        if (one := self.members.get(member_id)) is None:
            return ErrorCode.NONE if epoch == 0 else ErrorCode.UNKNOWN_MEMBER_ID
        if is_static and epoch in {0, _WILL_BE_BACK}:
            # A member may join with the name once its holder, the same member or another, has left.
            is_free = one.is_away or epoch == _WILL_BE_BACK
            return ErrorCode.NONE if is_free else ErrorCode.UNRELEASED_INSTANCE_ID
        if one.is_away:
            return ErrorCode.FENCED_MEMBER_EPOCH
        if epoch == one.epoch or (epoch == 0 and self.takes_back):
            return ErrorCode.NONE
        # The response with the newer epoch may have been lost.
        may_lag = epoch == one.previous_epoch and owned is not None and owned <= one.assigned
        return ErrorCode.NONE if may_lag else ErrorCode.FENCED_MEMBER_EPOCH

    def _deal(self) -> None:
        """Assign round robin among the subscribers of each topic, starting with another one each time."""
        dealt: dict[str, set[tuple[UUID, int]]] = {member_id: set() for member_id in self.members}
        for name, (topic_id, count) in self.topics.items():
            wanting = sorted(member_id for member_id, one in self.members.items() if name in one.topics)
            for n in range(count if wanting else 0):
                dealt[wanting[(n + self.epoch) % len(wanting)]].add((topic_id, n))
        self.targets = {member_id: frozenset(given) for member_id, given in dealt.items()}
        self._target_epoch = self.epoch

    def _reconcile(self, member_id: str, one: Member, owned: Places | None) -> None:
        if one.revoked:
            if owned is None or owned & one.revoked:
                return
            self._reach(one, one.epoch + 1)
        target = self.targets[member_id]
        one.revoked = one.assigned - target
        one.assigned &= target
        if one.revoked and (owned is None or owned & one.revoked):
            return
        one.revoked = NOTHING
        self._reach(one, self._target_epoch)
        held = frozenset(place for other in self.members.values() for place in other.held)
        one.assigned |= target - held

    def _reach(self, one: Member, epoch: int) -> None:
        if epoch != one.epoch:
            one.previous_epoch, one.epoch = one.epoch, epoch
