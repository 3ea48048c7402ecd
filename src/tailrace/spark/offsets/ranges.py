"""Offset ranges of batches, as pure functions.

End offsets are exclusive, as in Kafka's commits and in Spark's plans.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass

from tailrace.core.offset_map import OffsetMap
from tailrace.errors import OffsetOutOfRangeError
from tailrace.records import TopicPartition

__all__ = [
    "Offsets",
    "PartitionStart",
    "next_ends",
    "offsets_in",
    "offsets_left",
    "offsets_of",
    "partition_start",
    "spark_assign",
    "spark_json",
]

Offsets = dict[TopicPartition, int]


@dataclass(frozen=True, slots=True)
class PartitionStart:
    """Start of a partition in a run."""

    offset: int
    offset_map: OffsetMap | None = None
    """Offset map of records finished after the offset."""
    reset_from: int | None = None
    """Committed offset that was reset, because the log does not contain it; None without a reset."""
    lost: int | None = None
    """Number of offsets that were deleted from the log before they were read; None if unknown or without a reset."""


def partition_start(  # noqa: PLR0913 - inputs of the decision
    partition: TopicPartition,
    *,
    committed: int | None,
    offset_map: OffsetMap | None,
    since: int | None,
    reset_offset: int | None,
    begin: int,
    end: int,
) -> PartitionStart:
    """Return the start of a partition.

    The start is ``committed`` if the log contains it, ``since`` if there is no committed offset, and otherwise
    ``reset_offset``.

    Args:
        partition: partition, named in the error.
        committed: committed offset, or None.
        offset_map: offset map of the commit, or None.
        since: start that the user has requested for partitions without a committed offset, or None.
        reset_offset: start by ``auto_offset_reset``; None for ``"none"``.
        begin: first offset of the log.
        end: end offset of the log.

    Raises:
        OffsetOutOfRangeError: ``reset_offset`` is needed, and is None.
    """
    if committed is not None and begin <= committed <= end:
        return PartitionStart(committed, offset_map)
    if committed is None and since is not None:
        return PartitionStart(min(max(since, begin), end))
    if reset_offset is None:
        raise OffsetOutOfRangeError(*partition, committed)
    offset = min(max(reset_offset, begin), end)
    lost = None
    if committed is not None and committed <= offset:
        lost = offset - committed
    return PartitionStart(offset, None, committed, lost)


def next_ends(starts: Mapping[TopicPartition, int], ends: Mapping[TopicPartition, int], max_offsets: int) -> Offsets:
    """Return the end offsets of a batch that starts at ``starts`` and contains about ``max_offsets`` offsets.

    The offsets are divided evenly among the partitions. If a partition has fewer offsets left than its share, the other
    partitions get more. Each partition that has offsets left gets at least one, so a batch may exceed ``max_offsets``.
    """
    left = {one: ends[one] - offset for one, offset in starts.items() if ends.get(one, offset) > offset}
    shares: Offsets = {}
    available = max_offsets
    for number, one in enumerate(sorted(left, key=lambda one: left[one])):
        shares[one] = min(left[one], max(1, available // (len(left) - number)))
        available -= shares[one]
    return {one: offset + shares.get(one, 0) for one, offset in starts.items()}


def offsets_left(starts: Mapping[TopicPartition, int], ends: Mapping[TopicPartition, int]) -> int:
    """Return the number of offsets from ``starts`` to ``ends``, over all partitions."""
    return sum(max(0, ends.get(one, offset) - offset) for one, offset in starts.items())


def spark_json(offsets: Mapping[TopicPartition, int]) -> str:
    """Encode offsets as JSON for Spark's Kafka source."""
    topics: dict[str, dict[str, int]] = {}
    for (topic, partition), offset in sorted(offsets.items()):
        topics.setdefault(topic, {})[str(partition)] = offset
    return json.dumps(topics)


def offsets_of(text: str) -> Offsets:
    """Decode offsets from the JSON of Spark's Kafka source.

    Raises:
        ValueError: the text has another format.
    """
    try:
        return {
            TopicPartition(topic, int(number)): int(offset)
            for topic, partitions in json.loads(text).items()
            for number, offset in partitions.items()
        }
    except (AttributeError, TypeError) as error:
        raise ValueError(f"these are not offsets of Spark's Kafka source: {text[:200]}") from error


def offsets_in(texts: Iterable[str | None], topics: Collection[str]) -> Offsets:
    """Return the offsets of topics in the JSON of a query's sources, and ignore sources of other kinds.

    If several sources read a partition, its offset is the lowest one: the others are ahead of this source.
    """
    found: Offsets = {}
    for text in texts:
        try:
            offsets = offsets_of(text or "{}")
        except ValueError:
            continue
        for one, offset in offsets.items():
            if one.topic in topics:
                found[one] = min(offset, found.get(one, offset))
    return found


def spark_assign(partitions: Iterable[TopicPartition]) -> str:
    """Encode partitions as JSON for the option ``assign`` of Spark's Kafka source."""
    topics: dict[str, list[int]] = {}
    for topic, number in sorted(partitions):
        topics.setdefault(topic, []).append(number)
    return json.dumps(topics)
