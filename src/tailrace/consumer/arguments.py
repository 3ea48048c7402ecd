"""Checks of arguments that users pass to a Consumer, among them patterns of topic names.

Each function raises ConfigurationError if an argument is invalid.
"""

from __future__ import annotations

import datetime as dt
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from typing import Literal, TypeAlias

from tailrace.consumer.positions.partition_spec import RequestedStart
from tailrace.consumer.positions.start_positions import is_offset, start_of
from tailrace.core.start_point import StartFrom, StartPoint
from tailrace.errors import ConfigurationError
from tailrace.records import OffsetAndMetadata, TopicPartition

__all__ = [
    "Assignable",
    "BrokerPattern",
    "StartAt",
    "ToCommit",
    "TopicPattern",
    "TopicPredicate",
    "check_offset",
    "checked_count",
    "checked_offsets",
    "checked_partitions",
    "checked_pattern",
    "checked_subscription",
    "checked_to_commit",
    "default_start",
]

# ---- patterns of topic names, matched against whole names ------------------------------------------------------------

_FLAGS_IN_RE2 = ((re.IGNORECASE, "i"), (re.MULTILINE, "m"), (re.DOTALL, "s"))


@dataclass(frozen=True, slots=True)
class BrokerPattern:
    """Regular expression in RE2 syntax that the broker matches."""

    pattern: str


@dataclass(frozen=True, slots=True)
class TopicPredicate:
    """Function that selects topics by name, in place of a pattern. An App uses it with both group protocols.

    Attributes:
        pattern: description of the topics, for error messages.
        selects: returns True for the name of a topic to subscribe to.
    """

    pattern: str
    selects: Callable[[str], bool]

    def fullmatch(self, name: str) -> bool:
        """Return ``selects(name)``; named like the method of ``re.Pattern``."""
        return self.selects(name)


TopicPattern: TypeAlias = re.Pattern[str] | TopicPredicate | BrokerPattern


def checked_pattern(given: object, group_protocol: str) -> TopicPattern:
    """Return ``given`` as a pattern for Python or, with ``group_protocol="consumer"``, for the broker.

    Args:
        given: regular expression, or compiled pattern. A pattern for the broker keeps the flags IGNORECASE, MULTILINE
            and DOTALL.
        group_protocol: ``"classic"`` or ``"consumer"``.
    """
    if isinstance(given, re.Pattern) and isinstance(given.pattern, str):
        return _broker_pattern(given) if group_protocol == "consumer" else given
    if not isinstance(given, str) or not given:
        raise ConfigurationError(
            f"pattern must be a regular expression of topic names such as 'orders[.].*', not {given!r}"
        )
    if group_protocol == "consumer":
        return BrokerPattern(given)
    try:
        return re.compile(given)
    except re.error as error:
        raise ConfigurationError(f"pattern={given!r} is not a valid regular expression: {error}") from error


def _broker_pattern(given: re.Pattern[str]) -> BrokerPattern:
    if given.flags & re.VERBOSE:
        raise ConfigurationError(
            f"pattern={given.pattern!r} has re.VERBOSE, which brokers do not support (group_protocol='consumer')"
            " - remove blanks and comments from the pattern, and the flag"
        )
    flags = "".join(name for flag, name in _FLAGS_IN_RE2 if given.flags & flag)
    return BrokerPattern(f"(?{flags}){given.pattern}" if flags else given.pattern)


# ---- checks of arguments that users pass to a Consumer ---------------------------------------------------------------

ToCommit: TypeAlias = Mapping[TopicPartition, int | OffsetAndMetadata]
"""Offsets to commit."""

StartAt: TypeAlias = int | Literal["earliest", "latest", "committed"] | dt.datetime | dt.timedelta | None
"""Start point of an assigned partition: an offset, a time, or one of the names; None means "committed"."""

_TopicNumber: TypeAlias = tuple[str, int]
"""Topic name and partition number."""
_TopicNumberStart: TypeAlias = tuple[str, int, StartAt]
"""Topic name, partition number and start point."""

