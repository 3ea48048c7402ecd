"""Limits for malicious Avro payloads: each raises an error, and neither crashes the process nor fills its memory."""

from __future__ import annotations

import io
import json
import subprocess
import sys
import time
from decimal import Decimal

import fastavro
import pytest

from tailrace.codecs.avro import AvroFormat
from tailrace.codecs.wire_format import Schema, check_schema, header_of

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


def writer(schema):
    return AvroFormat().writer(Schema(1, "AVRO", json.dumps(schema), {}), None)


def read(schema, payload):
    """Decode a payload of any schema."""
    return AvroFormat().reader(Schema(1, "AVRO", json.dumps(schema), {}), object)(header_of(1) + payload)


def varint(number):
    out, rest = bytearray(), number << 1
    while rest > 127:
        out.append(rest & 127 | 128)
        rest >>= 7
    return bytes([*out, rest])


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
        "from tests.codecs.test_avro_limits import CHAIN, header_of, reader\n"
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


# ---- decimals ------------------------------------------------------------------------------------------------------

MONEY = {"type": "bytes", "logicalType": "decimal", "precision": 10, "scale": 2}
WIDE = {"type": "fixed", "name": "Wide", "size": 200_000, "logicalType": "decimal", "precision": 10, "scale": 2}
LARGE = varint(200_000) + b"\x7f" * 200_000


@pytest.mark.parametrize(
    ("schema", "payload"),
    [
        (MONEY, LARGE),
        (MONEY | {"precision": 10**9}, LARGE),
        (WIDE, b"\x7f" * 200_000),
        (["null", MONEY], b"\x02" + LARGE),
        ({"type": "array", "items": MONEY}, b"\x02" + LARGE + b"\x00"),
        ({"type": "map", "values": MONEY}, b"\x02\x02a" + LARGE + b"\x00"),
        ({"type": "record", "name": "R", "fields": [{"name": "total", "type": MONEY}]}, LARGE),
    ],
    ids=["bytes", "a huge precision", "fixed", "union", "array", "map", "field"],
)
def test_a_decimal_that_is_too_large_is_refused_at_once(schema, payload):
    """A decimal whose conversion would block the event loop for seconds raises an error instead."""
    started = time.process_time()
    with pytest.raises(ValueError, match=r"a decimal of precision 10+ has 200\d+ bytes, more than"):
        read(schema, payload)

    assert time.process_time() - started < 0.5


@pytest.mark.parametrize("unscaled", [99_999, -99_999, 10**30 + 1, 0, 127, -128])
def test_a_decimal_above_its_precision_keeps_its_digits(unscaled):
    """A decimal with more digits than ``precision`` is read exactly, as by Java, and not rounded."""
    schema = {"type": "bytes", "logicalType": "decimal", "precision": 2, "scale": 1}
    data = unscaled.to_bytes(16, "big", signed=True)

    assert read(schema, b"\x20" + data) == Decimal(f"{unscaled}e-1")
    assert read(WIDE | {"size": 16}, data) == Decimal(f"{unscaled}e-2")


def test_a_fixed_decimal_may_be_larger_than_its_digits():
    """A decimal in a large fixed type is read if its leading bytes only repeat the sign."""
    for number in (-5, 5):
        assert read(WIDE, number.to_bytes(200_000, "big", signed=True)) == Decimal(number) / 100


@pytest.mark.parametrize("kind", [{"type": "bytes"}, {"type": "fixed", "name": "Money", "size": 5}])
def test_decimals_are_written_as_they_are_read(kind):
    """A decimal that the type can represent is written and read back, however its exponent is stored."""
    schema = MONEY | kind
    for text in ("1.5", "-1", "0", "1.500", "99999999.99", "-99999999.99", "128", "-1.28", "1e3", "0E+100000000"):
        for union in (schema, ["null", schema]):
            assert read(union, writer(union)(Decimal(text))) == Decimal(text)


@pytest.mark.parametrize(
    "text", ["1e1000000", "1e999999999", "1e-999999999", "100000000", "1.555", "NaN", "Infinity", "9" * 100_000]
)
def test_a_decimal_that_the_type_cannot_represent_is_not_written(text):
    """A decimal with too many digits, or none, raises an error at once when it is written."""
    started = time.process_time()
    with pytest.raises(ValueError, match="is not a decimal of precision 10 and scale 2"):
        writer(MONEY)(Decimal(text))

    assert time.process_time() - started < 0.5


@pytest.mark.parametrize("invalid", [{"precision": 0}, {"precision": "2"}, {"scale": 11}, {"scale": -1}])
def test_an_invalid_decimal_type_is_read_as_bytes(invalid):
    """The bytes of a decimal type that is invalid are delivered unconverted, as the specification demands."""
    assert read(MONEY | invalid, b"\x02\x05") == b"\x05"


# ---- nesting, and values without bytes -----------------------------------------------------------------------------


def arrays(inner, depth=100):
    for _ in range(depth):
        inner = {"type": "array", "items": inner}
    return inner


def nested_types():
    """A schema that is not recursive, with 200 types that each contain the type before, 100 arrays deep."""
    inner = [{"name": "x", "type": arrays("int")}]
    fields = []
    for number in range(200):
        fields.append({"name": f"f{number}", "type": {"type": "record", "name": f"R{number}", "fields": inner}})
        inner = [{"name": "x", "type": arrays(f"R{number}")}]
    return {"type": "record", "name": "Root", "fields": fields}


def doubling(steps):
    """A schema with 2 to the power of ``steps`` empty records in each value."""
    tree = {"type": "record", "name": f"R{steps}", "fields": []}
    for number in reversed(range(steps)):
        fields = [{"name": "a", "type": tree}, {"name": "b", "type": f"R{number + 1}"}]
        tree = {"type": "record", "name": f"R{number}", "fields": fields}
    return tree


