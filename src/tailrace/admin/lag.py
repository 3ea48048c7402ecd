"""Lag of consumer groups.

The lag of a partition is unknown in two cases. If the group has no committed offset, its start position depends on the
option ``auto_offset_reset`` of the members, which brokers do not know. If the partition has no leader, the end offset
is unknown. ``GroupLag.uncommitted`` and ``GroupLag.leaderless`` are the numbers of these partitions.
"""

from __future__ import annotations

from dataclasses import dataclass

from tailrace.admin.descriptions import GroupDescription, GroupMemberDescription
from tailrace.admin.groups import describe_group
from tailrace.admin.offsets import EARLIEST, LATEST, GroupOffset, committed_offsets, list_offsets
from tailrace.admin.requests import DEFAULT_TIMEOUT_S
from tailrace.admin.topics import partitions_of, partitions_with_leader
from tailrace.errors import NotAConsumerGroupError
from tailrace.net.cluster import Cluster
from tailrace.records import TopicPartition

__all__ = ["GroupLag", "PartitionLag", "check_is_consumer_group", "group_lag"]

_ELECTION_S = 3.0
"""Maximum time in seconds to wait for leaders, because a partition has none during an election."""


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


def check_is_consumer_group(group: GroupDescription) -> None:
    """Check that the group is a consumer group, or has never had members.

    Raises:
        NotAConsumerGroupError: the group has another protocol type, such as that of Kafka Connect.
    """
    if not group.is_consumer_group:
        raise NotAConsumerGroupError(
            f"{group.group_id!r} is a group with protocol type {group.protocol_type!r}, not a consumer group"
            " - `tailrace groups list` shows the consumer groups"
        )


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
