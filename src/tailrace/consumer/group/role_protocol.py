"""What members of a group of any kind tell each other: the user's own bytes, in and out.

Rule of this file: to the machine that keeps a membership (``core.group.classic.member``) all that a generation gives is
one thing to own, from the sync on until the group rebalances. What it is made of goes past the machine, and is kept
here.
"""

from __future__ import annotations

from collections.abc import Awaitable, Mapping, Sequence
from typing import NamedTuple, Protocol, TypeAlias

from tailrace.core.group.assignors.strategies import Strategy
from tailrace.core.group.effects import SendJoin, SendSync
from tailrace.core.group.events import GroupEvent, JoinedAsFollower, JoinedAsLeader, Synced
from tailrace.errors import ConfigurationError, RebalanceError
from tailrace.protocol.classic_group import JoinGroupProtocol, JoinGroupResponse, SyncGroupAssignment
from tailrace.protocol.member_metadata import MemberAssignment, MemberSubscription, OwnedPartitions

__all__ = ["Encodable", "Generation", "GroupRole", "HasEncode", "RoleProtocol"]


class HasEncode(Protocol):
    """Something that can say itself in bytes."""

    def encode(self) -> bytes: ...


Encodable: TypeAlias = bytes | HasEncode

_STATE = MemberAssignment((OwnedPartitions("the state of a generation", (0,)),))


class Generation(NamedTuple):
    """One generation of a group, as one member sees it."""

    number: int
    member_id: str
    protocol: str
    is_leader: bool
    state: bytes
    """What the leader gave to this member."""


class GroupRole(Protocol):
    """What a group is for; yours to write.

    Besides these it may have ``on_rebalance(generation)``, called before a generation is left.
    """

    @property
    def protocol_type(self) -> str:
        """The kind of the group, such as "connect"; the broker keeps members of another kind out."""

    def protocols(self) -> Sequence[tuple[str, Encodable]]:
        """By name, most preferred first, what this member says of itself; the broker chooses one that all have."""

    def assign(self, leader_id: str, protocol: str, members: Mapping[str, bytes]) -> Mapping[str, Encodable]:
        """Asked of the leader alone: the state of each member, from what all said of themselves."""

    def on_joined(self, generation: Generation) -> Awaitable[None] | None:
        """A generation has begun, and this is what it gave to this member."""


class RoleProtocol:
    """A role's own words.

    Raises:
        ConfigurationError: the role lacks something.
    """

    def __init__(self, role: GroupRole) -> None:
        self._role = _checked(role)
        self.generation: Generation | None = None
        """The one whose state came last."""
        self._answer = JoinGroupResponse(0)

    @property
    def protocol_type(self) -> str:
        """The kind of the group."""
        return self._role.protocol_type

    @property
    def strategies(self) -> tuple[Strategy, ...]:
        """The names of the protocols; what they stand for is dealt past the machine."""
        return tuple(Strategy(name, lambda _members, _partitions, _racks: {}) for name, _ in self._said())

    def offers(self, _effect: SendJoin) -> tuple[JoinGroupProtocol, ...]:
        """What the role says of this member now."""
        return tuple(JoinGroupProtocol(name, data) for name, data in self._said())

    def joined(self, answer: JoinGroupResponse) -> GroupEvent:
        """The leader is told what everybody said."""
        self._answer, protocol = answer, answer.protocol_name or ""
        if answer.leader != answer.member_id:
            return JoinedAsFollower(answer.member_id, answer.generation_id, protocol)
        return JoinedAsLeader(
            answer.member_id,
            answer.generation_id,
            protocol,
            {one.member_id: MemberSubscription(()) for one in answer.members},
            {one.member_id: one.group_instance_id for one in answer.members if one.group_instance_id is not None},
            answer.skip_assignment,
        )

    def shares(self, effect: SendSync) -> tuple[SyncGroupAssignment, ...]:
        """What the role gives to everybody."""
        if not effect.assignments:
            return ()
        members = {one.member_id: bytes(one.metadata) for one in self._answer.members}
        try:
            given = dict(self._role.assign(self._answer.leader, effect.protocol, members))
        except Exception as error:
            raise RebalanceError(f"assign() of the group's role raised {type(error).__name__}: {error}") from error
        if strangers := given.keys() - members.keys():
            raise RebalanceError(f"assign() names {min(strangers, key=str)!r}, who is not in the group")
        return tuple(SyncGroupAssignment(one, _bytes_of(given.get(one, b""), "assign()")) for one in members)

    def synced(self, given: bytes) -> Synced:
        """What this member was given; the leader, too, takes it from here."""
        me = self._answer
        is_leader = me.leader == me.member_id
        self.generation = Generation(me.generation_id, me.member_id, me.protocol_name or "", is_leader, bytes(given))
        return Synced(_STATE)

    def _said(self) -> list[tuple[str, bytes]]:
        return [(name, _bytes_of(data, "protocols()")) for name, data in self._role.protocols()]


def _bytes_of(data: object, where: str) -> bytes:
    if isinstance(data, bytes):
        return data
    encode = getattr(data, "encode", None)
    encoded = encode() if callable(encode) else None
    if not isinstance(encoded, bytes):
        raise ConfigurationError(f"{where} of the group's role gave {data!r} - it has to be bytes, or to have encode()")
    return encoded


def _checked(role: GroupRole) -> GroupRole:
    missing = [name for name in ("protocols", "assign", "on_joined") if not callable(getattr(role, name, None))]
    if not isinstance(getattr(role, "protocol_type", None), str):
        missing.insert(0, "protocol_type")
    if missing:
        raise ConfigurationError(f"{role!r} is no role of a group: it lacks {', '.join(missing)} - see GroupRole")
    if not list(role.protocols()):
        raise ConfigurationError(f"protocols() of {role!r} gave none - name at least one, most preferred first")
    return role
