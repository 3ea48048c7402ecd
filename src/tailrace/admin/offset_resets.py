"""A group's offsets set anew: planned first, executed only when that is asked for."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, replace

from tailrace.admin.descriptions import GroupDescription, GroupMemberDescription
from tailrace.admin.groups import check_idle, describe_group
from tailrace.admin.lag import check_of_consumers
from tailrace.admin.offsets import EARLIEST, LATEST, GroupOffset, commit_offsets, committed_offsets, list_offsets
from tailrace.admin.requests import PATIENCE_S
from tailrace.admin.reset_plan import OffsetChange, ResetTarget, left_out, planned_change, time_of
from tailrace.admin.topics import partitions_of
from tailrace.core.cluster_metadata import ClusterMetadata
from tailrace.error_codes import ErrorCode
from tailrace.errors import ConfigurationError, UnknownGroupError, UnknownTopicError, broker_error
from tailrace.net.cluster import Cluster
from tailrace.protocol.committed_offsets import CommitOffset
from tailrace.protocol.list_offsets import ListedOffset
from tailrace.records import TopicPartition

__all__ = ["ResetPlan", "reset_offsets"]

_LIVE = {
    ErrorCode.UNKNOWN_MEMBER_ID,
    ErrorCode.ILLEGAL_GENERATION,
    ErrorCode.REBALANCE_IN_PROGRESS,
    ErrorCode.STALE_MEMBER_EPOCH,
}
"""How a coordinator refuses a commit from outside while a group has members."""
_WHAT = "resetting its offsets"


@dataclass(frozen=True, slots=True)
class ResetPlan:
    """What a reset does, or has done."""

    group_id: str
    target: ResetTarget
    changes: tuple[OffsetChange, ...]
    """By partition, in order; those that stay as they are too."""
    members: tuple[GroupMemberDescription, ...] = ()
    """Live members: while there are any, it cannot be executed."""
    is_new: bool = False
    """There is no such group yet; executing makes it."""
    is_executed: bool = False


async def reset_offsets(  # noqa: PLR0913 - what a reset is made of
    cluster: Cluster,
    group_id: str,
    target: ResetTarget,
    *,
    topics: Iterable[str] | None = None,
    partitions: Iterable[TopicPartition] | None = None,
    execute: bool = False,
    timeout_s: float = PATIENCE_S,
) -> ResetPlan:
    """Set what the group has committed to ``target``; unless ``execute`` is said, only plan it.

    The text beside a committed offset goes with it, and so does the map of what is finished beyond it.

    Args:
        cluster: where; reached already.
        group_id: the group; it is made when it is not there.
        target: where to.
        topics: all partitions of these.
        partitions: these. Without either, all partitions of every topic that the group has committed something of;
            what of these no longer exists is left out, and the plan says so.
        execute: whether to do it.
        timeout_s: how long each of the steps may take.

    Returns:
        What would be done, or was.

    Raises:
        GroupNotEmptyError: it is to be executed, and the group has live members; they are named.
        NotAConsumerGroupError: the group is not one of consumers.
        UnknownTopicError: a topic or a partition does not exist.
        ConfigurationError: there is nothing to reset.
        TopicRecreatedError: a topic was recreated since its offsets were looked up.
        BrokerError: we may not.
        BrokerConnectionError: nobody answers in time.
    """
    group = await _group_or_none(cluster, group_id, timeout_s)
    if execute and group is not None:
        check_idle(group, _WHAT)
    committed = await committed_offsets(cluster, group_id, stable=True, timeout_s=timeout_s)
    if topics is None and partitions is None:
        if not committed:
            raise ConfigurationError(
                f"group {group_id!r} has committed nothing yet - say which topics to set offsets of"
            )
        chosen, gone = await _of_all(cluster, committed, timeout_s)
    else:
        chosen, gone = await _chosen(cluster, list(topics or ()), list(partitions or ()), timeout_s), []
    topology = cluster.topology
    begins, ends, at_time = await _bounds(cluster, chosen, time_of(target), timeout_s)
    changes = tuple(
        planned_change(one, target, committed.get(one), begins[one].offset, ends[one].offset, at_time.get(one))
        for one in chosen
    )
    changes = tuple(sorted((*changes, *map(left_out, gone)), key=lambda change: change.partition))
    plan = ResetPlan(group_id, target, changes, group.members if group is not None else (), is_new=group is None)
    if not execute:
        return plan
    await _commit(cluster, plan, topology, timeout_s)
    return replace(plan, is_executed=True)


async def _group_or_none(cluster: Cluster, group_id: str, timeout_s: float) -> GroupDescription | None:
    try:
        group = await describe_group(cluster, group_id, timeout_s=timeout_s)
    except UnknownGroupError:
        return None
    check_of_consumers(group)
    return group


async def _of_all(
    cluster: Cluster, committed: Mapping[TopicPartition, GroupOffset], timeout_s: float
) -> tuple[list[TopicPartition], list[GroupOffset]]:
    """All partitions of the topics that something is committed of; and what is committed of such as are no more."""
    counts = await partitions_of(cluster, {one.topic for one in committed}, timeout_s=timeout_s)
    gone = [offset for one, offset in committed.items() if one.partition >= counts.get(one.topic, 0)]
    return sorted(TopicPartition(topic, number) for topic, count in counts.items() for number in range(count)), gone


async def _chosen(
    cluster: Cluster, topics: Collection[str], partitions: Collection[TopicPartition], timeout_s: float
) -> list[TopicPartition]:
    names = {*topics, *(one.topic for one in partitions)}
    counts = await partitions_of(cluster, names, timeout_s=timeout_s)
    for name in sorted(names):
        if name not in counts:
            raise UnknownTopicError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"there is no topic {name!r}")
    for topic, number in partitions:
        if not 0 <= number < counts[topic]:
            there = "partition 0 alone" if counts[topic] == 1 else f"partitions 0 to {counts[topic] - 1}"
            detail = f"there is no partition {number} of {topic!r}, it has {there}"
            raise UnknownTopicError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, detail)
    whole = {TopicPartition(topic, number) for topic in topics for number in range(counts[topic])}
    return sorted(whole | set(partitions))


_Listed = dict[TopicPartition, ListedOffset]


async def _bounds(
    cluster: Cluster, partitions: Collection[TopicPartition], at_ms: int | None, timeout_s: float
) -> tuple[_Listed, _Listed, _Listed]:
    """Where the logs begin and end, and what they have of that time."""
    times = {} if at_ms is None else dict.fromkeys(partitions, at_ms)
    return (
        await list_offsets(cluster, dict.fromkeys(partitions, EARLIEST), timeout_s=timeout_s),
        await list_offsets(cluster, dict.fromkeys(partitions, LATEST), timeout_s=timeout_s),
        await list_offsets(cluster, times, timeout_s=timeout_s),
    )


async def _commit(cluster: Cluster, plan: ResetPlan, topology: ClusterMetadata, timeout_s: float) -> None:
    offsets = tuple(
        CommitOffset(*one.partition, one.new, topic_id=topology.topic_id(one.partition.topic))
        for one in plan.changes
        if one.new is not None
    )
    if not offsets:
        return
    what = f"setting offsets of group {plan.group_id!r}"
    codes = await commit_offsets(cluster, plan.group_id, offsets, timeout_s=timeout_s, what=what)
    if _LIVE & set(codes.values()):
        # Somebody joined since it was looked at.
        check_idle(await describe_group(cluster, plan.group_id, timeout_s=timeout_s), _WHAT)
    for one in plan.changes:
        code = codes.get(one.partition, ErrorCode.UNKNOWN_SERVER_ERROR)
        if one.new is not None and code:
            raise broker_error(code, f"{what}: {one.partition}")
