"""Rack awareness of the assignors (KIP-881). Pure: no clock, IO or logging.

A partition is *near* to a member if one of the partition's replicas is in the member's rack, otherwise it is *far* from
the member. Every partition is near to a member without a rack. A partition whose replicas have unknown racks is far
from every member with a rack. Racks are ignored if they make no difference (``do_racks_matter``).
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from types import MappingProxyType
from typing import Protocol, TypeAlias

from tailrace.records import TopicPartition

__all__ = [
    "NO_RACKS",
    "UNKNOWN_RACKS",
    "Holdings",
    "PartitionRacks",
    "RackAlignment",
    "RackIndex",
    "do_racks_matter",
    "is_near",
]

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
