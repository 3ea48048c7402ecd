"""Leader of a classic generation: computes the assignment and detects when it is outdated.

After a static leader restarts, the group keeps its assignment and the leader must send none (KIP-814). Every static
member that starts checks the assignment that the group has kept; see ``core.group.classic.steps``.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from tailrace.core.group.assignors.range_and_roundrobin import SubscribedMember
from tailrace.core.group.assignors.strategies import Strategy, checked_assignment
from tailrace.core.group.events import JoinedAsLeader, PartitionsFound
from tailrace.protocol.member_metadata import MemberAssignment, MemberSubscription, OwnedPartitions
from tailrace.records import TopicPartition

__all__ = ["GroupLeader", "by_topic"]


class GroupLeader:
    """Leader of one generation."""

    def __init__(self, joined: JoinedAsLeader, strategy: Strategy) -> None:
        self._joined, self._strategy = joined, strategy
        self._counts: Mapping[str, int] = {}
        """Partition counts on which the assignment is based."""
        self.is_withholding = False
        """True if the assignment lacks partitions that their owners have to release first (KIP-429)."""
        self.topics = frozenset(topic for subscription in joined.members.values() for topic in subscription.topics)
        """Topics of all members; the leader watches their partition counts."""

    def assign(self, found: PartitionsFound) -> dict[str, MemberAssignment]:
        """Return the assignment of each member; empty if the group keeps its assignment (KIP-814).

        The assignment is based on the partition counts in ``found``.

        Raises:
            RebalanceError: the strategy's function failed, or its result is not an assignment.
        """
        self._counts = found.counts
        if self._joined.skip_assignment:
            return {}
        instances = self._joined.instances
        members = [
            _as_subscribed(m, subscription, instances.get(m)) for m, subscription in self._joined.members.items()
        ]
        partitions = checked_assignment(self._strategy, members, found.counts, found.racks)
        self.is_withholding = sum(map(len, partitions.values())) < sum(found.counts.values())
        return {member: MemberAssignment(by_topic(partitions.get(member, ()))) for member in self._joined.members}

    def is_outdated_by(self, counts: Mapping[str, int]) -> bool:
        """Return True if partition counts of the members' topics have changed since the assignment.

        A topic that does not exist has 0 partitions. Topics that are not in ``counts`` have not changed.
        """
        assigned = {topic: self._counts.get(topic, 0) for topic in self.topics}
        return any(counts.get(topic, before) != before for topic, before in assigned.items())


def by_topic(partitions: Iterable[TopicPartition]) -> tuple[OwnedPartitions, ...]:
    """Return the partitions of each topic, in the form of a subscription or assignment."""
    topics: dict[str, list[int]] = {}
    for topic, partition in sorted(partitions):
        topics.setdefault(topic, []).append(partition)
    return tuple(OwnedPartitions(topic, tuple(found)) for topic, found in topics.items())


def _as_subscribed(member_id: str, subscription: MemberSubscription, instance_id: str | None) -> SubscribedMember:
    owned = frozenset(TopicPartition(one.topic, p) for one in subscription.owned_partitions for p in one.partitions)
    return SubscribedMember(
        member_id, frozenset(subscription.topics), instance_id, owned, subscription.generation_id, subscription.rack_id
    )
