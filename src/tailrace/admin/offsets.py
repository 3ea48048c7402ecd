"""What a group has committed, what logs hold, and both together removed or compared.

Rule of this file: one request a broker, however many partitions. What was asked for and is absent from an answer is
an error, never "there is none".
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Protocol, TypeVar

from tailrace.admin.groups import check_idle, describe_group
from tailrace.admin.requests import PATIENCE_S, ask_coordinator, ask_each
from tailrace.admin.topics import watched
from tailrace.core.offset_map import DecodedMetadata, decode_metadata
from tailrace.error_codes import ErrorCode
from tailrace.errors import BrokerConnectionError, BrokerError, TopicRecreatedError, broker_error
from tailrace.net.broker import Broker
from tailrace.net.cluster import Cluster
from tailrace.net.topic_ids import with_other_ids
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
"""What to ask ``list_offsets`` for in place of a time."""

_FIRST_BY_ID = 10
"""Version of OffsetCommit."""
_LIVE = {ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC, ErrorCode.NON_EMPTY_GROUP}


class _PartitionAnswer(Protocol):
    """Answer about one partition."""

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
    """What a group has committed of one partition."""

    partition: TopicPartition
    offset: int
    """The next record to read."""
    leader_epoch: int | None = None
    metadata: str = ""
    """The text beside it, as it is kept: the user's own, or an envelope of ours around it."""

    @property
    def said(self) -> DecodedMetadata:
        """What the text means: the user's part, who wrote it, what is finished beyond the offset."""
        return decode_metadata(self.metadata, self.offset)

    @property
    def finished_beyond(self) -> int:
        """How many records after the offset are finished and will not be handled again."""
        done = self.said.offset_map
        return 0 if done is None else done.limit - done.base - done.unfinished_count


