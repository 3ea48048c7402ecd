"""Descriptions of groups and their members, in the classic protocol and in KIP-848."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from tailrace.errors import MalformedMessageError, broker_error
from tailrace.net.cluster import Cluster
from tailrace.protocol.groups import (
    DescribedConsumerGroup,
    DescribedConsumerGroupMember,
    DescribedGroup,
    DescribedGroupMember,
    DescribedPartitions,
    decode_assignment,
    decode_subscription,
)
from tailrace.records import TopicPartition

__all__ = [
    "GroupDescription",
    "GroupListing",
    "GroupMemberDescription",
    "classic_protocol_description",
    "consumer_protocol_description",
]


@dataclass(frozen=True, slots=True)
class GroupListing:
    """Group as listed by its coordinator."""

    group_id: str
    group_type: str
    """``classic``, ``consumer`` (KIP-848), ``share`` or ``streams``; empty from brokers before Kafka 3.8."""
    protocol_type: str
    """``consumer`` for consumer groups, ``connect`` for Kafka Connect; empty if the group never had members."""
    state: str
    """State of the group, such as ``Stable`` or ``Empty``; empty from brokers before Kafka 2.6."""
    coordinator_id: int
    """Node id of the coordinator."""


@dataclass(frozen=True, slots=True)
class GroupMemberDescription:
    """Live member of a group."""

    member_id: str
    client_id: str
    host: str
    group_instance_id: str | None = None
    """``group_instance_id`` of a static member; None for other members."""
    partitions: tuple[TopicPartition, ...] = ()
    """Assigned partitions, in order."""
    topics: tuple[str, ...] = ()
    """Subscribed topics."""
    pattern: str | None = None
    """Subscribed regular expression, if the broker evaluates it; otherwise None."""
    target: tuple[TopicPartition, ...] | None = None
    """Partitions assigned to the member after the rebalance in progress (KIP-848); None in the classic protocol."""
    problem: str = ""
    """Error if topics or partitions are missing, because they are encoded in an unknown format; otherwise empty."""

    def __str__(self) -> str:
        static = f" ({self.group_instance_id})" if self.group_instance_id is not None else ""
        return f"{self.client_id or 'a client without an id'}{static} at {self.host or 'an unknown host'}"


@dataclass(frozen=True, slots=True)
class GroupDescription:
    """Group with its members."""

    group_id: str
    group_type: str
    """``classic`` or ``consumer`` (KIP-848)."""
    protocol_type: str
    """``consumer`` for consumer groups, ``connect`` for Kafka Connect; empty if the group never had members."""
    state: str
    """State of the group, such as ``Stable`` or ``Empty``."""
    assignor: str
    """Name of the assignor, which runs in a member (classic protocol) or in the coordinator (KIP-848)."""
    coordinator_id: int
    """Node id of the coordinator; -1 if it is unknown."""
    coordinator: str
    """Host and port of the coordinator; empty if they are unknown."""
    members: tuple[GroupMemberDescription, ...] = ()
    owners: Mapping[TopicPartition, GroupMemberDescription] = field(default_factory=dict, repr=False)
    """Members by the partitions that are assigned to them."""

    @property
    def is_consumer_group(self) -> bool:
        """True for a consumer group, and for a group that never had members, which may have committed offsets."""
        return self.protocol_type in {"consumer", ""}


def consumer_protocol_description(
    group: DescribedConsumerGroup, coordinator_id: int | None, cluster: Cluster
) -> GroupDescription:
    """Return the description of a group that uses KIP-848.

    Raises:
        BrokerError: the coordinator refused to describe the group.
    """
    if group.error_code:
        raise broker_error(group.error_code, f"group {group.group_id!r}: {group.error_message or 'not described'}")
    members = tuple(_consumer_protocol_member(one) for one in group.members)
    return _described(
        group.group_id, "consumer", "consumer", group.group_state, group.assignor_name, members, coordinator_id, cluster
    )


def _consumer_protocol_member(member: DescribedConsumerGroupMember) -> GroupMemberDescription:
    return GroupMemberDescription(
        member.member_id,
        member.client_id,
        member.client_host.removeprefix("/"),
        member.instance_id,
        _flat(member.assignment),
        tuple(sorted(member.subscribed_topic_names)),
        member.subscribed_topic_regex or None,
        _flat(member.target_assignment),
    )


def _flat(by_topic: Iterable[DescribedPartitions]) -> tuple[TopicPartition, ...]:
    return tuple(sorted(TopicPartition(one.topic, partition) for one in by_topic for partition in one.partitions))


def classic_protocol_description(
    group: DescribedGroup, coordinator_id: int | None, cluster: Cluster
) -> GroupDescription:
    """Return the description of a group that uses the classic protocol.

    Raises:
        BrokerError: the coordinator refused to describe the group.
    """
    if group.error_code:
        raise broker_error(group.error_code, f"group {group.group_id!r}: {group.error_message or 'not described'}")
    are_consumers = group.protocol_type == "consumer"
    members = tuple(_classic_member(one, is_consumer=are_consumers) for one in group.members)
    return _described(
        group.group_id,
        "classic",
        group.protocol_type,
        group.group_state,
        group.protocol_data,
        members,
        coordinator_id,
        cluster,
    )


def _classic_member(member: DescribedGroupMember, *, is_consumer: bool) -> GroupMemberDescription:
    topics: tuple[str, ...] = ()
    partitions: tuple[TopicPartition, ...] = ()
    problem = ""
    # While the group rebalances, metadata and assignment are empty.
    if is_consumer:
        try:
            topics = tuple(sorted(decode_subscription(member.metadata).topics)) if member.metadata else ()
            by_topic = decode_assignment(member.assignment).assigned_partitions
            partitions = tuple(sorted(TopicPartition(one.topic, p) for one in by_topic for p in one.partitions))
        except MalformedMessageError as error:
            problem = str(error)
    return GroupMemberDescription(
        member.member_id,
        member.client_id,
        member.client_host.removeprefix("/"),
        member.group_instance_id,
        partitions,
        topics,
        problem=problem,
    )


def _described(  # noqa: PLR0913, PLR0917 - fields that both protocols have
    group_id: str,
    group_type: str,
    protocol_type: str,
    state: str,
    assignor: str,
    members: Sequence[GroupMemberDescription],
    coordinator_id: int | None,
    cluster: Cluster,
) -> GroupDescription:
    node_id = -1 if coordinator_id is None else coordinator_id
    node = cluster.topology.brokers.get(node_id)
    in_order = tuple(sorted(members, key=lambda one: (one.client_id, one.group_instance_id or "", one.member_id)))
    return GroupDescription(
        group_id,
        group_type,
        protocol_type,
        state,
        assignor,
        node_id,
        f"{node.host}:{node.port}" if node is not None else "",
        in_order,
        {partition: member for member in in_order for partition in member.partitions},
    )
