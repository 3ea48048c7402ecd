"""Range and round-robin assignors.

An assignor takes the members, the partition count of each topic and the racks of the replicas, and returns the
partitions of each member. The results equal those of Java's ``RangeAssignor`` and ``RoundRobinAssignor``, so that any
client may lead a mixed group.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import cycle, islice
from typing import TypeAlias

from tailrace.core.group.assignors.racks import NO_RACKS, NOWHERE, PartitionRacks, do_racks_matter, is_near
from tailrace.records import TopicPartition

__all__ = ["ASSIGNORS", "Assignment", "Assignor", "SubscribedMember", "range_assignor", "roundrobin_assignor"]


@dataclass(frozen=True, slots=True)
class SubscribedMember:
    """Member of a group as the group's leader sees it."""

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
Assignor: TypeAlias = Callable[[Sequence[SubscribedMember], Mapping[str, int]], Assignment]


def range_assignor(
    members: Sequence[SubscribedMember], partitions: Mapping[str, int], racks: PartitionRacks = NO_RACKS
) -> Assignment:
    """Assign each topic in runs of consecutive partitions, one run for each member.

    The runs of the first members are longer by one partition if the partitions cannot be divided evenly. Where racks
    matter (KIP-881), members first get partitions that are near to them, and the other partitions are cut into runs.
    Shares stay as even as without racks.

    Topics with the same partition count and the same subscribers are cut at the same places, so that a member gets the
    same partition numbers of each of these topics. Partitions with the same number are then near to a member only if
    each of them is near to the member.
    """
    ranked = sorted(members, key=lambda member: member.rank)
    alike: dict[tuple[int, tuple[int, ...]], list[str]] = {}
    for topic in sorted(partitions):
        takers = tuple(index for index, member in enumerate(ranked) if topic in member.topics)
        if takers:
            alike.setdefault((partitions[topic], takers), []).append(topic)
    cuts = [
        _Cut(topics, count, [ranked[index] for index in takers], racks) for (count, takers), topics in alike.items()
    ]
    if any(cut.do_racks_matter for cut in cuts):
        for cut in cuts:
            cut.give_near()
    given: Assignment = {member.member_id: [] for member in members}
    for cut in cuts:
        for member, numbers in cut.shares():
            given[member] += [TopicPartition(topic, number) for topic in cut.topics for number in numbers]
    return {member: sorted(found) for member, found in given.items()}


class _Cut:
    """Topics that are cut at the same places, and the partition numbers that each member gets."""

    def __init__(
        self, topics: list[str], count: int, takers: Sequence[SubscribedMember], racks: PartitionRacks
    ) -> None:
        self.topics = topics
        self._takers = takers
        self._share, self._extra = divmod(count, len(takers))
        self._left = dict.fromkeys(range(count))
        """Partition numbers that are not assigned yet, in order."""
        self._given: dict[str, list[int]] = {member.member_id: [] for member in takers}
        replicas = [[racks.get(TopicPartition(topic, one), NOWHERE) for one in self._left] for topic in topics]
        of_members = [member.rack for member in takers]
        self.do_racks_matter = any(do_racks_matter(of_members, of_topic) for of_topic in replicas)
        self._near = [frozenset.intersection(*of_number) for of_number in zip(*replicas, strict=True)]
        """Racks in which all of these topics have a replica, by partition number."""

    def give_near(self) -> None:
        """Assign the partitions that are near to a member, up to each member's share."""
        if len(self.topics) > 1:
            # Partitions with the same number stay together, and go to the first member that is near to all of them.
            for number in list(self._left):
                beside = (one for one in self._takers if self._room(one) and is_near(one.rack, self._near[number]))
                if (taker := next(beside, None)) is not None:
                    self._give(taker, [number])
        elif self.do_racks_matter:
            for taker in self._takers:
                near = (number for number in self._left if is_near(taker.rack, self._near[number]))
                self._give(taker, list(islice(near, self._room(taker))))

    def shares(self) -> Iterator[tuple[str, list[int]]]:
        """Cut the remaining partitions into runs and yield the partition numbers of each member."""
        for taker in self._takers:
            self._give(taker, list(islice(self._left, self._room(taker))))
        yield from self._given.items()

    def _room(self, taker: SubscribedMember) -> int:
        return max(0, self._share + (self._extra > 0) - len(self._given[taker.member_id]))

    def _give(self, taker: SubscribedMember, numbers: Sequence[int]) -> None:
        given = self._given[taker.member_id]
        was_full = len(given) > self._share
        given += numbers
        self._extra -= len(given) > self._share and not was_full
        for number in numbers:
            del self._left[number]


def roundrobin_assignor(
    members: Sequence[SubscribedMember], partitions: Mapping[str, int], _racks: PartitionRacks = NO_RACKS
) -> Assignment:
    """Assign all partitions in turn, each to the next member that subscribes to the topic."""
    given: Assignment = {member.member_id: [] for member in members}
    wanted = {topic for member in members for topic in member.topics}
    turn = cycle(sorted(members, key=lambda m: m.rank))
    for topic in sorted(wanted & partitions.keys()):
        for partition in range(partitions[topic]):
            taker = next(member for member in turn if topic in member.topics)
            given[taker.member_id].append(TopicPartition(topic, partition))
    return given


ASSIGNORS: Mapping[str, Assignor] = {"range": range_assignor, "roundrobin": roundrobin_assignor}
"""Assignors by protocol name."""
