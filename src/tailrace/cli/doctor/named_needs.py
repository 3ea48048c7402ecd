"""Topics and groups to check that the command line names."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from typing import TypeAlias

from tailrace.core.diagnosis.needs import ClusterNeeds, GroupNeeds, TopicNeeds

__all__ = ["NeedsOf", "no_needs", "with_names"]

NeedsOf: TypeAlias = Callable[[Collection[str]], ClusterNeeds]
"""Function that returns the topics and groups to check; its argument is the names of all topics in the cluster."""


def no_needs(_existing: Collection[str]) -> ClusterNeeds:
    """Return no topics and groups, so that the whole cluster is checked."""
    return ClusterNeeds()


def with_names(needs_of: NeedsOf, groups: Iterable[str], topics: Iterable[str]) -> NeedsOf:
    """Return ``needs_of`` with further groups and topics, named on the command line."""

    def needs(existing: Collection[str]) -> ClusterNeeds:
        found = needs_of(existing)
        known = {one.group_id for one in found.groups}
        return ClusterNeeds(
            (*found.groups, *(GroupNeeds(one) for one in dict.fromkeys(groups) if one not in known)),
            {**{name: TopicNeeds(name) for name in topics}, **found.topics},
        )

    return needs
