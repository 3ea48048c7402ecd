"""``tailrace groups``: list, show or delete groups."""

from __future__ import annotations

import argparse
from collections.abc import Iterable
from itertools import groupby
from typing import TYPE_CHECKING

from tailrace import admin
from tailrace.cli.options import (
    CONNECTION_HELP,
    add_actions,
    add_connection_options,
    add_group,
    group_of,
    open_cluster,
    with_group_suggestion,
)
from tailrace.cli.output import Column, TextOutput, count, counted, write_json

if TYPE_CHECKING:
    from tailrace.net.cluster import Cluster
    from tailrace.records import TopicPartition

__all__ = ["arguments", "member_as_json", "partition_ranges", "run"]

_DESCRIPTION = """\
List, show or delete the groups of a cluster.

The column "type" shows which protocol a consumer group uses: classic, or
consumer (KIP-848). For other groups it shows their protocol type, such as
connect.
"""

_EPILOG = f"""\
examples:
  tailrace groups
  tailrace groups show billing
  tailrace groups show --app shop:billing --json | jq .members[].host
  tailrace groups delete billing-test --execute

{CONNECTION_HELP}
Run `tailrace groups ACTION --help` for the options of an action.
"""

_LIST = """\
List the groups that you are authorized to describe, with state, type and number
of live members.
"""

_LIST_EPILOG = """\
examples:
  tailrace groups list
  tailrace groups list --json | jq -r 'select(.members == 0).group'
"""

_SHOW = """\
Show a group's state, type, assignor and coordinator. For each live member, show
the client id, host, assigned partitions and member id.
"""

_SHOW_EPILOG = """\
examples:
  tailrace groups show billing
  tailrace groups show billing --json | jq '.members | length'
"""

_DELETE = """\
Delete groups and their committed offsets. Without --execute, only list the
groups.

No group is deleted if one of them does not exist or has live members. Deleting
cannot be undone: a new group of the same name starts at its auto_offset_reset.
"""

_DELETE_EPILOG = """\
examples:
  tailrace groups delete billing-test
  tailrace groups delete load-1 load-2 load-3 --execute
"""


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.description, parser.epilog = _DESCRIPTION, _EPILOG
    add_connection_options(parser)
    add_action = add_actions(parser, required=False)
    listing = add_action("list", "list groups (the default)", _LIST, _LIST_EPILOG)
    show = add_action("show", "show a group and its members", _SHOW, _SHOW_EPILOG)
    delete = add_action("delete", "delete groups and their committed offsets", _DELETE, _DELETE_EPILOG)
    for action in (listing, show, delete):
        add_connection_options(action, inner=True)
    add_group(show)
    delete.add_argument("groups", nargs="+", metavar="GROUP", help="name of a group without live members")
    delete.add_argument("--execute", action="store_true", help="delete the groups (default: dry run)")


async def run(options: argparse.Namespace) -> int:
    """Run the action that ``options.action`` names, ``list`` if None, and return the exit code 0."""
    async with open_cluster(options) as cluster:
        match options.action:
            case "show":
                await _show(cluster, options)
            case "delete":
                await _delete(cluster, options)
            case _:
                await _list(cluster, options)
    return 0


# ---- list --------------------------------------------------------------------------------------------------------


async def _list(cluster: Cluster, options: argparse.Namespace) -> None:
    listings = await admin.list_groups(cluster, timeout_s=options.timeout)
    described = await admin.describe_groups(cluster, listings, timeout_s=options.timeout)
    # Some listed groups cannot be described, such as share groups.
    member_counts = {one.group_id: len(one.members) for one in described}
    states = {one.group_id: one.state for one in described}
    if options.json:
        write_json(
            {
                "group": one.group_id,
                "state": states.get(one.group_id, one.state),
                "type": one.group_type,
                "protocol_type": one.protocol_type,
                "members": member_counts.get(one.group_id),
                "coordinator": _broker_address(cluster, one.coordinator_id),
            }
            for one in listings
        )
        return
    output = TextOutput()
    if not listings:
        output.line("groups", "none that you are authorized to describe")
        return
    output.table(
        [Column("group"), Column("state"), Column("type"), Column("members", is_number=True)],
        [
            [
                one.group_id,
                states.get(one.group_id, one.state) or "-",
                _type_text(one),
                count(member_counts.get(one.group_id)),
            ]
            for one in listings
        ],
    )
    output.line("groups", f"{count(len(listings))} on {counted(len(cluster.topology.brokers), 'broker')}")


def _type_text(group: admin.GroupListing | admin.GroupDescription) -> str:
    """Return the group protocol of a consumer group, or the protocol type of any other group.

    A group that never had members has no protocol type, and counts as a consumer group.
    """
    if group.protocol_type not in {"consumer", ""}:
        return group.protocol_type
    return group.group_type or "classic"


