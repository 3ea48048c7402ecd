"""Requests for offsets: OffsetFetch and OffsetCommit of a group, ListOffsets and OffsetForLeaderEpoch of logs.

Functions with a timeout repeat their requests after errors that may be temporary. If a requested partition is absent
from a response, an error is raised: a broker that is not the coordinator responds with an error code and without
partitions (OffsetFetch version 2, KIP-88), and if the absent partitions counted as partitions without a committed
offset, the group's offsets would be reset.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping
from functools import partial
from typing import Any
from uuid import UUID

import anyio
from msgspec.structs import replace

from tailrace.config.options import IsolationLevel
from tailrace.core.cluster_metadata import ClusterMetadata
from tailrace.core.group_requests import REACTIONS, GroupReaction, GroupRequestKind, Identity
from tailrace.core.start_point import EARLIEST, LATEST
from tailrace.error_codes import ErrorCode
from tailrace.errors import BrokerConnectionError, BrokerError, MalformedMessageError, TailraceError, broker_error
from tailrace.net.broker import Channel, ChannelKey
from tailrace.net.cluster import Cluster
from tailrace.protocol.groups import CommitOffset, OffsetCommitRequest, OffsetFetchPartition, OffsetFetchRequest
from tailrace.protocol.message import NO_TOPIC_ID, Request
from tailrace.protocol.metadata import MetadataRequest, MetadataResponse, MetadataTopic
from tailrace.protocol.records import (
    ISOLATION_LEVELS,
    ListedOffset,
    ListOffsetsPartition,
    ListOffsetsRequest,
    OffsetForLeaderEpochPartition,
    OffsetForLeaderEpochRequest,
)
from tailrace.records import OffsetAndMetadata, TopicPartition

__all__ = [
    "DEFAULT_TIMEOUT_S",
    "EARLIEST",
    "LATEST",
    "commit_once",
    "committed_offsets",
    "epoch_end_offsets",
    "group_by_leader",
    "list_offsets",
    "list_offsets_of_leader",
    "list_offsets_request",
    "partitions_of_recreated_topics",
    "stored_offsets",
    "stored_offsets_request",
]

DEFAULT_TIMEOUT_S = 30.0
"""Default time limit of an operation, in seconds."""
_FIRST_VERSION_WITH_TOPIC_IDS = 10
"""First version of OffsetCommit that contains topic ids."""
_REMOTE_SHARE = 0.9
"""Share of a request's time in which the broker may read remote storage."""
_NO_METADATA = ClusterMetadata()

# ---- committed offsets of a group ------------------------------------------------------------------------------------


async def committed_offsets(
    cluster: Cluster, group_id: str, partitions: Collection[TopicPartition], *, timeout_s: float
) -> dict[TopicPartition, OffsetAndMetadata]:
    """Return the committed offsets of a group, after open transactions with offsets of the group have ended (KIP-447).

    Partitions without a committed offset are absent from the result.

    Raises:
        BrokerError: the principal may not describe the group, or the coordinator returned another error.
        BrokerConnectionError: no coordinator answered in time.
    """
    topology = cluster.topology
    requested = tuple(OffsetFetchPartition(*one, topology.topic_id(one.topic)) for one in partitions)
    return await _fetch_committed(cluster, OffsetFetchRequest(group_id, requested), timeout_s) if requested else {}


async def stored_offsets(
    cluster: Cluster,
    group_id: str,
    partitions: Collection[TopicPartition] | None,
    *,
    stable: bool,
    timeout_s: float,
) -> dict[TopicPartition, OffsetAndMetadata]:
    """Return the committed offsets of any group, also of topics that were deleted; see ``committed_offsets``.

    Args:
        cluster: a connected cluster.
        group_id: group.
        partitions: partitions to look up; None for all partitions with a committed offset.
        stable: True to wait until no transaction with offsets of the group is open.
        timeout_s: maximum time in seconds.
    """
    return await _fetch_committed(cluster, stored_offsets_request(group_id, partitions, stable=stable), timeout_s)


def stored_offsets_request(
    group_id: str, partitions: Collection[TopicPartition] | None, *, stable: bool
) -> OffsetFetchRequest:
    """Return the request of ``stored_offsets``."""
    requested = None if partitions is None else tuple(OffsetFetchPartition(*one) for one in partitions)
    return OffsetFetchRequest(group_id, requested, require_stable=stable)


