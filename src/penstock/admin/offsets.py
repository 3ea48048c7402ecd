"""What a group has committed, what logs hold, and both together removed or compared.

Rule of this file: one request a broker, however many partitions. What was asked for and is absent from an answer is
an error, never "there is none".
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass

from penstock.admin.asking import PATIENCE_S, ask_coordinator, ask_each
from penstock.admin.groups import check_idle, describe_group
from penstock.admin.topics import watched
from penstock.core.offset_map import Decoded, decode
from penstock.error_codes import ErrorCode
from penstock.errors import BrokerConnectionError, BrokerError, broker_error
from penstock.messages import (
    ListedOffset,
    ListOffsetsPartition,
    ListOffsetsRequest,
    OffsetDeleteRequest,
    OffsetFetchPartition,
    OffsetFetchRequest,
    OffsetToDelete,
)
from penstock.net.cluster import Cluster
from penstock.records import TopicPartition

__all__ = ["EARLIEST", "LATEST", "GroupOffset", "committed_offsets", "delete_offsets", "list_offsets"]

LATEST, EARLIEST = -1, -2
"""What to ask ``list_offsets`` for in place of a time."""

_LIVE = {ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC, ErrorCode.NON_EMPTY_GROUP}


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
    def said(self) -> Decoded:
        """What the text means: the user's part, who wrote it, what is finished beyond the offset."""
        return decode(self.metadata, self.offset)

    @property
    def finished_beyond(self) -> int:
        """How many records after the offset are finished and will not be handled again."""
        done = self.said.offset_map
        return 0 if done is None else done.limit - done.base - len(done.unfinished)


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


async def list_offsets(
    cluster: Cluster, wanted: Mapping[TopicPartition, int], *, timeout_s: float = PATIENCE_S
) -> dict[TopicPartition, ListedOffset]:
    """The first offset at or after a time, in milliseconds, or EARLIEST, or LATEST, of each partition that is wanted.

    Where no record is so late, the offset is -1. LATEST is the end for a reader with the cluster's ``isolation_level``.

    Raises:
        BrokerError: we may not look, or a partition has no leader, still not after ``timeout_s``.
        BrokerConnectionError: a leader does not answer in time.
    """
    found: dict[TopicPartition, ListedOffset] = {}
    isolation_level = int(cluster.config.isolation_level == "read_committed")

    async def ask() -> None:
        missing = [partition for partition in wanted if partition not in found]
        led, refused = _by_leader(cluster, missing)
        requests = {
            leader_id: ListOffsetsRequest(
                tuple(ListOffsetsPartition(*one, wanted[one], epoch) for one, epoch in those), isolation_level
            )
            for leader_id, those in led.items()
        }
        try:
            answers = await ask_each(cluster, requests)
        except BrokerConnectionError:
            await cluster.refresh()
            raise
        answered = {
            TopicPartition(one.topic, one.partition): one for said in answers.values() for one in said.partitions
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

    with watched(cluster, {partition.topic for partition in wanted}):
        await cluster.retrying(ask, timeout_s=timeout_s, what="finding where logs begin and end")
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
