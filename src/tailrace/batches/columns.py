"""Arrow record batches, built from the bytes of Kafka's record batches or from ``Record`` objects.

The compiled decoder writes keys, values and headers from the bytes directly into Arrow's buffers. ``Record`` objects
are converted with pyarrow: those that are decoded already, and all records if the compiled module is not used.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cache
from importlib import import_module
from itertools import groupby
from typing import TYPE_CHECKING, Any, Protocol, overload

from tailrace.errors import ConfigurationError
from tailrace.installation import install_hint
from tailrace.records import Record, TopicPartition

if TYPE_CHECKING:
    import pyarrow as pa

    from tailrace._native import BatchDecoder, Columns

__all__ = ["ArrowBatch", "ColumnBuilder", "Rows", "arrow", "arrow_of", "offsets_of"]

_FULL = 1 << 30
"""Size in bytes from which a batch counts as full; a binary column of Arrow has at most 2 GiB."""


class ArrowBatch(Protocol):
    """Type of ``pyarrow.RecordBatch`` in signatures; pyarrow itself has no type stubs."""

    @property
    def num_rows(self) -> int: ...


def arrow() -> Any:  # noqa: ANN401 - pyarrow is untyped
    """Return the module pyarrow.

    Raises:
        ConfigurationError: pyarrow is not installed.
    """
    try:
        return import_module("pyarrow")
    except ImportError as error:
        raise ConfigurationError(f"Arrow batches need pyarrow - {install_hint('arrow')}") from error


@cache
def _schema() -> Any:  # noqa: ANN401 - pyarrow is untyped
    pa = arrow()
    header = pa.struct([pa.field("key", pa.string()), pa.field("value", pa.binary())])
    return pa.schema(
        [
            pa.field("topic", pa.string(), nullable=False),
            pa.field("partition", pa.int32(), nullable=False),
            pa.field("offset", pa.int64(), nullable=False),
            pa.field("timestamp", pa.timestamp("ms", tz="UTC"), nullable=False),
            pa.field("key", pa.binary()),
            pa.field("value", pa.binary()),
            pa.field("headers", pa.list_(header), nullable=False),
        ]
    )


def arrow_of(records: Sequence[Record]) -> pa.RecordBatch:
    """Return an Arrow record batch with one row for each of ``records``.

    Raises:
        ConfigurationError: pyarrow is not installed.
    """
    columns = [[getattr(record, name) for record in records] for name in _schema().names[:-1]]
    columns.append([[{"key": key, "value": value} for key, value in record.headers] for record in records])
    arrays = [arrow().array(column, kind) for column, kind in zip(columns, _schema().types, strict=True)]
    batch: pa.RecordBatch = arrow().RecordBatch.from_arrays(arrays, schema=_schema())
    return batch


def offsets_of(batch: Any) -> Iterator[tuple[TopicPartition, list[int]]]:  # noqa: ANN401 - pyarrow is untyped
    """Yield a partition and its offsets for each run of adjacent rows of one partition.

    Yield nothing if the batch has another schema than the batches of this module.
    """
    if batch.schema != _schema():
        return
    partitions = map(TopicPartition, batch.column("topic").to_pylist(), batch.column("partition").to_pylist())
    rows = zip(partitions, batch.column("offset").to_pylist(), strict=True)
    for partition, group in groupby(rows, key=lambda row: row[0]):
        yield partition, [offset for _, offset in group]


class Rows(Sequence[Record]):
    """Sequence of records that stand for adjacent rows of ``Columns``.

    A record is created when it is accessed. It has topic, partition and offset, but no key, value or timestamp.
    """

    __slots__ = ("_columns", "_count", "_partition", "_start", "_topic")

    def __init__(self, columns: Columns, topic: str, partition: int, start: int, count: int) -> None:
        self._columns, self._topic, self._partition = columns, topic, partition
        self._start, self._count = start, count

    def __len__(self) -> int:
        return self._count

    @overload
    def __getitem__(self, index: int) -> Record: ...

    @overload
    def __getitem__(self, index: slice) -> list[Record]: ...

    def __getitem__(self, index: int | slice) -> Record | list[Record]:
        if isinstance(index, slice):
            return [self[one] for one in range(*index.indices(self._count))]
        offset = self._columns.offset(self._start + range(self._count)[index])
        return Record(self._topic, self._partition, offset, None, None, -1)


class ColumnBuilder:
    """Builder of one Arrow record batch.

    Attributes:
        count: number of rows.
        batch: the Arrow record batch; None until ``finish`` has returned it.

    Raises:
        ConfigurationError: pyarrow is not installed.
    """

    def __init__(self) -> None:
        arrow()
        self.count = 0
        self.batch: pa.RecordBatch | None = None
        self._parts: list[_CompiledColumns | _RecordColumns] = []

    @property
    def is_full(self) -> bool:
        """True if the batch has reached the size from which ``finish`` should be called."""
        return sum(part.size for part in self._parts) >= _FULL

    def add_from(self, decoder: BatchDecoder, topic: str, partition: int, limit: int) -> Rows:
        """Add up to ``limit`` records of a compiled decoder, from its current position, and return their rows.

        Raises:
            ValueError, OverflowError: the bytes are not records; see ``BatchDecoder.take_into``. Nothing is added.
        """
        part = self._parts[-1] if self._parts else None
        if not isinstance(part, _CompiledColumns):
            part = _CompiledColumns()
            self._parts.append(part)
        rows = part.add_from(decoder, topic, partition, limit)
        self.count += len(rows)
        return rows

    def add_records(self, records: Sequence[Record]) -> None:
        part = self._parts[-1] if self._parts else None
        if not isinstance(part, _RecordColumns):
            part = _RecordColumns()
            self._parts.append(part)
        part.add(records)
        self.count += len(records)

    def finish(self) -> pa.RecordBatch:
        """Return the rows as one Arrow record batch, and store it in ``batch``."""
        batches = [part.finish() for part in self._parts]
        self.batch = batches[0] if len(batches) == 1 else arrow().concat_batches(batches or [arrow_of(())])
        self._parts = []
        return self.batch


class _RecordColumns:
    """Rows added as ``Record`` objects."""

    def __init__(self) -> None:
        self._records: list[Record] = []
        self.size = 0

    def add(self, records: Sequence[Record]) -> None:
        self._records += records
        for record in records:
            self.size += len(record.key or b"") + len(record.value or b"")
            self.size += sum(len(name) + len(value or b"") for name, value in record.headers)

    def finish(self) -> Any:  # noqa: ANN401 - pyarrow is untyped
        return arrow_of(self._records)


class _CompiledColumns:
    """Rows that the compiled decoder has written into Arrow's buffers."""

    def __init__(self) -> None:
        from tailrace._native import Columns  # noqa: PLC0415 - absent without a compiler

        self._columns = Columns()
        self._topics: list[tuple[str, int]] = []
        """Topics of adjacent rows, each with the number of the rows."""

    @property
    def size(self) -> int:
        return self._columns.size

    def add_from(self, decoder: BatchDecoder, topic: str, partition: int, limit: int) -> Rows:
        start = self._columns.count
        count = decoder.take_into(self._columns, limit)
        if count:
            if self._topics and self._topics[-1][0] == topic:
                count_before = self._topics.pop()[1]
                self._topics.append((topic, count_before + count))
            else:
                self._topics.append((topic, count))
        return Rows(self._columns, topic, partition, start, count)

    def finish(self) -> Any:  # noqa: ANN401 - pyarrow is untyped
        pa, schema, rows = arrow(), _schema(), self._columns.count
        (partitions, offsets, timestamps, header_ends), columns = self._columns.finish()
        keys, values, names, header_values = columns
        headers = schema.field("headers").type
        header = pa.Array.from_buffers(
            headers.value_type,
            names[0],
            [None],
            0,
            0,
            [_binary(pa.string(), names), _binary(pa.binary(), header_values)],
        )

        def fixed(name: str, buffer: bytearray) -> Any:  # noqa: ANN401 - pyarrow is untyped
            return pa.Array.from_buffers(schema.field(name).type, rows, [None, pa.py_buffer(buffer)], 0)

        topics = [pa.repeat(pa.scalar(topic, pa.string()), count) for topic, count in self._topics]
        arrays = [
            topics[0] if len(topics) == 1 else pa.concat_arrays(topics or [pa.array([], pa.string())]),
            fixed("partition", partitions),
            fixed("offset", offsets),
            fixed("timestamp", timestamps),
            _binary(pa.binary(), keys),
            _binary(pa.binary(), values),
            pa.Array.from_buffers(headers, rows, [None, pa.py_buffer(header_ends)], 0, 0, [header]),
        ]
        return pa.RecordBatch.from_arrays(arrays, schema=schema)


def _binary(kind: Any, column: tuple[int, int, bytearray, bytearray, bytearray]) -> Any:  # noqa: ANN401
    """Return an Arrow array of type ``kind`` from the number of values, the number of nulls, and three buffers."""
    pa = arrow()
    count, nulls, *buffers = column
    valid, ends, content = map(pa.py_buffer, buffers)
    return pa.Array.from_buffers(kind, count, [valid if nulls else None, ends, content], nulls)
