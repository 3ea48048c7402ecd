"""Group protocol of a ``GroupRole``: protocol type, member data and assigned states are the user's.

The state machine of a member (``consumer.group.classic``) needs partitions, and a role has none. It therefore gets
one placeholder partition, from the sync until the next rebalance. The user's data does not pass through the state
machine.
"""

from __future__ import annotations

from collections.abc import Awaitable, Mapping, Sequence
from typing import NamedTuple, Protocol, TypeAlias

from tailrace.consumer.group.assignors.strategies import Strategy
from tailrace.consumer.group.vocabulary import GroupEvent, JoinedAsFollower, JoinedAsLeader, SendJoin, SendSync, Synced
from tailrace.errors import ConfigurationError, RebalanceError
from tailrace.protocol.groups import (
    JoinGroupProtocol,
    JoinGroupResponse,
    MemberAssignment,
    MemberSubscription,
    OwnedPartitions,
    SyncGroupAssignment,
)
from tailrace.user_exceptions import error_text

__all__ = ["Encodable", "Generation", "GroupRole", "HasEncode", "RoleProtocol"]


class HasEncode(Protocol):
    """Object that encodes itself as bytes."""

    def encode(self) -> bytes: ...


Encodable: TypeAlias = bytes | HasEncode

_PLACEHOLDER = MemberAssignment((OwnedPartitions("placeholder", (0,)),))


class Generation(NamedTuple):
    """Generation of a group, as one member sees it."""

    number: int
    member_id: str
    protocol: str
    is_leader: bool
    state: bytes
    """State that the leader assigned to this member."""


class GroupRole(Protocol):
    """Behavior of a ``GroupMember``: its member data, assignments and reactions; implemented by the user.

    A role may also have a method ``on_rebalance(generation)``, which is called when a generation ends for this member,
    before the member joins another.
    """

    @property
    def protocol_type(self) -> str:
        """Protocol type of the group, such as ``connect``; the broker refuses members with another protocol type."""

    def protocols(self) -> Sequence[tuple[str, Encodable]]:
        """Return name and member data of each protocol, most preferred first.

        The broker chooses a protocol that all members have.
        """

    def assign(self, leader_id: str, protocol: str, members: Mapping[str, bytes]) -> Mapping[str, Encodable]:
        """Return the state of each member, by member id; called on the leader only.

        Args:
            leader_id: member id of the leader.
            protocol: name of the protocol that the broker chose.
            members: data of each member for this protocol, by member id.
        """

    def on_joined(self, generation: Generation) -> Awaitable[None] | None:
        """Handle a new generation and this member's state in it."""


class RoleProtocol:
    """Group protocol of a role.

    Raises:
        ConfigurationError: the role lacks an attribute, or offers no protocol.
    """

    def __init__(self, role: GroupRole) -> None:
        self._role = _checked(role)
        self.generation: Generation | None = None
        """Generation of the last sync; None before the first."""
        self._answer = JoinGroupResponse(0)
        """Answer to the last join."""

    @property
    def protocol_type(self) -> str:
        """Protocol type of the group."""
        return self._role.protocol_type

    @property
    def strategies(self) -> tuple[Strategy, ...]:
        """Strategies with the names of the protocols; they assign nothing, because the role assigns the states."""
        return tuple(Strategy(name, lambda _members, _partitions, _racks: {}) for name, _ in self._protocols())

    def offers(self, _effect: SendJoin) -> tuple[JoinGroupProtocol, ...]:
        """Return the role's current protocols."""
        return tuple(JoinGroupProtocol(name, data) for name, data in self._protocols())

    def joined(self, answer: JoinGroupResponse) -> GroupEvent:
        """Return the event of the join, and store the answer for the method ``shares``."""
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
        """Return the state that the role assigns to each member if this member is the leader, otherwise an empty tuple.

        Raises:
            RebalanceError: the role's ``assign()`` failed.
        """
        if not effect.assignments:
            return ()
        members = {one.member_id: bytes(one.metadata) for one in self._answer.members}
        try:
            states = dict(self._role.assign(self._answer.leader, effect.protocol, members))
        except Exception as error:
            raise RebalanceError(f"assign() of the group's role raised {error_text(error)}") from error
        if unknown_ids := states.keys() - members.keys():
            raise RebalanceError(
                f"assign() of the group's role returned a state for {min(unknown_ids, key=str)!r}, which is not a"
                " member - return states for the member ids in `members` only"
            )
        return tuple(SyncGroupAssignment(one, _bytes_of(states.get(one, b""), "assign()")) for one in members)

    def synced(self, assignment: bytes) -> Synced:
        """Store the generation with the state that was assigned to this member, and return the event of the sync."""
        join = self._answer
        is_leader = join.leader == join.member_id
        self.generation = Generation(
            join.generation_id, join.member_id, join.protocol_name or "", is_leader, bytes(assignment)
        )
        return Synced(_PLACEHOLDER)

    def _protocols(self) -> list[tuple[str, bytes]]:
        return [(name, _bytes_of(data, "protocols()")) for name, data in self._role.protocols()]


def _bytes_of(data: object, where: str) -> bytes:
    if isinstance(data, bytes):
        return data
    encode = getattr(data, "encode", None)
    encoded = encode() if callable(encode) else None
    if not isinstance(encoded, bytes):
        raise ConfigurationError(
            f"{where} of the group's role must return bytes or objects whose encode() returns bytes, not {data!r}"
        )
    return encoded


def _checked(role: GroupRole) -> GroupRole:
    missing = [name for name in ("protocols", "assign", "on_joined") if not callable(getattr(role, name, None))]
    if not isinstance(getattr(role, "protocol_type", None), str):
        missing.insert(0, "protocol_type")
    if missing:
        raise ConfigurationError(f"a group's role must have {', '.join(missing)}, but {role!r} has not - see GroupRole")
    if not list(role.protocols()):
        raise ConfigurationError(f"protocols() of {role!r} must return at least one protocol")
    return role
