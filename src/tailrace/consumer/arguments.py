"""What users give to a Consumer, looked at once."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TypeAlias

from tailrace.consumer.offsets.requests import is_offset
from tailrace.consumer.positions.start_points import start_of
from tailrace.consumer.topic_patterns import TopicPattern, checked_pattern
from tailrace.core.positions.partition_spec import RequestedStart
from tailrace.core.positions.start_point import StartFrom, StartPoint
from tailrace.errors import ConfigurationError
from tailrace.records import OffsetAndMetadata, TopicPartition

__all__ = [
    "ToCommit",
    "check_offset",
    "checked_count",
    "checked_partitions",
    "checked_subscription",
    "default_start",
    "with_metadata",
]

ToCommit: TypeAlias = Mapping[TopicPartition, int | OffsetAndMetadata] | Iterable[TopicPartition]
"""Offsets of the caller's choice, or the partitions of which all that is done is meant."""


def checked_subscription(
    topics: Iterable[object], pattern: object, group_protocol: str, *, may_be_none: bool = False
) -> tuple[frozenset[str], TopicPattern | None]:
    """The topics, or the pattern.

    Raises:
        ConfigurationError: neither is given (unless that ``may_be_none``), or both, or one of them is none.
    """
    names = list(topics)
    for name in names:
        if not isinstance(name, str) or not name:
            raise ConfigurationError(f"a topic is a name such as 'orders', not {name!r}")
    if (pattern is None) is not bool(names) and not (may_be_none and pattern is None):
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
        if not isinstance(one.metadata, str):
            raise ConfigurationError(f"metadata of OffsetAndMetadata must be a text, not {one.metadata!r}")
        if one.leader_epoch is not None and not is_offset(one.leader_epoch):
            raise ConfigurationError(
                f"leader_epoch of OffsetAndMetadata must be a whole number or None, not {one.leader_epoch!r}"
            )
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


def checked_count(given: int | None, default: int, least: int = 1) -> int:
    """How many records are wanted at most.

    Raises:
        ConfigurationError: that many cannot be.
    """
    count = default if given is None else given
    if count < 1:
        raise ConfigurationError(f"max_records={given} will not do: it has to be at least 1")
    if not 1 <= least <= count:
        raise ConfigurationError(f"min_records={least} will not do: it has to be at least 1, and at most max_records")
    return count


def default_start(at: object, tail: object) -> RequestedStart:
    """Where partitions begin of which nothing else is said.

    Raises:
        ConfigurationError: that is no place to begin at.
    """
    if tail is None:
        return start_of(at)
    if at is not None or not is_offset(tail):
        raise ConfigurationError(
            f"tail={tail!r} will not do: it has to be a number of records, and at= has to be left out"
        )
    return StartPoint(StartFrom.LATEST, shift=-int(str(tail)))


def check_offset(offset: object) -> None:
    """See that it is one.

    Raises:
        ConfigurationError: it is not.
    """
    if not is_offset(offset):
        raise ConfigurationError(f"offset={offset!r} will not do: it has to be a whole number, 0 or more")
