"""Listing, description and deletion of groups of both protocols.

States are Kafka's, such as ``Stable``, ``Empty`` and ``Reconciling``.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from tailrace.admin.descriptions import (
    GroupDescription,
    GroupListing,
    GroupMemberDescription,
    classic_protocol_description,
    consumer_protocol_description,
)
from tailrace.admin.requests import DEFAULT_TIMEOUT_S, TRANSIENT_CODES, ask_coordinator, ask_each
from tailrace.error_codes import ErrorCode
from tailrace.errors import (
    BrokerConnectionError,
    GroupNotEmptyError,
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
    DescribedGroup,
    DescribeGroupsRequest,
    ListGroupsRequest,
    ListGroupsResponse,
)
from tailrace.protocol.message import Request

__all__ = [
    "check_idle",
    "delete_group",
    "describe_group",
    "describe_groups",
    "list_groups",
]

_OTHER_PROTOCOL_CODES = {ErrorCode.GROUP_ID_NOT_FOUND, ErrorCode.UNSUPPORTED_VERSION}
"""Errors of ConsumerGroupDescribe after which DescribeGroups is sent: a classic group, or a broker without KIP-848."""
_FORBIDDEN_CODES = {ErrorCode.GROUP_AUTHORIZATION_FAILED, ErrorCode.TOPIC_AUTHORIZATION_FAILED}


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
        return consumer_protocol_description(found, cluster.coordinator_id(group_id), cluster)
    answer = await ask_coordinator(
        cluster,
        group_id,
        DescribeGroupsRequest((group_id,)),
        lambda answer: [one.error_code for one in answer.groups],
        timeout_s=timeout_s,
        what=what,
    )
    group = next((one for one in answer.groups if one.group_id == group_id), None)
    if group is None:
        raise broker_error(ErrorCode.UNKNOWN_SERVER_ERROR, f"{what}: the group is missing from the response")
    if _is_missing(group):
        raise await _missing_group_error(cluster, group_id, timeout_s)
    return classic_protocol_description(group, cluster.coordinator_id(group_id), cluster)


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
        else consumer_protocol_description(group, node_id, cluster)
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
        group.group_id: None
        if group.error_code in _FORBIDDEN_CODES
        else classic_protocol_description(group, node_id, cluster)
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
            lambda answer: [one.error_code for one in answer.groups],
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
        lambda answer: [answer.error_code],
        timeout_s=timeout_s,
        what=f"looking for group {group_id!r}",
    )
    kind = next((one.group_type for one in listed.groups if one.group_id == group_id), "").lower()
    if kind and kind not in {"classic", "consumer"}:
        return NotAConsumerGroupError(
            f"{group_id!r} is a group of type {kind!r}, not a consumer group - use Kafka's tools for it"
        )
    return UnknownGroupError(ErrorCode.GROUP_ID_NOT_FOUND, f"there is no group {group_id!r}")


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
        lambda answer: [one.error_code for one in answer.groups],
        timeout_s=timeout_s,
        what=what,
    )
    codes = {group.group_id: group.error_code for group in answer.groups}
    code = codes.get(group_id, ErrorCode.UNKNOWN_SERVER_ERROR)
    if code == ErrorCode.NON_EMPTY_GROUP:
        described = await describe_group(cluster, group_id, timeout_s=timeout_s)
        raise _not_empty_error(group_id, described.members, "deleting the group")
    if code not in {ErrorCode.NONE, ErrorCode.GROUP_ID_NOT_FOUND}:
        raise broker_error(code, f"group {group_id!r} was not deleted")
