"""Facts about groups.

The state of a group is read once, or twice to see whether its offsets change. If a leader or coordinator does not
answer, the facts that it would return are missing, and no exception is raised.
"""

from __future__ import annotations

import contextlib
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from difflib import get_close_matches

import anyio

from tailrace.admin.descriptions import GroupDescription
from tailrace.admin.diagnosis.brokers import reason_and_advice
from tailrace.admin.diagnosis.group_findings import OLD, VERY_OLD, Commit, GroupFacts, MemberFacts, PartitionFacts
from tailrace.admin.diagnosis.topic_findings import TopicFacts
from tailrace.admin.diagnosis.topics import broker_settings
from tailrace.admin.groups import describe_group, list_groups
from tailrace.admin.offsets import EARLIEST, LATEST, GroupOffset, committed_offsets
from tailrace.admin.requests import ask_coordinator
from tailrace.admin.topics import watched_topics
from tailrace.errors import GroupAuthorizationFailedError, NotAConsumerGroupError, TailraceError, UnknownGroupError
from tailrace.net.cluster import Cluster
from tailrace.net.offsets import group_by_leader, list_offsets_of_leader
from tailrace.protocol.groups import DescribeGroupsRequest
from tailrace.protocol.metadata import OPERATIONS_NOT_REQUESTED
from tailrace.records import TopicPartition

__all__ = ["GroupState", "group_facts", "log_sizes", "read_group_state"]

_OFFSETS_RETENTION = "offsets.retention.minutes"


@dataclass(frozen=True, slots=True)
class GroupState:
    """State of a group at one time."""

    facts: GroupFacts
    group: GroupDescription | None = None
    """Description of the group; None if the group does not exist or could not be described."""
    committed: Mapping[TopicPartition, GroupOffset] = field(default_factory=dict)
    begins: Mapping[TopicPartition, int] = field(default_factory=dict)
    """First offsets of the logs whose leaders answered."""
    ends: Mapping[TopicPartition, int] = field(default_factory=dict)
    """End offsets of the logs whose leaders answered."""
    partitions: Collection[TopicPartition] = ()
    """Partitions of the topics that the group reads or has committed offsets for."""
    has_coordinator: bool = True
    """False if the cluster has never had a group: the lookup of a coordinator would create ``__consumer_offsets``."""

    @property
    def topics(self) -> frozenset[str]:
        """Topics that the group reads or has committed offsets for."""
        return frozenset(one.topic for one in self.partitions)

    @property
    def may_stall(self) -> bool:
        """True if a member has records to read, so that a second reading of the state can show progress."""
        if self.group is None:
            return False
        return any(
            self.ends.get(one, 0) > (found.offset if (found := self.committed.get(one)) else self.begins.get(one, 0))
            for one in self.group.owners
        )


async def read_group_state(
    cluster: Cluster, group_id: str, topics: Collection[str], node_ids: Collection[int], timeout_s: float
) -> GroupState:
    """Return the current state of a group.

    Args:
        cluster: a connected cluster.
        group_id: group.
        topics: further topics to include, because the app's handlers read them.
        node_ids: node ids of the brokers that answer; the others get no requests.
        timeout_s: maximum time of each request, in seconds.
    """
    facts = GroupFacts(group_id)
    try:
        group = await describe_group(cluster, group_id, timeout_s=timeout_s)
        committed = await committed_offsets(cluster, group_id, timeout_s=timeout_s)
    except UnknownGroupError:
        return GroupState(replace(facts, is_missing=True))
    except GroupAuthorizationFailedError:
        return GroupState(replace(facts, is_forbidden=True))
    except NotAConsumerGroupError as error:
        return GroupState(replace(facts, failure=reason_and_advice(error)[0]))
    except TailraceError as error:
        return GroupState(replace(facts, failure=reason_and_advice(error)[0]))
    read = {one.topic for one in (*committed, *group.owners)} | {t for one in group.members for t in one.topics}
    with watched_topics(cluster, read | set(topics)):
        await cluster.refresh()
        counts = cluster.topology.partition_counts(read | set(topics))
        partitions = [TopicPartition(name, number) for name, count in counts.items() for number in range(count)]
        begins = await _offsets(cluster, dict.fromkeys(partitions, EARLIEST), node_ids, timeout_s)
        ends = await _offsets(cluster, dict.fromkeys(partitions, LATEST), node_ids, timeout_s)
    facts = replace(
        facts,
        group_type=group.group_type,
        protocol_type=group.protocol_type,
        state=group.state,
        assignor=group.assignor,
        coordinator_id=group.coordinator_id,
        members=[MemberFacts(one.member_id, str(one), one.topics, len(one.partitions)) for one in group.members],
        has_pattern=any(one.pattern for one in group.members),
    )
    return GroupState(facts, group, committed, begins, ends, sorted({*partitions, *committed}))


