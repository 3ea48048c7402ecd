"""Requests for offsets: OffsetFetch, ListOffsets, and topic ids of an OffsetCommit.

If a requested partition is absent from a response, an error is raised. A broker that is not the coordinator responds
with an error code and without partitions (OffsetFetch version 2, KIP-88). If the absent partitions counted as
partitions without a committed offset, the group's offsets would be reset.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import partial
from uuid import UUID

from msgspec.structs import replace

from tailrace.config import ConsumerConfig
from tailrace.core.cluster_metadata import ClusterMetadata
from tailrace.core.group_requests import REACTIONS, GroupReaction, GroupRequestKind
from tailrace.core.start_point import EARLIEST, LATEST
from tailrace.error_codes import ErrorCode
from tailrace.errors import BrokerConnectionError, BrokerError, broker_error
from tailrace.net.broker import Broker, Channel, ChannelKey
from tailrace.net.cluster import Cluster
from tailrace.net.topic_ids import partitions_of_recreated_topics
from tailrace.protocol.groups import (
    CommitOffset,
    CommittedOffset,
    OffsetCommitRequest,
    OffsetFetchPartition,
    OffsetFetchRequest,
    OffsetFetchResponse,
)
from tailrace.protocol.message import NO_TOPIC_ID
from tailrace.protocol.records import ListedOffset, ListOffsetsPartition, ListOffsetsRequest
from tailrace.records import OffsetAndMetadata, TopicPartition

__all__ = [
    "EARLIEST",
    "LATEST",
    "committed_offsets",
    "coordinator_timeout_s",
    "group_by_leader",
    "is_offset",
    "list_offsets",
    "partitions_of_outdated_topics",
    "with_topic_ids",
]

_FIRST_VERSION_WITH_TOPIC_IDS = 10
"""First version of OffsetCommit that contains topic ids."""


def is_offset(given: object) -> bool:
    """Return True if ``given`` is a valid offset: a non-negative integer of at most 63 bits."""
    return isinstance(given, int) and not isinstance(given, bool) and 0 <= given < 1 << 63


def coordinator_timeout_s(config: ConsumerConfig) -> float:
    """Return the time limit in seconds of one request to the coordinator.

    It is at most a third of ``session_timeout_ms``, so that another coordinator can be tried within the session if the
    coordinator hangs.
    """
    return min(config.request_timeout_ms, config.session_timeout_ms / 3) / 1000


def with_topic_ids(entries: Iterable[CommitOffset], topology: ClusterMetadata) -> list[CommitOffset]:
    """Return the entries; an entry without the topic id of its records gets the topic's current id."""
    return [
        one if one.topic_id != NO_TOPIC_ID else replace(one, topic_id=topology.topic_id(one.topic)) for one in entries
    ]


async def partitions_of_outdated_topics(
    coordinator: Broker,
    commit: OffsetCommitRequest,
    entries: Mapping[TopicPartition, CommitOffset],
    timeout_s: float,
) -> list[TopicPartition]:
    """Return the partitions of ``entries`` whose topic id differs from the topic's current id at the coordinator.

    The result is empty, without a request, if ``commit`` is sent with topic ids (from OffsetCommit version 10 on),
    because the coordinator then compares the ids itself.

    Raises:
        BrokerConnectionError: the coordinator does not answer in time.
    """
    if await coordinator.version_for(commit, timeout_s=timeout_s) >= _FIRST_VERSION_WITH_TOPIC_IDS:
        return []
    # Use the connection of the commit that follows, so that as little time as possible passes between the two requests.
    ask = partial(coordinator.send, key=ChannelKey(Channel.OFFSETS), timeout_s=timeout_s)
    return await partitions_of_recreated_topics(ask, {one: entry.topic_id for one, entry in entries.items()})


