"""Checks of arguments that users pass to a Consumer."""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from typing import Literal, TypeAlias

from tailrace.consumer.offsets.requests import is_offset
from tailrace.consumer.positions.start_points import start_of
from tailrace.consumer.topic_patterns import TopicPattern, checked_pattern
from tailrace.core.positions.partition_spec import RequestedStart
from tailrace.core.positions.start_point import StartFrom, StartPoint
from tailrace.errors import ConfigurationError
from tailrace.records import OffsetAndMetadata, TopicPartition

__all__ = [
    "Assignable",
    "StartAt",
    "ToCommit",
    "check_offset",
    "checked_count",
    "checked_offsets",
    "checked_partitions",
    "checked_subscription",
    "checked_to_commit",
    "default_start",
]

ToCommit: TypeAlias = Mapping[TopicPartition, int | OffsetAndMetadata]
"""Offsets to commit."""

StartAt: TypeAlias = int | Literal["earliest", "latest", "committed"] | dt.datetime | dt.timedelta | None
"""Start point of an assigned partition: an offset, a name, or a time; None means "committed"."""

_Place: TypeAlias = tuple[str, int]
_PlaceAt: TypeAlias = tuple[str, int, StartAt]

Assignable: TypeAlias = (
    str
    | _Place
    | _PlaceAt
    | list[str]
    | list[TopicPartition]
    | list[_Place]
    | list[_PlaceAt]
    | AbstractSet[str | _Place | _PlaceAt]
    | Mapping[str, int | list[int] | tuple[int, ...] | AbstractSet[int] | range]
    | Mapping[TopicPartition, StartAt]
    | Mapping[_Place, StartAt]
)
"""Partitions to assign, as ``Consumer.assign`` takes them."""


def checked_subscription(
    topics: Iterable[object], pattern: object, group_protocol: str, *, may_be_none: bool = False
) -> tuple[frozenset[str], TopicPattern | None]:
    """Return the checked topics and pattern of a subscription; there are no topics, or the pattern is None.

    Raises:
        ConfigurationError: topics and a pattern are given, neither is given (unless ``may_be_none``), or a name or the
            pattern is invalid.
    """
    names = list(topics)
    for name in names:
        if not isinstance(name, str) or not name:
            raise ConfigurationError(f"a topic is a name such as 'orders', not {name!r}")
    if (pattern is None) is not bool(names) and not (may_be_none and pattern is None):
        raise ConfigurationError("give topics or a pattern: Consumer('orders', ...) or Consumer(pattern='orders[.].*')")
    return frozenset(map(str, names)), None if pattern is None else checked_pattern(pattern, group_protocol)


def checked_to_commit(
    given: Sequence[object],
) -> tuple[dict[TopicPartition, OffsetAndMetadata] | None, frozenset[TopicPartition] | None]:
    """Return ``(offsets, None)``, ``(None, partitions)``, or ``(None, None)`` to commit all partitions.

    Raises:
        ConfigurationError: an argument is neither a mapping of offsets nor a partition, or the mapping is empty.
    """
    match given:
        case []:
            return None, None
        case [Mapping() as offsets]:
            if not offsets:
                raise ConfigurationError("commit({}) has no offsets - commit() commits all delivered records")
            return _with_metadata(offsets), None
        case _:
            return None, checked_partitions(given)


def _with_metadata(offsets: Mapping[object, object]) -> dict[TopicPartition, OffsetAndMetadata]:
    checked = {}
    for partition, value in offsets.items():
        checked_partitions([partition])
        assert isinstance(partition, TopicPartition)
        one = value if isinstance(value, OffsetAndMetadata) else OffsetAndMetadata(value)  # type: ignore[arg-type]
        check_offset(one.offset)
        if not isinstance(one.metadata, str):
            raise ConfigurationError(f"metadata of OffsetAndMetadata must be a text, not {one.metadata!r}")
        if one.leader_epoch is not None and not is_offset(one.leader_epoch):
            raise ConfigurationError(
                f"leader_epoch of OffsetAndMetadata must be a whole number or None, not {one.leader_epoch!r}"
            )
        checked[partition] = one
    return checked


def checked_offsets(to: Mapping[TopicPartition, int], offset: object, whence: str) -> dict[TopicPartition, int]:
    """Return the offsets of ``seek({partition: offset})``.

    Raises:
        ConfigurationError: a value of the mapping is not an offset, or ``offset`` or ``whence`` is given as well.
    """
    if offset is not None or whence != "offset":
        raise ConfigurationError("seek() takes either a mapping of offsets or partitions with offset= and whence=")
    checked_partitions(to)
    for one in to.values():
        check_offset(one)
    return dict(to)


def checked_partitions(partitions: Iterable[object]) -> frozenset[TopicPartition]:
    """Return the partitions as a set.

    Raises:
        ConfigurationError: an element is not a TopicPartition.
    """
    given = set()
    for one in partitions:
        if not isinstance(one, TopicPartition):
            raise ConfigurationError(f"a partition is TopicPartition('orders', 0), not {one!r}")
        given.add(one)
    return frozenset(given)


def checked_count(given: int | None, default: int, least: int = 1) -> int:
    """Return the maximum number of records: ``given``, or ``default`` if ``given`` is None.

    Raises:
        ConfigurationError: ``given`` (``max_records``) or ``least`` (``min_records``) is out of range.
    """
    count = default if given is None else given
    if count < 1:
        raise ConfigurationError(f"max_records must be at least 1, not {given}")
    if not 1 <= least <= count:
        raise ConfigurationError(f"min_records must be at least 1 and at most max_records={count}, not {least}")
    return count


def default_start(at: object, tail: object) -> RequestedStart:
    """Return the start point for partitions that are passed to ``assign()`` without a start point of their own.

    Raises:
        ConfigurationError: ``at`` is not a start point, ``tail`` is not a number of records, or both are given.
    """
    if tail is None:
        return start_of(at)
    if at is not None or not is_offset(tail):
        raise ConfigurationError(f"tail must be a non-negative integer, and given without at=, not {tail!r}")
    return StartPoint(StartFrom.LATEST, shift=-int(str(tail)))


def check_offset(offset: object) -> None:
    """Check that an offset is a non-negative integer.

    Raises:
        ConfigurationError: ``offset`` is anything else.
    """
    if not is_offset(offset):
        raise ConfigurationError(f"an offset must be a non-negative integer, not {offset!r}")
