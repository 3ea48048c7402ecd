"""Facts about brokers, topics and groups, requested with time limits.

The state of a group is read once, or twice to see whether its offsets change. If a broker does not answer, the facts
that it would return are missing, and no exception is raised. No request changes the cluster.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from difflib import get_close_matches

import anyio

from tailrace.admin.diagnosis.broker_findings import BrokerFacts, ClockReading, ClusterFacts, VoterFacts
from tailrace.admin.diagnosis.group_findings import OLD, VERY_OLD, Commit, GroupFacts, MemberFacts, PartitionFacts
from tailrace.admin.diagnosis.topic_findings import SETTINGS, TopicFacts
from tailrace.admin.groups import GroupDescription, describe_group, list_groups
from tailrace.admin.offsets import EARLIEST, LATEST, GroupOffset, committed_offsets
from tailrace.admin.requests import ask_coordinator
from tailrace.config import ConsumerConfig, split_address
from tailrace.error_codes import ErrorCode, name_of
from tailrace.errors import (
    AuthenticationError,
    ConfigurationError,
    GroupAuthorizationFailedError,
    TailraceError,
    UnknownGroupError,
    UnsupportedVersionError,
    broker_error,
)
from tailrace.net.broker import Broker, Channel, ChannelKey
from tailrace.net.cluster import Cluster
from tailrace.net.offsets import group_by_leader, list_offsets_of_leader
from tailrace.protocol.admin import ConfigsToDescribe, DescribeConfigsRequest
from tailrace.protocol.groups import DescribeGroupsRequest
from tailrace.protocol.message import Request
from tailrace.protocol.metadata import (
    METADATA_LOG,
    OPERATIONS_NOT_REQUESTED,
    BrokerMetadata,
    DescribeClusterRequest,
    DescribeClusterResponse,
    DescribedQuorum,
    DescribeQuorumRequest,
    MetadataRequest,
    MetadataTopic,
)
from tailrace.protocol.transactions import transaction_version
from tailrace.records import TopicPartition

__all__ = [
    "GroupState",
    "ReachedCluster",
    "all_topics",
    "group_facts",
    "log_sizes",
    "named_topics",
    "reach_bootstrap",
    "reach_brokers",
    "read_group_state",
    "reason_and_advice",
    "topics_with_settings",
]

_MAX_CONCURRENT = 32
"""Maximum number of brokers to which connections are opened at the same time."""
_CLOCK_READINGS = 3
"""Number of times that the controller's clock is read; the most precise reading is used."""
_TOPIC, _BROKER = 2, 4
"""Types of resources in DescribeConfigs."""
_MAX_TOPICS = 500
"""Maximum number of topics in a request for settings, so that the response has at most about 1 MB."""
_OFFSETS_RETENTION = "offsets.retention.minutes"


def reason_and_advice(error: TailraceError, address: str = "") -> tuple[str, str]:
    """Split the message of an error into the reason and the advice after " - ".

    With ``address``, the reason begins with the address, which is not repeated if it is there already.
    """
    reason, _, advice = str(error).partition(" - ")
    return (reason if not address else f"{address}: {reason.removeprefix(f'{address}: ')}"), advice


# ---- brokers -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class ReachedCluster:
    """Connected cluster, with facts about its brokers and controllers."""

    cluster: Cluster
    facts: ClusterFacts
    node_ids: frozenset[int]
    """Node ids of the brokers that answered; the others get no further requests."""
    operations: int
    """Authorized operations on the cluster, as a bit field."""
    request_s: float
    """Maximum time of each further request, in seconds."""


async def reach_bootstrap(config: ConsumerConfig, timeout_s: float) -> list[BrokerFacts]:
    """Connect to all addresses of ``bootstrap_servers``, each within ``timeout_s``, and return the results."""
    nodes = [
        BrokerMetadata(-1 - number, *split_address(entry)) for number, entry in enumerate(config.bootstrap_servers)
    ]
    return await _reach_all([Broker.from_metadata(node, config) for node in nodes], timeout_s, closes=True)