async def committed_offsets(
    cluster: Cluster, group_id: str, partitions: Iterable[TopicPartition]
) -> dict[TopicPartition, OffsetAndMetadata]:
    """Request the group's committed offsets, without retries; partitions without a commit are absent from the result.

    Raises:
        BrokerError: the coordinator refused the request, or cannot answer now (retriable).
        BrokerConnectionError: the coordinator does not answer.
    """
    wanted = list(partitions)
    if not wanted:
        return {}
    coordinator = await cluster.coordinator(group_id)
    topology = cluster.topology
    requested = tuple(OffsetFetchPartition(*one, topology.topic_id(one.topic)) for one in wanted)
    names = {one.topic_id: one.topic for one in requested}
    try:
        request = OffsetFetchRequest(group_id, requested)
        answer = await coordinator.send(request, timeout_s=coordinator_timeout_s(cluster.config))
        found = _checked(answer, wanted, names)
    except BrokerConnectionError as error:
        cluster.forget_coordinator(group_id, str(error))
        raise
    except BrokerError as error:
        if REACTIONS.reaction_to(error.code, GroupRequestKind.OFFSETS) is GroupReaction.FIND_COORDINATOR:
            cluster.forget_coordinator(group_id, error.name)
        if error.code == ErrorCode.UNKNOWN_TOPIC_ID:
            # The topic was recreated after the last metadata refresh, or the coordinator does not know it yet.
            await cluster.refresh()
        raise
    return {
        tp: OffsetAndMetadata(one.offset, one.metadata or "", one.leader_epoch if one.leader_epoch >= 0 else None)
        for tp, one in found.items()
        if one.offset >= 0
    }


def _checked(
    answer: OffsetFetchResponse, wanted: Iterable[TopicPartition], names: Mapping[UUID, str]
) -> dict[TopicPartition, CommittedOffset]:
    if answer.error_code:
        raise broker_error(answer.error_code, "the group's committed offsets could not be read")
    found = {TopicPartition(one.topic or names.get(one.topic_id, ""), one.partition): one for one in answer.partitions}
    for partition in wanted:
        if partition not in found:
            raise broker_error(ErrorCode.COORDINATOR_NOT_AVAILABLE, f"{partition} is missing in the committed offsets")
        if code := found[partition].error_code:
            raise broker_error(code, f"{partition}: its committed offset could not be read")
    return found


def group_by_leader(
    cluster: Cluster, partitions: Iterable[TopicPartition]
) -> tuple[dict[int, list[TopicPartition]], list[TopicPartition]]:
    """Return the partitions by the node id of their leader, and the partitions without a leader."""
    by_leader_id: dict[int, list[TopicPartition]] = {}
    leaderless = []
    for partition in partitions:
        leadership = cluster.topology.leader(partition)
        if leadership is None or leadership.leader_id < 0:
            leaderless.append(partition)
        else:
            by_leader_id.setdefault(leadership.leader_id, []).append(partition)
    return by_leader_id, leaderless


async def list_offsets(
    cluster: Cluster, leader_id: int, wanted: Mapping[TopicPartition, int], *, isolation_level: int = 0
) -> tuple[dict[TopicPartition, ListedOffset], dict[TopicPartition, BrokerError]]:
    """Request offsets from one leader, without retries; return the offsets, and the errors of the other partitions.

    Args:
        cluster: cluster of the leader.
        leader_id: node id of the leader.
        wanted: timestamp in milliseconds, EARLIEST or LATEST for each partition.
        isolation_level: 1 for read_committed, 0 for read_uncommitted.

    Raises:
        BrokerConnectionError: the leader does not answer.
    """
    found: dict[TopicPartition, ListedOffset] = {}
    refused: dict[TopicPartition, BrokerError] = {}
    answer = await cluster.broker(leader_id).send(_list_offsets_request(cluster.topology, wanted, isolation_level))
    answered = {TopicPartition(one.topic, one.partition): one for one in answer.partitions}
    for partition in wanted:
        one = answered.get(partition)
        code = ErrorCode.UNKNOWN_SERVER_ERROR if one is None else one.error_code
        if one is None or code:
            refused[partition] = broker_error(code, f"{partition}: its offsets could not be listed")
        else:
            found[partition] = one
    return found, refused


def _list_offsets_request(
    topology: ClusterMetadata, wanted: Mapping[TopicPartition, int], isolation_level: int
) -> ListOffsetsRequest:
    entries = []
    for partition, time in wanted.items():
        leadership = topology.leader(partition)
        epoch = leadership.epoch if leadership is not None else -1
        entries.append(ListOffsetsPartition(*partition, time, current_leader_epoch=epoch))
    return ListOffsetsRequest(tuple(entries), isolation_level=isolation_level)
