"""Batch handlers that receive their batch as a table, and the packages that they need."""

from __future__ import annotations

import sys

import pandas as pd
import polars as pl
import pyarrow as pa
import pytest

from tailrace import ConfigurationError, Record
from tailrace.app.declare.prepared_handler import prepare
from tailrace.batches.columns import arrow_of
from tailrace.codecs.json_codec import JsonCodec

RECORDS = [
    Record("orders", 3, 7, b"ann", b"{}", 1_000, (("trace", b"1"), ("empty", None))),
    Record("orders", 3, 9, None, None, 2_000),
]


def taking(annotation):
    async def handler(table):
        return table

    handler.__annotations__["table"] = annotation
    return prepare(handler, JsonCodec(), is_batch=True)


async def test_an_arrow_batch_has_a_row_for_each_record():
    """``pyarrow.RecordBatch`` receives a row for each record, in order, whatever the codec is."""
    prepared = taking(pa.RecordBatch)

    table = await prepared.direct_call(RECORDS)

    assert table.equals(arrow_of(RECORDS))
    assert table.column("value").to_pylist() == [b"{}", None]
    assert prepared.decode_one(RECORDS[0]) is RECORDS[0]
    assert not prepared.sees_values_only


@pytest.mark.parametrize("kind", [pl.DataFrame, pd.DataFrame])
async def test_a_data_frame_has_the_columns_of_an_arrow_batch(kind):
    """``polars.DataFrame`` and ``pandas.DataFrame`` receive the same columns and rows as ``pyarrow.RecordBatch``."""
    frame = await taking(kind).call(RECORDS)

    assert isinstance(frame, kind)
    assert list(frame.columns) == arrow_of(RECORDS).schema.names
    assert list(frame["offset"]) == [7, 9]
    assert list(frame["key"]) == [b"ann", None]
    assert [one.timestamp() for one in frame["timestamp"]] == [1.0, 2.0]
    assert [len(one) for one in frame["headers"]] == [2, 0]


async def test_bind_returns_the_table_of_a_plain_batch_handler():
    """bind() returns the table for a plain batch handler."""

    def handler(table: pa.RecordBatch) -> int:
        return table.num_rows

    args, kwargs = prepare(handler, JsonCodec(), is_batch=True).bind(RECORDS, {})

    assert handler(*args, **kwargs) == 2


@pytest.mark.parametrize("kind", [pa.Table, pd.Series, pl.DataFrame | None])
def test_other_tables_are_refused(kind):
    """A batch handler of an unsupported table type is refused, with an error that names the supported types."""
    with pytest.raises(ConfigurationError, match=r"pyarrow\.RecordBatch`, `polars\.DataFrame` or `pandas\.DataFrame`"):
        taking(kind)


def test_a_table_is_refused_for_a_single_record_handler():
    """A handler of single records that takes a table is refused."""

    async def handler(table: pa.RecordBatch) -> None: ...

    with pytest.raises(ConfigurationError, match="RecordBatch"):
        prepare(handler, JsonCodec())


@pytest.mark.parametrize("kind", [pl.DataFrame, pd.DataFrame])
def test_a_missing_pyarrow_is_refused_at_the_start(monkeypatch, kind):
    """Without pyarrow, the error names the handler and the command that installs it."""
    monkeypatch.setitem(sys.modules, "pyarrow", None)

    with pytest.raises(ConfigurationError, match=r"handler \S+: parameter 'table': .*pip install .*\[arrow\]"):
        taking(kind)