async def reach_brokers(
    cluster: Cluster, bootstrap: Sequence[BrokerFacts], reach_s: float, request_s: float, now_ms: Callable[[], float]
) -> ReachedCluster:
    """Connect to each broker at its advertised address, and request facts about the controllers and their clock.

    Args:
        cluster: a connected cluster.
        bootstrap: facts about the addresses of ``bootstrap_servers``, to include in the result.
        reach_s: maximum time to connect and to get a first response, in seconds.
        request_s: maximum time of each later request, for the result.
        now_ms: function that returns this host's time, in milliseconds since 1970.
    """
    nodes = sorted(cluster.topology.brokers)
    brokers = await _reach_all([cluster.broker(node_id) for node_id in nodes], reach_s)
    reached = sorted((one for one in brokers if not one.failure), key=lambda one: one.round_trip_ms)
    facts = ClusterFacts(bootstrap, brokers)
    operations = OPERATIONS_NOT_REQUESTED
    if reached:
        nearest = cluster.broker(reached[0].node_id)
        described = await _describe_cluster(nearest, reach_s)
        if described is not None:
            operations = described.authorized_operations
            fenced = [BrokerFacts(one.broker_id, one.host, one.port) for one in described.brokers if one.is_fenced]
            facts = replace(facts, fenced=[one for one in fenced if one.node_id not in nodes])
        facts = await _with_quorum(facts, nearest, reach_s, now_ms)
    return ReachedCluster(cluster, facts, frozenset(one.node_id for one in reached), operations, request_s)


async def _reach_all(brokers: Sequence[Broker], timeout_s: float, *, closes: bool = False) -> list[BrokerFacts]:
    found: dict[int, BrokerFacts] = {}
    limiter = anyio.CapacityLimiter(_MAX_CONCURRENT)

    async def reach(broker: Broker) -> None:
        async with limiter:
            try:
                found[broker.id] = await _reach(broker, timeout_s)
            finally:
                if closes:
                    broker.close()

    async with anyio.create_task_group() as tasks:
        for broker in brokers:
            tasks.start_soon(reach, broker)
    return [found[broker.id] for broker in brokers]


async def _reach(broker: Broker, timeout_s: float) -> BrokerFacts:
    facts, loop = BrokerFacts(broker.id, broker.host, broker.port), asyncio.get_running_loop()
    try:
        async with asyncio.timeout(timeout_s):
            await broker.connect()
            connection = await broker.connection_for(ChannelKey(Channel.MAIN))
            began = loop.time()
            await connection.send(MetadataRequest(()), timeout_s)
    except TimeoutError:
        return replace(facts, failure=f"no answer within {timeout_s:.0f} s")
    except TailraceError as error:
        reason, advice = reason_and_advice(error, broker.address)
        # Advice about connections is left out, because the findings contain advice of their own.
        is_other = isinstance(error, AuthenticationError | UnsupportedVersionError | ConfigurationError)
        return replace(facts, failure=reason, hint=advice if is_other else "")
    versions = connection.broker_versions
    return replace(
        facts,
        round_trip_ms=(loop.time() - began) * 1000,
        supported=versions.supported,
        finalized=versions.finalized,
        transaction_version=transaction_version(versions),
        versions=versions,
    )


async def _describe_cluster(broker: Broker, timeout_s: float) -> DescribeClusterResponse | None:
    """Return the description of the cluster; None if the broker does not support the request, or refuses it."""
    request: Request[DescribeClusterResponse] = DescribeClusterRequest(
        include_cluster_authorized_operations=True, include_fenced_brokers=True
    )
    try:
        answer = await broker.send(request, timeout_s=timeout_s)
    except TailraceError:
        return None
    return None if answer.error_code else answer


