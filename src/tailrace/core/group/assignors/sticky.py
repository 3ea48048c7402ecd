"""Sticky assignors (``sticky`` and ``cooperative-sticky``): even loads with as few moves as possible.

1. Even loads come first. In the result, no member could take a partition, directly or through a chain of members, from
   a member that has at least two more partitions.
2. Owned partitions stay, unless even loads require a move. Partitions without an owner are placed, and moved to even
   out the loads, before any owned partition moves. The round that follows a move then has nothing more to move.
3. Racks come third (KIP-881). Partitions that have to move go where a replica is. An owned partition moves for the sake
   of its rack only in a round in which nothing else moves and every partition has an owner. Java's assignor moves far
   partitions in every round, and cannot keep rule 2.
4. If two members claim a partition, the claim of the later generation is valid. Two claims of the same generation are
   both invalid.

A cooperative assignor (KIP-429) leaves a partition that moves unassigned. The owner releases the partition first, and
the next round, which follows at once, assigns it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from heapq import heapify, heapreplace

from tailrace.core.group.assignors.racks import NO_RACKS, PartitionRacks, RackAlignment, RackIndex
from tailrace.core.group.assignors.range_and_roundrobin import Assignment, SubscribedMember
from tailrace.records import TopicPartition

__all__ = ["claims_of", "cooperative_sticky_assignor", "release_first", "sticky_assignor"]


def sticky_assignor(
    members: Sequence[SubscribedMember], partitions: Mapping[str, int], racks: PartitionRacks = NO_RACKS
) -> Assignment:
    """Assign partitions evenly with few moves; a moved partition belongs to its new owner at once."""
    return _Table(members, partitions, racks).assign()


def cooperative_sticky_assignor(
    members: Sequence[SubscribedMember], partitions: Mapping[str, int], racks: PartitionRacks = NO_RACKS
) -> Assignment:
    """Assign partitions evenly with few moves; a moved partition is unassigned until its old owner has released it."""
    return release_first(members, sticky_assignor(members, partitions, racks))


def release_first(members: Sequence[SubscribedMember], assigned: Assignment) -> Assignment:
    """Return ``assigned`` without partitions that another member still claims; the next round assigns these partitions.

    Invalid claims of other members count, too, unless the member that gets the partition has the valid claim.
    """
    owner_of = claims_of(members)
    claimants: dict[TopicPartition, set[str]] = {}
    for member in members:
        for partition in member.owned:
            claimants.setdefault(partition, set()).add(member.member_id)
    return {
        member: [one for one in given if owner_of.get(one) == member or claimants.get(one, {member}) == {member}]
        for member, given in assigned.items()
    }


def claims_of(members: Iterable[SubscribedMember]) -> dict[TopicPartition, str]:
    """Return the member with the valid claim to each partition.

    Claims of members that no longer subscribe to the topic are ignored.
    """
    best: dict[TopicPartition, tuple[int, str | None]] = {}
    for member in members:
        for partition in member.owned:
            if partition.topic not in member.topics:
                continue
            generation, _ = best.get(partition, (member.generation - 1, None))
            if member.generation > generation:
                best[partition] = (member.generation, member.member_id)
            elif member.generation == generation:
                best[partition] = (generation, None)
    return {partition: owner for partition, (_, owner) in best.items() if owner is not None}


class _Table:
    """Partitions by member during an assignment.

    Members are numbered by rank, so that every leader computes the same assignment. Each member has a pile of
    partitions for each kind, and hands on the last partition of a pile first. Owned partitions are at the bottom of the
    pile. They are not in the pile yet while the partitions without an owner are placed.
    """

    def __init__(
        self, members: Sequence[SubscribedMember], partitions: Mapping[str, int], racks: PartitionRacks
    ) -> None:
        self.members = sorted(members, key=lambda member: member.rank)
        self.kinds = RackIndex([(member.topics, member.rack) for member in self.members], partitions, racks)
        claims = claims_of(members)
        numbers = {member.member_id: number for number, member in enumerate(self.members)}
        self.owner_of = [numbers[claims[one]] if one in claims else None for one in self.kinds.partitions]
        self.loads = [0] * len(self.members)
        self.counts: list[Counter[int]] = [Counter() for _ in self.members]
        """Number of partitions by member and topic."""
        self.piles: list[dict[int, list[int]]] = [{} for _ in self.members]
        """Partitions by member and kind."""
        self.moves = 0
        """Number of moves so far."""

    def assign(self) -> Assignment:
        """Return every member's partitions, sorted."""
        owned: list[dict[int, list[int]]] = [{} for _ in self.members]
        unowned = []
        for partition, owner in enumerate(self.owner_of):
            if owner is None:
                unowned.append(partition)
            else:
                kind = self.kinds.kind_of[partition]
                owned[owner].setdefault(kind, []).append(partition)
                self._count(owner, kind, 1)
        if unowned:
            self._assign_unowned(unowned)
            self._even_out()
        for pile, own in zip(self.piles, owned, strict=True):
            for kind, partitions in own.items():
                pile[kind] = partitions + pile.get(kind, [])
        has_moved = self._even_out()
        if self.kinds.has_racks:
            RackAlignment(self, is_calm=not unowned and not has_moved).run()
        shares = [sorted(one for pile in piles.values() for one in pile) for piles in self.piles]
        return {
            member.member_id: [self.kinds.partitions[one] for one in share]
            for member, share in zip(self.members, shares, strict=True)
        }

    # ---- one partition -----------------------------------------------------------------------------------------

    def _count(self, member: int, kind: int, more: int) -> None:
        self.loads[member] += more
        self.counts[member][self.kinds.topic_of[kind]] += more

    def _add_to(self, partition: int, receiver: int) -> None:
        """Put a partition on the receiver's pile."""
        kind = self.kinds.kind_of[partition]
        pile = self.piles[receiver].setdefault(kind, [])
        # A partition that returns to its owner is the last of the pile to be moved again.
        pile.insert(0 if self.owner_of[partition] == receiver else len(pile), partition)
        self._count(receiver, kind, 1)

    def move(self, giver: int, kind: int, receiver: int) -> None:
        """Move the topmost partition of the giver's pile of ``kind`` to the receiver."""
        pile = self.piles[giver][kind]
        partition = pile.pop()
        if not pile:
            del self.piles[giver][kind]
        self._count(giver, kind, -1)
        self._add_to(partition, receiver)
        self.moves += 1

    # ---- partitions without an owner ---------------------------------------------------------------------------

    def _assign_unowned(self, unowned: Iterable[int]) -> None:
        """Give each partition to the least loaded member near to it; partitions with the fewest candidates go first."""
        kinds = self.kinds
        choices = [kinds.near[kind] or kinds.subscribers_in[topic].keys() for kind, topic in enumerate(kinds.topic_of)]
        choice_count = [
            sum(len(kinds.subscribers_in[topic][rack]) for rack in choices[kind])
            for kind, topic in enumerate(kinds.topic_of)
        ]
        heaps: dict[tuple[int, str | None], list[tuple[int, int]]] = {}
        for partition in sorted(unowned, key=lambda one: (choice_count[kinds.kind_of[one]], one)):
            kind = kinds.kind_of[partition]
            topic = kinds.topic_of[kind]
            self._add_to(partition, min(self._least_loaded(topic, rack, heaps) for rack in choices[kind])[1])

    def _least_loaded(
        self, topic: int, rack: str | None, heaps: dict[tuple[int, str | None], list[tuple[int, int]]]
    ) -> tuple[int, int]:
        """Return the lowest load and the member with that load.

        Loads only grow while partitions are placed, so it is enough to correct the top of the heap.
        """
        heap = heaps.get((topic, rack))
        if heap is None:
            heap = heaps[topic, rack] = [(self.loads[one], one) for one in self.kinds.subscribers_in[topic][rack]]
            heapify(heap)
        while (load := self.loads[heap[0][1]]) != heap[0][0]:
            heapreplace(heap, (load, heap[0][1]))
        return heap[0]

    # ---- evenness ----------------------------------------------------------------------------------------------

    def _even_out(self) -> bool:
        """Move partitions from members with more partitions to members with fewer; return True if any was moved.

        Members above a level hand partitions on to members below the level until no path leads from a member above to a
        member below. Every member that can be reached from above then has a load of the level or more, and every other
        member has a load of the level or less. No move between the two parts would make loads more even, so each part
        is evened out by itself.
        """
        before = self.moves
        groups = [list(range(len(self.members)))]
        while groups:
            group = groups.pop()
            loads = [self.loads[one] for one in group]
            if not group or max(loads) - min(loads) < 2:
                continue
            level = sum(loads) // len(group)
            # Members far above the level go first, so that no more partitions are moved than necessary.
            self._shift(group, level + 1, level)
            stuck = self._shift(group, level, level)
            if len(stuck) == len(group):
                stuck = self._shift(group, level + 1, level + 1)
            groups += [sorted(stuck), [one for one in group if one not in stuck]]
        return self.moves > before

    def _shift(self, group: Sequence[int], floor: int, ceiling: int) -> Collection[int]:
        """Move partitions from members above the floor to members below the ceiling.

        Return the members that are still above the floor and all members that can be reached from them.
        """
        if all(self.loads[one] <= floor for one in group):
            return ()
        self._shift_directly(group, floor, ceiling)
        inside = frozenset(group)
        while True:
            paths = _Paths(self, inside, floor, ceiling)
            if not paths.lead_anywhere:
                return paths.step_of
            paths.follow()

    def _shift_directly(self, group: Sequence[int], floor: int, ceiling: int) -> None:
        """Move partitions in one step each: first moves that bring a partition near, last moves that take one far."""
        kinds = self.kinds
        receivers: dict[tuple[int, str | None], list[int]] = {}
        for member in reversed(group):
            if self.loads[member] < ceiling:
                for topic in kinds.topics_of[member]:
                    receivers.setdefault((topic, kinds.rack_of[member]), []).append(member)
        for least_gain in (1, 0, -1) if kinds.has_racks else (0,):
            for giver in group:
                while self.loads[giver] > floor:
                    offers = sorted(self._offers(giver, receivers, ceiling, least_gain), reverse=True)
                    if not offers:
                        break
                    for *_, kind, receiver in offers:
                        if self.loads[receiver] < ceiling and self.loads[giver] > floor and kind in self.piles[giver]:
                            self.move(giver, kind, receiver)

    def _offers(
        self, giver: int, receivers: Mapping[tuple[int, str | None], list[int]], ceiling: int, least_gain: int
    ) -> Iterator[tuple[bool, int, int, int]]:
        """Yield possible moves, of which the greatest is the best.

        Partitions that the giver does not own are preferred. The second criterion is the number of partitions of the
        topic that the giver has in excess of the receiver: more is better.
        """
        kinds = self.kinds
        for kind, pile in self.piles[giver].items():
            topic = kinds.topic_of[kind]
            for rack in kinds.subscribers_in[topic]:
                candidates = receivers.get((topic, rack), [])
                while candidates and self.loads[candidates[-1]] >= ceiling:
                    candidates.pop()
                if candidates and kinds.is_far(kind, giver) - (rack not in kinds.near[kind]) >= least_gain:
                    receiver = candidates[-1]
                    surplus = self.counts[giver][topic] - self.counts[receiver][topic]
                    yield self.owner_of[pile[-1]] != giver, surplus, kind, receiver


