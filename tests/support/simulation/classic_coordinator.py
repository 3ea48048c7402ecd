"""Model of a coordinator of one classic group.

It is stricter than a real one: each join of a member with changes starts a new generation, and a late member is never
excluded. As with a real
one, a heartbeat or sync of an old generation does not extend the session.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field

from tailrace.error_codes import ErrorCode
from tailrace.protocol.groups import MemberAssignment, MemberSubscription

NOTHING = MemberAssignment(())


@dataclass(frozen=True)
class Answer:
    """Response to a request, identified by ``token``."""

    token: object
    error_code: int = 0
    member_id: str = ""
    generation: int = -1
    protocol: str = ""
    members: Mapping[str, MemberSubscription] | None = None
    """Subscriptions by member id, in the leader's join response."""
    assignment: MemberAssignment = NOTHING
    skips_assignment: bool = False
    """True in the join response of a static leader whose group keeps its assignment (KIP-814)."""
    described: Mapping[str, tuple[MemberSubscription, MemberAssignment]] | None = None
    """Subscription and assignment of each member; None while the group rebalances."""


@dataclass
class Member:
    """Member as known to the coordinator."""

    offers: Mapping[str, MemberSubscription]
    """Subscriptions by strategy, most preferred first."""
    heard_at: float
    instance_id: str | None = None
    join: object = None
    """Token of the join request that is held."""
    sync: object = None