async def _fetch_committed(
    cluster: Cluster, request: OffsetFetchRequest, timeout_s: float
) -> dict[TopicPartition, OffsetAndMetadata]:
    what = f"reading the committed offsets of group {request.group_id!r}"
    return await cluster.retrying(lambda: _fetch_committed_once(cluster, request), timeout_s=timeout_s, what=what)


async def _fetch_committed_once(
    cluster: Cluster, request: OffsetFetchRequest
) -> dict[TopicPartition, OffsetAndMetadata]:
    group_id, requested = request.group_id, request.partitions
    coordinator = await cluster.coordinator(group_id)
    names = {one.topic_id: one.topic for one in requested or ()}
    try:
        answer = await coordinator.send(request, timeout_s=_coordinator_timeout_s(cluster))
        if answer.error_code:
            raise broker_error(answer.error_code, "the group's committed offsets could not be read")
        found = {_partition_of(one, names): one for one in answer.partitions}
        for one in () if requested is None else requested:
            if (partition := TopicPartition(one.topic, one.partition)) not in found:
                detail = f"{partition} is missing in the committed offsets"
                raise broker_error(ErrorCode.COORDINATOR_NOT_AVAILABLE, detail)
        for partition, result in found.items():
            if result.error_code:
                raise broker_error(result.error_code, f"{partition}: its committed offset could not be read")
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
        for tp, one in sorted(found.items())
        if one.offset >= 0
    }


async def commit_once(
    cluster: Cluster, group_id: str, entries: Collection[CommitOffset], identity: Identity | None = None
) -> dict[TopicPartition, int]:
    """Send one OffsetCommit, and return the error codes by partition, 0 for success.

    The code of a partition whose topic was recreated is UNKNOWN_TOPIC_ID. Brokers compare the topic ids from version 10
    on; before an older request, they are compared with the coordinator's metadata, and such partitions are left out.

    Args:
        cluster: a connected cluster.
        group_id: group.
        entries: offsets to commit.
        identity: identity of the member; by default, the commit is that of a consumer without membership.

    Raises:
        BrokerError: the group has no coordinator at present.
        BrokerConnectionError: the coordinator does not answer in time, or its response is malformed.
    """
    coordinator = await cluster.coordinator(group_id)
    timeout_s, identity = _coordinator_timeout_s(cluster), identity or Identity()
    request = OffsetCommitRequest(
        group_id,
        tuple(entries),
        generation_id=identity.generation,
        member_id=identity.member_id,
        group_instance_id=identity.instance_id,
    )
    codes: dict[TopicPartition, int] = {}
    try:
        if await coordinator.version_for(request, timeout_s=timeout_s) < _FIRST_VERSION_WITH_TOPIC_IDS:
            # Use the connection of the commit that follows, so that as little time as possible passes in between.
            ask = partial(coordinator.send, key=ChannelKey(Channel.OFFSETS), timeout_s=timeout_s)
            known = {TopicPartition(one.topic, one.partition): one.topic_id for one in entries}
            codes = dict.fromkeys(await partitions_of_recreated_topics(ask, known), int(ErrorCode.UNKNOWN_TOPIC_ID))
            current = (one for one in entries if TopicPartition(one.topic, one.partition) not in codes)
            request = replace(request, partitions=tuple(current))
        if request.partitions:
            names = {one.topic_id: one.topic for one in entries}
            answer = await coordinator.send(request, timeout_s=timeout_s)
            for one in answer.partitions:
                codes[_partition_of(one, names)] = one.error_code
    except (BrokerConnectionError, MalformedMessageError) as error:
        cluster.forget_coordinator(group_id, str(error))
        if isinstance(error, MalformedMessageError):
            raise BrokerConnectionError(str(error)) from error
        raise
    return codes