async def log_sizes(
    cluster: Cluster, topics: Mapping[str, int], node_ids: Collection[int], timeout_s: float
) -> dict[str, int]:
    """Return the number of offsets in the logs of each topic; ``topics`` maps names to numbers of partitions."""
    wanted = [TopicPartition(name, number) for name, count in topics.items() for number in range(count)]
    with watched_topics(cluster, topics):
        await cluster.refresh()
        begins = await _offsets(cluster, dict.fromkeys(wanted, EARLIEST), node_ids, timeout_s)
        ends = await _offsets(cluster, dict.fromkeys(wanted, LATEST), node_ids, timeout_s)
    sizes = dict.fromkeys(topics, 0)
    for one in ends.keys() & begins.keys():
        sizes[one.topic] += ends[one] - begins[one]
    return sizes


async def _offsets(
    cluster: Cluster, wanted: Mapping[TopicPartition, int], node_ids: Collection[int], timeout_s: float
) -> dict[TopicPartition, int]:
    """Return the offsets at the timestamps ``wanted``; partitions whose leaders do not answer are missing."""
    found: dict[TopicPartition, int] = {}
    isolation_level = int(cluster.config.isolation_level == "read_committed")
    by_leader_id, _ = group_by_leader(cluster, wanted)

    async def ask(node_id: int, partitions: list[TopicPartition]) -> None:
        with contextlib.suppress(TailraceError):
            listed, _ = await list_offsets_of_leader(
                cluster,
                node_id,
                {one: wanted[one] for one in partitions},
                isolation_level=isolation_level,
                timeout_s=timeout_s,
            )
            found.update({partition: one.offset for partition, one in listed.items()})

    async with anyio.create_task_group() as tasks:
        for node_id in by_leader_id.keys() & set(node_ids):
            tasks.start_soon(ask, node_id, by_leader_id[node_id])
    return found


async def group_facts(  # noqa: PLR0913 - results of earlier steps
    cluster: Cluster,
    first: GroupState,
    second: GroupState | None,
    topics: Mapping[str, TopicFacts],
    *,
    interval_ms: float,
    now_ms: int,
    node_ids: Collection[int],
    timeout_s: float,
) -> GroupFacts:
    """Return the facts about a group.

    Args:
        cluster: a connected cluster.
        first: state of the group.
        second: state of the group after ``interval_ms``; None if it was not read again.
        topics: topics with their settings.
        interval_ms: time between the two states, in milliseconds.
        now_ms: time of the brokers, in milliseconds since 1970.
        node_ids: node ids of the brokers that answer; the others get no requests.
        timeout_s: maximum time of each request, in seconds.
    """
    facts = first.facts
    if not first.has_coordinator:
        return facts
    if facts.is_missing:
        operations = await _operations(cluster, facts.group_id, timeout_s)
        return replace(
            facts, similar=await _similar_group_id(cluster, facts.group_id, timeout_s), operations=operations
        )
    if facts.failure or facts.is_forbidden or first.group is None:
        return facts
    last = first if second is None or second.group is None else second
    assert last.group is not None
    ages = await _ages(cluster, last, topics, now_ms, node_ids, timeout_s)
    problems: dict[str, str] = {}
    retention_ms = None
    try:
        values = await broker_settings(cluster, first.group.coordinator_id, (_OFFSETS_RETENTION,), timeout_s)
        retention_ms = int(values[_OFFSETS_RETENTION]) * 60_000
    except (TailraceError, KeyError) as error:
        problems[_OFFSETS_RETENTION] = reason_and_advice(error)[0] if isinstance(error, TailraceError) else "unknown"
    without_end = sum(one not in last.ends for one in last.partitions)
    if without_end:
        problems["lag"] = f"the leaders of {without_end:,} partitions did not answer"
    return replace(
        facts,
        operations=await _operations(cluster, facts.group_id, timeout_s),
        later_state="" if second is None else last.group.state,
        partitions=[_partition(one, first, last, ages, topics) for one in last.partitions],
        interval_ms=0.0 if second is None else interval_ms,
        offsets_retention_ms=retention_ms,
        problems=problems,
    )