@dataclass
class Coordinator:
    """Coordinator of a group; its responses are appended to ``answers``."""

    session_timeout_s: float
    members: dict[str, Member] = field(default_factory=dict)
    given: set[str] = field(default_factory=set)
    """Ids assigned to members that must join again with them (KIP-394)."""
    ids: int = 0
    """Number of ids assigned so far; none is reused."""
    generation: int = 0
    phase: str = "empty"
    leader: str = ""
    protocol: str = ""
    assignments: Mapping[str, MemberAssignment] = field(default_factory=dict)
    answers: list[Answer] = field(default_factory=list)

    def join(
        self,
        token: object,
        member_id: str,
        offers: Mapping[str, MemberSubscription],
        now: float,
        instance_id: str | None = None,
    ) -> None:
        """Delay the response until all known members have joined.

        A stable group responds at once to a static member that returns, and keeps its assignment (KIP-345).
        """
        if instance_id is not None and not member_id:
            self._join_static(token, offers, now, instance_id)
        elif not member_id:
            member_id = f"m{self.ids}"
            self.ids += 1
            self.given.add(member_id)
            self.answers.append(Answer(token, ErrorCode.MEMBER_ID_REQUIRED, member_id))
        elif member_id not in self.given:
            self.answers.append(Answer(token, ErrorCode.UNKNOWN_MEMBER_ID))
        elif self.phase == "stable" and member_id != self.leader and self._has_offered(member_id, offers):
            self.answers.append(Answer(token, 0, member_id, self.generation, self.protocol))
        else:
            self.members[member_id] = Member(offers, now, instance_id, join=token)
            self._begin_rebalance(now)

    def _join_static(self, token: object, offers: Mapping[str, MemberSubscription], now: float, instance: str) -> None:
        member_id = f"{instance}-{self.ids}"
        self.ids += 1
        self.given.add(member_id)
        old = next((one for one, member in self.members.items() if member.instance_id == instance), None)
        if old is not None:
            # The order of the members stays the same.
            self.members = {member_id if one == old else one: member for one, member in self.members.items()}
            self.assignments = {member_id if one == old else one: given for one, given in self.assignments.items()}
            self.leader = member_id if self.leader == old else self.leader
            self.given.discard(old)
        self.members[member_id] = Member(offers, now, instance, join=token)
        if old is None or self.phase != "stable" or self._elected() != self.protocol:
            self._begin_rebalance(now)
            return
        self.members[member_id].join = None
        visible = self._subscriptions() if member_id == self.leader else None
        joined = (member_id, self.generation, self.protocol, visible)
        self.answers.append(Answer(token, 0, *joined, skips_assignment=member_id == self.leader))

    def describe(self, token: object) -> None:
        """Return the subscription and assignment of each member while the group is stable."""
        subscriptions = self._subscriptions() if self.phase == "stable" else {}
        described = {one: (given, self.assignments.get(one, NOTHING)) for one, given in subscriptions.items()}
        self.answers.append(Answer(token, described=described or None))

    def sync(
        self,
        token: object,
        member_id: str,
        generation: int,
        assignments: Mapping[str, MemberAssignment],
        now: float,
    ) -> None:
        """Delay the response until the leader has sent the assignments."""
        if code := self._refusal(member_id, generation):
            self.answers.append(Answer(token, code))
        elif self.phase == "joining":
            self.answers.append(Answer(token, ErrorCode.REBALANCE_IN_PROGRESS))
        else:
            self.members[member_id].sync = token
            if self.phase == "stable":
                self._hand_out(member_id, now)
            elif member_id == self.leader:
                self.assignments, self.phase = assignments, "stable"
                for one in self.members:
                    self._hand_out(one, now)

    def heartbeat(self, token: object, member_id: str, generation: int, now: float) -> None:
        """Extend the session, in any phase."""
        code = self._refusal(member_id, generation)
        if not code:
            self.members[member_id].heard_at = now
            code = ErrorCode.REBALANCE_IN_PROGRESS if self.phase == "joining" else ErrorCode.NONE
        self.answers.append(Answer(token, code))

    def commit(self, token: object, member_id: str, generation: int, now: float) -> None:
        """Accept a commit of the current generation once all members have synced, even during the next rebalance."""
        code = self._refusal(member_id, generation)
        if not code and self.phase == "syncing":
            code = ErrorCode.REBALANCE_IN_PROGRESS
        if not code:
            self.members[member_id].heard_at = now
        self.answers.append(Answer(token, code))

    def leave(self, token: object, member_id: str, now: float) -> None:
        """Remove the member and rebalance."""
        self._remove(member_id, now)
        self.answers.append(Answer(token))

    def next_expiry(self) -> float | None:
        """Return the time of the next session expiry."""
        ends = [one.heard_at + self.session_timeout_s for one in self.members.values() if one.join is None]
        return min(ends, default=None)

    def expire(self, now: float) -> list[str]:
        """Expire sessions without heartbeats, except of members with a pending join; return their members."""
        gone = [
            member_id
            for member_id, one in self.members.items()
            if one.join is None and now >= one.heard_at + self.session_timeout_s
        ]
        for member_id in gone:
            self._remove(member_id, now)
        return gone

    def move(self, now: float) -> None:
        """Fail over to another broker, which knows the group, and fail pending requests with NOT_COORDINATOR."""
        for one in self.members.values():
            for token in (one.join, one.sync):
                if token is not None:
                    self.answers.append(Answer(token, ErrorCode.NOT_COORDINATOR))
            one.join = one.sync = None
            one.heard_at = now

    # ---- inside ------------------------------------------------------------------------------------------------

    def _refusal(self, member_id: str, generation: int) -> int:
        if member_id not in self.members:
            return ErrorCode.UNKNOWN_MEMBER_ID
        return ErrorCode.NONE if generation == self.generation else ErrorCode.ILLEGAL_GENERATION

    def _remove(self, member_id: str, now: float) -> None:
        self.given.discard(member_id)
        if self.members.pop(member_id, None) is not None:
            self._begin_rebalance(now)

    def _begin_rebalance(self, now: float) -> None:
        for one in self.members.values() if self.phase == "syncing" else ():
            if one.sync is not None:
                self.answers.append(Answer(one.sync, ErrorCode.REBALANCE_IN_PROGRESS))
                one.sync = None
        self.phase = "joining" if self.members else "empty"
        if self.members and all(one.join is not None for one in self.members.values()):
            self._begin_generation(now)

    def _begin_generation(self, now: float) -> None:
        self.generation += 1
        self.phase, self.assignments = "syncing", {}
        self.protocol = self._elected()
        self.leader = self.leader if self.leader in self.members else next(iter(self.members))
        subscriptions = self._subscriptions()
        for member_id, one in self.members.items():
            visible = subscriptions if member_id == self.leader else None
            self.answers.append(Answer(one.join, 0, member_id, self.generation, self.protocol, visible))
            one.join, one.heard_at = None, now

    def _has_offered(self, member_id: str, offers: Mapping[str, MemberSubscription]) -> bool:
        return member_id in self.members and self.members[member_id].offers == offers

    def _subscriptions(self) -> dict[str, MemberSubscription]:
        return {member_id: one.offers[self.protocol] for member_id, one in self.members.items()}

    def _elected(self) -> str:
        """Return the strategy that most members prefer among those that all support."""
        common = frozenset.intersection(*(frozenset(one.offers) for one in self.members.values()))
        votes = Counter(next(name for name in one.offers if name in common) for one in self.members.values())
        return max(votes, key=lambda name: (votes[name], name))

    def _hand_out(self, member_id: str, now: float) -> None:
        one = self.members[member_id]
        if one.sync is not None:
            self.answers.append(Answer(one.sync, assignment=self.assignments.get(member_id, NOTHING)))
            one.sync, one.heard_at = None, now
