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
"""Columns that Spark selects, in this order. Headers are JSON: Spark converts lists of structs to Arrow so slowly, even
if all are null, that reading takes three times as long."""


class _Header(msgspec.Struct):
    """Header in Spark's JSON: bytes are base64, and null values are omitted."""

    key: str
    value: bytes | None = None


_decode = msgspec.json.Decoder(list[_Header]).decode


def columns_for(topic: str | None) -> tuple[str, ...]:
    """Return the columns to select; without the topic if all records are of ``topic``."""
    return COLUMNS if topic is None else COLUMNS[1:]


def slices_of(
    batch: Any,  # noqa: ANN401 - Arrow
    topic: str | None,
    *,
    has_one_partition: bool,
) -> Iterator[tuple[TopicPartition, list[Record]]]:
    """Yield the records of an Arrow batch in runs of one partition, in order.

    Args:
        batch: RecordBatch with ``columns_for(topic)``.
        topic: topic of all records; None if it is a column.
        has_one_partition: True if all records are of one partition, as without a shuffle.
    """
    if not batch.num_rows:
        return
    *_, partitions, offsets, keys, values, timestamps, headers = batch.columns
    all_headers = repeat(()) if headers.null_count == len(headers) else map(_headers, headers.to_pylist())
    rest = (*(one.to_pylist() for one in (offsets, keys, values, timestamps)), all_headers, repeat(None))
    if has_one_partition:
        place = TopicPartition(batch.column(0)[0].as_py() if topic is None else topic, partitions[0].as_py())
        yield place, list(map(Record, repeat(place.topic), repeat(place.partition), *rest))
        return
    topics = batch.column(0).to_pylist() if topic is None else repeat(topic)
    for (name, number), some in groupby(map(Record, topics, partitions.to_pylist(), *rest), key=_place):
        yield TopicPartition(name, number), list(some)


def _place(record: Record) -> tuple[str, int]:
    return record.topic, record.partition


def _headers(text: str | None) -> tuple[tuple[str, bytes | None], ...]:
    return tuple((one.key, one.value) for one in _decode(text)) if text else ()
