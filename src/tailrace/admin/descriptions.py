"""Descriptions of groups and members of both protocols, built from responses."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from tailrace.errors import MalformedMessageError, broker_error
from tailrace.net.cluster import Cluster
from tailrace.protocol.group_descriptions import (
    DescribedConsumerGroup,
    DescribedConsumerGroupMember,
    DescribedGroup,
    DescribedGroupMember,
    DescribedPartitions,
)
from tailrace.protocol.member_metadata import decode_assignment, decode_subscription
from tailrace.records import TopicPartition

__all__ = ["GroupDescription", "GroupListing", "GroupMemberDescription", "of_classic_protocol", "of_consumer_protocol"]


@dataclass(frozen=True, slots=True)
class GroupListing:
    """Group as listed by its coordinator."""

    group_id: str
    group_type: str
    """``classic``, ``consumer`` (KIP-848), ``share`` or ``streams``; empty for brokers before 3.8."""
    protocol_type: str
    """``consumer`` for consumer groups, ``connect`` for Kafka Connect; empty if the group never had members."""
    state: str
    """State of the group, such as ``Stable`` or ``Empty``; empty for brokers before 2.6."""
    coordinator_id: int


@dataclass(frozen=True, slots=True)
class GroupMemberDescription:
    """Live member of a group."""

    member_id: str
    client_id: str
    host: str
    group_instance_id: str | None = None
    """Name of a static member."""
    partitions: tuple[TopicPartition, ...] = ()
    """Assigned partitions, in order."""
    topics: tuple[str, ...] = ()
    """Subscribed topics."""
    pattern: str | None = None
    """Subscribed regular expression, if the broker evaluates it."""
    target: tuple[TopicPartition, ...] | None = None
    """Target assignment (KIP-848)."""
    problem: str = ""
    """Reason why the member's partitions are unknown: the client encoded them in an unknown format."""

    def __str__(self) -> str:
        static = f" ({self.group_instance_id})" if self.group_instance_id is not None else ""
        return f"{self.client_id or 'a client without an id'}{static} at {self.host or 'an unknown host'}"


@dataclass(frozen=True, slots=True)
class GroupDescription:
    """Group with its members."""

    group_id: str
    group_type: str
    """``classic`` or ``consumer``."""
    protocol_type: str
    state: str
    assignor: str
    """Assignor chosen by the members of a classic group, or assignor of the broker (KIP-848)."""
    coordinator_id: int
    coordinator: str
    """Address of the coordinator."""
    members: tuple[GroupMemberDescription, ...] = ()
    owners: Mapping[TopicPartition, GroupMemberDescription] = field(default_factory=dict, repr=False)
    """Member that owns each partition."""

    @property
    def is_of_consumers(self) -> bool:
        """True for a consumer group, or a group that never had members but may have committed offsets."""
        return self.protocol_type in {"consumer", ""}


def of_consumer_protocol(
    group: DescribedConsumerGroup, coordinator_id: int | None, cluster: Cluster
) -> GroupDescription:
    """Return the description of a group under KIP-848.

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


def _flat(dealt: Iterable[DescribedPartitions]) -> tuple[TopicPartition, ...]:
    return tuple(sorted(TopicPartition(one.topic, partition) for one in dealt for partition in one.partitions))


def of_classic_protocol(group: DescribedGroup, coordinator_id: int | None, cluster: Cluster) -> GroupDescription:
    """Return the description of a group under the classic protocol.

    Raises:
        BrokerError: the coordinator refused to describe the group.
    """
    if group.error_code:
        raise broker_error(group.error_code, f"group {group.group_id!r}: {group.error_message or 'not described'}")
    consumes = group.protocol_type == "consumer"
    members = tuple(_classic_member(one, consumes=consumes) for one in group.members)
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


def _classic_member(member: DescribedGroupMember, *, consumes: bool) -> GroupMemberDescription:
    topics: tuple[str, ...] = ()
    partitions: tuple[TopicPartition, ...] = ()
    problem = ""
    # Metadata and assignment are empty while the group rebalances.
    if consumes:
        try:
            topics = tuple(sorted(decode_subscription(member.metadata).topics)) if member.metadata else ()
            dealt = decode_assignment(member.assignment).assigned_partitions
            partitions = tuple(sorted(TopicPartition(one.topic, p) for one in dealt for p in one.partitions))
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
