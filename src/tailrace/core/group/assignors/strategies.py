"""How the members of a group agree to deal: by name, with a function of Kafka's or one of the user's own.

Rule of this file: what a strategy returns is checked before anybody hears of it. A partition given to two members or
to none is worse than an error that says whose mistake it is.
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
from tailrace.core.group.assignors.sticky import cooperative_sticky_assignor, let_go_first, sticky_assignor
from tailrace.errors import ConfigurationError, RebalanceError
from tailrace.records import TopicPartition

__all__ = [
    "BUILT_IN",
    "Deal",
    "Dealt",
    "Strategy",
    "UserAssignor",
    "are_cooperative",
    "checked_deal",
    "strategies_of",
    "strategy_of",
]

Dealt: TypeAlias = Mapping[str, Iterable[tuple[str, int]]]
"""By member id; a member that is not named gets nothing."""

Deal: TypeAlias = Callable[[Sequence[SubscribedMember], Mapping[str, int], PartitionRacks], Dealt]
UserAssignor: TypeAlias = Callable[[Sequence[SubscribedMember], Mapping[str, int]], Dealt]

_OPTION = "partition_assignment_strategy"
_SHOWN = 3


@dataclass(frozen=True, slots=True)
class Strategy:
    """How members agree to deal: under which name, by which function, and whether what moves is let go of first."""

    name: str
    deal: Deal
    is_cooperative: bool = False


@dataclass(frozen=True, slots=True)
class _OfUser:
    """A user's function, which is not told of racks; two of the same function are equal."""

    function: UserAssignor

    def __call__(
        self, members: Sequence[SubscribedMember], partitions: Mapping[str, int], _racks: PartitionRacks
    ) -> Dealt:
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
"""Kafka's own, by the names under which all clients know them."""


def strategy_of(given: str | UserAssignor) -> Strategy:
    """The strategy that a user means by a built-in's name or by a function of their own.

    Raises:
        ConfigurationError: no strategy has that name, or the function cannot go by its own.
    """
    if isinstance(given, str):
        return _built_in(given)
    if not _is_plain_function(given):
        raise ConfigurationError(
            f"{_OPTION}: {given!r} will not do - give the name of one of {_known()},"
            " or a plain function (members, partitions) -> {member_id: [TopicPartition, ...]}"
        )
    name = getattr(given, "name", None) or getattr(given, "__name__", None)
    if not isinstance(name, str):
        raise ConfigurationError(
            f"{_OPTION}: {given!r} has no name by which the group's members could agree on it"
            " - set its attribute `name` to a text, the same in every member"
        )
    if name in BUILT_IN:
        raise ConfigurationError(
            f"{_OPTION}: {given!r} goes by the name of the built-in {name!r}, and members with that one would take"
            f" its results for their own - give your function another `name`, or say {name!r} to mean the built-in"
        )
    return Strategy(name, _OfUser(given), bool(getattr(given, "is_cooperative", False)))


def strategies_of(given: Sequence[str | UserAssignor]) -> tuple[Strategy, ...]:
    """What a member offers, in its order.

    Raises:
        ConfigurationError: there is none, two have the same name, or one will not do.
    """
    offered = tuple(map(strategy_of, [given] if isinstance(given, str) else given))
    if not offered:
        raise ConfigurationError(f"{_OPTION}: a member has to offer at least one - name one or more of {_known()}")
    twice = [name for name, times in Counter(one.name for one in offered).items() if times > 1]
    if twice:
        raise ConfigurationError(
            f"{_OPTION}: {twice[0]!r} is there twice, and members agree by name - leave one of them out or rename it"
        )
    return offered


def are_cooperative(strategies: Iterable[Strategy]) -> bool:
    """Whether members that offer these keep what they own through a rebalance (KIP-429): only if all of them allow it.

    Which one the group will choose is not known when a member has to decide whether to give everything back.
    """
    return all(strategy.is_cooperative for strategy in strategies)


