"""Columns have the content of records, with and without the compiled module, and malformed bytes are detected."""

from __future__ import annotations

import sys

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tailrace.batches import columns as columns_module
from tailrace.batches import record_batch
from tailrace.batches.columns import ColumnBuilder, arrow_of, offsets_of
from tailrace.batches.record_batch import split
from tailrace.errors import ConfigurationError, MalformedMessageError
from tailrace.installation import COMPILED
from tailrace.records import TopicPartition
from tests.support.protocol.built_batches import GZIP, NONE, ZSTD, SentRecord, any_records, batch, old_batch

HEAD, ATTRIBUTES_AT, LOG_APPEND_TIME = 61, 22, 8
RECORDS = any_records(at_most=20)
SLICES = st.lists(st.integers(1, 9), max_size=3)
CHANGES = st.lists(st.tuples(st.integers(0, 400), st.integers(0, 255)), max_size=4)
SOME = (
    SentRecord(b"k", b"value", 1_000, (("trace", b"1"), ("empty", None))),
    SentRecord(None, b"", 2_000),
    SentRecord(b"", None, 3_000),
)

DECODERS = [
    pytest.param(True, id="compiled", marks=pytest.mark.skipif(not COMPILED, reason="there is no compiled module")),
    pytest.param(False, id="pure"),
]


@pytest.fixture(params=DECODERS)
def is_compiled(request):
    """Run a test with the compiled decoder, and again without it."""
    with pytest.MonkeyPatch.context() as patch:
        if not request.param:
            patch.setattr(record_batch, "_BatchDecoder", None)
        yield request.param


def columns_of(data: bytes, position: int = 0, slices: list[int] = (), topic: str = "t") -> pa.RecordBatch | None:
    """Return the columns of a batch, decoded in steps, or None if it is malformed."""
    columns = ColumnBuilder()
    try:
        add(columns, data, position, slices, topic)
    except MalformedMessageError:
        return None
    return columns.finish()


def add(columns, data, position=0, slices=(), topic="t"):
    decoder = split(memoryview(data))[0].decode(topic, 3, position)
    for count in [*slices, 100, 1]:
        before = columns.count
        rows = decoder.take_into(columns, count)
        assert columns.count - before == len(rows) <= count


def records_of(data: bytes, position: int = 0, topic: str = "t"):
    return split(memoryview(data))[0].decode(topic, 3, position).take(200)


@pytest.mark.usefixtures("is_compiled")
@settings(max_examples=60)
@given(RECORDS, st.integers(0, 22), SLICES)
def test_columns_have_the_content_of_records(records, position, slices):
    """Columns decoded from any position in steps of any size have the content of the records."""
    data = batch(*records, base_offset=1)

    columns = columns_of(data, position, slices)

    columns.validate(full=True)
    assert columns.equals(arrow_of(records_of(data, position)))
    assert columns.schema.equals(arrow_of(()).schema)
    assert columns.column("offset").to_pylist() == [one for one in range(1, len(records) + 1) if one >= position]


@pytest.mark.skipif(not COMPILED, reason="there is no compiled module")
@settings(max_examples=200)
@given(RECORDS, CHANGES, st.integers(0, 7), SLICES)
def test_a_damaged_batch_gives_the_columns_of_its_records(records, changes, position, slices):
    """A damaged batch gives the columns of its records, or is malformed for both decoders."""
    data = bytearray(batch(*records))
    for at, byte in changes:
        data[HEAD + at % (len(data) - HEAD)] = byte

    columns = columns_of(bytes(data), position, slices)

    try:
        decoder = split(memoryview(bytes(data)))[0].decode("t", 3, position)
        expected = [record for count in [*slices, 100, 1] for record in decoder.take(count)]
    except MalformedMessageError:
        assert columns is None
    else:
        columns.validate(full=True)
        assert columns.equals(arrow_of(expected))


@pytest.mark.usefixtures("is_compiled")
@settings(max_examples=100)
@given(st.binary(max_size=120), st.integers(-(2**31), 2**31 - 1), st.integers(0, 2**63 - 1))
def test_any_bytes_are_columns_or_one_typed_error(content, count, position):
    """Any bytes after a batch's header give valid columns or MalformedMessageError."""
    data = bytearray(batch(SentRecord(b"k", b"v", 1, ()))[:HEAD] + content)
    data[8:12] = (len(data) - 12).to_bytes(4, "big")
    data[57:61] = count.to_bytes(4, "big", signed=True)

    found = columns_of(bytes(data), position, [1])

    if found is not None:
        found.validate(full=True)


