"""Coordinator of one group of the classic protocol, and the group's committed offsets.

Pure: no clock, IO or logging. Requests come with the time; answers, of which some must wait for other members, go to
``answer`` with the token of their request.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

from tailrace.error_codes import ErrorCode
from tailrace.protocol.groups import (
    HeartbeatRequest,
    HeartbeatResponse,
    JoinGroupMember,
    JoinGroupRequest,
    JoinGroupResponse,
    LeaveGroupRequest,
    LeaveGroupResponse,
    SyncGroupRequest,
    SyncGroupResponse,
)

__all__ = ["ClassicGroup", "ClassicGroupState", "CommittedEntry"]

Answer = Callable[[object, Any], None]
"""Function that answers the request of a token."""


class ClassicGroupState(Enum):
    """State of a group."""

    EMPTY = "Empty"
    PREPARING = "PreparingRebalance"
    COMPLETING = "CompletingRebalance"
    STABLE = "Stable"


@dataclass
class CommittedEntry:
    """Committed offset of a partition."""

    offset: int
    leader_epoch: int
    metadata: str | None


@dataclass(eq=False)
class _ClassicMember:
    member_id: str
    instance_id: str | None
    session_s: float
    rebalance_s: float
    protocols: tuple[tuple[str, bytes], ...]
    expires_at: float
    join: object | None = None
    """Token of the held JoinGroup; None if the member has not joined the rebalance."""
    sync: object | None = None
    assignment: bytes = b""

    def metadata_of(self, protocol: str | None) -> bytes:
        return dict(self.protocols).get(protocol or "", b"")


@dataclass(eq=False)
class ClassicGroup:
    """Members, generation and offsets of a group.

    Attributes:
        group_id: id.
        new_id: function that returns a new member id for the instance id of a static member, or None.
        answer: function that answers a request.
    """

    group_id: str
    new_id: Callable[[str | None], str]
    answer: Answer
    state: ClassicGroupState = ClassicGroupState.EMPTY
    generation: int = 0
    protocol: str | None = None
    protocol_type: str | None = None
    leader: str | None = None
    members: dict[str, _ClassicMember] = field(default_factory=dict)
    offsets: dict[tuple[str, int], CommittedEntry] = field(default_factory=dict)
    _static: dict[str, str] = field(default_factory=dict)
    _pending: dict[str, float] = field(default_factory=dict)
    """Ids given to members that have to join again with them (KIP-394), and when they expire."""
    _join_at: float | None = None
    _sync_at: float | None = None

    # ---- requests of members -----------------------------------------------------------------------------------

    def join(self, token: object, request: JoinGroupRequest, now: float, *, needs_id: bool) -> None:
        """Add a member, or let it join the next generation."""
        offered = {one.name for one in request.protocols}
        if self.members and (request.protocol_type != self.protocol_type or not offered & self._common()):
            self._refuse_join(token, ErrorCode.INCONSISTENT_GROUP_PROTOCOL, request.member_id)
            return
        instance_id = request.group_instance_id
        if not request.member_id:
            if instance_id is None and needs_id:
                new_id = self.new_id(None)
                self._pending[new_id] = now + request.session_timeout_ms / 1000
                self._refuse_join(token, ErrorCode.MEMBER_ID_REQUIRED, new_id)
                return
            if instance_id is not None and instance_id in self._static:
                self._replace_static(token, request, now)
                return
            self._add(token, request, self.new_id(instance_id), now)
            return
        if instance_id is not None and instance_id in self._static and self._static[instance_id] != request.member_id:
            self._refuse_join(token, ErrorCode.FENCED_INSTANCE_ID, request.member_id)
        elif request.member_id in self._pending:
            del self._pending[request.member_id]
            self._add(token, request, request.member_id, now)
        elif request.member_id not in self.members:
            self._refuse_join(token, ErrorCode.UNKNOWN_MEMBER_ID, request.member_id)
        else:
            self._join_again(token, request, now)

    def _add(self, token: object, request: JoinGroupRequest, member_id: str, now: float) -> None:
        member = self.members[member_id] = _ClassicMember(member_id, request.group_instance_id, 0, 0, (), 0)
        if request.group_instance_id is not None:
            self._static[request.group_instance_id] = member_id
        if self.leader is None:
            self.leader, self.protocol_type = member_id, request.protocol_type
        self._update(member, token, request, now)
        self._prepare(now)

    def _join_again(self, token: object, request: JoinGroupRequest, now: float) -> None:
        member = self.members[request.member_id]
        protocols = tuple((one.name, one.metadata) for one in request.protocols)
        is_same = protocols == member.protocols
        if self.state is ClassicGroupState.STABLE and is_same and request.member_id != self.leader:
            self._touch(member, now)
            self.answer(token, self._joined(member))
        elif self.state is ClassicGroupState.COMPLETING and is_same:
            # The response of the join was lost.
            self._touch(member, now)
            self.answer(token, self._joined(member))
        else:
            self._update(member, token, request, now)
            self._prepare(now)

    def _replace_static(self, token: object, request: JoinGroupRequest, now: float) -> None:
        """Give a static member that was restarted a new id, with which it takes the place of the old one (KIP-345)."""
        assert request.group_instance_id is not None
        old = self.members.pop(self._static[request.group_instance_id])
        self._drop_held(old, ErrorCode.FENCED_INSTANCE_ID)
        new_id = self.new_id(request.group_instance_id)
        member = _ClassicMember(new_id, request.group_instance_id, 0, 0, old.protocols, 0, assignment=old.assignment)
        self.members[new_id] = member
        self._static[request.group_instance_id] = new_id
        was_leader = self.leader == old.member_id
        if was_leader:
            self.leader = new_id
        protocols = tuple((one.name, one.metadata) for one in request.protocols)
        is_same = protocols == old.protocols
        self._update(member, token, request, now)
        if self.state is ClassicGroupState.STABLE and is_same:
            member.join = None
            self.answer(token, self._joined(member, is_replaced=True))
        else:
            self._prepare(now)

    def sync(self, token: object, request: SyncGroupRequest, now: float) -> None:
        """Answer with the member's assignment, once the leader has sent it."""
        if error := self._member_error(request.member_id, request.group_instance_id, request.generation_id):
            self.answer(token, SyncGroupResponse(error, b""))
            return
        member = self.members[request.member_id]
        if self.state is ClassicGroupState.PREPARING:
            self.answer(token, SyncGroupResponse(ErrorCode.REBALANCE_IN_PROGRESS, b""))
        elif self.state is ClassicGroupState.STABLE:
            self._touch(member, now)
            self.answer(token, self._synced(member))
        else:
            member.sync = token
            self._touch(member, now)
            if request.member_id == self.leader:
                self._sync_at = None
                given = {one.member_id: one.assignment for one in request.assignments}
                self.state = ClassicGroupState.STABLE
                for one in self.members.values():
                    one.assignment = given.get(one.member_id, b"")
                    if one.sync is not None:
                        held, one.sync = one.sync, None
                        self._touch(one, now)
                        self.answer(held, self._synced(one))

    def heartbeat(self, token: object, request: HeartbeatRequest, now: float) -> None:
        """Prolong a session, and tell the member of a rebalance."""
        error = self._member_error(request.member_id, request.group_instance_id, request.generation_id)
        if not error:
            self._touch(self.members[request.member_id], now)
            if self.state is ClassicGroupState.PREPARING:
                error = ErrorCode.REBALANCE_IN_PROGRESS
        self.answer(token, HeartbeatResponse(error))

    def leave(self, token: object, request: LeaveGroupRequest, now: float) -> None:
        """Remove a member."""
        member_id = request.member_id
        if not member_id and request.group_instance_id is not None:
            member_id = self._static.get(request.group_instance_id, "")
        if member_id in self._pending:
            del self._pending[member_id]
            error = ErrorCode.NONE
        elif member_id not in self.members:
            error = ErrorCode.UNKNOWN_MEMBER_ID
        else:
            error = ErrorCode.NONE
            self._remove([member_id], now)
        self.answer(token, LeaveGroupResponse(error))

    # ---- offsets -----------------------------------------------------------------------------------------------

    def commit_error(self, member_id: str, instance_id: str | None, generation: int, now: float) -> ErrorCode:
        """Return the error of a commit by a member, or by a client that is none."""
        if generation < 0 and not member_id and instance_id is None:
            return ErrorCode.NONE if not self.members else ErrorCode.UNKNOWN_MEMBER_ID
        if error := self._member_error(member_id, instance_id, generation):
            return error
        if self.state is ClassicGroupState.COMPLETING:
            return ErrorCode.REBALANCE_IN_PROGRESS
        self._touch(self.members[member_id], now)
        return ErrorCode.NONE

    # ---- time --------------------------------------------------------------------------------------------------

    def next_at(self) -> float | None:
        """Return the time at which ``tick`` has work."""
        waiting = [self._join_at, self._sync_at, *self._pending.values()]
        waiting += [one.expires_at for one in self.members.values() if one.join is None]
        return min((one for one in waiting if one is not None), default=None)

    def tick(self, now: float) -> None:
        """End sessions and rebalances whose time is over."""
        for member_id in [one for one, at in self._pending.items() if at <= now]:
            del self._pending[member_id]
        if gone := [key for key, one in self.members.items() if one.join is None and one.expires_at <= now]:
            self._remove(gone, now)
        if self._join_at is not None and self._join_at <= now:
            self._complete_join(now)
        if self._sync_at is not None and self._sync_at <= now:
            self._sync_at = None
            self._remove([key for key, one in self.members.items() if one.sync is None], now)

    def reload(self, now: float) -> None:
        """Continue at a new coordinator: held requests were lost with their connections, and sessions begin again."""
        self._pending.clear()
        for member in self.members.values():
            member.join = member.sync = None
            self._touch(member, now)
        if self.members and self.state is not ClassicGroupState.STABLE:
            self.state = ClassicGroupState.STABLE
            self._join_at = self._sync_at = None
            self._prepare(now)

    # ---- steps -------------------------------------------------------------------------------------------------

    def _common(self) -> set[str]:
        """Return the protocols that all members offer."""
        sets = [{name for name, _ in one.protocols} for one in self.members.values()]
        return set.intersection(*sets) if sets else set()

    def _update(self, member: _ClassicMember, token: object, request: JoinGroupRequest, now: float) -> None:
        member.session_s, member.rebalance_s = request.session_timeout_ms / 1000, request.rebalance_timeout_ms / 1000
        member.protocols = tuple((one.name, one.metadata) for one in request.protocols)
        member.join = token
        self._touch(member, now)

    def _touch(self, member: _ClassicMember, now: float) -> None:
        member.expires_at = now + member.session_s

    def _member_error(self, member_id: str, instance_id: str | None, generation: int) -> ErrorCode:
        if instance_id is not None and self._static.get(instance_id, member_id) != member_id:
            return ErrorCode.FENCED_INSTANCE_ID
        if member_id not in self.members:
            return ErrorCode.UNKNOWN_MEMBER_ID
        return ErrorCode.NONE if generation == self.generation else ErrorCode.ILLEGAL_GENERATION

    def _prepare(self, now: float) -> None:
        """Begin a rebalance, if none waits for joins, and complete it if all have joined."""
        if self.state is not ClassicGroupState.PREPARING:
            for member in self.members.values():
                if member.sync is not None:
                    held, member.sync = member.sync, None
                    self.answer(held, SyncGroupResponse(ErrorCode.REBALANCE_IN_PROGRESS, b""))
            self.state, self._sync_at = ClassicGroupState.PREPARING, None
            self._join_at = now + max(one.rebalance_s for one in self.members.values())
        if all(one.join is not None for one in self.members.values()) and not self._pending:
            self._complete_join(now)

    def _complete_join(self, now: float) -> None:
        """Begin a generation with the members that have joined."""
        self._join_at = None
        for key in [key for key, one in self.members.items() if one.join is None and one.instance_id is None]:
            self._forget(self.members[key])
        if not self.members:
            self._become_empty()
            return
        if self.leader not in self.members or self.members[self.leader or ""].join is None:
            joined = [one.member_id for one in self.members.values() if one.join is not None]
            if not joined:
                # Only static members that are away: their sessions decide.
                self._join_at = now + max(one.rebalance_s for one in self.members.values())
                return
            self.leader = joined[0]
        self.generation += 1
        common = self._common()
        votes = [next(name for name, _ in one.protocols if name in common) for one in self.members.values()]
        self.protocol = max(dict.fromkeys(votes), key=votes.count)
        self.state = ClassicGroupState.COMPLETING
        for member in self.members.values():
            if member.join is not None:
                held, member.join = member.join, None
                self._touch(member, now)
                self.answer(held, self._joined(member))
        self._sync_at = now + max(one.rebalance_s for one in self.members.values())

    def _remove(self, member_ids: Iterable[str], now: float) -> None:
        for member_id in [*member_ids]:
            self._forget(self.members[member_id])
        if not self.members:
            self._become_empty()
        elif self.leader is None or self.state is not ClassicGroupState.EMPTY:
            self._prepare(now)

    def _forget(self, member: _ClassicMember) -> None:
        self._drop_held(member, ErrorCode.UNKNOWN_MEMBER_ID)
        del self.members[member.member_id]
        if member.instance_id is not None and self._static.get(member.instance_id) == member.member_id:
            del self._static[member.instance_id]
        if self.leader == member.member_id:
            self.leader = next(iter(self.members), None)

    def _become_empty(self) -> None:
        self.state, self.leader, self.protocol = ClassicGroupState.EMPTY, None, None
        self._join_at = self._sync_at = None
        self.generation += 1

    def _drop_held(self, member: _ClassicMember, error: ErrorCode) -> None:
        if member.join is not None:
            held, member.join = member.join, None
            self._refuse_join(held, error, member.member_id)
        if member.sync is not None:
            held, member.sync = member.sync, None
            self.answer(held, SyncGroupResponse(error, b""))

    # ---- answers -----------------------------------------------------------------------------------------------

    def _refuse_join(self, token: object, error: ErrorCode, member_id: str) -> None:
        self.answer(token, JoinGroupResponse(error, member_id=member_id, protocol_name=""))

    def _joined(self, member: _ClassicMember, *, is_replaced: bool = False) -> JoinGroupResponse:
        is_leader = member.member_id == self.leader
        listed = tuple(
            JoinGroupMember(one.member_id, one.instance_id, one.metadata_of(self.protocol))
            for one in (self.members.values() if is_leader else ())
        )
        return JoinGroupResponse(
            ErrorCode.NONE,
            self.generation,
            self.protocol_type,
            self.protocol or "",
            self.leader or "",
            # A leader that was restarted gets its assignment without a new one (KIP-814).
            skip_assignment=is_leader and is_replaced,
            member_id=member.member_id,
            members=listed,
        )

    def _synced(self, member: _ClassicMember) -> SyncGroupResponse:
        return SyncGroupResponse(
            ErrorCode.NONE, member.assignment, protocol_type=self.protocol_type, protocol_name=self.protocol
        )
