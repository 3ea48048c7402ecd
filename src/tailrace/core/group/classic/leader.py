"""The leader's part in a classic generation: deal out the partitions, and watch what was dealt.

Rule of this file: a ``GroupLeader`` lasts for one generation and knows its members as they joined. What it deals is
checked before anybody hears of it (``core.group.assignors.strategies``). A static one that restarts is told by the
group to deal nothing, and cannot know from that what there was to deal: it leaves itself a note, beside its own share.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from hashlib import blake2b

from tailrace.core.group.assignors.range_and_roundrobin import SubscribedMember
from tailrace.core.group.assignors.strategies import Strategy, checked_deal
from tailrace.core.group.events import JoinedAsLeader, PartitionsFound
from tailrace.protocol.member_metadata import MemberAssignment, MemberSubscription, OwnedPartitions
from tailrace.records import TopicPartition

__all__ = ["GroupLeader", "by_topic"]

_SIGNED = b"assigned from "
"""What notes of ours begin with; what other clients write there is theirs."""


class GroupLeader:
    """One generation's leader."""

    def __init__(self, joined: JoinedAsLeader, strategy: Strategy) -> None:
        self._joined, self._strategy = joined, strategy
        self._dealt: Mapping[str, int] = {}
        self.topics = frozenset(topic for said in joined.members.values() for topic in said.topics)
        """What all members together want, which is what the leader has to watch."""

    def deal(self, found: PartitionsFound) -> dict[str, MemberAssignment]:
        """Each member's share; nothing at all when the group goes on with what it has (KIP-814).

        Raises:
            RebalanceError: the strategy's function failed, or what it returned is not an assignment.
        """
        self._dealt = found.counts
        if self._joined.skip_assignment:
            return {}
        instances = self._joined.instances
        members = [_as_dealt_to(m, said, instances.get(m)) for m, said in self._joined.members.items()]
        given = checked_deal(self._strategy, members, found.counts, found.racks)
        dealt = {member: MemberAssignment(by_topic(given.get(member, ()))) for member in self._joined.members}
        if (me := self._joined.member_id) in instances:
            dealt[me] = replace(dealt[me], user_data=_note_of(found.counts))
        return dealt

    def recall(self, mine: MemberAssignment) -> None:
        """See from this member's share, as the group has kept it, whether there was something else to deal then."""
        note = bytes(mine.user_data or b"")
        if note.startswith(_SIGNED) and note != _note_of(self._dealt):
            self._dealt = {}

    def is_outdated_by(self, counts: Mapping[str, int]) -> bool:
        """Whether topics have grown, come or gone since; one that ``counts`` says nothing of has not changed."""
        dealt = {topic: self._dealt.get(topic, 0) for topic in self.topics}
        return any(counts.get(topic, before) != before for topic, before in dealt.items())


def _note_of(counts: Mapping[str, int]) -> bytes:
    """A few bytes, however many topics there are."""
    return _SIGNED + blake2b(repr(sorted(counts.items())).encode(), digest_size=8).digest()


def by_topic(partitions: Iterable[TopicPartition]) -> tuple[OwnedPartitions, ...]:
    """Partitions as members tell each other of them."""
    topics: dict[str, list[int]] = {}
    for topic, partition in sorted(partitions):
        topics.setdefault(topic, []).append(partition)
    return tuple(OwnedPartitions(topic, tuple(found)) for topic, found in topics.items())


def _as_dealt_to(member_id: str, said: MemberSubscription, instance_id: str | None) -> SubscribedMember:
    owned = frozenset(TopicPartition(one.topic, p) for one in said.owned_partitions for p in one.partitions)
    return SubscribedMember(member_id, frozenset(said.topics), instance_id, owned, said.generation_id, said.rack_id)
