"""Range and round-robin assignors. Pure: no clock, IO or logging.

An assignor takes the members and the partition count of each topic, and optionally the racks of each partition's
replicas, and returns the partitions of each member. The results equal those of Java's ``RangeAssignor`` and
``RoundRobinAssignor``, so that any client may lead a mixed group.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from itertools import cycle, islice
from types import MappingProxyType
from typing import TypeAlias

from tailrace.records import TopicPartition

__all__ = [
    "NO_RACKS",
    "UNKNOWN_RACKS",
    "Assignment",
    "PartitionRacks",
    "SubscribedMember",
    "do_racks_matter",
    "range_assignor",
    "roundrobin_assignor",
]

# ---- rack awareness of the assignors (KIP-881) ----------------------------------------

PartitionRacks: TypeAlias = Mapping[TopicPartition, frozenset[str]]
"""Racks of the replicas of each partition, including offline replicas."""

NO_RACKS: PartitionRacks = MappingProxyType({})
"""Racks for an assignment that ignores racks."""
UNKNOWN_RACKS: frozenset[str] = frozenset()
"""Racks of a partition if no rack of a replica is known."""


def do_racks_matter(member_racks: Collection[str | None], replica_racks: Collection[frozenset[str]]) -> bool:
    """Return True if a member is in the rack of a replica, and the partitions differ in the racks of their replicas.

    Args:
        member_racks: rack of each member.
        replica_racks: racks of the replicas of each partition.
    """
    all_racks = UNKNOWN_RACKS.union(*replica_racks)
    if all_racks.isdisjoint(rack for rack in member_racks if rack):
        return False
    return any(racks != all_racks for racks in replica_racks)


# ---- range and round-robin assignors. Pure: no clock, IO or logging --------------------------------------------------


@dataclass(frozen=True, slots=True)
class SubscribedMember:
    """Member of a group with its subscription, as the group's leader receives it.

    Attributes:
        instance_id: ``group_instance_id`` of a static member.
        owned: partitions that the member reports as its previous assignment.
        generation: generation of that assignment; -1 if the member does not report it.
        rack: ``client_rack`` of the member.
    """

    member_id: str
    topics: frozenset[str]
    instance_id: str | None = None
    owned: frozenset[TopicPartition] = frozenset()
    generation: int = -1
    rack: str | None = None

    @property
    def rank(self) -> tuple[bool, str]:
        """Sort key: static members first, by instance id; then by member id."""
        return (self.instance_id is None, self.instance_id or self.member_id)


Assignment: TypeAlias = dict[str, list[TopicPartition]]


def range_assignor(
    members: Sequence[SubscribedMember], partitions: Mapping[str, int], racks: PartitionRacks = NO_RACKS
) -> Assignment:
    """Assign each topic in runs of consecutive partitions, one run for each subscriber.

    The runs of the first subscribers are longer by one partition if the partitions cannot be divided evenly.

    Topics with the same partition count and the same subscribers are co-partitioned: a member gets the same partition
    numbers of each of them.

    If racks make a difference (KIP-881), members first get partitions with a replica in their rack. A partition number
    of co-partitioned topics is assigned in this way only if each of the topics has such a replica. The remaining
    partitions are then assigned in runs. How many partitions of a topic two subscribers get differs by at most
    one.
    """
    ranked = sorted(members, key=lambda member: member.rank)
    co_partitioned: dict[tuple[int, tuple[int, ...]], list[str]] = {}
    for topic in sorted(partitions):
        subscribers = tuple(index for index, member in enumerate(ranked) if topic in member.topics)
        if subscribers:
            co_partitioned.setdefault((partitions[topic], subscribers), []).append(topic)
    groups = [
        _CoPartitionedTopics(topics, count, [ranked[index] for index in subscribers], racks)
        for (count, subscribers), topics in co_partitioned.items()
    ]
    if any(group.do_racks_matter for group in groups):
        for group in groups:
            group.assign_near()
    assignment: Assignment = {member.member_id: [] for member in members}
    for group in groups:
        group.assign_rest()
        for member_id, numbers in group.assigned.items():
            assignment[member_id] += [TopicPartition(topic, number) for topic in group.topics for number in numbers]
    return {member_id: sorted(assigned) for member_id, assigned in assignment.items()}


class _CoPartitionedTopics:
    """Topics with the same partition count and the same subscribers, and the assignment of their partition numbers.

    Attributes:
        assigned: partition numbers by member id; they apply to each of the topics.
        do_racks_matter: True if racks make a difference in one of the topics.
    """

    def __init__(
        self, topics: list[str], count: int, subscribers: Sequence[SubscribedMember], racks: PartitionRacks
    ) -> None:
        self.topics = topics
        self._subscribers = subscribers
        self._share, self._extra = divmod(count, len(subscribers))
        """Partitions for each subscriber, and the number of subscribers that may still get one partition more."""
        self._unassigned = dict.fromkeys(range(count))
        """Partition numbers that are not assigned yet, in order."""
        self.assigned: dict[str, list[int]] = {member.member_id: [] for member in subscribers}
        replicas = [
            [racks.get(TopicPartition(topic, number), UNKNOWN_RACKS) for number in self._unassigned] for topic in topics
        ]
        member_racks = [member.rack for member in subscribers]
        self.do_racks_matter = any(do_racks_matter(member_racks, topic_racks) for topic_racks in replicas)
        self._common_racks = [frozenset.intersection(*number_racks) for number_racks in zip(*replicas, strict=True)]
        """For each partition number, the racks in which every topic has a replica of this partition."""

    def assign_near(self) -> None:
        """Assign partitions to subscribers to which they are near, up to the share of each subscriber."""
        if len(self.topics) > 1:
            for number in list(self._unassigned):
                near = (one for one in self._subscribers if self._free_share(one) and self._is_near(one, number))
                if (subscriber := next(near, None)) is not None:
                    self._assign(subscriber, [number])
        elif self.do_racks_matter:
            for subscriber in self._subscribers:
                numbers = (number for number in self._unassigned if self._is_near(subscriber, number))
                self._assign(subscriber, list(islice(numbers, self._free_share(subscriber))))

    def assign_rest(self) -> None:
        """Assign the remaining partitions in runs."""
        for subscriber in self._subscribers:
            self._assign(subscriber, list(islice(self._unassigned, self._free_share(subscriber))))

    def _is_near(self, subscriber: SubscribedMember, number: int) -> bool:
        return not subscriber.rack or subscriber.rack in self._common_racks[number]

    def _free_share(self, subscriber: SubscribedMember) -> int:
        """Return how many more partitions the subscriber may get."""
        return max(0, self._share + (self._extra > 0) - len(self.assigned[subscriber.member_id]))

    def _assign(self, subscriber: SubscribedMember, numbers: Sequence[int]) -> None:
        assigned = self.assigned[subscriber.member_id]
        had_extra = len(assigned) > self._share
        assigned += numbers
        self._extra -= len(assigned) > self._share and not had_extra
        for number in numbers:
            del self._unassigned[number]


def roundrobin_assignor(
    members: Sequence[SubscribedMember], partitions: Mapping[str, int], _racks: PartitionRacks = NO_RACKS
) -> Assignment:
    """Assign each partition to the next member that subscribes to its topic; racks are ignored."""
    assignment: Assignment = {member.member_id: [] for member in members}
    subscribed = {topic for member in members for topic in member.topics}
    turns = cycle(sorted(members, key=lambda member: member.rank))
    for topic in sorted(subscribed & partitions.keys()):
        for number in range(partitions[topic]):
            subscriber = next(member for member in turns if topic in member.topics)
            assignment[subscriber.member_id].append(TopicPartition(topic, number))
    return assignment
