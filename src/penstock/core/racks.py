"""Which replicas are near which members (KIP-881): a partition with a replica in a member's rack is read from there.

Rule of this file: a member that does not say where it is has nothing to gain, so nothing is far from it. A partition
of whose replicas nothing is known is far from everybody else.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from types import MappingProxyType
from typing import TypeAlias

from penstock.records import TopicPartition

__all__ = ["NO_RACKS", "PartitionRacks", "do_racks_matter", "is_near"]

PartitionRacks: TypeAlias = Mapping[TopicPartition, frozenset[str]]
"""Where the replicas of each partition are, those that are offline too."""

NO_RACKS: PartitionRacks = MappingProxyType({})
NOWHERE: frozenset[str] = frozenset()


def is_near(rack: str | None, replicas: Collection[str]) -> bool:
    """Whether a member in ``rack`` has a replica beside it, or does not care."""
    return not rack or rack in replicas


def do_racks_matter(of_members: Collection[str | None], of_partitions: Collection[frozenset[str]]) -> bool:
    """Whether it makes a difference who gets what: some member is near some replica, and not all alike."""
    everywhere = NOWHERE.union(*of_partitions)
    if everywhere.isdisjoint(rack for rack in of_members if rack):
        return False
    return any(replicas != everywhere for replicas in of_partitions)
