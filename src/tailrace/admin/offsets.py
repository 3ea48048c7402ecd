"""Committed offsets of groups, and offsets of logs.

A function sends one request per broker for all partitions, and repeats the request after transient errors. If a
requested partition is missing from a response, an error is raised.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Protocol, TypeVar

from tailrace.admin.groups import check_idle, describe_group
from tailrace.admin.requests import DEFAULT_TIMEOUT_S, ask_coordinator, ask_each
from tailrace.admin.topics import watched_topics
from tailrace.core.offset_map import DecodedMetadata, decode_metadata
from tailrace.error_codes import ErrorCode
from tailrace.errors import BrokerConnectionError, BrokerError, TopicRecreatedError, broker_error
from tailrace.net.broker import Broker
from tailrace.net.cluster import Cluster
from tailrace.net.topic_ids import partitions_of_recreated_topics
from tailrace.protocol.groups import (
    CommitOffset,
    OffsetCommitRequest,
    OffsetDeleteRequest,
    OffsetFetchPartition,
    OffsetFetchRequest,
    OffsetToDelete,
)
from tailrace.protocol.message import Request
from tailrace.protocol.records import (
    ListedOffset,
    ListOffsetsPartition,
    ListOffsetsRequest,
    OffsetForLeaderEpochPartition,
    OffsetForLeaderEpochRequest,
)
from tailrace.records import TopicPartition

__all__ = [
    "EARLIEST",
    "LATEST",
    "GroupOffset",
    "commit_offsets",
    "committed_offsets",
    "delete_offsets",
    "epoch_end_offsets",
    "list_offsets",
]

LATEST, EARLIEST = -1, -2
"""Values that ``list_offsets`` accepts instead of a timestamp, for the end offset and the first offset of the log."""

_FIRST_VERSION_WITH_IDS = 10
"""First version of OffsetCommit with topic ids."""
_SUBSCRIBED_CODES = {ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC, ErrorCode.NON_EMPTY_GROUP}
"""Error codes if live members are subscribed to the topics whose offsets are to be deleted."""


class _PartitionResult(Protocol):
    """Result for one partition in a response."""

    @property
    def topic(self) -> str: ...
    @property
    def partition(self) -> int: ...
    @property
    def error_code(self) -> int: ...


PartitionResultT = TypeVar("PartitionResultT", bound=_PartitionResult)
ResponseT = TypeVar("ResponseT")


@dataclass(frozen=True, slots=True)
class GroupOffset:
    """Committed offset of a group in a partition."""

    partition: TopicPartition
    offset: int
    leader_epoch: int | None = None
    """Leader epoch of the last record before the offset; None if the commit does not contain it."""
    metadata: str = ""
    """Metadata of the commit: the user's text, or tailrace's encoding of this text and an offset map."""

    @property
    def decoded_metadata(self) -> DecodedMetadata:
        """Parts of the metadata: the user's text, the name of the client that committed, and the offset map."""
        return decode_metadata(self.metadata, self.offset)

    @property
    def finished_beyond(self) -> int:
        """Number of finished offsets after the committed offset. Their records are not delivered again."""
        finished = self.decoded_metadata.offset_map
        return 0 if finished is None else finished.finished_count


async def committed_offsets(
    cluster: Cluster,
    group_id: str,
    partitions: Collection[TopicPartition] | None = None,
    *,
    stable: bool = False,
    timeout_s: float = DEFAULT_TIMEOUT_S,
) -> dict[TopicPartition, GroupOffset]:
    """Return the committed offsets of a group, in order of the partitions.

    A partition without a committed offset is missing in the result; for a group that does not exist, it is empty.

    Args:
        cluster: a connected cluster.
        group_id: group.
        partitions: partitions to look up; None for all partitions with a committed offset.
        stable: True to wait until no transaction with offsets of the group is open (KIP-447).
        timeout_s: maximum time in seconds.

    Raises:
        BrokerError: the principal may not describe the group, or the coordinator returned another error.
        BrokerConnectionError: no broker answered in time.
    """
    what = f"reading the committed offsets of group {group_id!r}"
    requested = None if partitions is None else tuple(OffsetFetchPartition(*one) for one in partitions)
    answer = await ask_coordinator(
        cluster,
        group_id,
        OffsetFetchRequest(group_id, requested, require_stable=stable),
        lambda answer: [answer.error_code, *(one.error_code for one in answer.partitions)],
        timeout_s=timeout_s,
        what=what,
    )
    if answer.error_code and answer.error_code != ErrorCode.GROUP_ID_NOT_FOUND:
        raise broker_error(answer.error_code, what)
    found = {TopicPartition(one.topic, one.partition): one for one in answer.partitions}
    for partition, one in found.items():
        if one.error_code:
            raise broker_error(one.error_code, f"{what}: {partition}")
    if partitions is not None and not answer.error_code and (missing := set(partitions) - found.keys()):
        raise broker_error(ErrorCode.UNKNOWN_SERVER_ERROR, f"{what}: {min(missing)} is missing from the response")
    return {
        partition: GroupOffset(
            partition, one.offset, one.leader_epoch if one.leader_epoch >= 0 else None, one.metadata or ""
        )
        for partition, one in sorted(found.items())
        if one.offset >= 0
    }


