"""BatchWriter: batches that the reader of brokers' batches decodes."""

from __future__ import annotations

import pytest
from aiokafka.record.default_records import DefaultRecordBatch
from hypothesis import given, settings
from hypothesis import strategies as st

from tailrace.batches import batch_writer
from tailrace.batches.batch_writer import COMPRESSIONS, BatchWriter
from tailrace.batches.record_batch import split
from tailrace.errors import MalformedMessageError
from tailrace.installation import COMPILED, record_writer
from tailrace.records import Record

needs_compiled = pytest.mark.skipif(not COMPILED, reason="tailrace was installed without its compiled module")


@pytest.fixture(params=[pytest.param(True, id="compiled", marks=needs_compiled), pytest.param(False, id="pure")])
def is_compiled(request):
    """Run a test with the compiled writer of records, and again without it."""
    with pytest.MonkeyPatch.context() as patch:
        if not request.param:
            patch.setattr(batch_writer, "record_writer", None)
        yield request.param


pytestmark = pytest.mark.usefixtures("is_compiled")

bytes_or_none = st.none() | st.binary(max_size=20)
records = st.lists(
    st.tuples(
        bytes_or_none,
        bytes_or_none,
        st.lists(st.tuples(st.text("aé☃", max_size=3), bytes_or_none), max_size=2).map(tuple),
        st.integers(0, 1 << 45),
    ),
    min_size=1,
    max_size=20,
)


def written(rows, compression: str = "none") -> bytes:
    """Return the records as a batch of producer 7 in epoch 3, with sequence 11."""
    writer = BatchWriter(1 << 20, compression)
    for row in rows:
        assert writer.append(*row)
    assert writer.count == len(rows)
    return writer.encode(7, 3, 11)


@pytest.mark.parametrize("compression", COMPRESSIONS)
def test_batches_round_trip(compression):
    """A written batch has the same keys, values, headers and timestamps when it is read, in all codecs."""

    @settings(max_examples=30)
    @given(records)
    def check(rows):
        (batch,) = split(memoryview(written(rows, compression)))

        assert batch.checksum_holds()
        assert [Record("t", 0, n, *row[:2], row[3], row[2]) for n, row in enumerate(rows)] == [
            Record("t", 0, one.offset, one.key, one.value, one.timestamp, tuple(one.headers))
            for one in batch.decode("t", 0, 0).take(100)
        ]

    check()


@needs_compiled
@pytest.mark.parametrize("compression", COMPRESSIONS)
def test_both_writers_write_the_same_bytes(compression, monkeypatch):
    """The compiled writer and aiokafka's builder write the same bytes, and find a batch full at the same record."""

    @settings(max_examples=60)
    @given(records, st.integers(61, 400))
    def check(rows, limit):
        contents = []
        for writer_class in (record_writer, None):
            monkeypatch.setattr(batch_writer, "record_writer", writer_class)
            writer = BatchWriter(limit, compression)
            sizes = [writer.append(*row) for row in rows]
            contents.append((sizes, writer.count, writer.size, writer.timestamps, bytes(writer.encode(7, 3, 11))))

        assert contents[0] == contents[1]

    check()


def test_a_finished_batch_accepts_no_record():
    """A batch that was encoded accepts no further record, so that its bytes remain those that were sent."""
    writer = BatchWriter(1 << 20)
    writer.append(None, b"sent")
    content = bytes(writer.encode(7, 3, 0))

    assert writer.append(None, b"late") == 0

    assert bytes(writer.encode(7, 3, 0)) == content
    assert len(writer.timestamps) == writer.count == 1


@pytest.mark.parametrize("compression", COMPRESSIONS)
def test_a_batch_has_producer_and_sequence(compression):
    """The batch is transactional, with producer id, epoch and first sequence (KIP-98)."""
    content = written([(b"k", b"v" * 1_000, (), 1_000)] * 5, compression)

    raw = DefaultRecordBatch(content)
    (batch,) = split(memoryview(content))

    assert (raw.producer_id, raw.producer_epoch, raw.base_sequence, raw.last_offset_delta) == (7, 3, 11, 4)
    assert (raw.is_transactional, raw.is_control_batch, raw.compression_type) == (
        True,
        False,
        COMPRESSIONS[compression],
    )
    assert (batch.producer_id, batch.is_control) == (7, False)
    assert (len(content) < 5_000) is (compression != "none")