async def _with_quorum(
    facts: ClusterFacts, broker: Broker, timeout_s: float, now_ms: Callable[[], float]
) -> ClusterFacts:
    """Return ``facts`` with the controllers and the clock of their leader, or with the reason why they are unknown."""
    loop = asyncio.get_running_loop()
    most_precise: ClockReading | None = None
    quorum: DescribedQuorum | None = None
    for _ in range(_CLOCK_READINGS):
        began, sent_ms = loop.time(), now_ms()
        try:
            answer = await broker.send(DescribeQuorumRequest((METADATA_LOG,)), timeout_s=timeout_s)
        except UnsupportedVersionError:
            return replace(facts, no_quorum="the brokers do not support DescribeQuorum (Kafka 3.3, without ZooKeeper)")
        except TailraceError as error:
            return replace(facts, no_quorum=reason_and_advice(error)[0], is_quorum_silent=True)
        half_ms = (loop.time() - began) * 500
        quorum = next(iter(answer.partitions), None)
        code = answer.error_code or (0 if quorum is None else quorum.error_code)
        if code == ErrorCode.CLUSTER_AUTHORIZATION_FAILED:
            return replace(facts, no_quorum="not authorized to Describe the cluster")
        if code or quorum is None:
            return replace(facts, no_quorum=f"DescribeQuorum failed ({name_of(code)})", is_quorum_silent=True)
        leader_ms = _leader_time_ms(quorum)
        if leader_ms is not None and (most_precise is None or half_ms < most_precise.error_ms):
            # The controller returns its time in whole milliseconds, which adds one millisecond to the error.
            most_precise = ClockReading(quorum.leader_id, leader_ms - (sent_ms + half_ms), half_ms + 1)
    no_quorum = "" if most_precise else "the controller does not return its time"
    return replace(facts, voters=_voters(quorum), clock=most_precise, no_quorum=no_quorum)


def _leader_time_ms(quorum: DescribedQuorum) -> int | None:
    """Return the leader's time at its response, in milliseconds since 1970; None if the response has no times."""
    leaders: Iterable[int] = (
        one.last_fetch_timestamp
        for one in quorum.voters
        if one.replica_id == quorum.leader_id and one.last_fetch_timestamp >= 0
    )
    return next(iter(leaders), None)


def _voters(quorum: DescribedQuorum | None) -> list[VoterFacts]:
    if quorum is None or (now_ms := _leader_time_ms(quorum)) is None:
        return []
    return [
        VoterFacts(one.replica_id, now_ms - one.last_caught_up_timestamp if one.last_caught_up_timestamp >= 0 else None)
        for one in quorum.voters
    ]


# ---- topics --------------------------------------------------------------------------------------------------------


async def all_topics(cluster: Cluster) -> dict[str, TopicFacts]:
    """Return all topics that the principal may describe, by name.

    Raises:
        BrokerError: a broker returned an error.
        BrokerConnectionError: no broker answered.
    """
    answer = await cluster.send_to_any(MetadataRequest(None))
    if answer.error_code:
        raise broker_error(answer.error_code, "listing topics")
    return {one.name: TopicFacts.of(one) for one in answer.topics if one.name is not None}


async def named_topics(cluster: Cluster, names: Iterable[str]) -> dict[str, TopicFacts]:
    """Return the topics ``names`` with their authorized operations; a topic that does not exist has an error code.

    Raises:
        BrokerError: a broker returned an error.
        BrokerConnectionError: no broker answered.
    """
    wanted = tuple(MetadataTopic(name) for name in sorted(names))
    if not wanted:
        return {}
    answer = await cluster.send_to_any(MetadataRequest(wanted, include_topic_authorized_operations=True))
    if answer.error_code:
        raise broker_error(answer.error_code, "describing topics")
    found = {one.name: TopicFacts.of(one) for one in answer.topics if one.name is not None}
    return {
        one.name: found.get(one.name, TopicFacts(one.name, ErrorCode.UNKNOWN_SERVER_ERROR))
        for one in wanted
        if one.name is not None
    }


async def topics_with_settings(cluster: Cluster, topics: Collection[TopicFacts]) -> list[TopicFacts]:
    """Return ``topics``, each with its settings, or with the reason why its settings are unknown."""
    existing = [one.name for one in topics if one.partitions]
    settings: dict[str, Mapping[str, str]] = {}
    reasons: dict[str, str] = {}
    for start in range(0, len(existing), _MAX_TOPICS):
        names = existing[start : start + _MAX_TOPICS]
        try:
            await _add_settings(cluster, names, settings, reasons)
        except TailraceError as error:
            reasons.update(dict.fromkeys(names, reason_and_advice(error)[0]))
    return [replace(one, settings=settings.get(one.name, {}), no_settings=reasons.get(one.name, "")) for one in topics]


