"""Listing, description and deletion of groups of both protocols.

States are Kafka's, such as ``Stable``, ``Empty`` and ``Reconciling``.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from tailrace.admin.requests import DEFAULT_TIMEOUT_S, TRANSIENT_CODES, ask_coordinator, ask_each
from tailrace.error_codes import ErrorCode
from tailrace.errors import (
    BrokerConnectionError,
    GroupNotEmptyError,
    MalformedMessageError,
    NotAConsumerGroupError,
    UnknownGroupError,
    UnsupportedVersionError,
    broker_error,
)
from tailrace.net.cluster import Cluster
from tailrace.protocol.groups import (
    ConsumerGroupDescribeRequest,
    DeleteGroupsRequest,
    DescribedConsumerGroup,
    DescribedConsumerGroupMember,
    DescribedGroup,
    DescribedGroupMember,
    DescribedPartitions,
    DescribeGroupsRequest,
    ListGroupsRequest,
    ListGroupsResponse,
    decode_assignment,
    decode_subscription,
)
from tailrace.protocol.message import Request
from tailrace.records import TopicPartition

__all__ = [
    "GroupDescription",
    "GroupListing",
    "GroupMemberDescription",
    "check_idle",
    "check_is_consumer_group",
    "delete_group",
    "describe_group",
    "describe_groups",
    "list_groups",
]

_OTHER_PROTOCOL_CODES = {ErrorCode.GROUP_ID_NOT_FOUND, ErrorCode.UNSUPPORTED_VERSION}
"""Errors of ConsumerGroupDescribe after which DescribeGroups is sent: a classic group, or a broker without KIP-848."""
_FORBIDDEN_CODES = {ErrorCode.GROUP_AUTHORIZATION_FAILED, ErrorCode.TOPIC_AUTHORIZATION_FAILED}


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
    coordinator_id: int = -1
    """Node id of the coordinator; -1 if it is unknown."""
    coordinator: str = ""
    """Host and port of the coordinator; empty if they are unknown."""
    members: tuple[GroupMemberDescription, ...] = ()
    owners: Mapping[TopicPartition, GroupMemberDescription] = field(default_factory=dict, repr=False)
    """Members by the partitions that are assigned to them."""

    @property
    def is_consumer_group(self) -> bool:
        """True for a consumer group, and for a group that never had members, which may have committed offsets."""
        return self.protocol_type in {"consumer", ""}


# ---- listing -----------------------------------------------------------------------------------------------------


async def list_groups(cluster: Cluster, *, timeout_s: float = DEFAULT_TIMEOUT_S) -> list[GroupListing]:
    """Return all groups of the cluster that the principal may describe, sorted by name.

    Raises:
        BrokerError: a broker returned an error, with retries until ``timeout_s`` had passed.
        BrokerConnectionError: a broker did not answer in time, so that the list would be incomplete.
    """

    async def ask() -> list[GroupListing]:
        try:
            answers = await ask_each(cluster, dict.fromkeys(cluster.topology.brokers, ListGroupsRequest()))
        except BrokerConnectionError:
            await cluster.refresh()
            raise
        for answer in answers.values():
            if answer.error_code:
                raise broker_error(answer.error_code, "a broker could not list its groups")
        return _listed(answers)

    return await cluster.retrying(ask, timeout_s=timeout_s, what="listing groups")


def _listed(answers: Mapping[int, ListGroupsResponse]) -> list[GroupListing]:
    """Return each group once, sorted by name. While a group moves to another coordinator, both may list it."""
    found = {
        one.group_id: GroupListing(one.group_id, one.group_type.lower(), one.protocol_type, one.group_state, node_id)
        for node_id, answer in answers.items()
        for one in answer.groups
    }
    return [found[group_id] for group_id in sorted(found)]


# ---- describing --------------------------------------------------------------------------------------------------


async def describe_group(cluster: Cluster, group_id: str, *, timeout_s: float = DEFAULT_TIMEOUT_S) -> GroupDescription:
    """Return the description of a group of the classic protocol or of KIP-848.

    Raises:
        UnknownGroupError: the group does not exist.
        NotAConsumerGroupError: the group is a share group or a Kafka Streams group.
        GroupAuthorizationFailedError: the principal may not describe the group.
        BrokerConnectionError: no broker answered in time.
    """
    what = f"describing group {group_id!r}"
    found = await _describe_consumer_protocol(cluster, group_id, timeout_s, what)
    if found is not None and found.error_code not in _OTHER_PROTOCOL_CODES:
        return _consumer_protocol_description(found, cluster.coordinator_id(group_id), cluster)
    answer = await ask_coordinator(
        cluster,
        group_id,
        DescribeGroupsRequest((group_id,)),
        timeout_s=timeout_s,
        what=what,
    )
    group = next((one for one in answer.groups if one.group_id == group_id), None)
    if group is None:
        raise broker_error(ErrorCode.UNKNOWN_SERVER_ERROR, f"{what}: the group is missing from the response")
    if _is_missing(group):
        raise await _missing_group_error(cluster, group_id, timeout_s)
    return _classic_description(group, cluster.coordinator_id(group_id), cluster)


async def describe_groups(
    cluster: Cluster, listings: Iterable[GroupListing], *, timeout_s: float = DEFAULT_TIMEOUT_S
) -> list[GroupDescription]:
    """Return the descriptions of groups, sorted by name; ``listings`` is a result of ``list_groups``.

    All groups of a coordinator are described by one request per protocol. Only groups whose coordinator has changed
    since the listing are described one by one.

    A group is left out if it no longer exists, if it uses neither the classic protocol nor KIP-848, or if the principal
    may list it but not describe it. After the failure of a coordinator, its groups may be missing for a moment.

    Raises:
        BrokerConnectionError: no broker answered in time.
    """
    describable = [one for one in listings if one.group_type in {"classic", "consumer", ""}]
    described: dict[str, GroupDescription | None] = {}
    try:
        described |= await _consumer_protocol_groups(
            cluster, [one for one in describable if one.group_type == "consumer"]
        )
        described |= await _classic_groups(cluster, [one for one in describable if one.group_type != "consumer"])
    except BrokerConnectionError:
        pass  # A coordinator does not answer. The loop below looks up the coordinators again.
    for one in describable:
        if one.group_id not in described:
            try:
                described[one.group_id] = await describe_group(cluster, one.group_id, timeout_s=timeout_s)
            except (UnknownGroupError, NotAConsumerGroupError):
                continue  # After the listing, the group was deleted, or recreated with another type.
    return [found for _, found in sorted(described.items()) if found is not None]


async def _consumer_protocol_groups(
    cluster: Cluster, listings: Sequence[GroupListing]
) -> dict[str, GroupDescription | None]:
    """Return descriptions of KIP-848 groups by name; None for a group that the principal may not describe.

    Groups whose coordinator has changed, and groups that no longer use KIP-848, are missing in the result.
    """
    requests = {node: ConsumerGroupDescribeRequest(ids) for node, ids in _by_coordinator(listings).items()}
    return {
        group.group_id: None
        if group.error_code in _FORBIDDEN_CODES
        else _consumer_protocol_description(group, node_id, cluster)
        for node_id, answer in (await ask_each(cluster, requests)).items()
        for group in answer.groups
        if group.error_code not in TRANSIENT_CODES | _OTHER_PROTOCOL_CODES
    }


async def _classic_groups(cluster: Cluster, listings: Sequence[GroupListing]) -> dict[str, GroupDescription | None]:
    """Return descriptions of classic groups by name; None for a group that the principal may not describe.

    Groups whose coordinator has changed, and groups that no longer exist, are missing in the result.
    """
    requests = {node: DescribeGroupsRequest(ids) for node, ids in _by_coordinator(listings).items()}
    return {
        group.group_id: None if group.error_code in _FORBIDDEN_CODES else _classic_description(group, node_id, cluster)
        for node_id, answer in (await ask_each(cluster, requests)).items()
        for group in answer.groups
        if group.error_code not in TRANSIENT_CODES and not _is_missing(group)
    }


def _by_coordinator(listings: Iterable[GroupListing]) -> dict[int, tuple[str, ...]]:
    found: dict[int, tuple[str, ...]] = {}
    for one in listings:
        found[one.coordinator_id] = (*found.get(one.coordinator_id, ()), one.group_id)
    return found


async def _describe_consumer_protocol(
    cluster: Cluster, group_id: str, timeout_s: float, what: str
) -> DescribedConsumerGroup | None:
    """Send ConsumerGroupDescribe and return the result for a group; None if the broker does not support the request."""
    try:
        answer = await ask_coordinator(
            cluster,
            group_id,
            ConsumerGroupDescribeRequest((group_id,)),
            timeout_s=timeout_s,
            what=what,
        )
    except UnsupportedVersionError:
        return None
    return next((one for one in answer.groups if one.group_id == group_id), None)


def _is_missing(group: DescribedGroup) -> bool:
    return group.error_code == ErrorCode.GROUP_ID_NOT_FOUND or (not group.error_code and group.group_state == "Dead")


async def _missing_group_error(
    cluster: Cluster, group_id: str, timeout_s: float
) -> NotAConsumerGroupError | UnknownGroupError:
    """Return the error for a group that DescribeGroups did not find: it has another type, or does not exist."""
    request: Request[ListGroupsResponse] = ListGroupsRequest()
    listed = await ask_coordinator(
        cluster,
        group_id,
        request,
        timeout_s=timeout_s,
        what=f"looking for group {group_id!r}",
    )
    kind = next((one.group_type for one in listed.groups if one.group_id == group_id), "").lower()
    if kind and kind not in {"classic", "consumer"}:
        return NotAConsumerGroupError(
            f"{group_id!r} is a group of type {kind!r}, not a consumer group - use Kafka's tools for it"
        )
    return UnknownGroupError(ErrorCode.GROUP_ID_NOT_FOUND, f"there is no group {group_id!r}")


def _consumer_protocol_description(
    group: DescribedConsumerGroup, coordinator_id: int | None, cluster: Cluster
) -> GroupDescription:
    """Return the description of a group that uses KIP-848.

    Raises:
        BrokerError: the coordinator refused to describe the group.
    """
    if group.error_code:
        raise broker_error(group.error_code, f"group {group.group_id!r}: {group.error_message or 'not described'}")
    members = tuple(map(_consumer_protocol_member, group.members))
    found = GroupDescription(
        group.group_id, "consumer", "consumer", group.group_state, group.assignor_name, members=members
    )
    return _completed(found, coordinator_id, cluster)


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


def _classic_description(group: DescribedGroup, coordinator_id: int | None, cluster: Cluster) -> GroupDescription:
    """Return the description of a group that uses the classic protocol.

    Raises:
        BrokerError: the coordinator refused to describe the group.
    """
    if group.error_code:
        raise broker_error(group.error_code, f"group {group.group_id!r}: {group.error_message or 'not described'}")
    are_consumers = group.protocol_type == "consumer"
    members = tuple(_classic_member(one, is_consumer=are_consumers) for one in group.members)
    found = GroupDescription(
        group.group_id, "classic", group.protocol_type, group.group_state, group.protocol_data, members=members
    )
    return _completed(found, coordinator_id, cluster)


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


def _completed(found: GroupDescription, coordinator_id: int | None, cluster: Cluster) -> GroupDescription:
    """Return a description with the coordinator, the members in order, and the owners of partitions."""
    node_id = -1 if coordinator_id is None else coordinator_id
    node = cluster.topology.brokers.get(node_id)
    members = tuple(sorted(found.members, key=lambda one: (one.client_id, one.group_instance_id or "", one.member_id)))
    return replace(
        found,
        coordinator_id=node_id,
        coordinator=f"{node.host}:{node.port}" if node is not None else "",
        members=members,
        owners={partition: member for member in members for partition in member.partitions},
    )


def check_is_consumer_group(group: GroupDescription) -> None:
    """Check that the group is a consumer group, or has never had members.

    Raises:
        NotAConsumerGroupError: the group has another protocol type, such as that of Kafka Connect.
    """
    if not group.is_consumer_group:
        raise NotAConsumerGroupError(
            f"{group.group_id!r} is a group with protocol type {group.protocol_type!r}, not a consumer group"
            " - `tailrace groups list` shows the consumer groups"
        )


# ---- changing ----------------------------------------------------------------------------------------------------


def check_idle(group: GroupDescription, what: str) -> None:
    """Check that the group has no live members.

    Args:
        group: description of the group.
        what: operation that requires a group without members, for the error message, such as "deleting the group".

    Raises:
        GroupNotEmptyError: the group has live members.
    """
    if group.members:
        raise _not_empty_error(group.group_id, group.members, what)


def _not_empty_error(group_id: str, members: Sequence[GroupMemberDescription], what: str) -> GroupNotEmptyError:
    names = [str(one) for one in members]
    shown = ", ".join(names[:5]) + (f" and {len(names) - 5} more" if len(names) > 5 else "")
    count = "1 live member" if len(names) == 1 else f"{len(names)} live members"
    described = f"{count}: {shown}" if names else "live members"
    return GroupNotEmptyError(
        f"group {group_id!r} has {described} - stop them before {what}, or wait until their sessions expire", names
    )


async def delete_group(cluster: Cluster, group_id: str, *, timeout_s: float = DEFAULT_TIMEOUT_S) -> None:
    """Delete a group without members and its committed offsets; do nothing if the group does not exist.

    Raises:
        GroupNotEmptyError: the group has live members.
        BrokerError: the coordinator refused to delete the group.
        BrokerConnectionError: no broker answered in time.
    """
    what = f"deleting group {group_id!r}"
    answer = await ask_coordinator(
        cluster,
        group_id,
        DeleteGroupsRequest((group_id,)),
        timeout_s=timeout_s,
        what=what,
    )
    result = next((one for one in answer.groups if one.group_id == group_id), None)
    code = ErrorCode.UNKNOWN_SERVER_ERROR if result is None else result.error_code
    if code == ErrorCode.NON_EMPTY_GROUP:
        described = await describe_group(cluster, group_id, timeout_s=timeout_s)
        raise _not_empty_error(group_id, described.members, "deleting the group")
    if code not in {ErrorCode.NONE, ErrorCode.GROUP_ID_NOT_FOUND}:
        reason = None if result is None else result.error_message
        raise broker_error(code, f"group {group_id!r} was not deleted" + (f": {reason}" if reason else ""))