def record(*types):
    return {"type": "record", "name": "Root", "fields": [{"name": f"f{n}", "type": t} for n, t in enumerate(types)]}


def ended(expression):
    """Return what a new process prints that evaluates an expression, or a negative number if a signal ended it."""
    names = "CHAIN, arrays, doubling, nested_types, read, record, varint"
    script = (
        f"from tests.codecs.test_avro_limits import {names}\n"
        f"try:\n    {expression}\n"
        "except (TypeError, ValueError) as error:\n    print(error)"
    )
    run = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False, timeout=60)
    return run.stdout if run.returncode >= 0 else run.returncode


@pytest.mark.parametrize(
    ("expression", "message"),
    [
        (r"read(nested_types(), b'\0' * 199 + b'\2' * 20_005)", "the schema is nested deeper than 500 levels"),
        (r"read(record(arrays('Root')), b'\2' * 20_005)", "the payload is nested too deeply"),
        (r"read(record(['null', arrays('Root')]), b'\2' * 20_005)", "the payload is nested too deeply"),
        (r"read(record('Root'), b'\2' * 20_005)", "records are nested deeper than 200 levels"),
        (r"read(arrays('int', 550), b'\2' * 551)", "the schema is nested deeper than 500 levels"),
    ],
    ids=["types in types", "recursive arrays", "recursive union", "endless", "a deep schema"],
)
def test_a_schema_that_nests_too_deeply_does_not_crash(expression, message):
    """A schema, recursive or not, whose values would overflow the C stack raises an error."""
    assert ended(expression) == f"{message}\n"


@pytest.mark.parametrize(
    "schema",
    [
        doubling(18),
        doubling(90),
        record(doubling(40), "int"),
        record(*["null"] * 10_001),
        ["null", doubling(20)],
        {"type": "map", "values": doubling(20)},
        {"type": "array", "items": record(doubling(20), "int")},
    ],
    ids=["2^18", "2^90", "in a record", "nulls", "in a union", "in a map", "in an array"],
)
def test_a_schema_whose_types_double_is_refused(schema):
    """A schema with millions of values that take no bytes is refused before a payload is read."""
    with pytest.raises(TypeError, match="more than 10,000 values that take no bytes"):
        AvroFormat().reader(Schema(1, "AVRO", json.dumps(schema), {}), object)


@pytest.mark.parametrize(
    "items", [record(doubling(12), "int"), ["null", doubling(12)], {"type": "map", "values": doubling(12)}]
)
def test_a_payload_with_too_many_values_without_bytes_is_refused(items):
    """A payload of a kilobyte whose items contain millions of values that take no bytes raises an error."""
    with pytest.raises(ValueError, match="more than 1,000,000 values that take no bytes"):
        read({"type": "array", "items": items}, varint(500) + b"\x02" * 500 + b"\x00")


def test_values_without_bytes_are_read_up_to_the_limit():
    """Empty records and nulls are read as long as a payload contains few of them."""
    assert read(doubling(2), b"") == {"a": {"a": {}, "b": {}}, "b": {"a": {}, "b": {}}}
    assert read({"type": "array", "items": record(*["null"] * 3, "int")}, varint(99) + b"\x02" * 99 + b"\x00")
    assert len(read({"type": "array", "items": ["null", record()]}, varint(10**6) + b"\x02" * 10**6 + b"\x00")) == 10**6


# ---- defaults ------------------------------------------------------------------------------------------------------

COLOUR = {"type": "enum", "name": "Colour", "symbols": ["RED"], "default": "BLUE"}


@pytest.mark.parametrize(
    ("kind", "default"),
    [
        ("string", None),
        ("long", "5"),
        (["null", "string"], 5),
        (["string", "null"], 5),
        (COLOUR, "GREEN"),
        ({"type": "array", "items": "int"}, {}),
        ({"type": "record", "name": "Inner", "fields": [{"name": "a", "type": "int", "default": "x"}]}, 7),
    ],
    ids=["null", "long", "union", "union's first", "enum", "array", "nested"],
)
def test_an_invalid_default_does_not_prevent_reading_and_writing(kind, default):
    """A schema with an invalid default, which registries accept, is used for reading and writing, as in Java."""
    schema = {"type": "record", "name": "R", "fields": [{"name": "f", "type": kind, "default": default}]}
    value = {"string": "a", "long": 5}.get(str(kind), "a")
    value = {"enum": "RED", "array": [1], "record": {"a": 1}}[kind["type"]] if isinstance(kind, dict) else value

    assert read(schema, writer(schema)({"f": value})) == {"f": value}
    with pytest.raises(ValueError, match="Field f is specified in the schema but missing"):
        writer(schema)({})


def test_a_valid_default_is_written():
    """A field that a value lacks is written with the schema's default."""
    schema = {"type": "record", "name": "R", "fields": [{"name": "f", "type": "int", "default": 7}]}

    assert read(schema, writer(schema)({})) == {"f": 7}


# ---- sizes ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("references", [{}, {"shop.A": "x" * (1 << 20), "shop.B": "x" * (1 << 20)}])
def test_a_schema_of_several_megabytes_is_refused(references):
    """A schema of more than 2 MiB, with the schemas that it references, is refused before it is parsed."""
    text = json.dumps({"type": "string", "doc": "" if references else "x" * (2 << 20)})
    with pytest.raises(TypeError, match=r"schema 1 .* have 2,097,\d+ characters, more than 2,097,152 - split"):
        check_schema(Schema(1, "AVRO", text, references), AvroFormat(), ())