def checked_deal(
    strategy: Strategy,
    members: Sequence[SubscribedMember],
    partitions: Mapping[str, int],
    racks: PartitionRacks,
) -> Assignment:
    """Everybody's share; of a cooperative strategy without what another member has yet to let go of.

    Raises:
        RebalanceError: the strategy's function failed, or what it returned is not an assignment.
    """
    try:
        given = _listed(strategy.deal(members, partitions, racks))
    except Exception as error:
        raise _refusal(strategy, f"raised {type(error).__name__}: {error}") from error
    if not isinstance(given, dict):
        raise _refusal(strategy, f"returned {given!r} and no mapping of member ids to partitions")
    for fault in _faults(given, members, partitions):
        raise _refusal(strategy, fault)
    shares = {m.member_id: [TopicPartition(*one) for one in given.get(m.member_id, ())] for m in members}
    if missing := _left_out(strategy, shares, members, partitions):
        raise _refusal(strategy, f"gives {missing} to nobody, though somebody subscribes to it")
    return let_go_first(members, shares) if strategy.is_cooperative else shares


def _is_plain_function(given: object) -> bool:
    return callable(given) and not isinstance(given, type) and not inspect.iscoroutinefunction(given)


def _built_in(name: str) -> Strategy:
    if name in BUILT_IN:
        return BUILT_IN[name]
    close = difflib.get_close_matches(name.lower().replace("_", "-"), BUILT_IN, n=1)
    hint = f"did you mean {close[0]!r}? There are {_known()}" if close else f"there are {_known()}"
    raise ConfigurationError(f"{_OPTION}: there is no {name!r} - {hint}, or give a function")


def _known() -> str:
    return ", ".join(BUILT_IN)


def _refusal(strategy: Strategy, fault: str) -> RebalanceError:
    return RebalanceError(
        f"the assignment strategy {strategy.name!r} {fault}"
        " - look at your assignor: the members of the group wait meanwhile, and nobody was given anything"
    )


def _listed(dealt: object) -> object:
    """The same with every iterable run through, since it may be the user's code that runs then."""
    if not isinstance(dealt, Mapping):
        return dealt
    return {name: list(ones) if isinstance(ones, Iterable) else ones for name, ones in dealt.items()}


def _faults(
    given: Mapping[object, object], members: Sequence[SubscribedMember], partitions: Mapping[str, int]
) -> Iterator[str]:
    """What is wrong with each share, and what two of them share."""
    topics: Mapping[object, frozenset[str]] = {member.member_id: member.topics for member in members}
    taker_of: dict[object, object] = {}
    for taker, ones in given.items():
        if taker not in topics:
            yield f"names {taker!r}, who is not in the group"
        elif not isinstance(ones, list):
            yield f"gives {taker!r} {ones!r}, which is no list of partitions"
        else:
            for one in ones:
                if fault := _fault_of(one, topics[taker], partitions):
                    yield f"gives {taker!r} {fault}"
                elif one in taker_of:
                    yield f"gives {TopicPartition(*one)} twice, to {taker_of[one]!r} and to {taker!r}"
                else:
                    taker_of[one] = taker


def _fault_of(one: object, subscribed: frozenset[str], partitions: Mapping[str, int]) -> str | None:
    match one:
        case (str(topic), int(number)) if isinstance(one, tuple) and not isinstance(number, bool):
            partition = TopicPartition(topic, number)
            if not 0 <= number < partitions.get(topic, 0):
                return f"{partition}, which does not exist"
            return None if topic in subscribed else f"{partition}, to whose topic it does not subscribe"
    return f"{one!r}, which is no partition: (topic, number)"


def _left_out(
    strategy: Strategy, shares: Assignment, members: Sequence[SubscribedMember], partitions: Mapping[str, int]
) -> str:
    """What somebody wants and nobody got; a cooperative strategy leaves out what somebody has yet to let go of."""
    spoken_for = {one for share in shares.values() for one in share}
    if strategy.is_cooperative:
        spoken_for.update(one for member in members for one in member.owned)
    wanted = sorted({topic for member in members for topic in member.topics} & partitions.keys())
    everything = (TopicPartition(topic, number) for topic in wanted for number in range(partitions[topic]))
    missing = [str(one) for one in everything if one not in spoken_for]
    return ", ".join(missing[:_SHOWN]) + (f" and {len(missing) - _SHOWN} more" if len(missing) > _SHOWN else "")
