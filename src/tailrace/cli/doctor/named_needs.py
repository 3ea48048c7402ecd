"""Topics and groups to check, from the arguments ``--topic`` and ``--group``."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from typing import TypeAlias

from tailrace.admin.diagnosis.needs import ClusterNeeds, GroupNeeds, TopicNeeds

__all__ = ["NeedsOf", "no_needs", "with_named_needs"]

NeedsOf: TypeAlias = Callable[[Collection[str]], ClusterNeeds]
"""Function that returns the topics and groups to check, given the names of all topics of the cluster."""


def no_needs(_existing: Collection[str]) -> ClusterNeeds:
    """Return no topics and no groups, so that all topics of the cluster are checked."""
    return ClusterNeeds()


def with_named_needs(needs_of: NeedsOf, groups: Iterable[str], topics: Iterable[str]) -> NeedsOf:
    """Return a function that adds ``groups`` and ``topics`` to the result of ``needs_of``."""

    def needs(existing: Collection[str]) -> ClusterNeeds:
        found = needs_of(existing)
        known = {one.group_id for one in found.groups}
        return ClusterNeeds(
            (*found.groups, *(GroupNeeds(one) for one in dict.fromkeys(groups) if one not in known)),
            {**{name: TopicNeeds(name) for name in topics}, **found.topics},
        )

    return needs