async def partitions_of_recreated_topics(
    send: Callable[[MetadataRequest], Awaitable[MetadataResponse]], known: Mapping[TopicPartition, UUID]
) -> list[TopicPartition]:
    """Request the topic ids from a broker, and return the partitions whose topic has another id than in ``known``.

    A partition is not returned if the broker does not have its topic, or if one of the two ids is unknown (all zeros).

    Args:
        send: function that sends a request to a broker and returns the response.
        known: topic id by partition.
    """
    expected = {one: topic_id for one, topic_id in known.items() if topic_id != NO_TOPIC_ID}
    if not expected:
        return []
    names = sorted({one.topic for one in expected})
    answer = await send(MetadataRequest(tuple(MetadataTopic(name) for name in names)))
    current = {one.name: one.topic_id for one in answer.topics if not one.error_code and one.topic_id != NO_TOPIC_ID}
    return [one for one, topic_id in expected.items() if current.get(one.topic, topic_id) != topic_id]


def _coordinator_timeout_s(cluster: Cluster) -> float:
    """Return the time limit in seconds of one request to the coordinator.

    It is at most a third of ``session_timeout_ms``, so that another coordinator can be tried within the session if the
    coordinator hangs.
    """
    return min(cluster.config.request_timeout_ms, cluster.config.session_timeout_ms / 3) / 1000


def _partition_of(result: Any, names: Mapping[UUID, str]) -> TopicPartition:  # noqa: ANN401 - of any response
    return TopicPartition(result.topic or names.get(result.topic_id, ""), result.partition)


# ---- offsets of logs -------------------------------------------------------------------------------------------------


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
    cluster: Cluster,
    wanted: Mapping[TopicPartition, int],
    *,
    isolation_level: IsolationLevel | None = None,
    timeout_s: float = DEFAULT_TIMEOUT_S,
) -> dict[TopicPartition, ListedOffset]:
    """Return for each partition the offset of the first record that is not older than a timestamp.

    Args:
        cluster: a connected cluster.
        wanted: timestamp of each partition, in milliseconds since 1970, or EARLIEST for the first offset of the log, or
            LATEST for the end offset.
        isolation_level: with "read_committed", a log ends at its last stable offset, with "read_uncommitted", at the
            high watermark; by default the level of the cluster's options.
        timeout_s: maximum time in seconds.

    Returns:
        Offsets by partition; the offset is -1 if all records are older than the timestamp.

    Raises:
        BrokerError: the principal may not describe a topic, or a partition had no leader for ``timeout_s``.
        BrokerConnectionError: a leader did not answer in time.
    """
    level = isolation_level or cluster.config.isolation_level
    timeout_of_request_s = min(timeout_s, cluster.config.request_timeout_ms / 1000)

    def request(partitions: Iterable[TopicPartition]) -> ListOffsetsRequest:
        some = {one: wanted[one] for one in partitions}
        return list_offsets_request(some, cluster.topology, level, timeout_s=timeout_of_request_s)

    return await _ask_leaders(cluster, wanted, request, timeout_s=timeout_s, what="listing offsets")


async def list_offsets_of_leader(
    cluster: Cluster,
    leader_id: int,
    wanted: Mapping[TopicPartition, int],
    *,
    isolation_level: IsolationLevel | None = None,
    timeout_s: float | None = None,
) -> tuple[dict[TopicPartition, ListedOffset], dict[TopicPartition, BrokerError]]:
    """Request offsets from one leader, without retries; return the offsets, and the errors of the other partitions.

    Args:
        cluster: cluster of the leader.
        leader_id: node id of the leader.
        wanted: timestamp in milliseconds, EARLIEST or LATEST for each partition.
        isolation_level: see ``list_offsets``.
        timeout_s: time to wait for the answer in seconds; by default ``request_timeout_ms``.
    """
    timeout_s = cluster.config.request_timeout_ms / 1000 if timeout_s is None else timeout_s
    level = isolation_level or cluster.config.isolation_level
    request = list_offsets_request(wanted, cluster.topology, level, timeout_s=timeout_s)
    return await _ask_leader(cluster, leader_id, request, wanted, timeout_s)


