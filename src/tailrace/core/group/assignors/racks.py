"""Who may take which partitions, and to whom they are near (KIP-881): one with a replica in a member's rack is.

Rule of this file: a member that does not say where it is has nothing to gain, so nothing is far from it. A partition
of whose replicas nothing is known is far from everybody else. Where racks make no difference, nobody is anywhere.
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
"""Where the replicas of each partition are, those that are offline too."""

NO_RACKS: PartitionRacks = MappingProxyType({})
NOWHERE: frozenset[str] = frozenset()


def is_near(rack: str | None, replicas: Collection[str]) -> bool:
    """Whether a member in ``rack`` has a replica beside it, or does not care."""
    return not rack or rack in replicas


def do_racks_matter(of_members: Collection[str | None], of_partitions: Collection[frozenset[str]]) -> bool:
    """Whether it makes a difference who gets what: some member is near some replica, and not all are everywhere."""
    everywhere = NOWHERE.union(*of_partitions)
    if everywhere.isdisjoint(rack for rack in of_members if rack):
        return False
    return any(replicas != everywhere for replicas in of_partitions)


class RackIndex:
    """Members, topics and partitions by number, and which partitions are alike.

    Partitions of one topic with replicas in the same racks are of one kind: it is the same to every member which of
    them it gets. Where racks make no difference, a kind is a topic.

    Attributes:
        partitions: all of topics that somebody wants, in order.
        kind_of: by partition.
        topic_of: by kind.
        near: by kind, the racks of members to whom it is near; None stands for those who do not say where they are.
        rack_of: by member.
        topics_of: by member, what it wants.
        takers: by topic, who wants it, in the order of ``wishes``; ``takers_in`` the same by topic and rack.
    """

    def __init__(
        self, wishes: Sequence[tuple[frozenset[str], str | None]], partitions: Mapping[str, int], racks: PartitionRacks
    ) -> None:
        """``wishes`` are each member's topics and rack."""
        topics = sorted({topic for wanted, _ in wishes for topic in wanted} & partitions.keys())
        self.partitions = [TopicPartition(topic, number) for topic in topics for number in range(partitions[topic])]
        replicas = [racks.get(one, NOWHERE) for one in self.partitions] if racks else []
        self.has_racks = do_racks_matter([rack for _, rack in wishes], replicas)
        self.rack_of = [rack if rack and self.has_racks else None for _, rack in wishes]
        self.takers_in: list[dict[str | None, list[int]]] = [{} for _ in topics]
        numbers = {topic: number for number, topic in enumerate(topics)}
        self.topics_of = [sorted(numbers[topic] for topic in wanted & numbers.keys()) for wanted, _ in wishes]
        for member, wanted in enumerate(self.topics_of):
            for topic in wanted:
                self.takers_in[topic].setdefault(self.rack_of[member], []).append(member)
        self.takers = [sorted(one for some in of_topic.values() for one in some) for of_topic in self.takers_in]
        self.kind_of: list[int] = []
        self.topic_of: list[int] = []
        self.near: list[frozenset[str | None]] = []
        known: dict[tuple[int, frozenset[str | None]], int] = {}
        for index, partition in enumerate(self.partitions):
            topic = numbers[partition.topic]
            where = replicas[index] if self.has_racks else NOWHERE
            near = frozenset(self.takers_in[topic].keys() & {None, *where})
            kind = known.setdefault((topic, near), len(known))
            self.kind_of.append(kind)
            if kind == len(self.near):
                self.topic_of.append(topic)
                self.near.append(near)

    def is_far(self, kind: int, member: int) -> bool:
        """Whether ``member`` would read it from another rack, though it says where it is."""
        return self.rack_of[member] not in self.near[kind]


class Holdings(Protocol):
    """Who holds what, by number."""

    kinds: RackIndex
    loads: list[int]
    owner_of: list[int | None]
    """By partition, whose it was before."""
    piles: list[dict[int, list[int]]]
    """By member and kind; the last is the first to go."""

    def hand_on(self, giver: int, kind: int, taker: int) -> None: ...


class RackAlignment:
    """Moves and exchanges by which something comes near and nothing goes far, while loads stay as they are.

    What is with its owner takes part only in a calm round.
    """

    def __init__(self, table: Holdings, *, is_calm: bool) -> None:
        self._table, self._is_calm = table, is_calm
        self._to_be_had: dict[tuple[str | None, str | None], list[tuple[int, int]]] = {}
        """From a rack for another: members there, and kinds of theirs that would not go far."""

    def run(self) -> None:
        """Go on until nothing more comes near; each time, what is far gets less."""
        has_moved = True
        while has_moved:
            has_moved = False
            self._look()
            for giver, piles in enumerate(self._table.piles):
                for kind in [kind for kind in piles if self._table.kinds.is_far(kind, giver)]:
                    while self._may_go(giver, kind) and self._bring_near(giver, kind):
                        has_moved = True

    def _look(self) -> None:
        kinds = self._table.kinds
        self._to_be_had = {}
        for member, piles in enumerate(self._table.piles):
            for kind in piles:
                everywhere = kinds.takers_in[kinds.topic_of[kind]].keys()
                for rack in everywhere if kinds.is_far(kind, member) else kinds.near[kind]:
                    self._to_be_had.setdefault((kinds.rack_of[member], rack), []).append((member, kind))

    def _may_go(self, member: int, kind: int) -> bool:
        pile = self._table.piles[member].get(kind, [])
        return bool(pile) and (self._is_calm or self._table.owner_of[pile[-1]] != member)

    def _bring_near(self, giver: int, kind: int) -> bool:
        kinds, loads = self._table.kinds, self._table.loads
        topic = kinds.topic_of[kind]
        for rack in sorted(kinds.near[kind], key=lambda rack: rack or ""):
            for taker in kinds.takers_in[topic][rack]:
                if loads[taker] < loads[giver]:
                    self._table.hand_on(giver, kind, taker)
                    return True
            if self._exchange(giver, kind, self._to_be_had.get((rack, kinds.rack_of[giver]), [])):
                return True
        return False

    def _exchange(self, giver: int, kind: int, others: list[tuple[int, int]]) -> bool:
        kinds = self._table.kinds
        for index in range(len(others) - 1, -1, -1):
            taker, other = others[index]
            if not self._may_go(taker, other):
                others[index] = others[-1]
                others.pop()
            elif kinds.topic_of[kind] in kinds.topics_of[taker] and kinds.topic_of[other] in kinds.topics_of[giver]:
                self._table.hand_on(giver, kind, taker)
                self._table.hand_on(taker, other, giver)
                return True
        return False