def test_a_full_batch_accepts_no_record():
    """A full batch accepts no further record, and an empty one accepts a record of any size."""
    writer = BatchWriter(200)

    assert writer.append(None, b"x" * 1_000)
    assert not writer.append(None, b"x")
    (batch,) = split(memoryview(writer.encode(7, 3, 0)))
    assert len(batch.decode("t", 0, 0).take(10)) == writer.count == 1


def test_the_default_timestamp_is_now():
    """A record without a timestamp gets the time at which it is written."""
    writer = BatchWriter(1_000)
    writer.append(None, b"first")
    writer.append(None, b"second", timestamp_ms=1_700_000_000_000)

    first, second = split(memoryview(writer.encode(7, 3, 0)))[0].decode("t", 0, 0).take(2)

    assert first.timestamp > second.timestamp == 1_700_000_000_000


@pytest.mark.parametrize(
    "row",
    [
        ("text", b"v"),
        (b"k", "text"),
        (b"k", b"v", [("h", "text")]),
        (b"k", b"v", [(b"h", b"v")]),
        (b"k", b"v", [("\ud800", b"v")]),
        (b"k", b"v", [("h",)]),
        (b"k", b"v", (), "yesterday"),
        (b"k", b"v", (), 1 << 63),
    ],
)
def test_an_invalid_record_is_refused(row):
    """An invalid record raises MalformedMessageError and leaves the batch unchanged."""
    writer = BatchWriter(1_000)
    writer.append(b"k", b"before", (), 1_000)

    with pytest.raises(MalformedMessageError, match="cannot encode the record"):
        writer.append(*row)
    writer.append(b"k", b"after", (), 1_001)

    (batch,) = split(memoryview(writer.encode(7, 3, 0)))
    assert [one.value for one in batch.decode("t", 0, 0).take(10)] == [b"before", b"after"]


@pytest.mark.parametrize("compression", COMPRESSIONS)
def test_a_batch_is_written_for_another_epoch(compression):
    """A batch written again for another epoch has the same records, and the former bytes are unchanged."""
    writer = BatchWriter(1 << 20, compression, is_transactional=False)
    for number in range(100):
        writer.append(b"k", b"%d" % number)
    first = writer.encode(7, 3, 11)
    kept = bytes(first)

    second = writer.encode(7, 4, 0)

    raw = DefaultRecordBatch(second)
    assert (raw.producer_epoch, raw.base_sequence, raw.is_transactional) == (4, 0, False)
    assert bytes(first) == kept
    for content in (first, second):
        (batch,) = split(content)
        assert batch.checksum_holds()
        assert [one.value for one in batch.decode("t", 0, 0).take(200)] == [b"%d" % number for number in range(100)]


@pytest.mark.parametrize("compression", COMPRESSIONS)
def test_selected_records_make_a_batch(compression):
    """A batch of selected records has their keys, values, headers and timestamps."""
    writer = BatchWriter(1 << 20, compression)
    for number in range(5):
        writer.append(b"k", b"%d" % number, [("h", None)], 1_000 + number)
    writer.encode(7, 3, 11)

    chosen = writer.selected([1, 4])

    (batch,) = split(chosen.encode(7, 4, 0))
    records = batch.decode("t", 0, 0).take(10)
    assert [(one.value, one.timestamp, list(one.headers)) for one in records] == [
        (b"1", 1_001, [("h", None)]),
        (b"4", 1_004, [("h", None)]),
    ]


def test_a_full_batch_without_its_first_record_has_all_others():
    """The others may become larger, because their timestamps are relative to that of the first record."""
    writer, times = BatchWriter(16_384), [8_000, 0]
    while all(writer.append(None, b"0123456789", (), time) for time in times[writer.count :]):
        times.append(12_000)

    chosen = writer.selected(range(1, writer.count))

    (batch,) = split(chosen.encode(7, 3, 0))
    found = [one.timestamp for one in batch.decode("t", 0, 0).take(writer.count)]
    assert found == times[1 : writer.count]
    assert len(found) > 800