Assignable: TypeAlias = (
    str
    | _TopicNumber
    | _TopicNumberStart
    | list[str]
    | list[TopicPartition]
    | list[_TopicNumber]
    | list[_TopicNumberStart]
    | AbstractSet[str | _TopicNumber | _TopicNumberStart]
    | Mapping[str, int | list[int] | tuple[int, ...] | AbstractSet[int] | range]
    | Mapping[TopicPartition, StartAt]
    | Mapping[_TopicNumber, StartAt]
)
"""Partitions to assign, in one of the forms that ``Consumer.assign`` accepts."""


def checked_subscription(
    topics: Iterable[object], pattern: object, group_protocol: str, *, may_be_none: bool = False
) -> tuple[frozenset[str], TopicPattern | None]:
    """Check the topics and the pattern of a subscription, and return them."""
    names = list(topics)
    for name in names:
        if not isinstance(name, str) or not name:
            raise ConfigurationError(f"a topic must be a name such as 'orders', not {name!r}")
    if (pattern is None) is not bool(names) and not (may_be_none and pattern is None):
        problem = "both topics and a pattern are given" if names else "neither topics nor a pattern are given"
        raise ConfigurationError(f"{problem} - pass either names such as 'orders', or pattern='orders[.].*'")
    return frozenset(map(str, names)), None if pattern is None else checked_pattern(pattern, group_protocol)


def checked_to_commit(
    given: Sequence[object],
) -> tuple[dict[TopicPartition, OffsetAndMetadata] | None, frozenset[TopicPartition] | None]:
    """Check the arguments of ``commit()``, and return them as a pair of offsets and partitions.

    At least one of the two is None. Both are None without arguments, which commits all partitions.
    """
    match given:
        case []:
            return None, None
        case [Mapping() as offsets]:
            if not offsets:
                raise ConfigurationError("commit({}) has no offsets - call commit() to commit all delivered records")
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
            raise ConfigurationError(f"metadata of OffsetAndMetadata must be a string, not {one.metadata!r}")
        if one.leader_epoch is not None and not is_offset(one.leader_epoch):
            raise ConfigurationError(
                f"leader_epoch of OffsetAndMetadata must be a non-negative integer or None, not {one.leader_epoch!r}"
            )
        checked[partition] = one
    return checked


def checked_offsets(to: Mapping[TopicPartition, int], offset: object, whence: str) -> dict[TopicPartition, int]:
    """Check the arguments of ``seek({partition: offset})``, and return the offsets."""
    if offset is not None or whence != "offset":
        raise ConfigurationError("seek() takes either a mapping of offsets, or partitions with offset= and whence=")
    checked_partitions(to)
    for one in to.values():
        check_offset(one)
    return dict(to)


def checked_partitions(partitions: Iterable[object]) -> frozenset[TopicPartition]:
    """Check that all elements are partitions, and return them as a set."""
    given = set()
    for one in partitions:
        if not isinstance(one, TopicPartition):
            raise ConfigurationError(
                f"a partition must be a TopicPartition such as TopicPartition('orders', 0), not {one!r}"
            )
        given.add(one)
    return frozenset(given)


def checked_count(max_records: int | None, default: int, min_records: int = 1) -> int:
    """Return ``max_records``, or ``default`` if it is None, after checking it and ``min_records``."""
    count = default if max_records is None else max_records
    if count < 1:
        raise ConfigurationError(f"max_records must be at least 1, not {max_records}")
    if not 1 <= min_records <= count:
        raise ConfigurationError(f"min_records must be at least 1 and at most max_records={count}, not {min_records}")
    return count


def default_start(at: object, tail: object) -> RequestedStart:
    """Return the start point of partitions that are passed to ``assign()`` without a start point of their own."""
    if tail is None:
        return start_of(at)
    if at is not None:
        raise ConfigurationError("at= and tail= are both given - remove one of them")
    if not is_offset(tail):
        raise ConfigurationError(f"tail must be a non-negative integer, not {tail!r}")
    return StartPoint(StartFrom.LATEST, shift=-int(str(tail)))


def check_offset(offset: object) -> None:
    """Check that an offset is a non-negative integer."""
    if not is_offset(offset):
        raise ConfigurationError(f"an offset must be a non-negative integer, not {offset!r}")