@pytest.mark.usefixtures("is_compiled")
@settings(max_examples=100)
@given(RECORDS, st.integers(0, 400), st.integers(0, 255))
def test_malformed_records_add_no_rows(records, at, byte):
    """Malformed records add no rows to the columns, and further ones can be added."""
    good, bad = batch(*SOME), bytearray(batch(*records))
    bad[HEAD + at % (len(bad) - HEAD)] = byte
    columns = ColumnBuilder()
    add(columns, good)
    try:
        split(memoryview(bytes(bad)))[0].decode("t", 3, 0).take_into(columns, 100)
        has_failed = False
    except MalformedMessageError:
        has_failed = True
    assert columns.count == len(SOME) + (0 if has_failed else len(records))
    add(columns, good)

    found = columns.finish()

    found.validate(full=True)
    if has_failed:
        assert found.equals(arrow_of(records_of(good) * 2))


@pytest.mark.parametrize("codec", [GZIP, ZSTD, NONE])
def test_compressed_and_old_batches_have_columns(is_compiled, codec):
    """Batches of any codec and any message format give the columns of their records."""
    data = batch(*SOME, codec=codec) if codec else old_batch(*SOME, magic=1)

    assert columns_of(data).equals(arrow_of(records_of(data)))


def test_timestamps_are_those_of_the_broker_with_log_append_time(is_compiled):
    """A batch with LogAppendTime has one timestamp: its highest."""
    data = bytearray(batch(*SOME))
    data[ATTRIBUTES_AT] |= LOG_APPEND_TIME

    found = columns_of(bytes(data))

    assert found.column("timestamp").cast(pa.int64()).to_pylist() == [3_000] * 3


def test_the_schema_is_the_documented_one(is_compiled):
    """The columns have the documented names, types and nullability."""
    found = columns_of(batch(*SOME))

    assert {one.name: str(one.type) for one in found.schema} == {
        "topic": "string",
        "partition": "int32",
        "offset": "int64",
        "timestamp": "timestamp[ms, tz=UTC]",
        "key": "binary",
        "value": "binary",
        "headers": "list<item: struct<key: string, value: binary>>",
    }
    assert [one.name for one in found.schema if one.nullable] == ["key", "value"]
    assert found.column("key").to_pylist() == [b"k", None, b""]
    assert found.column("value").to_pylist() == [b"value", b"", None]
    assert found.column("headers").to_pylist()[0] == [{"key": "trace", "value": b"1"}, {"key": "empty", "value": None}]


def test_one_batch_has_records_of_several_topics(is_compiled):
    """Columns may have records of several topics, from batches and decoded ones, in the order of their addition."""
    data, columns = batch(*SOME), ColumnBuilder()
    expected = []
    for topic in ("a", "a", "b", "a"):
        add(columns, data, topic=topic)
        columns.add_records(records_of(data, topic="c"))
        add(columns, data, topic="b")
        add(columns, data, topic=topic)
        expected += [one for name in (topic, "c", "b", topic) for one in records_of(data, topic=name)]

    found = columns.finish()

    assert found.equals(arrow_of(expected))
    assert columns.batch is found
    assert [(place.topic, offsets) for place, offsets in offsets_of(found)][:3] == [
        ("a", [0, 1, 2]),
        ("c", [0, 1, 2]),
        ("b", [0, 1, 2]),
    ]


def test_rows_have_the_offsets_of_their_records(is_compiled):
    """Added rows have their partition and offsets, also after the batch is finished."""
    columns = ColumnBuilder()
    add(columns, batch(*SOME))
    rows = split(memoryview(batch(*SOME, *SOME, base_offset=40)))[0].decode("t", 3, 42).take_into(columns, 3)
    columns.finish()

    assert [one.offset for one in rows] == [42, 43, 44]
    assert (rows[0].offset, rows[-1].offset, len(rows[1:])) == (42, 44, 2)
    assert rows[0].topic_partition == TopicPartition("t", 3)
    with pytest.raises(IndexError):
        rows[3]


def test_a_batch_is_full_before_a_column_has_2_gib(is_compiled, monkeypatch):
    """A builder is full when its bytes reach the limit."""
    monkeypatch.setattr(columns_module, "_FULL", 1_000)
    columns = ColumnBuilder()
    add(columns, batch(SentRecord(b"k" * 400, b"v" * 400)))
    assert not columns.is_full

    add(columns, batch(SentRecord(b"k" * 100, None, 0, (("h", b"x" * 99),))))

    assert columns.is_full


def test_no_rows_are_an_empty_batch(is_compiled):
    """Without rows, a builder returns an empty batch."""
    assert ColumnBuilder().finish().num_rows == 0
    assert columns_of(batch(SentRecord(b"k", b"v"), codec=NONE), position=5).num_rows == 0


def test_a_missing_pyarrow_is_a_typed_error(monkeypatch):
    """Without pyarrow, an error has the command that installs it."""
    monkeypatch.setitem(sys.modules, "pyarrow", None)

    with pytest.raises(ConfigurationError, match=r"pip install .*\[arrow\]"):
        ColumnBuilder()
