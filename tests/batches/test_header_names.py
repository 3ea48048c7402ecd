"""Names of headers that are not UTF-8, which brokers accept."""

from __future__ import annotations

import pytest

from tailrace.batches import record_batch
from tailrace.batches.columns import ColumnBuilder
from tailrace.batches.record_batch import split
from tailrace.installation import COMPILED
from tests.support.protocol.built_batches import SentRecord, with_header_name

DECODERS = [
    pytest.param(True, id="compiled", marks=pytest.mark.skipif(not COMPILED, reason="there is no compiled module")),
    pytest.param(False, id="pure"),
]
NAMES = [b"caf\xe9", b"\xff", b"\x80\x80", b"a\xf0\x9f\x98z", b"caf\xc3\xa9"]


@pytest.fixture(params=DECODERS, autouse=True)
def is_compiled(request, monkeypatch):
    """Run a test with the compiled decoder, and again without it."""
    if not request.param:
        monkeypatch.setattr(record_batch, "_BatchDecoder", None)


def batch_with(name: bytes) -> bytes:
    headers = (("before", b"1"), ("X" * len(name), None), ("é", b"2"))
    return with_header_name(name, *(SentRecord(b"k%d" % n, b"v", 1_000 + n, headers[: n + 1]) for n in range(4)))


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("position", [0, 2])
def test_names_that_are_not_utf8_are_read_with_replacement_characters(name, position):
    """As in Java's client, each invalid part of a header's name becomes U+FFFD, and the batch is read as any other."""
    decoder = split(memoryview(batch_with(name)))[0].decode("t", 3, position)
    records = [record for count in (1, 1, 9, 9) for record in decoder.take(count)]

    expected = [("before", b"1"), (name.decode("utf-8", "replace"), None), ("é", b"2")]
    assert [(record.offset, record.key, record.timestamp) for record in records] == [
        (n, b"k%d" % n, 1_000 + n) for n in range(position, 4)
    ]
    assert [list(record.headers) for record in records] == [expected[: n + 1] for n in range(position, 4)]


@pytest.mark.parametrize("name", NAMES)
def test_names_that_are_not_utf8_are_valid_in_columns(name):
    """Columns contain the same names as records, as valid UTF-8."""
    decoder, columns = split(memoryview(batch_with(name)))[0].decode("t", 3, 1), ColumnBuilder()
    for count in (1, 9):
        decoder.take_into(columns, count)
    table = columns.finish()

    table.validate(full=True)
    names = [[header["key"] for header in row] for row in table.column("headers").to_pylist()]
    read = name.decode("utf-8", "replace")
    assert names == [["before", read], ["before", read, "é"], ["before", read, "é"]]
    assert table.column("offset").to_pylist() == [1, 2, 3]
