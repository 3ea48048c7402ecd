"""Partitions that the user names, each with its requested start.

Pure: no clock, IO or logging.

A topic that is named without partitions stands for all of them; the caller looks them up in the cluster metadata.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import NamedTuple, TypeAlias

from tailrace.core.start_point import StartPoint
from tailrace.errors import ConfigurationError

__all__ = ["PartitionSpec", "RequestedStart", "StartParser", "partition_specs"]

RequestedStart: TypeAlias = int | StartPoint | None
"""Offset or start point; None to start at the committed offset, or at ``auto_offset_reset`` if there is none."""


class PartitionSpec(NamedTuple):
    """Topic or partition named by the user, with its start."""

    topic: str
    partition: int | None
    """None for all partitions of the topic."""
    start: RequestedStart


StartParser: TypeAlias = Callable[[object], RequestedStart]
"""Function that parses a start given by the user."""


def partition_specs(
    entries: Iterable[object], default: RequestedStart, parse_start: StartParser
) -> list[PartitionSpec]:
    """Return the partitions that ``entries`` name, in order.

    An entry is a topic; (topic, partition); (topic, partition, start); {topic: partition or partitions};
    {(topic, partition): start}; or a list or set of entries. Partitions without a start begin at ``default``.

    Raises:
        ConfigurationError: an entry has another form.
    """
    return [spec for entry in entries for spec in _parse(entry, default, parse_start)]


def _parse(entry: object, default: RequestedStart, parse_start: StartParser) -> Iterator[PartitionSpec]:
    match entry:
        case str() if entry:
            yield PartitionSpec(entry, None, default)
        case (str() as topic, partition) if isinstance(entry, tuple) or _is_number(partition):
            yield PartitionSpec(_topic(topic), _partition(partition), default)
        case (str() as topic, partition, start) if isinstance(entry, tuple):
            yield PartitionSpec(_topic(topic), _partition(partition), parse_start(start))
        case Mapping():
            for key, value in entry.items():
                yield from _parse_item(key, value, default, parse_start)
        case list() | set() | frozenset():
            yield from partition_specs(entry, default, parse_start)
        case _:
            raise ConfigurationError(
                f"{entry!r} is not a partition - use 'topic', ('topic', 0), ('topic', 0, offset), {{'topic': [0, 1]}}"
                " or {('topic', 0): offset}"
            )


def _parse_item(
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


def _topic(value: object) -> str:
    if isinstance(value, str) and value:
        return value
    raise ConfigurationError(f"a topic must be a name such as 'orders', not {value!r}")


def _partition(value: object) -> int:
    if _is_number(value) and int(str(value)) < 1 << 31:
        return int(str(value))
    raise ConfigurationError(f"a partition must be an integer from 0 on, not {value!r}")


def _is_number(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 1 << 63
