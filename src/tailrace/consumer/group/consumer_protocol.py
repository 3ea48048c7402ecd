"""Embedded protocol of classic groups: the member data in JoinGroup and SyncGroup that the broker does not interpret.

Groups of different kinds differ only in this data. In consumer groups, it consists of subscriptions and assigned
partitions; for other groups, see ``consumer.group.role_protocol``.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from msgspec.structs import replace

from tailrace.consumer.group.vocabulary import GroupEvent, JoinedAsFollower, JoinedAsLeader, SendJoin, SendSync, Synced
from tailrace.errors import MalformedMessageError
from tailrace.protocol.groups import (
    JoinGroupProtocol,
    JoinGroupResponse,
    MemberAssignment,
    MemberSubscription,
    OwnedPartitions,
    SyncGroupAssignment,
    decode_assignment,
    decode_cooperative_data,
    decode_sticky_data,
    decode_subscription,
    encode_assignment,
    encode_cooperative_data,
    encode_sticky_data,
    encode_subscription,
)

__all__ = ["ConsumerProtocol", "MemberProtocol", "described_member", "read_subscription", "write_subscription"]

# ---- subscriptions of classic group members, with the user data of the sticky assignors ------------------------------


def write_subscription(
    subscription: MemberSubscription, assignor: str, last_assigned: Sequence[OwnedPartitions], last_generation: int
) -> bytes:
    """Return the encoded subscription that a join offers with ``assignor``.

    Args:
        subscription: subscription of the member.
        assignor: name of the assignor, which decides about the user data.
        last_assigned: last assignment of the member, for ``sticky``.
        last_generation: generation of ``last_assigned``.
    """
    if assignor == "sticky":
        subscription = replace(subscription, user_data=encode_sticky_data(last_assigned, last_generation))
    elif assignor == "cooperative-sticky":
        subscription = replace(subscription, user_data=encode_cooperative_data(subscription.generation_id))
    return encode_subscription(subscription)


def read_subscription(data: bytes, assignor: str) -> MemberSubscription:
    """Return the subscription of a member; for the sticky assignors, partly decoded from the user data.

    Raises:
        MalformedMessageError: ``data`` is not a valid subscription.
    """
    subscription = decode_subscription(data)
    if assignor == "sticky":
        owned, generation = decode_sticky_data(subscription.user_data)
        return replace(subscription, owned_partitions=owned, generation_id=generation)
    if assignor == "cooperative-sticky" and subscription.generation_id < 0:
        return replace(subscription, generation_id=decode_cooperative_data(subscription.user_data))
    return subscription


# ---- embedded protocol of classic groups -----------------------------------------------------------------------------


class MemberProtocol(Protocol):
    """Encoding and decoding of the member data of one kind of group."""

    @property
    def protocol_type(self) -> str:
        """Protocol type of the group, such as ``consumer``."""

    def offers(self, effect: SendJoin) -> tuple[JoinGroupProtocol, ...]:
        """Return the protocols that a join offers, most preferred first."""

    def joined(self, answer: JoinGroupResponse) -> GroupEvent:
        """Return the event of a successful join.

        Raises:
            MalformedMessageError: a member's data cannot be decoded.
        """

    def shares(self, effect: SendSync) -> tuple[SyncGroupAssignment, ...]:
        """Return the assignment of each member if this member is the leader, otherwise an empty tuple.

        Raises:
            RebalanceError: the user's assignor failed.
        """

    def synced(self, assignment: bytes) -> Synced:
        """Return the event of a successful sync, which was answered with this member's ``assignment``.

        Raises:
            MalformedMessageError: the assignment cannot be decoded.
        """


class ConsumerProtocol:
    """Embedded protocol of consumer groups."""

    protocol_type = "consumer"

    def offers(self, effect: SendJoin) -> tuple[JoinGroupProtocol, ...]:
        """Return one subscription for each assignor."""
        return tuple(
            JoinGroupProtocol(
                name, write_subscription(subscription, name, effect.last_assigned, effect.last_generation)
            )
            for name, subscription in effect.subscriptions
        )

    def joined(self, answer: JoinGroupResponse) -> GroupEvent:
        """Return the event of the join; the leader's event contains the subscriptions of all members."""
        protocol = answer.protocol_name or ""
        if answer.leader != answer.member_id:
            return JoinedAsFollower(answer.member_id, answer.generation_id, protocol)
        return JoinedAsLeader(
            answer.member_id,
            answer.generation_id,
            protocol,
            {one.member_id: read_subscription(one.metadata, protocol) for one in answer.members},
            {one.member_id: one.group_instance_id for one in answer.members if one.group_instance_id is not None},
            answer.skip_assignment,
        )

    def shares(self, effect: SendSync) -> tuple[SyncGroupAssignment, ...]:
        """Return the partitions of each member."""
        return tuple(SyncGroupAssignment(m, encode_assignment(given)) for m, given in effect.assignments.items())

    def synced(self, assignment: bytes) -> Synced:
        """Return the event of the sync, with the assigned partitions."""
        return Synced(decode_assignment(assignment))


def described_member(metadata: bytes, assignment: bytes, assignor: str) -> tuple[MemberSubscription, MemberAssignment]:
    """Return the subscription and the assignment in the description of a member; empty ones if they are malformed."""
    try:
        return read_subscription(metadata, assignor), decode_assignment(assignment)
    except MalformedMessageError:
        return MemberSubscription(()), MemberAssignment(())
