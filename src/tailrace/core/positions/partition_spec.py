"""Partitions named by the user in any of several forms, with a start point for each.

Forms may be mixed; the result is one list. A topic without partitions is expanded later, from cluster metadata.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import NamedTuple, TypeAlias

from tailrace.core.positions.start_point import StartPoint
from tailrace.errors import ConfigurationError

__all__ = ["PartitionSpec", "RequestedStart", "StartParser", "partition_specs"]

RequestedStart: TypeAlias = int | StartPoint | None
"""Requested start: an offset or a start point; None for the committed offset, or ``auto_offset_reset`` without one."""


class PartitionSpec(NamedTuple):
    """Topic or partition named by the user, with its start."""

    topic: str
    partition: int | None
    """None for all partitions of the topic."""
    start: RequestedStart


StartParser: TypeAlias = Callable[[object], RequestedStart]
"""Function that parses a start given by the user."""


def partition_specs(given: Iterable[object], default: RequestedStart, parse_start: StartParser) -> list[PartitionSpec]:
    """Return the partitions that ``given`` names, in order; partitions without a start begin at ``default``.

    Accepted are a topic name; (topic, partition); (topic, partition, offset); {topic: partition or partitions};
    {(topic, partition): start}; and lists of all these.

    Raises:
        ConfigurationError: an entry is none of these.
    """
    return [spec for one in given for spec in _read(one, default, parse_start)]


def _read(given: object, default: RequestedStart, parse_start: StartParser) -> Iterator[PartitionSpec]:
    match given:
        case str() if given:
            yield PartitionSpec(given, None, default)
        case (str() as topic, partition) if isinstance(given, tuple) or _is_number(partition):
            yield PartitionSpec(_topic(topic), _partition(partition), default)
        case (str() as topic, partition, offset) if isinstance(given, tuple):
            yield PartitionSpec(_topic(topic), _partition(partition), parse_start(offset))
        case Mapping():
            for key, value in given.items():
                yield from _read_entry(key, value, default, parse_start)
        case list() | set() | frozenset():
            yield from partition_specs(given, default, parse_start)
        case _:
            raise ConfigurationError(
                f"{given!r} is not a partition - use 'topic', ('topic', 0), ('topic', 0, offset), {{'topic': [0, 1]}}"
                " or {('topic', 0): offset}"
            )


def _read_entry(
    key: object, value: object, default: RequestedStart, parse_start: StartParser
) -> Iterator[PartitionSpec]:
    match key, value:
        case str(), list() | tuple() | set() | frozenset() | range():
            yield from (PartitionSpec(_topic(key), _partition(one), default) for one in value)
        case str(), _:
            yield PartitionSpec(_topic(key), _partition(value), default)
        case (str() as topic, partition), _:
            yield PartitionSpec(_topic(topic), _partition(partition), parse_start(value))
        case _:
            raise ConfigurationError(
                f"{key!r}: {value!r} is not a partition - use a topic or (topic, partition) as the key"
            )


def _topic(given: object) -> str:
    if isinstance(given, str) and given:
        return given
    raise ConfigurationError(f"a topic must be a name such as 'orders', not {given!r}")


def _partition(given: object) -> int:
    if _is_number(given) and int(str(given)) < 1 << 31:
        return int(str(given))
    raise ConfigurationError(f"a partition must be an integer from 0 on, not {given!r}")


def _is_number(given: object) -> bool:
    return isinstance(given, int) and not isinstance(given, bool) and 0 <= given < 1 << 63
