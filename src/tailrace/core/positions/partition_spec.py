"""Partitions of the user's own choice, in whichever form they are named, and where each is to begin.

Rule of this file: forms may be mixed; what comes out is one mapping. Which partitions a topic has is told later, by
whoever knows the cluster.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import NamedTuple, TypeAlias

from tailrace.core.positions.start_point import StartPoint
from tailrace.errors import ConfigurationError

__all__ = ["BeginOf", "PartitionSpec", "Wished", "partition_specs"]

Wished: TypeAlias = int | StartPoint | None
"""Where to begin: at an offset, or at a start; None is where the group has committed, or else by policy."""


class PartitionSpec(NamedTuple):
    """One thing that was named."""

    topic: str
    partition: int | None
    """None: all that there are."""
    begin: Wished


BeginOf: TypeAlias = Callable[[object], Wished]
"""Reads what a user says of a beginning."""


def partition_specs(given: Iterable[object], default: Wished, begin_of: BeginOf) -> list[PartitionSpec]:
    """What ``given`` names, in order; where nothing else is said each begins at ``default``.

    A topic's name; (topic, partition); (topic, partition, offset); {topic: partition or partitions};
    {(topic, partition): where to begin}; and lists of all these.

    Raises:
        ConfigurationError: something that is none of these.
    """
    return [spec for one in given for spec in _read(one, default, begin_of)]


def _read(given: object, default: Wished, begin_of: BeginOf) -> Iterator[PartitionSpec]:
    match given:
        case str() if given:
            yield PartitionSpec(given, None, default)
        case (str() as topic, partition) if isinstance(given, tuple) or _is_number(partition):
            yield PartitionSpec(_topic(topic), _partition(partition), default)
        case (str() as topic, partition, offset) if isinstance(given, tuple):
            yield PartitionSpec(_topic(topic), _partition(partition), begin_of(offset))
        case Mapping():
            for key, value in given.items():
                yield from _read_entry(key, value, default, begin_of)
        case list() | set() | frozenset():
            yield from partition_specs(given, default, begin_of)
        case _:
            raise ConfigurationError(
                f"{given!r} names no partition - give 'topic', ('topic', 0), ('topic', 0, offset), {{'topic': [0, 1]}}"
                " or {('topic', 0): offset}"
            )


def _read_entry(key: object, value: object, default: Wished, begin_of: BeginOf) -> Iterator[PartitionSpec]:
    match key, value:
        case str(), list() | tuple() | set() | frozenset() | range():
            yield from (PartitionSpec(_topic(key), _partition(one), default) for one in value)
        case str(), _:
            yield PartitionSpec(_topic(key), _partition(value), default)
        case (str() as topic, partition), _:
            yield PartitionSpec(_topic(topic), _partition(partition), begin_of(value))
        case _:
            raise ConfigurationError(f"{key!r}: {value!r} names no partition - give a topic or (topic, partition)")


def _topic(given: object) -> str:
    if isinstance(given, str) and given:
        return given
    raise ConfigurationError(f"a topic is a name such as 'orders', not {given!r}")


def _partition(given: object) -> int:
    if _is_number(given) and int(str(given)) < 1 << 31:
        return int(str(given))
    raise ConfigurationError(f"{given!r} is no partition - they are numbered from 0 on")


def _is_number(given: object) -> bool:
    return isinstance(given, int) and not isinstance(given, bool) and 0 <= given < 1 << 63
