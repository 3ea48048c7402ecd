"""Assignment strategies by name: Kafka's own strategies and functions of the user. Pure: no clock, IO or logging.

The result of a strategy is checked before it is sent to the group. A wrong result raises an error that names the
strategy; unchecked, it could leave a partition with two owners or with none.
"""

from __future__ import annotations

import difflib
import inspect
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import TypeAlias

from tailrace.consumer.group.range_assignor import (
    Assignment,
    PartitionRacks,
    SubscribedMember,
    range_assignor,
    roundrobin_assignor,
)
from tailrace.consumer.group.sticky_assignor import release_first, sticky_assignor
from tailrace.errors import ConfigurationError, RebalanceError
from tailrace.records import TopicPartition
from tailrace.user_exceptions import error_text

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
_MOST_LISTED = 3
"""Maximum number of partitions that an error message lists."""


@dataclass(frozen=True, slots=True)
class Strategy:
    """Name and function of an assignment strategy.

    With a cooperative strategy (KIP-429), the old owner of a partition releases it before another member gets it;
    ``checked_assignment`` sees to that, so ``assign`` need not.
    """

    name: str
    assign: AssignFunction
    is_cooperative: bool = False


@dataclass(frozen=True, slots=True)
class _UserFunction:
    """Adapter of a user's function, which has no parameter for racks. Adapters of the same function are equal."""

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
            Strategy("cooperative-sticky", sticky_assignor, is_cooperative=True),
        )
    }
)
"""Kafka's strategies by protocol name."""


def strategy_of(given: str | UserAssignor) -> Strategy:
    """Return the built-in strategy with the name ``given``, or the strategy of the user's function ``given``.

    Raises:
        ConfigurationError: no built-in strategy has that name, or the function or its name is not usable.
    """
    if isinstance(given, str):
        return _built_in(given)
    if not _is_plain_function(given):
        raise ConfigurationError(
            f"{_OPTION} must be one of {_built_in_names()},"
            f" or a plain function (members, partitions) -> {{member_id: [TopicPartition, ...]}}, not {given!r}"
        )
    name = getattr(given, "name", None) or getattr(given, "__name__", None)
    if not isinstance(name, str):
        raise ConfigurationError(
            f"{_OPTION}: {given!r} has no name - set its attribute `name` to a string that is equal in all members"
        )
    if name in BUILT_IN:
        raise ConfigurationError(
            f"{_OPTION}: {given!r} has the name of the built-in strategy {name!r}, so the group cannot tell them apart"
            f" - set the attribute `name` of your function to another name, or pass {name!r} for the built-in strategy"
        )
    return Strategy(name, _UserFunction(given), bool(getattr(given, "is_cooperative", False)))


def strategies_of(given: Sequence[str | UserAssignor]) -> tuple[Strategy, ...]:
    """Return the strategies that a member offers, most preferred first.

    Raises:
        ConfigurationError: ``given`` is empty, has a name twice, or has an unusable entry.
    """
    offered = tuple(map(strategy_of, [given] if isinstance(given, str) else given))
    if not offered:
        raise ConfigurationError(f"{_OPTION} must not be empty - use one or more of {_built_in_names()}, or a function")
    twice = [name for name, times in Counter(one.name for one in offered).items() if times > 1]
    if twice:
        raise ConfigurationError(
            f"{_OPTION}: the name {twice[0]!r} occurs twice - remove or rename one of the two strategies"
        )
    return offered


def are_cooperative(strategies: Iterable[Strategy]) -> bool:
    """Return True if members that offer ``strategies`` keep their partitions during a rebalance (KIP-429).

    All strategies must be cooperative, because the members have to know this before the group chooses a strategy.
    """
    return all(strategy.is_cooperative for strategy in strategies)