async def committed_offsets(
    cluster: Cluster,
    group_id: str,
    partitions: Collection[TopicPartition] | None = None,
    *,
    stable: bool = False,
    timeout_s: float = PATIENCE_S,
) -> dict[TopicPartition, GroupOffset]:
    """What the group has committed, in order; a partition of which it has nothing is absent.

    Args:
        cluster: where; reached already.
        group_id: the group; one that does not exist has committed nothing.
        partitions: which; all there are when nothing is said.
        stable: whether to wait for transactions that are about to commit some (KIP-447).
        timeout_s: how long that may take.

    Raises:
        BrokerError: we may not look, or the coordinator cannot say.
        BrokerConnectionError: nobody answers in time.
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
        raise broker_error(ErrorCode.UNKNOWN_SERVER_ERROR, f"{what}: no word of {min(silent)}")
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
    """Commit offsets of a group as no member of it, and return the error code of each partition.

    An entry with a topic id is committed to that topic alone, never to one that was recreated under its name.

    Raises:
        TopicRecreatedError: a topic has another id now; entries of other topics may be committed.
        BrokerError: the coordinator may not be asked, or does not answer the question in time.
        BrokerConnectionError: the coordinator does not answer in time.
    """
    known = {TopicPartition(one.topic, one.partition): one.topic_id for one in entries}
    names = {one.topic_id: one.topic for one in entries}
    request = OffsetCommitRequest(group_id, tuple(entries))

    async def check(coordinator: Broker) -> None:
        if await coordinator.version_for(request, timeout_s=timeout_s) < _FIRST_BY_ID and (
            others := await with_other_ids(coordinator.send, known)
        ):
            raise TopicRecreatedError(others)

    answer = await ask_coordinator(
        cluster,
        group_id,
        request,
        lambda answer: [one.error_code for one in answer.partitions],
        timeout_s=timeout_s,
        what=what,
        check=check,
    )
    codes = {
        TopicPartition(one.topic or names.get(one.topic_id, ""), one.partition): one.error_code
        for one in answer.partitions
    }
    if recreated := [one for one, code in codes.items() if code == ErrorCode.UNKNOWN_TOPIC_ID]:
        raise TopicRecreatedError(recreated)
    return {one: codes.get(one, ErrorCode.UNKNOWN_SERVER_ERROR) for one in known}


async def list_offsets(
    cluster: Cluster, wanted: Mapping[TopicPartition, int], *, timeout_s: float = PATIENCE_S
) -> dict[TopicPartition, ListedOffset]:
    """The first offset at or after a time, in milliseconds, or EARLIEST, or LATEST, of each partition that is wanted.

    Where no record is so late, the offset is -1. LATEST is the end for a reader with the cluster's ``isolation_level``.

    Raises:
        BrokerError: we may not look, or a partition has no leader, still not after ``timeout_s``.
        BrokerConnectionError: a leader does not answer in time.
    """
    isolation_level = int(cluster.config.isolation_level == "read_committed")

    def request(led: Iterable[tuple[TopicPartition, int]]) -> ListOffsetsRequest:
        return ListOffsetsRequest(
            tuple(ListOffsetsPartition(*one, wanted[one], current_leader_epoch=epoch) for one, epoch in led),
            isolation_level=isolation_level,
        )

    what = "finding where logs begin and end"
    return await _ask_leaders(cluster, wanted, request, lambda one: one.partitions, timeout_s=timeout_s, what=what)


async def epoch_end_offsets(
    cluster: Cluster, epochs: Mapping[TopicPartition, int], *, timeout_s: float = PATIENCE_S
) -> dict[TopicPartition, int]:
    """Return where the log of each partition ends a leader epoch (KIP-101); -1 if it has neither it nor a later one.

    Raises:
        BrokerError: we may not look, or a partition has no leader, still not after ``timeout_s``.
        BrokerConnectionError: a leader does not answer in time.
    """

    def request(led: Iterable[tuple[TopicPartition, int]]) -> OffsetForLeaderEpochRequest:
        return OffsetForLeaderEpochRequest(
            tuple(OffsetForLeaderEpochPartition(*one, epochs[one], current_leader_epoch=epoch) for one, epoch in led)
        )

    what = "finding where leader epochs end"
    answers = await _ask_leaders(cluster, epochs, request, lambda one: one.partitions, timeout_s=timeout_s, what=what)
    return {partition: one.end_offset for partition, one in answers.items()}


async def _ask_leaders(  # noqa: PLR0913 - what, whom, and for how long
    cluster: Cluster,
    partitions: Collection[TopicPartition],
    request: Callable[[Iterable[tuple[TopicPartition, int]]], Request[ResponseT]],
    answers_in: Callable[[ResponseT], Iterable[AnswerT]],
    *,
    timeout_s: float,
    what: str,
) -> dict[TopicPartition, AnswerT]:
    """Return the answer about each partition, of the broker that leads it."""
    found: dict[TopicPartition, AnswerT] = {}

    async def ask() -> None:
        missing = [partition for partition in partitions if partition not in found]
        led, refused = _by_leader(cluster, missing)
        try:
            answers = await ask_each(cluster, {leader_id: request(those) for leader_id, those in led.items()})
        except BrokerConnectionError:
            await cluster.refresh()
            raise
        answered = {
            TopicPartition(one.topic, one.partition): one for said in answers.values() for one in answers_in(said)
        }
        for partition in missing:
            one = answered.get(partition)
            if one is None or one.error_code:
                code = ErrorCode.LEADER_NOT_AVAILABLE if one is None else one.error_code
                refused.append(broker_error(code, f"{partition}: its offsets could not be listed"))
            else:
                found[partition] = one
        if refused:
            await cluster.refresh()
            raise min(refused, key=lambda error: error.retriable)  # what will not heal is told at once

    with watched(cluster, {partition.topic for partition in partitions}):
        await cluster.retrying(ask, timeout_s=timeout_s, what=what)
    return found


def _by_leader(
    cluster: Cluster, partitions: Iterable[TopicPartition]
) -> tuple[dict[int, list[tuple[TopicPartition, int]]], list[BrokerError]]:
    """The partitions, each with its leader's epoch, by who leads them; and the error of those that nobody leads now."""
    led: dict[int, list[tuple[TopicPartition, int]]] = {}
    leaderless = []
    for partition in partitions:
        leadership = cluster.topology.leader(partition)
        if leadership is None or leadership.leader_id < 0:
            leaderless.append(broker_error(ErrorCode.LEADER_NOT_AVAILABLE, f"{partition}: nobody leads it"))
        else:
            led.setdefault(leadership.leader_id, []).append((partition, leadership.epoch))
    return led, leaderless


async def delete_offsets(
    cluster: Cluster, group_id: str, partitions: Collection[TopicPartition], *, timeout_s: float = PATIENCE_S
) -> None:
    """Forget what the group has committed of ``partitions``; where it has nothing, that is done already.

    Live members do not matter unless they read one of these topics.

    Raises:
        GroupNotEmptyError: live members read one of the topics; they are named, and nothing of that topic is removed.
        UnknownGroupError: there is no such group.
        BrokerError: we may not.
        BrokerConnectionError: nobody answers in time.
    """
    what = f"removing committed offsets of group {group_id!r}"
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
    if failed & _LIVE:
        check_idle(
            await describe_group(cluster, group_id, timeout_s=timeout_s), "removing its offsets of topics they read"
        )
    if answer.error_code:
        raise broker_error(answer.error_code, what)
    for partition in partitions:
        code = codes.get(partition, ErrorCode.UNKNOWN_SERVER_ERROR)
        if code:
            raise broker_error(code, f"{what}: {partition}")
