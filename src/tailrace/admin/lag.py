"""How far a group is behind.

A partition of which nothing is committed has no lag: whether its group will begin at the start of it or at its end is
the members' ``auto_offset_reset``, which no broker knows. It is counted apart (``GroupLag.uncommitted``). So is one
that no broker leads (``GroupLag.leaderless``): nobody can tell where it ends, which is no reason to hide the others.
"""

from __future__ import annotations

from dataclasses import dataclass

from tailrace.admin.descriptions import GroupDescription, GroupMemberDescription
from tailrace.admin.groups import describe_group
from tailrace.admin.offsets import EARLIEST, LATEST, GroupOffset, committed_offsets, list_offsets
from tailrace.admin.requests import PATIENCE_S
from tailrace.admin.topics import led, partitions_of
from tailrace.errors import NotAConsumerGroupError
from tailrace.net.cluster import Cluster
from tailrace.records import TopicPartition

__all__ = ["GroupLag", "PartitionLag", "check_of_consumers", "group_lag"]

_ELECTION_S = 3.0
"""How long a partition may be without a leader, as it is when one goes and another takes over, before nobody waits."""


@dataclass(frozen=True, slots=True)
class PartitionLag:
    """One partition: what is committed of it, and what it holds."""

    partition: TopicPartition
    committed: GroupOffset | None
    begin: int | None
    """Of its log; None when the topic does not exist (any more), or no broker leads the partition."""
    end: int | None
    member: GroupMemberDescription | None = None
    """Who has it now."""
    is_leaderless: bool = False
    """Whether it exists, and no broker leads it: those that have it are away."""

    @property
    def lag(self) -> int | None:
        """How many offsets from the committed one to the end; None when one of them is unknown, never below 0."""
        if self.committed is None or self.end is None:
            return None
        return max(0, self.end - self.committed.offset)

    @property
    def lost(self) -> int:
        """How many of these the log does not hold any more: they were removed before the group read them."""
        if self.committed is None or self.begin is None:
            return 0
        return max(0, self.begin - self.committed.offset)


@dataclass(frozen=True, slots=True)
class GroupLag:
    """All partitions of the topics that a group reads or has committed something of, in order."""

    group: GroupDescription
    partitions: tuple[PartitionLag, ...]

    @property
    def total(self) -> int:
        """The sum over the partitions whose lag is known."""
        return sum(one.lag or 0 for one in self.partitions)

    @property
    def uncommitted(self) -> int:
        """How many partitions there are of which nothing is committed."""
        return sum(one.committed is None for one in self.partitions)

    @property
    def leaderless(self) -> int:
        """How many partitions there are that no broker leads."""
        return sum(one.is_leaderless for one in self.partitions)


def check_of_consumers(group: GroupDescription) -> None:
    """Refuse a group whose members are no consumers.

    Raises:
        NotAConsumerGroupError: saying what they are.
    """
    if not group.is_of_consumers:
        raise NotAConsumerGroupError(
            f"{group.group_id!r} is a group of protocol type {group.protocol_type!r}: it has no offsets to look at"
            " - `tailrace groups list` shows which are of consumers"
        )


async def group_lag(cluster: Cluster, group_id: str, *, timeout_s: float = PATIENCE_S) -> GroupLag:
    """How far the group is behind, in every partition of every topic that is its business.

    Raises:
        UnknownGroupError: there is no such group.
        NotAConsumerGroupError: it is not one of consumers.
        BrokerError: we may not look at the group or a topic.
        BrokerConnectionError: nobody answers in time.
    """
    group = await describe_group(cluster, group_id, timeout_s=timeout_s)
    check_of_consumers(group)
    committed = await committed_offsets(cluster, group_id, timeout_s=timeout_s)
    topics = {one.topic for one in (*committed, *group.owners)} | {t for m in group.members for t in m.topics}
    counts = await partitions_of(cluster, topics, timeout_s=timeout_s)
    there = {TopicPartition(topic, number) for topic, count in counts.items() for number in range(count)}
    known = await led(cluster, there, max_wait_s=_ELECTION_S, timeout_s=timeout_s)
    begins = await list_offsets(cluster, dict.fromkeys(known, EARLIEST), timeout_s=timeout_s)
    ends = await list_offsets(cluster, dict.fromkeys(known, LATEST), timeout_s=timeout_s)
    return GroupLag(
        group,
        tuple(
            PartitionLag(
                one,
                committed.get(one),
                begins[one].offset if one in begins else None,
                ends[one].offset if one in ends else None,
                group.owners.get(one),
                one in there and one not in known,
            )
            for one in sorted({*there, *committed, *group.owners})
        ),
    )
