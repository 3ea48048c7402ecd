"""Offset ranges of batches.

This module is pure. End offsets are exclusive, as in Kafka's commits and in Spark's plans.
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
    "left_between",
    "next_ends",
    "offsets_of",
    "partition_start",
    "spark_assign",
    "spark_json",
]

Offsets = dict[TopicPartition, int]


@dataclass(frozen=True, slots=True)
class PartitionStart:
    """Offset at which a partition is read first."""

    offset: int
    done: OffsetMap | None = None
    """Offset map of records finished after the offset."""
    before: int | None = None
    """Committed offset that is not in the log; None if there is none."""
    lost: int | None = None
    """Number of offsets that were deleted from the log before they were read; None if unknown."""


def partition_start(  # noqa: PLR0913 - inputs of the decision
    partition: TopicPartition,
    *,
    committed: int | None,
    done: OffsetMap | None,
    since: int | None,
    policy: int | None,
    begin: int,
    end: int,
) -> PartitionStart:
    """Return the start in a log: the committed offset if the log has it, else ``since``, else ``policy``.

    Args:
        partition: partition, for the error.
        committed: committed offset, or None.
        done: offset map of the commit.
        since: start requested for a partition without a committed offset, or None.
        policy: start by ``auto_offset_reset``; None for ``"none"``.
        begin: first offset of the log.
        end: end offset of the log.

    Raises:
        OffsetOutOfRangeError: a policy is needed, and ``auto_offset_reset="none"``.
    """
    if committed is not None and begin <= committed <= end:
        return PartitionStart(committed, done)
    if committed is None and since is not None:
        return PartitionStart(min(max(since, begin), end))
    if policy is None:
        raise OffsetOutOfRangeError(*partition, committed)
    after = min(max(policy, begin), end)
    lost = None
    if committed is not None and committed <= after:
        lost = after - committed
    return PartitionStart(after, None, committed, lost)


def next_ends(at: Mapping[TopicPartition, int], ends: Mapping[TopicPartition, int], max_offsets: int) -> Offsets:
    """Return the end offsets of the next batch, which contains about ``max_offsets`` offsets.

    They are divided evenly among the partitions; what a partition does not need goes to the others. Each partition with
    offsets left gets at least one, so that a batch may exceed ``max_offsets``.
    """
    left = {one: ends[one] - offset for one, offset in at.items() if ends.get(one, offset) > offset}
    shares: Offsets = {}
    available = max_offsets
    for number, one in enumerate(sorted(left, key=lambda one: left[one])):
        shares[one] = min(left[one], max(1, available // (len(left) - number)))
        available -= shares[one]
    return {one: offset + shares.get(one, 0) for one, offset in at.items()}


def left_between(at: Mapping[TopicPartition, int], ends: Mapping[TopicPartition, int]) -> int:
    """Return the number of offsets from ``at`` to ``ends``, over all partitions."""
    return sum(max(0, ends.get(one, offset) - offset) for one, offset in at.items())


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
        raise ValueError(f"not offsets of Spark's Kafka source: {text[:200]}") from error


def spark_assign(partitions: Iterable[TopicPartition]) -> str:
    """Encode partitions as JSON for the option ``assign`` of Spark's Kafka source."""
    topics: dict[str, list[int]] = {}
    for topic, number in sorted(partitions):
        topics.setdefault(topic, []).append(number)
    return json.dumps(topics)