def _partition(
    one: TopicPartition,
    first: GroupState,
    last: GroupState,
    ages: Mapping[TopicPartition, float],
    topics: Mapping[str, TopicFacts],
) -> PartitionFacts:
    before, after = _owner(first, one), _owner(last, one)
    topic = topics.get(one.topic, TopicFacts(one.topic))
    return PartitionFacts(
        one,
        _commit(first.committed.get(one)),
        last.begins.get(one),
        first.ends.get(one),
        _commit(last.committed.get(one)),
        last.ends.get(one),
        after,
        before == after,
        ages.get(one, 0.0),
        topic.number("retention.ms"),
        topic.number("retention.bytes"),
    )


def _owner(state: GroupState, one: TopicPartition) -> str:
    member = None if state.group is None else state.group.owners.get(one)
    return "" if member is None else member.member_id


def _commit(committed: GroupOffset | None) -> Commit | None:
    return None if committed is None else Commit(committed.offset, committed.metadata)


async def _ages(  # noqa: PLR0913, PLR0917 - results of earlier steps
    cluster: Cluster,
    state: GroupState,
    topics: Mapping[str, TopicFacts],
    now_ms: int,
    node_ids: Collection[int],
    timeout_s: float,
) -> dict[TopicPartition, float]:
    """Return the partitions whose oldest unread record is old, with ``OLD`` or ``VERY_OLD``.

    ``OLD`` and ``VERY_OLD`` are fractions of the topic's ``retention.ms``: the record is at least that old.
    """
    unread = {
        one: committed.offset
        for one, committed in state.committed.items()
        if state.ends.get(one, 0) > committed.offset
        if (topic := topics.get(one.topic)) is not None
        if topic.settings and topic.is_deleted_by_age and topic.number("retention.ms") > 0
    }
    ages: dict[TopicPartition, float] = {}
    with watched_topics(cluster, {one.topic for one in unread}):
        await cluster.refresh()
        for share in (OLD, VERY_OLD):
            times = {one: now_ms - int(topics[one.topic].number("retention.ms") * share) for one in unread}
            found = await _offsets(cluster, {one: max(at, 0) for one, at in times.items()}, node_ids, timeout_s)
            # The offset is -1 if all records are older.
            ages |= {one: share for one, offset in found.items() if offset < 0 or offset > unread[one]}
    return ages


async def _operations(cluster: Cluster, group_id: str, timeout_s: float) -> int:
    """Return the authorized operations on the group, which may not exist; OPERATIONS_NOT_REQUESTED if unknown."""
    try:
        answer = await ask_coordinator(
            cluster,
            group_id,
            DescribeGroupsRequest((group_id,), include_authorized_operations=True),
            lambda answer: [one.error_code for one in answer.groups],
            timeout_s=timeout_s,
            what=f"reading the permissions on group {group_id!r}",
        )
    except TailraceError:
        return OPERATIONS_NOT_REQUESTED
    return next((one.authorized_operations for one in answer.groups), OPERATIONS_NOT_REQUESTED)


async def _similar_group_id(cluster: Cluster, group_id: str, timeout_s: float) -> str:
    try:
        listed = await list_groups(cluster, timeout_s=timeout_s)
    except TailraceError:
        return ""
    return next(iter(get_close_matches(group_id, [one.group_id for one in listed], n=1)), "")