def list_offsets_request(
    wanted: Mapping[TopicPartition, int],
    topology: ClusterMetadata = _NO_METADATA,
    isolation_level: IsolationLevel = "read_uncommitted",
    *,
    timeout_s: float,
) -> ListOffsetsRequest:
    """Return the request for offsets at timestamps, with the leader epochs in ``topology``.

    Args:
        wanted: timestamp in milliseconds, EARLIEST or LATEST for each partition.
        topology: metadata of the cluster.
        isolation_level: see ``list_offsets``.
        timeout_s: time to wait for the answer in seconds. A broker that reads remote storage (KIP-1075) answers with
            an error shortly before, so that the connection is not closed for want of an answer.
    """
    entries = (
        ListOffsetsPartition(*one, timestamp, current_leader_epoch=_epoch_of(topology, one))
        for one, timestamp in wanted.items()
    )
    level, timeout_ms = ISOLATION_LEVELS[isolation_level], round(timeout_s * _REMOTE_SHARE * 1000)
    return ListOffsetsRequest(tuple(entries), isolation_level=level, timeout_ms=timeout_ms)


async def epoch_end_offsets(
    cluster: Cluster, epochs: Mapping[TopicPartition, int], *, timeout_s: float = DEFAULT_TIMEOUT_S
) -> dict[TopicPartition, int]:
    """Return the end offset of a leader epoch in each partition (KIP-101).

    The offset is -1 if the log has neither this epoch nor a later one.
    """

    def request(partitions: Iterable[TopicPartition]) -> OffsetForLeaderEpochRequest:
        entries = (
            OffsetForLeaderEpochPartition(*one, epochs[one], current_leader_epoch=_epoch_of(cluster.topology, one))
            for one in partitions
        )
        return OffsetForLeaderEpochRequest(tuple(entries))

    answers = await _ask_leaders(cluster, epochs, request, timeout_s=timeout_s, what="finding where leader epochs end")
    return {partition: one.end_offset for partition, one in answers.items()}


def _epoch_of(topology: ClusterMetadata, partition: TopicPartition) -> int:
    leadership = topology.leader(partition)
    return -1 if leadership is None else leadership.epoch


async def _ask_leaders(
    cluster: Cluster,
    partitions: Collection[TopicPartition],
    request: Callable[[Iterable[TopicPartition]], Request[Any]],
    *,
    timeout_s: float,
    what: str,
) -> dict[TopicPartition, Any]:
    """Send requests to the leaders of partitions until there is a result for each partition; return the results."""
    found: dict[TopicPartition, Any] = {}

    async def ask_missing() -> None:
        by_leader_id, leaderless = group_by_leader(cluster, [one for one in partitions if one not in found])
        failures: list[TailraceError] = []

        async def ask(leader_id: int, of_leader: list[TopicPartition]) -> None:
            try:
                answered, refused = await _ask_leader(cluster, leader_id, request(of_leader), of_leader)
            except TailraceError as error:
                failures.append(error)
            else:
                found.update(answered)
                failures.extend(refused.values())

        async with anyio.create_task_group() as tasks:
            for leader_id, of_leader in by_leader_id.items():
                tasks.start_soon(ask, leader_id, of_leader)
        if leaderless:
            names = ", ".join(sorted(map(str, leaderless)))
            failures.append(broker_error(ErrorCode.LEADER_NOT_AVAILABLE, f"{names}: there is no leader now"))
        if failures:
            final = [error for error in failures if isinstance(error, BrokerError) and not error.retriable]
            if not final:
                await cluster.refresh()
            raise (final or failures)[0]

    # The topics are watched until the end, because each attempt looks up the leaders again.
    with cluster.watching({partition.topic for partition in partitions}):
        await cluster.retrying(ask_missing, timeout_s=timeout_s, what=what)
    return {partition: found[partition] for partition in partitions}


async def _ask_leader(
    cluster: Cluster,
    leader_id: int,
    request: Request[Any],
    partitions: Iterable[TopicPartition],
    timeout_s: float | None = None,
) -> tuple[dict[TopicPartition, Any], dict[TopicPartition, BrokerError]]:
    """Return the results of one request by partition, and the errors of the other partitions."""
    found, refused = {}, {}
    answer = await cluster.broker(leader_id).send(request, timeout_s=timeout_s)
    answered = {TopicPartition(one.topic, one.partition): one for one in answer.partitions}
    for partition in partitions:
        one = answered.get(partition)
        code = ErrorCode.UNKNOWN_SERVER_ERROR if one is None else one.error_code
        if code:
            refused[partition] = broker_error(code, f"{partition}: its offsets could not be listed")
        else:
            found[partition] = one
    return found, refused
