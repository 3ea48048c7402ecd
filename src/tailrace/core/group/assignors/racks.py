"""Rack awareness of the assignors (KIP-881).

A partition is near to a member if one of the partition's replicas is in the member's rack. Every partition is near to a
member without a rack. A partition whose replicas have unknown racks is far from every member with a rack. Racks are
ignored where they make no difference.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from types import MappingProxyType
from typing import Protocol, TypeAlias

from tailrace.records import TopicPartition

__all__ = [
    "NOWHERE",
    "NO_RACKS",
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
NOWHERE: frozenset[str] = frozenset()


def is_near(rack: str | None, replicas: Collection[str]) -> bool:
    """Return True if a member with ``rack`` is near to a partition with replicas in the racks ``replicas``."""
    return not rack or rack in replicas


def do_racks_matter(of_members: Collection[str | None], of_partitions: Collection[frozenset[str]]) -> bool:
    """Return True if a member is in the rack of a replica, and the partitions differ in the racks of their replicas."""
    everywhere = NOWHERE.union(*of_partitions)
    if everywhere.isdisjoint(rack for rack in of_members if rack):
        return False
    return any(replicas != everywhere for replicas in of_partitions)


class RackIndex:
    """Members, topics, partitions and kinds of partitions, each of them numbered.

    Partitions of a topic are of one kind if, counting only racks that have a subscriber, their replicas are in the same
    racks. They are interchangeable to every member. Where racks make no difference, all partitions of a topic are of
    one kind.

    Attributes:
        partitions: all partitions of topics with a subscriber, in order.
        kind_of: kind by partition.
        topic_of: topic by kind.
        near: racks of the members to which a kind is near, by kind; None stands for members without a rack.
        rack_of: rack by member.
        topics_of: subscribed topics by member.
        subscribers: subscribers by topic, in the order of ``subscriptions``.
        subscribers_in: subscribers by topic and rack.
    """

    def __init__(
        self,
        subscriptions: Sequence[tuple[frozenset[str], str | None]],
        partitions: Mapping[str, int],
        racks: PartitionRacks,
    ) -> None:
        """Index ``subscriptions``, which contains the topics and the rack of each member."""
        topics = sorted({topic for wanted, _ in subscriptions for topic in wanted} & partitions.keys())
        self.partitions = [TopicPartition(topic, number) for topic in topics for number in range(partitions[topic])]
        replicas = [racks.get(one, NOWHERE) for one in self.partitions] if racks else []
        self.has_racks = do_racks_matter([rack for _, rack in subscriptions], replicas)
        self.rack_of = [rack if rack and self.has_racks else None for _, rack in subscriptions]
        self.subscribers_in: list[dict[str | None, list[int]]] = [{} for _ in topics]
        numbers = {topic: number for number, topic in enumerate(topics)}
        self.topics_of = [sorted(numbers[topic] for topic in wanted & numbers.keys()) for wanted, _ in subscriptions]
        for member, wanted in enumerate(self.topics_of):
            for topic in wanted:
                self.subscribers_in[topic].setdefault(self.rack_of[member], []).append(member)
        self.subscribers = [
            sorted(one for some in of_topic.values() for one in some) for of_topic in self.subscribers_in
        ]
        self.kind_of: list[int] = []
        self.topic_of: list[int] = []
        self.near: list[frozenset[str | None]] = []
        known: dict[tuple[int, frozenset[str | None]], int] = {}
        for index, partition in enumerate(self.partitions):
            topic = numbers[partition.topic]
            where = replicas[index] if self.has_racks else NOWHERE
            near = frozenset(self.subscribers_in[topic].keys() & {None, *where})
            kind = known.setdefault((topic, near), len(known))
            self.kind_of.append(kind)
            if kind == len(self.near):
                self.topic_of.append(topic)
                self.near.append(near)

    def is_far(self, kind: int, member: int) -> bool:
        """Return True if ``member`` would read ``kind`` from another rack."""
        return self.rack_of[member] not in self.near[kind]


class Holdings(Protocol):
    """Partitions that each member holds, by number."""

    kinds: RackIndex
    loads: list[int]
    owner_of: list[int | None]
    """Previous owner by partition."""
    piles: list[dict[int, list[int]]]
    """Partitions by member and kind; the last partition of a pile is moved first."""

    def move(self, giver: int, kind: int, receiver: int) -> None: ...


class RackAlignment:
    """Moves and exchanges that give partitions to members to which they are near.

    No step makes a near partition far or the loads less even. A round is calm if every partition has a previous owner
    and no partition had to move to even out the loads. Only in a calm round are partitions moved away from their
    previous owner.
    """

    def __init__(self, table: Holdings, *, is_calm: bool) -> None:
        self._table, self._is_calm = table, is_calm
        self._candidates: dict[tuple[str | None, str | None], list[tuple[int, int]]] = {}
        """Pairs of a member and a kind of partition that the member could give away.

        The key is the member's rack and a rack to which such a partition may move.
        """

    def run(self) -> None:
        """Move and exchange partitions until no more come near; each step reduces the number of far partitions."""
        has_moved = True
        while has_moved:
            has_moved = False
            self._find_candidates()
            for giver, piles in enumerate(self._table.piles):
                for kind in [kind for kind in piles if self._table.kinds.is_far(kind, giver)]:
                    while self._may_go(giver, kind) and self._bring_near(giver, kind):
                        has_moved = True

    def _find_candidates(self) -> None:
        kinds = self._table.kinds
        self._candidates = {}
        for member, piles in enumerate(self._table.piles):
            for kind in piles:
                everywhere = kinds.subscribers_in[kinds.topic_of[kind]].keys()
                for rack in everywhere if kinds.is_far(kind, member) else kinds.near[kind]:
                    self._candidates.setdefault((kinds.rack_of[member], rack), []).append((member, kind))

    def _may_go(self, member: int, kind: int) -> bool:
        pile = self._table.piles[member].get(kind, [])
        return bool(pile) and (self._is_calm or self._table.owner_of[pile[-1]] != member)

    def _bring_near(self, giver: int, kind: int) -> bool:
        kinds, loads = self._table.kinds, self._table.loads
        topic = kinds.topic_of[kind]
        for rack in sorted(kinds.near[kind], key=lambda rack: rack or ""):
            for receiver in kinds.subscribers_in[topic][rack]:
                if loads[receiver] < loads[giver]:
                    self._table.move(giver, kind, receiver)
                    return True
            if self._exchange(giver, kind, self._candidates.get((rack, kinds.rack_of[giver]), [])):
                return True
        return False

    def _exchange(self, giver: int, kind: int, others: list[tuple[int, int]]) -> bool:
        kinds = self._table.kinds
        for index in range(len(others) - 1, -1, -1):
            receiver, other = others[index]
            if not self._may_go(receiver, other):
                others[index] = others[-1]
                others.pop()
            elif kinds.topic_of[kind] in kinds.topics_of[receiver] and kinds.topic_of[other] in kinds.topics_of[giver]:
                self._table.move(giver, kind, receiver)
                self._table.move(receiver, other, giver)
                return True
        return False
