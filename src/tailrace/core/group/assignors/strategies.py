"""Assignment strategies by name: Kafka's own strategies and functions of the user.

The result of a strategy is checked before it is sent to the group: an error that names the faulty strategy is better
than a partition assigned twice or not at all.
"""

from __future__ import annotations

import difflib
import inspect
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import TypeAlias

from tailrace.core.group.assignors.racks import PartitionRacks
from tailrace.core.group.assignors.range_and_roundrobin import (
    Assignment,
    SubscribedMember,
    range_assignor,
    roundrobin_assignor,
)
from tailrace.core.group.assignors.sticky import cooperative_sticky_assignor, release_first, sticky_assignor
from tailrace.errors import ConfigurationError, RebalanceError
from tailrace.records import TopicPartition

__all__ = [
    "BUILT_IN",
    "AssignFunction",
    "AssignResult",
    "Strategy",
    "UserAssignor",
    "are_cooperative",
    "checked_assignment",
    "strategies_of",
    "strategy_of",
]

AssignResult: TypeAlias = Mapping[str, Iterable[tuple[str, int]]]
"""Partitions by member id; a member without an entry gets no partitions."""

AssignFunction: TypeAlias = Callable[[Sequence[SubscribedMember], Mapping[str, int], PartitionRacks], AssignResult]
UserAssignor: TypeAlias = Callable[[Sequence[SubscribedMember], Mapping[str, int]], AssignResult]

_OPTION = "partition_assignment_strategy"
_SHOWN = 3


@dataclass(frozen=True, slots=True)
class Strategy:
    """Name and function of an assignment strategy.

    With a cooperative strategy (KIP-429), the old owner of a partition releases it before another member gets it.
    """

    name: str
    assign: AssignFunction
    is_cooperative: bool = False


@dataclass(frozen=True, slots=True)
class _OfUser:
    """Adapter of a user's function, which takes no racks. Adapters of the same function are equal."""

    function: UserAssignor

    def __call__(
        self, members: Sequence[SubscribedMember], partitions: Mapping[str, int], _racks: PartitionRacks
    ) -> AssignResult:
        return self.function(members, partitions)


BUILT_IN: Mapping[str, Strategy] = MappingProxyType(
    {
        strategy.name: strategy
        for strategy in (
            Strategy("range", range_assignor),
            Strategy("roundrobin", roundrobin_assignor),
            Strategy("sticky", sticky_assignor),
            Strategy("cooperative-sticky", cooperative_sticky_assignor, is_cooperative=True),
        )
    }
)
"""Kafka's strategies by protocol name."""


def strategy_of(given: str | UserAssignor) -> Strategy:
    """Return the strategy for the name of a built-in or a function of the user.

    Raises:
        ConfigurationError: no strategy has that name, or the function or its name is not usable.
    """
    if isinstance(given, str):
        return _built_in(given)
    if not _is_plain_function(given):
        raise ConfigurationError(
            f"{_OPTION} must name one of {_known()},"
            f" or be a plain function (members, partitions) -> {{member_id: [TopicPartition, ...]}}, not {given!r}"
        )
    name = getattr(given, "name", None) or getattr(given, "__name__", None)
    if not isinstance(name, str):
        raise ConfigurationError(
            f"{_OPTION}: {given!r} has no name - set its attribute `name` to a string, the same in every member"
        )
    if name in BUILT_IN:
        raise ConfigurationError(
            f"{_OPTION}: {given!r} has the name of the built-in {name!r}, so members with the built-in"
            f" would accept its results - give your function another `name`, or pass {name!r} for the built-in"
        )
    return Strategy(name, _OfUser(given), bool(getattr(given, "is_cooperative", False)))


def strategies_of(given: Sequence[str | UserAssignor]) -> tuple[Strategy, ...]:
    """Return the strategies that a member offers, in order.

    Raises:
        ConfigurationError: ``given`` is empty, has a name twice, or has an unusable entry.
    """
    offered = tuple(map(strategy_of, [given] if isinstance(given, str) else given))
    if not offered:
        raise ConfigurationError(f"{_OPTION} must not be empty - name one or more of {_known()}")
    twice = [name for name, times in Counter(one.name for one in offered).items() if times > 1]
    if twice:
        raise ConfigurationError(f"{_OPTION}: {twice[0]!r} occurs twice - remove or rename one of them")
    return offered


def are_cooperative(strategies: Iterable[Strategy]) -> bool:
    """Return True if members that offer ``strategies`` keep their partitions through a rebalance (KIP-429).

    Every strategy must be cooperative, because a member keeps or releases its partitions before the group chooses one.
    """
    return all(strategy.is_cooperative for strategy in strategies)


