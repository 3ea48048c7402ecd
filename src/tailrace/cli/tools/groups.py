"""What ``tailrace groups`` does."""

from __future__ import annotations

import argparse
from collections.abc import Iterable
from itertools import groupby

from tailrace.admin.descriptions import GroupDescription, GroupListing, GroupMemberDescription
from tailrace.admin.groups import (
    check_idle,
    delete_group,
    describe_group,
    describe_groups,
    list_groups,
)
from tailrace.admin.offsets import committed_offsets
from tailrace.cli.tools.connection import group_of, hinting, reached
from tailrace.cli.tools.tables import Column, Paper, count, counted, write_json
from tailrace.net.cluster import Cluster
from tailrace.records import TopicPartition

__all__ = ["member_as_json", "ranges", "work"]


async def work(options: argparse.Namespace) -> int:
    """List, show or delete; gives the exit code.

    Raises:
        TailraceError: it could not be done.
    """
    async with reached(options) as cluster:
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
    listings = await list_groups(cluster, timeout_s=options.timeout)
    described = await describe_groups(cluster, listings, timeout_s=options.timeout)
    members = {one.group_id: len(one.members) for one in described}
    states = {one.group_id: one.state for one in described}
    if options.json:
        write_json(
            {
                "group": one.group_id,
                "state": states.get(one.group_id, one.state),
                "type": one.group_type,
                "protocol_type": one.protocol_type,
                "members": members.get(one.group_id),
                "coordinator": _address(cluster, one.coordinator_id),
            }
            for one in listings
        )
        return
    paper = Paper()
    if not listings:
        paper.say("groups", "none that we may see")
        return
    paper.table(
        [Column("group"), Column("state"), Column("kind"), Column("members", is_number=True)],
        [
            [one.group_id, states.get(one.group_id, one.state) or "-", _kind(one), count(members.get(one.group_id))]
            for one in listings
        ],
    )
    paper.say("groups", f"{count(len(listings))}, of {counted(len(cluster.topology.brokers), 'broker')}")


def _kind(group: GroupListing | GroupDescription) -> str:
    """What its members do, if that is not to consume; else the protocol they speak."""
    return group.group_type or "classic" if group.protocol_type in {"consumer", ""} else group.protocol_type


def _address(cluster: Cluster, node_id: int) -> str:
    node = cluster.topology.brokers.get(node_id)
    return "" if node is None else f"{node.host}:{node.port}"


# ---- show --------------------------------------------------------------------------------------------------------


async def _show(cluster: Cluster, options: argparse.Namespace) -> None:
    group_id = group_of(options, cluster.config)
    group = await hinting(cluster, group_id, describe_group(cluster, group_id, timeout_s=options.timeout))
    if options.json:
        write_json([_as_json(group)])
        return
    paper = Paper()
    paper.say("group", group.group_id)
    paper.say("state", group.state)
    paper.say("kind", _kind(group) + (f", dealt out by {group.assignor}" if group.assignor else ""))
    paper.say("broker", f"{group.coordinator} (number {group.coordinator_id}) coordinates it")
    paper.say("members", count(len(group.members)) if group.members else "none")
    if group.members:
        paper.gap()
        paper.table(
            [Column("client"), Column("host"), Column("partitions", is_folded=True), Column("member")],
            [[_named(one), one.host, _share(one), one.member_id] for one in group.members],
        )


def _named(member: GroupMemberDescription) -> str:
    static = f" ({member.group_instance_id})" if member.group_instance_id is not None else ""
    return f"{member.client_id}{static}"


def _share(member: GroupMemberDescription) -> str:
    if member.problem:
        return f"unreadable: {member.problem}"
    share = ranges(member.partitions) or "none"
    if member.target is not None and set(member.target) != set(member.partitions):
        share += f" (shall have {ranges(member.target) or 'none'})"
    return share


def ranges(partitions: Iterable[TopicPartition]) -> str:
    """``orders 0-3, 7; payments 1``."""
    told = []
    for topic, of_topic in groupby(sorted(partitions), key=lambda one: one.topic):
        numbers = [one.partition for one in of_topic]
        runs = [[n for _, n in run] for _, run in groupby(enumerate(numbers), key=lambda one: one[1] - one[0])]
        told.append(f"{topic} {', '.join(f'{run[0]}-{run[-1]}' if len(run) > 1 else str(run[0]) for run in runs)}")
    return "; ".join(told)


def _as_json(group: GroupDescription) -> dict[str, object]:
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


def member_as_json(member: GroupMemberDescription | None) -> dict[str, object]:
    """Who it is; all null where nobody is."""
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
    """All of them are looked at before the first goes."""
    group_ids = list(dict.fromkeys(options.groups))
    had = {}
    for group_id in group_ids:
        group = await hinting(cluster, group_id, describe_group(cluster, group_id, timeout_s=options.timeout))
        check_idle(group, "removing the group")
        offsets = await committed_offsets(cluster, group_id, timeout_s=options.timeout)
        had[group_id] = len(offsets)
    paper = None if options.json else Paper()
    for group_id in group_ids:
        if options.execute:
            await delete_group(cluster, group_id, timeout_s=options.timeout)
        if paper is None:
            write_json([{"group": group_id, "deleted": bool(options.execute), "offsets": had[group_id]}])
        else:
            label = "deleted" if options.execute else "delete"
            paper.say(label, f"{group_id}, with {counted(had[group_id], 'committed offset')}")
    if paper is not None and not options.execute:
        paper.say(
            "dry run", f"nothing was changed - the same with --execute deletes {counted(len(group_ids), 'group')}"
        )