async def commit_offsets(
    cluster: Cluster, group_id: str, entries: Collection[CommitOffset], *, timeout_s: float, what: str
) -> dict[TopicPartition, int]:
    """Commit offsets of a group without joining it, and return the error code of each partition, 0 for success.

    An entry with a topic id is not committed if the topic of this id was deleted and recreated.

    Args:
        cluster: a connected cluster.
        group_id: group.
        entries: offsets to commit.
        timeout_s: maximum time in seconds.
        what: name of the operation for error messages.

    Raises:
        TopicRecreatedError: a topic was recreated; offsets of other topics may be committed nevertheless.
        BrokerError: the principal may not commit for the group, or a transient error lasted for ``timeout_s``.
        BrokerConnectionError: no broker answered in time.
    """
    known = {TopicPartition(one.topic, one.partition): one.topic_id for one in entries}
    names = {one.topic_id: one.topic for one in entries}
    request = OffsetCommitRequest(group_id, tuple(entries))

    async def check_topic_ids(coordinator: Broker) -> None:
        if await coordinator.version_for(request, timeout_s=timeout_s) < _FIRST_VERSION_WITH_IDS and (
            recreated := await partitions_of_recreated_topics(coordinator.send, known)
        ):
            raise TopicRecreatedError(recreated)

    answer = await ask_coordinator(
        cluster,
        group_id,
        request,
        lambda answer: [one.error_code for one in answer.partitions],
        timeout_s=timeout_s,
        what=what,
        check=check_topic_ids,
    )
    codes = {
        TopicPartition(one.topic or names.get(one.topic_id, ""), one.partition): one.error_code
        for one in answer.partitions
    }
    if recreated := [one for one, code in codes.items() if code == ErrorCode.UNKNOWN_TOPIC_ID]:
        raise TopicRecreatedError(recreated)
    return {one: codes.get(one, ErrorCode.UNKNOWN_SERVER_ERROR) for one in known}


async def list_offsets(
    cluster: Cluster, wanted: Mapping[TopicPartition, int], *, timeout_s: float = DEFAULT_TIMEOUT_S
) -> dict[TopicPartition, ListedOffset]:
    """Return for each partition the offset of the first record that is not older than a timestamp.

    Args:
        cluster: a connected cluster.
        wanted: timestamp of each partition, in milliseconds since 1970, or EARLIEST for the first offset of the log, or
            LATEST for the end offset. The end offset is the last stable offset if ``isolation_level`` of the cluster's
            options is "read_committed", and the high watermark otherwise.
        timeout_s: maximum time in seconds.

    Returns:
        Offsets by partition; the offset is -1 if all records are older than the timestamp.

    Raises:
        BrokerError: the principal may not describe a topic, or a partition had no leader for ``timeout_s``.
        BrokerConnectionError: a leader did not answer in time.
    """
    isolation_level = int(cluster.config.isolation_level == "read_committed")

    def request(partitions: Iterable[tuple[TopicPartition, int]]) -> ListOffsetsRequest:
        return ListOffsetsRequest(
            tuple(ListOffsetsPartition(*one, wanted[one], current_leader_epoch=epoch) for one, epoch in partitions),
            isolation_level=isolation_level,
        )

    what = "finding where logs begin and end"
    return await _ask_leaders(cluster, wanted, request, lambda one: one.partitions, timeout_s=timeout_s, what=what)


async def epoch_end_offsets(
    cluster: Cluster, epochs: Mapping[TopicPartition, int], *, timeout_s: float = DEFAULT_TIMEOUT_S
) -> dict[TopicPartition, int]:
    """Return the end offset of a leader epoch in each partition (KIP-101).

    The offset is -1 if the log has neither this epoch nor a later one.

    Args:
        cluster: a connected cluster.
        epochs: leader epoch of each partition.
        timeout_s: maximum time in seconds.

    Raises:
        BrokerError: the principal may not describe a topic, or a partition had no leader for ``timeout_s``.
        BrokerConnectionError: a leader did not answer in time.
    """

    def request(partitions: Iterable[tuple[TopicPartition, int]]) -> OffsetForLeaderEpochRequest:
        return OffsetForLeaderEpochRequest(
            tuple(
                OffsetForLeaderEpochPartition(*one, epochs[one], current_leader_epoch=epoch)
                for one, epoch in partitions
            )
        )

    what = "finding where leader epochs end"
    answers = await _ask_leaders(cluster, epochs, request, lambda one: one.partitions, timeout_s=timeout_s, what=what)
    return {partition: one.end_offset for partition, one in answers.items()}


