"""Leader of a classic generation: computes the assignment and detects when it is outdated.

After a static leader restarts, the group keeps its assignment and the leader must send none (KIP-814). The restarted
leader does not know on which partition counts that assignment is based. A static leader therefore stores a digest of
the partition counts in the user data of its own assignment, which it receives again after a restart.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from hashlib import blake2b

from msgspec.structs import replace

from tailrace.core.group.assignors.range_and_roundrobin import SubscribedMember
from tailrace.core.group.assignors.strategies import Strategy, checked_assignment
from tailrace.core.group.events import JoinedAsLeader, PartitionsFound
from tailrace.protocol.member_metadata import MemberAssignment, MemberSubscription, OwnedPartitions
from tailrace.records import TopicPartition

__all__ = ["GroupLeader", "by_topic"]

_DIGEST_PREFIX = b"assigned from "
"""Prefix of the digests that tailrace writes; user data without the prefix was written by another client."""


class GroupLeader:
    """Leader of one generation."""

    def __init__(self, joined: JoinedAsLeader, strategy: Strategy) -> None:
        self._joined, self._strategy = joined, strategy
        self._counts: Mapping[str, int] = {}
        """Partition counts on which the assignment is based; empty if they are unknown or have changed since."""
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
        assigned = {member: MemberAssignment(by_topic(partitions.get(member, ()))) for member in self._joined.members}
        if (me := self._joined.member_id) in instances:
            assigned[me] = replace(assigned[me], user_data=_digest_of(found.counts))
        return assigned

    def check_digest(self, mine: MemberAssignment) -> None:
        """Compare the digest in ``mine``, this member's own assignment, with the current partition counts.

        If the counts have changed since the digest was written, the assignment is outdated.
        """
        digest = bytes(mine.user_data or b"")
        if digest.startswith(_DIGEST_PREFIX) and digest != _digest_of(self._counts):
            self._counts = {}

    def is_outdated_by(self, counts: Mapping[str, int]) -> bool:
        """Return True if partition counts of the members' topics have changed since the assignment.

        A topic that does not exist has 0 partitions. Topics that are not in ``counts`` have not changed.
        """
        assigned = {topic: self._counts.get(topic, 0) for topic in self.topics}
        return any(counts.get(topic, before) != before for topic, before in assigned.items())


def _digest_of(counts: Mapping[str, int]) -> bytes:
    """Return a digest of partition counts; its size does not depend on the number of topics."""
    return _DIGEST_PREFIX + blake2b(repr(sorted(counts.items())).encode(), digest_size=8).digest()


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
