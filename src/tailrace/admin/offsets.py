"""Committed offsets of any group, with their metadata: read, committed without membership, and deleted."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from tailrace.admin.groups import check_idle, describe_group
from tailrace.admin.requests import DEFAULT_TIMEOUT_S, ask_coordinator, check_codes
from tailrace.core.offset_map import DecodedMetadata, decode_metadata
from tailrace.error_codes import ErrorCode
from tailrace.errors import ConfigurationError, TopicRecreatedError, UnknownGroupError, broker_error
from tailrace.net import offsets
from tailrace.net.cluster import Cluster
from tailrace.net.offsets import EARLIEST, LATEST, epoch_end_offsets, list_offsets
from tailrace.protocol.groups import CommitOffset, OffsetDeleteRequest, OffsetToDelete
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

_SUBSCRIBED_CODES = {ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC, ErrorCode.NON_EMPTY_GROUP}
"""Error codes if live members are subscribed to the topics whose offsets are to be deleted."""


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
    if not group_id:
        raise ConfigurationError("group_id must not be empty - pass the id of the group")
    try:
        found = await offsets.stored_offsets(cluster, group_id, partitions, stable=stable, timeout_s=timeout_s)
    except UnknownGroupError:
        return {}
    return {
        partition: GroupOffset(partition, one.offset, one.leader_epoch, one.metadata)
        for partition, one in found.items()
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

    async def commit() -> dict[TopicPartition, int]:
        codes = await offsets.commit_once(cluster, group_id, entries)
        check_codes(cluster, group_id, codes.values(), what)
        return codes

    codes = await cluster.retrying(commit, timeout_s=timeout_s, what=what)
    if recreated := [one for one, code in codes.items() if code == ErrorCode.UNKNOWN_TOPIC_ID]:
        raise TopicRecreatedError(recreated)
    known = (TopicPartition(one.topic, one.partition) for one in entries)
    return {one: codes.get(one, ErrorCode.UNKNOWN_SERVER_ERROR) for one in known}


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