async def _add_settings(
    cluster: Cluster, names: Iterable[str], settings: dict[str, Mapping[str, str]], reasons: dict[str, str]
) -> None:
    request = DescribeConfigsRequest(tuple(ConfigsToDescribe(_TOPIC, name, SETTINGS) for name in names))
    for one in (await cluster.send_to_any(request)).results:
        if one.error_code == ErrorCode.TOPIC_AUTHORIZATION_FAILED:
            reasons[one.resource_name] = "not authorized to DescribeConfigs"
        elif one.error_code:
            reasons[one.resource_name] = name_of(one.error_code)
        else:
            settings[one.resource_name] = {entry.name: entry.value for entry in one.configs if entry.value is not None}


# ---- groups --------------------------------------------------------------------------------------------------------


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
    read_at: float = 0.0
    """Time of the event loop when the state was read."""
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


async def read_group_state(reached: ReachedCluster, group_id: str, topics: Collection[str]) -> GroupState:
    """Return the current state of a group; ``topics`` are further topics that the app's handlers read."""
    cluster, facts, read_at = reached.cluster, GroupFacts(group_id), asyncio.get_running_loop().time()
    try:
        group = await describe_group(cluster, group_id, timeout_s=reached.request_s)
        committed = await committed_offsets(cluster, group_id, timeout_s=reached.request_s)
    except UnknownGroupError:
        return GroupState(replace(facts, is_missing=True))
    except GroupAuthorizationFailedError:
        return GroupState(replace(facts, is_forbidden=True))
    except TailraceError as error:
        return GroupState(replace(facts, failure=reason_and_advice(error)[0]))
    read = {one.topic for one in (*committed, *group.owners)} | {t for one in group.members for t in one.topics}
    with cluster.watching(read | set(topics)):
        await cluster.refresh()
        counts = cluster.topology.partition_counts(read | set(topics))
        partitions = [TopicPartition(name, number) for name, count in counts.items() for number in range(count)]
        begins = await _offsets(reached, dict.fromkeys(partitions, EARLIEST))
        ends = await _offsets(reached, dict.fromkeys(partitions, LATEST))
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
    return GroupState(facts, group, committed, begins, ends, sorted({*partitions, *committed}), read_at)


async def log_sizes(reached: ReachedCluster, topics: Mapping[str, int]) -> dict[str, int]:
    """Return the number of offsets in the logs of each topic; ``topics`` maps names to numbers of partitions."""
    wanted = [TopicPartition(name, number) for name, count in topics.items() for number in range(count)]
    with reached.cluster.watching(topics):
        await reached.cluster.refresh()
        begins = await _offsets(reached, dict.fromkeys(wanted, EARLIEST))
        ends = await _offsets(reached, dict.fromkeys(wanted, LATEST))
    sizes = dict.fromkeys(topics, 0)
    for one in ends.keys() & begins.keys():
        sizes[one.topic] += ends[one] - begins[one]
    return sizes


async def _offsets(reached: ReachedCluster, wanted: Mapping[TopicPartition, int]) -> dict[TopicPartition, int]:
    """Return the offsets at the timestamps ``wanted``; partitions whose leaders do not answer are missing."""
    found: dict[TopicPartition, int] = {}
    by_leader_id, _ = group_by_leader(reached.cluster, wanted)

    async def ask(node_id: int) -> None:
        with contextlib.suppress(TailraceError):
            listed, _ = await list_offsets_of_leader(
                reached.cluster,
                node_id,
                {one: wanted[one] for one in by_leader_id[node_id]},
                timeout_s=reached.request_s,
            )
            found.update({partition: one.offset for partition, one in listed.items()})

    async with anyio.create_task_group() as tasks:
        for node_id in by_leader_id.keys() & reached.node_ids:
            tasks.start_soon(ask, node_id)
    return found


