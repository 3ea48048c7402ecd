"""Limits for malicious Avro payloads: each raises an error, and neither crashes the process nor fills its memory."""

from __future__ import annotations

import io
import json
import subprocess
import sys

import fastavro
import pytest

from tailrace.app.declare.schema_registry.formats import AvroFormat, header_of
from tailrace.app.declare.schema_registry.schema import Schema

TREE = {
    "type": "record",
    "name": "Tree",
    "fields": [
        {"name": "kind", "type": {"type": "enum", "name": "Kind", "symbols": ["A", "B"]}},
        {"name": "id", "type": {"type": "fixed", "name": "Id", "size": 4}},
        {"name": "names", "type": {"type": "map", "values": "string"}},
        {"name": "weight", "type": ["null", "double", "long"]},
        {"name": "at", "type": {"type": "long", "logicalType": "timestamp-millis"}},
        {"name": "left", "type": ["null", "Tree"]},
        {"name": "others", "type": {"type": "array", "items": "Tree"}},
    ],
}
CHAIN = {"type": "record", "name": "Chain", "fields": [{"name": "next", "type": ["null", "Chain"]}]}


def reader(schema):
    return AvroFormat().reader(Schema(1, "AVRO", json.dumps(schema)), dict)


def tree(depth):
    left = tree(depth - 1) if depth else None
    at = {"kind": "B", "id": b"1234", "names": {"a": "b", "c": "dé"}, "weight": 1.5, "at": 7, "left": left}
    return {**at, "others": [{**at, "left": None, "weight": None, "others": []}] if depth % 2 else []}


def test_a_value_of_a_recursive_schema_is_decoded():
    """A value of a recursive schema is decoded, at any depth that ordinary data has."""
    for depth in (0, 1, 30):
        stream = io.BytesIO()
        fastavro.schemaless_writer(stream, fastavro.parse_schema(TREE), tree(depth))
        found = reader(TREE)(header_of(1) + stream.getvalue())
        for _ in range(depth):
            found = found["left"]
        assert (found["left"], found["id"], found["names"]) == (None, b"1234", {"a": "b", "c": "dé"})


def test_at_most_200_nested_records_are_decoded():
    """The codec decodes up to 200 nested records; more raise an error."""
    assert reader(CHAIN)(header_of(1) + b"\x02" * 199 + b"\x00")
    with pytest.raises(ValueError, match="nested deeper than 200 levels"):
        reader(CHAIN)(header_of(1) + b"\x02" * 200 + b"\x00")


def test_a_deeply_nested_payload_raises_an_error():
    """A deeply nested payload raises an error instead of overflowing the C stack."""
    script = (
        "from tests.app.declare.schema_registry.test_avro_limits import CHAIN, header_of, reader\n"
        "try:\n    reader(CHAIN)(header_of(1) + b'\\x02' * 500_000 + b'\\x00')\n"
        "except ValueError as error:\n    print(error)"
    )
    ended = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False, timeout=120)

    assert (ended.returncode, ended.stderr) == (0, "")
    assert "nested deeper than 200 levels" in ended.stdout


@pytest.mark.parametrize(
    "items",
    [
        "null",
        {"type": "fixed", "name": "Nothing", "size": 0},
        {"type": "record", "name": "Empty", "fields": []},
        {"type": "record", "name": "Nulls", "fields": [{"name": "a", "type": "null"}]},
    ],
)
@pytest.mark.parametrize("is_inner", [False, True])
def test_arrays_of_items_without_bytes_are_refused(items, is_inner):
    """Arrays whose items take no bytes are refused: five bytes of payload would decode to millions of items."""
    array = {"type": "array", "items": items}
    schema = {"type": "record", "name": "R", "fields": [{"name": "a", "type": {"type": "map", "values": array}}]}
    with pytest.raises(TypeError, match="items take no bytes"):
        reader(schema if is_inner else array)


@pytest.mark.parametrize("items", ["boolean", ["null", "int"], {"type": "array", "items": "int"}, TREE])
def test_arrays_of_items_with_bytes_are_accepted(items):
    """Arrays of items that take bytes are accepted: the payload bounds their number."""
    assert (
        AvroFormat().reader(Schema(1, "AVRO", json.dumps({"type": "array", "items": items})), list)(
            header_of(1) + b"\x00"
        )
        == []
    )


@pytest.mark.parametrize("payload", [b"", b"\x02", b"\x04", b"\x01", b"\xff" * 20, b"\x02" * 50])
def test_a_truncated_payload_raises_an_error(payload):
    """A truncated payload of a recursive schema raises an error, as with any other schema."""
    with pytest.raises((ValueError, EOFError, IndexError)):
        reader(CHAIN)(header_of(1) + payload)
