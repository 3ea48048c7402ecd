"""Sticky assignors (``sticky`` and ``cooperative-sticky``): even loads with as few moves as possible.

Pure: no clock, IO or logging.

1. Even loads come first. After the assignment, no member has at least two partitions more than another member that
   could receive one of them, directly or through other members.
2. Partitions stay with their owner, unless even loads require a move. Partitions without an owner are assigned first,
   and are moved to even out the loads before any owned partition is moved. If the same members rebalance again, no
   partition has to move to even out the loads.
3. Racks come third (KIP-881). A partition that moves goes to a member to which it is near, if there is one. An owned
   partition is moved to bring it near only if every partition has an owner and no partition has to move to even out the
   loads. Java's assignor moves far partitions in every rebalance and so does not keep rule 2.
4. If several members claim to own a partition, the claim of the latest generation is valid. If two members claim it in
   that generation, no claim is valid.

The cooperative assignor (KIP-429) leaves a partition that moves unassigned. The owner releases the partition and joins
again, and the next assignment contains it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from heapq import heapify, heapreplace

from tailrace.consumer.group.range_assignor import (
    NO_RACKS,
    UNKNOWN_RACKS,
    Assignment,
    PartitionRacks,
    SubscribedMember,
    do_racks_matter,
)
from tailrace.records import TopicPartition

__all__ = ["claims_of", "release_first", "sticky_assignor"]


def sticky_assignor(
    members: Sequence[SubscribedMember], partitions: Mapping[str, int], racks: PartitionRacks = NO_RACKS
) -> Assignment:
    """Assign partitions evenly with few moves.

    With "sticky", a moved partition belongs to its new owner at once. With "cooperative-sticky", ``release_first``
    removes it from the assignment until its old owner has released it.
    """
    return _Table(members, partitions, racks).assign()


def release_first(members: Sequence[SubscribedMember], assigned: Assignment) -> Assignment:
    """Return ``assigned`` without partitions that another member claims to own; the next rebalance assigns them.

    A member keeps a partition to which it has the valid claim. It gets any other partition only if no other member
    claims the partition, not even with an invalid claim.
    """
    owner_of = claims_of(members)
    claimants: dict[TopicPartition, set[str]] = {}
    for member in members:
        for partition in member.owned:
            claimants.setdefault(partition, set()).add(member.member_id)
    return {
        member: [one for one in share if owner_of.get(one) == member or claimants.get(one, {member}) == {member}]
        for member, share in assigned.items()
    }


def claims_of(members: Iterable[SubscribedMember]) -> dict[TopicPartition, str]:
    """Return the member with the valid claim to each partition; partitions without a valid claim are left out.

    A claim is ignored if the member no longer subscribes to the topic.
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
    """Partitions of each member during an assignment.

    Members are numbered by rank, so that every leader computes the same assignment. Each member has one pile of
    partitions for each kind of partition, and the last partition of a pile is moved first. Owned partitions are the
    first of their pile. They are added only after the partitions without an owner have been assigned and evened out.

    Attributes:
        index: index of the members and of the kinds of partitions.
        owner_of: previous owner of each partition; None if it has none.
        loads: number of partitions of each member.
    """

    def __init__(
        self, members: Sequence[SubscribedMember], partitions: Mapping[str, int], racks: PartitionRacks
    ) -> None:
        self.members = sorted(members, key=lambda member: member.rank)
        self.index = _RackIndex([(member.topics, member.rack) for member in self.members], partitions, racks)
        claims = claims_of(members)
        numbers = {member.member_id: number for number, member in enumerate(self.members)}
        self.owner_of = [numbers[claims[one]] if one in claims else None for one in self.index.partitions]
        self.loads = [0] * len(self.members)
        self.counts: list[Counter[int]] = [Counter() for _ in self.members]
        """Number of partitions of each member, by topic."""
        self.piles: list[dict[int, list[int]]] = [{} for _ in self.members]
        """Partitions of each member, as one pile for each kind."""
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
                kind = self.index.kind_of[partition]
                owned[owner].setdefault(kind, []).append(partition)
                self._count(owner, kind, 1)
        if unowned:
            self._assign_unowned(unowned)
            self._even_out()
        for piles, owned_piles in zip(self.piles, owned, strict=True):
            for kind, partitions in owned_piles.items():
                piles[kind] = partitions + piles.get(kind, [])
        has_moved = self._even_out()
        if self.index.has_racks:
            _RackAlignment(self, may_move_owned=not unowned and not has_moved).run()
        shares = [sorted(one for pile in piles.values() for one in pile) for piles in self.piles]
        return {
            member.member_id: [self.index.partitions[one] for one in share]
            for member, share in zip(self.members, shares, strict=True)
        }

    # ---- one partition -------------------------------------------------------------------------------------------

    def _count(self, member: int, kind: int, more: int) -> None:
        self.loads[member] += more
        self.counts[member][self.index.topic_of[kind]] += more

    def _add_to(self, partition: int, receiver: int) -> None:
        """Add a partition to the receiver's pile of its kind."""
        kind = self.index.kind_of[partition]
        pile = self.piles[receiver].setdefault(kind, [])
        # A partition that returns to its owner is put first, so that it is the last to be moved again.
        pile.insert(0 if self.owner_of[partition] == receiver else len(pile), partition)
        self._count(receiver, kind, 1)

    def move(self, giver: int, kind: int, receiver: int) -> None:
        """Move the last partition of the giver's pile of ``kind`` to the receiver."""
        pile = self.piles[giver][kind]
        partition = pile.pop()
        if not pile:
            del self.piles[giver][kind]
        self._count(giver, kind, -1)
        self._add_to(partition, receiver)
        self.moves += 1

    # ---- partitions without an owner -----------------------------------------------------------------------------

    def _assign_unowned(self, unowned: Iterable[int]) -> None:
        """Assign each partition to the least loaded candidate; partitions with the fewest candidates come first.

        The candidates are the subscribers to which the partition is near, or all subscribers if there is none.
        """
        index = self.index
        rack_choices = [
            index.near[kind] or index.subscribers_in[topic].keys() for kind, topic in enumerate(index.topic_of)
        ]
        choice_count = [
            sum(len(index.subscribers_in[topic][rack]) for rack in rack_choices[kind])
            for kind, topic in enumerate(index.topic_of)
        ]
        heaps: dict[tuple[int, str | None], list[tuple[int, int]]] = {}
        for partition in sorted(unowned, key=lambda one: (choice_count[index.kind_of[one]], one)):
            kind = index.kind_of[partition]
            topic = index.topic_of[kind]
            self._add_to(partition, min(self._least_loaded(topic, rack, heaps) for rack in rack_choices[kind])[1])

    def _least_loaded(
        self, topic: int, rack: str | None, heaps: dict[tuple[int, str | None], list[tuple[int, int]]]
    ) -> tuple[int, int]:
        """Return the lowest load of the subscribers of ``topic`` in ``rack``, and a member with that load.

        ``heaps`` has a heap of loads and members for each topic and rack. Loads only grow while partitions are
        assigned, so an outdated load matters only at the top of a heap, where it is replaced.
        """
        heap = heaps.get((topic, rack))
        if heap is None:
            heap = heaps[topic, rack] = [(self.loads[one], one) for one in self.index.subscribers_in[topic][rack]]
            heapify(heap)
        while (load := self.loads[heap[0][1]]) != heap[0][0]:
            heapreplace(heap, (load, heap[0][1]))
        return heap[0]

    # ---- evenness ------------------------------------------------------------------------------------------------

    def _even_out(self) -> bool:
        """Move partitions from members with more partitions to members with fewer; return True if any was moved.

        The *level* of a group of members is their mean load, rounded down. Partitions are moved from members above the
        level to members below it, directly or through other members, until no path is left from members above to
        members below. Then the members that can be reached from members above the level have at least the level as
        load, and all others have at most the level. No move between these two parts of the group would make loads more
        even, so each part is evened out by itself.
        """
        before = self.moves
        groups = [list(range(len(self.members)))]
        while groups:
            group = groups.pop()
            loads = [self.loads[one] for one in group]
            if not group or max(loads) - min(loads) < 2:
                continue
            level = sum(loads) // len(group)
            # First from members above level + 1, so that no more partitions are moved than necessary.
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
            if not paths.reaches_receiver:
                return paths.step_of
            paths.follow()

    def _shift_directly(self, group: Sequence[int], floor: int, ceiling: int) -> None:
        """Move partitions directly from members above the floor to members below the ceiling.

        Moves that bring a partition near come first, moves that make a partition far come last.
        """
        index = self.index
        receivers: dict[tuple[int, str | None], list[int]] = {}
        for member in reversed(group):
            if self.loads[member] < ceiling:
                for topic in index.topics_of[member]:
                    receivers.setdefault((topic, index.rack_of[member]), []).append(member)
        for least_gain in (1, 0, -1) if index.has_racks else (0,):
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
        """Yield possible moves of a partition away from ``giver``; the greatest tuple is the best move.

        The tuple consists of True if ``giver`` is not the partition's previous owner, the number of partitions of the
        topic that ``giver`` has more than the receiver, the kind of the partition, and the receiver. Moves gain
        nearness by ``least_gain`` or more: 1 if a far partition becomes near, 0 without a change, -1 if a near
        partition becomes far.
        """
        index = self.index
        for kind, pile in self.piles[giver].items():
            topic = index.topic_of[kind]
            for rack in index.subscribers_in[topic]:
                candidates = receivers.get((topic, rack), [])
                while candidates and self.loads[candidates[-1]] >= ceiling:
                    candidates.pop()
                if candidates and index.is_far(kind, giver) - (rack not in index.near[kind]) >= least_gain:
                    receiver = candidates[-1]
                    surplus = self.counts[giver][topic] - self.counts[receiver][topic]
                    yield self.owner_of[pile[-1]] != giver, surplus, kind, receiver


