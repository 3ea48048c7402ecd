"""Arrow's columns as records, and the columns of Spark's Kafka source that they are made of."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import groupby, repeat
from operator import itemgetter
from typing import Any

from penstock.records import Record, TopicPartition

__all__ = ["COLUMNS", "slices_of"]

COLUMNS = (
    "topic",
    "partition",
    "offset",
    "key",
    "value",
    "unix_millis(timestamp) AS timestamp",
    "headers",
)
"""As Spark selects them, in this order."""


def slices_of(batch: Any, *, is_of_one: bool) -> Iterator[tuple[TopicPartition, list[Record]]]:  # noqa: ANN401 - Arrow
    """The records of an Arrow batch, in order, by partition.

    Args:
        batch: a RecordBatch of ``COLUMNS``.
        is_of_one: all of it is of one partition, as where no shuffle came between.
    """
    topics, partitions, offsets, keys, values, timestamps, headers = batch.columns
    if not len(topics):
        return
    all_headers = repeat(()) if headers.null_count == len(headers) else map(_headers, headers.to_pylist())
    rest = (*(one.to_pylist() for one in (offsets, keys, values, timestamps)), all_headers)
    if is_of_one:
        topic, partition = topics[0].as_py(), partitions[0].as_py()
        records = list(map(Record, repeat(topic), repeat(partition), *rest))
        yield TopicPartition(topic, partition), records
        return
    made = map(Record, topics.to_pylist(), partitions.to_pylist(), *rest)
    for (topic, partition), some in groupby(made, key=_place):
        yield TopicPartition(topic, partition), list(some)


def _place(record: Record) -> tuple[str, int]:
    return record.topic, record.partition


def _headers(found: list[dict[str, Any]] | None) -> tuple[tuple[str, bytes | None], ...]:
    return tuple(map(itemgetter("key", "value"), found)) if found else ()