class _Paths:
    """All shortest paths by which members above the floor can hand partitions on to members below the ceiling.

    Attributes:
        step_of: number of moves to each reachable member.
        lead_anywhere: True if a reachable member is below the ceiling.
    """

    def __init__(self, table: _Table, inside: Collection[int], floor: int, ceiling: int) -> None:
        self._table, self._floor, self._ceiling = table, floor, ceiling
        self._step_of_topic: dict[int, int] = {}
        self._kinds_left: dict[int, list[int]] = {}
        self._receivers_left: dict[int, list[int]] = {}
        self.step_of = {one: 0 for one in sorted(inside) if table.loads[one] > floor}
        self.lead_anywhere = False
        ahead = list(self.step_of)
        while ahead and not self.lead_anywhere:
            ahead = [receiver for giver in ahead for receiver in self._reach(giver, inside)]
            self.lead_anywhere = any(table.loads[one] < ceiling for one in ahead)

    def _reach(self, giver: int, inside: Collection[int]) -> Iterator[int]:
        kinds = self._table.kinds
        step = self.step_of[giver] + 1
        for kind in self._table.piles[giver]:
            topic = kinds.topic_of[kind]
            if topic in self._step_of_topic:
                continue
            self._step_of_topic[topic] = step
            for receiver in kinds.subscribers[topic]:
                if receiver in inside and receiver not in self.step_of:
                    self.step_of[receiver] = step
                    yield receiver

    def follow(self) -> None:
        """Move partitions along the paths until all paths are blocked."""
        table = self._table
        for giver in [one for one, step in self.step_of.items() if step == 0]:
            while table.loads[giver] > self._floor and (path := self._next_path(giver)):
                for sender, kind, receiver in path:
                    table.move(sender, kind, receiver)

    def _next_path(self, start: int) -> list[tuple[int, int, int]]:
        """Return the moves of a path that is not blocked; empty if all paths are blocked."""
        path: list[tuple[int, int, int]] = []
        here = start
        while True:
            found = self._next_move(here)
            if found is not None:
                kind, receiver = found
                path.append((here, kind, receiver))
                if self._table.loads[receiver] < self._ceiling:
                    return path
                here = receiver
            elif path:
                # This member is exhausted.
                here, kind, _ = path.pop()
                self._receivers_left[self._table.kinds.topic_of[kind]].pop()
            else:
                return path

    def _next_move(self, here: int) -> tuple[int, int] | None:
        table = self._table
        step = self.step_of[here] + 1
        kinds_left = self._kinds_left.setdefault(here, list(table.piles[here]))
        while kinds_left:
            kind = kinds_left[-1]
            topic = table.kinds.topic_of[kind]
            if kind in table.piles[here] and self._step_of_topic.get(topic) == step:
                receivers_left = self._receivers_left.get(topic)
                if receivers_left is None:
                    receivers_left = [one for one in table.kinds.subscribers[topic] if self.step_of.get(one) == step]
                    self._receivers_left[topic] = receivers_left
                if receivers_left:
                    return kind, receivers_left[-1]
            kinds_left.pop()
        return None