def checked_assignment(
    strategy: Strategy,
    members: Sequence[SubscribedMember],
    partitions: Mapping[str, int],
    racks: PartitionRacks,
) -> Assignment:
    """Return every member's partitions.

    With a cooperative strategy, partitions that another member has yet to release are left out.

    Raises:
        RebalanceError: the strategy's function failed, or its result is not an assignment.
    """
    try:
        given = _listed(strategy.assign(members, partitions, racks))
    except Exception as error:
        raise _refusal(strategy, f"raised {type(error).__name__}: {error}") from error
    if not isinstance(given, dict):
        raise _refusal(strategy, f"returned {given!r} instead of a mapping of member ids to partitions")
    for fault in _faults(given, members, partitions):
        raise _refusal(strategy, fault)
    shares = {m.member_id: [TopicPartition(*one) for one in given.get(m.member_id, ())] for m in members}
    if missing := _left_out(strategy, shares, members, partitions):
        raise _refusal(strategy, f"leaves {missing} unassigned, although a member subscribes to the topic")
    return release_first(members, shares) if strategy.is_cooperative else shares


def _is_plain_function(given: object) -> bool:
    return callable(given) and not isinstance(given, type) and not inspect.iscoroutinefunction(given)


def _built_in(name: str) -> Strategy:
    if name in BUILT_IN:
        return BUILT_IN[name]
    close = difflib.get_close_matches(name.lower().replace("_", "-"), BUILT_IN, n=1)
    hint = f"did you mean {close[0]!r}? The built-ins are {_known()}" if close else f"the built-ins are {_known()}"
    raise ConfigurationError(f"{_OPTION}: no built-in is called {name!r} - {hint}, or pass a function")


def _known() -> str:
    return ", ".join(BUILT_IN)


def _refusal(strategy: Strategy, fault: str) -> RebalanceError:
    return RebalanceError(
        f"the assignment strategy {strategy.name!r} {fault}"
        " - correct your assignor; the group's members get no partitions until then"
    )


def _listed(assigned: object) -> object:
    """Convert every iterable to a list, because it may be a generator of the user that raises an error."""
    if not isinstance(assigned, Mapping):
        return assigned
    return {name: list(ones) if isinstance(ones, Iterable) else ones for name, ones in assigned.items()}


def _faults(
    given: Mapping[object, object], members: Sequence[SubscribedMember], partitions: Mapping[str, int]
) -> Iterator[str]:
    """Yield a description of each fault in a member's partitions, such as a partition that is assigned twice."""
    topics: Mapping[object, frozenset[str]] = {member.member_id: member.topics for member in members}
    assigned_to: dict[object, object] = {}
    for member, ones in given.items():
        if member not in topics:
            yield f"names {member!r}, which is not a member of the group"
        elif not isinstance(ones, list):
            yield f"gives {member!r} {ones!r}, which is not a list of partitions"
        else:
            for one in ones:
                if fault := _fault_of(one, topics[member], partitions):
                    yield f"gives {member!r} {fault}"
                elif one in assigned_to:
                    yield f"gives {TopicPartition(*one)} twice, to {assigned_to[one]!r} and to {member!r}"
                else:
                    assigned_to[one] = member


def _fault_of(one: object, subscribed: frozenset[str], partitions: Mapping[str, int]) -> str | None:
    match one:
        case (str(topic), int(number)) if isinstance(one, tuple) and not isinstance(number, bool):
            partition = TopicPartition(topic, number)
            if not 0 <= number < partitions.get(topic, 0):
                return f"{partition}, which does not exist"
            return None if topic in subscribed else f"{partition}, to whose topic it does not subscribe"
    return f"{one!r}, which is not a (topic, number)"


def _left_out(
    strategy: Strategy, shares: Assignment, members: Sequence[SubscribedMember], partitions: Mapping[str, int]
) -> str:
    """Return the subscribed partitions that are not assigned, as text.

    A cooperative strategy may leave out partitions that a member owns.
    """
    assigned = {one for share in shares.values() for one in share}
    if strategy.is_cooperative:
        assigned.update(one for member in members for one in member.owned)
    wanted = sorted({topic for member in members for topic in member.topics} & partitions.keys())
    everything = (TopicPartition(topic, number) for topic in wanted for number in range(partitions[topic]))
    missing = [str(one) for one in everything if one not in assigned]
    return ", ".join(missing[:_SHOWN]) + (f" and {len(missing) - _SHOWN} more" if len(missing) > _SHOWN else "")
