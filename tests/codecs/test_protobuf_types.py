"""Protobuf values in types other than generated classes: bytes, durations, 64-bit integers, Any and map fields."""

from __future__ import annotations

import base64
import datetime as dt
from dataclasses import dataclass

import msgspec
import pydantic
import pytest
from google.protobuf import any_pb2, descriptor_pb2, duration_pb2, message_factory, timestamp_pb2, wrappers_pb2
from google.protobuf.descriptor_pool import DescriptorPool

from tailrace.codecs.protobuf import ProtobufFormat
from tailrace.codecs.wire_format import Schema, header_of

FILE = descriptor_pb2.FileDescriptorProto(name="shop.proto", package="shop", syntax="proto3")
FILE.dependency.extend(f"google/protobuf/{name}.proto" for name in ("any", "duration", "timestamp", "wrappers"))
ORDER = FILE.message_type.add(name="Order")
ENTRY = ORDER.nested_type.add(name="PartsEntry", options=descriptor_pb2.MessageOptions(map_entry=True))
ENTRY.field.add(name="key", number=1, type=3, label=1)
ENTRY.field.add(name="value", number=2, type=12, label=1)
ORDER.field.add(name="parts", number=1, type=11, label=3, type_name=".shop.Order.PartsEntry")
ORDER.field.add(name="data", number=2, type=12, label=1)
ORDER.field.add(name="blobs", number=3, type=12, label=3)
ORDER.field.add(name="took", number=4, type=11, label=1, type_name=".google.protobuf.Duration")
ORDER.field.add(name="at", number=5, type=11, label=1, type_name=".google.protobuf.Timestamp")
ORDER.field.add(name="total", number=6, type=3, label=1)
ORDER.field.add(name="raw", number=7, type=11, label=1, type_name=".google.protobuf.BytesValue")
ORDER.field.add(name="lines", number=8, type=11, label=3, type_name=".shop.Order.Line")
ORDER.field.add(name="any", number=9, type=11, label=1, type_name=".google.protobuf.Any")
ORDER.nested_type.add(name="Line").field.add(name="tag", number=1, type=12, label=1)
POOL = DescriptorPool()
for module in (any_pb2, duration_pb2, timestamp_pb2, wrappers_pb2):
    POOL.AddSerializedFile(module.DESCRIPTOR.serialized_pb)
POOL.Add(FILE)
Order, Line = (
    message_factory.GetMessageClass(POOL.FindMessageTypeByName(f"shop.{n}")) for n in ("Order", "Order.Line")
)
SCHEMA = Schema(1, "PROTOBUF", base64.b64encode(FILE.SerializeToString()).decode(), {})
BYTES = b"\xff\x00"


class Model(pydantic.BaseModel):
    parts: dict[int, bytes]
    data: bytes
    blobs: list[bytes]
    took: dt.timedelta
    at: dt.datetime
    total: pydantic.StrictInt
    raw: bytes | None
    lines: list[ModelLine]


class ModelLine(pydantic.BaseModel):
    tag: bytes


class StructLine(msgspec.Struct):
    tag: bytes


class Struct(msgspec.Struct):
    parts: dict[int, bytes]
    data: bytes
    blobs: list[bytes]
    took: dt.timedelta
    at: dt.datetime
    total: int
    raw: bytes | None
    lines: list[StructLine]


@dataclass
class DataLine:
    tag: bytes


@dataclass
class Data:
    parts: dict[int, bytes]
    data: bytes
    blobs: list[bytes]
    took: dt.timedelta
    at: dt.datetime
    total: int | str
    raw: bytes | None
    lines: list[DataLine]


@dataclass
class Text:
    took: str
    total: str
    data: bytes


def order():
    value = Order(parts={7: BYTES}, data=BYTES, blobs=[BYTES, b""], total=2**60, lines=[Line(tag=BYTES)])
    value.took.FromTimedelta(dt.timedelta(seconds=5.5))
    value.at.FromDatetime(dt.datetime(2026, 1, 2, tzinfo=dt.UTC))
    value.raw.value = BYTES
    return value


def read(annotation, value, index=b"\x00"):
    return ProtobufFormat().reader(SCHEMA, annotation)(header_of(1) + index + value.SerializeToString())


@pytest.mark.parametrize("kind", [Model, Struct, Data])
def test_fields_have_the_types_of_python(kind):
    """Bytes, durations, times and 64-bit integers reach a model, Struct or dataclass as values of their types."""
    got = read(kind, order())

    assert (got.parts, got.data, got.blobs, got.raw, got.lines[0].tag) == (
        {7: BYTES},
        BYTES,
        [BYTES, b""],
        BYTES,
        BYTES,
    )
    assert got.took == dt.timedelta(seconds=5.5)
    assert got.at == dt.datetime(2026, 1, 2, tzinfo=dt.UTC)
    assert got.total == 2**60


def test_text_is_still_possible():
    """A field that is annotated with str receives the text of the JSON mapping, and a dict receives nothing else."""
    assert read(Text, order()) == Text("5.500s", str(2**60), BYTES)
    assert read(dict, order())["data"] == base64.b64encode(BYTES).decode()


def test_any_of_the_same_schema_is_read():
    """An Any that contains a message of the schema is read."""
    value = order()
    value.any.Pack(Line(tag=BYTES))

    assert read(dict, value)["any"] == {"@type": "type.googleapis.com/shop.Order.Line", "tag": "/wA="}


def test_message_indexes_do_not_count_map_fields():
    """The message type that is generated for a map field has no message index, as in Java."""
    writer = ProtobufFormat().writer(SCHEMA, Line(tag=BYTES))

    assert writer(Line(tag=BYTES))[:3] == b"\x04\x00\x00"
    assert read(StructLine, Line(tag=BYTES), b"\x04\x00\x00") == StructLine(BYTES)
    assert read(StructLine, Line(tag=BYTES), b"\x04\x00\x02") == StructLine(BYTES), "as Confluent's client writes it"
