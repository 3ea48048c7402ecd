"""What users give to a Consumer, looked at once."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TypeAlias

from penstock.consumer.offsets import is_offset
from penstock.consumer.patterns import TopicPattern, checked_pattern
from penstock.errors import ConfigurationError
from penstock.records import OffsetAndMetadata, TopicPartition

__all__ = ["ToCommit", "check_offset", "checked_partitions", "checked_subscription", "with_metadata"]

ToCommit: TypeAlias = Mapping[TopicPartition, int | OffsetAndMetadata] | Iterable[TopicPartition]
"""Offsets of the caller's choice, or the partitions of which all that is done is meant."""


def checked_subscription(
    topics: Iterable[object], pattern: object, group_protocol: str
) -> tuple[frozenset[str], TopicPattern | None]:
    """The topics, or the pattern.

    Raises:
        ConfigurationError: neither is given, or both, or one of them is none.
    """
    names = list(topics)
    for name in names:
        if not isinstance(name, str) or not name:
            raise ConfigurationError(f"a topic is a name such as 'orders', not {name!r}")
    if (pattern is None) is not bool(names):
        raise ConfigurationError("which topics? - Consumer('orders', ...), or Consumer(pattern='orders[.].*', ...)")
    return frozenset(map(str, names)), None if pattern is None else checked_pattern(pattern, group_protocol)


def with_metadata(
    offsets: Mapping[TopicPartition, int | OffsetAndMetadata],
) -> dict[TopicPartition, OffsetAndMetadata]:
    """Offsets to commit, each with its text.

    Raises:
        ConfigurationError: one of them is no offset.
    """
    checked_partitions(offsets)
    given = {
        partition: one if isinstance(one, OffsetAndMetadata) else OffsetAndMetadata(one)
        for partition, one in offsets.items()
    }
    for one in given.values():
        check_offset(one.offset)
    return given


def checked_partitions(partitions: Iterable[object]) -> frozenset[TopicPartition]:
    """Partitions, each with the name of its topic.

    Raises:
        ConfigurationError: one of them is none.
    """
    given = set()
    for one in partitions:
        if not isinstance(one, TopicPartition):
            raise ConfigurationError(f"{one!r} is no partition - give TopicPartition('orders', 0)")
        given.add(one)
    return frozenset(given)


def check_offset(offset: object) -> None:
    """See that it is one.

    Raises:
        ConfigurationError: it is not.
    """
    if not is_offset(offset):
        raise ConfigurationError(f"offset={offset!r} will not do: it has to be a whole number, 0 or more")