async def _ask_leaders(  # noqa: PLR0913 - for two kinds of requests
    cluster: Cluster,
    partitions: Collection[TopicPartition],
    request: Callable[[Iterable[tuple[TopicPartition, int]]], Request[ResponseT]],
    results_in: Callable[[ResponseT], Iterable[PartitionResultT]],
    *,
    timeout_s: float,
    what: str,
) -> dict[TopicPartition, PartitionResultT]:
    """Send requests to the leaders of partitions until there is a result for each partition; return the results."""
    found: dict[TopicPartition, PartitionResultT] = {}

    async def ask() -> None:
        missing = [partition for partition in partitions if partition not in found]
        by_leader_id, failures = _by_leader(cluster, missing)
        requests = {leader_id: request(with_epochs) for leader_id, with_epochs in by_leader_id.items()}
        try:
            answers = await ask_each(cluster, requests)
        except BrokerConnectionError:
            await cluster.refresh()
            raise
        results = {
            TopicPartition(one.topic, one.partition): one for answer in answers.values() for one in results_in(answer)
        }
        for partition in missing:
            one = results.get(partition)
            if one is None or one.error_code:
                code = ErrorCode.LEADER_NOT_AVAILABLE if one is None else one.error_code
                failures.append(broker_error(code, f"{partition}: its leader did not return an offset"))
            else:
                found[partition] = one
        if failures:
            await cluster.refresh()
            # Raise an error that is not retriable if there is one, because it ends the retries.
            raise min(failures, key=lambda error: error.retriable)

    with watched_topics(cluster, {partition.topic for partition in partitions}):
        await cluster.retrying(ask, timeout_s=timeout_s, what=what)
    return found


def _by_leader(
    cluster: Cluster, partitions: Iterable[TopicPartition]
) -> tuple[dict[int, list[tuple[TopicPartition, int]]], list[BrokerError]]:
    """Return the partitions and leader epochs by leader, and an error for each partition without a leader."""
    by_leader_id: dict[int, list[tuple[TopicPartition, int]]] = {}
    leaderless = []
    for partition in partitions:
        leadership = cluster.topology.leader(partition)
        if leadership is None or leadership.leader_id < 0:
            leaderless.append(broker_error(ErrorCode.LEADER_NOT_AVAILABLE, f"{partition} has no leader"))
        else:
            by_leader_id.setdefault(leadership.leader_id, []).append((partition, leadership.epoch))
    return by_leader_id, leaderless


async def delete_offsets(
    cluster: Cluster, group_id: str, partitions: Collection[TopicPartition], *, timeout_s: float = DEFAULT_TIMEOUT_S
) -> None:
    """Delete the committed offsets of a group in ``partitions``, if there are any.

    The group may have live members if none of them is subscribed to a topic of these partitions.

    Raises:
        GroupNotEmptyError: live members are subscribed to a topic; the offsets of this topic were not deleted.
        UnknownGroupError: the group does not exist.
        BrokerError: the principal may not delete the offsets.
        BrokerConnectionError: no broker answered in time.
    """
    what = f"deleting committed offsets of group {group_id!r}"
    answer = await ask_coordinator(
        cluster,
        group_id,
        OffsetDeleteRequest(group_id, tuple(OffsetToDelete(*one) for one in partitions)),
        lambda answer: [answer.error_code, *(one.error_code for one in answer.partitions)],
        timeout_s=timeout_s,
        what=what,
    )
    codes = {TopicPartition(one.topic, one.partition): one.error_code for one in answer.partitions}
    failed = {answer.error_code, *codes.values()} - {ErrorCode.NONE}
    if failed & _SUBSCRIBED_CODES:
        check_idle(
            await describe_group(cluster, group_id, timeout_s=timeout_s), "deleting its offsets of topics they read"
        )
    if answer.error_code:
        raise broker_error(answer.error_code, what)
    for partition in partitions:
        code = codes.get(partition, ErrorCode.UNKNOWN_SERVER_ERROR)
        if code:
            raise broker_error(code, f"{what}: {partition}")
