"""What members of a classic group tell each other through the broker: the part of joins and syncs that it passes on.

Rule of this file: how a group is kept together is the same for all kinds of groups; what it is kept together for is
said here. Consumers tell each other of topics and partitions; see ``group_member`` for everybody else.
"""

from __future__ import annotations

from typing import Protocol

from tailrace.consumer.group.subscription_data import read_subscription, write_subscription
from tailrace.core.group.effects import SendJoin, SendSync
from tailrace.core.group.events import GroupEvent, JoinedAsFollower, JoinedAsLeader, Synced
from tailrace.protocol.classic_group import JoinGroupProtocol, JoinGroupResponse, SyncGroupAssignment
from tailrace.protocol.member_metadata import decode_assignment, encode_assignment

__all__ = ["ConsumerProtocol", "MemberProtocol"]


class MemberProtocol(Protocol):
    """How to say it, and how to read it."""

    @property
    def protocol_type(self) -> str:
        """The kind of the group."""

    def offers(self, effect: SendJoin) -> tuple[JoinGroupProtocol, ...]:
        """What a join offers, most preferred first."""

    def joined(self, answer: JoinGroupResponse) -> GroupEvent:
        """What a join that went well means.

        Raises:
            MalformedMessageError: what a member says of itself cannot be read.
        """

    def shares(self, effect: SendSync) -> tuple[SyncGroupAssignment, ...]:
        """What the leader gives to everybody; nothing from others.

        Raises:
            RebalanceError: the user's own assignor failed.
        """

    def synced(self, given: bytes) -> Synced:
        """What this member was given.

        Raises:
            MalformedMessageError: it cannot be read.
        """


class ConsumerProtocol:
    """Of groups of consumers."""

    protocol_type = "consumer"

    def offers(self, effect: SendJoin) -> tuple[JoinGroupProtocol, ...]:
        """One subscription for each assignor."""
        return tuple(
            JoinGroupProtocol(name, write_subscription(said, name, effect.held_before, effect.generation))
            for name, said in effect.subscriptions
        )

    def joined(self, answer: JoinGroupResponse) -> GroupEvent:
        """The leader is told everybody's subscription."""
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
        """Partitions."""
        return tuple(SyncGroupAssignment(m, encode_assignment(given)) for m, given in effect.assignments.items())

    def synced(self, given: bytes) -> Synced:
        """Partitions."""
        return Synced(decode_assignment(given))
