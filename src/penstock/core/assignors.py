"""How a group's leader deals out partitions: functions of plain data, alike in every client of the same name.

An assignor takes the members and how many partitions each topic has, and gives each member its partitions. The
results are those of Java's ``RangeAssignor`` and ``RoundRobinAssignor``, so that a mixed group agrees.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import cycle
from typing import TypeAlias

from penstock.core.racks import NO_RACKS, PartitionRacks
from penstock.records import TopicPartition

__all__ = ["ASSIGNORS", "Assignment", "Assignor", "GroupMember", "range_assignor", "roundrobin_assignor"]


@dataclass(frozen=True, slots=True)
class GroupMember:
    """One member as its leader sees it."""

    member_id: str
    topics: frozenset[str]
    instance_id: str | None = None
    owned: frozenset[TopicPartition] = frozenset()
    generation: int = -1
    rack: str | None = None

    @property
    def rank(self) -> tuple[bool, str]:
        """Where it stands in line: static members first, by their lasting names; then by member id."""
        return (self.instance_id is None, self.instance_id or self.member_id)


Assignment: TypeAlias = dict[str, list[TopicPartition]]
Assignor: TypeAlias = Callable[[Sequence[GroupMember], Mapping[str, int]], Assignment]


def range_assignor(
    members: Sequence[GroupMember], partitions: Mapping[str, int], _racks: PartitionRacks = NO_RACKS
) -> Assignment:
    """Each topic is cut into runs, one for each of its members; the first members' are one longer where it must be."""
    given: Assignment = {member.member_id: [] for member in members}
    for topic in sorted(partitions):
        takers = sorted((m for m in members if topic in m.topics), key=lambda m: m.rank)
        if not takers:
            continue
        share, extra = divmod(partitions[topic], len(takers))
        start = 0
        for index, member in enumerate(takers):
            end = start + share + (index < extra)
            given[member.member_id] += [TopicPartition(topic, p) for p in range(start, end)]
            start = end
    return given


def roundrobin_assignor(
    members: Sequence[GroupMember], partitions: Mapping[str, int], _racks: PartitionRacks = NO_RACKS
) -> Assignment:
    """All partitions are dealt in turn, to the next member that wants the topic."""
    given: Assignment = {member.member_id: [] for member in members}
    wanted = {topic for member in members for topic in member.topics}
    turn = cycle(sorted(members, key=lambda m: m.rank))
    for topic in sorted(wanted & partitions.keys()):
        for partition in range(partitions[topic]):
            taker = next(member for member in turn if topic in member.topics)
            given[taker.member_id].append(TopicPartition(topic, partition))
    return given


ASSIGNORS: Mapping[str, Assignor] = {"range": range_assignor, "roundrobin": roundrobin_assignor}
"""By the name under which members tell each other."""
