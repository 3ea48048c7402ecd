"""Coordinator of one group of the consumer protocol (KIP-848).

Pure: no clock, IO or logging. Members converge to the target assignment of the group epoch, each by its own
heartbeats: it first gives up what the target takes from it, and then gets what other members have given up.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any
from uuid import UUID

from tailrace.error_codes import ErrorCode
from tailrace.protocol.groups import (
    ConsumerGroupHeartbeatRequest,
    ConsumerGroupHeartbeatResponse,
    TopicIdPartitions,
)
from tailrace.testing.simulation.classic_group import CommittedEntry

__all__ = ["ConsumerGroup", "TopicSizes"]

_JOINING, _LEAVING, _LEAVING_STATIC = 0, -1, -2

Place = tuple[UUID, int]
TopicSizes = Mapping[str, tuple[UUID, int]]
"""Id and number of partitions by name of the topic."""


@dataclass(eq=False)
class _ConsumerMember:
    member_id: str
    instance_id: str | None
    rebalance_s: float
    topics: tuple[str, ...]
    expires_at: float
    epoch: int = 0
    previous_epoch: int = 0
    assigned: set[Place] = field(default_factory=set)
    revoking: set[Place] = field(default_factory=set)
    """Partitions that the member is to give up, and still owns."""
    owned: set[Place] = field(default_factory=set)
    """Partitions that the member says to own."""
    revoke_until: float | None = None
    is_away: bool = False
    """True for a static member that has left for a while."""


@dataclass(eq=False)
class ConsumerGroup:
    """Members, epochs and offsets of a group.

    Attributes:
        answer: function that answers the request of a token.
        epoch: group epoch; it rises when members, subscriptions or topics change.
    """

    group_id: str
    answer: Callable[[Any, Any], None]
    session_s: float = 45.0
    heartbeat_ms: int = 5_000
    epoch: int = 0
    members: dict[str, _ConsumerMember] = field(default_factory=dict)
    offsets: dict[tuple[str, int], CommittedEntry] = field(default_factory=dict)
    _target: dict[str, set[Place]] = field(default_factory=dict)
    _basis: object = None
    """Members, subscriptions and topics for which the target was computed."""

    # ---- requests ------------------------------------------------------------------------------------------------

    def heartbeat(self, token: object, request: ConsumerGroupHeartbeatRequest, topics: TopicSizes, now: float) -> None:
        """Answer a heartbeat: join, stay, give up partitions, or leave."""
        member = self.members.get(request.member_id)
        if request.member_epoch in {_LEAVING, _LEAVING_STATIC}:
            self._leave(token, request, member, topics, now)
            return
        if error := self._refusal(request, member):
            self.answer(token, ConsumerGroupHeartbeatResponse(error, member_id=request.member_id))
            return
        is_complete = request.rebalance_timeout_ms >= 0 and None not in {
            request.subscribed_topic_names,
            request.topic_partitions,
        }
        if member is None:
            member = self._join(request, now)
        if request.subscribed_topic_names is not None:
            member.topics = request.subscribed_topic_names
        if request.topic_partitions is not None:
            member.owned = {(one.topic_id, number) for one in request.topic_partitions for number in one.partitions}
        member.expires_at = now + self.session_s
        self._update_target(topics)
        before = set(member.assigned)
        self._reconcile(member, now)
        is_news = request.member_epoch == _JOINING or is_complete or before != member.assigned
        listed: dict[UUID, list[int]] = {}
        for topic_id, number in sorted(member.assigned):
            listed.setdefault(topic_id, []).append(number)
        assignment = tuple(TopicIdPartitions(topic_id, tuple(numbers)) for topic_id, numbers in listed.items())
        self.answer(
            token,
            ConsumerGroupHeartbeatResponse(
                ErrorCode.NONE,
                member_id=member.member_id,
                member_epoch=member.epoch,
                heartbeat_interval_ms=self.heartbeat_ms,
                assignment=assignment if is_news else None,
            ),
        )

    def _refusal(self, request: ConsumerGroupHeartbeatRequest, member: _ConsumerMember | None) -> ErrorCode:
        if request.member_epoch == _JOINING:
            return ErrorCode.NONE
        if member is None:
            return ErrorCode.UNKNOWN_MEMBER_ID
        if request.member_epoch == member.epoch:
            return ErrorCode.NONE
        # The answer to the last heartbeat may have been lost.
        owned = {(one.topic_id, number) for one in request.topic_partitions or () for number in one.partitions}
        is_last = request.member_epoch == member.previous_epoch and owned <= member.assigned
        return ErrorCode.NONE if is_last else ErrorCode.FENCED_MEMBER_EPOCH

    def _join(self, request: ConsumerGroupHeartbeatRequest, now: float) -> _ConsumerMember:
        member = _ConsumerMember(
            request.member_id, request.instance_id, request.rebalance_timeout_ms / 1000, (), now + self.session_s
        )
        self.members[request.member_id] = member
        return member

    def _leave(
        self,
        token: object,
        request: ConsumerGroupHeartbeatRequest,
        member: _ConsumerMember | None,
        topics: TopicSizes,
        now: float,
    ) -> None:
        if member is None:
            self.answer(token, ConsumerGroupHeartbeatResponse(ErrorCode.UNKNOWN_MEMBER_ID))
            return
        self._remove(member, topics, now)
        self.answer(
            token,
            ConsumerGroupHeartbeatResponse(
                ErrorCode.NONE, member_id=request.member_id, member_epoch=request.member_epoch
            ),
        )

    def member_error(self, member_id: str, epoch: int) -> ErrorCode:
        """Return the error of a commit, or of a query of offsets, by a member or by a client that is none."""
        if not member_id and epoch < 0:
            return ErrorCode.UNKNOWN_MEMBER_ID if self.members else ErrorCode.NONE
        member = self.members.get(member_id)
        if member is None:
            return ErrorCode.UNKNOWN_MEMBER_ID
        return ErrorCode.NONE if epoch == member.epoch else ErrorCode.STALE_MEMBER_EPOCH

    # ---- time ----------------------------------------------------------------------------------------------------

    def next_at(self) -> float | None:
        """Return the time at which ``tick`` has work."""
        times = [one.expires_at for one in self.members.values()]
        times += [one.revoke_until for one in self.members.values() if one.revoke_until is not None]
        return min(times, default=None)

    def tick(self, topics: TopicSizes, now: float) -> None:
        """Remove members whose session has expired, or who have not given up their partitions in time."""
        for member in [*self.members.values()]:
            if member.expires_at <= now or (member.revoke_until is not None and member.revoke_until <= now):
                self._remove(member, topics, now)

    def reload(self, now: float) -> None:
        """Continue at a new coordinator: sessions begin again."""
        for member in self.members.values():
            member.expires_at = now + self.session_s
            if member.revoke_until is not None:
                member.revoke_until = now + member.rebalance_s

    # ---- steps ---------------------------------------------------------------------------------------------------

    def _remove(self, member: _ConsumerMember, topics: TopicSizes, _now: float) -> None:
        del self.members[member.member_id]
        self._target.pop(member.member_id, None)
        self._update_target(topics)

    def _update_target(self, topics: TopicSizes) -> None:
        """Compute the target assignment if members, subscriptions or topics have changed."""
        basis = (
            sorted((one.member_id, one.topics) for one in self.members.values()),
            sorted((name, *found) for name, found in topics.items()),
        )
        if basis == self._basis:
            return
        self._basis = basis
        self.epoch += 1
        self._target = self._spread(topics)

    def _spread(self, topics: TopicSizes) -> dict[str, set[Place]]:
        """Spread the partitions evenly; a member keeps its partitions as far as that allows."""
        members = sorted(self.members.values(), key=lambda one: one.member_id)
        target: dict[str, set[Place]] = {one.member_id: set() for one in members}
        for name, (topic_id, count) in sorted(topics.items()):
            subscribed = [one for one in members if name in one.topics]
            if not subscribed:
                continue
            left = [(topic_id, number) for number in range(count)]
            most = -(-count // len(subscribed))
            for member in subscribed:
                kept = [one for one in left if one in self._previous(member)][:most]
                target[member.member_id].update(kept)
                left = [one for one in left if one not in kept]
            for place in left:
                least = min(subscribed, key=lambda one: sum(place[0] == topic_id for place in target[one.member_id]))
                target[least.member_id].add(place)
        return target

    def _previous(self, member: _ConsumerMember) -> set[Place]:
        return self._target.get(member.member_id, set()) | member.assigned

    def _reconcile(self, member: _ConsumerMember, now: float) -> None:
        """Take the next step of a member towards its target."""
        member.revoking &= member.owned
        if member.revoking:
            return
        member.revoke_until = None
        target = self._target[member.member_id]
        if gone := (member.assigned - target) & member.owned:
            member.assigned &= target
            member.revoking = gone
            member.revoke_until = now + member.rebalance_s
            return
        held = {
            place for other in self.members.values() if other is not member for place in other.assigned | other.revoking
        }
        member.assigned = {one for one in target if one in member.assigned or one not in held}
        if member.epoch != self.epoch:
            member.previous_epoch, member.epoch = member.epoch, self.epoch
