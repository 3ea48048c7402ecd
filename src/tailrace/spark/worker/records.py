"""Conversion of Arrow batches of Spark's Kafka source to records."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import groupby, repeat
from typing import Any

import msgspec

from tailrace.records import Record, TopicPartition

__all__ = ["columns_for", "slices_of"]

COLUMNS = (
    "topic",
    "partition",
    "offset",
    "key",
    "value",
    "unix_millis(timestamp) AS timestamp",
    "to_json(headers) AS headers",
)
"""Columns that Spark selects, in this order.

Headers are sent as JSON, because Spark converts lists of structs to Arrow so slowly that reading takes three times as
long, even if all lists are null.
"""


class _Header(msgspec.Struct):
    """Header in Spark's JSON, where bytes are in base64 and null values are omitted."""

    key: str
    value: bytes | None = None


_decode = msgspec.json.Decoder(list[_Header]).decode


def columns_for(topic: str | None) -> tuple[str, ...]:
    """Return the columns to select; the topic is left out if all records are of ``topic``."""
    return COLUMNS if topic is None else COLUMNS[1:]


def slices_of(
    batch: Any,  # noqa: ANN401 - Arrow
    topic: str | None,
    *,
    has_one_partition: bool,
) -> Iterator[tuple[TopicPartition, list[Record]]]:
    """Yield the records of an Arrow batch in order, with one list for consecutive records of the same partition.

    Args:
        batch: RecordBatch with the columns ``columns_for(topic)``.
        topic: topic of all records; None if the batch has a column with the topic.
        has_one_partition: True if all records are of one partition, because Spark did not repartition them.
    """
    if not batch.num_rows:
        return
    *_, partitions, offsets, keys, values, timestamps, headers = batch.columns
    all_headers = repeat(()) if headers.null_count == len(headers) else map(_headers, headers.to_pylist())
    fields = (*(one.to_pylist() for one in (offsets, keys, values, timestamps)), all_headers, repeat(None))
    if has_one_partition:
        partition = TopicPartition(batch.column(0)[0].as_py() if topic is None else topic, partitions[0].as_py())
        yield partition, list(map(Record, repeat(partition.topic), repeat(partition.partition), *fields))
        return
    topics = batch.column(0).to_pylist() if topic is None else repeat(topic)
    for (name, number), records in groupby(map(Record, topics, partitions.to_pylist(), *fields), key=_partition_of):
        yield TopicPartition(name, number), list(records)


def _partition_of(record: Record) -> tuple[str, int]:
    return record.topic, record.partition


def _headers(text: str | None) -> tuple[tuple[str, bytes | None], ...]:
    return tuple((one.key, one.value) for one in _decode(text)) if text else ()