def checked_assignment(
    strategy: Strategy,
    members: Sequence[SubscribedMember],
    partitions: Mapping[str, int],
    racks: PartitionRacks,
) -> Assignment:
    """Return the partitions that ``strategy`` assigns to each member, after a check.

    With a cooperative strategy, partitions that another member has to release first are left out.

    Raises:
        RebalanceError: the strategy's function failed, or its result is not an assignment.
    """
    try:
        result = _with_lists(strategy.assign(members, partitions, racks))
    except Exception as error:
        raise _error_of(strategy, f"raised {error_text(error)}") from error
    if not isinstance(result, dict):
        raise _error_of(strategy, f"returned {result!r} instead of a mapping of member ids to partitions")
    for fault in _faults(result, members, partitions):
        raise _error_of(strategy, fault)
    assignment = {m.member_id: [TopicPartition(*one) for one in result.get(m.member_id, ())] for m in members}
    if missing := _unassigned_text(strategy, assignment, members, partitions):
        raise _error_of(strategy, f"leaves {missing} unassigned, although a member subscribes to the topic")
    return release_first(members, assignment) if strategy.is_cooperative else assignment


def _is_plain_function(given: object) -> bool:
    return callable(given) and not isinstance(given, type) and not inspect.iscoroutinefunction(given)


def _built_in(name: str) -> Strategy:
    if name in BUILT_IN:
        return BUILT_IN[name]
    close = difflib.get_close_matches(name.lower().replace("_", "-"), BUILT_IN, n=1)
    guess = f"did you mean {close[0]!r}? " if close else ""
    raise ConfigurationError(
        f"{_OPTION}: no built-in strategy is called {name!r} - {guess}use one of {_built_in_names()}, or a function"
    )


def _built_in_names() -> str:
    return ", ".join(BUILT_IN)


def _error_of(strategy: Strategy, fault: str) -> RebalanceError:
    return RebalanceError(
        f"the assignment strategy {strategy.name!r} {fault}"
        " - correct your assignor; the group's members get no partitions until then"
    )


def _with_lists(result: object) -> object:
    """Return ``result`` with lists in place of iterables: a generator of the user's assignor raises its error here."""
    if not isinstance(result, Mapping):
        return result
    return {member: list(ones) if isinstance(ones, Iterable) else ones for member, ones in result.items()}


def _faults(
    result: Mapping[object, object], members: Sequence[SubscribedMember], partitions: Mapping[str, int]
) -> Iterator[str]:
    """Yield a description of each fault in the result of a strategy, such as a partition that is assigned twice."""
    topics: Mapping[object, frozenset[str]] = {member.member_id: member.topics for member in members}
    assigned_to: dict[object, object] = {}
    for member, ones in result.items():
        if member not in topics:
            yield f"names {member!r}, which is not a member of the group"
        elif not isinstance(ones, list):
            yield f"returned {ones!r}, which is not a list of partitions, for {member!r}"
        else:
            for one in ones:
                if fault := _fault_of(one, member, topics[member], partitions):
                    yield fault
                elif one in assigned_to:
                    yield f"assigns {TopicPartition(*one)} twice, to {assigned_to[one]!r} and to {member!r}"
                else:
                    assigned_to[one] = member


def _fault_of(one: object, member: object, topics: frozenset[str], partitions: Mapping[str, int]) -> str | None:
    """Return the fault of one partition that is assigned to ``member``, which subscribes to ``topics``."""
    match one:
        case (str(topic), int(number)) if isinstance(one, tuple) and not isinstance(number, bool):
            partition = TopicPartition(topic, number)
            if not 0 <= number < partitions.get(topic, 0):
                return f"assigns {partition}, which does not exist, to {member!r}"
            return (
                None if topic in topics else f"assigns {partition} to {member!r}, which does not subscribe to the topic"
            )
    return f"returned {one!r}, which is not a tuple (topic, partition number), for {member!r}"


def _unassigned_text(
    strategy: Strategy, assignment: Assignment, members: Sequence[SubscribedMember], partitions: Mapping[str, int]
) -> str:
    """Return a list of the subscribed partitions without an owner, as text; empty if there are none.

    With a cooperative strategy, a partition that a member still owns may be unassigned.
    """
    assigned = {one for ones in assignment.values() for one in ones}
    if strategy.is_cooperative:
        assigned.update(one for member in members for one in member.owned)
    wanted = sorted({topic for member in members for topic in member.topics} & partitions.keys())
    everything = (TopicPartition(topic, number) for topic in wanted for number in range(partitions[topic]))
    missing = [str(one) for one in everything if one not in assigned]
    more = f" and {len(missing) - _MOST_LISTED} more" if len(missing) > _MOST_LISTED else ""
    return ", ".join(missing[:_MOST_LISTED]) + more
