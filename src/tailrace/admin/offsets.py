"""Committed offsets of groups, and offsets of logs.

Each function sends one request per broker for all partitions, and repeats it after transient errors. A requested
partition that is missing from a response is an error. Timeouts are in seconds.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Protocol, TypeVar

from tailrace.admin.groups import check_idle, describe_group
from tailrace.admin.requests import DEFAULT_TIMEOUT_S, ask_coordinator, ask_each
from tailrace.admin.topics import watched
from tailrace.core.offset_map import DecodedMetadata, decode_metadata
from tailrace.error_codes import ErrorCode
from tailrace.errors import BrokerConnectionError, BrokerError, TopicRecreatedError, broker_error
from tailrace.net.broker import Broker
from tailrace.net.cluster import Cluster
from tailrace.net.topic_ids import partitions_of_recreated_topics
from tailrace.protocol.committed_offsets import (
    CommitOffset,
    OffsetCommitRequest,
    OffsetDeleteRequest,
    OffsetFetchPartition,
    OffsetFetchRequest,
    OffsetToDelete,
)
from tailrace.protocol.list_offsets import (
    ListedOffset,
    ListOffsetsPartition,
    ListOffsetsRequest,
    OffsetForLeaderEpochPartition,
    OffsetForLeaderEpochRequest,
)
from tailrace.protocol.message import Request
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
"""Values that ``list_offsets`` takes in place of a timestamp."""

_FIRST_VERSION_WITH_IDS = 10
"""First version of OffsetCommit with topic ids."""
_HAS_MEMBERS = {ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC, ErrorCode.NON_EMPTY_GROUP}


class _PartitionAnswer(Protocol):
    """Result for one partition in a response."""

    @property
    def topic(self) -> str: ...
    @property
    def partition(self) -> int: ...
    @property
    def error_code(self) -> int: ...


AnswerT = TypeVar("AnswerT", bound=_PartitionAnswer)
ResponseT = TypeVar("ResponseT")


@dataclass(frozen=True, slots=True)
class GroupOffset:
    """Committed offset of a group in a partition."""

    partition: TopicPartition
    offset: int
    leader_epoch: int | None = None
    metadata: str = ""
    """Metadata as stored: the user's text, or tailrace's envelope around it."""

    @property
    def decoded_metadata(self) -> DecodedMetadata:
        """Decoded metadata: the user's text, the writer, and the offset map."""
        return decode_metadata(self.metadata, self.offset)

    @property
    def finished_beyond(self) -> int:
        """Number of finished offsets after the committed offset; their records are not delivered again."""
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
    """Return the committed offsets of a group by partition, in order; partitions without a committed offset are absent.

    Args:
        cluster: a connected cluster.
        group_id: group; a group that does not exist has no committed offsets.
        partitions: partitions to look up; None for all with a committed offset.
        stable: True to wait until no transaction with offsets of the group is open (KIP-447).
        timeout_s: limit in seconds.

    Raises:
        BrokerError: no permission, or the coordinator cannot answer.
        BrokerConnectionError: no broker answered in time.
    """
    what = f"reading the committed offsets of group {group_id!r}"
    asked = None if partitions is None else tuple(OffsetFetchPartition(*one) for one in partitions)
    answer = await ask_coordinator(
        cluster,
        group_id,
        OffsetFetchRequest(group_id, asked, require_stable=stable),
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
    if partitions is not None and not answer.error_code and (silent := set(partitions) - found.keys()):
        raise broker_error(ErrorCode.UNKNOWN_SERVER_ERROR, f"{what}: {min(silent)} is missing from the response")
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
    """Commit offsets of a group without being a member, and return the error code of each partition, 0 for success.

    An entry with a topic id is not committed to a topic that was recreated with the same name.

    Raises:
        TopicRecreatedError: a topic has another id now; entries of other topics may be committed.
        BrokerError: no permission for the group, or the coordinator could not commit in time.
        BrokerConnectionError: no broker answered in time.
    """
    known = {TopicPartition(one.topic, one.partition): one.topic_id for one in entries}
    names = {one.topic_id: one.topic for one in entries}
    request = OffsetCommitRequest(group_id, tuple(entries))

    async def check_topic_ids(coordinator: Broker) -> None:
        if await coordinator.version_for(request, timeout_s=timeout_s) < _FIRST_VERSION_WITH_IDS and (
            others := await partitions_of_recreated_topics(coordinator.send, known)
        ):
            raise TopicRecreatedError(others)

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
    """Return for each partition the offset of the first record whose timestamp is at or after the wanted one.

    Args:
        cluster: a connected cluster.
        wanted: timestamp by partition, in milliseconds since the epoch; EARLIEST for the first offset of the log;
            LATEST for its end: the last stable offset with ``isolation_level="read_committed"``, else the high
            watermark.
        timeout_s: limit in seconds.

    Returns:
        Offsets by partition; the offset is -1 if no record has such a timestamp.

    Raises:
        BrokerError: no permission, or a partition had no leader for ``timeout_s``.
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
    """Return each partition's end offset of a leader epoch (KIP-101); -1 if neither it nor a later epoch exists.

    Raises:
        BrokerError: no permission, or a partition had no leader for ``timeout_s``.
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


async def _ask_leaders(  # noqa: PLR0913 - two kinds of requests share it
    cluster: Cluster,
    partitions: Collection[TopicPartition],
    request: Callable[[Iterable[tuple[TopicPartition, int]]], Request[ResponseT]],
    answers_in: Callable[[ResponseT], Iterable[AnswerT]],
    *,
    timeout_s: float,
    what: str,
) -> dict[TopicPartition, AnswerT]:
    """Return the results of all partitions, requested from their leaders until each has one."""
    found: dict[TopicPartition, AnswerT] = {}

    async def ask() -> None:
        missing = [partition for partition in partitions if partition not in found]
        by_leader_id, refused = _by_leader(cluster, missing)
        try:
            answers = await ask_each(cluster, {leader_id: request(those) for leader_id, those in by_leader_id.items()})
        except BrokerConnectionError:
            await cluster.refresh()
            raise
        answered = {
            TopicPartition(one.topic, one.partition): one for answer in answers.values() for one in answers_in(answer)
        }
        for partition in missing:
            one = answered.get(partition)
            if one is None or one.error_code:
                code = ErrorCode.LEADER_NOT_AVAILABLE if one is None else one.error_code
                refused.append(broker_error(code, f"{partition}: its leader did not return an offset"))
            else:
                found[partition] = one
        if refused:
            await cluster.refresh()
            raise min(refused, key=lambda error: error.retriable)  # An error that is not retriable ends the retries.

    with watched(cluster, {partition.topic for partition in partitions}):
        await cluster.retrying(ask, timeout_s=timeout_s, what=what)
    return found


def _by_leader(
    cluster: Cluster, partitions: Iterable[TopicPartition]
) -> tuple[dict[int, list[tuple[TopicPartition, int]]], list[BrokerError]]:
    """Return the partitions with their leader epochs by leader, and an error for each partition without a leader."""
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

    The group may have live members, as long as none of them is subscribed to one of these topics.

    Raises:
        GroupNotEmptyError: live members are subscribed to one of the topics; its offsets are kept.
        UnknownGroupError: the group does not exist.
        BrokerError: no permission.
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
    if failed & _HAS_MEMBERS:
        check_idle(
            await describe_group(cluster, group_id, timeout_s=timeout_s), "deleting its offsets of topics they read"
        )
    if answer.error_code:
        raise broker_error(answer.error_code, what)
    for partition in partitions:
        code = codes.get(partition, ErrorCode.UNKNOWN_SERVER_ERROR)
        if code:
            raise broker_error(code, f"{what}: {partition}")