async def group_facts(
    reached: ReachedCluster, looks: Sequence[GroupState], topics: Mapping[str, TopicFacts], now_ms: int
) -> GroupFacts:
    """Return the facts about a group.

    Args:
        reached: cluster.
        looks: state of the group, and its state after an interval if it was read again.
        topics: topics with their settings.
        now_ms: time of the brokers, in milliseconds since 1970.
    """
    first, last = looks[0], next(one for one in reversed(looks) if one.group is not None or one is looks[0])
    facts = first.facts
    if not first.has_coordinator:
        return facts
    if facts.is_missing:
        operations = await _operations(reached, facts.group_id)
        return replace(facts, similar=await _similar_group_id(reached, facts.group_id), operations=operations)
    if first.group is None or last.group is None:
        return facts
    problems: dict[str, str] = {}
    retention_ms = None
    try:
        retention_ms = await _offsets_retention_ms(reached, first.group.coordinator_id)
    except (TailraceError, KeyError) as error:
        problems[_OFFSETS_RETENTION] = reason_and_advice(error)[0] if isinstance(error, TailraceError) else "unknown"
    if without_end := sum(one not in last.ends for one in last.partitions):
        problems["lag"] = f"the leaders of {without_end:,} partitions did not answer"
    ages = await _ages(reached, last, topics, now_ms)
    return replace(
        facts,
        operations=await _operations(reached, facts.group_id),
        later_state=last.group.state if len(looks) > 1 else "",
        partitions=[_partition(one, first, last, ages, topics) for one in last.partitions],
        interval_ms=(looks[-1].read_at - first.read_at) * 1000,
        offsets_retention_ms=retention_ms,
        problems=problems,
    )


async def _offsets_retention_ms(reached: ReachedCluster, node_id: int) -> int:
    """Return for how long a coordinator keeps the offsets of a group without members.

    Raises:
        BrokerError: the principal is not authorized to DescribeConfigs on the cluster.
        BrokerConnectionError: the broker did not answer.
        KeyError: the response does not have the setting.
    """
    request = DescribeConfigsRequest((ConfigsToDescribe(_BROKER, str(node_id), (_OFFSETS_RETENTION,)),))
    (answer,) = (await reached.cluster.broker(node_id).send(request, timeout_s=reached.request_s)).results
    if answer.error_code:
        raise broker_error(answer.error_code, answer.error_message or "not described")
    values = {entry.name: entry.value for entry in answer.configs if entry.value is not None}
    return int(values[_OFFSETS_RETENTION]) * 60_000


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


async def _ages(
    reached: ReachedCluster, state: GroupState, topics: Mapping[str, TopicFacts], now_ms: int
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
    with reached.cluster.watching({one.topic for one in unread}):
        await reached.cluster.refresh()
        for share in (OLD, VERY_OLD):
            times = {one: now_ms - int(topics[one.topic].number("retention.ms") * share) for one in unread}
            found = await _offsets(reached, {one: max(at, 0) for one, at in times.items()})
            # The offset is -1 if all records are older.
            ages |= {one: share for one, offset in found.items() if offset < 0 or offset > unread[one]}
    return ages


async def _operations(reached: ReachedCluster, group_id: str) -> int:
    """Return the authorized operations on the group, which may not exist; OPERATIONS_NOT_REQUESTED if unknown."""
    try:
        answer = await ask_coordinator(
            reached.cluster,
            group_id,
            DescribeGroupsRequest((group_id,), include_authorized_operations=True),
            timeout_s=reached.request_s,
            what=f"reading the permissions on group {group_id!r}",
        )
    except TailraceError:
        return OPERATIONS_NOT_REQUESTED
    return next((one.authorized_operations for one in answer.groups), OPERATIONS_NOT_REQUESTED)


async def _similar_group_id(reached: ReachedCluster, group_id: str) -> str:
    try:
        listed = await list_groups(reached.cluster, timeout_s=reached.request_s)
    except TailraceError:
        return ""
    return next(iter(get_close_matches(group_id, [one.group_id for one in listed], n=1)), "")
