"""Which offsets are read on Spark, batch by batch, decided without asking anybody.

Rule of this file: pure. An offset is that of the next record, as Kafka commits it and as Spark plans it: a range is
from its start on, without its end.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from tailrace.core.offset_map import OffsetMap
from tailrace.errors import OffsetOutOfRangeError
from tailrace.records import TopicPartition

__all__ = [
    "Offsets",
    "PartitionStart",
    "beginning",
    "left_between",
    "next_ends",
    "offsets_of",
    "spark_assign",
    "spark_json",
]

Offsets = dict[TopicPartition, int]


@dataclass(frozen=True, slots=True)
class PartitionStart:
    """Where a partition is begun."""

    offset: int
    done: OffsetMap | None = None
    """What the group has finished behind it."""
    before: int | None = None
    """What the group had committed, where the log has it no more."""
    lost: int | None = None
    """So many offsets were removed before anybody read them; None where nobody knows."""


def beginning(  # noqa: PLR0913 - all that it depends on
    partition: TopicPartition,
    *,
    committed: int | None,
    done: OffsetMap | None,
    since: int | None,
    otherwise: int | None,
    begin: int,
    end: int,
) -> PartitionStart:
    """Where to begin in a log from ``begin`` to ``end``: where the group stands, or else ``since``, or ``otherwise``.

    Raises:
        OffsetOutOfRangeError: nobody says where.
    """
    if committed is not None and begin <= committed <= end:
        return PartitionStart(committed, done)
    if committed is None and since is not None:
        return PartitionStart(min(max(since, begin), end))
    if otherwise is None:
        raise OffsetOutOfRangeError(*partition, committed)
    after = min(max(otherwise, begin), end)
    lost = None
    if committed is not None and committed <= after:
        lost = after - committed
    return PartitionStart(after, None, committed, lost)


def next_ends(at: Mapping[TopicPartition, int], ends: Mapping[TopicPartition, int], most: int) -> Offsets:
    """How far the next batch goes: ``most`` offsets in all, shared evenly by the partitions that have that many."""
    left = {one: ends[one] - offset for one, offset in at.items() if ends.get(one, offset) > offset}
    shares: Offsets = {}
    room = most
    for number, one in enumerate(sorted(left, key=lambda one: left[one])):
        shares[one] = min(left[one], max(1, room // (len(left) - number)))
        room -= shares[one]
    return {one: offset + shares.get(one, 0) for one, offset in at.items()}


def left_between(at: Mapping[TopicPartition, int], ends: Mapping[TopicPartition, int]) -> int:
    """How many offsets there are from one to the other."""
    return sum(max(0, ends.get(one, offset) - offset) for one, offset in at.items())


def spark_json(offsets: Mapping[TopicPartition, int]) -> str:
    """Offsets as Spark's Kafka source takes them."""
    topics: dict[str, dict[str, int]] = {}
    for (topic, partition), offset in sorted(offsets.items()):
        topics.setdefault(topic, {})[str(partition)] = offset
    return json.dumps(topics)


def offsets_of(text: str) -> Offsets:
    """And back.

    Raises:
        ValueError: it is nothing that Spark writes.
    """
    try:
        return {
            TopicPartition(topic, int(number)): int(offset)
            for topic, partitions in json.loads(text).items()
            for number, offset in partitions.items()
        }
    except (AttributeError, TypeError) as error:
        raise ValueError(f"these are no offsets of Kafka: {text[:200]}") from error


def spark_assign(partitions: Iterable[TopicPartition]) -> str:
    """Partitions as Spark's option ``assign`` takes them."""
    topics: dict[str, list[int]] = {}
    for topic, number in sorted(partitions):
        topics.setdefault(topic, []).append(number)
    return json.dumps(topics)