class _Paths:
    """Shortest paths of moves from members above the floor to members below the ceiling.

    On a path, each member receives a partition from the member before it, and passes a partition to the next.

    Attributes:
        step_of: number of moves to each member that can be reached from a member above the floor.
        reaches_receiver: True if a member below the ceiling can be reached.
    """

    def __init__(self, table: _Table, inside: Collection[int], floor: int, ceiling: int) -> None:
        self._table, self._floor, self._ceiling = table, floor, ceiling
        self._step_of_topic: dict[int, int] = {}
        """For each topic, the number of the move on a path in which a partition of the topic is passed on."""
        self._kinds_left: dict[int, list[int]] = {}
        """Kinds of partitions that each member may still pass on."""
        self._receivers_left: dict[int, list[int]] = {}
        """Subscribers of each topic to which a partition may still be passed."""
        self.step_of = {one: 0 for one in sorted(inside) if table.loads[one] > floor}
        self.reaches_receiver = False
        frontier = list(self.step_of)
        while frontier and not self.reaches_receiver:
            frontier = [receiver for giver in frontier for receiver in self._reach(giver, inside)]
            self.reaches_receiver = any(table.loads[one] < ceiling for one in frontier)

    def _reach(self, giver: int, inside: Collection[int]) -> Iterator[int]:
        """Yield the members of ``inside`` that are first reached by a move from ``giver``."""
        index = self._table.index
        step = self.step_of[giver] + 1
        for kind in self._table.piles[giver]:
            topic = index.topic_of[kind]
            if topic in self._step_of_topic:
                continue
            self._step_of_topic[topic] = step
            for receiver in index.subscribers[topic]:
                if receiver in inside and receiver not in self.step_of:
                    self.step_of[receiver] = step
                    yield receiver

    def follow(self) -> None:
        """Move partitions along the paths until no path is left on which every member can pass on a partition."""
        table = self._table
        for giver in [one for one, step in self.step_of.items() if step == 0]:
            while table.loads[giver] > self._floor and (path := self._next_path(giver)):
                for sender, kind, receiver in path:
                    table.move(sender, kind, receiver)

    def _next_path(self, start: int) -> list[tuple[int, int, int]]:
        """Return the moves of a path from ``start``; empty if no path is left."""
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
                # No path leads on from this member.
                here, kind, _ = path.pop()
                self._receivers_left[self._table.index.topic_of[kind]].pop()
            else:
                return path

    def _next_move(self, here: int) -> tuple[int, int] | None:
        """Return the kind and the receiver of a move that continues a path at ``here``; None if there is none."""
        table = self._table
        step = self.step_of[here] + 1
        kinds_left = self._kinds_left.setdefault(here, list(table.piles[here]))
        while kinds_left:
            kind = kinds_left[-1]
            topic = table.index.topic_of[kind]
            if kind in table.piles[here] and self._step_of_topic.get(topic) == step:
                receivers_left = self._receivers_left.get(topic)
                if receivers_left is None:
                    receivers_left = [one for one in table.index.subscribers[topic] if self.step_of.get(one) == step]
                    self._receivers_left[topic] = receivers_left
                if receivers_left:
                    return kind, receivers_left[-1]
            kinds_left.pop()
        return None


# ---- racks (KIP-881) -------------------------------------------------------------------------------------------------


class _RackIndex:
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


class _RackAlignment:
    """Moves and exchanges of partitions that bring partitions near to their members.

    No move or exchange makes a near partition far, or the loads less even.

    Args:
        table: partitions of each member.
        may_move_owned: True if partitions may be moved away from their previous owner.
    """

    def __init__(self, table: _Table, *, may_move_owned: bool) -> None:
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
