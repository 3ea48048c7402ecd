"""Committed offsets of any group, with their metadata: read, committed without membership, and deleted; and lag.

The lag of a partition is unknown in two cases. If the group has no committed offset, its start position depends on the
option ``auto_offset_reset`` of the members, which brokers do not know. If the partition has no leader, the end offset
is unknown. ``GroupLag.uncommitted`` and ``GroupLag.leaderless`` are the numbers of these partitions.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from tailrace.admin.groups import (
    GroupDescription,
    GroupMemberDescription,
    check_idle,
    check_is_consumer_group,
    describe_group,
)
from tailrace.admin.requests import DEFAULT_TIMEOUT_S, ask_coordinator, check_codes
from tailrace.admin.topics import partitions_of, partitions_with_leader
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
    "GroupLag",
    "GroupOffset",
    "PartitionLag",
    "commit_offsets",
    "committed_offsets",
    "delete_offsets",
    "epoch_end_offsets",
    "group_lag",
    "list_offsets",
]

_SUBSCRIBED_CODES = {ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC, ErrorCode.NON_EMPTY_GROUP}
"""Error codes if live members are subscribed to the topics whose offsets are to be deleted."""
_ELECTION_S = 3.0
"""Maximum time in seconds to wait for leaders, because a partition has none during an election."""


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


# ---- lag -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class PartitionLag:
    """Committed offset and log bounds of a partition."""

    partition: TopicPartition
    committed: GroupOffset | None
    begin: int | None
    """First offset of the log; None if the partition does not exist or has no leader."""
    end: int | None
    """End offset of the log; None if the partition does not exist or has no leader."""
    member: GroupMemberDescription | None = None
    """Member to which the partition is assigned; None if there is none."""
    is_leaderless: bool = False
    """True if the partition exists but has no leader, because its replicas are offline."""

    @property
    def lag(self) -> int | None:
        """Number of offsets from the committed offset to the end offset, at least 0; None if either is unknown."""
        if self.committed is None or self.end is None:
            return None
        return max(0, self.end - self.committed.offset)

    @property
    def lost(self) -> int:
        """Number of offsets in the lag whose records were deleted from the log before they were read."""
        if self.committed is None or self.begin is None:
            return 0
        return max(0, self.begin - self.committed.offset)


@dataclass(frozen=True, slots=True)
class GroupLag:
    """Lag of a group."""

    group: GroupDescription
    partitions: tuple[PartitionLag, ...]
    """Lag of all partitions of the topics that the group reads or has committed offsets for, in order."""

    @property
    def total(self) -> int:
        """Sum of the known lags."""
        return sum(one.lag or 0 for one in self.partitions)

    @property
    def uncommitted(self) -> int:
        """Number of partitions without a committed offset."""
        return sum(one.committed is None for one in self.partitions)

    @property
    def leaderless(self) -> int:
        """Number of partitions without a leader."""
        return sum(one.is_leaderless for one in self.partitions)


async def group_lag(cluster: Cluster, group_id: str, *, timeout_s: float = DEFAULT_TIMEOUT_S) -> GroupLag:
    """Return the lag of a group in all partitions of its topics.

    Raises:
        UnknownGroupError: the group does not exist.
        NotAConsumerGroupError: the group is not a consumer group.
        BrokerError: the principal may not describe the group or a topic.
        BrokerConnectionError: no broker answered in time.
    """
    group = await describe_group(cluster, group_id, timeout_s=timeout_s)
    check_is_consumer_group(group)
    committed = await committed_offsets(cluster, group_id, timeout_s=timeout_s)
    topics = {one.topic for one in (*committed, *group.owners)} | {t for m in group.members for t in m.topics}
    counts = await partitions_of(cluster, topics, timeout_s=timeout_s)
    existing = {TopicPartition(topic, number) for topic, count in counts.items() for number in range(count)}
    with_leader = await partitions_with_leader(cluster, existing, max_wait_s=_ELECTION_S, timeout_s=timeout_s)
    begins = await list_offsets(cluster, dict.fromkeys(with_leader, EARLIEST), timeout_s=timeout_s)
    ends = await list_offsets(cluster, dict.fromkeys(with_leader, LATEST), timeout_s=timeout_s)
    return GroupLag(
        group,
        tuple(
            PartitionLag(
                one,
                committed.get(one),
                begins[one].offset if one in begins else None,
                ends[one].offset if one in ends else None,
                group.owners.get(one),
                one in existing and one not in with_leader,
            )
            for one in sorted({*existing, *committed, *group.owners})
        ),
    )
