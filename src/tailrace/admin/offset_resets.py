"""Reset of a group's committed offsets, as a plan that is executed only on request."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import NamedTuple, Self, TypeAlias, assert_never

from tailrace.admin.groups import (
    GroupDescription,
    GroupMemberDescription,
    check_idle,
    check_is_consumer_group,
    describe_group,
)
from tailrace.admin.offsets import EARLIEST, LATEST, GroupOffset, commit_offsets, committed_offsets, list_offsets
from tailrace.admin.requests import DEFAULT_TIMEOUT_S
from tailrace.admin.topics import partitions_of
from tailrace.core.cluster_metadata import ClusterMetadata
from tailrace.error_codes import ErrorCode
from tailrace.errors import (
    ConfigurationError,
    UnknownGroupError,
    UnknownPartitionError,
    UnknownTopicError,
    broker_error,
)
from tailrace.net.cluster import Cluster
from tailrace.protocol.groups import CommitOffset
from tailrace.records import TopicPartition

__all__ = [
    "LogOffsets",
    "OffsetChange",
    "ResetPlan",
    "ResetTarget",
    "ShiftBy",
    "ToEarliest",
    "ToLatest",
    "ToOffset",
    "ToTime",
    "plan_change",
    "reset_offsets",
]

_MEMBERSHIP_CODES = {
    ErrorCode.UNKNOWN_MEMBER_ID,
    ErrorCode.ILLEGAL_GENERATION,
    ErrorCode.REBALANCE_IN_PROGRESS,
    ErrorCode.STALE_MEMBER_EPOCH,
}
"""Error codes for a commit without a member id while the group has members."""
_OPERATION = "resetting its offsets"
_MAX = (1 << 63) - 1
_MISSING = "left out: the partition no longer exists; `tailrace offsets delete` deletes its offset"


@dataclass(frozen=True, slots=True)
class ToEarliest:
    """Reset to the first offset of the log."""


@dataclass(frozen=True, slots=True)
class ToLatest:
    """Reset to the end of the log, so that the group skips all records in the log."""


@dataclass(frozen=True, slots=True)
class ToOffset:
    """Reset to the same offset in all partitions."""

    offset: int

    def __post_init__(self) -> None:
        if not 0 <= self.offset <= _MAX:
            raise ConfigurationError(f"offset must be from 0 to {_MAX}, not {self.offset}")


@dataclass(frozen=True, slots=True)
class ToTime:
    """Reset to the first record that is not older than a timestamp."""

    timestamp_ms: int
    """Timestamp in milliseconds since 1970."""

    def __post_init__(self) -> None:
        if not 0 <= self.timestamp_ms <= _MAX:
            raise ConfigurationError(f"timestamp_ms must be from 0 to {_MAX}, not {self.timestamp_ms}")

    @classmethod
    def ago(cls, seconds: float, *, now: float) -> Self:
        """Return the target that is ``seconds`` before ``now``; ``now`` is in seconds since 1970.

        Raises:
            ConfigurationError: ``seconds`` is negative, or greater than ``now``.
        """
        if not 0 <= seconds <= now:
            raise ConfigurationError(f"a duration must be from 0 to the time since 1970, not {seconds:g} seconds")
        return cls(int((now - seconds) * 1000))


@dataclass(frozen=True, slots=True)
class ShiftBy:
    """Move the committed offsets by a number of offsets, backward if the number is negative."""

    offsets: int

    def __post_init__(self) -> None:
        if not self.offsets or abs(self.offsets) > _MAX:
            raise ConfigurationError(f"a shift must be a number of offsets, such as -100 or 100, not {self.offsets}")


ResetTarget: TypeAlias = ToEarliest | ToLatest | ToOffset | ToTime | ShiftBy


@dataclass(frozen=True, slots=True)
class OffsetChange:
    """Change of the committed offset of one partition."""

    partition: TopicPartition
    old: int | None
    """Committed offset before the reset; None if there is none."""
    new: int | None
    """New offset; None if the reset does not change the partition, for the reason in ``note``."""
    note: str = ""
    """Explanation, for example that the target is outside the log; may be empty."""


class LogOffsets(NamedTuple):
    """Offsets of the log of one partition."""

    begin: int
    end: int
    at_time: int = -1
    """Offset of the first record at or after the time of a ``ToTime``; -1 if there is none, and for other targets."""


@dataclass(frozen=True, slots=True)
class ResetPlan:
    """Changes of a planned or executed reset."""

    group_id: str
    target: ResetTarget
    changes: tuple[OffsetChange, ...]
    """Change of each partition, in order; includes partitions whose offset the reset does not change."""
    members: tuple[GroupMemberDescription, ...] = ()
    """Live members of the group; the plan can be executed only if the group has none."""
    is_new: bool = False
    """True if the group does not exist; executing the plan creates it."""
    is_executed: bool = False


async def reset_offsets(  # noqa: PLR0913 - options of a reset
    cluster: Cluster,
    group_id: str,
    target: ResetTarget,
    *,
    topics: Iterable[str] | None = None,
    partitions: Iterable[TopicPartition] | None = None,
    execute: bool = False,
    timeout_s: float = DEFAULT_TIMEOUT_S,
) -> ResetPlan:
    """Plan a reset of the committed offsets of a group to ``target``, and execute the plan with ``execute=True``.

    Without ``topics`` and ``partitions``, the reset includes all partitions of the topics for which the group has
    committed offsets; the offsets of partitions that no longer exist remain, with a note in the plan. The metadata of
    the previous commits, including offset maps, is discarded.

    Args:
        cluster: a connected cluster.
        group_id: group; ``execute`` creates it if it does not exist.
        target: new offsets.
        topics: topics whose partitions are all reset.
        partitions: further partitions to reset.
        execute: True to commit the new offsets.
        timeout_s: maximum time of each request, in seconds.

    Returns:
        The planned or executed changes.

    Raises:
        GroupNotEmptyError: ``execute`` is set, and the group has live members.
        NotAConsumerGroupError: the group is not a consumer group.
        UnknownTopicError: a topic or a partition does not exist.
        ConfigurationError: ``topics`` and ``partitions`` are None, and the group has no committed offsets.
        TopicRecreatedError: a topic was recreated after its offsets were looked up.
        BrokerError: the principal lacks a permission.
        BrokerConnectionError: no broker answered in time.
    """
    group = await _group_or_none(cluster, group_id, timeout_s)
    if execute and group is not None:
        check_idle(group, _OPERATION)
    committed = await committed_offsets(cluster, group_id, stable=True, timeout_s=timeout_s)
    if topics is None and partitions is None:
        if not committed:
            raise ConfigurationError(f"group {group_id!r} has no committed offsets - name the topics to reset")
        chosen, missing = await _all_partitions(cluster, committed, timeout_s)
    else:
        chosen, missing = await _chosen_partitions(cluster, list(topics or ()), list(partitions or ()), timeout_s), []
    topology = cluster.topology
    bounds = await _bounds(cluster, chosen, target, timeout_s)
    changes = [plan_change(one, target, committed.get(one), bounds[one]) for one in chosen]
    changes += [OffsetChange(one.partition, one.offset, None, _MISSING) for one in missing]
    changes.sort(key=lambda change: change.partition)
    plan = ResetPlan(group_id, target, tuple(changes), group.members if group is not None else (), is_new=group is None)
    if not execute:
        return plan
    await _commit(cluster, plan, topology, timeout_s)
    return replace(plan, is_executed=True)


async def _group_or_none(cluster: Cluster, group_id: str, timeout_s: float) -> GroupDescription | None:
    try:
        group = await describe_group(cluster, group_id, timeout_s=timeout_s)
    except UnknownGroupError:
        return None
    check_is_consumer_group(group)
    return group


async def _all_partitions(
    cluster: Cluster, committed: Mapping[TopicPartition, GroupOffset], timeout_s: float
) -> tuple[list[TopicPartition], list[GroupOffset]]:
    """Return the partitions of the topics with committed offsets, and the committed offsets of missing partitions."""
    counts = await partitions_of(cluster, {one.topic for one in committed}, timeout_s=timeout_s)
    missing = [offset for one, offset in committed.items() if one.partition >= counts.get(one.topic, 0)]
    return sorted(TopicPartition(topic, number) for topic, count in counts.items() for number in range(count)), missing


async def _chosen_partitions(
    cluster: Cluster, topics: Collection[str], partitions: Collection[TopicPartition], timeout_s: float
) -> list[TopicPartition]:
    names = {*topics, *(one.topic for one in partitions)}
    counts = await partitions_of(cluster, names, timeout_s=timeout_s)
    for name in sorted(names):
        if name not in counts:
            raise UnknownTopicError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"there is no topic {name!r}")
    for topic, number in partitions:
        if not 0 <= number < counts[topic]:
            existing = "only partition 0" if counts[topic] == 1 else f"partitions 0 to {counts[topic] - 1}"
            detail = f"there is no partition {number} of topic {topic!r}, which has {existing}"
            raise UnknownPartitionError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, detail)
    in_topics = {TopicPartition(topic, number) for topic in topics for number in range(counts[topic])}
    return sorted(in_topics | set(partitions))


async def _bounds(
    cluster: Cluster, partitions: Collection[TopicPartition], target: ResetTarget, timeout_s: float
) -> dict[TopicPartition, LogOffsets]:
    times = dict.fromkeys(partitions, target.timestamp_ms) if isinstance(target, ToTime) else {}
    begins = await list_offsets(cluster, dict.fromkeys(partitions, EARLIEST), timeout_s=timeout_s)
    ends = await list_offsets(cluster, dict.fromkeys(partitions, LATEST), timeout_s=timeout_s)
    at_time = await list_offsets(cluster, times, timeout_s=timeout_s)
    return {
        one: LogOffsets(begins[one].offset, ends[one].offset, at_time[one].offset if one in at_time else -1)
        for one in partitions
    }


def plan_change(
    partition: TopicPartition, target: ResetTarget, committed: GroupOffset | None, log: LogOffsets
) -> OffsetChange:
    """Return the change of one partition; ``committed`` is None without a committed offset.

    As in Kafka's tool, a target before the log is replaced by the first offset, and a target after the log by the end
    offset. ``OffsetChange.note`` then contains the original target.
    """
    begin, end = log.begin, log.end
    old = committed.offset if committed is not None else None
    match target:
        case ToEarliest():
            wanted = begin
        case ToLatest():
            wanted = end
        case ToOffset(offset):
            wanted = offset
        case ToTime():
            if log.at_time < 0:
                return _change(partition, committed, end, "no record is that late; the end of the log is used")
            wanted = log.at_time
        case ShiftBy(offsets):
            if old is None:
                return OffsetChange(partition, None, None, "left out: no committed offset to shift")
            wanted = old + offsets
        case _:
            assert_never(target)
    note = ""
    if wanted < begin:
        note = f"{wanted} is before the log; its first offset is used"
    elif wanted > end:
        note = f"{wanted} is after the log; its end is used"
    return _change(partition, committed, min(max(wanted, begin), end), note)


def _change(partition: TopicPartition, committed: GroupOffset | None, new: int, note: str) -> OffsetChange:
    """Return a change; add a note about finished records that will be handled again.

    These are the records from the new offset on that the discarded offset map lists as finished.
    """
    notes = [note] if note else []
    discarded = committed.decoded_metadata.offset_map if committed is not None else None
    if discarded is not None and (repeated := discarded.from_offset(max(new, discarded.base))) is not None:
        notes.append(f"finished records from offset {repeated.base} on are handled again: {repeated.finished_count}")
    return OffsetChange(partition, committed.offset if committed is not None else None, new, "; ".join(notes))


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
    if _MEMBERSHIP_CODES & set(codes.values()):
        # A member has joined since the group was described. Raise GroupNotEmptyError, which names the members.
        check_idle(await describe_group(cluster, plan.group_id, timeout_s=timeout_s), _OPERATION)
    for one in plan.changes:
        code = codes.get(one.partition, ErrorCode.UNKNOWN_SERVER_ERROR)
        if one.new is not None and code:
            raise broker_error(code, f"{what}: {one.partition}")
