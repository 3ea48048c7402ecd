"""Range and round-robin assignors. Pure: no clock, IO or logging.

An assignor takes the members and the partition count of each topic, and optionally the racks of each partition's
replicas, and returns the partitions of each member. The results equal those of Java's ``RangeAssignor`` and
``RoundRobinAssignor``, so that any client may lead a mixed group.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from itertools import cycle, islice
from types import MappingProxyType
from typing import Protocol, TypeAlias

from tailrace.records import TopicPartition

__all__ = [
    "ASSIGNORS",
    "NO_RACKS",
    "UNKNOWN_RACKS",
    "Assignment",
    "Assignor",
    "Holdings",
    "PartitionRacks",
    "RackAlignment",
    "RackIndex",
    "SubscribedMember",
    "do_racks_matter",
    "is_near",
    "range_assignor",
    "roundrobin_assignor",
]

# ---- rack awareness of the assignors (KIP-881). Pure: no clock, IO or logging ----------------------------------------

PartitionRacks: TypeAlias = Mapping[TopicPartition, frozenset[str]]
"""Racks of the replicas of each partition, including offline replicas."""

NO_RACKS: PartitionRacks = MappingProxyType({})
"""Racks for an assignment that ignores racks."""
UNKNOWN_RACKS: frozenset[str] = frozenset()
"""Racks of a partition if no rack of a replica is known."""


def is_near(rack: str | None, replicas: Collection[str]) -> bool:
    """Return True if a partition with replicas in the racks ``replicas`` is near to a member in ``rack``."""
    return not rack or rack in replicas


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


class RackIndex:
    """Index of members, topics and partitions, and of the racks that make a difference between them.

    Partitions of a topic are of one *kind* if they are near to the same subscribers, so that they are interchangeable.
    If racks make no difference, all partitions of a topic are of one kind. Members, topics, partitions and kinds are
    numbered from 0.

    Attributes:
        partitions: all partitions of topics with a subscriber, ordered by topic and partition number.
        has_racks: True if racks make a difference.
        kind_of: kind of each partition.
        topic_of: topic of each kind.
        near: racks of the members to which each kind is near; None stands for members without a rack.
        rack_of: rack of each member; None for a member without a rack, and for all if racks make no difference.
        topics_of: subscribed topics of each member.
        subscribers: subscribers of each topic, in the order of ``subscriptions``.
        subscribers_in: subscribers of each topic in each rack.
    """

    def __init__(
        self,
        subscriptions: Sequence[tuple[frozenset[str], str | None]],
        partitions: Mapping[str, int],
        racks: PartitionRacks,
    ) -> None:
        """Build the index.

        Args:
            subscriptions: topics and rack of each member.
            partitions: partition count of each topic.
            racks: racks of the replicas of each partition.
        """
        topics = sorted({topic for wanted, _ in subscriptions for topic in wanted} & partitions.keys())
        self.partitions = [TopicPartition(topic, number) for topic in topics for number in range(partitions[topic])]
        replicas = [racks.get(one, UNKNOWN_RACKS) for one in self.partitions] if racks else []
        self.has_racks = do_racks_matter([rack for _, rack in subscriptions], replicas)
        self.rack_of = [rack if rack and self.has_racks else None for _, rack in subscriptions]
        self.subscribers_in: list[dict[str | None, list[int]]] = [{} for _ in topics]
        numbers = {topic: number for number, topic in enumerate(topics)}
        self.topics_of = [sorted(numbers[topic] for topic in wanted & numbers.keys()) for wanted, _ in subscriptions]
        for member, wanted in enumerate(self.topics_of):
            for topic in wanted:
                self.subscribers_in[topic].setdefault(self.rack_of[member], []).append(member)
        self.subscribers = [
            sorted(member for members in by_rack.values() for member in members) for by_rack in self.subscribers_in
        ]
        self.kind_of: list[int] = []
        self.topic_of: list[int] = []
        self.near: list[frozenset[str | None]] = []
        known: dict[tuple[int, frozenset[str | None]], int] = {}
        for index, partition in enumerate(self.partitions):
            topic = numbers[partition.topic]
            replica_racks = replicas[index] if self.has_racks else UNKNOWN_RACKS
            near = frozenset(self.subscribers_in[topic].keys() & {None, *replica_racks})
            kind = known.setdefault((topic, near), len(known))
            self.kind_of.append(kind)
            if kind == len(self.near):
                self.topic_of.append(topic)
                self.near.append(near)

    def is_far(self, kind: int, member: int) -> bool:
        """Return True if partitions of ``kind`` are far from ``member``."""
        return self.rack_of[member] not in self.near[kind]


class Holdings(Protocol):
    """Partitions of each member during an assignment."""

    index: RackIndex
    loads: list[int]
    """Number of partitions of each member."""
    owner_of: list[int | None]
    """Previous owner of each partition; None if it has none."""
    piles: list[dict[int, list[int]]]
    """Partitions of each member, as one pile for each kind; the last partition of a pile is moved first."""

    def move(self, giver: int, kind: int, receiver: int) -> None: ...


class RackAlignment:
    """Moves and exchanges of partitions that bring partitions near to their members.

    No move or exchange makes a near partition far, or the loads less even.

    Args:
        table: partitions of each member.
        may_move_owned: True if partitions may be moved away from their previous owner.
    """

    def __init__(self, table: Holdings, *, may_move_owned: bool) -> None:
        self._table, self._may_move_owned = table, may_move_owned
        self._candidates: dict[tuple[str | None, str | None], list[tuple[int, int]]] = {}
        """Pairs of a member and a kind of its partitions, as candidates for an exchange.

        The key is the member's rack and the rack of a member that may receive such a partition: any rack if the
        partition is far from its present member, otherwise a rack to which it is near.
        """

    def run(self) -> None:
        """Move and exchange partitions as long as that reduces the number of partitions far from their members."""
        has_moved = True
        while has_moved:
            has_moved = False
            self._find_candidates()
            for giver, piles in enumerate(self._table.piles):
                for kind in [kind for kind in piles if self._table.index.is_far(kind, giver)]:
                    while self._may_move(giver, kind) and self._move_near(giver, kind):
                        has_moved = True

    def _find_candidates(self) -> None:
        index = self._table.index
        self._candidates = {}
        for member, piles in enumerate(self._table.piles):
            for kind in piles:
                all_racks = index.subscribers_in[index.topic_of[kind]].keys()
                for rack in all_racks if index.is_far(kind, member) else index.near[kind]:
                    self._candidates.setdefault((index.rack_of[member], rack), []).append((member, kind))

    def _may_move(self, member: int, kind: int) -> bool:
        pile = self._table.piles[member].get(kind, [])
        return bool(pile) and (self._may_move_owned or self._table.owner_of[pile[-1]] != member)

    def _move_near(self, giver: int, kind: int) -> bool:
        """Move a partition of ``giver`` to a member to which it is near, or exchange it; return False if impossible."""
        index, loads = self._table.index, self._table.loads
        topic = index.topic_of[kind]
        for rack in sorted(index.near[kind], key=lambda rack: rack or ""):
            for receiver in index.subscribers_in[topic][rack]:
                if loads[receiver] < loads[giver]:
                    self._table.move(giver, kind, receiver)
                    return True
            if self._exchange(giver, kind, self._candidates.get((rack, index.rack_of[giver]), [])):
                return True
        return False

    def _exchange(self, giver: int, kind: int, others: list[tuple[int, int]]) -> bool:
        """Exchange a partition of ``giver`` for a partition of one of ``others``; return False if impossible."""
        index = self._table.index
        for number in range(len(others) - 1, -1, -1):
            receiver, other = others[number]
            if not self._may_move(receiver, other):
                others[number] = others[-1]
                others.pop()
            elif index.topic_of[kind] in index.topics_of[receiver] and index.topic_of[other] in index.topics_of[giver]:
                self._table.move(giver, kind, receiver)
                self._table.move(receiver, other, giver)
                return True
        return False


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
Assignor: TypeAlias = Callable[[Sequence[SubscribedMember], Mapping[str, int]], Assignment]


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
        return is_near(subscriber.rack, self._common_racks[number])

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


ASSIGNORS: Mapping[str, Assignor] = {"range": range_assignor, "roundrobin": roundrobin_assignor}
"""Assignors by the name under which members offer them to the coordinator."""
