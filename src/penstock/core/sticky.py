"""Dealing out partitions so that loads are even and as few as possible move: ``sticky`` and ``cooperative-sticky``.

Even comes first: no member could take a partition from another that has two more (directly, or by handing one on
through others). Sticky comes second: a partition moves only where evenness wants it. Cooperative (KIP-429) gives a
partition that moves to nobody in this round: its owner lets go first, and the next round, which follows at once,
gives it to the new one. Where two members claim a partition, the later generation is right; of the same one, neither.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from penstock.core.assignors import Assignment, GroupMember
from penstock.core.racks import NO_RACKS, PartitionRacks
from penstock.records import TopicPartition

__all__ = ["cooperative_sticky_assignor", "let_go_first", "sticky_assignor"]


def sticky_assignor(
    members: Sequence[GroupMember], partitions: Mapping[str, int], _racks: PartitionRacks = NO_RACKS
) -> Assignment:
    """Even, and as it was, as far as that goes; what moves is the new owner's at once."""
    return _Table.of(members, partitions).deal()


def cooperative_sticky_assignor(
    members: Sequence[GroupMember], partitions: Mapping[str, int], racks: PartitionRacks = NO_RACKS
) -> Assignment:
    """The same, and what moves is nobody's until its owner has let go."""
    return let_go_first(members, sticky_assignor(members, partitions, racks))


def let_go_first(members: Sequence[GroupMember], dealt: Assignment) -> Assignment:
    """``dealt`` without what another member than its taker owns: that one lets go, and the next round gives it."""
    claims = _claims(members, {one for given in dealt.values() for one in given})
    claimants: dict[TopicPartition, set[str]] = {}
    for member in members:
        for one in member.owned:
            claimants.setdefault(one, set()).add(member.member_id)
    return {
        taker: [one for one in given if claims.get(one) == taker or not claimants.get(one, set()) - {taker}]
        for taker, given in dealt.items()
    }


@dataclass
class _Table:
    """The partitions on the table, and who holds which."""

    members: list[GroupMember]
    subscribers: dict[str, list[str]]
    """By topic, in rank."""
    claims: dict[TopicPartition, str]
    """Who owned what before, as far as it is still there and still wanted."""
    everything: list[TopicPartition]
    held: dict[str, dict[str, list[TopicPartition]]] = field(default_factory=dict)
    """By member and topic."""
    loads: dict[str, int] = field(default_factory=dict)

    @classmethod
    def of(cls, members: Sequence[GroupMember], partitions: Mapping[str, int]) -> _Table:
        ranked = sorted(members, key=lambda member: member.rank)
        subscribers = {
            topic: [member.member_id for member in ranked if topic in member.topics] for topic in sorted(partitions)
        }
        subscribers = {topic: takers for topic, takers in subscribers.items() if takers}
        everything = [TopicPartition(topic, p) for topic in subscribers for p in range(partitions[topic])]
        return cls(ranked, subscribers, _claims(ranked, set(everything)), everything)

    def deal(self) -> Assignment:
        self.held = {member.member_id: {} for member in self.members}
        self.loads = dict.fromkeys(self.held, 0)
        for partition, owner in self.claims.items():
            self._give(partition, owner)
        # Topics that few can take come first, so that those who have no choice are served.
        unclaimed = [partition for partition in self.everything if partition not in self.claims]
        for partition in sorted(unclaimed, key=lambda one: (len(self.subscribers[one.topic]), one)):
            self._give(partition, min(self.subscribers[partition.topic], key=self.loads.__getitem__))
        self._even_out()
        return {member: sorted(p for given in topics.values() for p in given) for member, topics in self.held.items()}

    def _even_out(self) -> None:
        """Hand partitions on, from those with most to those with least, until no two differ by more than one."""
        settled: set[str] = set()
        while len(settled) < len(self.loads):
            richest = max((m for m in self.loads if m not in settled), key=self.loads.__getitem__)
            way = self._way_to_poorer(richest)
            if way is None:
                settled.add(richest)
                continue
            for giver, topic, taker in way:
                self._move(giver, topic, taker)
            settled.clear()

    def _way_to_poorer(self, start: str) -> list[tuple[str, str, str]] | None:
        """The shortest way by which one partition's worth of load gets from ``start`` to one with two less."""
        came_by: dict[str, tuple[str, str]] = {}
        seen_topics: set[str] = set()
        ahead = deque([start])
        while ahead:
            giver = ahead.popleft()
            for topic in self.held[giver]:
                if topic in seen_topics or not self.held[giver][topic]:
                    continue
                seen_topics.add(topic)
                for taker in sorted(self.subscribers[topic], key=self.loads.__getitem__):
                    if taker == start or taker in came_by:
                        continue
                    came_by[taker] = (giver, topic)
                    if self.loads[taker] <= self.loads[start] - 2:
                        return _way(came_by, start, taker)
                    ahead.append(taker)
        return None

    def _give(self, partition: TopicPartition, member: str) -> None:
        self.held[member].setdefault(partition.topic, []).append(partition)
        self.loads[member] += 1

    def _move(self, giver: str, topic: str, taker: str) -> None:
        """Hand one partition on: the taker's own of before if there is one, else one that is new to the giver."""
        choice = self.held[giver][topic]
        best = max(choice, key=lambda one: (self.claims.get(one) == taker, self.claims.get(one) != giver, one))
        choice.remove(best)
        self.loads[giver] -= 1
        self._give(best, taker)


def _way(came_by: Mapping[str, tuple[str, str]], start: str, end: str) -> list[tuple[str, str, str]]:
    steps = []
    while end != start:
        giver, topic = came_by[end]
        steps.append((giver, topic, end))
        end = giver
    return steps[::-1]


def _claims(members: Iterable[GroupMember], there: set[TopicPartition]) -> dict[TopicPartition, str]:
    best: dict[TopicPartition, tuple[int, str | None]] = {}
    for member in members:
        for partition in sorted(member.owned):
            if partition not in there or partition.topic not in member.topics:
                continue
            generation, _ = best.get(partition, (-2, None))
            if member.generation > generation:
                best[partition] = (member.generation, member.member_id)
            elif member.generation == generation:
                best[partition] = (generation, None)
    return {partition: owner for partition, (_, owner) in best.items() if owner is not None}