def _broker_address(cluster: Cluster, node_id: int) -> str:
    """Return host and port of a broker; empty if the metadata of the cluster does not have it."""
    node = cluster.topology.brokers.get(node_id)
    return "" if node is None else f"{node.host}:{node.port}"


# ---- show --------------------------------------------------------------------------------------------------------


async def _show(cluster: Cluster, options: argparse.Namespace) -> None:
    group_id = group_of(options, cluster.config)
    group = await with_group_suggestion(
        cluster, group_id, admin.describe_group(cluster, group_id, timeout_s=options.timeout)
    )
    if options.json:
        write_json([_as_json(group)])
        return
    output = TextOutput()
    output.line("group", group.group_id)
    output.line("state", group.state)
    output.line("type", _type_text(group))
    if group.assignor:
        output.line("assignor", group.assignor)
    output.line("broker", f"{group.coordinator} (id {group.coordinator_id}) is the coordinator")
    output.line("members", count(len(group.members)) if group.members else "none")
    if group.members:
        output.gap()
        output.table(
            [Column("client"), Column("host"), Column("partitions", is_folded=True), Column("member")],
            [[_client_text(one), one.host, _assignment_text(one), one.member_id] for one in group.members],
        )


def _client_text(member: admin.GroupMemberDescription) -> str:
    """Return the client id, and in parentheses the group instance id of a static member."""
    instance = f" ({member.group_instance_id})" if member.group_instance_id is not None else ""
    return f"{member.client_id}{instance}"


def _assignment_text(member: admin.GroupMemberDescription) -> str:
    """Return the partitions of a member, and those after the rebalance (``target``) if they differ."""
    if member.problem:
        return f"unreadable: {member.problem}"
    text = partition_ranges(member.partitions) or "none"
    if member.target is not None and set(member.target) != set(member.partitions):
        text += f" (target: {partition_ranges(member.target) or 'none'})"
    return text


def partition_ranges(partitions: Iterable[TopicPartition]) -> str:
    """Format partitions by topic, with ranges of consecutive numbers: ``orders 0-3, 7; payments 1``."""
    topics = []
    for topic, topic_partitions in groupby(sorted(partitions), key=lambda one: one.topic):
        numbers = [one.partition for one in topic_partitions]
        # Number minus index is the same for all numbers of a run of consecutive numbers.
        runs = [[n for _, n in run] for _, run in groupby(enumerate(numbers), key=lambda one: one[1] - one[0])]
        topics.append(f"{topic} {', '.join(f'{run[0]}-{run[-1]}' if len(run) > 1 else str(run[0]) for run in runs)}")
    return "; ".join(topics)


def _as_json(group: admin.GroupDescription) -> dict[str, object]:
    return {
        "group": group.group_id,
        "state": group.state,
        "type": group.group_type,
        "protocol_type": group.protocol_type,
        "assignor": group.assignor,
        "coordinator": group.coordinator,
        "coordinator_id": group.coordinator_id,
        "members": [
            {
                **member_as_json(one),
                "topics": one.topics,
                "partitions": [partition._asdict() for partition in one.partitions],
            }
            for one in group.members
        ],
    }


def member_as_json(member: admin.GroupMemberDescription | None) -> dict[str, object]:
    """Return the JSON fields that identify a member; they are null if ``member`` is None."""
    if member is None:
        return {"member_id": None, "client_id": None, "host": None, "group_instance_id": None}
    return {
        "member_id": member.member_id,
        "client_id": member.client_id,
        "host": member.host,
        "group_instance_id": member.group_instance_id,
    }


# ---- delete ------------------------------------------------------------------------------------------------------


async def _delete(cluster: Cluster, options: argparse.Namespace) -> None:
    """Delete the groups, or only list them without ``--execute``.

    Raises:
        UnknownGroupError: a group does not exist; no group is deleted.
        GroupNotEmptyError: a group has live members; no group is deleted.
    """
    from tailrace.admin.groups import check_idle

    group_ids = list(dict.fromkeys(options.groups))
    offset_counts = {}
    for group_id in group_ids:
        group = await with_group_suggestion(
            cluster, group_id, admin.describe_group(cluster, group_id, timeout_s=options.timeout)
        )
        check_idle(group, "deleting the group")
        offsets = await admin.committed_offsets(cluster, group_id, timeout_s=options.timeout)
        offset_counts[group_id] = len(offsets)
    output = None if options.json else TextOutput()
    for group_id in group_ids:
        if options.execute:
            await admin.delete_group(cluster, group_id, timeout_s=options.timeout)
        if output is None:
            write_json([{"group": group_id, "deleted": bool(options.execute), "offsets": offset_counts[group_id]}])
        else:
            label = "deleted" if options.execute else "delete"
            output.line(label, f"{group_id}, with {counted(offset_counts[group_id], 'committed offset')}")
    if output is not None and not options.execute:
        output.line("dry run", f"nothing changed - add --execute to delete {counted(len(group_ids), 'group')}")
