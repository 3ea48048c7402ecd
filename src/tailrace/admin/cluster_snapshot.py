"""Snapshot of all topics and consumer groups of a cluster, within a time limit.

The collection has several steps, each of which sends requests to all brokers at once: one or two requests per broker,
and in the step of the committed offsets one request per group. A failed request is not repeated, so that a broker that
does not answer takes no time from the others.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from typing import TypeVar

import anyio

from tailrace.admin.cluster_samples import ClusterSnapshot, GroupSnapshot, PartitionSnapshot
from tailrace.core.cluster_metadata import ClusterMetadata
from tailrace.error_codes import ErrorCode, name_of
from tailrace.errors import BrokerConnectionError, RequestTimedOutError, TailraceError
from tailrace.net.cluster import Cluster
from tailrace.net.offsets import EARLIEST, LATEST, list_offsets_request, stored_offsets_request
from tailrace.protocol.groups import (
    ConsumerGroupDescribeRequest,
    DescribedConsumerGroup,
    DescribedGroup,
    DescribeGroupsRequest,
    ListedGroup,
    ListGroupsRequest,
)
from tailrace.protocol.message import Request
from tailrace.records import TopicPartition

__all__ = ["cluster_snapshot"]

KeyT = TypeVar("KeyT")
ResponseT = TypeVar("ResponseT")
Accepts = Callable[[str], object]

_STEPS = 5
"""Number of steps after the metadata: list of groups, descriptions in two protocols, committed offsets, log bounds."""
_MAX_IN_FLIGHT = 100
"""Maximum number of requests in flight to one broker."""
_DESCRIBED_TYPES = {"classic", "consumer", ""}
_DELETED_CODES = {ErrorCode.GROUP_ID_NOT_FOUND, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION}
"""Error codes of a group or topic that was deleted during the collection."""


async def cluster_snapshot(cluster: Cluster, *, topics: Accepts, groups: Accepts, timeout_s: float) -> ClusterSnapshot:
    """Return the state of the accepted topics and consumer groups.

    If a broker did not return some parts, these are missing in the result, and its ``failures`` contain the reasons.
    Groups without members and committed offsets are left out.

    Args:
        cluster: cluster, which need not be connected.
        topics: function that returns a true value for the name of a topic to include.
        groups: function that returns a true value for the id of a group to include. Share groups and Kafka Streams
            groups are left out.
        timeout_s: maximum time of the whole collection, in seconds.

    Raises:
        AuthenticationError, ConfigurationError, UnsupportedVersionError: no broker can be used.
        BrokerConnectionError: no broker answered within half of ``timeout_s``.
    """
    deadline = asyncio.get_running_loop().time() + timeout_s
    try:
        async with asyncio.timeout(timeout_s / 2):
            with cluster.watching(None):
                await (cluster.refresh() if cluster.topology.brokers else cluster.bootstrap())
    except TimeoutError as error:
        addresses = ", ".join(cluster.config.bootstrap_servers)
        raise RequestTimedOutError(f"no broker of {addresses} answered within {timeout_s / 2:.1f} s") from error
    steps = _Steps(cluster, deadline)
    topology = cluster.topology
    leaderships = {
        TopicPartition(name, number): leadership
        for name, topic in topology.topics.items()
        if topics(name)
        for number, leadership in topic.partitions.items()
    }
    listed = await _list_groups(steps, topology.brokers, groups)
    members = await _count_members(steps, listed)
    committed = await _committed_offsets(steps, listed)
    # The end offsets are requested after the committed offsets. Otherwise, a lag could be negative.
    begins, ends = await _log_bounds(
        steps, topology, {one: leadership.leader_id for one, leadership in leaderships.items()}
    )
    return ClusterSnapshot(
        {node_id: f"{node.host}:{node.port}" for node_id, node in sorted(topology.brokers.items())},
        {
            one: PartitionSnapshot(
                leadership.leader_id, leadership.replicas, leadership.in_sync, begins.get(one), ends.get(one)
            )
            for one, leadership in leaderships.items()
        },
        {
            group_id: GroupSnapshot(members.get(group_id), committed.get(group_id))
            for group_id in listed
            if group_id in members or committed.get(group_id)
        },
        tuple(dict.fromkeys(steps.failures)),
    )


class _Steps:
    """Steps of a collection, each of which may take an equal part of the remaining time.

    If a broker cannot be reached, or answers no request of a step, it gets no requests in the following steps.
    """

    def __init__(self, cluster: Cluster, deadline: float) -> None:
        self._cluster, self._deadline, self._remaining_steps = cluster, deadline, _STEPS
        self._unreachable: set[int] = set()
        """Node ids of the brokers that get no more requests."""
        self.failures: list[str] = []
        """Reasons why parts of the snapshot are missing."""
        self.isolation_level = cluster.config.isolation_level

    async def send(self, requests: Mapping[KeyT, tuple[int, Request[ResponseT]]]) -> dict[KeyT, ResponseT]:
        """Send the requests of one step, and return the responses that came in time, by the keys of the requests.

        The values of ``requests`` are the broker's node id and the request.
        """
        limit_s = self.time_limit_s
        self._remaining_steps -= 1
        answers: dict[KeyT, ResponseT] = {}
        unanswered = {key: node_id for key, (node_id, _) in requests.items()}
        limiters = {node_id: anyio.CapacityLimiter(_MAX_IN_FLIGHT) for node_id in unanswered.values()}

        async def send_one(key: KeyT, node_id: int, request: Request[ResponseT]) -> None:
            async with limiters[node_id]:
                try:
                    if node_id not in self._unreachable:
                        answers[key] = await self._cluster.broker(node_id).send(request)
                except BrokerConnectionError as error:
                    self._give_up(node_id, str(error))
                except TailraceError as error:
                    self.failures.append(f"broker {node_id}: {error}")
            del unanswered[key]

        with anyio.move_on_after(limit_s):
            async with anyio.create_task_group() as tasks:
                for key, (node_id, request) in requests.items():
                    tasks.start_soon(send_one, key, node_id, request)
        reachable = {requests[key][0] for key in answers}
        for node_id, count in Counter(unanswered.values()).items():
            if node_id in reachable:
                self.failures.append(f"broker {node_id}: {count} requests were not answered within {limit_s:.1f} s")
            else:
                self._give_up(node_id, f"no answer within {limit_s:.1f} s")
        return answers

    @property
    def time_limit_s(self) -> float:
        """Time in seconds that the next step may take."""
        return max(0.0, self._deadline - asyncio.get_running_loop().time()) / self._remaining_steps

    def _give_up(self, node_id: int, reason: str) -> None:
        if node_id not in self._unreachable:
            self._unreachable.add(node_id)
            self.failures.append(f"broker {node_id}: {reason}")


async def _list_groups(steps: _Steps, node_ids: Iterable[int], accepts: Accepts) -> dict[str, tuple[int, ListedGroup]]:
    """Return the node id of the coordinator and the listing of each accepted group, by group id."""
    found: dict[str, tuple[int, ListedGroup]] = {}
    for node_id, answer in (await steps.send({one: (one, ListGroupsRequest()) for one in node_ids})).items():
        if answer.error_code:
            steps.failures.append(f"broker {node_id} did not list its groups: {name_of(answer.error_code)}")
        for group in answer.groups:
            if group.group_type.lower() in _DESCRIBED_TYPES and accepts(group.group_id):
                found[group.group_id] = node_id, group
    return found


async def _count_members(steps: _Steps, listed: Mapping[str, tuple[int, ListedGroup]]) -> dict[str, int]:
    """Return the number of members of each group; leave out groups that could not be described."""
    by_node: tuple[dict[int, list[str]], dict[int, list[str]]] = {}, {}
    for group_id, (node_id, group) in listed.items():
        by_node[group.group_type.lower() == "consumer"].setdefault(node_id, []).append(group_id)
    classic, consumer = by_node
    answers = await steps.send({one: (one, DescribeGroupsRequest(tuple(ids))) for one, ids in classic.items()})
    newer_answers = await steps.send(
        {one: (one, ConsumerGroupDescribeRequest(tuple(ids))) for one, ids in consumer.items()}
    )
    described: list[DescribedGroup | DescribedConsumerGroup] = [
        *(group for answer in answers.values() for group in answer.groups),
        *(group for answer in newer_answers.values() for group in answer.groups),
    ]
    for one in described:
        if one.error_code not in {ErrorCode.NONE, *_DELETED_CODES}:
            steps.failures.append(f"group {one.group_id!r} was not described: {name_of(one.error_code)}")
    return {one.group_id: len(one.members) for one in described if not one.error_code and one.group_state != "Dead"}


async def _committed_offsets(
    steps: _Steps, listed: Mapping[str, tuple[int, ListedGroup]]
) -> dict[str, dict[TopicPartition, int]]:
    """Return the committed offsets of the partitions of each group."""
    requests = {
        group_id: (node_id, stored_offsets_request(group_id, None, stable=False))
        for group_id, (node_id, _) in listed.items()
    }
    found = {}
    for group_id, answer in (await steps.send(requests)).items():
        codes = {answer.error_code, *(one.error_code for one in answer.partitions)} - {ErrorCode.NONE} - _DELETED_CODES
        if codes:
            names = ", ".join(sorted(map(name_of, codes)))
            steps.failures.append(f"the committed offsets of group {group_id!r} were not returned: {names}")
        found[group_id] = {
            TopicPartition(one.topic, one.partition): one.offset
            for one in answer.partitions
            if not one.error_code and one.offset >= 0
        }
    return found


async def _log_bounds(
    steps: _Steps, topology: ClusterMetadata, leaders: Mapping[TopicPartition, int]
) -> tuple[dict[TopicPartition, int], dict[TopicPartition, int]]:
    """Return the first offsets and the end offsets of partitions.

    Args:
        steps: steps of the collection.
        topology: metadata of the cluster.
        leaders: node id of each partition's leader; -1 if there is no leader.
    """
    by_leader: dict[int, list[TopicPartition]] = {}
    for partition, leader_id in leaders.items():
        if leader_id < 0:
            steps.failures.append(f"{partition} has no leader")
        else:
            by_leader.setdefault(leader_id, []).append(partition)
    answers = await steps.send(
        {
            (leader_id, timestamp): (
                leader_id,
                list_offsets_request(
                    dict.fromkeys(partitions, timestamp),
                    topology,
                    steps.isolation_level,
                    timeout_s=steps.time_limit_s,
                ),
            )
            for leader_id, partitions in by_leader.items()
            for timestamp in (EARLIEST, LATEST)
        }
    )
    found: dict[int, dict[TopicPartition, int]] = {EARLIEST: {}, LATEST: {}}
    for (_, timestamp), answer in answers.items():
        for one in answer.partitions:
            partition = TopicPartition(one.topic, one.partition)
            if not one.error_code:
                found[timestamp][partition] = one.offset
            elif one.error_code not in _DELETED_CODES:
                steps.failures.append(f"the offsets of {partition} were not returned: {name_of(one.error_code)}")
    return found[EARLIEST], found[LATEST]
